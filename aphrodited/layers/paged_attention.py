"""Attention over a paged KV cache, in place: picks the kernels and turns a step's metadata into their work list.

Knows one layer's tensors at a time and no model. The kernels need numba; without it the torch reference takes over,
slower and not bit-exact between batches (`is_exact` says which).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aphrodited.layers import norm
from aphrodited.layers import paged_attention_reference as reference
from aphrodited.layers.attention import AttentionMetadata, as_key_cache, as_numbers
from aphrodited.log import get_logger

MAX_TILE_ROWS = 16  # query rows that share one pass over the keys
UNLIMITED = 2**62  # the window of a layer that sees every key
MIN_PARALLEL_SCORES = 16_384  # less is about 0.2 ms of work: a second thread, which may be late, is not waited for

log = get_logger()


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """One step's metadata, and the same as the kernels want it: made once, used by every layer."""

    metadata: AttentionMetadata
    tiles: NDArray[np.int32]  # [number of tiles, 3]: sequence, first row, number of rows
    num_threads: int


class Attention(Protocol):
    """Paged attention for tensors on one device and in one format; see PagedAttention."""

    device: torch.device
    dtype: torch.dtype
    cache_dtype: torch.dtype  # of the keys and values that it keeps

    @property
    def kernel(self) -> str:
        """What computes it, with versions: where this differs, last bits may."""
        ...

    @property
    def is_exact(self) -> bool: ...

    def plan(self, metadata: AttentionMetadata) -> AttentionPlan: ...

    def __call__(
        self, qkv: Tensor, kv_cache: tuple[Tensor, Tensor], plan: AttentionPlan, window: int | None = None
    ) -> Tensor: ...


class MakeAttention(Protocol):
    """PagedAttention or another class of attention."""

    def __call__(self, num_heads: int, head_dim: int, rotary: Tensor, cache_dir: Path | None) -> Attention: ...


class PagedAttention:
    """Scaled dot-product attention with rotary positions; one object serves all layers of a model.

    cache_dir keeps the compiled kernels; the first PagedAttention of a process decides where they lie.
    cache_dtype: float32, or float16, which is read in half the time; what is computed is float32 either way.
    """

    device = torch.device("cpu")
    dtype = torch.float32

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        rotary: Tensor,
        cache_dir: Path | None = None,
        *,
        cache_dtype: torch.dtype = torch.float32,
    ) -> None:
        self.num_heads = num_heads
        self.cache_dtype = cache_dtype
        self.scale = float(head_dim**-0.5)
        self.rotary = rotary  # [P, R]
        self._kernels = load_kernels(cache_dir)

    @property
    def kernel(self) -> str:
        return "torch" if self._kernels is None else f"{kernels_version()}, {self.cache_dtype} keys and values"

    @property
    def is_exact(self) -> bool:
        """Whether a row's bits are independent of what else is in the batch."""
        return self._kernels is not None

    def plan(self, metadata: AttentionMetadata) -> AttentionPlan:
        """The work list of one step."""
        if self._kernels is None:
            return AttentionPlan(metadata, np.empty((0, 3), np.int32), 1)
        cu_seqlens = metadata.cu_seqlens.numpy()
        num_scores = int(np.diff(cu_seqlens) @ metadata.context_lens.numpy()) * self.num_heads
        num_threads = self._kernels.use_threads(torch.get_num_threads() if num_scores >= MIN_PARALLEL_SCORES else 1)
        return AttentionPlan(metadata, cut_tiles(cu_seqlens), num_threads)

    def __call__(
        self, qkv: Tensor, kv_cache: tuple[Tensor, Tensor], plan: AttentionPlan, window: int | None = None
    ) -> Tensor:
        """Attention output [R, H D] for qkv [R, (H + 2K) D], which is overwritten; stores this step's keys and values.

        kv_cache: keys as `as_key_cache` lays them out, and values, [N, K, B, D] each.
        window: how many keys a row sees, its own included; None for all.
        Rows beyond the T of the plan are padding: zeros.
        """
        key_cache, value_cache = kv_cache
        num_kv_heads, _, head_dim = key_cache.shape[1:]
        output = qkv.new_zeros(qkv.shape[0], qkv.shape[1] - 2 * num_kv_heads * head_dim)
        metadata = plan.metadata
        num_tokens = metadata.positions.shape[0]
        if self._kernels is None:
            reference.rotate_and_store(qkv[:num_tokens], self.rotary, metadata, key_cache, value_cache)
            reference.attend(qkv, metadata, key_cache, value_cache, window or UNLIMITED, self.scale, output)
            return output
        positions, keys, values = metadata.positions.numpy(), as_numbers(key_cache.transpose(2, 3)), as_numbers(value_cache)
        assert keys.flags.c_contiguous, "not a cache that as_key_cache has laid out"
        self._kernels.rotate_and_store(
            qkv.numpy(), self.rotary.numpy(), positions, metadata.slot_mapping.numpy(), keys, values, plan.num_threads
        )
        self._kernels.attend(
            qkv.numpy(),
            keys,
            values,
            metadata.block_tables.numpy(),
            plan.tiles,
            positions,
            window or UNLIMITED,
            np.float32(self.scale),
            plan.num_threads,
            MAX_TILE_ROWS,
            output.numpy(),
        )
        return output


