import threading

import numpy as np
import pytest

from aphrodited.layers.kernels import Longs, compile_kernel
from aphrodited.layers.shared_work import await_all, claim, finish, new_counters

NUM_CHUNKS = 20_000


def _count(counters: Longs, own: int, times: Longs) -> int:
    chunk = claim(counters, own, times.shape[0])
    while chunk < times.shape[0]:
        times[chunk] += 1
        finish(counters)
        chunk = claim(counters, own, times.shape[0])
    await_all(counters, times.shape[0])
    return int(times.sum())


@pytest.mark.parametrize("num_shares", [1, 3, 4])
def test_every_chunk_is_done_once_whoever_does_it_and_seen_by_all(num_shares: int) -> None:
    count = compile_kernel(_count, set(), releases_lock=True)
    counters, times, sums = new_counters(1, num_shares)[0], np.zeros(NUM_CHUNKS, np.int64), []
    threads = [threading.Thread(target=lambda own: sums.append(count(counters, own, times)), args=(i % num_shares,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (times == 1).all()
    assert sums == [NUM_CHUNKS] * 4


def test_a_share_is_claimed_in_order_before_the_others_and_fewer_chunks_than_shares_are_enough() -> None:
    counters = new_counters(2, 3)
    assert [claim(counters[0], 1, 7) for _ in range(9)] == [2, 3, 4, 5, 6, 0, 1, 7, 7]
    assert sorted(claim(counters[1], 2, 2) for _ in range(3)) == [0, 1, 2]
