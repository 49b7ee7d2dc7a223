from __future__ import annotations

import ctypes
import errno
import time

import numpy as np
import pytest

from aphrodited.layers import huge_pages
from aphrodited.layers.huge_pages import HUGE_PAGE_BYTES, LONGEST_WAIT_S, REGION_BYTES, HugePageArena


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


def test_what_is_filled_stays_the_same_in_huge_pages_and_more_is_handed_out_beside_it() -> None:
    arena, rng = HugePageArena(), np.random.default_rng(0)
    arrays = [rng.integers(0, 255, size, np.uint8) for size in (REGION_BYTES - 5, 5 * HUGE_PAGE_BYTES, 7)]
    copies = [arena.copy(array) for array in arrays]
    arena.collapse(lambda: 9.0).join()
    for array, copied in zip(arrays, copies, strict=True):
        np.testing.assert_array_equal(copied, array)
    later = arena.copy(arrays[1])
    np.testing.assert_array_equal(later, arrays[1])
    np.testing.assert_array_equal(copies[2], arrays[2])


def test_an_arena_that_holds_little_or_nothing_has_nothing_to_collapse() -> None:
    empty, small = HugePageArena(), HugePageArena()
    copied = small.copy(np.arange(9))
    for arena in (empty, small):
        arena.collapse(lambda: 9.0).join()
    np.testing.assert_array_equal(copied, np.arange(9))


def test_pages_wait_for_a_rest_but_not_for_ever() -> None:
    arena = HugePageArena()
    arena.copy(np.zeros(3 * HUGE_PAGE_BYTES, np.uint8))
    began_at_s, rests_from_s = time.monotonic(), time.monotonic() + 0.5
    asked_at_s: list[float] = []

    def rested_s() -> float:
        asked_at_s.append(time.monotonic())
        return max(0.0, asked_at_s[-1] - rests_from_s)

    arena.collapse(rested_s).join()
    assert asked_at_s[-1] >= rests_from_s
    arena.collapse(lambda: 0.0).join()
    assert time.monotonic() - began_at_s > 0.5 + LONGEST_WAIT_S


def test_pages_take_no_more_than_their_share_of_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses_s: list[float] = []
    monkeypatch.setattr(huge_pages.time, "sleep", pauses_s.append)
    for share in (1.0, 0.25):
        arena = HugePageArena()
        arena.copy(np.zeros(3 * HUGE_PAGE_BYTES, np.uint8))
        arena.collapse(lambda: 9.0, share=share).join()
    if not pauses_s:
        pytest.skip("this system has no huge pages")
    whole, quarter = pauses_s[: len(pauses_s) // 2], pauses_s[len(pauses_s) // 2 :]
    assert set(whole) == {0.0}
    assert min(quarter) > 0


@pytest.mark.parametrize(("error", "expected"), [(errno.EAGAIN, 2), (errno.EINVAL, 1)])
def test_a_page_that_is_refused_for_now_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, error: int, expected: int
) -> None:
    asked: list[int] = []

    class RefusesOnce:
        @staticmethod
        def madvise(page: int, size: int, advice: int) -> int:
            asked.append(page)
            ctypes.set_errno(error)
            return -1 if len(asked) == 1 else 0

    RefusesOnce.madvise.__dict__.update(argtypes=())
    monkeypatch.setattr(huge_pages.ctypes, "CDLL", lambda *_, **__: RefusesOnce)
    arena = HugePageArena()
    arena.copy(np.zeros(2 * HUGE_PAGE_BYTES - 1, np.uint8))
    arena.collapse(lambda: 9.0).join()
    assert len(asked) == expected
