"""A GGUF file as a Checkpoint: quantised tensors are widened when they are read, names and layouts translated.

The embedding stays quantised in memory; only the rows of a batch's tokens are widened.
Source of names and layouts: llama.cpp's convert_hf_to_gguf.py, whose changes are undone here.
"""

from __future__ import annotations

import math
from pathlib import Path

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aphrodited.errors import ModelLoadError
from aphrodited.gguf_file import GgufHead, TensorEntry, read_head
from aphrodited.layers.embedding import Embedding
from aphrodited.loaders.gguf_config import read_gguf_architecture
from aphrodited.loaders.gguf_names import hf_name
from aphrodited.loaders.identity import file_identity
from aphrodited.models.config import Architecture, ModelArchitecture

SUPPORTED_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q6_K")


class GgufCheckpoint:
    """The tensors of one file. Raises ModelLoadError for a file that is truncated, damaged or not supported."""

    def __init__(self, path: Path) -> None:
        head = read_head(path, _is_wanted)
        self.config: ModelArchitecture = read_gguf_architecture(path, head)
        self.identity = file_identity(path)
        self._path = path
        self._entries = {hf_name(self.config.architecture, entry.name): entry for entry in head.tensors}
        self.shapes = {name: entry.shape for name, entry in self._entries.items()}
        file = np.memmap(path, np.uint8, "r")
        self._data = {name: _slice_tensor(path, file, head, entry) for name, entry in self._entries.items()}

    def describe(self, name: str) -> str:
        entry = self._entries.get(name)
        return f"{self._path}: tensor {entry.name if entry else name}"

    def read(self, name: str) -> Tensor:
        values = _widen(self._data[name], self._entries[name])
        return self._to_hf_layout(name, torch.from_numpy(values).view(self.shapes[name]))

    def read_embedding(self, name: str) -> Embedding:
        return QuantizedEmbedding(self._data[name], self._entries[name])

    def _to_hf_layout(self, name: str, tensor: Tensor) -> Tensor:
        config = self.config
        if config.architecture is Architecture.LLAMA and ".q_proj." in name:
            return _split_rotary_pairs(tensor, config.num_heads)
        if config.architecture is Architecture.LLAMA and ".k_proj." in name:
            return _split_rotary_pairs(tensor, config.num_kv_heads)
        if config.architecture is Architecture.GPT_NEOX and ".query_key_value." in name:
            # [3, H, D] rows to [H, 3, D]
            grouped = tensor.view(3, config.num_heads, config.head_dim, -1).transpose(0, 1)
            return grouped.reshape(tensor.shape)
        return tensor


class QuantizedEmbedding:
    """A table of which only the rows that are asked for are widened."""

    def __init__(self, rows: NDArray[np.uint8], entry: TensorEntry) -> None:
        self._rows = rows  # [V, bytes of a row]
        self._entry = entry

    def __call__(self, token_ids: Tensor) -> Tensor:
        return torch.from_numpy(_widen(self._rows[token_ids.numpy()], self._entry))


def _is_wanted(key: str) -> bool:
    """Everything but the vocabulary and other long lists."""
    return not key.startswith("tokenizer.") or key.endswith("_token_id")


def _slice_tensor(path: Path, file: NDArray[np.uint8], head: GgufHead, entry: TensorEntry) -> NDArray[np.uint8]:
    """The bytes of a tensor, in place: [rows, bytes of a row]."""
    try:
        ggml_type = gguf.GGMLQuantizationType(entry.ggml_type)
    except ValueError:
        raise ModelLoadError(f"{path}: tensor {entry.name} has the unknown type {entry.ggml_type}") from None
    if ggml_type.name not in SUPPORTED_TYPES:
        raise ModelLoadError(
            f"{path}: tensor {entry.name} has the type {ggml_type.name}; supported are {', '.join(SUPPORTED_TYPES)}"
        )
    block_values, block_bytes = gguf.GGML_QUANT_SIZES[ggml_type]
    row_values = entry.shape[-1] if entry.shape else 1
    if row_values % block_values:
        raise ModelLoadError(f"{path}: tensor {entry.name}: rows of {row_values} values do not fit {ggml_type.name}")
    num_rows, row_bytes = math.prod(entry.shape[:-1]), row_values // block_values * block_bytes
    start = head.data_start + entry.offset
    end = start + num_rows * row_bytes
    if end > head.file_size:
        raise ModelLoadError(
            f"{path}: is truncated: tensor {entry.name} ends {end - head.file_size} bytes after the file"
        )
    return file[start:end].reshape(num_rows, row_bytes)


def _widen(rows: NDArray[np.uint8], entry: TensorEntry) -> NDArray[np.float32]:
    """float32 [rows, values of a row], newly allocated."""
    ggml_type = gguf.GGMLQuantizationType(entry.ggml_type)
    if ggml_type == gguf.GGMLQuantizationType.F32:
        return np.array(rows).view(np.float32)
    if ggml_type == gguf.GGMLQuantizationType.F16:
        return np.array(rows).view(np.float16).astype(np.float32)
    values: NDArray[np.float32] = gguf.dequantize(np.asarray(rows), ggml_type)
    return values


def _split_rotary_pairs(tensor: Tensor, num_heads: int) -> Tensor:
    """Rows of each head from pairs side by side (x0 y0 x1 y1 …) to halves (x0 x1 … y0 y1 …)."""
    pairs = tensor.view(num_heads, tensor.shape[0] // num_heads // 2, 2, -1)
    return pairs.transpose(1, 2).reshape(tensor.shape)
