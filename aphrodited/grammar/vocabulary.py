"""A model's vocabulary as llguidance wants it: the bytes of each token, and which tokens end an answer.

Built when the first grammar is asked for, since it takes half a second and some ten megabytes. Knows no grammar.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llguidance import LLTokenizer, TokenizerWrapper

from aphrodited.tokenizer.tokenizer import Tokenizer, load_tokenizer

_NOT_TEXT = b"\xff"  # before the name of a token that no text contains


class _Tokens:
    """What llguidance asks of a tokenizer."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: Sequence[int]) -> None:
        special = [i for i in range(vocab_size) if i in eos_token_ids or tokenizer.is_special(i)]
        self.tokens = [tokenizer.token_bytes(i) for i in range(vocab_size)]
        for token_id in special:
            self.tokens[token_id] = _NOT_TEXT + self.tokens[token_id]
        self.special_token_ids = special
        self.bos_token_id = None
        self.eos_token_id = eos_token_ids[0]
        self._tokenizer = tokenizer

    def __call__(self, text: bytes) -> list[int]:
        return self._tokenizer.encode(text.decode("utf-8", "replace"), add_special_tokens=False)


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """size: the model's, in tokens.  eos_token_ids: what only a grammar that may end allows; at least one."""

    tokenizer: LLTokenizer
    size: int
    eos_token_ids: tuple[int, ...]


def build_vocabulary(model_path: Path, vocab_size: int, eos_token_ids: Sequence[int]) -> Vocabulary:
    """The vocabulary of a model with so many rows of logits; rows that its tokenizer lacks are never allowed.

    A model without an EOS token is given one beyond its vocabulary, which cannot be chosen.
    Raises ModelLoadError if the tokenizer cannot be loaded.
    """
    ends = tuple(eos_token_ids) or (vocab_size,)
    num_tokens = max(vocab_size, max(ends) + 1)
    tokens = _Tokens(load_tokenizer(model_path), num_tokens, ends)
    return Vocabulary(
        LLTokenizer(TokenizerWrapper(tokens), n_vocab=num_tokens, eos_token=list(ends)), vocab_size, ends
    )
