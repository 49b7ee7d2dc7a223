"""`aphrodited --config FILE`: the daemon itself, in the foreground, until it is told to stop.

Reads the configuration, takes the lock, opens the port, writes what the workers read, and becomes the supervisor;
everything else happens in the processes that the supervisor starts. Loads neither ZeroMQ nor torch.

    exit code   meaning
    0           stopped on request
    70          the supervisor itself failed
    75          try again: the daemon runs already, or the port is taken
    78          the configuration is wrong; every problem was said
    130         Ctrl-C before anything was started
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from aphrodited import __version__
from aphrodited.config.checks import find_warnings
from aphrodited.config.given import Given, given_from, write_given
from aphrodited.config.loader import daemon_paths, load, write_effective
from aphrodited.config.schema import Config
from aphrodited.errors import EXIT_CONFIG, EXIT_ENGINE_FAILED, EXIT_OK, EXIT_TEMPORARY, ConfigError
from aphrodited.paths import DaemonPaths
from aphrodited.supervision.announce import Announcer
from aphrodited.supervision.conf_writer import write_conf
from aphrodited.supervision.desired import restore_desired, unloaded_models
from aphrodited.supervision.launcher import DAEMON_PID_VARIABLE
from aphrodited.supervision.listening import (
    PortInUseError,
    address_of,
    check_exposure,
    open_listener,
    url_of,
)
from aphrodited.supervision.runtime_dir import (
    DaemonRunningError,
    end_leftovers,
    prepare,
    remove_runtime_files,
    take_lock,
)

LAUNCHER_MODULE = "aphrodited.cli.launcher"
EXIT_INTERRUPTED = 130
PORT_RETRY_S = 10.0
"""For the port that a killed daemon's processes, which are about to end, still have open."""


def main(argv: Sequence[str] | None = None, *, launcher_module: str = LAUNCHER_MODULE) -> int:
    """Returns the exit code. launcher_module: what each program starts as, run with `python -m`."""
    options = _parse(argv)
    announce = Announcer()
    try:
        loaded = load(options.config, options.set)
        if options.check_config:
            _say_warnings(loaded.config, announce)
            print(f"{options.config}: no problems found")
            return EXIT_OK
        if options.show_config:
            from aphrodited.config.show import show_config

            print(show_config(loaded))
            return EXIT_OK
        given = given_from(options.config, tuple(options.set), loaded.config, os.environ)
        return run(given, announce, launcher_module)
    except ConfigError as error:
        for problem in error.problems:
            print(problem, file=sys.stderr)
        return EXIT_CONFIG
    except (DaemonRunningError, PortInUseError) as error:
        announce(str(error))
        return EXIT_TEMPORARY
    except KeyboardInterrupt:
        announce("interrupted before anything was started")
        return EXIT_INTERRUPTED


def run(given: Given, announce: Announcer, launcher_module: str = LAUNCHER_MODULE) -> int:
    """Be the daemon of a configuration until it is stopped.

    Raises ConfigError, DaemonRunningError and PortInUseError before anything was started.
    """
    config = given.config
    paths = daemon_paths(config)
    os.umask(0o027)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the supervisor's plugin takes it as a request to reload
    lock_fd = take_lock(paths)
    try:
        leftovers = end_leftovers(paths)
        if leftovers:
            announce(f"ended {len(leftovers)} processes that an earlier daemon of this configuration left behind")
        was_unclean = prepare(paths)
        adopted = "LISTEN_FDS" in os.environ
        with open_listener(config.api, os.environ, retry_s=PORT_RETRY_S if was_unclean else 0.0) as listener:
            config = _with_standbys(_with_address(config, listener, adopted), announce)
            _say_warnings(config, announce)
            write_effective(config, paths.effective_config)
            write_given(given, paths.given)
            names = [model.name for model in config.models]
            restore_desired(paths, names)
            unloaded = unloaded_models(paths, names)
            write_conf(config, paths, [sys.executable, "-P", "-m", launcher_module], listener.fileno(), unloaded)
            os.environ[DAEMON_PID_VARIABLE] = str(os.getpid())
            return _supervise(config, paths, announce)
    finally:
        remove_runtime_files(paths)
        os.close(lock_fd)


def _supervise(config: Config, paths: DaemonPaths, announce: Announcer) -> int:
    """Start everything and return when everything has ended."""
    from aphrodited.supervision.supervise import supervise

    names = ", ".join(model.name for model in config.models)
    url = url_of(config.api.host, config.api.port)
    announce(f"version {__version__}, pid {os.getpid()}: starting {names} on {url}; logs in {paths.log_dir}")
    try:
        supervise(paths.supervisord_conf)
    except SystemExit as error:
        announce(f"the supervisor could not start (exit code {error.code}); see above and {paths.log_dir}")
        return EXIT_ENGINE_FAILED
    announce("stopped")
    return EXIT_OK


def _with_address(config: Config, listener: socket.socket, adopted: bool) -> Config:
    """The configuration with the address that the socket really has."""
    host, port = address_of(listener)
    if adopted:
        check_exposure(config.api, host)
    api = msgspec.structs.replace(config.api, host=host if adopted else config.api.host, port=port)
    return msgspec.structs.replace(config, api=api)


def _with_standbys(config: Config, announce: Announcer) -> Config:
    """The configuration with a number for each `standby: auto`."""
    from aphrodited.engine.capacity import available_memory
    from aphrodited.engine.standby_choice import decide_standbys

    if all(model.standby != "auto" for model in config.models):
        return config
    config, notes = decide_standbys(config, available_memory())
    for note in notes:
        announce(note)
    return config


def _say_warnings(config: Config, announce: Announcer) -> None:
    for warning in find_warnings(config):
        announce(f"warning: {warning}")


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="aphrodited",
        description="Serve the models of a configuration file and keep them serving. Runs in the foreground.",
    )
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="the configuration, YAML")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="override one value, such as api.port=8080"
    )
    parser.add_argument("--check-config", action="store_true", help="say all that is wrong with the file, and exit")
    parser.add_argument(
        "--show-config", action="store_true", help="show every value in force and where it comes from, and exit"
    )
    parser.add_argument("--version", action="version", version=f"aphrodited {__version__}")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
