"""MQAphroditeEngineClient: one model's engine as seen from another process, whatever generation it is in.

Text lives in the caller's process and ids in the engine: see TextClient. Who the engine is and whether it lives is the
follower's matter.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from aphrodited.config.schema import ModelConfig, MqConfig
from aphrodited.errors import EngineStartingError, MQClientClosedError
from aphrodited.interfaces import EngineStats, ModelFacts
from aphrodited.mq.connection import Connection
from aphrodited.mq.follower import EngineFollower
from aphrodited.mq.inflight import copy_of
from aphrodited.request import EngineRequest
from aphrodited.streams import TokenStream
from aphrodited.tokenizer.text_client import TextClient
from aphrodited.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class MqClientConfig:
    """What a client needs beside the model's folder; every default works.

    name: says in logs who the client is.  tokenizer: for text prompts and for text in the answers.  tokenizer_path:
    the model's file or directory, to load one from at first use.
    start_timeout_s: how long a request waits for a first engine.  max_unread: outputs that may wait for one
    consumer before its request is aborted.  events_endpoint: where causes of deaths are told.
    """

    mq: MqConfig = field(default_factory=MqConfig)
    name: str = "client"
    tokenizer: Tokenizer | None = None
    tokenizer_path: Path | None = None
    start_timeout_s: float = 5.0
    max_unread: int = 4096
    events_endpoint: str | None = None

    @classmethod
    def for_model(cls, model: ModelConfig) -> Self:
        """For one configured model: texts are tokenised with its own tokenizer (the null backend has none)."""
        return cls(tokenizer_path=Path(model.path) if model.backend != "null" else None)


class ClientContext:
    """The client's ZeroMQ context, as far as it is the caller's business."""

    def __init__(self, client: MQAphroditeEngineClient) -> None:
        self._client = client

    @property
    def closed(self) -> bool:
        return self._client.closed

    def term(self) -> None:
        """Close the client, then the context. Returns promptly. Idempotent."""
        self._client.close()


class MQAphroditeEngineClient(TextClient):
    """An EngineClient over ZeroMQ.

    ipc_path: the model's folder in the daemon's runtime directory, or what `launch_engine` gave.  engine_config: the
    model's configuration, or what a client needs in detail.  May be made outside an event loop; it belongs to
    the loop of its first use, and `close` or `context.term()` is called on that loop, or after it has ended.
    """

    def __init__(self, ipc_path: str | Path, engine_config: ModelConfig | MqClientConfig | None = None) -> None:
        if isinstance(engine_config, ModelConfig):
            engine_config = MqClientConfig.for_model(engine_config)
        self._folder = Path(ipc_path)
        self._config = engine_config or MqClientConfig()
        super().__init__(self._config.tokenizer, self._config.tokenizer_path)
        self._name = f"{self._config.name}-{os.getpid()}-{secrets.token_hex(4)}"
        self._follower: EngineFollower | None = None
        self.closed = False
        self.context = ClientContext(self)

    # -- state --------------------------------------------------------------------------------------------------

    @property
    def is_running(self) -> bool:
        return self._follower is not None and self._follower.active is not None

    @property
    def errored(self) -> bool:
        return self._follower is not None and self._follower.death is not None and not self.is_running

    @property
    def dead_error(self) -> BaseException:
        if self.closed:
            return _closed_error()
        if self._follower is not None and self._follower.death is not None:
            return copy_of(self._follower.death)
        return EngineStartingError(f"no engine has announced itself in {self._folder} yet: try again later")

    @property
    def facts(self) -> ModelFacts | None:
        return self._follower.facts if self._follower else None

    @property
    def generation(self) -> int | None:
        """Of the engine attached now; None if there is none."""
        active = self._follower.active if self._follower else None
        return active.generation if active else None

    async def wait_until_running(self, timeout_s: float) -> bool:
        running = await self._start().wait_until_running(timeout_s)
        self._start()  # raises if it was closed meanwhile
        return running

    async def check_health(self) -> None:
        """Return if the engine process lives and is attached; it need not answer: a long step is no illness."""
        await self._connected()

    # -- requests -----------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def open(self, request: EngineRequest) -> AsyncIterator[TokenStream]:
        connection = await self._connected()
        stream = connection.submit(request)
        try:
            yield stream
        finally:
            connection.release(stream)

    async def abort(self, request_id: str) -> None:
        for connection in self._start().connections:
            connection.abort(request_id)

    async def stats(self) -> EngineStats:
        """The engine's counters and gauges, told as soon as it is between two steps."""
        return await (await self._connected()).stats(log=False)

    async def do_log_stats(self) -> None:
        """Have the engine log its statistics; returns when it has, which is between two steps."""
        await (await self._connected()).stats(log=True)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            if self._follower is not None:
                self._follower.close(_closed_error())

    # -- inside -------------------------------------------------------------------------------------------------

    def _start(self) -> EngineFollower:
        if self.closed:
            raise _closed_error()
        if self._follower is None:
            self._follower = EngineFollower(
                self._folder,
                self._name,
                self._config.mq,
                max_unread=self._config.max_unread,
                events_endpoint=self._config.events_endpoint,
            )
        return self._follower

    async def _connected(self) -> Connection:
        """The live connection; a first one is waited for. Raises why there is none."""
        follower = self._start()
        if follower.active is None and follower.death is None:
            await follower.wait_until_running(self._config.start_timeout_s)
        if follower.active is None or self.closed:
            raise self.dead_error
        return follower.active


def _closed_error() -> MQClientClosedError:
    return MQClientClosedError("this client was closed: make a new one")
