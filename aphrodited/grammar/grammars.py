"""Grammars: begins the constraints of one engine's sequences, and owns the threads that work for them.

    one thread     prepares grammars: see preparation
    some threads   work out what may follow a token

Threads, vocabulary and llguidance itself come with the first grammar; an engine that is asked for none pays nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

from aphrodited.errors import RequestError
from aphrodited.grammar.constraint import Constraint, Position, Submit, Task
from aphrodited.grammar.workers import Workers
from aphrodited.log import get_logger
from aphrodited.sampling_params import Grammar

if TYPE_CHECKING:
    from aphrodited.grammar.preparation import Preparation

log = get_logger()

LIMIT_S = 5.0
NUM_MASK_THREADS = 2
MAX_TASKS = 65536


class Grammars:
    """The engine's thread calls every method.

    vocab_size, eos_token_ids: the model's.  limit_s: how long a grammar may take to compile.
    """

    def __init__(
        self, model_path: Path, vocab_size: int, eos_token_ids: Sequence[int], *, limit_s: float = LIMIT_S
    ) -> None:
        self._model_path = model_path
        self._vocab_size = vocab_size
        self._eos_token_ids = tuple(eos_token_ids)
        self._limit_s = limit_s
        self._preparing = Workers("grammar", 1, MAX_TASKS)
        self._masking = Workers("mask", NUM_MASK_THREADS, MAX_TASKS)
        self._news = threading.Event()
        self._preparation: Preparation | None = None
        self._is_closed = False

    def begin(self, grammar: Grammar, replayed: Sequence[int]) -> Constraint:
        """A constraint that compiles the grammar and goes over tokens of the sequence's earlier life."""
        return Constraint(
            grammar,
            lambda: self._prepared().position(grammar, replayed),
            submit_first=self._submit_to(self._preparing),
            submit=self._submit_to(self._masking),
        )

    def wait(self, timeout_s: float) -> None:
        """Sleep until some constraint's state has changed since the last call, so many seconds at most."""
        self._news.wait(timeout_s)
        self._news.clear()

    def close(self) -> None:
        """Begin no further task; threads end when their task does."""
        self._is_closed = True
        self._preparing.close()
        self._masking.close()
        if self._preparation is not None:
            self._preparation.close()

    def _submit_to(self, workers: Workers) -> Submit:
        def submit(task: Task, future: Future[Position]) -> None:
            workers.submit(lambda: self._work(task, future))

        return submit

    def _work(self, task: Task, future: Future[Position]) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(task())
        except RequestError as error:
            future.set_exception(error)
        except BaseException as error:  # llguidance's own panics too: one request's end, not the engine's
            log.exception("grammar_failed")
            future.set_exception(RequestError(f"the grammar failed in the engine: {error}", code="grammar_failed"))
        self._news.set()

    def _prepared(self) -> Preparation:
        from aphrodited.grammar.preparation import Preparation  # half a second of imports

        if self._preparation is None:
            self._preparation = Preparation(
                self._model_path, self._vocab_size, self._eos_token_ids, limit_s=self._limit_s
            )
            if self._is_closed:
                self._preparation.close()
        return self._preparation
