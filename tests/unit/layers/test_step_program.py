from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from aphrodited.layers import step_program
from aphrodited.layers.attention import AttentionMetadata, as_key_cache
from aphrodited.layers.linear import Activation, Linear
from aphrodited.layers.norm import LayerNorm, QKNorm, RMSNorm
from aphrodited.layers.paged_attention import PagedAttention, cache_dtypes
from aphrodited.layers.quantized_linear import QuantizedLinear
from aphrodited.layers.rotary import rotary_table
from aphrodited.layers.step_ops import Buffer
from aphrodited.layers.step_program import MAX_ROWS, Places, StepProgram, can_run

HIDDEN, INNER = 72, 100  # neither a whole number of panels
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 32
NUM_BLOCKS = 64
QKV = (HEADS + 2 * KV_HEADS) * HEAD_DIM


@pytest.fixture(params=[torch.float32, torch.float16])
def cache_dtype(request):
    return request.param


@pytest.fixture
def attention(cache_dtype):
    if cache_dtype not in cache_dtypes():
        pytest.skip("no such keys on this CPU")
    attention = PagedAttention(HEADS, HEAD_DIM, rotary_table(256, HEAD_DIM, 10_000.0), cache_dtype=cache_dtype)
    if not can_run(attention, (Linear(torch.ones(2, 8)),)):
        pytest.skip("no kernels on this CPU")
    torch.manual_seed(7)
    return attention


@pytest.fixture(params=[Linear, QuantizedLinear])
def make(request):
    return request.param


def norms() -> tuple[RMSNorm, LayerNorm]:
    weight, bias = torch.randn(HIDDEN), torch.randn(HIDDEN)
    return RMSNorm(weight, 1e-5), LayerNorm(weight, bias, 1e-5)


def run(program: StepProgram, rows: torch.Tensor, wanted: Buffer) -> torch.Tensor:
    return torch.from_numpy(program.run(rows.numpy().copy(), result=wanted))


@pytest.mark.parametrize("num_rows", [1, 3, MAX_ROWS])
@pytest.mark.parametrize("activation", list(Activation))
def test_a_product_has_the_bits_that_its_norm_and_projection_give(attention, make, activation, num_rows) -> None:
    projection = make(torch.randn(INNER, HIDDEN), torch.randn(INNER), activation=activation)
    rows = torch.randn(num_rows, HIDDEN)
    for norm in norms():
        program = StepProgram(attention)
        program.product(projection, Buffer.HIDDEN, Buffer.INNER, norm=norm)
        assert torch.equal(run(program, rows, Buffer.INNER), projection(norm(rows)))


def test_a_gated_pair_and_its_way_back_have_the_bits_of_their_projections(attention, make) -> None:
    up, gate = make(torch.randn(INNER, HIDDEN)), make(torch.randn(INNER, HIDDEN), activation=Activation.SILU)
    down, norm, rows = make(torch.randn(HIDDEN, INNER)), norms()[0], torch.randn(3, HIDDEN)
    program = StepProgram(attention)
    program.gated(up, gate, Buffer.HIDDEN, Buffer.INNER, norm=norm)
    program.product(down, Buffer.INNER, Buffer.HIDDEN, plus=Buffer.HIDDEN)
    before = rows.clone()
    assert torch.equal(run(program, rows, Buffer.HIDDEN), down.add(up.multiply(norm(rows), gate(norm(rows))), rows))
    assert torch.equal(rows, before)


