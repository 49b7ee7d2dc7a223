"""The engine process: loads one model, becomes its next generation, serves it until it is told to stop.

With standbys configured, an engine that has loaded while another one serves waits for that one's end. One that stops hands
over at once: its successor takes what is new while it finishes what it has.

    SIGTERM, SIGINT    while loading or waiting: end at once; later: finish what runs, then leave; again: leave at once
    SIGUSR2            write every thread's stack to stderr

    exit code          reason
    0                  it was told to stop
    70                 an exception: in the log, on the page, and told to the clients
    71                 the GPU failed
    75                 another engine process still serves this model
    78                 the model or the configuration cannot be used as it is: on the page

A composition root: chooses the concrete classes and knows what becomes of their errors, nothing else.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from types import FrameType

from aphrodited.config.loader import daemon_paths, read_effective
from aphrodited.config.schema import Config, ModelConfig
from aphrodited.engine.factory import create_backend
from aphrodited.errors import (
    EXIT_CONFIG,
    EXIT_DEVICE_LOST,
    EXIT_ENGINE_FAILED,
    EXIT_OK,
    EXIT_TEMPORARY,
    ConfigError,
    DeviceLostError,
)
from aphrodited.flight import FlightRecorder
from aphrodited.interfaces import EngineBackend, ModelFacts
from aphrodited.log import configure_logging, flush, get_logger, set_generation, set_level
from aphrodited.mq.endpoints import Generation, GenerationTakenError, check_socket_paths, is_served, promote
from aphrodited.mq.engine import MQAphroditeEngine
from aphrodited.mq.standby import wait_for_promotion
from aphrodited.page import PageWriter, Phase
from aphrodited.paths import DaemonPaths, ModelPaths
from aphrodited.supervision.desired import read_desired
from aphrodited.supervision.programs import programs
from aphrodited.workers.live_config import follow_config

log = get_logger()

LEAVE_EARLY_S = 2.0
"""A stopping engine gives up on running requests this long before it would be killed."""


def serve(config: Config, paths: DaemonPaths, model: ModelConfig, program: str, page: PageWriter) -> None:
    """Load, promote and run one model's engine; returns when it was told to stop."""
    model_paths = paths.model(model.name)
    check_socket_paths(model_paths)

    def report(progress: float, what: str) -> None:
        page.update(phase=Phase.LOADING, progress=progress, message=what)

    report(0.0, "starting")
    is_spare = model.num_standbys > 0 and is_served(model_paths)
    gc.disable()  # hardly anything of what loading makes is garbage
    with closing(create_backend(model, paths.cache_dir, report, gently=is_spare)) as backend:
        gc.collect()
        gc.freeze()  # what loading made stays: no collection during a step walks over it
        gc.enable()
        page.update(is_deterministic=backend.facts.deterministic, message=caveat(backend.facts))
        with closing(_become_active(model, model_paths, page)) as generation:
            set_generation(generation.number)
            flight = FlightRecorder(paths.flights_dir, program, generation.number, backend.facts.max_num_seqs)
            with closing(flight):
                _serve_generation(config, backend, generation, page, flight)
            flight.remove()


def _become_active(model: ModelConfig, paths: ModelPaths, page: PageWriter) -> Generation:
    """The model's next generation, at once or when this standby is promoted. Raises GenerationTakenError."""
    if not model.num_standbys:
        return promote(paths)

    def tick() -> None:
        page.update(phase=Phase.STANDBY, progress=1.0)

    return wait_for_promotion(paths, is_wanted=lambda: read_desired(paths).wants_engines, on_tick=tick)


def _serve_generation(
    config: Config, backend: EngineBackend, generation: Generation, page: PageWriter, flight: FlightRecorder
) -> None:
    engine = MQAphroditeEngine(
        backend,
        generation,
        page,
        config.mq,
        hang_min_s=config.recovery.hang_min_s,
        drain_timeout_s=max(0.0, config.recovery.engine_stop_timeout_s - LEAVE_EARLY_S),
        flight=flight,
    )

    def stop(_signal: int, _frame: FrameType | None) -> None:
        engine.request_stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    page.update(progress=1.0)
    engine.run()


def caveat(facts: ModelFacts) -> str:
    """What an operator ought to know of an engine that serves; most often nothing."""
    return "" if facts.deterministic else f"not deterministic: {facts.nondeterminism or 'the backend gives no reason'}"


def exit_code_of(error: Exception) -> int:
    """What the launcher is told about an engine that ended with this error."""
    if isinstance(error, ConfigError):
        return EXIT_CONFIG
    if isinstance(error, DeviceLostError):
        return EXIT_DEVICE_LOST
    return EXIT_TEMPORARY if isinstance(error, GenerationTakenError) else EXIT_ENGINE_FAILED


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="aphrodited-engine", description="One engine process of aphrodited.")
    parser.add_argument("--runtime-dir", type=Path, required=True, help="directory that holds effective.json")
    parser.add_argument("--program", required=True, help="name of this process, which says the model")
    options = parser.parse_args(arguments)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    os.umask(0o077)
    configure_logging(role="engine", program=options.program)
    try:
        config = read_effective(options.runtime_dir / "effective.json")
        model = _model_of(config, options.program)
    except ConfigError as error:
        log.error("config_rejected", problems=error.problems)
        flush()
        return EXIT_CONFIG
    configure_logging(role="engine", program=options.program, level=config.logging.level, model=model.name)
    follow_config(options.runtime_dir / "effective.json", lambda config: set_level(config.logging.level))
    paths = daemon_paths(config)
    with closing(PageWriter(paths.page(options.program))) as page:
        code = _serve_to_the_end(config, paths, model, options.program, page)
    flush()
    return code


def _serve_to_the_end(
    config: Config, paths: DaemonPaths, model: ModelConfig, program: str, page: PageWriter
) -> int:
    """The exit code. The cause is on the page and in the log."""
    try:
        serve(config, paths, model, program, page)
    except Exception as error:  # the process ends here, and its exit code says how
        cause = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
        code = exit_code_of(error)
        page.update(phase=Phase.FAILED, has_work=False, message=cause)
        log.error("engine_exited", cause=cause, code=code, exc_info=error)
        return code
    log.info("engine_exited", cause="stopped", code=EXIT_OK)
    return EXIT_OK


def _model_of(config: Config, program: str) -> ModelConfig:
    """Raises ConfigError if no configured model has an engine of that name."""
    name = next((known.model for known in programs(config) if known.name == program and known.model), None)
    if name is None:
        raise ConfigError(f"no model of the configuration has an engine process called {program}")
    return next(model for model in config.models if model.name == name)


if __name__ == "__main__":
    sys.exit(main())
