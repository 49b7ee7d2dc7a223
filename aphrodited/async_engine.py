"""AsyncAphrodite: an engine in this very process, stepped by a thread, seen through interfaces.EngineClient.

    event loop      submit, abort: commands for the thread, at most MAX_COMMANDS waiting
    engine thread   run the commands, step, hand the outputs back to the loop

For programs that want one process, and to compare with: under load the thread and the event loop share one
interpreter, which is what MQAphroditeEngineClient avoids. Knows no model: the backend computes.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

from aphrodited.config.schema import ModelConfig
from aphrodited.errors import (
    EngineError,
    MQClientClosedError,
    MQEngineDeadError,
    QueueFullError,
    RequestError,
)
from aphrodited.interfaces import EngineBackend, EngineStats, ModelFacts
from aphrodited.log import get_logger
from aphrodited.outputs import FinishReason, TokenOutput
from aphrodited.request import EngineRequest
from aphrodited.streams import TokenStream
from aphrodited.tokenizer.text_client import TextClient
from aphrodited.tokenizer.tokenizer import Tokenizer, load_tokenizer

log = get_logger()

MAX_COMMANDS = 65536
MAX_UNREAD = 4096


class AsyncAphrodite(TextClient):
    """Belongs to the event loop of its first use; `close` waits for the step under way.

    The backend becomes this object's own: only its thread calls it, and `close` closes it.
    """

    def __init__(self, backend: EngineBackend, tokenizer: Tokenizer | None = None) -> None:
        super().__init__(tokenizer)
        self._backend = backend
        self._keys = itertools.count(1)
        self._streams: dict[int, TokenStream] = {}
        self._commands: deque[Callable[[], object]] = deque()
        self._wake = threading.Condition()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._dead_error: EngineError | None = None
        self._closed = False

    @classmethod
    def from_engine_args(cls, engine_args: ModelConfig, *, cache_dir: Path | None = None) -> Self:
        """Load the configured model, with its tokenizer if it has one (the null backend needs none).

        cache_dir: for files that can be made again, by default aphrodited's folder in $XDG_CACHE_HOME or ~/.cache.
        Raises ConfigError, ModelLoadError.
        """
        if cache_dir is None:
            cache_dir = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "aphrodited"
        # By name, as the root package finds its public names: whoever hands in a backend needs no engine package.
        factory = importlib.import_module("aphrodited.engine.factory")
        backend = factory.create_backend(engine_args, cache_dir, lambda progress, what: None)
        tokenizer = load_tokenizer(Path(engine_args.path)) if engine_args.backend != "null" else None
        return cls(backend, tokenizer)

    # -- state --------------------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        return not self._closed and self._dead_error is None

    @property
    def errored(self) -> bool:
        return self._dead_error is not None

    @property
    def dead_error(self) -> BaseException:
        return self._dead_error or EngineError("this engine is not dead")

    @property
    def facts(self) -> ModelFacts | None:
        return self._backend.facts

    async def wait_until_running(self, timeout_s: float) -> bool:
        """There is nothing to wait for: an engine in this process runs, or never will again."""
        return self.is_running

    async def check_health(self) -> None:
        self._start()

    # -- requests -----------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def open(self, request: EngineRequest) -> AsyncIterator[TokenStream]:
        stream = self._submit(request)
        try:
            yield stream
        finally:
            self._release(stream)

    async def abort(self, request_id: str) -> None:
        for stream in [s for s in self._streams.values() if s.request_id == request_id]:
            stream.put(TokenOutput(stream.number, [], FinishReason.ABORT))
            self._end(stream.number)

    async def stats(self) -> EngineStats:
        """The engine's counters and gauges between two steps."""
        loop = self._start()
        told: asyncio.Future[EngineStats] = loop.create_future()

        def tell(stats: EngineStats) -> None:
            if not told.done():
                told.set_result(stats)

        self._command(lambda: loop.call_soon_threadsafe(tell, self._backend.stats()))
        return await told

    async def do_log_stats(self) -> None:
        stats = await self.stats()
        log.info("stats_reported", **{name: getattr(stats, name) for name in stats.__struct_fields__})

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with self._wake:
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()
        self._fail_all(MQClientClosedError("this engine was closed: make a new one"))
        self._backend.close()

    # -- on the event loop --------------------------------------------------------------------------------------

    def _start(self) -> asyncio.AbstractEventLoop:
        if self._closed:
            raise MQClientClosedError("this engine was closed: make a new one")
        if self._dead_error is not None:
            raise MQEngineDeadError(str(self._dead_error), cause=str(self._dead_error.__cause__))
        if self._thread is None or self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._run, args=(self._loop,), name="engine", daemon=True)
            self._thread.start()
        return self._loop

    def _submit(self, request: EngineRequest) -> TokenStream:
        loop = self._start()
        if len(self._commands) >= MAX_COMMANDS:
            raise QueueFullError("the queue towards the engine is full: try again later")
        stream = TokenStream(next(self._keys), request.request_id, MAX_UNREAD)
        self._streams[stream.number] = stream

        def add() -> None:
            try:
                self._backend.add_request(stream.number, request)
            except RequestError as error:
                loop.call_soon_threadsafe(self._refuse, stream, error)

        self._command(add)
        return stream

    def _refuse(self, stream: TokenStream, error: RequestError) -> None:
        self._streams.pop(stream.number, None)
        stream.fail(error)

    def _release(self, stream: TokenStream) -> None:
        """Its consumer has left: abort, if it has not ended."""
        if stream.number in self._streams:
            stream.ended = True
            self._end(stream.number)

    def _end(self, key: int) -> None:
        del self._streams[key]
        self._command(lambda: self._backend.abort_request(key))

    def _command(self, command: Callable[[], object]) -> None:
        with self._wake:
            self._commands.append(command)
            self._wake.notify()

    def _deliver(self, outputs: list[TokenOutput]) -> None:
        for output in outputs:
            stream = self._streams.get(output.key)
            if stream is None:
                continue  # aborted here while the step ran
            if not stream.put(output):
                self._end(output.key)
            elif stream.ended:
                del self._streams[output.key]

    def _die(self, error: BaseException) -> None:
        cause = f"{type(error).__name__}: {error}"
        self._dead_error = MQEngineDeadError(f"the engine is dead: {cause}", cause=cause)
        self._dead_error.__cause__ = error
        self._fail_all(self._dead_error)

    def _fail_all(self, error: EngineError) -> None:
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.fail(error)

    # -- on the engine thread -----------------------------------------------------------------------------------

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            while self._wait_for_work():
                while self._commands:
                    self._commands.popleft()()
                outputs = self._backend.step()
                if outputs and not loop.is_closed():
                    loop.call_soon_threadsafe(self._deliver, outputs)
        except BaseException as error:
            log.exception("engine_failed")
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._die, error)

    def _wait_for_work(self) -> bool:
        """False once closed."""
        with self._wake:
            while not (self._closed or self._commands or self._backend.has_unfinished_requests()):
                self._wake.wait()
        return not self._closed
