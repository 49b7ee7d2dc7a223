"""Builds a tokenizer from the metadata of a GGUF file.

    tokenizer.ggml.model   becomes
    gpt2                   byte-level BPE; tokenizer.ggml.pre names how text is cut into words first
    llama                  SentencePiece-like BPE with byte fallback; merges follow from the pieces' scores

Anything else is refused: a tokenizer that is nearly right gives a model that is quietly wrong. Knows nothing of
files in the Hugging Face layout, nor of caches.

The cutting rules are those of llama.cpp, src/llama-vocab.cpp (commit 00ad355), whose names the files carry; where
its comments give the original expression of the model's own tokenizer.json, that one is used.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as FastTokenizer

from aphrodited.errors import ModelLoadError
from aphrodited.gguf_file import Value, read_metadata
from aphrodited.tokenizer.facts import DEFAULT_TEMPLATE, TokenizerFacts

_T = TypeVar("_T")

# Token types, from the GGUF specification.
_UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 2, 3, 4, 6

_WORD = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
_CASED_WORD = (
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,%d}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
)
_TEKKEN_WORD = (
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
    "|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*"
    "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
)

_GPT2 = (_WORD,)
_DIGITS_APART = ("\\p{N}", _WORD)
_LLAMA3 = (_CASED_WORD % 3,)
_QWEN2 = (_CASED_WORD.replace("{1,%d}", ""),)
_TEKKEN = (_TEKKEN_WORD,)
_DEFAULT = ("[\\p{P}\\$\\+<=>\\^~\\|]+", _WORD, "\\p{N}+", "[0-9][0-9][0-9]")

_CUTS: dict[str, tuple[str, ...]] = {
    "default": _DEFAULT,
    **dict.fromkeys(("gpt-2", "gpt2", "phi-2", "mpt", "olmo", "jais"), _GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"), _DIGITS_APART),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "dbrx", "smaug-bpe"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2"), _QWEN2),
    "tekken": _TEKKEN,
}
_WHOLE_WORDS_FIRST = {"llama-bpe", "llama3", "llama-v3", "falcon3", "tekken"}
_BOS_BY_DEFAULT = {"llama-bpe", "llama3", "llama-v3", "falcon3", "tekken"}
_COMPOSED_FORM = {"qwen2", "deepseek-r1-qwen"}


def convert_gguf(path: Path) -> tuple[FastTokenizer, TokenizerFacts]:
    """The tokenizer of a GGUF file and what the file says about it.

    Raises ModelLoadError for a damaged file, a missing key, or a kind of tokenizer that is not supported.
    """
    vocab = _GgufVocab(path, read_metadata(path, lambda key: key.startswith("tokenizer.")))
    kind = vocab.require("model", str)
    match kind:
        case "gpt2":
            tokenizer, adds_bos = _build_byte_level(vocab)
        case "llama":
            tokenizer, adds_bos = _build_sentencepiece(vocab)
        case _:
            raise vocab.error(f"tokenizer model {kind!r} is not supported (gpt2 and llama are)")
    _add_special_tokens(tokenizer, vocab)
    _add_post_processor(tokenizer, vocab, adds_bos)
    return tokenizer, _facts(vocab)


class _GgufVocab:
    """The tokenizer keys of one file, checked as they are taken."""

    def __init__(self, path: Path, values: dict[str, Value]) -> None:
        self._path = path
        self._values = values
        self.tokens = self.require_list("tokens", str)
        self.types = self.get_list("token_type", int) or [1] * len(self.tokens)
        if not self.tokens:
            raise self.error("tokenizer.ggml.tokens is empty")
        if len(self.types) != len(self.tokens):
            raise self.error(f"has {len(self.tokens)} tokens but {len(self.types)} token types")
        self.ids = {token: token_id for token_id, token in enumerate(self.tokens)}
        if len(self.ids) != len(self.tokens):
            raise self.error("tokenizer.ggml.tokens lists the same token twice")

    def error(self, what: str) -> ModelLoadError:
        return ModelLoadError(f"{self._path}: {what}")

    def get(self, name: str, kind: type[_T]) -> _T | None:
        value = self._values.get(f"tokenizer.ggml.{name}")
        if value is not None and not isinstance(value, kind):
            raise self.error(f"tokenizer.ggml.{name} should be a {kind.__name__}")
        return value

    def require(self, name: str, kind: type[_T]) -> _T:
        value = self.get(name, kind)
        if value is None:
            raise self.error(f"the metadata has no tokenizer.ggml.{name}; the file holds no usable tokenizer")
        return value

    def get_list(self, name: str, kind: type[_T]) -> list[_T] | None:
        values = self.get(name, list)
        if values is not None and not all(isinstance(value, kind) for value in values):
            raise self.error(f"tokenizer.ggml.{name} should list values of type {kind.__name__}")
        return values

    def require_list(self, name: str, kind: type[_T]) -> list[_T]:
        self.require(name, list)
        return self.get_list(name, kind) or []

    def token_id(self, role: str) -> int | None:
        """The id that the file gives to a role such as "bos"."""
        token_id = self.get(f"{role}_token_id", int)
        if token_id is not None and not 0 <= token_id < len(self.tokens):
            raise self.error(f"tokenizer.ggml.{role}_token_id is {token_id}, outside the vocabulary of {len(self.tokens)}")
        return token_id

    def templates(self) -> dict[str, str]:
        prefix = "tokenizer.chat_template"
        named = {key.removeprefix(prefix): value for key, value in self._values.items() if key.startswith(prefix)}
        return {
            name.removeprefix(".") or DEFAULT_TEMPLATE: source
            for name, source in named.items()
            if isinstance(source, str) and (not name or name.startswith("."))
        }


def _build_byte_level(vocab: _GgufVocab) -> tuple[FastTokenizer, bool]:
    pre = vocab.get("pre", str) or "default"
    if pre not in _CUTS:
        raise vocab.error(f"pre-tokenizer {pre!r} is not supported; supported are {', '.join(sorted(_CUTS))}")
    merges = [_split_merge(vocab, merge) for merge in vocab.require_list("merges", str)]
    tokenizer = FastTokenizer(_bpe(vocab, merges, ignore_merges=pre in _WHOLE_WORDS_FIRST))
    if pre in _COMPOSED_FORM:
        tokenizer.normalizer = normalizers.NFC()
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in _CUTS[pre]]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, pre in _BOS_BY_DEFAULT


def _split_merge(vocab: _GgufVocab, merge: str) -> tuple[str, str]:
    left, separator, right = merge.partition(" ")
    if not separator or not left or not right or " " in right:
        raise vocab.error(f"tokenizer.ggml.merges holds {merge!r}, which is not two tokens")
    return left, right


def _build_sentencepiece(vocab: _GgufVocab) -> tuple[FastTokenizer, bool]:
    scores = vocab.require_list("scores", float)
    if len(scores) != len(vocab.tokens):
        raise vocab.error(f"has {len(vocab.tokens)} tokens but {len(scores)} scores")
    unknown_id = vocab.token_id("unknown")
    merges = _merges_of_pieces(vocab, scores)
    unknown = vocab.tokens[unknown_id] if unknown_id is not None else None
    tokenizer = FastTokenizer(_bpe(vocab, merges, byte_fallback=True, fuse_unk=True, unk_token=unknown))
    adds_space = vocab.get("add_space_prefix", bool) is not False
    prefix = [normalizers.Prepend("▁")] if adds_space else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", "▁")])
    strip = [decoders.Strip(content=" ", left=1, right=0)] if adds_space else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return tokenizer, True


def _merges_of_pieces(vocab: _GgufVocab, scores: list[float]) -> list[tuple[str, str]]:
    """Every way to put a piece together from two pieces, best score first.

    SentencePiece joins the neighbours whose union scores best; BPE joins those whose merge ranks first.
    """
    merges: list[tuple[float, int, int, str, str]] = []
    for token, kind, score in zip(vocab.tokens, vocab.types, scores, strict=True):
        if kind in (_UNKNOWN, _CONTROL, _BYTE):
            continue
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocab.ids and right in vocab.ids:
                merges.append((-score, vocab.ids[left], vocab.ids[right], left, right))
    merges.sort()
    return [(left, right) for *_, left, right in merges]


def _bpe(
    vocab: _GgufVocab,
    merges: list[tuple[str, str]],
    *,
    ignore_merges: bool = False,
    byte_fallback: bool = False,
    fuse_unk: bool = False,
    unk_token: str | None = None,
) -> models.BPE:
    try:
        return models.BPE(
            vocab.ids,
            merges,
            ignore_merges=ignore_merges,
            byte_fallback=byte_fallback,
            fuse_unk=fuse_unk,
            unk_token=unk_token,
        )
    except Exception as error:
        raise vocab.error(f"the merges do not fit the vocabulary: {error}") from error


def _add_special_tokens(tokenizer: FastTokenizer, vocab: _GgufVocab) -> None:
    added = [
        AddedToken(token, special=kind != _USER_DEFINED, normalized=False)
        for token, kind in zip(vocab.tokens, vocab.types, strict=True)
        if kind in (_CONTROL, _USER_DEFINED) or (kind == _UNKNOWN and token)
    ]
    tokenizer.add_tokens(added)


def _add_post_processor(tokenizer: FastTokenizer, vocab: _GgufVocab, adds_bos: bool) -> None:
    wants_bos = vocab.get("add_bos_token", bool)
    bos_id = vocab.token_id("bos") if (adds_bos if wants_bos is None else wants_bos) else None
    eos_id = vocab.token_id("eos") if vocab.get("add_eos_token", bool) else None
    before = [] if bos_id is None else [(vocab.tokens[bos_id], bos_id)]
    after = [] if eos_id is None else [(vocab.tokens[eos_id], eos_id)]
    if before or after:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[*(token for token, _ in before), "$A", *(token for token, _ in after)],
            special_tokens=list(dict.fromkeys([*before, *after])),
        )


def _facts(vocab: _GgufVocab) -> TokenizerFacts:
    roles = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    ids = {role: vocab.token_id(name) for role, name in roles.items()}
    ends = [ids["eos_token"], vocab.token_id("eot"), vocab.token_id("eom")]
    return TokenizerFacts(
        special_tokens={role: vocab.tokens[i] for role, i in ids.items() if i is not None},
        bos_token_id=ids["bos_token"],
        eos_token_ids=tuple(dict.fromkeys(end for end in ends if end is not None)),
        chat_templates=vocab.templates(),
    )