@pytest.mark.parametrize(
    ("window", "has_qk_norm", "block_size"), [(None, False, 16), (9, False, 16), (None, True, 16), (None, False, 5)]
)
@pytest.mark.parametrize("num_threads", [1, 2, 4, 7])  # 6 key heads are dealt out whole, in part, or only in parts
def test_attention_has_the_same_bits_and_leaves_the_same_cache(
    attention, make, window, has_qk_norm, block_size, num_threads
) -> None:
    qk_norm = QKNorm(torch.randn(HEAD_DIM), torch.randn(HEAD_DIM), HEADS, KV_HEADS, 1e-6) if has_qk_norm else None
    into, out_of = make(torch.randn(QKV, HIDDEN)), make(torch.randn(HIDDEN, HEADS * HEAD_DIM))
    memory = [torch.randn(NUM_BLOCKS, KV_HEADS, block_size, HEAD_DIM).to(attention.cache_dtype) for _ in range(4)]
    metadata, rows = decoding(positions=[3, 230, 119], block_size=block_size), torch.randn(3, HIDDEN)

    program = StepProgram(attention)
    for _ in range(2):
        program.product(into, Buffer.HIDDEN, Buffer.QKV)
        program.attend(window=window, qk_norm=qk_norm)
        program.product(out_of, Buffer.ATTENDED, Buffer.HIDDEN, plus=Buffer.HIDDEN)
    kept = caches([each.clone() for each in memory])
    places = Places(metadata.positions.numpy(), metadata.slot_mapping.numpy(), metadata.block_tables.numpy())
    result = program.run(rows.numpy().copy(), kept, places, result=Buffer.HIDDEN, num_threads=num_threads)

    expected, hidden, plan = caches(memory), rows, attention.plan(metadata)
    for cache in expected:
        qkv = into(hidden)
        qkv = qkv if qk_norm is None else qk_norm(qkv)
        hidden = out_of.add(attention(qkv, cache, plan, window), hidden)
    assert torch.equal(torch.from_numpy(result), hidden)
    for one, other in zip(itertools.chain(*kept), itertools.chain(*expected), strict=True):
        assert torch.equal(one, other)


def test_a_step_is_done_without_help(attention, make, monkeypatch) -> None:
    """As it is when the system runs no other thread of this process."""
    monkeypatch.setattr(step_program, "run_together", lambda num_threads, work, *arguments: work(*arguments))
    projection, rows = make(torch.randn(INNER, HIDDEN)), torch.randn(2, HIDDEN)
    program = StepProgram(attention)
    program.product(projection, Buffer.HIDDEN, Buffer.INNER)
    assert torch.equal(run(program, rows, Buffer.INNER), projection(rows))


def test_a_late_helper_changes_nothing(attention, make, monkeypatch) -> None:
    calls = []

    def run_twice(num_threads, work, *arguments):
        work(*arguments)
        calls.append((work, arguments))

    monkeypatch.setattr(step_program, "run_together", run_twice)
    projection, rows = make(torch.randn(INNER, HIDDEN)), torch.randn(2, HIDDEN)
    program = StepProgram(attention)
    program.product(projection, Buffer.HIDDEN, Buffer.INNER)
    result = run(program, rows, Buffer.INNER)
    before = result.clone()
    rows += 1  # what it would compute now is something else
    ((work, arguments),) = calls
    work(*arguments)
    assert torch.equal(result, before)


def decoding(positions: list[int], block_size: int) -> AttentionMetadata:
    """Sequences with one row each, in blocks of their own."""
    most = max(positions) // block_size + 1
    tables = np.random.default_rng(3).permutation(NUM_BLOCKS - len(positions))
    shared = np.stack([np.roll(tables, i)[:most] for i in range(len(positions))]).astype(np.int32)
    shared[:, -1] = shared[0, -1]
    last = [NUM_BLOCKS - 1 - i for i in range(len(positions))]
    for row, position in enumerate(positions):
        shared[row, position // block_size] = last[row]
    slots = [last[row] * block_size + position % block_size for row, position in enumerate(positions)]
    return AttentionMetadata(
        positions=torch.tensor(positions),
        slot_mapping=torch.tensor(slots),
        block_tables=torch.from_numpy(shared),
        cu_seqlens=torch.arange(len(positions) + 1, dtype=torch.int32),
        context_lens=torch.tensor(positions, dtype=torch.int32) + 1,
        max_query_len=1,
    )


def caches(memory: list[torch.Tensor]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(as_key_cache(keys), values) for keys, values in zip(memory[::2], memory[1::2], strict=True)]
