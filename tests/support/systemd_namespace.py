"""systemd as the first process of its own namespaces, to try units for real without touching the host.

systemd_init.sh makes the host's file systems read-only in there and shows systemd no units but ours and the empty
targets below; killing `unshare` ends all of it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.daemons import children_of, wait_until

ROOT = Path(__file__).parents[2]
INIT = Path(__file__).with_name("systemd_init.sh")
UNSHARE = ("unshare", "-m", "-p", "-f", "-u", "-i", "-n", "-C")
EMPTY_TARGET = "[Unit]\nDescription=Nothing\nDefaultDependencies=no\n"
TARGETS = ("idle-test", "sysinit", "basic", "shutdown", "umount", "sockets", "multi-user", "network-online")


def why_impossible() -> str | None:
    """A reason to skip: not root, programs missing, or unshare refused."""
    for program in ("unshare", "nsenter", "systemctl", "systemd-sysusers", "setpriv", "ip"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    if not Path("/lib/systemd/systemd").exists():
        return "systemd is not installed"
    tried = subprocess.run([*UNSHARE, "mount", "-t", "cgroup2", "cgroup2", "/mnt"], capture_output=True, text=True)
    return f"unshare was refused: {tried.stderr.strip()}" if tried.returncode else None


class SystemdNamespace:
    """One booted systemd with the project's units, a drop-in and a configuration."""

    def __init__(self, config: str, drop_in: str, model: Callable[[Path], object]) -> None:
        """model: writes a model directory, which inside is /run/given/model."""
        self.folder = Path(tempfile.mkdtemp(prefix="aphsd"))
        self.folder.chmod(0o755)
        (self.folder / "config.yaml").write_text(config)
        model(self.folder / "model")
        shutil.copy(ROOT / "etc/sysusers.d/aphrodited.conf", self.folder / "sysusers.conf")
        units = self.folder / "units"
        shutil.copytree(ROOT / "systemd", units)
        for target in TARGETS:
            (units / f"{target}.target").write_text(EMPTY_TARGET)
        (units / "aphrodited.service.d").mkdir()
        (units / "aphrodited.service.d/test.conf").write_text(drop_in)
        self._cgroup = _cgroup_root() / f"aphrodited-test-{os.getpid()}"
        self._cgroup.mkdir()
        self._log = (self.folder / "systemd.log").open("wb")
        self._unshare = subprocess.Popen(
            [
                *("bash", "-c", 'echo $$ > "$1/cgroup.procs"; shift; exec "$@"', "-", str(self._cgroup)),
                *(*UNSHARE, "--kill-child=KILL", str(INIT), str(self.folder), str(ROOT)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        wait_until(lambda: self._init_pid() and self.run("systemctl", "is-active", "idle-test.target").returncode == 0)

    def _init_pid(self) -> int | None:
        assert self._unshare.poll() is None, self.log()
        children = children_of(self._unshare.pid)
        return children[0] if children else None

    def run(self, *command: str, timeout_s: float = 50.0) -> subprocess.CompletedProcess[str]:
        """Run a command inside."""
        return subprocess.run(
            ["nsenter", "-t", str(self._init_pid()), "-a", *command],
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    def show(self, unit: str, key: str) -> str:
        return self.run("systemctl", "show", "--value", "-p", key, unit).stdout.strip()

    def processes(self) -> list[str]:
        """Command lines of everything inside but systemd and this question."""
        lines = self.run("ps", "-eo", "pid=,args=").stdout.splitlines()
        return [line.strip() for line in lines if "systemd" not in line and " ps " not in line]

    def log(self) -> str:
        return (self.folder / "systemd.log").read_text(errors="replace")

    def close(self) -> None:
        self._unshare.kill()
        self._unshare.wait()
        self._log.close()
        give_up_at_s = time.monotonic() + 10
        while True:
            try:
                for path in sorted(self._cgroup.rglob("*/"), reverse=True):
                    path.rmdir()
                self._cgroup.rmdir()
                break
            except OSError:
                if time.monotonic() > give_up_at_s:
                    raise
                time.sleep(0.05)
        shutil.rmtree(self.folder)


def _cgroup_root() -> Path:
    unified = Path("/sys/fs/cgroup/unified")
    return unified if unified.exists() else Path("/sys/fs/cgroup")
