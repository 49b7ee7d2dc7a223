"""From an exception to what a client sees: status, error object, headers.

    {"error": {"message": str, "type": str, "param": str | null, "code": str}}

Every error of the HTTP surface, the framework's own included, goes through `answer_for`. Messages of unexpected
exceptions stay in the log: no path and no traceback leaves the process.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from http import HTTPStatus

import msgspec
from aiohttp import web

from aphrodited.errors import (
    AphroditeError,
    EngineError,
    EngineStartingError,
    MQEngineDeadError,
    QueueFullError,
    RequestError,
)

SHOULD_RETRY = "x-should-retry"  # obeyed by the official clients

_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}

_FRAMEWORK = {
    404: ("not_found", "There is no such route: {method} {path}"),
    405: ("method_not_allowed", "{path} does not take {method}"),
    413: ("request_too_large", "The request body is larger than this server accepts"),
}


class InvalidApiKeyError(RequestError):
    code = "invalid_api_key"
    http_status = 401


class RequestTimeoutError(RequestError):
    """The body did not arrive in time."""

    code = "request_timeout"
    http_status = 408


class DeadlineExceededError(RequestError):
    """The answer was not finished within `api.deadline_s` of the request's arrival."""

    code = "DEADLINE_EXCEEDED"
    http_status = 504


class RequestQuarantinedError(RequestError):
    """The request ends engines. It is refused for so long."""

    code = "REQUEST_QUARANTINED"
    http_status = 422

    def __init__(self, message: str, *, retry_after_s: float) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class EngineUnavailableError(EngineError):
    """No engine takes requests and none is due soon enough. retry_after_s: None if none is due at all."""

    def __init__(self, message: str, *, code: str, retry_after_s: float | None) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after_s = retry_after_s


class ShuttingDownError(EngineError):
    """This worker is stopping and takes or finishes no more requests."""

    code = "SHUTTING_DOWN"


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """One error as a client sees it."""

    status: int
    code: str
    message: str
    param: str | None = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def type(self) -> str:
        fallback = "invalid_request_error" if self.status < 500 else "server_error"
        return _TYPES.get(self.status, fallback)

    def body(self) -> bytes:
        error = {"message": self.message, "type": self.type, "param": self.param, "code": self.code}
        return msgspec.json.encode({"error": error})

    def response(self) -> web.Response:
        response = web.Response(
            status=self.status, body=self.body(), content_type="application/json", headers=self.headers
        )
        if self.headers.get("Connection") == "close":
            response.force_close()
        return response


def answer_for(error: BaseException, *, method: str = "", path: str = "") -> ErrorAnswer:
    """What the client is told about `error`."""
    match error:
        case MQEngineDeadError():
            cause = f": {error.cause}" if error.cause and error.cause not in str(error) else ""
            return _engine_answer(error, f"{error}{cause}", 1.0)
        case EngineStartingError() | EngineUnavailableError():
            return _engine_answer(error, str(error), error.retry_after_s)
        case ShuttingDownError():
            headers = {"Connection": "close", SHOULD_RETRY: "true", "Retry-After": "1"}
            return ErrorAnswer(503, error.code, str(error), headers=headers)
        case EngineError():
            return _engine_answer(error, str(error), 1.0)
        case QueueFullError():
            headers = {"Retry-After": _seconds(error.retry_after_s)}
            return ErrorAnswer(429, error.code, str(error), headers=headers)
        case RequestQuarantinedError():
            headers = {"Retry-After": _seconds(error.retry_after_s), SHOULD_RETRY: "false"}
            return ErrorAnswer(error.http_status, error.code, str(error), headers=headers)
        case RequestError():
            return ErrorAnswer(error.http_status, error.code, str(error), error.param, _request_headers(error))
        case web.HTTPException():
            return _framework_answer(error, method, path)
        case AphroditeError():
            return ErrorAnswer(500, error.code, "The server failed to answer this request")
        case _:
            return ErrorAnswer(500, "internal_error", "The server failed to answer this request")


def _engine_answer(error: EngineError, message: str, retry_after_s: float | None) -> ErrorAnswer:
    headers = {SHOULD_RETRY: "false" if retry_after_s is None else "true"}
    if retry_after_s is not None:
        headers["Retry-After"] = _seconds(retry_after_s)
    return ErrorAnswer(503, error.code, message, headers=headers)


def _request_headers(error: RequestError) -> dict[str, str]:
    if error.http_status == 401:
        return {"WWW-Authenticate": "Bearer"}
    return {SHOULD_RETRY: "false"} if error.http_status == 422 else {}


def _framework_answer(error: web.HTTPException, method: str, path: str) -> ErrorAnswer:
    if error.status < 400:
        return ErrorAnswer(404, "not_found", f"There is no such route: {method} {path}")
    code, message = _FRAMEWORK.get(
        error.status, ("invalid_request_error" if error.status < 500 else "internal_error", "")
    )
    headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
    text = message.format(method=method, path=path) if message else HTTPStatus(error.status).phrase
    return ErrorAnswer(error.status, code, text, headers=headers)


def _seconds(duration_s: float) -> str:
    """A Retry-After value: whole seconds, at least one."""
    return str(max(1, math.ceil(duration_s)))
