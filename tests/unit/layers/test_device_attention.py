"""The GPU's attention kernels: on a GPU as they are; elsewhere, with TRITON_INTERPRET=1, by Triton's slow interpreter."""

from __future__ import annotations

import importlib.util
import os
import sys
from types import ModuleType

import pytest
import torch

import aphrodited.layers
from aphrodited.errors import ConfigError
from aphrodited.layers import paged_attention_reference as reference
from aphrodited.layers.attention import AttentionMetadata, as_key_cache
from aphrodited.layers.device_attention import DeviceAttention, load_device_kernels
from aphrodited.layers.paged_attention import UNLIMITED, PagedAttention
from aphrodited.layers.rotary import rotary_table
from tests.support.teacher import BLOCK_SIZE, batch_of

DEVICE = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
# bfloat16 is what a GPU computes in, but the interpreter multiplies its bit patterns
DTYPES = [torch.float32, torch.bfloat16 if DEVICE.type == "cuda" else torch.float16]
TOLERANCES = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}

SHAPES = {  # H, K, D, R
    "grouped heads": (6, 2, 32, 32),
    "one key head per query head, partial rotation": (4, 4, 16, 4),
    "odd head size": (2, 1, 20, 10),
}
BATCHES = {  # lengths, starts
    "decode": ([1] * 4, [0, 15, 16, 70]),
    "prefill and chunks": ([1, 40, 7], [0, 0, 64]),
}


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton comes with builds of torch for CUDA")
    if DEVICE.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("without a GPU Triton needs TRITON_INTERPRET=1, set before torch is loaded")
    return importlib.import_module("aphrodited.layers.paged_attention_triton")


def on_device(metadata: AttentionMetadata) -> AttentionMetadata:
    names = ("positions", "slot_mapping", "block_tables", "cu_seqlens", "context_lens")
    return AttentionMetadata(*(getattr(metadata, name).to(DEVICE) for name in names), metadata.max_query_len)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES.keys())
@pytest.mark.parametrize("window", [UNLIMITED, 33])
@pytest.mark.parametrize("dtype", DTYPES)
def test_kernels_agree_with_the_reference(
    kernels: ModuleType,
    shape: tuple[int, ...],
    batch: tuple[list[int], list[int]],
    window: int,
    dtype: torch.dtype,
) -> None:
    torch.manual_seed(0)
    heads, kv_heads, size, rotary_dim = shape
    metadata = on_device(batch_of(*batch))
    rotary = rotary_table(128, rotary_dim, 10000.0).to(DEVICE)
    cache_shape = (metadata.block_tables.numel(), kv_heads, BLOCK_SIZE, size)
    keys, values = (torch.randn(cache_shape).to(DEVICE, dtype) for _ in range(2))
    qkv = torch.randn(len(metadata.positions), (heads + 2 * kv_heads) * size).to(DEVICE, dtype)

    expected_qkv, expected_keys, expected_values = qkv.clone(), keys.clone(), values.clone()
    reference.rotate_and_store(expected_qkv, rotary, metadata, expected_keys, expected_values)
    expected = qkv.new_zeros(len(qkv), heads * size)
    reference.attend(expected_qkv, metadata, expected_keys, expected_values, window, size**-0.5, expected)

    output = torch.zeros_like(expected)
    kernels.rotate_and_store(qkv, rotary, metadata, keys, values)
    kernels.attend(qkv, metadata, keys, values, window, size**-0.5, output)
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(keys, expected_keys, rtol=tolerance, atol=tolerance)
    assert torch.equal(values, expected_values)
    torch.testing.assert_close(output, expected, rtol=tolerance, atol=tolerance)


def padded_decode() -> AttentionMetadata:
    """One sequence, and one row of padding as a graph has it."""
    metadata = batch_of([1, 1], [17, 0])
    metadata.slot_mapping[1] = -1
    metadata.context_lens[1] = 0
    return metadata


def test_padding_is_stored_nowhere_and_gives_zeros(kernels: ModuleType) -> None:
    metadata = on_device(padded_decode())
    rotary = rotary_table(64, 16, 10000.0).to(DEVICE)
    keys = torch.zeros(4, 2, BLOCK_SIZE, 16, device=DEVICE)
    values = torch.zeros_like(keys)
    qkv = torch.ones(2, (4 + 4) * 16, device=DEVICE)
    output = torch.full((2, 64), torch.nan, device=DEVICE)
    kernels.rotate_and_store(qkv, rotary, metadata, keys, values)
    kernels.attend(qkv, metadata, keys, values, UNLIMITED, 0.25, output)
    assert not output[1].any()
    assert output[0].isfinite().all()
    assert int(values.any(-1).sum()) == 2  # one slot of each key head


def test_the_stand_in_treats_padding_alike() -> None:
    attention = DeviceAttention(4, 16, rotary_table(64, 16, 10000.0), device=torch.device("cpu"), dtype=torch.float32)
    metadata = padded_decode()
    cache = torch.zeros(4, 2, BLOCK_SIZE, 16), torch.zeros(4, 2, BLOCK_SIZE, 16)
    output = attention(torch.ones(2, (4 + 4) * 16), cache, attention.plan(metadata))
    assert not output[1].any()
    assert output[0].isfinite().all()
    assert int(cache[1].any(-1).sum()) == 2


def test_it_agrees_with_the_cpu_s_attention_over_the_same_seam() -> None:
    torch.manual_seed(3)
    rotary = rotary_table(128, 16, 10000.0)
    ours, theirs = DeviceAttention(4, 16, rotary, device=torch.device("cpu"), dtype=torch.float32), PagedAttention(4, 16, rotary)
    metadata = batch_of([20, 1], [3, 30])
    cache = as_key_cache(torch.randn(6, 2, BLOCK_SIZE, 16)), torch.randn(6, 2, BLOCK_SIZE, 16)
    qkv = torch.randn(21, (4 + 4) * 16)
    result = ours(qkv.clone(), (cache[0].clone(), cache[1].clone()), ours.plan(metadata), 9)
    torch.testing.assert_close(result, theirs(qkv, cache, theirs.plan(metadata), 9), rtol=1e-4, atol=1e-5)
    assert not ours.is_exact


def test_a_gpu_without_triton_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aphrodited.layers.paged_attention_triton", None)
    monkeypatch.delattr(aphrodited.layers, "paged_attention_triton", raising=False)
    with pytest.raises(ConfigError, match="Triton"):
        load_device_kernels(torch.device("cuda:0"))
