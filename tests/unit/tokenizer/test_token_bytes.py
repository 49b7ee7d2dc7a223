import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models

from aphrodited.errors import ModelLoadError
from aphrodited.tokenizer.token_bytes import TokenBytes
from tests.support.tiny_models import build_tiny_tokenizer


def word_tokenizer(*words: str) -> Tokenizer:
    return Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0]))


def test_byte_level_tokens_give_every_byte() -> None:
    fast = build_tiny_tokenizer()
    table = TokenBytes(fast)
    single_bytes = {table[i] for i in range(3, 259)}
    assert single_bytes == {bytes([byte]) for byte in range(256)}
    assert not table.begins_with_space


def test_an_added_token_is_its_own_text_even_where_it_looks_like_the_byte_alphabet() -> None:
    fast = build_tiny_tokenizer()
    fast.add_tokens([AddedToken("é", special=False)])
    table = TokenBytes(fast)
    assert table[fast.token_to_id("é")] == "é".encode()
    assert table[2] == b"<|im_end|>"


def test_ids_outside_the_vocabulary_have_no_bytes() -> None:
    table = TokenBytes(build_tiny_tokenizer())
    assert table[320] == table[2**32] == table[-1] == b""


def test_sentencepiece_tokens_are_bytes_or_pieces() -> None:
    fast = word_tokenizer("<unk>", "<0x0A>", "▁new", "ly")
    fast.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    table = TokenBytes(fast)
    assert [table[i] for i in range(1, 4)] == [b"\n", b" new", b"ly"]
    assert not table.begins_with_space


@pytest.mark.parametrize(
    ("decoder", "begins_with_space"),
    [
        (decoders.Metaspace(prepend_scheme="always"), True),
        (decoders.Metaspace(prepend_scheme="never"), False),
        (decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Strip(" ", 1, 0)]), True),
        (None, True),
    ],
)
def test_whether_a_text_begins_with_a_space_of_its_own_follows_from_the_decoder(
    decoder: decoders.Decoder | None, begins_with_space: bool
) -> None:
    fast = word_tokenizer("<unk>", "a")
    if decoder is not None:
        fast.decoder = decoder
    assert TokenBytes(fast).begins_with_space is begins_with_space


def test_a_decoder_of_another_kind_is_refused() -> None:
    fast = word_tokenizer("<unk>", "a")
    fast.decoder = decoders.WordPiece()
    with pytest.raises(ModelLoadError, match=r"decoder \(WordPiece\) is not supported"):
        TokenBytes(fast)
