"""What two answers to one request must have in common, whichever way and in however many pieces they came.

Text, reason of the end and log-probabilities of each choice, and the usage; not ids, instants, the cut into events,
and how much of a prompt was cached. Knows no transport.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


class ShapeError(ValueError):
    """What came is nothing that docs/api.md describes."""


@dataclass(slots=True)
class Choice:
    """logprobs: one entry a token, None if none came."""

    text: str = ""
    logprobs: list[Any] | None = None
    ending: tuple[str, Any] | None = None  # finish_reason, stop_reason

    def add(self, raw: dict[str, Any]) -> None:
        """Take in a choice of a whole answer, or of one event. Raises ShapeError."""
        if self.ending is not None:
            raise ShapeError("a choice went on after its end")
        part = raw.get("delta") or raw.get("message") or {}
        self.text += raw["text"] if "text" in raw else part.get("content") or ""
        if raw.get("logprobs"):
            self.logprobs = [*(self.logprobs or ()), *_per_token(raw["logprobs"])]
        if raw["finish_reason"] is not None:
            self.ending = raw["finish_reason"], raw.get("stop_reason")


@dataclass(slots=True)
class Answer:
    """One answer as far as it came. data: of embeddings."""

    choices: dict[int, Choice] = field(default_factory=dict)
    usage: dict[str, int] | None = None
    data: list[Any] | None = None

    def add(self, raw: dict[str, Any]) -> bool:
        """Take in a whole answer or one event; whether it held anything of an answer's text. Raises ShapeError."""
        try:
            has_text = False
            for choice in raw.get("choices", ()):
                mine = self.choices.setdefault(choice["index"], Choice())
                before = len(mine.text)
                mine.add(choice)
                has_text = has_text or len(mine.text) > before
            self.data = raw.get("data", self.data)
            if raw.get("usage"):
                self.usage = {name: value for name, value in raw["usage"].items() if isinstance(value, int)}
        except (KeyError, TypeError, AttributeError) as error:
            raise ShapeError(f"{type(error).__name__}: {error} in {str(raw)[:300]}") from error
        return has_text

    def difference(self, other: Answer) -> str:
        """Where this answer is not the other one; empty if they are the same."""
        if self.choices.keys() != other.choices.keys():
            return f"choices {sorted(self.choices)} instead of {sorted(other.choices)}"
        for index, mine in self.choices.items():
            theirs = other.choices[index]
            for name in ("text", "ending", "logprobs"):
                if getattr(mine, name) != getattr(theirs, name):
                    return f"{name} of choice {index}: {_first_difference(getattr(mine, name), getattr(theirs, name))}"
        if self.data != other.data:
            return "other embeddings"
        return "" if self.usage == other.usage else f"usage {self.usage} instead of {other.usage}"

    def is_beginning_of(self, other: Answer) -> bool:
        """Whether nothing came that is not in the other answer."""
        for index, mine in self.choices.items():
            theirs = other.choices.get(index, Choice())
            if not theirs.text.startswith(mine.text) or mine.ending not in (None, theirs.ending):
                return False
            if mine.logprobs is not None and (theirs.logprobs or [])[: len(mine.logprobs)] != mine.logprobs:
                return False
        return True


def _per_token(logprobs: dict[str, Any]) -> list[Any]:
    """A chat's are a list already; a completion's are one list for each property."""
    if "content" in logprobs:
        return list(logprobs["content"])
    return [list(entry) for entry in zip(*(logprobs[name] for name in sorted(logprobs)), strict=True)]


def _first_difference(mine: Any, theirs: Any) -> str:
    if mine is None or theirs is None or isinstance(mine, tuple):
        return f"{_short(mine)} instead of {_short(theirs)}"
    pairs = enumerate(zip(mine, theirs, strict=False))
    at = next((index for index, (left, right) in pairs if left != right), min(len(mine), len(theirs)))
    return f"from {at} on {_short(mine[at : at + 20])} instead of {_short(theirs[at : at + 20])} ({len(mine)}, {len(theirs)} long)"


def _short(value: Any) -> str:
    return repr(value)[:200]
