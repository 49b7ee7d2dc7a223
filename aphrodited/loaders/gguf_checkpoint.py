"""A GGUF file as a Checkpoint: quantised tensors are widened when they are read, names and layouts translated.

The embedding stays quantised in memory; only the rows of a batch's tokens are widened.
Source of names and layouts: llama.cpp's convert_hf_to_gguf.py, whose changes are undone here.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aphrodited.errors import ModelLoadError
from aphrodited.gguf_file import GgufHead, TensorEntry, read_head
from aphrodited.layers.embedding import Embedding
from aphrodited.layers.rotary import FactorScaling
from aphrodited.loaders.ggml_types import supported_type, widen, widen_rows
from aphrodited.loaders.gguf_config import TOKEN_TYPES, num_used_tokens, read_gguf_architecture
from aphrodited.loaders.gguf_names import ROTARY_FACTORS, hf_name
from aphrodited.loaders.identity import file_identity
from aphrodited.loaders.vocabulary import fit_to_tokenizer
from aphrodited.models.config import Architecture, ModelArchitecture


class GgufCheckpoint:
    """The tensors of one file. Raises ModelLoadError for a file that is truncated, damaged or not supported."""

    def __init__(self, path: Path) -> None:
        head = read_head(path, _is_wanted)
        config = fit_to_tokenizer(read_gguf_architecture(path, head), num_used_tokens(head))
        self.identity = file_identity(path)
        self._path = path
        self._entries = {hf_name(config.architecture, entry.name): entry for entry in head.tensors}
        file = np.memmap(path, np.uint8, "c")  # shared with other engines: never written, so never copied
        self._data = {name: _slice_tensor(path, file, head, entry) for name, entry in self._entries.items()}
        self.shapes = {name: entry.shape for name, entry in self._entries.items() if name != ROTARY_FACTORS}
        self.config: ModelArchitecture = self._with_rotary_factors(config)

    def describe(self, name: str) -> str:
        entry = self._entries.get(name)
        return f"{self._path}: tensor {entry.name if entry else name}"

    def read(self, name: str) -> Tensor:
        return self._to_hf_layout(name, widen(self._data[name], self._type(name)).view(self.shapes[name]))

    def read_embedding(self, name: str) -> Embedding:
        return QuantizedEmbedding(self._data[name], self._type(name))

    def _type(self, name: str) -> gguf.GGMLQuantizationType:
        return gguf.GGMLQuantizationType(self._entries[name].ggml_type)

    def _with_rotary_factors(self, config: ModelArchitecture) -> ModelArchitecture:
        entry = self._entries.get(ROTARY_FACTORS)
        if entry is None:
            return config
        if config.rope_scaling is not None or entry.shape != (config.rotary_dim // 2,):
            raise ModelLoadError(f"{self.describe(ROTARY_FACTORS)} does not fit the metadata about rope")
        factors = widen(self._data[ROTARY_FACTORS], self._type(ROTARY_FACTORS))[0].tolist()
        if not all(math.isfinite(factor) and factor > 0 for factor in factors):
            raise ModelLoadError(f"{self.describe(ROTARY_FACTORS)} has values that are not positive: damaged file?")
        return replace(config, rope_scaling=FactorScaling(tuple(factors)))

    def _to_hf_layout(self, name: str, tensor: Tensor) -> Tensor:
        config = self.config  # Qwen's files keep the halves apart, as Hugging Face does
        if config.architecture is Architecture.LLAMA and ".q_proj." in name:
            return _split_rotary_pairs(tensor, config.num_heads)
        if config.architecture is Architecture.LLAMA and ".k_proj." in name:
            return _split_rotary_pairs(tensor, config.num_kv_heads)
        if config.architecture is Architecture.GPT_NEOX and ".query_key_value." in name:
            # [3, H, D] rows to [H, 3, D]
            grouped = tensor.view(3, config.num_heads, config.head_dim, -1).transpose(0, 1)
            return grouped.reshape(tensor.shape)
        return tensor


class QuantizedEmbedding(Embedding):
    """A table of which only the rows that are asked for are widened."""

    def __init__(self, rows: Tensor, ggml_type: gguf.GGMLQuantizationType) -> None:
        self._rows, self._table = rows, rows.numpy()  # uint8 [V, bytes of a row]
        self._ggml_type = ggml_type

    def __call__(self, token_ids: Tensor) -> Tensor:
        return widen(self._rows[token_ids], self._ggml_type)

    def rows(self, token_ids: NDArray[np.int64]) -> NDArray[np.float32]:
        return widen_rows(self._table, token_ids, self._ggml_type)


def _is_wanted(key: str) -> bool:
    """Everything but the vocabulary's text."""
    return not key.startswith("tokenizer.") or key.endswith("_token_id") or key == TOKEN_TYPES


def _slice_tensor(path: Path, file: NDArray[np.uint8], head: GgufHead, entry: TensorEntry) -> Tensor:
    """The bytes of a tensor, in place: uint8 [rows, bytes of a row]."""
    ggml_type = supported_type(entry.ggml_type, f"{path}: tensor {entry.name}")
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
    return torch.from_numpy(file[start:end]).view(num_rows, row_bytes)


def _split_rotary_pairs(tensor: Tensor, num_heads: int) -> Tensor:
    """Rows of each head from pairs side by side (x0 y0 x1 y1 …) to halves (x0 x1 … y0 y1 …)."""
    pairs = tensor.view(num_heads, tensor.shape[0] // num_heads // 2, 2, -1)
    return pairs.transpose(1, 2).reshape(tensor.shape)
