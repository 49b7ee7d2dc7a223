import pytest
from hypothesis import given
from hypothesis import strategies as st

from aphrodited.errors import RequestError
from aphrodited.tokenizer.special_text import Mask, SpecialText

SPECIAL = ("<a>", "<a>b", "<ab>", ">>", "[X]")
special = SpecialText(SPECIAL)
near_special = st.text("<>ab[X] ", max_size=12)


def hide(text: str) -> str:
    return Mask(special, [text]).hide(text)


def test_split_takes_the_longest_special_text_at_each_place() -> None:
    assert special.split("1<a>b2<ab>") == ["1", "<a>b", "2", "<ab>", ""]
    assert SpecialText([]).split("<a>") == ["<a>"]


def test_ordinary_text_is_handed_through_untouched() -> None:
    mask = Mask(special, [])
    text = "if a < b and c > d: x[0] = '<x>'"
    assert mask.hide(text) is text
    assert not mask.hid_something


def test_values_keep_their_structure() -> None:
    value = {"a": ["<a>", 1, None, {"[X]": True}], "b": ("x",)}
    mask = Mask(special, [value])  # "b" ends the special token "<a>b"
    hidden = mask.hide(value)
    assert hidden["a"][1:3] == [1, None]
    assert hidden["b"] == ["x"]
    assert mask.hide("b") != "b"
    assert "<a>" not in str(hidden)
    assert "[X]" not in str(hidden)
    assert mask.reveal(hidden["a"][0]) == "<a>"


@given(st.lists(near_special, max_size=4))
def test_masked_texts_hold_no_special_text_alone_joined_or_trimmed(texts: list[str]) -> None:
    mask = Mask(special, texts)
    hidden = [mask.hide(text) for text in texts]
    for joined in ("".join(hidden), "".join(text.strip() for text in hidden)):
        assert special.split(joined) == [joined]
    assert mask.reveal("".join(hidden)) == "".join(texts)


@given(text=near_special, around=st.sampled_from(["<", "<a", "x>", "[", ">", ">b", "X]"]))
def test_a_text_neither_begins_nor_ends_a_special_text_of_its_neighbours(text: str, around: str) -> None:
    for joined in (around + hide(text), hide(text) + around):
        assert special.split(joined) == [joined]


def test_a_text_that_uses_private_characters_keeps_them() -> None:
    text = "\U000f0000 and <a> and \U000f0001"
    mask = Mask(special, [text])
    assert mask.reveal(mask.hide(text)) == text


def test_a_text_that_uses_all_private_characters_is_refused() -> None:
    everything = "".join(map(chr, range(0xF0000, 0xFFFFE)))
    with pytest.raises(RequestError, match="every private-use character"):
        Mask(special, [everything]).hide("<a>")


def test_many_special_tokens_with_a_common_beginning_are_found_before_the_test_times_out() -> None:
    reserved = SpecialText(f"<|reserved_special_token_{i}|>" for i in range(2000))
    text = "<|reserved_special_token_" * 20_000
    assert reserved.whole_places(text + "7|>") == {len(text) - len("<|reserved_special_token_")}
    assert reserved.edge_places(text) == {len(text) - len("<|reserved_special_token_")}
