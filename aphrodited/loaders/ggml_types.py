"""The number formats of GGUF tensors, widened to float32.

The simple ones are written out in torch (0.3 s for SmolLM2, against 1.9 s) and give the same bits as the gguf library;
the rest is left to that.
Source of the block layouts: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h
"""

from __future__ import annotations

import gguf
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aphrodited.errors import ModelLoadError

SUPPORTED_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")

_PLAIN_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def supported_type(ggml_type: int, tensor: str) -> gguf.GGMLQuantizationType:
    """Raises ModelLoadError, with `tensor` (its file and name), for a type that is not supported."""
    try:
        known = gguf.GGMLQuantizationType(ggml_type)
    except ValueError:
        raise ModelLoadError(f"{tensor} has the unknown type {ggml_type}") from None
    if known.name not in SUPPORTED_TYPES:
        raise ModelLoadError(f"{tensor} has the type {known.name}; supported are {', '.join(SUPPORTED_TYPES)}")
    return known


def widen(rows: Tensor, ggml_type: gguf.GGMLQuantizationType) -> Tensor:
    """float32 [rows, values of a row], newly allocated, for uint8 [rows, bytes of a row]."""
    _, block_bytes = gguf.GGML_QUANT_SIZES[ggml_type]
    blocks = rows.reshape(-1, block_bytes)
    match ggml_type.name:
        case "F32" | "F16" | "BF16" as name:
            return rows.view(_PLAIN_TYPES[name]).to(torch.float32, copy=True)
        case "Q8_0":
            values = blocks[:, 2:].view(torch.int8).float().mul_(_half(blocks, 0))
        case "Q4_0":
            values = _nibbles(blocks[:, 2:]).sub_(8.0).mul_(_half(blocks, 0))
        case "Q4_1":
            values = _nibbles(blocks[:, 4:]).mul_(_half(blocks, 0)).add_(_half(blocks, 2))
        case _:
            values = torch.from_numpy(gguf.dequantize(rows.numpy(), ggml_type))
    return values.view(rows.shape[0], -1)


def widen_rows(
    table: NDArray[np.uint8], token_ids: NDArray[np.int64], ggml_type: gguf.GGMLQuantizationType
) -> NDArray[np.float32]:
    """The same for a few rows of a table, float32 [T, E] for token_ids [T], without torch: that would take ten times as long."""
    from aphrodited.layers.ggml_kernels import KERNELS  # late, see quantized_linear

    kernel = KERNELS.get(ggml_type.name)
    if kernel is None:
        rows: NDArray[np.float32] = gguf.dequantize(table[token_ids], ggml_type)
        return rows
    block_values, block_bytes = gguf.GGML_QUANT_SIZES[ggml_type]
    rows = np.empty((len(token_ids), table.shape[1] // block_bytes * block_values), np.float32)
    kernel(table, token_ids, rows)
    return rows


def _half(blocks: Tensor, offset: int) -> Tensor:
    """The float16 at a byte offset of each block, in float32: [blocks, 1]."""
    return blocks[:, offset : offset + 2].contiguous().view(torch.float16).float()


def _nibbles(packed: Tensor) -> Tensor:
    """The low halves of bytes [blocks, 16], then the high ones, in float32: [blocks, 32]."""
    return torch.cat((packed & 15, packed >> 4), dim=1).float()
