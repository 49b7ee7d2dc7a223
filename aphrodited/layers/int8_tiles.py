"""Products of a tile of int8 rows with a panel of int8 weights, in the instructions that CPUs have for them.

LLVM finds none of these instructions in a loop, so the loop over the channels is written in its own language here. One of
them multiplies DEPTH channels of an unsigned row with those of several signed weights, and adds the products up in 32 bits.
All sums of a tile stay in registers until the last channel, and are scaled there. Integers are summed, so no order changes a
result, and what follows is computed for each by itself.

    VNNI_512    vpdpbusd on 512 bits
    VNNI_256    the same on 256 bits
    AVX2        products added in pairs within 16 bits first, where 8 bits of row times 8 bits of weight would overflow:
                such a CPU gets rows of 7 bits
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from llvmlite import binding, ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from aphrodited.layers.tile_code import load, move, place, spread, store

PANEL = 64  # weights side by side
DEPTH = 4  # channels that one instruction adds up
TILE_ROWS = 6  # by 4 registers of weights: 24 of 32 registers hold sums

_BYTE, _WORD, _FLOAT = ir.IntType(8), ir.IntType(32), ir.FloatType()
_SIZE = ir.IntType(64)
_WORD_BYTES = 4


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """lanes: sums in a register.  num_vectors: registers of weights that a tile takes side by side.

    row_limit: largest magnitude of a channel of a row; it is given as a number from 1 to 2 row_limit + 1.
    """

    name: str
    lanes: int
    num_vectors: int
    row_limit: int

    @property
    def row_offset(self) -> int:
        """What is added to a channel of a row, so that it has no sign."""
        return self.row_limit + 1


VNNI_512 = InstructionSet("avx512vnni", 16, 4, 127)
VNNI_256 = InstructionSet("avxvnni", 8, 2, 127)
AVX2 = InstructionSet("avx2", 8, 2, 63)


@cache
def host_instruction_set() -> InstructionSet | None:
    """The fastest that this CPU has; None if it has none of them."""
    features = binding.get_host_cpu_features()
    return next((known for known in (VNNI_512, VNNI_256, AVX2) if features.get(known.name)), None)


def multiply_tile(instructions: InstructionSet, num_rows: int) -> Callable[..., None]:
    """For kernels: multiply(rows, first_row, steps, panel, starts, scales, bias, result, result_row, result_column).

    rows: uint8 [*, C], those from first_row to first_row + num_rows are multiplied, TILE_ROWS at most.  steps: float32, of
    all rows.  panel: int8 [C / DEPTH, PANEL x DEPTH], channel by channel all weights.  starts: int32 [PANEL], what the sums of
    each weight begin with.  scales, bias: float32 [PANEL].  result: float32 [*, *].
    result[result_row + i, result_column + j] becomes sum x scales[j] x steps[first_row + i] + bias[j].
    """

    def multiply(
        typing_context: Any, rows: Any, first_row: Any, steps: Any, panel: Any, starts: Any, scales: Any, bias: Any,
        result: Any, result_row: Any, result_column: Any,
    ) -> tuple[Any, Callable[..., Any]]:  # fmt: skip
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            rows, steps, panel, starts, scales, bias, result = (
                context.make_array(signature.args[i])(context, builder, arguments[i]) for i in (0, 2, 3, 4, 5, 6, 7)
            )
            first, result_row, column = arguments[1], arguments[8], arguments[9]
            tile = _Tile(instructions, builder, panel, starts.data, scales.data, bias.data)
            for i in range(num_rows):
                row = builder.add(first, first.type(i))
                tile.rows.append(place(builder, rows, row, first.type(0)))
                tile.steps.append(builder.load(builder.gep(steps.data, [row])))
                to_row = builder.add(result_row, first.type(i))
                tile.results.append(place(builder, result, to_row, builder.mul(column, first.type(_WORD_BYTES))))
            tile.generate()
            return context.get_dummy_value()

        size = types.intp
        return types.void(rows, size, steps, panel, starts, scales, bias, result, size, size), generate

    function: Callable[..., None] = intrinsic(multiply)
    return function


class _Tile:
    """Writes the code for one tile. Where its rows, their steps and their results are is to be filled in first."""

    def __init__(
        self, instructions: InstructionSet, builder: Any, panel: Any, starts: Any, scales: Any, bias: Any
    ) -> None:
        self.rows: list[Any] = []
        self.steps: list[Any] = []
        self.results: list[Any] = []
        self._instructions = instructions
        self._builder = builder
        self._panel = panel
        self._starts, self._scales, self._bias = starts, scales, bias
        self._words = ir.VectorType(_WORD, instructions.lanes)
        self._floats = ir.VectorType(_FLOAT, instructions.lanes)

    def generate(self) -> None:
        """A loop over all channels for each group of weights that fits into registers beside the sums."""
        group_size = self._instructions.lanes * self._instructions.num_vectors
        for group in range(0, PANEL, group_size):
            columns = range(group, group + group_size, self._instructions.lanes)
            for totals, step, result in zip(self._sum(columns), self.steps, self.results, strict=True):
                for column, total in zip(columns, totals, strict=True):
                    self._finish(column, self._builder.load(total), step, result)

    def _sum(self, columns: range) -> list[list[Any]]:
        """Where the sums of each row are: a vector of them from each of the columns on."""
        builder, words = self._builder, self._words
        totals = [[cgutils.alloca_once(builder, words) for _ in columns] for _ in self.rows]  # type: ignore[no-untyped-call]
        for row_totals in totals:
            for column, total in zip(columns, row_totals, strict=True):
                builder.store(self._constant(self._starts, column, words), total)
        with cgutils.for_range(builder, builder.extract_value(self._panel.shape, 0)) as loop:
            index = loop.index
            panel_start = builder.mul(index, index.type(PANEL * DEPTH))
            offsets = [builder.add(panel_start, index.type(DEPTH * column)) for column in columns]
            weights = [load(builder, move(builder, self._panel.data, offset), words) for offset in offsets]
            for row, row_totals in zip(self.rows, totals, strict=True):
                channels = load(builder, move(builder, row, builder.mul(index, index.type(DEPTH))), _WORD)
                factors = spread(builder, channels, words)
                for weight, total in zip(weights, row_totals, strict=True):
                    added = _multiply_add(self._instructions, builder, builder.load(total), factors, weight)
                    builder.store(added, total)
        return totals

    def _finish(self, column: int, total: Any, step: Any, result: Any) -> None:
        builder, floats = self._builder, self._floats
        scaled = builder.fmul(builder.sitofp(total, floats), self._constant(self._scales, column, floats))
        stepped = builder.fmul(scaled, spread(builder, step, floats))
        biased = builder.fadd(stepped, self._constant(self._bias, column, floats))
        store(builder, biased, move(builder, result, _SIZE(_WORD_BYTES * column)))

    def _constant(self, constants: Any, column: int, kind: Any) -> Any:
        return load(self._builder, move(self._builder, constants, _SIZE(_WORD_BYTES * column)), kind)


def _multiply_add(instructions: InstructionSet, builder: Any, total: Any, row: Any, weight: Any) -> Any:
    """total + the products of DEPTH unsigned bytes of row with DEPTH signed ones of weight, in every lane."""
    words = total.type
    if instructions is not AVX2:
        name = f"llvm.x86.avx512.vpdpbusd.{32 * instructions.lanes}"
        function = builder.module.declare_intrinsic(name, (), ir.FunctionType(words, [words] * 3))
        return builder.call(function, [total, row, weight])
    octets, halves = ir.VectorType(_BYTE, 4 * words.count), ir.VectorType(ir.IntType(16), 2 * words.count)
    pairs = builder.module.declare_intrinsic("llvm.x86.avx2.pmadd.ub.sw", (), ir.FunctionType(halves, [octets] * 2))
    fours = builder.module.declare_intrinsic("llvm.x86.avx2.pmadd.wd", (), ir.FunctionType(words, [halves] * 2))
    in_pairs = builder.call(pairs, [builder.bitcast(row, octets), builder.bitcast(weight, octets)])
    return builder.add(total, builder.call(fours, [in_pairs, halves([1] * halves.count)]))
