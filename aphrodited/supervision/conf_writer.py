"""Writes supervisord.conf from a fixed template, and proves by Supervisor's own parser that it says what was meant.

No user value ever enters the file: program names from a closed set, integers, booleans and checked absolute
paths do; all else travels in effective.json. (In that format ` ;` and ` #` cut a value even inside quotes, a
newline begins a new section, and `%` is expanded.) Knows neither the meaning of the programs nor of the settings.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from aphrodited.config.schema import Config
from aphrodited.errors import ConfigError
from aphrodited.paths import DaemonPaths
from aphrodited.supervision.programs import GROUPS, Program, Role, programs

_ALLOWED_PATH = re.compile(r"/[A-Za-z0-9 ._/@+:,=~()\[\]{}&!^-]*")

_HEAD = """\
; Written by aphrodited at every start; changes made here are lost.

[supervisord]
nodaemon=true
silent=true
identifier=aphrodited
logfile={supervisor_log}
logfile_maxbytes={max_size}
logfile_backups={backups}
loglevel=info
pidfile={pidfile}
nocleanup=true
minfds=3
minprocs=1

[unix_http_server]
file={socket}
chmod=0600

[rpcinterface:supervisor]
supervisor.rpcinterface_factory=supervisor.rpcinterface:make_main_rpcinterface

[rpcinterface:aphrodited]
supervisor.rpcinterface_factory=aphrodited.supervision.plugin:make_plugin
runtime_dir={runtime_dir}
"""

_GROUP = """
[group:{group}]
programs={programs}
priority={priority}
"""

_PROGRAM = """
[program:{name}]
command={command}
priority={priority}
autostart={autostart}
autorestart=true
startsecs=0
startretries=1000000
stopsignal=TERM
stopwaitsecs={stop_timeout_s}
stopasgroup=false
killasgroup=true
redirect_stderr=true
stdout_logfile={log}
stdout_logfile_maxbytes={max_size}
stdout_logfile_backups={backups}
"""


def render_conf(
    config: Config, paths: DaemonPaths, launcher: Sequence[str], listen_fd: int, unloaded: Collection[str] = ()
) -> str:
    """The text of supervisord.conf.

    launcher: the command that starts a program when `--runtime-dir DIR --program NAME` is added; its first word is
    an absolute path. listen_fd: the listening socket's number, for API workers. unloaded: models whose engines are not
    started.
    Raises ConfigError if a path has characters that this file format cannot carry.
    """
    sizes = {"max_size": int(config.logging.max_size), "backups": int(config.logging.backups)}
    runtime_dir = _checked(paths.runtime_dir, "paths.runtime_dir")
    log_dir = Path(_checked(paths.log_dir, "paths.log_dir"))
    _checked(Path(launcher[0]), "the path of Python")
    parts = [
        _HEAD.format(
            supervisor_log=log_dir / "supervisor.log",
            pidfile=paths.runtime_dir / "supervisord.pid",
            socket=paths.supervisor_socket,
            runtime_dir=runtime_dir,
            **sizes,
        )
    ]
    known = programs(config)
    for role in Role:
        names = [program.name for program in known if program.role is role]
        group, priority = GROUPS[role]
        parts.append(_GROUP.format(group=group, programs=",".join(names), priority=priority))
    for program in known:
        parts.append(
            _PROGRAM.format(
                name=program.name,
                command=shlex.join(_command(program, launcher, runtime_dir, listen_fd)),
                priority=GROUPS[program.role][1],
                autostart="false" if program.model in unloaded else "true",
                stop_timeout_s=program.stop_timeout_s,
                log=paths.log(program.name),
                **sizes,
            )
        )
    return "".join(parts)


def write_conf(
    config: Config, paths: DaemonPaths, launcher: Sequence[str], listen_fd: int, unloaded: Collection[str] = ()
) -> None:
    """Write supervisord.conf (0600) and check it.

    Raises ConfigError as render_conf does, RuntimeError if Supervisor would understand something else.
    """
    text = render_conf(config, paths, launcher, listen_fd, unloaded)
    fd = os.open(paths.supervisord_conf, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(fd, "w", encoding="ascii") as file:
        file.write(text)
    check_conf(config, paths, launcher, listen_fd, unloaded)


def check_conf(
    config: Config, paths: DaemonPaths, launcher: Sequence[str], listen_fd: int, unloaded: Collection[str] = ()
) -> None:
    """Read the file back with Supervisor's own parser and compare. Raises RuntimeError if anything differs."""
    parsed = parse_conf(paths.supervisord_conf)
    runtime_dir = str(paths.runtime_dir)
    expected = {
        program.name: {
            "argv": _command(program, launcher, runtime_dir, listen_fd),
            "group": GROUPS[program.role],
            "autostart": program.model not in unloaded,
            "stop_timeout_s": program.stop_timeout_s,
            "log": str(paths.log(program.name)),
        }
        for program in programs(config)
    }
    if parsed["programs"] != expected or parsed["sockets"] != [str(paths.supervisor_socket)]:
        raise RuntimeError(f"{paths.supervisord_conf}: read back as {parsed}, meant {expected}")


def parse_conf(path: Path) -> dict[str, Any]:
    """What Supervisor makes of a file: its programs and its control sockets."""
    from supervisor.options import ServerOptions

    options = ServerOptions()
    options.configfile = str(path)
    options.here = str(path.parent)
    section = options.read_config(str(path))
    found = {}
    for group in section.process_group_configs:
        for process in group.process_configs:
            found[process.name] = {
                "argv": shlex.split(process.command),
                "group": (group.name, group.priority),
                "autostart": process.autostart,
                "stop_timeout_s": process.stopwaitsecs,
                "log": process.stdout_logfile,
            }
    return {"programs": found, "sockets": [server.get("file") for server in section.server_configs]}


def _command(program: Program, launcher: Sequence[str], runtime_dir: str, listen_fd: int) -> list[str]:
    listening = ["--listen-fd", str(int(listen_fd))] if program.role is Role.API else []
    return [*launcher, "--runtime-dir", runtime_dir, "--program", program.name, *listening]


def _checked(path: Path, what: str) -> str:
    text = str(path)
    if not _ALLOWED_PATH.fullmatch(text) or text != text.strip():
        raise ConfigError(
            f"{what}: {text!r} cannot be used: it must be absolute and made of letters, digits, blanks"
            " and . _ / @ + : , = ~ ( ) [ ] { } & ! ^ -; choose another directory"
        )
    return text
