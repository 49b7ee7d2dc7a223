"""A real daemon with every real process, on a backend that computes nothing, for tests that hurt it.

Adds to `Daemon` what these tests ask of it: status, chats, streams over plain sockets, and a count of what it holds.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aphrodited.config.loader import load_config, read_effective
from aphrodited.health.status import DaemonStatus, ProcessStatus, read_status
from aphrodited.page import read_page
from aphrodited.paths import MONITOR_PROGRAM, engine_program
from tests.support.daemons import REAL_DAEMON, Daemon, is_alive, wait_until
from tests.support.tiny_models import VOCAB_SIZE, write_tiny_tokenizer

START_TIMEOUT_S = 40.0
MARKER = VOCAB_SIZE - 1  # begins a drill, see engine.null_backend

CONFIG = """
models:
{models}
api: {{port: 0, workers: 2, drain_timeout_s: {drain_s}}}
monitor: {{port: 0, interval_s: 0.2}}
recovery: {{on_engine_death: {on_death}, hang_min_s: 2, loop_hang_s: 3, ladder_step_s: 0.5, strike_delay_s: 0.2, hold_timeout_s: 20, engine_stop_timeout_s: 4, max_deaths: 100{recovery}}}
paths: {{runtime_dir: {folder}/run, state_dir: {folder}/state}}
"""


class RealDaemon(Daemon):
    """models: names, each of a null engine with a tiny tokenizer. step_s: seconds each of its steps takes.

    on_death: recovery.on_engine_death.  embedded: further models by name and path, of the real engine.  standby: of each model.
    drain_s: api.drain_timeout_s.
    """

    def __init__(
        self,
        *models: str,
        step_s: float = 0.01,
        recovery: str = "",
        on_death: str = "fail",
        embedded: dict[str, Path] | None = None,
        standby: int = 0,
        drain_s: float = 3,
        entry: tuple[str, ...] = REAL_DAEMON,
    ) -> None:
        super().__init__("", entry)
        self.models = models or ("tiny",)
        lines = [
            f'  - {{name: {name}, path: {self.write_model(name, step_s)}, backend: "null", standby: {standby}}}'
            for name in self.models
        ]
        lines += [
            f"  - {{name: {name}, path: {path}, standby: {standby}}}" for name, path in (embedded or {}).items()
        ]
        recovery = f", {recovery}" if recovery else ""
        self.config.write_text(
            CONFIG.format(
                models="\n".join(lines), folder=self.folder, on_death=on_death, recovery=recovery, drain_s=drain_s
            )
        )

    def write_model(self, name: str, step_s: float = 0.0) -> Path:
        path = write_tiny_tokenizer(self.folder / "models" / name)
        facts = {"vocab_size": VOCAB_SIZE, "max_position_embeddings": 4096, "null_step_s": step_s}
        (path / "config.json").write_text(json.dumps(facts))
        return path

    # -- status --

    def status(self) -> DaemonStatus:
        effective = self.paths.effective_config
        return read_status(read_effective(effective) if effective.exists() else load_config(self.config), self.paths)

    def process_status(self, name: str) -> ProcessStatus:
        return next(process for process in self.status().processes if process.name == name)

    def engine(self, model: str = "tiny") -> ProcessStatus:
        return self.process_status(engine_program(model, 0))

    def start_serving(self) -> None:
        self.start()
        self.wait_serving()

    def wait_serving(self, timeout_s: float = START_TIMEOUT_S) -> None:
        def is_serving() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.said()
            return self.status().ready

        wait_until(is_serving, timeout_s, "everything ready")

    def new_engine(self, old_pid: int, model: str = "tiny") -> ProcessStatus:
        """The engine once it is ready again as another process."""

        def is_back() -> bool:
            engine = self.engine(model)
            return engine.state == "ready" and engine.pid != old_pid

        wait_until(is_back, START_TIMEOUT_S, f"another engine than {old_pid}")
        return self.engine(model)

    @property
    def monitor_port(self) -> int:
        """As the monitor's page says it."""
        page = read_page(self.paths.page(MONITOR_PROGRAM))
        assert page is not None
        return int(page.message.rpartition(":")[2])

    # -- requests --

    def get(self, path: str, port: int | None = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=10)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def complete(self, prompt: str | list[int] = "hello", *, timeout_s: float = 60, **fields: Any) -> tuple[int, Any]:
        """POST /v1/completions without streaming."""
        body = {"model": self.models[0], "prompt": prompt, "max_tokens": 8, **fields}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def open_stream(self, prompt: str | list[int] = "hello", **fields: Any) -> Stream:
        body = {"model": self.models[0], "prompt": prompt, "max_tokens": 4000, "stream": True, "ignore_eos": True}
        return Stream(self.port, {**body, **fields})

    # -- what it holds --

    def open_files(self) -> dict[str, int]:
        """How many descriptors each living process has open."""
        return {name: len(os.listdir(f"/proc/{pid}/fd")) for name, pid in self.pids().items() if pid}

    def runtime_files(self) -> list[str]:
        """Every file in the runtime directory, generations and flight records without their number."""
        run = self.paths.runtime_dir
        names = (re.sub("^flights/.*", "flights/0", str(path.relative_to(run))) for path in run.rglob("*"))
        return sorted("/".join("N" if part.isdigit() else part for part in name.split("/")) for name in names)

    def group_members(self) -> set[int]:
        """Every living process below the daemon, at any depth."""
        assert self.process is not None
        found: set[int] = set()
        frontier = [self.process.pid]
        while frontier:
            for task in Path(f"/proc/{frontier.pop()}/task").glob("*/children"):
                children = [int(child) for child in task.read_text().split()]
                found.update(children)
                frontier += children
        return {pid for pid in found if is_alive(pid)}


