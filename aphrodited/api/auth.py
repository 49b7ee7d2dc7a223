"""API keys: read from a file, kept as digests, compared in constant time. A key is never logged nor told."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path

from aphrodited.api.error_responses import InvalidApiKeyError
from aphrodited.errors import ConfigError

LOOPBACK_HOSTS = frozenset({"localhost", "::1"})


class ApiKeys:
    """The keys that open the API."""

    def __init__(self, keys: list[str]) -> None:
        self._digests = [_digest(key.encode()) for key in keys]

    def check(self, authorization: str | None) -> None:
        """Raise InvalidApiKeyError unless the Authorization header holds a key of ours as a bearer token."""
        if authorization is None:
            raise InvalidApiKeyError("An API key is required: send it as Authorization: Bearer KEY")
        scheme, _, token = authorization.partition(" ")
        given = _digest(token.strip().encode("utf-8", "surrogateescape"))
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]  # all of them, always
        if scheme.lower() != "bearer" or not any(matches):
            raise InvalidApiKeyError("The API key is not valid")


def read_keys(path: Path, setting: str = "api.keys_file") -> ApiKeys:
    """The keys of a file: one a line, without its blanks; empty lines and lines that begin with # are skipped.

    Raises ConfigError, which names the setting, if the file cannot be read or holds no key.
    """
    try:
        lines = [line.strip() for line in path.read_text("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(f"{setting}: {path} cannot be read: {reason}") from error
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ConfigError(f"{setting}: {path} holds no key; write one a line, or drop the setting")
    return ApiKeys(keys)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a port on that address."""
    return host in LOOPBACK_HOSTS or host.startswith("127.")


def check_exposure(host: str, has_keys: bool, allow_unauthenticated: bool) -> None:
    """Raise ConfigError for a port that strangers could reach without a key."""
    if not (is_loopback(host) or has_keys or allow_unauthenticated):
        raise ConfigError(
            f"api.host is {host}, which others can reach, and there is no api.keys_file; "
            "set one, listen on 127.0.0.1, or set api.allow_unauthenticated: true"
        )


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