def cut_tiles(cu_seqlens: NDArray[np.int32]) -> NDArray[np.int32]:
    """Cut each sequence's query rows into tiles of MAX_TILE_ROWS at most: [number of tiles, 3]."""
    lengths = np.diff(cu_seqlens)  # [S]
    tiles_of = -(-lengths // MAX_TILE_ROWS)  # [S]
    sequences = np.repeat(np.arange(len(lengths)), tiles_of)
    offsets = MAX_TILE_ROWS * (np.arange(len(sequences)) - np.repeat(np.cumsum(tiles_of) - tiles_of, tiles_of))
    num_rows = np.minimum(MAX_TILE_ROWS, lengths[sequences] - offsets)
    return np.stack((sequences, cu_seqlens[sequences] + offsets, num_rows), axis=1).astype(np.int32)


def cache_dtypes() -> tuple[torch.dtype, ...]:
    """The formats in which keys and values can be kept here, the widest first."""
    if load_kernels(None) is None:
        return (torch.float32,)
    from aphrodited.layers import half_floats

    return (torch.float32, torch.float16) if half_floats.converts_halves() else (torch.float32,)


def compile_kernels() -> None:
    """Run every kernel once on next to nothing, so that the first engine after an installation starts at once."""
    for cache_dtype in cache_dtypes():
        _run_kernels(cache_dtype)


def _run_kernels(cache_dtype: torch.dtype) -> None:
    attention = PagedAttention(num_heads=1, head_dim=2, rotary=torch.zeros(1, 2), cache_dtype=cache_dtype)
    metadata = AttentionMetadata(
        positions=torch.zeros(1, dtype=torch.int64),
        slot_mapping=torch.zeros(1, dtype=torch.int64),
        block_tables=torch.zeros(1, 1, dtype=torch.int32),
        cu_seqlens=torch.tensor([0, 1], dtype=torch.int32),
        context_lens=torch.ones(1, dtype=torch.int32),
        max_query_len=1,
    )
    keys, values = torch.zeros(2, 1, 1, 1, 2, dtype=cache_dtype)  # [N, K, B, D] each
    attention(torch.zeros(1, 6), (as_key_cache(keys), values), attention.plan(metadata))


def preload_kernels(cache_dir: Path | None, cache_dtype: torch.dtype) -> None:
    """Have the kernels in memory before the first step: half a second of work that can be done beside reading weights.

    cache_dtype: of the model's keys and values.  Runs kernels, so no other thread may: not every threading layer of numba's
    takes two at once.
    """
    if load_kernels(cache_dir) is not None:
        from aphrodited.layers import choice_kernels

        _run_kernels(cache_dtype)
        norm.compile_kernels()
        choice_kernels.compile_kernels()


def load_kernels(cache_dir: Path | None, sources: Path = Path(__file__).parent) -> ModuleType | None:
    """The module of compiled kernels, or None, with a warning, where numba cannot be imported.

    What is compiled is kept beside the sources, for everyone; where those may not be written, in cache_dir.
    """
    if cache_dir is not None and not os.access(sources, os.W_OK):
        # numba reads this once, when it is imported: hence imports inside functions, in this package, of numba
        os.environ.setdefault("NUMBA_CACHE_DIR", str(cache_dir / "kernels"))
    try:
        from aphrodited.layers import paged_attention_kernels
    except ImportError as error:
        _warn_once(str(error))
        return None
    return paged_attention_kernels


@cache
def _warn_once(cause: str) -> None:
    log.warning("attention_kernels_missing", cause=cause, effect="slow attention, batches change last digits")


def kernels_version() -> str:
    """What compiled the kernels, and for which CPU."""
    import numba
    from llvmlite import binding

    from aphrodited.layers.vector_tiles import ARITHMETIC

    llvm = ".".join(map(str, binding.llvm_version_info))
    return f"arithmetic {ARITHMETIC}, numba {numba.__version__} (LLVM {llvm}, {binding.get_host_cpu_name()})"
