"""The monitor process: puts the health monitor, its events socket and its HTTP together.

A port that is taken does not stop it: verdicts matter more, so it says so and tries again.
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import signal
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path

import zmq
from aiohttp import web

from aphrodited.config.loader import daemon_paths, read_effective
from aphrodited.config.schema import Config, MonitorConfig
from aphrodited.errors import EXIT_CONFIG, EXIT_OK, ConfigError
from aphrodited.health.events import EventPublisher
from aphrodited.health.filewatch import FileWatch
from aphrodited.health.monitor import Monitor
from aphrodited.health.server import HealthRoutes
from aphrodited.log import configure_logging, get_logger, set_level
from aphrodited.metrics import MonitorMetrics
from aphrodited.page import PageWriter, Phase
from aphrodited.paths import DaemonPaths
from aphrodited.workers.live_config import follow_config

log = get_logger()
_BIND_RETRY_S = 5.0
_SHUTDOWN_TIMEOUT_S = 1.0


def main(arguments: list[str] | None = None) -> int:
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    parser = argparse.ArgumentParser(prog="monitor", description="The health monitor; started by the daemon.")
    parser.add_argument("--runtime-dir", type=Path, required=True)
    parser.add_argument("--program", required=True)
    options = parser.parse_args(arguments)
    configure_logging(role="monitor", program=options.program)
    try:
        config = read_effective(options.runtime_dir / "effective.json")
    except ConfigError as error:
        log.error("config_rejected", problems=error.problems)
        return EXIT_CONFIG
    configure_logging(role="monitor", program=options.program, level=config.logging.level)
    paths = daemon_paths(config)
    page = PageWriter(paths.page(options.program))
    asyncio.run(run(config, paths, page))
    page.close()
    return EXIT_OK


async def run(config: Config, paths: DaemonPaths, page: PageWriter) -> None:
    """Look and serve, until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with AsyncExitStack() as stack:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        stack.callback(context.term)
        publisher = EventPublisher(context, paths.events_endpoint)
        stack.callback(publisher.close)
        monitor = Monitor(config, paths, publisher.publish, metrics=MonitorMetrics(paths.metrics_dir))
        follow_config(paths.effective_config, lambda config: _take(config, monitor))
        stack.callback(follow_ledger(monitor, loop))
        routes = HealthRoutes(monitor)
        admin = await _started_runner(routes.application(admin=True), stack)
        paths.admin_socket.unlink(missing_ok=True)  # of an earlier life
        await web.UnixSite(admin, paths.admin_socket).start()
        stack.callback(paths.admin_socket.unlink, missing_ok=True)
        port = await _started_runner(routes.application(admin=False), stack)
        opening = asyncio.create_task(open_port(port, config.monitor, page))
        stack.push_async_callback(_cancelled, opening)
        log.info("monitor_started", num_models=len(config.models))
        await look_in_rounds(monitor, page, config.monitor.interval_s, stop)
    log.info("monitor_stopped", num_rounds=monitor.num_rounds)


def _take(config: Config, monitor: Monitor) -> None:
    """What of a reloaded configuration the monitor takes without a restart."""
    set_level(config.logging.level)
    monitor.config = config


async def look_in_rounds(monitor: Monitor, page: PageWriter, interval_s: float, stop: asyncio.Event) -> None:
    """One round each interval until `stop`; each is a tick of the monitor's own page."""
    while not stop.is_set():
        monitor.look()
        page.update(phase=Phase.READY, num_finished=monitor.num_rounds)
        with suppress(TimeoutError):
            async with asyncio.timeout(interval_s):
                await stop.wait()


def follow_ledger(monitor: Monitor, loop: asyncio.AbstractEventLoop) -> Callable[[], None]:
    """Tell of a death as soon as it is in the ledger, without waiting for the next round; returns how to end it."""
    try:
        watch = FileWatch(monitor.ledger.path)
    except OSError as error:  # the rounds read the ledger too, later
        log.warning("ledger_watch_failed", error=str(error))
        return lambda: None

    def read() -> None:
        if watch.changed():
            monitor.read_ledger()

    def end() -> None:
        loop.remove_reader(watch)
        watch.close()

    loop.add_reader(watch, read)
    return end


async def open_port(runner: web.AppRunner, config: MonitorConfig, page: PageWriter) -> None:
    """Listen on the monitor's port; while it is taken, say so on the page and try again."""
    while True:
        try:
            await web.TCPSite(runner, config.host, config.port).start()
        except OSError as error:
            reason = f"monitor.port: {config.host}:{config.port} cannot be opened: {error.strerror}"
            log.error("port_unavailable", reason=reason, retry_s=_BIND_RETRY_S)
            page.update(message=reason)
            await asyncio.sleep(_BIND_RETRY_S)
            continue
        host, number = runner.addresses[0][:2]
        page.update(message=f"listening on {host}:{number}")
        log.info("port_opened", host=host, port=number)
        return


async def _started_runner(application: web.Application, stack: AsyncExitStack) -> web.AppRunner:
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=_SHUTDOWN_TIMEOUT_S)
    await runner.setup()
    stack.push_async_callback(runner.cleanup)
    return runner


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


if __name__ == "__main__":
    sys.exit(main())
