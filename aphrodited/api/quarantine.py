"""Quarantine as an API worker knows it: gives requests the fingerprints they are judged by, and refuses the convicted.

A fingerprint is of the prompt's tokens and the parameters as they were given: another label, and a seed that this worker
chose, make no other request. Knows no HTTP; who is convicted is in the model's rulings.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

import msgspec

from aphrodited.api.error_responses import RequestQuarantinedError
from aphrodited.api.served_model import ServedModel
from aphrodited.flight import FINGERPRINT_SIZE
from aphrodited.log import get_logger
from aphrodited.metrics import ApiMetrics
from aphrodited.sampling_params import SamplingParams

log = get_logger()

_encode = msgspec.msgpack.Encoder().encode


class Quarantine:
    """One for a worker's life."""

    def __init__(self, metrics: ApiMetrics) -> None:
        self._metrics = metrics

    def admit(
        self, model: ServedModel, prompts: Sequence[list[int]], options: SamplingParams | dict[str, object], label: str
    ) -> list[bytes]:
        """The fingerprint of each prompt with these options. Raises RequestQuarantinedError if one of them is refused."""
        given = _encode(options)
        fingerprints = [_fingerprint(prompt, given) for prompt in prompts]
        for fingerprint in fingerprints:
            self.check(model, fingerprint, label)
        return fingerprints

    def check(self, model: ServedModel, fingerprint: bytes, label: str) -> None:
        """Raises RequestQuarantinedError if such requests are refused now."""
        left_s = model.rulings.refused_for_s(fingerprint)
        if left_s is None:
            return
        self._metrics.quarantined(model.name)
        log.warning(
            "request_quarantined",
            request_id=label,
            model=model.name,
            fingerprint=fingerprint.hex(),
            refused_for_s=round(left_s),
        )
        raise RequestQuarantinedError(
            "Engines died while they computed this request, the last one with no other beside it: it is refused for"
            f" {_duration(left_s)}. Other requests are not affected",
            retry_after_s=left_s,
        )


def _fingerprint(prompt: list[int], options: bytes) -> bytes:
    digest = hashlib.blake2b(options, digest_size=FINGERPRINT_SIZE)
    digest.update(array("q", prompt).tobytes())
    return digest.digest()


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} minutes" if seconds >= 90 else f"{seconds:.0f} seconds"
