#!/bin/bash
# The first process of a test's own namespaces: shuts the host out and becomes systemd.
# usage: unshare -m -p -f -u -i -n -C systemd_init.sh FOLDER CHECKOUT    FOLDER: config.yaml, sysusers.conf, units/
#
# The host is protected twice. Every file system of the host is read-only in here, and systemd is shown no units but
# those of FOLDER: the ones of a normal boot empty /tmp, set kernel parameters and more.
set -eu
folder=$1 checkout=$2

mount --make-rprivate /
mount -t proc proc /proc
mount --bind /proc/sys /proc/sys
umount -R /sys/fs/cgroup
while read -r _ _ _ _ path _; do
    mount -o remount,bind,ro "$path"
done < <(tac /proc/self/mountinfo | grep -v ' /proc ')
for path in / /tmp /usr /etc /dev /proc/sys "$folder" "$checkout"; do
    if [ -w "$path" ]; then echo "$path of the host is writable in here: giving up" >&2; exit 1; fi
done

mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t tmpfs tmpfs /run
mkdir -p /run/checkout /run/systemd/system /run/lock
mount --bind "$checkout" /run/checkout
cp -a "$folder" /run/given
cp -a /etc /run/etc
mount --bind /run/etc /etc
for path in /dev/shm /tmp /var/cache /var/lib /var/log /var/tmp; do mount -t tmpfs tmpfs "$path"; done
if [ ! -e "$checkout" ]; then mkdir -p "$checkout" && mount --bind /run/checkout "$checkout"; fi

cp -r /run/given/units/. /run/systemd/system/
mkdir -p /etc/aphrodited
cp /run/given/config.yaml /etc/aphrodited/
systemd-sysusers /run/given/sysusers.conf
touch /run/console
mount --bind /run/console /dev/console  # what systemd has to say
hostname aphrodited-test
ip link set lo up
exec env -i container=aphrodited-test SYSTEMD_UNIT_PATH=/run/systemd/system PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    setpriv --bounding-set -sys_boot,-sys_time,-sys_module,-sys_rawio,-syslog \
    /lib/systemd/systemd --system --unit=idle-test.target --log-target=console --log-level=info --show-status=no
