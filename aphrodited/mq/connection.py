"""One client's connection to one generation of an engine: from the first hello to its end, then never again.

Its states are mq.states.ConnectionState.

    what happened                          what the requests get
    EngineDead                             MQEngineDeadError with the engine's own cause
    its process has ended                  MQEngineDeadError, after the output that was still on its way
    Dropped, a gap, a broken connection    OutputLostError: the engine lives, and a new connection may be made
    HandingOver                            their rest, or EngineStoppingError for what is not finished in time

Death races its last frames: after a process has ended its output is read until the connection is lost, 50 ms at
most, and every frame is applied. Knows no text, and not what comes after it.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import deque
from collections.abc import Callable
from typing import assert_never

from aphrodited.errors import (
    EngineError,
    EngineStartingError,
    MQEngineDeadError,
    OutputLostError,
    ProtocolError,
    QueueFullError,
)
from aphrodited.interfaces import EngineStats, ModelFacts
from aphrodited.mq.codec import decode_data_reply, decode_output, encode
from aphrodited.mq.inflight import InFlight, copy_of
from aphrodited.mq.links import EngineLinks
from aphrodited.mq.messages import (
    PROTOCOL_VERSION,
    AbortRequest,
    Attach,
    Attached,
    Detach,
    Dropped,
    EngineDead,
    HandingOver,
    Hello,
    HelloReply,
    OutputMessage,
    RequestFailed,
    StatsReply,
    StatsRequest,
    StepOutputs,
    Submit,
)
from aphrodited.mq.pidfd import open_pidfd
from aphrodited.mq.refusals import Refusals
from aphrodited.mq.states import CONNECTION_TRANSITIONS, ConnectionEvent, ConnectionState, next_state
from aphrodited.procfs import process_start_ticks
from aphrodited.request import EngineRequest
from aphrodited.streams import TokenStream

LAST_OUTPUT_S = 0.05


class Connection:
    """Used on one event loop. Its futures are resolved once: `handing_over` if the engine asks to be left, and `lost`
    with the error that ended it.

    max_unread: outputs that may wait for one consumer.  on_lost: called at the end, before the requests' consumers run.
    """

    def __init__(
        self,
        links: EngineLinks,
        name: str,
        generation: int,
        *,
        max_unread: int,
        on_lost: Callable[[Connection, EngineError], None],
        refusals: Refusals,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._links = links
        self._name = name
        self.generation = generation
        self._on_lost = on_lost
        self._refusals = refusals
        self._in_flight = InFlight(max_unread)
        self._numbers = itertools.count(1)
        self._stats_waiters: deque[asyncio.Future[EngineStats]] = deque()
        self._hello: HelloReply | None = None
        self._pidfd: int | None = None
        self._process_ended = False
        self._disconnected = False
        self._retiring = False
        self._death_hint = ""
        self.state = ConnectionState.ATTACHING
        self.attached: asyncio.Future[None] = self._loop.create_future()
        self.handing_over: asyncio.Future[None] = self._loop.create_future()
        self.lost: asyncio.Future[EngineError] = self._loop.create_future()
        links.start(self._on_output, self._on_data, self._on_disconnected, self._on_refused)

    @property
    def facts(self) -> ModelFacts | None:
        return self._hello.facts if self._hello else None

    @property
    def is_attached(self) -> bool:
        return self.state is ConnectionState.ATTACHED

    # -- what the client asks -----------------------------------------------------------------------------------

    def greet(self) -> None:
        """Ask for both ways. Idempotent: repeated while no answer comes."""
        start_ticks = process_start_ticks(os.getpid()) or 0
        try:
            self._links.send_data(encode(Hello(PROTOCOL_VERSION, self._name)))
            self._links.send_output(encode(Attach(self._name, os.getpid(), start_ticks)))
        except EngineError as error:
            self._lose(error)

    def submit(self, request: EngineRequest) -> TokenStream:
        """Send a request. Raises QueueFullError, RequestError, and what ended the connection if it is lost."""
        if self.lost.done():
            raise copy_of(self.lost.result())
        number = next(self._numbers)
        self._links.send_input(encode(Submit(self._name, number, request)))
        return self._in_flight.open(number, request.request_id)

    def release(self, stream: TokenStream) -> None:
        """Its consumer is done with it: aborted in the engine, if it has not ended."""
        if self._in_flight.release(stream):
            self._abort([stream.number])

    def abort(self, request_id: str) -> None:
        """End every request with that label."""
        self._abort(self._in_flight.abort(request_id))

    async def stats(self, *, log: bool) -> EngineStats:
        """Ask for the engine's statistics. Raises what ended the connection if it is lost meanwhile."""
        if self.lost.done():
            raise copy_of(self.lost.result())
        waiter: asyncio.Future[EngineStats] = self._loop.create_future()
        self._links.send_data(encode(StatsRequest(log)))
        self._stats_waiters.append(waiter)
        return await waiter

    def tell_cause(self, cause: str) -> None:
        """Somebody else knows how the engine died; used if the engine could not tell it itself."""
        self._death_hint = cause

    def retire(self) -> None:
        """Take no more requests; close as soon as the last one has ended."""
        self._retiring = True
        self._close_if_retired()

    def close(self, error: EngineError) -> None:
        """Leave the engine, which aborts what is left; the requests here get `error`."""
        self._leave(error)

    def _abort(self, numbers: list[int]) -> None:
        """Tell the engine that these have ended here."""
        for number in numbers:
            if self.lost.done():
                return
            try:
                self._links.send_input(encode(AbortRequest(self._name, number)))
            except QueueFullError:  # an abort must not get lost: leaving ends whatever this client has in the engine
                self.close(OutputLostError("an abort could not be sent: the queue towards the engine is full"))
        self._close_if_retired()

    def _close_if_retired(self) -> None:
        if self._retiring and not self._in_flight:
            self.close(EngineStartingError("the engine has handed over to another one"))

    # -- what arrives -------------------------------------------------------------------------------------------

    def _on_output(self, frame: bytes) -> None:
        try:
            self._take(decode_output(frame))
        except ProtocolError as error:
            self._refusals.count("bad_frame", reason=str(error))
            self._leave(OutputLostError("output of the engine was lost: a frame could not be read"))
        except OutputLostError as error:
            self._leave(error)

    def _take(self, message: OutputMessage) -> None:
        match message:
            case StepOutputs():
                self._abort(self._in_flight.take_outputs(message))
            case RequestFailed():
                self._in_flight.take_failure(message)
                self._close_if_retired()
            case Attached(next_frame=next_frame):
                if self._in_flight.next_frame is None:
                    self._in_flight.next_frame = next_frame
                    self._attach_if_complete()
            case Dropped(reason=reason):
                self._lose(OutputLostError(f"the engine dropped this client: {reason}"))
            case HandingOver():
                if not self.handing_over.done():
                    self.handing_over.set_result(None)
            case EngineDead(cause=cause):
                self._lose(self._death(cause))
            case _:
                assert_never(message)

    def _on_data(self, frame: bytes) -> None:
        try:
            message = decode_data_reply(frame)
        except ProtocolError as error:
            self._refusals.count("bad_frame", reason=str(error))
            return
        match message:
            case HelloReply():
                self._on_hello(message)
            case StatsReply(stats=stats):
                waiter = self._stats_waiters.popleft() if self._stats_waiters else None
                if waiter is not None and not waiter.done():
                    waiter.set_result(stats)
            case _:
                assert_never(message)

    def _on_hello(self, reply: HelloReply) -> None:
        if self._hello is not None:
            return
        if not reply.accepted:
            error = EngineError(f"the engine refused this client: {reply.reason}")
            error.code = "PROTOCOL_MISMATCH"
            self._lose(error)
            return
        self._hello = reply
        try:
            self._pidfd = open_pidfd(reply.pid, reply.start_ticks)
        except OSError as error:
            self._lose(EngineStartingError(f"the engine process cannot be watched: {error}"))
            return
        if self._pidfd is None:
            self._lose(self._death(self._gone()))
            return
        self._loop.add_reader(self._pidfd, self._on_process_ended)
        self._attach_if_complete()

    def _attach_if_complete(self) -> None:
        is_answered = self._hello is not None and self._in_flight.next_frame is not None
        if is_answered and self.state is ConnectionState.ATTACHING:
            self.state = next_state(CONNECTION_TRANSITIONS, self.state, ConnectionEvent.ANSWERED)
            self.attached.set_result(None)

    # -- the end ------------------------------------------------------------------------------------------------

    def _on_process_ended(self) -> None:
        self._process_ended = True
        self._stop_watching()
        self._declare_soon()

    def _on_disconnected(self) -> None:
        self._links.drain_output()
        self._disconnected = True
        self._declare_soon()

    def _on_refused(self) -> None:
        if not self.attached.done():
            self._lose(EngineStartingError(f"nobody listens at generation {self.generation}"))

    def _declare_soon(self) -> None:
        """The facts so far say that this is the end; wait for the other fact, but not for long."""
        if self._process_ended and self._disconnected:
            self._declare()
        else:
            self._loop.call_later(LAST_OUTPUT_S, self._declare)

    def _declare(self) -> None:
        if self.lost.done():
            return
        self._links.drain_output()
        if self._process_ended:
            self._lose(self._death(self._death_hint or self._gone()))
        else:
            self._lose(OutputLostError("output of the engine was lost: the connection broke"))

    def _death(self, cause: str) -> MQEngineDeadError:
        return MQEngineDeadError(f"the engine is dead: {cause}", cause=cause, generation=self.generation)

    def _gone(self) -> str:
        pid = self._hello.pid if self._hello else "?"
        return f"engine process {pid} of generation {self.generation} is gone"

    def _leave(self, error: EngineError) -> None:
        self._lose(error, farewell=encode(Detach(self._name)))

    def _lose(self, error: EngineError, *, farewell: bytes | None = None) -> None:
        if self.state is ConnectionState.LOST:
            return
        self.state = next_state(CONNECTION_TRANSITIONS, self.state, ConnectionEvent.ENDED)
        self.lost.set_result(error)
        self._stop_watching()
        self._links.close(farewell=farewell)
        self._on_lost(self, error)
        self._in_flight.fail_all(error)
        for waiter in self._stats_waiters:
            if not waiter.done():
                waiter.set_exception(copy_of(error))

    def _stop_watching(self) -> None:
        if self._pidfd is not None:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
