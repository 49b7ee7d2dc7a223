from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as FastTokenizer

from aphrodited.errors import ModelLoadError
from aphrodited.tokenizer.gguf_vocab import convert_gguf
from tests.support.tiny_gguf import USER_DEFINED, byte_level_metadata, sentencepiece_metadata, write_gguf
from tests.support.tiny_models import CHAT_TEMPLATE, build_tiny_tokenizer

TEXTS = ["the quick brown fox", "  two  spaces\n\n and\ttabs", "it's 12345 o'clock", "日本語 🎉", "x<=>y", ""]
PIECES = {
    "▁": -1.0, "a": -2.0, "b": -3.0, "c": -4.0, "ab": -5.0, "▁a": -6.0, "bc": -7.0, "abc": -8.0, "▁ab": -9.0, "aa": -10.0,
    "▁abc": -11.0, "ca": -12.0,
}  # fmt: skip


def convert(tmp_path: Path, metadata: dict[str, Any]) -> FastTokenizer:
    return convert_gguf(write_gguf(tmp_path / "model.gguf", metadata))[0]


def words_of(fast: FastTokenizer, text: str) -> list[str]:
    return [word for word, _ in fast.pre_tokenizer.pre_tokenize_str(text)]


def test_byte_level_gives_the_ids_of_the_tokenizer_it_was_made_from(tmp_path: Path) -> None:
    converted, original = convert(tmp_path, byte_level_metadata("gpt-2")), build_tiny_tokenizer()
    for text in [*TEXTS, "<|im_start|>user<|im_end|>"]:
        assert converted.encode(text).ids == original.encode(text).ids
        assert converted.decode(converted.encode(text).ids) == original.decode(original.encode(text).ids)


@pytest.mark.parametrize(
    ("pre", "words"),
    [
        ("gpt-2", ["It", "'s", "Ġ12345", "Ċ", "Ċ", "ok", "ĠĠ", "Ġ!"]),
        ("smollm", ["It", "'s", "Ġ", "1", "2", "3", "4", "5", "Ċ", "Ċ", "ok", "ĠĠ", "Ġ!"]),
        ("llama-bpe", ["It", "'s", "Ġ", "123", "45", "ĊĊ", "ok", "ĠĠ", "Ġ!"]),
        ("qwen2", ["It", "'s", "Ġ", "1", "2", "3", "4", "5", "ĊĊ", "ok", "ĠĠ", "Ġ!"]),
        ("tekken", ["It", "'s", "Ġ", "1", "2", "3", "4", "5", "ĊĊ", "ok", "ĠĠ", "Ġ!"]),
        ("default", ["It", "'", "s", "Ġ", "123", "45", "Ċ", "Ċ", "ok", "ĠĠĠ", "!"]),
    ],
)
def test_each_kind_of_pre_tokenizer_cuts_words_its_own_way(tmp_path: Path, pre: str, words: list[str]) -> None:
    assert words_of(convert(tmp_path, byte_level_metadata(pre)), "It's 12345\n\nok   !") == words


def test_an_unknown_pre_tokenizer_is_refused_with_those_that_are_known(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"model\.gguf: pre-tokenizer 'martian'.*llama-bpe.*smollm"):
        convert(tmp_path, byte_level_metadata("martian"))


def test_a_bos_token_is_added_only_where_the_file_or_its_kind_asks_for_one(tmp_path: Path) -> None:
    gpt2, llama3 = byte_level_metadata("gpt-2"), byte_level_metadata("llama-bpe")
    assert convert(tmp_path, gpt2).encode("a").ids[0] != 1
    assert convert(tmp_path, llama3).encode("a").ids[0] == 1
    assert convert(tmp_path, llama3 | {"tokenizer.ggml.add_bos_token": False}).encode("a").ids[0] != 1
    both = gpt2 | {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}
    assert convert(tmp_path, both).encode("a").ids[:: len("abc") - 1] == [1, 2]


def test_user_defined_tokens_are_whole_but_not_special(tmp_path: Path) -> None:
    metadata = byte_level_metadata()
    metadata["tokenizer.ggml.token_type"][300] = USER_DEFINED
    added = convert(tmp_path, metadata).get_added_tokens_decoder()
    assert sorted(added) == [0, 1, 2, 300]
    assert not added[300].special


