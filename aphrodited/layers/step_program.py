"""StepProgram: a model's layers as one table of operations, which a step of few rows runs in one call of `step_kernels`.

Models write their operations into it, with the same projections, norms and attention that they call for many rows; what is
computed has the same bits either way. Knows no model.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from aphrodited.layers.attention import KVCache, as_numbers
from aphrodited.layers.linear import Linear, Projection
from aphrodited.layers.norm import LayerNorm, QKNorm, RMSNorm
from aphrodited.layers.paged_attention import UNLIMITED, PagedAttention, cache_dtypes
from aphrodited.layers.quantized_linear import QuantizedLinear
from aphrodited.layers.step_ops import OP, SHAPE, WEIGHT_FIELDS, Buffer, Kind, Norm
from aphrodited.layers.team import run_together

MAX_ROWS = 8
"""Rows of a step that is run so: with more, products by blocks of rows are faster."""


class Places(NamedTuple):
    """Where each row is in its sequence, and where that is in the caches."""

    positions: NDArray[np.int64]  # [R]
    slots: NDArray[np.int64]  # [R]
    block_tables: NDArray[np.int32]  # [R, M]


_NOWHERE = Places(np.empty(0, np.int64), np.empty(0, np.int64), np.empty((0, 0), np.int32))
_Known = (QuantizedLinear, Linear)


def can_run(attention: object, projections: Iterable[Projection]) -> bool:
    """Whether there are operations for all of them."""
    has_kernels = isinstance(attention, PagedAttention) and attention.is_exact
    return has_kernels and all(isinstance(p, QuantizedLinear) or (isinstance(p, Linear) and p.is_exact()) for p in projections)


def compile_kernels() -> None:
    """Run the kernel once for each format of keys and values, so that the first engine after an installation starts at once."""
    for cache_dtype in cache_dtypes():
        preload_kernel(cache_dtype)


def preload_kernel(cache_dtype: torch.dtype) -> None:
    """Have the kernel in memory before the first step of a model with such keys and values."""
    attention, projection = PagedAttention(1, 2, torch.zeros(1, 2), cache_dtype=cache_dtype), Linear(torch.ones(2, 8))
    if can_run(attention, (projection,)):
        program = StepProgram(attention)
        program.product(projection, Buffer.HIDDEN, Buffer.LOGITS)
        program.run(np.ones((1, 8), np.float32), result=Buffer.LOGITS, num_threads=1)  # threads that helped would keep this one's priority


class StepProgram:
    """Operations in their order; the first one reads HIDDEN."""

    def __init__(self, attention: PagedAttention) -> None:
        from aphrodited.layers import shared_work, step_kernels, vector_tiles  # late, see quantized_linear

        self._kernel, self._new_counters, self._key_tile = step_kernels.run_step, shared_work.new_counters, vector_tiles.KEY_TILE
        self._attention = attention
        self._kv_caches: Sequence[KVCache] | None = None  # those that _addresses_of_caches and _shapes are of
        self._of_caches = as_numbers(torch.empty(0, dtype=attention.cache_dtype))
        self._rotary = attention.rotary.numpy()
        self._ops: list[dict[str, Any]] = []
        self._kept: list[object] = []  # whatever an address belongs to
        self._widths = dict.fromkeys(Buffer, 0)

    def product(
        self,
        projection: Projection,
        source: Buffer,
        target: Buffer,
        *,
        norm: RMSNorm | LayerNorm | None = None,
        plus: Buffer | None = None,
    ) -> None:
        """target = projection(norm(source)), plus another buffer."""
        from aphrodited.layers.finish_kernels import ADD  # late, see quantized_linear

        assert isinstance(projection, _Known)
        finish = projection.finish if plus is None else ADD
        op = {"kind": Kind.PRODUCT, "finish": finish, "other": source if plus is None else plus}
        self._add_product(op, projection, source, target, norm)

    def gated(
        self, projection: Projection, gate: Projection, source: Buffer, target: Buffer, *, norm: RMSNorm | LayerNorm
    ) -> None:
        """target = projection(norm(source)) * gate(norm(source))."""
        assert isinstance(gate, _Known)
        op = {"kind": Kind.GATED, "finish": gate.finish, "other": source, **self._addresses(gate, "gate_")}
        self._add_product(op, projection, source, target, norm)

    def attend(self, *, window: int | None = None, qk_norm: QKNorm | None = None) -> None:
        """ATTENDED = attention(QKV), over the next layer's cache."""
        op: dict[str, Any] = {"layer": sum(op["kind"] == Kind.HEADS for op in self._ops)}
        op["window"] = UNLIMITED if window is None else window
        if qk_norm is not None:
            op |= {"qk_norm_weight": self._address(qk_norm.weight.numpy()), "qk_norm_eps": qk_norm.eps}
        self._ops += ({"kind": kind, **op} for kind in (Kind.HEADS, Kind.SUMS))

    def run(
        self,
        rows: NDArray[np.float32],
        kv_caches: Sequence[KVCache] = (),
        places: Places = _NOWHERE,
        *,
        result: Buffer,
        num_threads: int | None = None,
    ) -> NDArray[np.float32]:
        """What the operations leave of rows [R, E] in a buffer, newly allocated [R, width]; R is MAX_ROWS at most.

        rows: overwritten.  kv_caches, places: for attention.  num_threads: as many as torch uses, if not given.
        """
        self._bind(kv_caches)
        num_rows = rows.shape[0]
        num_threads = num_threads or torch.get_num_threads()
        made = rows if result == Buffer.HIDDEN else np.empty((num_rows, self._widths[result]), np.float32)
        num_positions = places.block_tables.shape[1] * self._block_size
        run_together(
            num_threads,
            self._kernel,
            self._table,
            self._shapes[num_rows],
            self._buffers,
            rows,
            int(result),
            made,
            self._addresses_of_caches,
            self._of_caches,
            self._rotary,
            *places,
            np.empty((num_rows, self._attention.num_heads, num_positions + self._key_tile), np.float32),
            np.zeros(1, np.int64),
            self._new_counters(len(self._ops), num_threads),
        )
        return made

    def _bind(self, kv_caches: Sequence[KVCache]) -> None:
        """Have the next runs use these caches."""
        if kv_caches is self._kv_caches:
            return
        assert all(keys.dtype == values.dtype == self._attention.cache_dtype for keys, values in kv_caches)
        self._kv_caches = kv_caches
        self._addresses_of_caches = np.array([(k.data_ptr(), v.data_ptr()) for k, v in kv_caches], np.int64).reshape(-1, 2)
        sizes = kv_caches[0][1].shape if kv_caches else (0, self._attention.num_heads, 0, 0)
        self._block_size = sizes[2]
        self._shapes = [self._shape(num_rows, sizes) for num_rows in range(MAX_ROWS + 1)]

    @cached_property
    def _table(self) -> NDArray[np.void]:
        table = np.zeros(len(self._ops), OP)
        for row, op in zip(table, self._ops, strict=True):
            for name, value in op.items():
                row[name] = value
        return table

    def _shape(self, num_rows: int, cache_sizes: Sequence[int]) -> NDArray[np.void]:
        from aphrodited.layers.int8_kernels import instructions

        shape = np.zeros(1, SHAPE)
        shape["num_rows"], shape["num_heads"] = num_rows, self._attention.num_heads
        for name, size in zip(("num_blocks", "num_kv_heads", "block_size", "head_dim"), cache_sizes, strict=True):
            shape[name] = size
        shape["row_limit"] = 0 if instructions is None else instructions.row_limit
        shape["scale"] = np.float32(np.float32(self._attention.scale) * math.log2(math.e))
        return shape

    @cached_property
    def _rows(self) -> list[NDArray[np.float32]]:
        return [np.zeros((MAX_ROWS, self._widths[which]), np.float32) for which in Buffer]

    @cached_property
    def _buffers(self) -> NDArray[np.int64]:
        return np.array([(rows.ctypes.data, rows.shape[1]) for rows in self._rows])

    def _add_product(
        self,
        op: dict[str, Any],
        projection: Projection,
        source: Buffer,
        target: Buffer,
        norm: RMSNorm | LayerNorm | None,
    ) -> None:
        assert isinstance(projection, _Known)
        self._widths[source], self._widths[target] = projection.in_features, projection.out_features
        op |= {"source": source, "target": target, **self._addresses(projection, "")}
        op |= {"num_channels": projection.in_features, "num_outputs": projection.out_features}
        if isinstance(projection, QuantizedLinear):
            op |= {"signs": self._address(projection.weight.signs), "group": projection.weight.group}
        else:
            op["is_float"] = True
        if norm is not None:
            op |= self._norm_fields(norm)
        self._ops.append(op)

    def _norm_fields(self, norm: RMSNorm | LayerNorm) -> dict[str, Any]:
        fields = {"norm": Norm.ROOT_MEAN_SQUARE, "norm_weight": self._address(norm.weight.numpy()), "norm_eps": norm.eps}
        if isinstance(norm, LayerNorm):
            fields |= {"norm": Norm.LAYER, "norm_bias": self._address(norm.bias.numpy())}
        return fields

    def _addresses(self, projection: QuantizedLinear | Linear, prefix: str) -> dict[str, int]:
        names = WEIGHT_FIELDS if isinstance(projection, QuantizedLinear) else ("panels", "bias")
        return {f"{prefix}{name}": self._address(getattr(projection.weight, name)) for name in names}

    def _address(self, array: NDArray[Any]) -> int:
        assert array.flags.c_contiguous
        self._kept.append(array)
        return array.ctypes.data
