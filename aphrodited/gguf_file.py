"""Reads the head of a GGUF file: its metadata and the list of its tensors, without touching a tensor's data.

Written out here because vocabularies are 50,000-entry string arrays and processes must start soon and stay small:
the gguf library makes several numpy views per string (3 s and 190 MB for SmolLM2; this takes 0.1 s and the strings).
Every length is checked against the file before it is believed. Knows nothing of what keys and tensors mean.

Source: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3, little-endian)
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from aphrodited.errors import ModelLoadError

Scalar = int | float | bool | str
Value = Scalar | list[int] | list[float] | list[bool] | list[str]

MAGIC_NUMBER = int.from_bytes(b"GGUF", "little")
SUPPORTED_VERSIONS = (2, 3)
MAX_KEYS = 65_536
MAX_KEY_BYTES = 65_535
MAX_TENSORS = 1_048_576
MAX_DIMENSIONS = 4  # GGML_MAX_DIMS
DEFAULT_ALIGNMENT = 32

_ALIGNMENT_KEY = "general.alignment"
_Parsed = TypeVar("_Parsed")
_FORMAT_OF_TYPE = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TYPE_STRING = 8
_TYPE_ARRAY = 9

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_HEADER = struct.Struct("<IIQQ")


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor of the list. shape: as torch writes it, slowest dimension first.  offset: bytes from data_start."""

    name: str
    shape: tuple[int, ...]
    ggml_type: int
    offset: int


@dataclass(frozen=True, slots=True)
class GgufHead:
    """The values of the wanted keys, and every tensor in the order of the file. Sizes and offsets are in bytes."""

    metadata: dict[str, Value]
    tensors: list[TensorEntry]
    data_start: int
    file_size: int


def read_metadata(path: Path, wanted: Callable[[str], bool]) -> dict[str, Value]:
    """The values of the keys for which `wanted` is true.

    Raises ModelLoadError, with the file and the key at which it is damaged or not understood.
    """
    return _read(path, lambda cursor: _read_keys(cursor, _read_counts(cursor)[1], wanted))


def read_head(path: Path, wanted: Callable[[str], bool]) -> GgufHead:
    """The values of the keys for which `wanted` is true, and the list of tensors.

    Raises ModelLoadError, with the file and the key or tensor at which it is damaged or not understood.
    """
    return _read(path, lambda cursor: _read_head(cursor, wanted))


class _DamagedError(Exception):
    pass


def _read(path: Path, parse: Callable[[_Cursor], _Parsed]) -> _Parsed:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return parse(_Cursor(data))
    except _DamagedError as error:
        raise ModelLoadError(f"{path}: {error}") from None
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read: {error.strerror}") from error
    except ValueError:
        raise ModelLoadError(f"{path}: is empty") from None


def _read_counts(cursor: _Cursor) -> tuple[int, int]:
    """Number of tensors and number of keys, after a look at magic and version."""
    magic, version, num_tensors, num_keys = cursor.unpack(_HEADER, "header")
    if magic != MAGIC_NUMBER:
        raise _DamagedError("is not a GGUF file")
    if version not in SUPPORTED_VERSIONS:
        raise _DamagedError(f"GGUF version {version} is not supported (2 and 3, little-endian, are)")
    for count, limit, what in ((num_keys, MAX_KEYS, "metadata keys"), (num_tensors, MAX_TENSORS, "tensors")):
        if count > limit:
            raise _DamagedError(f"claims {count} {what}; at most {limit} are allowed")
    return num_tensors, num_keys


def _read_keys(cursor: _Cursor, num_keys: int, wanted: Callable[[str], bool]) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for index in range(num_keys):
        key = cursor.string(f"name of key {index}", limit=MAX_KEY_BYTES)
        value = cursor.value(key, keep=wanted(key))
        if value is not None:
            values[key] = value
    return values


