"""Examination: sends grammars to the examiner's process, and kills it when it takes too long over one.

Blocks its caller, which is a worker's thread. Knows no sequences.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from aphrodited.errors import RequestError
from aphrodited.grammar.frames import PipeEndedError, frame, receive_frame
from aphrodited.grammar.refusal import refusal, unavailable
from aphrodited.log import get_logger
from aphrodited.sampling_params import Grammar

log = get_logger()

START_LIMIT_S = 60.0
_END_LIMIT_S = 5.0


class Examination:
    """The examiner's process, started when it is needed. One thread calls `start` and `examine`, any one `close`.

    limit_s: how long a grammar may take.
    """

    def __init__(
        self, model_path: Path, vocab_size: int, eos_token_ids: Sequence[int], *, limit_s: float
    ) -> None:
        eos = ",".join(map(str, eos_token_ids))
        self._command = [sys.executable, "-P", "-m", "aphrodited.grammar.examiner", str(model_path), str(vocab_size), eos]
        self._limit_s = limit_s
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = False
        self._is_closed = False
        self._lock = threading.Lock()  # of _process and _is_closed

    def start(self) -> None:
        """Begin to load the process, if none runs; `examine` waits for it."""
        with self._lock:
            if self._process is None and not self._is_closed:
                self._is_ready = False
                self._process = subprocess.Popen(
                    self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
                )

    def examine(self, grammar: Grammar) -> None:
        """Return if the grammar can be used. Raises RequestError if not."""
        self.start()
        process = self._process
        if process is None:
            raise unavailable(grammar, "the engine is shutting down")
        if not self._is_ready:
            self._await_start(grammar, process)
        began_at_s = time.monotonic()
        try:
            answer = self._ask(process, grammar)
        except PipeEndedError as error:
            took_s = time.monotonic() - began_at_s
            self._end_process()
            log.warning("grammar_abandoned", kind=grammar.kind, took_s=round(took_s, 2), reason=str(error))
            if took_s >= self._limit_s:
                raise refusal(grammar, f"it takes longer than {self._limit_s:g} s to prepare") from error
            raise refusal(grammar, "it takes too much memory or nests too deeply") from error
        if answer:
            raise RequestError(answer, param=grammar.param)

    def close(self) -> None:
        """End the process. Idempotent."""
        with self._lock:
            self._is_closed = True
        self._end_process()

    def _await_start(self, grammar: Grammar, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        try:
            receive_frame(process.stdout.fileno(), START_LIMIT_S)
        except PipeEndedError as error:
            self._end_process()
            log.error("examiner_failed", code=process.returncode, reason=str(error))
            raise unavailable(grammar, "the process that examines them does not start") from error
        self._is_ready = True

    def _ask(self, process: subprocess.Popen[bytes], grammar: Grammar) -> str:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(frame(msgspec.msgpack.encode(grammar)))
        except BrokenPipeError as error:
            raise PipeEndedError("the process has ended") from error
        return receive_frame(process.stdout.fileno(), self._limit_s).decode()

    def _end_process(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(_END_LIMIT_S)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
