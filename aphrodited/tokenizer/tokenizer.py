"""Tokenizer: text and conversations to token ids, and back.

Text from a caller never becomes a control token: `encode` reads "<|im_end|>" as ten ordinary characters, and
`encode_chat` tells the template's control tokens from the same characters in a message. Knows no requests and no
streams; see detokenizer for those.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken
from tokenizers import Tokenizer as FastTokenizer

from aphrodited.errors import ModelLoadError, RequestError
from aphrodited.hub_cache import cached_snapshot, is_hub_id
from aphrodited.tokenizer.chat_template import ChatTemplate, Message
from aphrodited.tokenizer.facts import DEFAULT_TEMPLATE, TokenizerFacts
from aphrodited.tokenizer.gguf_vocab import convert_gguf
from aphrodited.tokenizer.hf_directory import read_directory
from aphrodited.tokenizer.special_text import SpecialText
from aphrodited.tokenizer.token_bytes import TokenBytes

MAX_SPECIAL_TOKEN_LENGTH = 256  # characters


def load_tokenizer(model_path: Path) -> Tokenizer:
    """The tokenizer of a .gguf file, of a directory in the Hugging Face layout, or of a hub model that was downloaded.

    Raises ModelLoadError, naming the file and what is missing or wrong in it.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # or the library starts a pool of threads
    if is_hub_id(model_path):
        model_path = _downloaded(str(model_path))
    if not model_path.exists():
        raise ModelLoadError(f"{model_path} does not exist")
    fast, facts = read_directory(model_path) if model_path.is_dir() else convert_gguf(model_path)
    try:
        tokenizer = Tokenizer(fast, facts)
    except ModelLoadError as error:
        raise ModelLoadError(f"{model_path}: {error}") from None
    _give_memory_back()
    return tokenizer


def _downloaded(hub_id: str) -> Path:
    snapshot = cached_snapshot(hub_id)
    if snapshot is None:
        raise ModelLoadError(f"{hub_id}: is no path, and not in the cache of downloaded models; its engine downloads it")
    return snapshot


class Tokenizer:
    """One model's tokenizer. Every method may be called from several threads at once.

    `encode` and `encode_chat` release the GIL while the vocabulary is at work, so a long text may be encoded in a
    thread without stopping an event loop.
    """

    def __init__(self, fast: FastTokenizer, facts: TokenizerFacts) -> None:
        fast.no_truncation()
        fast.no_padding()
        self._facts = facts
        self._added = fast.get_added_tokens_decoder()
        self._special_ids = frozenset(i for i, token in self._added.items() if token.special)
        self._special_by_text = {token.content: (i, token) for i, token in self._added.items() if token.special}
        if any(len(text) > MAX_SPECIAL_TOKEN_LENGTH for text in self._special_by_text):
            raise ModelLoadError(f"a special token is longer than {MAX_SPECIAL_TOKEN_LENGTH} characters")
        self._special_text = SpecialText(self._special_by_text)
        self._chat_template = ChatTemplate(facts, self._special_text)
        self._bytes = TokenBytes(fast)
        self._with_control = fast
        self._plain = _same_without_control_tokens(fast)

    @property
    def vocab_size(self) -> int:
        """Ids are below this number. A model may have more rows than its tokenizer has ids."""
        return self._plain.get_vocab_size(with_added_tokens=True)

    @property
    def bos_token_id(self) -> int | None:
        return self._facts.bos_token_id

    @property
    def eos_token_id(self) -> int | None:
        return self._facts.eos_token_ids[0] if self._facts.eos_token_ids else None

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self._facts.eos_token_ids

    @property
    def has_chat_template(self) -> bool:
        return DEFAULT_TEMPLATE in self._facts.chat_templates

    @property
    def begins_with_space(self) -> bool:
        """Whether the first token of a text carries a space that is no part of the text (SentencePiece)."""
        return self._bytes.begins_with_space

    def is_special(self, token_id: int) -> bool:
        return token_id in self._special_ids

    def encode(self, text: str, add_special_tokens: bool = True, *, allow_control: bool = False) -> list[int]:
        """Token ids of a text. add_special_tokens: with the BOS (and EOS) that the model's tokenizer adds.

        allow_control: read special tokens in the text as such; for text that is trusted to hold them.
        Raises RequestError if the text cannot be encoded.
        """
        fast = self._with_control if allow_control else self._plain
        try:
            encodings = fast.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        except TypeError:
            raise RequestError(
                "the text holds half of a surrogate pair (\\ud800 to \\udfff), which is no character"
            ) from None
        return encodings[0].ids

    def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Any] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of a conversation, as the model's chat template writes it.

        Raises RequestError if the model has no template or the template does not take the messages.
        """
        text, mask = self._chat_template.render(
            messages,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            tools=tools,
            extra=chat_template_kwargs or {},
        )
        if not mask.hid_something:
            return self.encode(text, add_special_tokens=False, allow_control=True)
        ids: list[int] = []
        for part in self._parts(text):
            ids += self.encode(mask.reveal(part), add_special_tokens=False) if isinstance(part, str) else [part]
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """The text of token ids; bytes that are no UTF-8 become U+FFFD, unknown ids nothing."""
        text = b"".join(self.text_bytes(i, skip_special_tokens) for i in ids).decode("utf-8", "replace")
        return text.removeprefix(" ") if self.begins_with_space else text

    def token_text(self, token_id: int) -> str:
        """One token's text, for display; bytes that are no UTF-8 by themselves become U+FFFD."""
        return self._bytes[token_id].decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """One token's bytes; joined bytes of tokens are the bytes of their text."""
        return self._bytes[token_id]

    def text_bytes(self, token_id: int, skip_special_tokens: bool) -> bytes:
        """What a token adds to the bytes of a text."""
        return b"" if skip_special_tokens and token_id in self._special_ids else self._bytes[token_id]

    def _parts(self, text: str) -> list[str | int]:
        """The text cut at its special tokens, these as ids; each special token takes the blanks it is said to."""
        parts: list[str | int] = []
        pieces = self._special_text.split(text)
        for index in range(1, len(pieces), 2):
            token_id, token = self._special_by_text[pieces[index]]
            if token.lstrip:
                pieces[index - 1] = pieces[index - 1].rstrip()
            if token.rstrip:
                pieces[index + 1] = pieces[index + 1].lstrip()
            parts += [pieces[index - 1], token_id]
        return [*parts, pieces[-1]]


def _same_without_control_tokens(fast: FastTokenizer) -> FastTokenizer:
    """A tokenizer over the same vocabulary in memory that reads special tokens' texts as plain text."""
    plain = FastTokenizer(fast.model)
    added: list[AddedToken] = [token for _, token in sorted(fast.get_added_tokens_decoder().items())]
    plain.add_tokens(added)
    if plain.get_added_tokens_decoder() != fast.get_added_tokens_decoder():
        plain = FastTokenizer.from_str(fast.to_str())
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        if getattr(fast, part) is not None:
            setattr(plain, part, getattr(fast, part))
    plain.encode_special_tokens = True
    return plain


def _give_memory_back() -> None:
    """Return freed pages to the system where the C library can: parsing a vocabulary leaves 16 MB of them."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
