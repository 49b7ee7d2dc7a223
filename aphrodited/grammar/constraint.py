"""Constraint: where one sequence is in its grammar, and which tokens may come next.

    PENDING    workers are at it: compiling, or working out what may follow the newest token
    OPEN       `allowed` is known
    COMPLETE   nothing but an end may follow

The engine's thread asks; all work is done by workers, one task of a sequence at a time, so that neither a step nor
another sequence waits for it. Knows no sequences, no logits and no llguidance.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from enum import StrEnum
from typing import Protocol, Self

from aphrodited.errors import RequestError
from aphrodited.grammar.refusal import refusal
from aphrodited.sampling.bitmask import Bitmask
from aphrodited.sampling_params import Grammar

TASK_LIMIT_S = 30.0
"""How long a sequence waits for its next tokens, the queue included, until it fails."""


class ConstraintState(StrEnum):
    PENDING = "pending"
    OPEN = "open"
    COMPLETE = "complete"


class Position(Protocol):
    """A place in a grammar. Used by one thread at a time."""

    @property
    def allowed(self) -> Bitmask | None:
        """The tokens that may follow; None if only an end may."""
        ...

    def after(self, token_ids: Sequence[int]) -> Self:
        """Where these tokens lead; this position is used up. Raises RequestError if the grammar has failed."""
        ...


Task = Callable[[], Position]
Submit = Callable[[Task, "Future[Position]"], None]
"""Has a worker put a task's result, or the RequestError it raised, into the future."""


class Constraint:
    """Of one sequence. begin: compiles the grammar and goes to the sequence's place in it.  limit_s: see TASK_LIMIT_S."""

    def __init__(
        self,
        grammar: Grammar,
        begin: Task,
        *,
        submit_first: Submit,
        submit: Submit,
        limit_s: float = TASK_LIMIT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._grammar = grammar
        self._submit = submit
        self._limit_s = limit_s
        self._clock = clock
        self._start(begin, submit_first)

    def state(self) -> ConstraintState:
        """Raises RequestError if the grammar has failed: it ends this request."""
        if not self._next.done():
            if self._clock() > self._deadline_s:
                raise refusal(self._grammar, f"it was not ready within {self._limit_s:g} s")
            return ConstraintState.PENDING
        return ConstraintState.COMPLETE if self._next.result().allowed is None else ConstraintState.OPEN

    def allowed(self, patience_s: float) -> Bitmask | None:
        """The tokens that may come next; None if that is not known within so many seconds, or `state` says why."""
        try:
            return self._next.result(patience_s).allowed
        except (TimeoutError, RequestError):
            return None

    def advance(self, token_id: int) -> None:
        """The sequence was given that token, one of those allowed. Only while OPEN."""
        position = self._next.result()
        self._start(lambda: position.after([token_id]), self._submit)

    def cancel(self) -> None:
        """Do not begin what has not begun."""
        self._next.cancel()

    def _start(self, task: Task, submit: Submit) -> None:
        self._next: Future[Position] = Future()
        self._deadline_s = self._clock() + self._limit_s
        submit(task, self._next)
