"""Keeps a client attached to its model's engine, from one generation to the next.

    waiting     no engine yet, or the last one died: `current` is read 50 times a second
    attaching   a connection greets the announced generation
    running     attached; deaths and hand-overs are told by the connection; `current` is read once a second besides

Each generation gets a connection of its own, so nothing of one life reaches the next. The connection to an engine that
hands over stays, beside the next one, until that engine ends. Knows no request and no text.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import zmq

from aphrodited.config.schema import MqConfig
from aphrodited.errors import (
    EngineError,
    EngineStartingError,
    MQClientClosedError,
    MQEngineDeadError,
    OutputLostError,
)
from aphrodited.interfaces import ModelFacts
from aphrodited.log import get_logger
from aphrodited.mq.client_sockets import ClientSockets
from aphrodited.mq.connection import Connection
from aphrodited.mq.endpoints import Current, read_current
from aphrodited.mq.events import DeathHints
from aphrodited.mq.links import EngineLinks, LinkLimits
from aphrodited.mq.messages import EngineEvent
from aphrodited.mq.refusals import Refusals
from aphrodited.paths import ModelPaths

log = get_logger()

WAITING_POLL_S = 0.02
RUNNING_POLL_S = 1.0
RETRY_S = 0.5


class EngineFollower:
    """Starts following on the running event loop when made; `close` ends it there.

    name: the client's, unique among all clients.  max_unread: outputs that may wait for one consumer.
    events_endpoint: where causes of deaths are told, if anywhere.
    """

    def __init__(
        self, folder: Path, name: str, config: MqConfig, *, max_unread: int, events_endpoint: str | None
    ) -> None:
        self._paths = ModelPaths(folder)
        self._name = name
        self._limits = LinkLimits(config.input_hwm, config.output_hwm, config.max_message_size)
        self._attach_timeout_s = config.attach_timeout_s
        self._max_unread = max_unread
        self._refusals = Refusals()
        self._sockets = ClientSockets(self)
        self._connections: set[Connection] = set()
        self._num_connections = 0
        self._active: Connection | None = None
        self._spent: Current | None = None  # an announcement whose engine is known to be dead, or to hand over
        self._running = asyncio.Event()
        self.facts: ModelFacts | None = None
        self.death: EngineError | None = None
        """Why there is no engine, once one has died or refused this client; None from the next attach on."""
        self._hints = (
            DeathHints(self._sockets, events_endpoint, self._on_hint, self._refusals) if events_endpoint else None
        )
        self._task = asyncio.get_running_loop().create_task(self._follow(), name=f"follow {folder.name}")

    @property
    def active(self) -> Connection | None:
        """The connection that takes requests now."""
        return self._active

    @property
    def connections(self) -> list[Connection]:
        """The active one, and those that still drain."""
        return list(self._connections)

    async def wait_until_running(self, timeout_s: float) -> bool:
        """Wait for an active connection; False if there is none after so long, or if the follower was closed."""
        if self._active is None and timeout_s > 0:
            try:
                await asyncio.wait_for(self._running.wait(), timeout_s)
            except TimeoutError:
                return False
        return self._active is not None

    def close(self, error: EngineError) -> None:
        """Stop following, leave the engine, release everything; requests get `error`."""
        if not self._task.get_loop().is_closed():
            self._task.cancel()
        for connection in self.connections:
            connection.close(error)
        if self._hints is not None:
            self._hints.close()
        self._sockets.close()
        self._running.set()  # nobody waits any longer

    async def _follow(self) -> None:
        while True:
            try:
                await self._follow_once()
            except (OSError, zmq.ZMQError) as error:  # no file descriptors left, say: that may pass
                log.error("engine_not_followed", client=self._name, reason=str(error))
                await asyncio.sleep(RETRY_S)

    async def _follow_once(self) -> None:
        """Look for an engine; if there is one, attach and stay."""
        current = read_current(self._paths)
        if current is None or current == self._spent:
            await asyncio.sleep(WAITING_POLL_S)
            return
        connection = self._connect(current.generation)
        if await self._attach(connection):
            await self._stay(connection, current)
        if connection.handing_over.done():
            self._spent = current
        if connection.lost.done():
            if isinstance(connection.lost.result(), MQEngineDeadError):
                self._spent = current
            elif not connection.attached.done():
                await asyncio.sleep(RETRY_S)

    def _connect(self, generation: int) -> Connection:
        self._num_connections += 1
        name = f"{self._name}-{self._num_connections}"  # an engine never meets the same name twice
        links = EngineLinks(self._sockets, self._paths, generation, name, self._limits)
        connection = Connection(
            links, name, generation, max_unread=self._max_unread, on_lost=self._on_lost, refusals=self._refusals
        )
        self._connections.add(connection)
        return connection

    async def _attach(self, connection: Connection) -> bool:
        """Greet until both answers are there; False if the connection was lost instead."""
        while not connection.is_attached and not connection.lost.done():
            connection.greet()
            await asyncio.wait(
                (connection.attached, connection.lost),
                timeout=self._attach_timeout_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
        return connection.is_attached

    async def _stay(self, connection: Connection, current: Current) -> None:
        """Take requests on this connection until it is lost, hands over, or another generation is announced."""
        self._active, self.facts, self.death = connection, connection.facts, None
        self._running.set()
        log.info("engine_attached", engine_generation=connection.generation, client=self._name)
        while True:
            ends = (connection.lost, connection.handing_over)
            await asyncio.wait(ends, timeout=RUNNING_POLL_S, return_when=asyncio.FIRST_COMPLETED)
            if connection.lost.done():
                return
            if connection.handing_over.done():
                self._leave_active()
                return
            if read_current(self._paths) not in (None, current):
                self._leave_active()
                connection.retire()
                return

    def _on_lost(self, connection: Connection, error: EngineError) -> None:
        self._connections.discard(connection)
        if connection is self._active:
            self._leave_active()
        if isinstance(error, (EngineStartingError, MQClientClosedError)):
            return
        if not isinstance(error, OutputLostError) and (self._active is None or not connection.attached.done()):
            self.death = error
        log.warning("engine_lost", engine_generation=connection.generation, client=self._name, cause=str(error))

    def _leave_active(self) -> None:
        self._active = None
        self._running.clear()

    def _on_hint(self, event: EngineEvent) -> None:
        if self.facts is None or event.model != self.facts.name:
            return
        for connection in self._connections:
            if connection.generation == event.generation:
                connection.tell_cause(event.cause)
