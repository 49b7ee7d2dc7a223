"""A Hugging Face directory of safetensors files, single or sharded, as a Checkpoint.

Files are mapped, not read: a tensor costs memory only where it is copied or converted.
Source: https://huggingface.co/docs/safetensors (format)
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from aphrodited.errors import ModelLoadError
from aphrodited.layers.embedding import DenseEmbedding, Embedding
from aphrodited.loaders.identity import file_identity
from aphrodited.loaders.vocabulary import count_token_ids, fit_to_tokenizer
from aphrodited.models.config import ModelArchitecture
from aphrodited.models.hf_config import read_architecture

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_HEADER_BYTES = 100_000_000  # the format's own limit
FLOAT_TYPES = ("F32", "F16", "BF16")


@dataclass(frozen=True, slots=True)
class _Entry:
    path: Path
    shape: tuple[int, ...]


class SafetensorsCheckpoint:
    """The tensors of one directory. Raises ModelLoadError for a file that is missing, truncated or damaged."""

    def __init__(self, directory: Path) -> None:
        self.config: ModelArchitecture = fit_to_tokenizer(read_architecture(directory), count_token_ids(directory))
        self._directory = directory
        index = _read_index(directory)
        paths = sorted({directory / file for file in index.values()}) if index else [_single_file(directory)]
        self._entries = {name: entry for path in paths for name, entry in _read_entries(path).items()}
        for name, file in (index or {}).items():
            if name not in self._entries or self._entries[name].path != directory / file:
                raise ModelLoadError(f"{directory / file}: tensor {name} is missing, though {INDEX_FILE} names it")
        self._files = {path: _open(path) for path in paths}
        self.shapes = {name: entry.shape for name, entry in self._entries.items()}
        self.identity = hashlib.sha256("\n".join(map(file_identity, paths)).encode()).hexdigest()

    def describe(self, name: str) -> str:
        entry = self._entries.get(name)
        return f"{entry.path if entry else self._directory}: tensor {name}"

    def read(self, name: str) -> Tensor:
        try:
            tensor: Tensor = self._files[self._entries[name].path].get_tensor(name)
        except SafetensorError as error:
            raise ModelLoadError(f"{self.describe(name)} cannot be read: {error}") from None
        return tensor

    def read_embedding(self, name: str) -> Embedding:
        return DenseEmbedding(self.read(name))


def _single_file(directory: Path) -> Path:
    files = sorted(directory.glob("*.safetensors"))
    if directory / SINGLE_FILE in files:
        return directory / SINGLE_FILE
    if len(files) == 1:
        return files[0]
    if files:
        raise ModelLoadError(f"{directory}: has {len(files)} .safetensors files but no {INDEX_FILE} to say what is in them")
    raise ModelLoadError(
        f"{directory}: has no .safetensors file; other formats of this directory layout are never read, convert them first"
    )


def _read_index(directory: Path) -> dict[str, str] | None:
    """Tensor name to file name, or None if there is no index."""
    path = directory / INDEX_FILE
    if not path.exists():
        return None
    try:
        weight_map = json.loads(path.read_text("utf-8"))["weight_map"]
    except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
        raise ModelLoadError(f"{path}: is not a valid index: {error!r}") from None
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelLoadError(f"{path}: weight_map is not an object of tensor names and files")
    for name, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise ModelLoadError(f"{path}: tensor {name} is in {file!r}, expected the name of a file beside the index")
    return weight_map


def _read_entries(path: Path) -> dict[str, _Entry]:
    """The tensors that the header of a file lists, each checked to lie within the file."""
    try:
        file_size = path.stat().st_size
        with path.open("rb") as file:
            header_size = int.from_bytes(file.read(8), "little")
            if file_size < 8 or header_size > min(MAX_HEADER_BYTES, file_size - 8):
                raise ModelLoadError(f"{path}: is truncated or not a safetensors file: its header does not fit")
            header = json.loads(file.read(header_size))
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise ModelLoadError(f"{path}: is damaged: its header is not a JSON object")
    tensors = {name: value for name, value in header.items() if name != "__metadata__"}
    return {name: _read_entry(path, name, value, file_size - 8 - header_size) for name, value in tensors.items()}


def _read_entry(path: Path, name: str, value: dict[str, Any], data_size: int) -> _Entry:
    try:
        dtype, shape, end = value["dtype"], tuple(map(int, value["shape"])), int(value["data_offsets"][1])
    except (KeyError, IndexError, TypeError, ValueError, OverflowError):
        raise ModelLoadError(f"{path}: tensor {name} has a damaged header entry") from None
    if end > data_size:
        raise ModelLoadError(f"{path}: is truncated: tensor {name} ends {end - data_size} bytes after the file")
    if dtype not in FLOAT_TYPES:
        raise ModelLoadError(f"{path}: tensor {name} has the type {dtype}; supported are {', '.join(FLOAT_TYPES)}")
    return _Entry(path, shape)


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ModelLoadError(f"{path}: is damaged: {error}") from None
