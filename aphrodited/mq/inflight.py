"""The requests of one connection, and the numbered frames that answer them. Knows no socket."""

from __future__ import annotations

from aphrodited.errors import (
    ContextLengthError,
    EngineError,
    EngineStoppingError,
    OutputLostError,
    QueueFullError,
    RequestError,
)
from aphrodited.mq.messages import NUMBER_MASK, RequestFailed, StepOutputs
from aphrodited.outputs import FinishReason, TokenOutput
from aphrodited.streams import TokenStream

_OWN_CLASS: dict[str, type[RequestError]] = {kind.code: kind for kind in (ContextLengthError, QueueFullError)}


class InFlight:
    """Streams by number, from `open` to the one terminal event of each.

    next_frame: the number the next frame must have; set once, from the engine's Attached.
    """

    def __init__(self, max_unread: int) -> None:
        self.next_frame: int | None = None
        self._max_unread = max_unread
        self._streams: dict[int, TokenStream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def open(self, number: int, request_id: str) -> TokenStream:
        stream = self._streams[number] = TokenStream(number, request_id, self._max_unread)
        return stream

    def take_outputs(self, message: StepOutputs) -> list[int]:
        """Hand each output to its consumer; outputs of requests that have ended here are passed over.

        Returns the numbers of those whose consumers do not read, to be aborted. Raises OutputLostError for a gap.
        """
        self._count(message.frame)
        streams = self._streams
        stalled: list[int] = []
        for output in message.outputs:
            number = output.key & NUMBER_MASK
            stream = streams.get(number)
            if stream is None:
                continue
            if not stream.put(output):
                stalled.append(number)
            if stream.ended:
                del streams[number]
        return stalled

    def take_failure(self, message: RequestFailed) -> None:
        """End one request. Raises OutputLostError for a gap."""
        self._count(message.frame)
        stream = self._streams.pop(message.number, None)
        if stream is not None:
            stream.fail(_error_of(message))

    def release(self, stream: TokenStream) -> bool:
        """Its consumer has left. Whether it had not ended."""
        if self._streams.pop(stream.number, None) is None:
            return False
        stream.ended = True
        return True

    def abort(self, request_id: str) -> list[int]:
        """End every request of that label. Returns their numbers."""
        numbers = [number for number, stream in self._streams.items() if stream.request_id == request_id]
        for number in numbers:
            self._streams.pop(number).put(TokenOutput(number, [], FinishReason.ABORT))
        return numbers

    def fail_all(self, error: EngineError) -> None:
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.fail(copy_of(error))

    def _count(self, frame: int) -> None:
        if frame != self.next_frame:
            raise OutputLostError(f"output of the engine was lost: frame {self.next_frame} was due and {frame} came")
        self.next_frame = frame + 1


def copy_of(error: EngineError) -> EngineError:
    """An equal error for one more caller: a raised exception collects the traceback of whoever raised it."""
    twin = type(error)(*error.args)
    twin.__dict__.update(error.__dict__)
    return twin


def _error_of(message: RequestFailed) -> RequestError | EngineError:
    if message.http_status >= 500:
        if message.code == EngineStoppingError.code:
            return EngineStoppingError(message.message)
        engine_error = EngineError(message.message)
        engine_error.code, engine_error.http_status = message.code, message.http_status
        return engine_error
    error = _OWN_CLASS.get(message.code, RequestError)(message.message)
    error.code, error.http_status, error.param = message.code, message.http_status, message.param
    return error
