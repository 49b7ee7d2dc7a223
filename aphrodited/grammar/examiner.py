"""The process that tries grammars out before an engine takes them in.

A grammar of fifty characters may take llguidance hours to compile, or all memory, and no thread can be stopped in it.
So each is compiled here first, where it can be killed: the engine compiles only what this process has survived.

    stdin     a frame for each grammar: msgpack of a Grammar
    stdout    an empty frame when it is ready; then a frame for each grammar: what is wrong with it, or empty

Ends when stdin does. Started by `examination`; knows no engine.
"""

from __future__ import annotations

import ctypes
import os
import random
import resource
import signal
import sys
import threading
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np
from llguidance import LLMatcher

from aphrodited.errors import RequestError
from aphrodited.grammar.compiler import compile_grammar
from aphrodited.grammar.frames import frame, read_frame
from aphrodited.grammar.refusal import refusal
from aphrodited.grammar.vocabulary import Vocabulary, build_vocabulary
from aphrodited.grammar.workers import STACK_SIZE
from aphrodited.sampling_params import Grammar

MEMORY_LIMIT = 2 * 1024**3  # bytes beyond what the process has when it is ready
NUM_TRIAL_TOKENS = 32
_PR_SET_PDEATHSIG = 1


def examine(grammar: Grammar, vocabulary: Vocabulary) -> str:
    """What is wrong with a grammar; "" if it compiles and a short random text can be made with it."""
    try:
        matcher = compile_grammar(grammar, vocabulary)
        _try_out(grammar, matcher)
    except RequestError as error:
        return str(error)
    return ""


def _try_out(grammar: Grammar, matcher: LLMatcher) -> None:
    chooser = random.Random(0)
    for _ in range(NUM_TRIAL_TOKENS):
        mask = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        allowed = np.unpackbits(mask, bitorder="little").nonzero()[0]
        if not matcher.is_error() and (matcher.is_stopped() or not len(allowed)):
            return
        if matcher.is_error() or not matcher.consume_token(int(chooser.choice(allowed))):
            raise refusal(grammar, matcher.get_error())


def serve(requests: BinaryIO, answers: BinaryIO, vocabulary: Vocabulary) -> None:
    """Answer until there are no more requests."""
    decoder = msgspec.msgpack.Decoder(Grammar)
    _answer(answers, "")
    while (request := read_frame(requests)) is not None:
        _answer(answers, examine(decoder.decode(request), vocabulary))


def _answer(answers: BinaryIO, text: str) -> None:
    answers.write(frame(text.encode()))
    answers.flush()


def main() -> None:
    """Arguments: the model's path, its vocabulary's size, its EOS token ids separated by commas."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to the engine too, which ends stdin
    os.nice(10)
    path, vocab_size, eos_token_ids = sys.argv[1:]
    vocabulary = build_vocabulary(Path(path), int(vocab_size), [int(i) for i in eos_token_ids.split(",") if i])
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = used + STACK_SIZE + MEMORY_LIMIT
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.stack_size(STACK_SIZE)
    thread = threading.Thread(target=serve, args=(sys.stdin.buffer, sys.stdout.buffer, vocabulary))
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