def test_the_facts_are_those_of_the_file(tmp_path: Path) -> None:
    metadata = byte_level_metadata() | {
        "tokenizer.ggml.eot_token_id": 0,
        "tokenizer.chat_template.tool_use": "tools",
    }
    _, facts = convert_gguf(write_gguf(tmp_path / "model.gguf", metadata))
    assert facts.special_tokens == {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    assert facts.bos_token_id == 1
    assert facts.eos_token_ids == (2, 0)
    assert facts.chat_templates == {"default": CHAT_TEMPLATE, "tool_use": "tools"}


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"tokenizer.ggml.model": None}, "has no tokenizer.ggml.model"),
        ({"tokenizer.ggml.model": "bert"}, "tokenizer model 'bert' is not supported"),
        ({"tokenizer.ggml.tokens": None}, "has no tokenizer.ggml.tokens"),
        ({"tokenizer.ggml.tokens": [1, 2]}, "should list values of type str"),
        ({"tokenizer.ggml.tokens": ["a", "a"]}, "2 tokens but 320 token types"),
        ({"tokenizer.ggml.tokens": ["a"] * 320}, "the same token twice"),
        ({"tokenizer.ggml.merges": None}, "has no tokenizer.ggml.merges"),
        ({"tokenizer.ggml.merges": ["ab"]}, "'ab', which is not two tokens"),
        ({"tokenizer.ggml.merges": ["no such"]}, "merges do not fit the vocabulary"),
        ({"tokenizer.ggml.eos_token_id": 320}, "eos_token_id is 320, outside the vocabulary of 320"),
        ({"tokenizer.ggml.eos_token_id": "2"}, "eos_token_id should be a int"),
    ],
)
def test_a_file_with_an_unusable_tokenizer_says_what_is_wrong(
    tmp_path: Path, change: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ModelLoadError, match=complaint) as caught:
        convert(tmp_path, byte_level_metadata() | change)
    assert "model.gguf" in str(caught.value)


def sentencepiece_reference(text: str, metadata: dict[str, Any]) -> list[int]:
    """SentencePiece's own loop: join the neighbours whose union scores best, leftmost first, until none is left."""
    tokens, scores = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
    ids = {token: i for i, token in enumerate(tokens)}
    pieces = list("▁" + text.replace(" ", "▁"))
    while True:
        unions = [
            (-scores[ids[left + right]], place)
            for place, (left, right) in enumerate(pairwise(pieces))
            if left + right in ids
        ]
        if not unions:
            break
        _, place = min(unions)
        pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]
    return [
        token_id
        for piece in pieces
        for token_id in ([ids[piece]] if piece in ids else [ids[f"<0x{byte:02X}>"] for byte in piece.encode()])
    ]


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> tuple[FastTokenizer, dict[str, Any]]:
    metadata = sentencepiece_metadata(PIECES)
    return convert(tmp_path_factory.mktemp("spm"), metadata), metadata


@given(st.text("abc é\n", min_size=1, max_size=12))
@settings(deadline=None)
def test_sentencepiece_gives_the_ids_of_sentencepieces_own_loop(
    sentencepiece: tuple[FastTokenizer, dict[str, Any]], text: str
) -> None:
    fast, metadata = sentencepiece
    assert fast.encode(text, add_special_tokens=False).ids == sentencepiece_reference(text, metadata)


@given(st.text(max_size=20).filter(lambda text: "▁" not in text))
@settings(deadline=None)
def test_sentencepiece_decodes_to_the_text_it_was_given(
    sentencepiece: tuple[FastTokenizer, dict[str, Any]], text: str
) -> None:
    fast, _ = sentencepiece
    ids = fast.encode(text).ids
    assert ids[0] == 1
    assert fast.decode(ids) == text


def test_sentencepiece_without_scores_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"has no tokenizer\.ggml\.scores"):
        convert(tmp_path, sentencepiece_metadata(PIECES) | {"tokenizer.ggml.scores": None})
