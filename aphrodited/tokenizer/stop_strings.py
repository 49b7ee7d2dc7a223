"""Finds stop strings in text that arrives in pieces, and holds back what may turn out to be one.

Reads one character at a time with one Knuth-Morris-Pratt automaton per stop string: constant work per
character, and the same answer however the text was cut. The match that ends first wins; of several that end
together, the longest. Knows no tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StopResult:
    """text: what may be shown now.  stop: the stop string that ended it, if one did."""

    text: str
    stop: str | None = None


class StopChecker:
    """The text of one sequence on its way out. After a result with a stop, it must not be used again."""

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        self._automata = [_Automaton(stop) for stop in stops]
        self._include_stop = include_stop
        self._held = ""

    def push(self, text: str, *, may_stop: bool = True) -> StopResult:
        """Take more text. may_stop=False: a stop string that ends within this text does not count."""
        if not self._automata:
            return StopResult(text)
        pending = self._held + text
        for end, character in enumerate(text, start=len(self._held) + 1):
            matched = [automaton for automaton in self._automata if automaton.advance(character)]
            if matched and may_stop:
                stop = max((automaton.stop for automaton in matched), key=len)
                return StopResult(pending[: end if self._include_stop else end - len(stop)], stop)
        num_held = max(automaton.num_matched for automaton in self._automata)
        self._held = pending[len(pending) - num_held :]
        return StopResult(pending[: len(pending) - num_held])

    def flush(self) -> str:
        """What was held back; no more text will come."""
        held, self._held = self._held, ""
        return held


class _Automaton:
    """How much of the beginning of one stop string the text so far ends with: `num_matched` characters."""

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.num_matched = 0
        self._fallback = _borders(stop)

    def advance(self, character: str) -> bool:
        """Read one character; True if the stop string ends with it. `num_matched` is never the whole string."""
        while self.num_matched and self.stop[self.num_matched] != character:
            self.num_matched = self._fallback[self.num_matched - 1]
        if self.stop[self.num_matched] != character:
            return False
        self.num_matched += 1
        if self.num_matched < len(self.stop):
            return False
        self.num_matched = self._fallback[-1]
        return True


def _borders(stop: str) -> list[int]:
    """For each prefix of `stop`, the length of its longest proper prefix that is also its end."""
    borders = [0] * len(stop)
    length = 0
    for index in range(1, len(stop)):
        while length and stop[index] != stop[length]:
            length = borders[length - 1]
        if stop[index] == stop[length]:
            length += 1
        borders[index] = length
    return borders