def _read_head(cursor: _Cursor, wanted: Callable[[str], bool]) -> GgufHead:
    num_tensors, num_keys = _read_counts(cursor)
    metadata = _read_keys(cursor, num_keys, lambda key: key == _ALIGNMENT_KEY or wanted(key))
    tensors = [_read_tensor_entry(cursor, index) for index in range(num_tensors)]
    alignment = metadata.get(_ALIGNMENT_KEY, DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise _DamagedError(f"{_ALIGNMENT_KEY} is {alignment!r}, expected a positive integer")
    data_start = -(-cursor.position // alignment) * alignment
    return GgufHead(metadata, tensors, data_start, cursor.size)


def _read_tensor_entry(cursor: _Cursor, index: int) -> TensorEntry:
    name = cursor.string(f"name of tensor {index}", limit=MAX_KEY_BYTES)
    (num_dimensions,) = cursor.unpack(_U32, name)
    if num_dimensions > MAX_DIMENSIONS:
        raise _DamagedError(f"tensor {name} claims {num_dimensions} dimensions; at most {MAX_DIMENSIONS} are allowed")
    dimensions = [cursor.unpack(_U64, name)[0] for _ in range(num_dimensions)]  # fastest first
    (ggml_type,) = cursor.unpack(_U32, name)
    (offset,) = cursor.unpack(_U64, name)
    return TensorEntry(name, tuple(reversed(dimensions)), ggml_type, offset)


class _Cursor:
    """A position in the file that refuses to leave it."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0
        self.size = len(data)

    @property
    def position(self) -> int:
        return self._at

    def unpack(self, layout: struct.Struct, what: str) -> tuple[int, ...]:
        start = self._advance(layout.size, what)
        return layout.unpack_from(self._data, start)

    def string(self, what: str, *, limit: int | None = None) -> str:
        (length,) = self.unpack(_U64, what)
        if limit is not None and length > limit:
            raise _DamagedError(f"{what} is {length} bytes long; at most {limit} are allowed")
        start = self._advance(length, what)
        try:
            return self._data[start : start + length].decode("utf-8")
        except UnicodeDecodeError:
            raise _DamagedError(f"{what} is not valid UTF-8") from None

    def value(self, key: str, *, keep: bool) -> Value | None:
        """The next value, or None (after stepping over it) if it is not to be kept."""
        (kind,) = self.unpack(_U32, key)
        if kind == _TYPE_ARRAY:
            return self._array(key, keep=keep)
        if kind == _TYPE_STRING:
            strings = self._strings(1, key, keep=keep)
            return strings[0] if strings else None
        (scalar,) = self._scalars(kind, 1, key)
        return scalar if keep else None

    def _array(self, key: str, *, keep: bool) -> Value | None:
        (kind,) = self.unpack(_U32, key)
        (length,) = self.unpack(_U64, key)
        if length > self.size:
            raise _DamagedError(f"{key} claims {length} elements, more than the file has bytes")
        if kind == _TYPE_STRING:
            return self._strings(length, key, keep=keep)
        scalars = self._scalars(kind, length, key)
        return list(scalars) if keep else None

    def _scalars(self, kind: int, count: int, key: str) -> tuple[int, ...]:
        try:
            layout = struct.Struct(f"<{count}{_FORMAT_OF_TYPE[kind]}")
        except KeyError:
            raise _DamagedError(f"{key} has the unknown value type {kind}") from None
        return self.unpack(layout, key)

    def _strings(self, count: int, key: str, *, keep: bool) -> list[str] | None:
        if keep:
            return [self.string(key) for _ in range(count)]
        for _ in range(count):
            (length,) = self.unpack(_U64, key)
            self._advance(length, key)
        return None

    def _advance(self, num_bytes: int, what: str) -> int:
        start = self._at
        if num_bytes > self.size - start:
            raise _DamagedError(f"is truncated or damaged: {what} needs {num_bytes} bytes at {start}, the file ends at {self.size}")
        self._at = start + num_bytes
        return start
