from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from aphrodited.errors import ModelLoadError
from aphrodited.loaders.ggml_types import SUPPORTED_TYPES, supported_type, widen, widen_rows

Kind = gguf.GGMLQuantizationType


@pytest.mark.parametrize("name", [name for name in SUPPORTED_TYPES if not name.endswith("_K")])
def test_values_have_the_same_bits_as_those_of_the_gguf_library(name: str) -> None:
    values = np.random.default_rng(1).normal(size=(7, 96)).astype(np.float32)
    rows = gguf.quantize(values, Kind[name]).view(np.uint8).reshape(7, -1)
    widened = widen(torch.from_numpy(rows), Kind[name])
    assert widened.dtype == torch.float32
    assert torch.equal(widened, torch.from_numpy(gguf.dequantize(rows, Kind[name]).reshape(7, 96)))


@pytest.mark.parametrize("name", SUPPORTED_TYPES)
def test_single_rows_have_the_same_bits(name: str) -> None:
    pytest.importorskip("numba")
    block_values, block_bytes = gguf.GGML_QUANT_SIZES[Kind[name]]
    blocks = np.random.default_rng(5).integers(0, 256, (6, 3, block_bytes), dtype=np.uint8)
    blocks.reshape(18, -1)[:, 1::2] &= 0x3F  # numbers that begin a block stay finite
    table, token_ids = blocks.reshape(6, -1), np.array([4, 0, 4], np.int64)
    rows = widen_rows(table, token_ids, Kind[name])
    assert rows.shape == (3, 3 * block_values)
    assert rows.flags.writeable
    assert rows.tobytes() == widen(torch.from_numpy(table[token_ids]), Kind[name]).numpy().tobytes()


@pytest.mark.parametrize("has_fifth_bit", [False, True], ids=["Q4_K", "Q5_K"])
def test_super_blocks_are_widened_as_their_format_says(has_fifth_bit: bool) -> None:
    """Against the definition, value by value: ggml-quants.c, get_scale_min_k4 and dequantize_row_q4_K, _q5_K."""
    rng = np.random.default_rng(4)
    packed, high, low = (rng.integers(0, 256, size, dtype=np.uint8) for size in (12, 32, 128))
    step, step_of_minima = np.float16(0.013), np.float16(0.27)
    parts = (np.array([step, step_of_minima]).view(np.uint8), packed, *([high] if has_fifth_bit else []), low)
    expected = np.zeros(256, np.float32)
    for i in range(256):
        part, column = i // 32, i % 32
        if part < 4:
            scale, minimum = int(packed[part]) & 63, int(packed[part + 4]) & 63
        else:
            scale = int(packed[part + 4]) & 15 | int(packed[part - 4]) >> 6 << 4
            minimum = int(packed[part + 4]) >> 4 | int(packed[part]) >> 6 << 4
        bits = int(low[part // 2 * 32 + column]) >> (4 if part % 2 else 0) & 15
        if has_fifth_bit:
            bits |= (int(high[column]) >> part & 1) << 4
        expected[i] = np.float32(step) * scale * bits - np.float32(step_of_minima) * minimum
    widened = widen(torch.from_numpy(np.concatenate(parts))[None], Kind.Q5_K if has_fifth_bit else Kind.Q4_K)[0]
    torch.testing.assert_close(widened, torch.from_numpy(expected), rtol=1e-6, atol=1e-6)


def test_six_bit_blocks_are_widened_as_their_format_says() -> None:
    """Against the definition, value by value: ggml-quants.c, dequantize_row_q6_K."""
    rng = np.random.default_rng(3)
    low, high = rng.integers(0, 256, 128, dtype=np.uint8), rng.integers(0, 256, 64, dtype=np.uint8)
    scales, step = rng.integers(-128, 128, 16, dtype=np.int8), np.float16(0.013)
    block = np.concatenate((low, high, scales.view(np.uint8), np.array([step]).view(np.uint8)))
    expected = np.zeros(256, np.float32)
    for i in range(256):
        half, quarter, column = i // 128, i % 128 // 32, i % 32
        nibbles = low[half * 64 + (quarter % 2) * 32 + column]
        bits = (nibbles >> 4 if quarter >= 2 else nibbles & 15) | ((high[half * 32 + column] >> (2 * quarter)) & 3) << 4
        expected[i] = np.float32(step) * scales[i // 16] * (int(bits) - 32)
    torch.testing.assert_close(widen(torch.from_numpy(block)[None], Kind.Q6_K)[0], torch.from_numpy(expected), rtol=1e-6, atol=0)


def test_types_that_are_not_supported_are_named_with_their_tensor() -> None:
    with pytest.raises(ModelLoadError, match=r"a\.gguf: tensor x has the type IQ2_XS; supported are F32, F16"):
        supported_type(Kind.IQ2_XS, "a.gguf: tensor x")
    with pytest.raises(ModelLoadError, match=r"a\.gguf: tensor x has the unknown type 999"):
        supported_type(999, "a.gguf: tensor x")
