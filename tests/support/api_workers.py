"""Real API worker processes on one listening socket, beside a real engine process on the null backend."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from aphrodited.config.loader import write_effective
from aphrodited.config.schema import ApiConfig, RecoveryConfig
from aphrodited.page import Page, Phase, read_page
from aphrodited.paths import api_program
from tests.support.engine_process import EngineProcess, engine_process, wait_blocking
from tests.support.tiny_models import write_tiny_tokenizer

START_TIMEOUT_S = 30.0


class ApiWorkers:
    """`engine` may be stopped and started at will; `port` answers as long as one worker lives."""

    def __init__(self, engine: EngineProcess, num_workers: int, api: ApiConfig, recovery: RecoveryConfig) -> None:
        self.engine = engine
        write_tiny_tokenizer(Path(engine.config.models[0].path))
        self.configure(api=api, recovery=recovery)
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self._listening.getsockname()[1]
        self.processes = [self.start(index) for index in range(num_workers)]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def configure(self, **changes: object) -> None:
        """For the next start."""
        self.engine.config = msgspec.structs.replace(self.engine.config, **changes)
        write_effective(self.engine.config, self.engine.paths.effective_config)

    def start(self, index: int) -> subprocess.Popen[bytes]:
        program, fd = api_program(index), self._listening.fileno()
        with open(self.engine.paths.log(program), "ab") as log:
            return subprocess.Popen(
                [
                    *(sys.executable, "-m", "aphrodited.workers.api"),
                    *("--runtime-dir", str(self.engine.paths.runtime_dir)),
                    *("--program", program, "--listen-fd", str(fd)),
                ],
                pass_fds=[fd],
                stdout=log,
                stderr=log,
                cwd=Path(__file__).parents[2],
            )

    def page(self, index: int) -> Page | None:
        """Of the worker that runs now."""
        page = read_page(self.engine.paths.page(api_program(index)))
        return page if page is not None and page.pid == self.processes[index].pid else None

    def log(self, index: int) -> str:
        return self.engine.paths.log(api_program(index)).read_text()

    def is_ready(self, index: int) -> bool:
        page = self.page(index)
        assert self.processes[index].poll() is None, self.log(index)
        return page is not None and page.phase is Phase.READY

    def wait_ready(self) -> None:
        for index in range(len(self.processes)):
            wait_blocking(lambda index=index: self.is_ready(index), START_TIMEOUT_S)

    def signal(self, index: int, number: signal.Signals) -> None:
        os.kill(self.processes[index].pid, number)

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait(10)
        self._listening.close()


@contextmanager
def api_workers(
    *,
    num_workers: int = 1,
    step_s: float = 0.002,
    api: ApiConfig | None = None,
    recovery: RecoveryConfig | None = None,
) -> Iterator[ApiWorkers]:
    """Workers attached to a running engine; everything is killed and removed at the end."""
    with engine_process(step_s=step_s) as engine:
        workers = ApiWorkers(engine, num_workers, api or ApiConfig(), recovery or RecoveryConfig(on_engine_death="fail"))
        try:
            engine.start_and_wait()
            workers.wait_ready()
            yield workers
        finally:
            workers.close()
