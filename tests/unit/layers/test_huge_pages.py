from __future__ import annotations

import numpy as np

from aphrodited.layers.huge_pages import REGION_BYTES, HugePageArena


def test_arrays_are_copied_side_by_side() -> None:
    arena, rng = HugePageArena(), np.random.default_rng(0)
    arrays = [rng.integers(-127, 128, (n, 33), np.int8) for n in (1, 7, 100)] + [rng.standard_normal((3, 5), np.float32)]
    copies = [arena.copy(array) for array in arrays]
    for array, copied in zip(arrays, copies, strict=True):
        assert (copied.dtype, copied.flags.c_contiguous) == (array.dtype, True)
        np.testing.assert_array_equal(copied, array)
        assert copied.ctypes.data % 64 == 0
    assert copies[-1].ctypes.data - copies[0].ctypes.data < 8192


def test_more_than_a_region_is_taken_as_it_comes() -> None:
    arena = HugePageArena()
    first = arena.copy(np.ones(100, np.int8))
    large = arena.copy(np.full(REGION_BYTES + 1, 3, np.int8))
    last = arena.copy(np.full(REGION_BYTES // 2, 5, np.int8))
    assert (first == 1).all()
    assert (large == 3).all()
    assert (last == 5).all()


def test_arrays_that_are_not_contiguous_become_so() -> None:
    array = np.arange(12, dtype=np.int8).reshape(3, 4).T
    np.testing.assert_array_equal(HugePageArena().copy(array), array)
