from __future__ import annotations

import os
import random
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from aphrodited.layers import paged_attention
from aphrodited.layers import paged_attention_reference as reference
from aphrodited.layers.attention import AttentionMetadata, as_key_cache
from aphrodited.layers.paged_attention import (
    MAX_TILE_ROWS,
    UNLIMITED,
    PagedAttention,
    cache_dtypes,
    cut_tiles,
)
from aphrodited.layers.quantized_linear import can_quantize
from aphrodited.layers.rotary import rotary_table
from tests.support.teacher import batch_of
from tests.support.tiny_models import write_tiny_llama_dir

BLOCK_SIZE = 16

SHAPES = {  # H, K, D, R
    "grouped heads": (9, 3, 64, 64),
    "one key head per query head, partial rotation": (8, 8, 64, 16),
    "tiny": (4, 2, 8, 8),
    "odd head size": (2, 1, 20, 10),
    "many query heads per key head": (12, 1, 32, 32),
}

BATCHES = {  # lengths, starts
    "decode": ([1] * 5, [0, 15, 16, 31, 200]),
    "prefill": ([1, 16, 17, 40], [0, 0, 0, 0]),
    "chunks": ([7, 33, 1], [20, 64, 5]),
    "long": ([150, 1, 3], [0, 180, 127]),
}


@pytest.fixture(params=[torch.float32, torch.float16])
def cache_dtype(request: pytest.FixtureRequest) -> torch.dtype:
    if request.param not in cache_dtypes():
        pytest.skip("no such keys on this CPU")
    return request.param


