"""aphroditectl: ask and steer a daemon from the shell.

Answers at once: imports neither torch nor ZeroMQ nor an HTTP library, and each command's own modules only when
it runs. Data goes to stdout, talk to stderr.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import aphrodited
from aphrodited.cli.target import (
    CONFIG_VARIABLE,
    Target,
    UsageError,
    config_path,
    find_target,
)
from aphrodited.cli.terminal import complain
from aphrodited.config.directories import SYSTEM_CONFIG
from aphrodited.errors import EXIT_CONFIG, EXIT_OK, AphroditeError, ConfigError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNKNOWN = 4  # of `status`, after the LSB's list
EXIT_INTERRUPTED = 130

ROLE_HELP = "a role (engine, api, monitor), a model or a process name"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        return _run(arguments)
    except ConfigError as error:
        print("\n".join(error.problems), file=sys.stderr)
        return EXIT_UNKNOWN if arguments.command == "status" else EXIT_CONFIG
    except UsageError as error:
        complain(str(error))
        return EXIT_USAGE
    except (AphroditeError, OSError) as error:
        if isinstance(error, BrokenPipeError):  # the reader, head or less, has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return EXIT_OK
        complain(str(error))
        return EXIT_UNKNOWN if arguments.command == "status" else EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_OK if getattr(arguments, "follow", False) else EXIT_INTERRUPTED


def _run(arguments: argparse.Namespace) -> int:
    if arguments.command == "check":
        return _check(arguments)
    target = find_target(arguments.config)
    match arguments.command:
        case "status":
            from aphrodited.cli.status_view import show_status

            return show_status(target, as_json=arguments.json, watch=arguments.watch, wait_s=arguments.wait)
        case "start" | "stop" | "restart":
            from aphrodited.cli.steering import steer

            return steer(target, arguments.command, arguments.roles)
        case "load" | "unload" | "drain" | "undrain":
            from aphrodited.cli.orders import order

            return order(target, arguments.command, arguments.models, getattr(arguments, "wait", 0.0))
        case "logs":
            return _logs(target, arguments)
        case "events":
            from aphrodited.cli.events_view import show_events

            names = {program.name for program in target.programs(arguments.roles)} if arguments.roles else None
            return show_events(target.paths.ledger, names, as_json=arguments.json, follow=arguments.follow)
        case "reload":
            from aphrodited.cli.reload import reload

            return reload(target, dry_run=arguments.dry_run, wait=arguments.wait, partial=arguments.partial)
        case "reset":
            return _reset(target, arguments.roles)
    raise AssertionError(arguments.command)


def _check(arguments: argparse.Namespace) -> int:
    from aphrodited.config.checks import find_warnings
    from aphrodited.config.loader import load_config

    path = config_path(arguments.config)
    config = load_config(path)
    for warning in find_warnings(config):
        complain(f"warning: {warning}")
    print(f"{path}: no problems")
    return EXIT_OK


def _logs(target: Target, arguments: argparse.Namespace) -> int:
    from aphrodited.cli.log_files import LogFilter
    from aphrodited.cli.log_view import parse_since, show_logs

    since = parse_since(arguments.since) if arguments.since else None
    wanted = LogFilter(since, arguments.level, arguments.request)
    return show_logs(
        target.paths.log_dir,
        target.log_names(arguments.roles),
        wanted,
        as_json=arguments.json,
        follow=arguments.follow,
        num_lines=arguments.lines,
    )


def _reset(target: Target, roles: list[str]) -> int:
    from aphrodited.supervision.ledger import Ledger, Reset, stamp

    ledger = Ledger(target.paths.ledger)
    for program in target.programs(roles):
        ledger.append(Reset(**stamp(program.name), by=f"uid {os.getuid()}"))
        print(f"{program.name} reset")
    return EXIT_OK


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="aphroditectl", description="Ask and steer an aphrodited daemon.")
    parser.add_argument("--version", action="version", version=f"aphroditectl {aphrodited.__version__}")
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help=f"the daemon's file (default ${CONFIG_VARIABLE}, else {SYSTEM_CONFIG})"
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    status = commands.add_parser("status", help="what is running; exits 0 ready, 1 degraded, 3 down, 4 unknown")
    status.add_argument("--json", action="store_true", help="as JSON")
    status.add_argument("--watch", action="store_true", help="again every second")
    status.add_argument("--wait", type=float, default=0.0, metavar="S", help="until it is ready, S seconds at most")

    for name, text in (
        ("start", "start processes that were stopped"),
        ("stop", "stop processes until they are started again; `stop supervisor` ends the daemon"),
        ("restart", "stop and start processes, one after the other"),
    ):
        steer = commands.add_parser(name, help=text)
        steer.add_argument("roles", nargs="+", metavar="ROLE", help=f"{ROLE_HELP}, or all")

    _add_orders(commands)

    logs = commands.add_parser("logs", help="the log files, merged; works when the daemon is down")
    logs.add_argument("roles", nargs="*", metavar="ROLE", help=f"{ROLE_HELP}; default all")
    logs.add_argument("-f", "--follow", action="store_true", help="go on with what is appended")
    logs.add_argument("-n", "--lines", type=_count, metavar="N", help="only the last N lines")
    logs.add_argument("--since", metavar="WHEN", help="an age (90s, 10m, 2h, 1d) or a time (2026-01-31T12:00Z)")
    logs.add_argument("--level", choices=["debug", "info", "warning", "error"], default="debug", help="and above")
    logs.add_argument("--request", metavar="ID", help="lines of one request")
    logs.add_argument("--json", action="store_true", help="as JSON lines")

    events = commands.add_parser("events", help="deaths, verdicts, promotions, resets and reloads")
    events.add_argument("roles", nargs="*", metavar="ROLE", help=f"{ROLE_HELP}; default all")
    events.add_argument("-f", "--follow", action="store_true", help="go on with what happens")
    events.add_argument("--json", action="store_true", help="as JSON lines")

    reset = commands.add_parser("reset", help="forget deaths: try parked processes again at once")
    reset.add_argument("roles", nargs="*", metavar="ROLE", help=f"{ROLE_HELP}; default all")

    reload = commands.add_parser("reload", help="bring what changed in the file into the running daemon")
    reload.add_argument("--dry-run", action="store_true", help="show what would be applied and how")
    reload.add_argument("--wait", action="store_true", help="return when it is in force; exits 1 if it was taken back")
    reload.add_argument("--partial", action="store_true", help="leave out what needs a full restart; waits too")

    commands.add_parser("check", help="validate the configuration; exits 78 if it is wrong")
    return parser


def _add_orders(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    for name, text, wait in (
        ("load", "start an unloaded model's engines", "until it serves"),
        ("unload", "end a model's engines and give their memory back, until it is loaded; outlives the daemon", ""),
        ("drain", "let a model finish what runs and refuse what is new; outlives the daemon", "until nothing runs"),
        ("undrain", "let a drained model take requests again", ""),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("models", nargs="+", metavar="MODEL", help="a model's name, or all")
        if wait:
            command.add_argument("--wait", type=float, default=0.0, metavar="S", help=f"{wait}, S seconds at most")


def _count(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError(text)
    return number


if __name__ == "__main__":
    sys.exit(main())
