"""The clients of one engine: who they are, what they have in it, and every frame that goes to them.

A client goes through the states of mq.states.ClientState; Dropped is retried until it is delivered. No send ever waits. Knows no request's content and no scheduling.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import zmq

from aphrodited.log import get_logger
from aphrodited.mq.codec import encode
from aphrodited.mq.messages import (
    NUMBER_BITS,
    NUMBER_MASK,
    Attach,
    Attached,
    Dropped,
    EngineDead,
    HandingOver,
    RequestFailed,
    StepOutputs,
)
from aphrodited.mq.pidfd import open_pidfd
from aphrodited.mq.states import CLIENT_TRANSITIONS, ClientEvent, ClientState, next_state
from aphrodited.outputs import TokenOutput

log = get_logger()

MAX_CLIENTS = 1024
MAX_FRAME_BYTES = 1024**2
"""Of embeddings in one frame. Tokens need no such limit: a step makes few of them."""


@dataclass(slots=True)
class Client:
    """A client, as the engine sees it. numbers: its unfinished requests."""

    name: str
    identity: bytes
    slot: int
    pid: int
    pidfd: int
    numbers: set[int] = field(default_factory=set)
    next_frame: int = 0
    state: ClientState = ClientState.ATTACHED
    drop_reason: str = ""

    def meet(self, event: ClientEvent) -> None:
        self.state = next_state(CLIENT_TRANSITIONS, self.state, event)

    def key(self, number: int) -> int:
        return (self.slot << NUMBER_BITS) | number


class ClientTable:
    """Attaches, sends and forgets. One thread calls every method; none blocks.

    abort: ends a sequence in the engine by its key.  poller: told of the descriptor of each client's process.
    max_frame_bytes: of embeddings, after which a frame is sent and the next one begun.
    """

    def __init__(
        self,
        output: zmq.Socket[bytes],
        poller: zmq.Poller,
        generation: int,
        abort: Callable[[int], object],
        *,
        max_frame_bytes: int = MAX_FRAME_BYTES,
    ) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._output = output
        self._poller = poller
        self._generation = generation
        self._abort = abort
        self._by_name: dict[str, Client] = {}
        self._by_slot: dict[int, Client] = {}
        self._by_pidfd: dict[int, Client] = {}
        self._dropping: dict[str, Client] = {}
        self._next_slot = 1
        self._is_handing_over = False

    def __len__(self) -> int:
        return len(self._by_name)

    @property
    def has_notices(self) -> bool:
        """Whether a lost client has yet to be told so."""
        return bool(self._dropping)

    # -- coming and going ---------------------------------------------------------------------------------------

    def attach(self, identity: bytes, message: Attach) -> str | None:
        """Learn a client, or answer one that asks again. Returns why it was refused, or None."""
        client = self._by_name.get(message.client)
        if client is None:
            if identity != message.client.encode():
                return "the name is not the one of the socket"
            if len(self._by_name) >= MAX_CLIENTS:
                return f"{MAX_CLIENTS} clients are attached already"
            pidfd = open_pidfd(message.pid, message.start_ticks)
            if pidfd is None:
                return f"there is no process {message.pid} that started then"
            client = Client(message.client, identity, self._next_slot, message.pid, pidfd)
            self._next_slot += 1
            self._by_name[client.name] = self._by_slot[client.slot] = self._by_pidfd[pidfd] = client
            self._poller.register(pidfd, zmq.POLLIN)
            log.info("client_attached", client=client.name, client_pid=client.pid)
        elif identity != client.identity:
            return "the name is taken"
        self._send(client, Attached(self._generation, client.next_frame))
        if self._is_handing_over:
            self._send(client, HandingOver())
        return None

    def detach(self, identity: bytes, name: str) -> bool:
        """A client leaves. False if there is none of that name on that connection."""
        client = self._by_name.get(name)
        if client is None or client.identity != identity:
            return False
        self._forget(client, "detached")
        return True

    def forget_dead(self, pidfd: int) -> None:
        """The process behind this descriptor has ended."""
        client = self._by_pidfd.get(pidfd)
        if client is not None:
            self._forget(client, "died")

    def find(self, name: str) -> Client | None:
        """The attached client of that name; None if it is unknown or being dropped."""
        client = self._by_name.get(name)
        return client if client is not None and client.state is ClientState.ATTACHED else None

    # -- frames -------------------------------------------------------------------------------------------------

    def send_outputs(self, outputs: Iterable[TokenOutput]) -> None:
        """One frame per client with what a step made for it; more if embeddings or prompts' logprobs are too large for one."""
        full: list[tuple[int, list[TokenOutput]]] = []
        groups: dict[int, list[TokenOutput]] = {}
        for output in outputs:
            slot = output.key >> NUMBER_BITS
            group = groups.get(slot)
            if group is None:
                group = groups[slot] = []
            group.append(output)
            if output.finish_reason is not None:
                client = self._by_slot.get(slot)
                if client is not None:
                    client.numbers.discard(output.key & NUMBER_MASK)
                if output.embedding is not None and len(group) * len(output.embedding) >= self._max_frame_bytes:
                    full.append((slot, groups.pop(slot)))
                    continue
            if output.prompt_logprobs is not None:  # megabytes, of a long prompt
                full.append((slot, groups.pop(slot)))
        for slot, group in (*full, *groups.items()):
            client = self._by_slot.get(slot)
            if client is not None and client.state is ClientState.ATTACHED:  # not lost meanwhile, or with a frame of this step
                self._send_numbered(client, StepOutputs(client.next_frame, group))

    def send_failure(
        self, client: Client, number: int, code: str, message: str, *, http_status: int, param: str | None = None
    ) -> None:
        """End one request that is not, or no longer, in the engine."""
        client.numbers.discard(number)
        frame = client.next_frame
        self._send_numbered(client, RequestFailed(frame, number, code, message, http_status, param))

    def send_handing_over(self) -> None:
        """Tell everybody, now and whoever comes later, that requests are the successor's from here on.

        Who cannot be told now learns it from the refusal of a request, or from the successor's announcement.
        """
        self._is_handing_over = True
        for client in list(self._by_name.values()):
            self._send(client, HandingOver())

    def send_death(self, cause: str) -> None:
        """Last words to everybody who can hear them."""
        for client in list(self._by_name.values()):
            client.numbers.clear()
            self._send(client, EngineDead(cause))

    def retry_notices(self) -> None:
        """Tell dropped clients so, as far as they can be told by now."""
        for client in list(self._dropping.values()):
            if self._send(client, Dropped(client.drop_reason)):
                self._forget(client, "dropped", ClientEvent.TOLD)

    def fail_all(self, code: str, message: str, *, http_status: int) -> int:
        """Abort every unfinished request and tell its client. Returns how many there were."""
        num_failed = 0
        for client in list(self._by_name.values()):
            for number in list(client.numbers):
                self._abort(client.key(number))
                self.send_failure(client, number, code, message, http_status=http_status)
                num_failed += 1
        return num_failed

    def close(self) -> None:
        for client in list(self._by_name.values()):
            self._forget(client, "engine_stopped")

    def _send_numbered(self, client: Client, message: StepOutputs | RequestFailed) -> None:
        client.next_frame += 1  # lost or not: a gap is how a client sees that it missed something
        if not self._send(client, message):
            self._drop(client, "output queue full: the client reads too slowly")

    def _send(
        self, client: Client, message: Attached | StepOutputs | RequestFailed | Dropped | HandingOver | EngineDead
    ) -> bool:
        """False if the client's queue is full. A client that cannot be reached is forgotten on the spot."""
        try:
            self._output.send_multipart((client.identity, encode(message)), zmq.DONTWAIT)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._forget(client, "unreachable")
        return True

    def _drop(self, client: Client, reason: str) -> None:
        log.warning("client_dropped", client=client.name, num_aborted=len(client.numbers), reason=reason)
        self._abort_all(client)
        client.meet(ClientEvent.FRAME_LOST)
        client.drop_reason = reason
        self._dropping[client.name] = client

    def _forget(self, client: Client, reason: str, event: ClientEvent = ClientEvent.LEFT) -> None:
        if client.state is ClientState.GONE:
            return
        client.meet(event)
        del self._by_name[client.name]
        del self._by_slot[client.slot]
        del self._by_pidfd[client.pidfd]
        self._dropping.pop(client.name, None)
        self._poller.unregister(client.pidfd)
        os.close(client.pidfd)
        log.info("client_left", client=client.name, num_aborted=len(client.numbers), reason=reason)
        self._abort_all(client)

    def _abort_all(self, client: Client) -> None:
        for number in client.numbers:
            self._abort(client.key(number))
        client.numbers.clear()
