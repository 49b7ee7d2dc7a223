import threading

import numpy as np

from aphrodited.layers.kernels import Longs, compile_kernel
from aphrodited.layers.shared_work import COUNTERS, await_all, claim, finish

NUM_CHUNKS = 20_000


def _count(counters: Longs, times: Longs) -> int:
    chunk = claim(counters)
    while chunk < times.shape[0]:
        times[chunk] += 1
        finish(counters)
        chunk = claim(counters)
    await_all(counters, times.shape[0])
    return int(times.sum())


def test_every_chunk_is_done_once_whoever_does_it_and_seen_by_all() -> None:
    count = compile_kernel(_count, set(), releases_lock=True)
    counters, times, sums = np.zeros(COUNTERS, np.int64), np.zeros(NUM_CHUNKS, np.int64), []
    threads = [threading.Thread(target=lambda: sums.append(count(counters, times))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (times == 1).all()
    assert sums == [NUM_CHUNKS] * 4
