"""The exceptions of aphrodited. An error's type says whose move it is.

    AphroditeError
    ├── RequestError                the caller mends the request (HTTP 4xx)
    │   ├── ContextLengthError      prompt and max_tokens do not fit the model
    │   ├── QueueFullError          try again later (429)
    │   └── ModelNotFoundError      no such model (404)
    ├── EngineError                 the supervisor mends it by itself; the caller may retry (HTTP 503)
    │   ├── MQEngineDeadError       the engine died with the request in it; ENGINE_DEAD_ERROR is this class
    │   ├── OutputLostError         the engine lives, but frames of this request were lost on the way
    │   ├── RequestAbortedError     somebody other than the caller ended the request in the engine
    │   ├── DeviceLostError         the GPU failed under the engine (exit code 71)
    │   ├── EngineStartingError     there is no engine to take the request yet
    │   ├── EngineStoppingError     the engine is stopping: it did not take the request, or did not finish it in time
    │   └── MQClientClosedError     the client was closed by its own caller
    ├── ProtocolError               a frame that no peer of ours would send
    └── ConfigError                 the operator mends the file (exit code 78)
        └── ModelLoadError          a model file that is missing, damaged or not supported

Knows no transport: `code` and `http_status` are plain attributes that the API turns into an answer.
"""

from __future__ import annotations


class AphroditeError(Exception):
    """Base of every error that aphrodited raises on purpose."""

    code: str = "internal_error"
    http_status: int = 500


class RequestError(AphroditeError):
    """One request is wrong; every other request is unaffected.

    `param` names the offending field of the request, if one can be named.
    """

    code = "invalid_request_error"
    http_status = 400

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        if code is not None:
            self.code = code


class ContextLengthError(RequestError):
    """The prompt, or the prompt and `max_tokens`, exceed what the model or its KV cache can hold."""

    code = "context_length_exceeded"


class QueueFullError(RequestError):
    """The waiting queue is at its bound. `retry_after_s` is a hint in seconds."""

    code = "QUEUE_FULL"
    http_status = 429

    def __init__(self, message: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ModelNotFoundError(RequestError):
    """The request names a model that this daemon does not serve."""

    code = "model_not_found"
    http_status = 404


class EngineError(AphroditeError):
    """The engine cannot answer; it is replaced without anybody's help."""

    code = "ENGINE_DEAD"
    http_status = 503


class MQEngineDeadError(EngineError):
    """The engine that held the request is gone. `cause` says how it died, as far as anybody knows.

    generation: the engine's, as its clients know it; 0 if it had none.
    """

    def __init__(self, message: str, *, cause: str | None = None, generation: int = 0) -> None:
        super().__init__(message)
        self.cause = cause
        self.generation = generation


class OutputLostError(EngineError):
    """Output frames were lost, or the connection was, while the engine lives on; the request was aborted there."""

    code = "OUTPUT_LOST"


class RequestAbortedError(EngineError):
    """Somebody other than the caller ended the request in the engine."""

    code = "REQUEST_ABORTED"


class DeviceLostError(EngineError):
    """The GPU that an engine computes on failed: its memory, and every later call of this process, are lost."""


class EngineStartingError(EngineError):
    """No engine takes requests yet. `retry_after_s` is when the next try is due, if known."""

    code = "ENGINE_STARTING"

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineStoppingError(EngineError):
    """The engine was asked to stop: it takes no more requests, and those it could not finish have ended."""

    code = "SHUTTING_DOWN"


class MQClientClosedError(EngineError):
    """The client was closed (`context.term()`); it takes no more calls."""

    code = "CLIENT_CLOSED"


class ProtocolError(AphroditeError):
    """A frame could not be decoded or is not allowed on its socket."""

    code = "protocol_error"


class ConfigError(AphroditeError):
    """The operator's configuration is wrong. `problems` holds one complete line per mistake."""

    code = "config_error"

    def __init__(self, problems: list[str] | str) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class ModelLoadError(ConfigError):
    """A model cannot be loaded as it stands on disk. The message names the file and, if any, the tensor."""

    code = "model_load_error"


ENGINE_DEAD_ERROR = MQEngineDeadError

EXIT_OK = 0
EXIT_ENGINE_FAILED = 70  # an exception in the engine, told to its clients before it left
EXIT_DEVICE_LOST = 71  # the GPU failed; a new process may find it well
EXIT_TEMPORARY = 75  # try again: a resource was busy
EXIT_CONFIG = 78  # the operator must act: parked at once