class Stream:
    """One streamed completion, read by a thread from the start. Instants are monotonic."""

    def __init__(self, port: int, body: dict[str, Any]) -> None:
        self.lines: list[tuple[float, str]] = []
        self.status: int | None = None
        self.request_id: str | None = None
        self.failure: OSError | http.client.HTTPException | None = None
        self.ended_at_s: float | None = None
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self._body = json.dumps(body)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            self._connection.request("POST", "/v1/completions", self._body, {"Content-Type": "application/json"})
            answer = self._connection.getresponse()
            self.status = answer.status
            self.request_id = answer.getheader("X-Request-ID")
            for line in answer:
                if line.strip():
                    self.lines.append((time.monotonic(), line.decode().strip()))
        except (OSError, http.client.HTTPException) as error:
            self.failure = error
        finally:
            self.ended_at_s = time.monotonic()
            self._connection.close()

    @property
    def num_events(self) -> int:
        """Events with text so far: at least one token each, and more where the reader came late."""
        return sum(1 for _, line in self.lines if line.startswith("data: {") and '"choices"' in line)

    @property
    def num_tokens(self) -> int:
        """Of a whole answer that was asked for its usage."""
        texts = (line.removeprefix("data: ") for _, line in reversed(self.lines))
        usage = next(json.loads(text)["usage"] for text in texts if '"usage":{' in text)
        return int(usage["completion_tokens"])

    @property
    def error(self) -> dict[str, Any] | None:
        """The error event, or the error of a plain answer."""
        for _, line in self.lines:
            text = line.removeprefix("data: ")
            if text.startswith("{") and "error" in (content := json.loads(text)):
                return dict(content["error"])
        return None

    @property
    def is_done(self) -> bool:
        return any(line == "data: [DONE]" for _, line in self.lines)

    def wait(self, timeout_s: float = 20) -> None:
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), f"the stream did not end within {timeout_s} s"

    def close(self) -> None:
        if self._connection.sock is not None:
            self._connection.sock.shutdown(2)
        self._thread.join(10)


@contextmanager
def real_daemon(*models: str, wait: bool = True, **options: Any) -> Iterator[RealDaemon]:
    """A daemon that serves, or with wait=False has just been started; afterwards nothing is left of it."""
    daemon = RealDaemon(*models, **options)
    try:
        daemon.start()
        if wait:
            daemon.wait_serving()
        yield daemon
    finally:
        daemon.close()
