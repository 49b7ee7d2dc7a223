import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aphrodited.errors import ModelLoadError
from aphrodited.gguf_file import read_metadata
from tests.support.tiny_gguf import byte_level_metadata, write_gguf


def everything(_key: str) -> bool:
    return True


@pytest.fixture
def small_file(tmp_path: Path) -> Path:
    metadata = {"an.int": 7, "a.bool": True, "a.float": 0.5, "a.text": "héllo", "ints": [1, -2], "texts": ["a", "", "日本"]}
    return write_gguf(tmp_path / "small.gguf", metadata)


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def header(num_keys: int = 1, version: int = 3, magic: bytes = b"GGUF") -> bytes:
    return magic + struct.pack("<IQQ", version, 0, num_keys)


def test_every_kind_of_value_is_read_as_it_was_written(small_file: Path) -> None:
    assert read_metadata(small_file, everything) == {
        "general.architecture": "llama",
        "an.int": 7,
        "a.bool": True,
        "a.float": 0.5,
        "a.text": "héllo",
        "ints": [1, -2],
        "texts": ["a", "", "日本"],
    }


def test_only_the_wanted_keys_are_kept(small_file: Path) -> None:
    assert read_metadata(small_file, lambda key: key.startswith("a.")) == {
        "a.bool": True,
        "a.float": 0.5,
        "a.text": "héllo",
    }


def test_a_file_cut_anywhere_is_an_error_that_names_it(small_file: Path, tmp_path: Path) -> None:
    whole = small_file.read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in range(len(whole.rstrip(b"\0"))):
        cut.write_bytes(whole[:length])
        with pytest.raises(ModelLoadError, match=r"cut\.gguf"):
            read_metadata(cut, everything)


@given(place=st.integers(0, 400), byte=st.integers(0, 255), wanted=st.booleans())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200, deadline=None)
def test_a_damaged_byte_gives_values_or_a_load_error_and_nothing_else(
    small_file: Path, place: int, byte: int, wanted: bool
) -> None:
    content = bytearray(small_file.read_bytes())
    content[place % len(content)] = byte
    damaged = small_file.with_name("damaged.gguf")
    damaged.write_bytes(content)
    try:
        read_metadata(damaged, lambda _key: wanted)
    except ModelLoadError as error:
        assert "damaged.gguf" in str(error)  # noqa: PT017 - either outcome is right


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "is empty"),
        (header(magic=b"PK\3\4"), "is not a GGUF file"),
        (header(version=1), "version 1 is not supported"),
        (header(num_keys=2**40), "metadata keys"),
        (header() + string("x" * 70_000), "at most 65535"),
        (header() + string("key") + struct.pack("<I", 99), "key has the unknown value type 99"),
        (header() + string("key") + struct.pack("<IIQ", 9, 4, 2**60), "key claims"),
        (header() + string("key") + struct.pack("<IIQ", 9, 9, 1), "key has the unknown value type 9"),
        (header() + string("key") + struct.pack("<IQ", 8, 2**62), "truncated or damaged: key"),
        (header() + string("key") + struct.pack("<IQ", 8, 2) + b"\xff\xfe", "key is not valid UTF-8"),
    ],
)
def test_a_file_that_lies_is_refused_with_the_reason(tmp_path: Path, content: bytes, complaint: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelLoadError, match=complaint) as caught:
        read_metadata(path, everything)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_a_load_error(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="No such file"):
        read_metadata(tmp_path / "none.gguf", everything)


def test_large_string_arrays_that_nobody_wants_are_stepped_over(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "model.gguf", byte_level_metadata())
    assert read_metadata(path, lambda key: key.endswith("eos_token_id")) == {"tokenizer.ggml.eos_token_id": 2}
