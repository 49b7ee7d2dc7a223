"""`aphroditectl reload`: bring what changed in the file into the running daemon, or say why that cannot be.

    the file is wrong                       every problem at once, exit code 78, nothing applied
    something needs a full restart          said with the keys, nothing applied, unless --partial leaves that out
    --dry-run                               the differences, nothing applied
    --wait                                  carried out here; returns when the new values are in force
    neither                                 the daemon is asked to carry it out (SIGHUP), which does the same as --wait

One reload at a time; a second one waits for the first. Knows what is to be done; `cli.reload_steps` does it.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from aphrodited.cli.reload_steps import Reload, carry_out
from aphrodited.cli.target import Target
from aphrodited.cli.terminal import complain
from aphrodited.config.changes import Change, find_changes, with_changes
from aphrodited.config.checks import find_problems, find_warnings
from aphrodited.config.given import KEY_FILES, Given, read_given, stamp_key_files
from aphrodited.config.loader import daemon_paths, read_effective
from aphrodited.config.schema import Apply
from aphrodited.errors import EXIT_CONFIG, EXIT_OK, AphroditeError, ConfigError
from aphrodited.paths import DaemonPaths
from aphrodited.supervision.rpc import SupervisorDownError

EXIT_REFUSED = 1

HOW = {
    Apply.HOT: "at once",
    Apply.MONITOR: "restarts the monitor",
    Apply.ENGINE: "replaces the engines",
    Apply.API: "replaces the API workers, one after the other",
    Apply.DAEMON: "needs a full restart",
}


def reload(target: Target, *, dry_run: bool, wait: bool, partial: bool, by: str | None = None) -> int:
    """Returns the exit code. by: who asked, if not this process's user.

    Raises ConfigError for a wrong file, SupervisorDownError without a daemon.
    """
    by = by or f"uid {os.getuid()}"
    daemon_pid = target.daemon_pid()
    if daemon_pid is None:
        raise SupervisorDownError(f"no daemon runs in {target.paths.runtime_dir}; it reads its file when it starts")
    _become_owner(target.paths.runtime_dir)
    with _one_at_a_time(target.paths):
        given = read_given(target.paths.given)
        plan = make_plan(given, target.paths, by, partial=partial)
        _show(plan)
        if plan.refused:
            keys = ", ".join(dict.fromkeys(change.key for change in plan.refused))
            complain(f"nothing was applied: {keys} need a full restart; --partial applies the rest")
            return EXIT_REFUSED
        if dry_run or not (plan.changes or given.pending):
            return EXIT_OK
        if wait or partial:
            return carry_out(target, plan)
    os.kill(daemon_pid, signal.SIGHUP)
    complain("the daemon carries it out; `aphroditectl events` and its stderr tell how it went")
    return EXIT_OK


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m aphrodited.cli.reload RUNTIME_DIR`: what the daemon starts at SIGHUP. Its file may be anything by now."""
    (runtime_dir,) = sys.argv[1:] if argv is None else argv
    try:
        given = read_given(Path(runtime_dir, "given.json"))
        target = Target(Path(given.path), daemon_paths(given.config))
        return reload(target, dry_run=False, wait=True, partial=False, by="SIGHUP")
    except ConfigError as error:
        print("\n".join(error.problems), file=sys.stderr)
        return EXIT_CONFIG
    except (AphroditeError, OSError) as error:
        complain(str(error))
        return EXIT_REFUSED


def make_plan(given: Given, paths: DaemonPaths, by: str, *, partial: bool) -> Reload:
    """What the file asks of a daemon that was given `given`. Raises ConfigError with all problems of the file."""
    loaded = given.load_again()
    stamps = stamp_key_files(loaded.config)
    changes = find_changes(given.config, loaded.config)
    changes += _new_contents(given, stamps, changes)
    applied = [change for change in changes if change.apply is not Apply.DAEMON]
    left = [change for change in changes if change.apply is Apply.DAEMON]
    effective = read_effective(paths.effective_config)
    wanted = with_changes(effective, applied)
    # The address may have been decided by whoever handed the socket over: check what will really be.
    problems = [f"{complaint.key}: {complaint.message}" for complaint in find_problems(wanted, paths)]
    if problems:
        raise ConfigError(problems)
    for warning in find_warnings(wanted):
        complain(f"warning: {warning}")
    after = msgspec.structs.replace(given, config=with_changes(given.config, applied), key_files=stamps)
    return Reload(
        changes=applied,
        left_out=left if partial else [],
        refused=[] if partial else left,
        effective=(effective, wanted),
        given=(given, after),
        by=by,
    )


def _new_contents(given: Given, stamps: dict[str, tuple[int, int, int]], changes: Sequence[Change]) -> list[Change]:
    """Key files that are where they were and hold something else. What they hold is never shown."""
    known = {change.key for change in changes}
    found = []
    for name in KEY_FILES:
        path = getattr(given.config.api, name)
        if f"api.{name}" not in known and name in stamps and stamps[name] != given.key_files.get(name):
            found.append(Change(f"api.{name}", Apply.API, path, path, path, "other contents", ("api", name)))
    return found


def _show(plan: Reload) -> None:
    for change in (*plan.changes, *plan.left_out, *plan.refused):
        print(f"{change}  ({HOW[change.apply]})", flush=True)
    if not (plan.changes or plan.left_out or plan.refused):
        pending = plan.given[0].pending
        complain(f"an earlier reload has yet to restart {', '.join(pending)}" if pending else "nothing has changed")


@contextmanager
def _one_at_a_time(paths: DaemonPaths) -> Iterator[None]:
    fd = os.open(paths.reload_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            complain("waiting for another reload to end")
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _become_owner(folder: Path) -> None:
    """As root, go on as the daemon's user: it must be able to read what is written, and key files as it will."""
    owner = folder.stat()
    if os.geteuid() != 0 or owner.st_uid == 0:
        return
    name = pwd.getpwuid(owner.st_uid).pw_name
    os.initgroups(name, owner.st_gid)
    os.setgid(owner.st_gid)
    os.setuid(owner.st_uid)


if __name__ == "__main__":
    sys.exit(main())
