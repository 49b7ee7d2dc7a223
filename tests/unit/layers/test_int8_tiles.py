from __future__ import annotations

import numba
import numpy as np
import pytest
from llvmlite import binding

from aphrodited.layers.int8_tiles import (
    AVX2,
    DEPTH,
    PANEL,
    TILE_ROWS,
    VNNI_256,
    VNNI_512,
    InstructionSet,
    host_instruction_set,
    multiply_tile,
)

FEATURES = binding.get_host_cpu_features()
ALSO_IN = {VNNI_256.name: "avx512vnni"}  # for these tests a larger set that has the same instructions will do
NUM_CHANNELS = 100


@pytest.mark.parametrize("num_rows", [1, TILE_ROWS])
@pytest.mark.parametrize("instructions", [VNNI_512, VNNI_256, AVX2], ids=lambda instructions: instructions.name)
def test_a_tile_is_multiplied_exactly_and_scaled(instructions: InstructionSet, num_rows: int) -> None:
    if not (FEATURES.get(instructions.name) or FEATURES.get(ALSO_IN.get(instructions.name, ""))):
        pytest.skip("this CPU has no such instructions")
    multiply = multiply_tile(instructions, num_rows)

    @numba.njit
    def run(rows, steps, panel, starts, scales, bias, result):  # type: ignore[no-untyped-def]
        multiply(rows, 2, steps, panel, starts, scales, bias, result, 1, 3)

    rng = np.random.default_rng(0)
    limit = 2 * instructions.row_limit + 1
    rows = rng.integers(1, limit, (9, NUM_CHANNELS), np.uint8, endpoint=True)
    rows[2] = limit  # times the largest weights: what would overflow first
    weights = rng.integers(-127, 127, (PANEL, NUM_CHANNELS), np.int8, endpoint=True)
    weights[0], weights[1] = -127, 127
    panel = weights.reshape(PANEL, -1, DEPTH).transpose(1, 0, 2).reshape(-1, PANEL * DEPTH).copy()
    starts = rng.integers(-1000, 1000, PANEL, np.int32)
    steps, scales, bias = (rng.standard_normal(n).astype(np.float32) for n in (9, PANEL, PANEL))
    result = np.zeros((8, PANEL + 5), np.float32)
    run(rows, steps, panel, starts, scales, bias, result)

    sums = rows[2 : 2 + num_rows].astype(np.int64) @ weights.T.astype(np.int64) + starts
    expected = sums.astype(np.float32) * scales * steps[2 : 2 + num_rows, None] + bias
    np.testing.assert_array_equal(result[1 : 1 + num_rows, 3 : 3 + PANEL], expected)
    result[1 : 1 + num_rows, 3 : 3 + PANEL] = 0
    assert not result.any()


def test_the_host_gets_the_first_that_it_has() -> None:
    found = host_instruction_set()
    assert found is None or FEATURES[found.name]
    if FEATURES.get("avx512vnni"):
        assert found is VNNI_512