def caches(num_blocks: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    shape = (num_blocks, num_kv_heads, BLOCK_SIZE, head_dim)
    return as_key_cache(torch.randn(shape).to(dtype)), torch.randn(shape).to(dtype)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
@pytest.mark.parametrize("batch", BATCHES.values(), ids=BATCHES.keys())
@pytest.mark.parametrize("window", [UNLIMITED, 1, 5, 16, 33, 70])
def test_kernels_agree_with_the_reference(
    shape: tuple[int, ...], batch: tuple[list[int], list[int]], window: int, cache_dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    heads, kv_heads, size, rotary_dim = shape
    metadata = batch_of(*batch)
    rotary = rotary_table(256, rotary_dim, 10000.0)
    keys, values = caches(metadata.block_tables.numel(), kv_heads, size, cache_dtype)
    qkv = torch.randn(len(metadata.positions), (heads + 2 * kv_heads) * size)

    expected_qkv, expected_keys, expected_values = qkv.clone(), keys.clone(), values.clone()
    reference.rotate_and_store(expected_qkv, rotary, metadata, expected_keys, expected_values)
    expected = torch.empty(len(qkv), heads * size)
    reference.attend(expected_qkv, metadata, expected_keys, expected_values, window, size**-0.5, expected)

    attention = PagedAttention(heads, size, rotary, cache_dtype=cache_dtype)
    result = attention(qkv, (keys, values), attention.plan(metadata), window)
    last_place = torch.finfo(cache_dtype).eps  # rotated keys may be rounded to either side
    torch.testing.assert_close(keys, expected_keys, rtol=max(1e-5, last_place), atol=1e-5)
    assert torch.equal(values, expected_values)
    torch.testing.assert_close(result, expected, rtol=max(1e-4, last_place), atol=max(1e-5, last_place))


def test_rows_beyond_the_batch_are_padding_and_touch_no_cache(cache_dtype: torch.dtype) -> None:
    attention = PagedAttention(4, 8, rotary_table(64, 8, 10000.0), cache_dtype=cache_dtype)
    metadata = batch_of([1], [3])
    keys, values = caches(1, 2, 8, cache_dtype)
    untouched = [slot for slot in range(BLOCK_SIZE) if slot != 3]
    before = keys[:, :, untouched].clone()
    result = attention(torch.randn(2, (4 + 4) * 8), (keys, values), attention.plan(metadata))
    assert result.shape == (2, 32)
    assert not result[1].any()
    assert torch.equal(keys[:, :, untouched], before)


@pytest.mark.parametrize("window", [None, 1, 20, 64])
def test_a_row_has_the_same_bits_in_every_batch_and_chunk(window: int | None, cache_dtype: torch.dtype) -> None:
    """One sequence of 90 tokens whole, in chunks, row by row, and beside two others."""
    torch.manual_seed(1)
    heads, kv_heads, size = 6, 2, 32
    attention = PagedAttention(heads, size, rotary_table(128, size, 10000.0), cache_dtype=cache_dtype)
    rows = torch.randn(90, (heads + 2 * kv_heads) * size)

    def run(chunks: list[int]) -> Tensor:
        cache = caches(6, kv_heads, size, cache_dtype)
        outputs, start = [], 0
        for length in chunks:
            metadata = batch_of([length], [start])
            metadata.block_tables = torch.tensor([[5, 3, 1, 0, 2, 4]], dtype=torch.int32)
            metadata.slot_mapping = (
                metadata.block_tables[0, metadata.positions // BLOCK_SIZE].long() * BLOCK_SIZE
                + metadata.positions % BLOCK_SIZE
            )
            outputs.append(attention(rows[start : start + length].clone(), cache, attention.plan(metadata), window))
            start += length
        return torch.cat(outputs)

    whole = run([90])
    assert torch.equal(run([64, 26]), whole)
    assert torch.equal(run([17, 1, 31, 41]), whole)
    assert torch.equal(run([1] * 90), whole)

    batch = batch_of([40, 90, 3], [0, 0, 0])
    others = [torch.randn(n, rows.shape[1]) for n in (40, 3)]
    together = attention(
        torch.cat((others[0], rows, others[1])), caches(18, kv_heads, size, cache_dtype), attention.plan(batch), window
    )
    assert torch.equal(together[40:130], whole)


def outputs_of(
    attention: PagedAttention, rows: Tensor, chunks: list[int], block_size: int, head_dim: int, window: int | None
) -> Tensor:
    """One sequence, computed in chunks, its blocks anywhere in a cache that is otherwise no number."""
    num_kv_heads, num_blocks = 2, len(rows) // block_size + 1
    memory = torch.full((2, num_blocks, num_kv_heads, block_size, head_dim), torch.nan, dtype=attention.cache_dtype)
    cache = as_key_cache(memory[0]), memory[1]
    table = torch.randperm(num_blocks)
    outputs, start = [], 0
    for length in chunks:
        positions = torch.arange(start, start + length)
        metadata = AttentionMetadata(
            positions=positions,
            slot_mapping=table[positions // block_size] * block_size + positions % block_size,
            block_tables=table.int().unsqueeze(0),
            cu_seqlens=torch.tensor([0, length], dtype=torch.int32),
            context_lens=torch.tensor([start + length], dtype=torch.int32),
            max_query_len=length,
        )
        outputs.append(attention(rows[start : start + length].clone(), cache, attention.plan(metadata), window))
        start += length
    return torch.cat(outputs)


@pytest.mark.parametrize("heads", [2, 6, 10])
@pytest.mark.parametrize("head_dim", [32, 80, 20])
def test_a_decoded_row_has_the_bits_of_a_prefilled_one_for_any_block_size(
    heads: int, head_dim: int, cache_dtype: torch.dtype
) -> None:
    """Random lengths, cuts and windows; blocks that are read in place and blocks that are copied."""
    rng = random.Random(heads * head_dim)
    torch.manual_seed(heads)
    attention = PagedAttention(heads, head_dim, rotary_table(256, head_dim, 10000.0), cache_dtype=cache_dtype)
    for _ in range(4):
        length, window = rng.randint(1, 230), rng.choice([None, rng.randint(1, 200)])
        rows = 3 * torch.randn(length, (heads + 2 * 2) * head_dim)
        whole = outputs_of(attention, rows, [length], 16, head_dim, window)
        assert whole.isfinite().all()
        cuts = sorted({0, length, *(rng.randint(0, length) for _ in range(4))})
        chunks = [end - start for start, end in pairwise(cuts)]
        for block_size in (1, 4, 32, 128):
            assert torch.equal(outputs_of(attention, rows, chunks, block_size, head_dim, window), whole)
        assert torch.equal(outputs_of(attention, rows, [1] * length, 64, head_dim, window), whole)


def test_scores_far_apart_and_numbers_that_are_none_come_out_as_they_should(cache_dtype: torch.dtype) -> None:
    torch.manual_seed(5)
    attention = PagedAttention(2, 16, rotary_table(256, 16, 10000.0), cache_dtype=cache_dtype)
    rows = torch.randn(100, 6 * 16)
    rows[:, :64] *= 300  # scores of thousands: all weight is on one key
    plain = outputs_of(attention, rows, [100], 16, 16, None)
    assert plain.isfinite().all()
    rows[70, 70] = torch.inf
    assert torch.equal(outputs_of(attention, rows, [100], 16, 16, None)[:70], plain[:70])
    rows[70, 0] = torch.nan
    broken = outputs_of(attention, rows, [100], 16, 16, None)
    assert torch.equal(broken[:70], plain[:70])
    assert broken[70, :16].isnan().all()


def test_numbers_beyond_float16_are_no_wrong_answers() -> None:
    """They become infinite, so that whoever sees them gets no number, and others their own."""
    if torch.float16 not in cache_dtypes():
        pytest.skip("no such keys on this CPU")
    torch.manual_seed(6)
    attention = PagedAttention(2, 16, rotary_table(256, 16, 10000.0), cache_dtype=torch.float16)
    rows = torch.randn(100, 6 * 16)
    plain = outputs_of(attention, rows, [100], 16, 16, None)
    rows[70, 4 * 16] = 70_000.0  # the first number of its first value
    broken = outputs_of(attention, rows, [100], 16, 16, None)
    assert torch.equal(broken[:70], plain[:70])
    assert broken[70:, 0].isinf().all()
    assert torch.equal(broken[70:, 1:], plain[70:, 1:])


def test_a_window_hides_whatever_is_older() -> None:
    torch.manual_seed(4)
    attention = PagedAttention(4, 8, rotary_table(128, 8, 10000.0))
    metadata = batch_of([3], [60])
    qkv, cache = torch.randn(3, 64), caches(4, 2, 8, torch.float32)
    expected = attention(qkv.clone(), cache, attention.plan(metadata), 20)
    oldest_visible = 60 + 1 - 20
    for block, block_id in enumerate(metadata.block_tables[0].tolist()):
        hidden = max(0, min(BLOCK_SIZE, oldest_visible - block * BLOCK_SIZE))
        cache[0][block_id, :, :hidden] = torch.nan
        cache[1][block_id, :, :hidden] = torch.nan
    assert torch.equal(attention(qkv.clone(), cache, attention.plan(metadata), 20), expected)
    assert not torch.equal(attention(qkv.clone(), cache, attention.plan(metadata), 21)[0], expected[0])


@pytest.mark.parametrize("num_threads", [1, 2, 64])
def test_the_number_of_threads_changes_no_bit(num_threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(2)
    monkeypatch.setattr(paged_attention, "MIN_PARALLEL_SCORES", 0)
    attention = PagedAttention(4, 16, rotary_table(64, 16, 10000.0))
    metadata = batch_of([5, 1, 20], [0, 30, 7])
    qkv = torch.randn(26, (4 + 4) * 16)
    cache = caches(metadata.block_tables.numel(), 2, 16, torch.float32)
    before = torch.get_num_threads()
    expected = attention(qkv.clone(), cache, attention.plan(metadata))
    torch.set_num_threads(num_threads)
    try:
        assert torch.equal(attention(qkv.clone(), cache, attention.plan(metadata)), expected)
    finally:
        torch.set_num_threads(before)


def test_tiles_cover_every_row_once() -> None:
    lengths = [1, MAX_TILE_ROWS, MAX_TILE_ROWS + 1, 3 * MAX_TILE_ROWS]
    tiles = cut_tiles(np.cumsum([0, *lengths]).astype(np.int32))
    rows = [(s, row) for s, first, count in tiles.tolist() for row in range(first, first + count)]
    assert [row for _, row in rows] == list(range(sum(lengths)))
    assert [[s for s, _ in rows].count(i) for i in range(4)] == lengths
    assert tiles[:, 2].max() == MAX_TILE_ROWS


def test_without_numba_the_reference_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aphrodited.layers.paged_attention_kernels", None)
    import aphrodited.layers

    monkeypatch.delattr(aphrodited.layers, "paged_attention_kernels", raising=False)
    slow = PagedAttention(4, 8, rotary_table(64, 8, 10000.0))
    monkeypatch.undo()
    fast = PagedAttention(4, 8, rotary_table(64, 8, 10000.0))
    assert fast.is_exact
    assert not slow.is_exact
    metadata: AttentionMetadata = batch_of([3, 1], [0, 9])
    qkv, cache = torch.randn(4, 64), caches(2, 2, 8, torch.float32)
    expected = fast(qkv.clone(), tuple(c.clone() for c in cache), fast.plan(metadata))
    torch.testing.assert_close(slow(qkv.clone(), cache, slow.plan(metadata)), expected, rtol=1e-4, atol=1e-5)


def kernel_files_after_loading(cache_dir: Path, sources: str) -> list[Path]:
    script = (
        "import sys; from pathlib import Path; from aphrodited.layers.paged_attention import load_kernels;"
        f"load_kernels(Path(sys.argv[1]), {sources}); import numpy as np; from aphrodited.layers import norm_kernels;"
        "norm_kernels.normalize_row(np.ones(4, np.float32), np.ones(4, np.float32), 1.0, np.ones(4, np.float32))"
    )
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"}
    subprocess.run([sys.executable, "-c", script, str(cache_dir)], check=True, env=environment, timeout=50)
    return list((cache_dir / "kernels").rglob("*.nbi"))


def test_compiled_kernels_are_kept_in_the_cache_directory_where_sources_may_not_be_written(tmp_path: Path) -> None:
    assert kernel_files_after_loading(tmp_path, sources="Path('/nowhere')")


def test_compiled_kernels_are_kept_beside_the_sources_where_they_may(tmp_path: Path) -> None:
    assert not kernel_files_after_loading(tmp_path, sources="Path(sys.argv[1])")


COMPILES_NO_MORE = """
import sys
from pathlib import Path
from aphrodited.layers import paged_attention, paged_attention_kernels, step_kernels, step_program
from aphrodited.sampling_params import SamplingParams
from tests.support.engine_runs import engine_of, generate, load

def compiled():
    kernels = paged_attention_kernels.attend, paged_attention_kernels.rotate_and_store, step_kernels.run_step
    return [len(kernel.signatures) for kernel in kernels]

paged_attention.compile_kernels()
step_program.compile_kernels()
ahead = compiled()
assert all(count >= len(paged_attention.cache_dtypes()) for count in ahead), ahead
params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True, logprobs=0)
for quantization in sys.argv[2:]:
    generate(engine_of(load(Path(sys.argv[1]), quantization=quantization)), [[1, 2, 3]], params)
assert compiled() == ahead, (compiled(), ahead)
"""


def test_what_an_engine_runs_is_what_was_compiled_ahead(tmp_path: Path) -> None:
    """In a process of its own: here other tests have compiled kernels already."""
    model = write_tiny_llama_dir(tmp_path / "model")
    quantizations = ["none", "int8"] if can_quantize() else ["none"]
    subprocess.run([sys.executable, "-c", COMPILES_NO_MORE, str(model), *quantizations], check=True, timeout=300)
