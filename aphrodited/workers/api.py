"""An API worker process: puts clients, tokenizers and the HTTP application together on the shared listening socket.

    start      tokenizers, clients, then accept; READY once attached to every engine that serves
    SIGTERM    accept no more, close each connection with its next answer, let what runs finish for drain_timeout_s, end
               the rest; if the whole daemon stops, refuse what is new or held
    again      end the rest now
    SIGUSR2    write every thread's stack to the log
"""

from __future__ import annotations

import argparse
import asyncio
import faulthandler
import gc
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvloop
from aiohttp import web

from aphrodited.api.admin_routes import Admin
from aphrodited.api.app import create_app
from aphrodited.api.auth import ApiKeys, check_exposure, read_keys
from aphrodited.api.context import CONTEXT, Context
from aphrodited.api.middleware import Traffic
from aphrodited.api.served_model import Availability, ServedModel
from aphrodited.api.server import serving
from aphrodited.config.loader import daemon_paths, read_effective
from aphrodited.config.schema import Config, ModelConfig
from aphrodited.errors import EXIT_CONFIG, EXIT_OK, ConfigError
from aphrodited.log import configure_logging, flush, get_logger, set_level
from aphrodited.metrics import ApiMetrics, render_metrics
from aphrodited.mq.client import MQAphroditeEngineClient, MqClientConfig
from aphrodited.page import Page, PageWriter, Phase, read_page
from aphrodited.paths import DaemonPaths
from aphrodited.rulings import RulingsReader
from aphrodited.supervision.desired import Desired, DesiredWatch
from aphrodited.supervision.programs import programs
from aphrodited.tokenizer.tokenizer import Tokenizer, load_tokenizer
from aphrodited.workers.availability import EngineAvailability
from aphrodited.workers.live_config import follow_config

log = get_logger()

TICK_S = 1.0
STARTING_TICK_S = 0.05
FAREWELL_S = 2.0
"""For error events to reach their clients after the drain ended."""

LINGER_S = 1.0
"""After its last answer, a worker waits so long for one more request on each connection: it is closed by that one's answer.
Connections that are left then may break in the hands of a client that just takes one up again."""

WITHHELD = {Desired.DRAINED: "draining", Desired.UNLOADED: "unloaded"}
"""What an API client is told of a model that the operator does not want to take requests."""

TOKENIZER_RETRY_S = 10.0
TEXT_THREADS = 2


def main(arguments: list[str] | None = None) -> int:
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    parser = argparse.ArgumentParser(prog="api", description="An API worker; started by the daemon.")
    parser.add_argument("--runtime-dir", type=Path, required=True)
    parser.add_argument("--program", required=True)
    parser.add_argument("--listen-fd", type=int, required=True)
    options = parser.parse_args(arguments)
    configure_logging(role="api", program=options.program)
    try:
        config = read_effective(options.runtime_dir / "effective.json")
    except ConfigError as error:
        log.error("config_rejected", problems=error.problems)
        return EXIT_CONFIG
    configure_logging(role="api", program=options.program, level=config.logging.level)
    follow_config(options.runtime_dir / "effective.json", lambda config: set_level(config.logging.level))
    paths = daemon_paths(config)
    page = PageWriter(paths.page(options.program))
    try:
        listening = adopt_socket(options.listen_fd)
        keys = read_keys(Path(config.api.keys_file)) if config.api.keys_file else None
        admin_file = config.api.admin_keys_file
        admin_keys = read_keys(Path(admin_file), "api.admin_keys_file") if admin_file else None
        check_exposure(config.api.host, keys is not None, config.api.allow_unauthenticated)
    except ConfigError as error:
        log.error("config_rejected", problems=error.problems)
        page.update(phase=Phase.FAILED, message=str(error))
        flush()
        return EXIT_CONFIG
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        admin = Admin.of(config.api, paths.admin_socket, admin_keys, options.program)
        runner.run(ApiWorker(config, paths, options.program, page, keys, admin).run(listening))
    page.close()
    return EXIT_OK


def adopt_socket(fd: int) -> socket.socket:
    """The listening socket that was inherited as `fd`. Raises ConfigError if it is none."""
    try:
        listening = socket.socket(fileno=fd)
        is_listening = listening.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise ConfigError(f"--listen-fd {fd}: {error.strerror}") from error
    if not is_listening:
        raise ConfigError(f"--listen-fd {fd}: the socket does not listen")
    return listening


