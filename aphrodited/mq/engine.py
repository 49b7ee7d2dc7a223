"""MQAphroditeEngine: a synchronous engine behind ZeroMQ sockets, in one thread (and another to send, if so configured).

    receive    requests, clients and questions that came since the last step; with nothing to do, sleep on them
    step       one batch
    send       one frame per client with what the step made for it

Nothing that arrives on a socket can stop it, no send can hold it up, and every accepted request ends with exactly
one answer as long as its client can be reached. Knows no model and no text: the backend computes.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import assert_never

import zmq

from aphrodited.config.schema import MqConfig
from aphrodited.errors import ProtocolError, RequestError
from aphrodited.flight import FlightRecorder
from aphrodited.interfaces import EngineBackend
from aphrodited.log import get_logger
from aphrodited.mq.clients import MAX_FRAME_BYTES, ClientTable
from aphrodited.mq.codec import decode_data_request, decode_input, decode_way, encode
from aphrodited.mq.endpoints import Generation
from aphrodited.mq.messages import (
    NUMBER_MASK,
    PROTOCOL_VERSION,
    AbortRequest,
    Attach,
    Detach,
    Hello,
    HelloReply,
    StatsReply,
    StatsRequest,
    Submit,
)
from aphrodited.mq.pace import StepPace
from aphrodited.mq.refusals import Refusals
from aphrodited.mq.sockets import EngineSockets
from aphrodited.mq.stepper import Stepper
from aphrodited.mq.vitals import Vitals
from aphrodited.page import PageWriter
from aphrodited.procfs import process_start_ticks

log = get_logger()

MAX_FRAMES_PER_TURN = 1024
"""Frames taken from one socket between two steps: a flood delays the step, it does not stop it."""

GATHER_S = 0.04
"""The first step of an engine that follows another waits so long for more requests: the clients of that one come one after
the other, each with what it has to go on with, and the shortest of all of it is to be computed first."""

NOTICE_RETRY_S = 0.05
LAST_WORDS_S = 0.2


class MQAphroditeEngine:
    """Serves one generation of one model.

    `run` is the whole life: it returns after `request_stop`, and lets through whatever ended the engine, after
    telling every client. The caller owns backend, generation and page, and closes them afterwards.
    hang_min_s: least standstill that its page allows.  drain_timeout_s: how long a stop lets requests finish.
    flight: where it says which requests it computes; None if nobody judges its death.
    """

    def __init__(
        self,
        backend: EngineBackend,
        generation: Generation,
        page: PageWriter,
        config: MqConfig | None = None,
        *,
        hang_min_s: float = 30.0,
        drain_timeout_s: float = 8.0,
        flight: FlightRecorder | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        config = config or MqConfig()
        self._backend = backend
        self._generation = generation
        self._drain_timeout_s = drain_timeout_s
        self._clock = clock
        self._num_stops = 0
        self._drain_until_s: float | None = None
        self._refusals = Refusals()
        self._start_ticks = process_start_ticks(os.getpid()) or 0
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._sockets = EngineSockets(generation, config)
        self._poller = zmq.Poller()
        self._clients = ClientTable(
            self._sockets.output,
            self._poller,
            generation.number,
            lambda key: self._stepper.abort(key),
            max_frame_bytes=min(MAX_FRAME_BYTES, config.max_message_size // 4),
        )
        self._stepper = Stepper(backend, self._clients.send_outputs, overlapped=config.async_sockets)
        self._vitals = Vitals(
            backend,
            page,
            generation.number,
            self._sockets.health,
            pace=StepPace(hang_min_s),
            heartbeat_s=config.heartbeat_s,
            stats_log_s=config.stats_log_s,
            flight=flight,
            clock=clock,
        )
        self._handlers: dict[zmq.Socket[bytes], Callable[[list[bytes]], None]] = {
            self._sockets.input: self._on_input,
            self._sockets.output: self._on_way,
            self._sockets.data: self._on_data,
        }
        for source in (*self._handlers, self._wake_fd):
            self._poller.register(source, zmq.POLLIN)

    def request_stop(self) -> None:
        """Finish what runs, then leave; asked a second time, leave at once. Safe in signal handlers and threads."""
        self._num_stops += 1
        if self._wake_fd >= 0:
            os.eventfd_write(self._wake_fd, 1)

    def run(self) -> None:
        """Serve until stopped. Raises whatever made the engine unusable."""
        last_words = "the engine was stopped"
        try:
            self._vitals.write_page()
            self._generation.announce()
            log.info("engine_promoted", generation=self._generation.number)
            self._serve()
        except BaseException as error:
            last_words = f"{type(error).__name__}: {error}"
            self._vitals.write_failure(last_words)
            log.exception("engine_failed", generation=self._generation.number)
            raise
        finally:
            self._stepper.close()
            self._clients.send_death(last_words)
            self._clients.close()
            self._sockets.close(linger_s=LAST_WORDS_S)
            wake_fd, self._wake_fd = self._wake_fd, -1  # first, for a signal may ask for a stop once more
            os.close(wake_fd)

    def _serve(self) -> None:
        gathers = self._generation.number > 1
        while not self._may_leave():
            busy = self._backend.has_unfinished_requests()
            self._receive(0.0 if busy else self._idle_s())
            if gathers and self._backend.has_unfinished_requests():
                gathers = False
                self._gather()
            if self._backend.has_unfinished_requests():
                self._stepper.step()
                self._vitals.step_ended()
            else:
                self._stepper.flush()
                self._vitals.write_page()
            self._clients.retry_notices()
            self._vitals.publish_if_due()

    def _gather(self) -> None:
        until_s = self._clock() + GATHER_S
        while (left_s := until_s - self._clock()) > 0:
            self._receive(left_s)

    def _idle_s(self) -> float:
        idle_s = self._vitals.seconds_to_next()
        return min(idle_s, NOTICE_RETRY_S) if self._clients.has_notices else idle_s

    def _may_leave(self) -> bool:
        """Whether a stop was asked for and everything that runs has ended, or been ended."""
        if self._num_stops == 0:
            return False
        if self._drain_until_s is None:
            self._drain_until_s = self._clock() + self._drain_timeout_s
            self._hand_over()
        patient = self._num_stops == 1 and self._clock() < self._drain_until_s
        if patient and self._backend.has_unfinished_requests():
            return False
        self._stepper.flush()
        num_failed = self._clients.fail_all("SHUTTING_DOWN", "the engine is shutting down", http_status=503)
        log.info("engine_drained", generation=self._generation.number, num_failed=num_failed)
        return True

    def _hand_over(self) -> None:
        """Leave new requests to the next engine, which may begin while this one finishes those it has."""
        self._vitals.write_draining()
        self._clients.send_handing_over()
        self._generation.hand_over()
        log.info("engine_draining", generation=self._generation.number, timeout_s=self._drain_timeout_s)

    # -- receiving ----------------------------------------------------------------------------------------------

    def _receive(self, wait_s: float) -> None:
        for source, _ in self._poller.poll(math.ceil(wait_s * 1000)):
            if isinstance(source, zmq.Socket):
                self._take_frames(source)
            elif source == self._wake_fd:
                os.eventfd_read(source)
            else:
                self._clients.forget_dead(source)

    def _take_frames(self, socket: zmq.Socket[bytes]) -> None:
        handle = self._handlers[socket]
        for _ in range(MAX_FRAMES_PER_TURN):
            try:
                frames = socket.recv_multipart(zmq.DONTWAIT)
            except zmq.Again:
                return
            try:
                handle(frames)
            except ProtocolError as error:
                self._refusals.count("bad_frame", reason=str(error))

    def _on_input(self, frames: list[bytes]) -> None:
        message = decode_input(_only_part(frames))
        match message:
            case Submit():
                self._submit(message)
            case AbortRequest(client=name, number=number):
                client = self._clients.find(name)
                if client is None or number not in client.numbers:
                    self._refusals.count("unknown_abort", client=name, number=number)
                    return
                client.numbers.discard(number)
                self._backend.abort_request(client.key(number))
            case _:
                assert_never(message)

    def _submit(self, message: Submit) -> None:
        client = self._clients.find(message.client)
        number = message.number
        if client is None:
            self._refusals.count("unknown_client", client=message.client)
            return
        if not 0 <= number <= NUMBER_MASK or number in client.numbers:
            raise ProtocolError(f"number {number} of client {client.name} is in use or out of range")
        if self._num_stops:
            self._clients.send_failure(
                client, number, "SHUTTING_DOWN", "the engine is shutting down", http_status=503
            )
            return
        self._vitals.request_comes(message.request)
        try:
            self._backend.add_request(client.key(number), message.request)
        except RequestError as error:
            self._clients.send_failure(
                client, number, error.code, str(error), http_status=error.http_status, param=error.param
            )
        else:
            client.numbers.add(number)
        self._vitals.request_taken()

    def _on_way(self, frames: list[bytes]) -> None:
        identity, frame = _identity_and_part(frames)
        message = decode_way(frame)
        match message:
            case Attach():
                reason = self._clients.attach(identity, message)
                if reason is not None:
                    self._refusals.count("attach_refused", client=message.client, reason=reason)
            case Detach(client=name):
                if not self._clients.detach(identity, name):
                    self._refusals.count("unknown_client", client=name)
            case _:
                assert_never(message)

    def _on_data(self, frames: list[bytes]) -> None:
        identity, frame = _identity_and_part(frames)
        message = decode_data_request(frame)
        reply: HelloReply | StatsReply
        match message:
            case Hello():
                reply = self._hello_reply(message)
            case StatsRequest(log=wants_log):
                stats = self._backend.stats()
                if wants_log:
                    self._vitals.log_stats(stats)
                reply = StatsReply(self._generation.number, stats)
            case _:
                assert_never(message)
        try:
            self._sockets.data.send_multipart((identity, encode(reply)), zmq.DONTWAIT)
        except zmq.ZMQError as error:  # whoever asked has left, or does not read: it asks again
            self._refusals.count("reply_undeliverable", reason=str(error))

    def _hello_reply(self, message: Hello) -> HelloReply:
        accepted = message.protocol_version == PROTOCOL_VERSION
        reason = ""
        if not accepted:
            reason = (
                f"the client speaks protocol {message.protocol_version} and the engine {PROTOCOL_VERSION}:"
                " restart both from the same version of aphrodited"
            )
            self._refusals.count("hello_refused", client=message.client, reason=reason)
        return HelloReply(
            PROTOCOL_VERSION,
            accepted,
            reason,
            self._generation.number,
            os.getpid(),
            self._start_ticks,
            self._backend.facts,
        )


def _only_part(frames: list[bytes]) -> bytes:
    if len(frames) != 1:
        raise ProtocolError(f"a message of {len(frames)} parts")
    return frames[0]


def _identity_and_part(frames: list[bytes]) -> tuple[bytes, bytes]:
    if len(frames) != 2:
        raise ProtocolError(f"a message of {len(frames) - 1} parts")
    return frames[0], frames[1]
