"""What exact rows cost: our products and attention against torch's plain ones, in turns, in one process.

usage: python -m tests.benchmarks.engine.determinism [threads]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

from aphrodited.layers import paged_attention_reference as reference
from aphrodited.layers.attention import as_key_cache
from aphrodited.layers.linear import Linear
from aphrodited.layers.paged_attention import UNLIMITED, PagedAttention
from tests.support.teacher import BLOCK_SIZE, batch_of

NUM_TURNS = 30
NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 9, 3, 64  # SmolLM2-135M
PRODUCTS = ((576, 1536), (576, 49152))  # inputs, outputs
BATCHES = {"64 sequences decode behind 191 tokens": ([1] * 64, [191] * 64), "a prompt of 512 tokens": ([512], [0])}


def best_ms(*functions: Callable[[], object]) -> list[float]:
    """Milliseconds of each function's best turn."""
    best = [float("inf")] * len(functions)
    for _ in range(NUM_TURNS):
        for i, function in enumerate(functions):
            started_at_s = time.perf_counter()
            function()
            best[i] = min(best[i], (time.perf_counter() - started_at_s) * 1e3)
    return best


def compare_products() -> None:
    for inputs, outputs in PRODUCTS:
        weight = torch.randn(outputs, inputs)
        own = Linear(weight)
        for num_rows in (1, 4, 64, 256):
            x = torch.randn(num_rows, inputs)
            plain, exact = best_ms(lambda: F.linear(x, weight), lambda: own(x))  # noqa: B023
            print(f"{inputs} x {outputs}, {num_rows} rows: F.linear {plain:.3f} ms, exact {exact:.3f} ms")


def compare_attention() -> None:
    rotary = torch.cat((torch.ones(2048, HEAD_DIM // 2), torch.zeros(2048, HEAD_DIM // 2)), dim=1)  # turns nothing
    attention = PagedAttention(NUM_HEADS, HEAD_DIM, rotary)
    for name, (lengths, starts) in BATCHES.items():
        metadata = batch_of(lengths, starts)
        num_blocks, num_tokens, num_keys = metadata.block_tables.numel(), sum(lengths), starts[0] + lengths[0]
        keys, values = torch.randn(2, num_blocks, NUM_KV_HEADS, BLOCK_SIZE, HEAD_DIM)
        cache = as_key_cache(keys), values
        qkv = torch.randn(num_tokens, (NUM_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM)
        output, plan = torch.empty(num_tokens, NUM_HEADS * HEAD_DIM), attention.plan(metadata)
        queries = torch.randn(len(lengths), NUM_HEADS, lengths[0], HEAD_DIM)
        keys, values = torch.randn(2, len(lengths), NUM_KV_HEADS, num_keys, HEAD_DIM)
        gathered, contiguous, exact = best_ms(
            lambda: reference.attend(qkv, metadata, *cache, UNLIMITED, HEAD_DIM**-0.5, output),  # noqa: B023
            lambda: F.scaled_dot_product_attention(queries, keys, values, is_causal=lengths[0] > 1, enable_gqa=True),  # noqa: B023
            lambda: attention(qkv, cache, plan),  # noqa: B023
        )
        print(f"{name}: gather and SDPA {gathered:.3f} ms, SDPA on one piece {contiguous:.3f} ms, exact {exact:.3f} ms")


@torch.inference_mode()
def main() -> None:
    torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    compare_products()
    compare_attention()


if __name__ == "__main__":
    main()