class ApiWorker:
    """One life of a worker."""

    def __init__(
        self,
        config: Config,
        paths: DaemonPaths,
        program: str,
        page: PageWriter,
        keys: ApiKeys | None,
        admin: Admin,
    ) -> None:
        self._config = config
        self._paths = paths
        self._program = program
        self._page = page
        self._keys = keys
        self._admin = admin
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._models: dict[str, ServedModel] = {}
        self._context: Context | None = None  # once it accepts
        self._is_ready = False

    async def run(self, listening: socket.socket) -> None:
        """Serve until SIGTERM or SIGINT."""
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(TEXT_THREADS, "text"))
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._ask_to_stop)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(_cancelled, [asyncio.create_task(self._tick())])
            for model in self._config.models:
                self._models[model.name] = await self._serve_model(model, stack)
            app = self._application()
            listener = await stack.enter_async_context(serving(app, listening, FAREWELL_S))
            stack.push_async_callback(_cancelled, [asyncio.create_task(self._retry_tokenizers())])
            self._context = context = app[CONTEXT]
            gc.freeze()
            log.info("worker_started", models=list(self._models))
            await self._stop.wait()
            listener.stop()
            await self._drain(context)
        log.info("worker_stopped", num_answered=context.traffic.num_answered)

    async def _serve_model(self, model: ModelConfig, stack: AsyncExitStack) -> ServedModel:
        """A model with its client, which follows the engine from now on. A bad tokenizer spoils this model alone."""
        availability = self._availability(model)
        tokenizer, defect = await self._load_tokenizer(model)
        client = MQAphroditeEngineClient(
            self._paths.model(model.name).folder,
            MqClientConfig(
                mq=self._config.mq,
                name=self._program,
                tokenizer=tokenizer,
                tokenizer_path=Path(model.path),
                events_endpoint=self._paths.events_endpoint,
            ),
        )
        stack.callback(client.close)
        await client.wait_until_running(0)
        rulings = RulingsReader(self._paths.model(model.name).rulings)
        withheld = self._withheld(model)
        if tokenizer is None:
            return ServedModel(model.name, client, None, lambda: Availability("parked", None, defect), rulings, withheld)
        return ServedModel(model.name, client, tokenizer, availability, rulings, withheld)

    def _availability(self, model: ModelConfig) -> EngineAvailability:
        engines = [program.name for program in programs(self._config) if program.model == model.name]
        return EngineAvailability(engines, self._paths, desired=DesiredWatch(self._paths.model(model.name)))

    def _withheld(self, model: ModelConfig) -> Callable[[], str]:
        desired = DesiredWatch(self._paths.model(model.name))
        return lambda: WITHHELD.get(desired(), "")

    async def _load_tokenizer(self, model: ModelConfig) -> tuple[Tokenizer | None, str]:
        try:
            return await asyncio.to_thread(load_tokenizer, Path(model.path)), ""
        except ConfigError as error:
            log.error("tokenizer_rejected", model=model.name, reason=str(error))
            return None, str(error)

    async def _retry_tokenizers(self) -> None:
        """Files of a model may be mended while the daemon runs."""
        while missing := [model for model in self._config.models if self._models[model.name].tokenizer is None]:
            await asyncio.sleep(TOKENIZER_RETRY_S)
            for model in missing:
                tokenizer, _ = await self._load_tokenizer(model)
                if tokenizer is not None:
                    self._models[model.name] = replace(
                        self._models[model.name],
                        tokenizer=tokenizer,
                        availability=self._availability(model),
                    )

    def _application(self) -> web.Application:
        return create_app(
            self._models,
            self._config.api,
            self._config.recovery,
            keys=self._keys,
            admin=self._admin,
            metrics=ApiMetrics(self._paths.metrics_dir, self._program),
            render_metrics=lambda: render_metrics(self._paths.metrics_dir, self._pages()),
        )

    def _pages(self) -> dict[str, Page]:
        pages = {program.name: read_page(self._paths.page(program.name)) for program in programs(self._config)}
        return {program: page for program, page in pages.items() if page is not None}

    async def _tick(self) -> None:
        """Show on the page that the event loop turns; often until everything is attached, then once a second."""
        while True:
            phase = self._show()
            await asyncio.sleep(STARTING_TICK_S if phase is Phase.STARTING else TICK_S)

    def _show(self) -> Phase:
        """Write what this worker is at to its page, and return the phase."""
        context = self._context
        if context is None:
            self._page.tick()
            return Phase.STARTING
        self._is_ready = self._is_ready or self._is_attached()
        phase = Phase.READY if self._is_ready else Phase.STARTING
        phase = Phase.DRAINING if self._stop.is_set() else phase
        self._page.update(
            phase=phase,
            num_running=context.traffic.num_running,
            num_waiting=context.admission.num_held,
            num_finished=context.traffic.num_answered,
        )
        return phase

    def _is_attached(self) -> bool:
        """To every engine that serves; those that do not are not waited for."""
        return all(
            model.client.is_running or model.availability().state != "ready" for model in self._models.values()
        )

    def _ask_to_stop(self) -> None:
        """The first time starts the drain, the second ends it."""
        (self._hurry if self._stop.is_set() else self._stop).set()

    async def _drain(self, context: Context) -> None:
        timeout_s = self._config.api.drain_timeout_s
        log.info("drain_started", num_running=context.traffic.num_running, timeout_s=timeout_s)
        context.traffic.is_ending = True
        others_take_over = not self._paths.stopping.exists()
        if not others_take_over:
            context.admission.stop()
        self._show()
        is_done = _when_idle(context.traffic, LINGER_S if others_take_over else 0.0)
        waits = [asyncio.create_task(is_done), asyncio.create_task(self._hurry.wait())]
        await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        num_ended = context.admission.end_running()
        if num_ended:
            log.warning("requests_ended", num_requests=num_ended)
        await asyncio.wait(waits[:1], timeout=FAREWELL_S)
        await _cancelled(waits)


async def _when_idle(traffic: Traffic, linger_s: float) -> None:
    """Return when nothing has run for so long."""
    num_begun = -1
    while traffic.num_running or num_begun != traffic.num_begun:
        await traffic.idle.wait()
        num_begun = traffic.num_begun
        await asyncio.sleep(linger_s)


async def _cancelled(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


if __name__ == "__main__":
    sys.exit(main())
