"""A real engine process with the null backend, started, killed and replaced as a daemon would."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from aphrodited.config.loader import write_effective
from aphrodited.config.schema import Config, EngineConfig, ModelConfig, MqConfig, PathsConfig, RecoveryConfig
from aphrodited.mq.endpoints import read_current
from aphrodited.page import Page, read_page
from aphrodited.paths import DaemonPaths, ModelPaths, engine_program

MODEL = "drill"
VOCAB_SIZE = 1000
MARKER = VOCAB_SIZE - 1
START_TIMEOUT_S = 30.0


async def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    """Return as soon as the condition holds. Raises AssertionError if it never does."""
    until_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until_s, "the condition did not come true"
        await asyncio.sleep(0.005)


def wait_blocking(condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
    until_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until_s, "the condition did not come true"
        time.sleep(0.005)


class EngineProcess:
    """One model's engine. step_s: how long each of its steps takes."""

    def __init__(self, folder: Path, *, step_s: float = 0.0, mq: MqConfig | None = None, stop_timeout_s: float = 4.0) -> None:
        model_dir = folder / "model"
        model_dir.mkdir()
        (model_dir / "config.json").write_text(f'{{"vocab_size": {VOCAB_SIZE}, "null_step_s": {step_s}}}')
        self.paths = DaemonPaths(folder / "run", folder / "log", folder / "state")
        for path in (self.paths.runtime_dir, self.paths.log_dir, self.paths.state_dir):
            path.mkdir(mode=0o700)
        self.config = Config(
            models=(ModelConfig(MODEL, str(model_dir), backend="null", engine=EngineConfig(max_num_seqs=512)),),
            mq=mq or MqConfig(),
            recovery=RecoveryConfig(engine_stop_timeout_s=stop_timeout_s),
            paths=PathsConfig(str(self.paths.runtime_dir), str(self.paths.log_dir), str(self.paths.state_dir)),
        )
        self.program = engine_program(MODEL, 0)
        self.log_path = self.paths.log(self.program)
        write_effective(self.config, self.paths.effective_config)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def model_paths(self) -> ModelPaths:
        return self.paths.model(MODEL)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    @property
    def num_fds(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def page(self) -> Page:
        """Read again if it was torn: on a busy machine its writer may pause in the middle of a write."""
        pages: list[Page] = []

        def read() -> bool:
            page = read_page(self.paths.page(self.program))
            pages.extend([page] if page is not None else [])
            return bool(pages)

        wait_blocking(read)
        return pages[0]

    def configure_model(self, **changes: object) -> None:
        """For the next start."""
        models = (msgspec.structs.replace(self.config.models[0], **changes),)
        write_effective(msgspec.structs.replace(self.config, models=models), self.paths.effective_config)

    def start(self) -> None:
        """Start it, not waiting for anything."""
        with open(self.log_path, "ab") as log:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "aphrodited.workers.engine",
                    "--runtime-dir",
                    str(self.paths.runtime_dir),
                    "--program",
                    self.program,
                ],
                stderr=log,
                stdout=log,
                cwd=Path(__file__).parents[2],
            )

    def start_and_wait(self) -> int:
        """Its generation."""
        before = read_current(self.model_paths)
        self.start()
        wait_blocking(lambda: read_current(self.model_paths) not in (None, before) or self.has_ended, START_TIMEOUT_S)
        assert not self.has_ended, self.log
        current = read_current(self.model_paths)
        assert current is not None
        return current.generation

    @property
    def has_ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout_s: float = 10.0) -> int:
        """Its exit code, negative for a signal."""
        assert self._process is not None
        return self._process.wait(timeout_s)

    def kill(self) -> None:
        if not self.has_ended:
            self.signal(signal.SIGKILL)
            self.wait()


@contextmanager
def engine_process(*, step_s: float = 0.0, mq: MqConfig | None = None, stop_timeout_s: float = 4.0) -> Iterator[EngineProcess]:
    """Not started yet; killed, and everything removed, at the end."""
    folder = Path(tempfile.mkdtemp(prefix="aph-"))  # pytest's own directories are too long for socket paths
    engine = EngineProcess(folder, step_s=step_s, mq=mq, stop_timeout_s=stop_timeout_s)
    try:
        yield engine
    finally:
        engine.kill()
        shutil.rmtree(folder)
