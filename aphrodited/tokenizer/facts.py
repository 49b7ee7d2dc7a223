"""What a model says about its tokenizer beyond the vocabulary: its roles, its ends and its chat templates.

Both sources, a GGUF file and a Hugging Face directory, fill in the same TokenizerFacts.
"""

from __future__ import annotations

import msgspec

DEFAULT_TEMPLATE = "default"


class TokenizerFacts(msgspec.Struct, frozen=True):
    """special_tokens: role ("bos_token", "eos_token", ...) to text, as chat templates name them.

    eos_token_ids: every id that ends an answer, the tokenizer's own first.  chat_templates: name to jinja
    source; the usual one is called "default".
    """

    special_tokens: dict[str, str] = {}
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    chat_templates: dict[str, str] = {}
