"""How many ids a model's tokenizer has. Vocabularies are often padded: rows beyond mean nothing and must not be sampled.

Knows no text and builds no tokenizer: the engine has no other use for one.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from aphrodited.errors import ModelLoadError
from aphrodited.models.config import ModelArchitecture

TOKENIZER_FILE = "tokenizer.json"


class _AddedToken(msgspec.Struct):
    id: int


class _Model(msgspec.Struct):
    vocab: dict[str, int] | list[Any]  # ids by token, or tokens in the order of their ids


class _Tokenizer(msgspec.Struct):
    model: _Model
    added_tokens: list[_AddedToken] = []


def count_token_ids(directory: Path) -> int | None:
    """One more than the highest id of the directory's tokenizer, or None if it has none that we read.

    Raises ModelLoadError for a file that is damaged.
    """
    path = directory / TOKENIZER_FILE
    try:
        tokenizer = msgspec.json.decode(path.read_bytes(), type=_Tokenizer)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelLoadError(f"{path}: is not a tokenizer: {error}") from None
    vocab = tokenizer.model.vocab
    highest = len(vocab) - 1 if isinstance(vocab, list) else max(vocab.values(), default=-1)
    return max(highest, *(token.id for token in tokenizer.added_tokens), -1) + 1 or None


def fit_to_tokenizer(config: ModelArchitecture, num_token_ids: int | None) -> ModelArchitecture:
    """The same model without logits, and without ends, for ids that its tokenizer lacks; None: it has them all."""
    if num_token_ids is None or num_token_ids >= config.vocab_size:
        return config
    eos_token_ids = tuple(token_id for token_id in config.eos_token_ids if token_id < num_token_ids)
    return replace(config, tokenizer_size=num_token_ids, eos_token_ids=eos_token_ids)
