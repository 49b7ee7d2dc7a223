"""launch_engine: an engine process for a plain script, without the daemon.

    with launch_engine(engine_config) as ipc_path:
        client = MQAphroditeEngineClient(ipc_path, engine_config)

Nobody restarts it: whoever wants that runs the daemon. Loads no torch; the engine's process does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from aphrodited.config.cpus import usable_cpus
from aphrodited.config.loader import write_effective
from aphrodited.config.schema import Config, LoggingConfig, ModelConfig, MqConfig, PathsConfig, RecoveryConfig
from aphrodited.engine.environment import engine_environment
from aphrodited.errors import EXIT_CONFIG, ConfigError, EngineError
from aphrodited.llm import default_cache_dir
from aphrodited.mq.endpoints import check_socket_paths, read_current
from aphrodited.page import read_page
from aphrodited.paths import DaemonPaths, engine_program

STOP_TIMEOUT_S = 4.0
POLL_S = 0.02


@contextmanager
def launch_engine(engine_config: ModelConfig, mq: MqConfig | None = None) -> Iterator[Path]:
    """Start an engine, wait until it serves, and give the path that its clients take; stop it at the end.

    The engine also ends when this process does, however that happens. Its warnings go to our stderr.
    Raises ConfigError if model or configuration cannot be used, EngineError if the engine fails while it loads.
    """
    program = engine_program(engine_config.name, 0)
    with tempfile.TemporaryDirectory(prefix="aphrodited-") as folder:
        paths = DaemonPaths(*(Path(folder, name) for name in ("run", "log", "state")))
        check_socket_paths(paths.model(engine_config.name))
        _write_configuration(engine_config, mq or MqConfig(), paths)
        process = _start(engine_config, paths, program)
        try:
            _wait_until_serving(process, paths, engine_config, program)
            yield paths.model(engine_config.name).folder
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _write_configuration(model: ModelConfig, mq: MqConfig, paths: DaemonPaths) -> None:
    for path in (paths.runtime_dir, paths.log_dir, paths.state_dir, default_cache_dir()):
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    paths.cache_dir.symlink_to(default_cache_dir())  # compiled kernels outlive the script
    config = Config(
        models=(model,),
        mq=mq,
        recovery=RecoveryConfig(engine_stop_timeout_s=STOP_TIMEOUT_S),
        logging=LoggingConfig(level="warning"),
        paths=PathsConfig(str(paths.runtime_dir), str(paths.log_dir), str(paths.state_dir)),
    )
    write_effective(config, paths.effective_config)


def _start(model: ModelConfig, paths: DaemonPaths, program: str) -> subprocess.Popen[bytes]:
    own_fd = os.pidfd_open(os.getpid())  # opened here: it can only ever mean this process
    try:
        process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "aphrodited.workers.attended_engine"),
                *("--parent-fd", str(own_fd)),
                *("--runtime-dir", str(paths.runtime_dir)),
                *("--program", program),
            ],
            env={**os.environ, **engine_environment(model)},
            pass_fds=(own_fd,),
            stdin=subprocess.DEVNULL,
        )
    finally:
        os.close(own_fd)
    if model.engine.cpus is not None:
        with suppress(ProcessLookupError):
            os.sched_setaffinity(process.pid, usable_cpus(model.engine.cpus))  # long before it has a second thread
    return process


def _wait_until_serving(process: subprocess.Popen[bytes], paths: DaemonPaths, model: ModelConfig, program: str) -> None:
    while read_current(paths.model(model.name)) is None:
        code = process.poll()
        if code is not None:
            page = read_page(paths.page(program))
            cause = (page.message if page else "") or f"it ended with code {code}"
            if code == EXIT_CONFIG:
                raise ConfigError(cause)
            raise EngineError(f"the engine of {model.name} did not start: {cause}")
        time.sleep(POLL_S)
