"""The bytes that each token stands for.

Text is made of tokens' bytes, so that decoding whole and decoding token by token cannot differ: joined bytes,
read as UTF-8. Three kinds of tokenizer are told apart by their decoder:

    ByteLevel                     each character of a token is one byte of GPT-2's alphabet
    ByteFallback, Metaspace, ▁    SentencePiece: "▁" is a space, "<0x41>" is one byte
    none                          one word per token, with a space before it

Knows no text longer than a token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from enum import Enum
from typing import Any

from tokenizers import Tokenizer as FastTokenizer

from aphrodited.errors import ModelLoadError

_MAX_ID = 2**32 - 1  # what the library takes
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class _Kind(Enum):
    BYTE_LEVEL = "byte level"
    SENTENCEPIECE = "sentencepiece"
    WORDS = "words"


class TokenBytes:
    """Bytes by token id, worked out when first asked for.

    begins_with_space: whether the first token of a text carries a space that is no part of the text.
    Raises ModelLoadError if the tokenizer's decoder is none of the known kinds.
    """

    def __init__(self, fast: FastTokenizer) -> None:
        self._fast = fast
        self._kind, self.begins_with_space = _kind_of(fast)
        self._added = {token_id: token.content for token_id, token in fast.get_added_tokens_decoder().items()}
        self._known: dict[int, bytes] = {}

    def __getitem__(self, token_id: int) -> bytes:
        """The token's bytes; b"" for an id outside the vocabulary (models pad theirs, and may sample such ids)."""
        known = self._known.get(token_id)
        if known is not None:
            return known
        token = self._fast.id_to_token(token_id) if 0 <= token_id <= _MAX_ID else None
        if token is None:
            return b""
        self._known[token_id] = value = self._bytes_of(token_id, token)
        return value

    def _bytes_of(self, token_id: int, token: str) -> bytes:
        match self._kind:
            case _Kind.BYTE_LEVEL:
                if token_id in self._added:
                    return token.encode()
                return b"".join(_BYTE_OF_CHARACTER.get(character) or character.encode() for character in token)
            case _Kind.SENTENCEPIECE:
                byte = _BYTE_PIECE.fullmatch(token)
                return bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()
            case _Kind.WORDS:
                return b" " + token.encode()


def _kind_of(fast: FastTokenizer) -> tuple[_Kind, bool]:
    if fast.decoder is None:
        return _Kind.WORDS, True
    parts = {part["type"]: part for part in _parts(json.loads(fast.decoder.__getstate__()))}
    if "ByteLevel" in parts:
        return _Kind.BYTE_LEVEL, False
    if "Metaspace" in parts:
        return _Kind.SENTENCEPIECE, parts["Metaspace"].get("prepend_scheme") != "never"
    if "ByteFallback" in parts:
        return _Kind.SENTENCEPIECE, "Strip" in parts
    raise ModelLoadError(
        f"the tokenizer's decoder ({', '.join(parts)}) is not supported; byte-level and SentencePiece ones are"
    )


def _parts(decoder: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if decoder["type"] == "Sequence":
        for part in decoder["decoders"]:
            yield from _parts(part)
    else:
        yield decoder


def _gpt2_alphabet() -> dict[str, bytes]:
    """Character to byte: printable Latin-1 stands for itself, the other bytes for 256, 257, ... in order.

    Source: https://github.com/openai/gpt-2/blob/9b63575/src/encoder.py, bytes_to_unicode
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): bytes([byte]) for byte in printable}
    return alphabet | {chr(256 + index): bytes([byte]) for index, byte in enumerate(others)}


_BYTE_OF_CHARACTER = _gpt2_alphabet()
