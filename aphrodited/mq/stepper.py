"""Steps the backend and has the outputs sent: right after the step, or by a thread while the next one computes.

    overlapped    step n        send n        step n + 1
    False         [ computes ]  [ sends ]     [ computes ]
    True          [ computes ]                [ computes, a thread sends n ]

The thread runs within a step only, and the step's end waits for it: nothing else that its caller owns is ever used by
two threads at once. Knows no socket and no client.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from aphrodited.interfaces import EngineBackend
from aphrodited.outputs import TokenOutput

Send = Callable[[list[TokenOutput]], None]


class Stepper:
    """The caller's thread calls every method; `send` is called by one thread at a time.

    send: gets each step's outputs to the clients; it may call `abort`.
    """

    def __init__(self, backend: EngineBackend, send: Send, *, overlapped: bool) -> None:
        self._backend = backend
        self._send = send
        self._sender = _Sender(send) if overlapped else None
        self._unsent: list[TokenOutput] = []
        self._aborted: list[int] = []

    def step(self) -> None:
        """Run one batch. Raises what the backend or `send` raised."""
        if self._sender is None:
            self._send(self._backend.step())
            return
        unsent, self._unsent = self._unsent, []
        self._sender.begin(unsent)
        try:
            self._unsent = self._backend.step()
        finally:
            self._sender.finish()
            self._abort_now()
        if not self._backend.has_unfinished_requests():
            self.flush()

    def flush(self) -> None:
        """Send what waits for a next step: there will be none."""
        if self._unsent:
            unsent, self._unsent = self._unsent, []
            self._send(unsent)

    def abort(self, key: int) -> None:
        """End a sequence: now, or after the step under way."""
        if self._sender is not None and self._sender.is_sending:
            self._aborted.append(key)
        else:
            self._backend.abort_request(key)

    def close(self) -> None:
        if self._sender is not None:
            self._sender.close()

    def _abort_now(self) -> None:
        aborted, self._aborted = self._aborted, []
        for key in aborted:
            self._backend.abort_request(key)


class _Sender:
    """A thread that sends one batch of outputs at a time, between `begin` and `finish`."""

    def __init__(self, send: Send) -> None:
        self.is_sending = False
        self._send = send
        self._outputs: list[TokenOutput] = []
        self._error: BaseException | None = None
        self._begun = threading.Semaphore(0)
        self._done = threading.Semaphore(0)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="sender", daemon=True)
        self._thread.start()

    def begin(self, outputs: list[TokenOutput]) -> None:
        self._outputs = outputs
        if outputs:
            self.is_sending = True
            self._begun.release()

    def finish(self) -> None:
        """Wait until all is sent. Raises what sending raised."""
        if self.is_sending:
            self._done.acquire()
            self.is_sending = False
            if self._error is not None:
                raise self._error

    def close(self) -> None:
        self._closed = True
        self._begun.release()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._begun.acquire()
            if self._closed:
                return
            try:
                self._send(self._outputs)
            except BaseException as error:  # noqa: BLE001 -- raised again by `finish`, in the engine's thread
                self._error = error
            self._done.release()
