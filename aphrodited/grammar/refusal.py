"""The error for a grammar that cannot be used, as whoever wrote it should read it."""

from __future__ import annotations

from aphrodited.errors import RequestError
from aphrodited.sampling_params import Grammar, GrammarKind

MAX_REASON_CHARS = 400

_NAMES = {GrammarKind.JSON: "JSON schema", GrammarKind.REGEX: "regular expression"}


def refusal(grammar: Grammar, reason: str) -> RequestError:
    """A 400 with the field that the grammar came from, and why it cannot be used."""
    reason = reason.strip()
    if len(reason) > MAX_REASON_CHARS:
        reason = reason[:MAX_REASON_CHARS] + "…"
    name = _NAMES.get(grammar.kind, str(grammar.kind))
    return RequestError(f"{grammar.param}: this {name} cannot be used: {reason}", param=grammar.param)


def unavailable(grammar: Grammar, reason: str) -> RequestError:
    """The error for an engine that can use no grammar at all."""
    return RequestError(
        f"{grammar.param}: this engine takes no grammars: {reason}", param=grammar.param, code="grammar_unavailable"
    )
