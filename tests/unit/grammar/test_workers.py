import queue
import threading

import pytest

from aphrodited.grammar.workers import STACK_SIZE, Workers


def test_tasks_run_in_order_on_threads_of_its_own():
    workers, done, finished = Workers("w", 1, 10), [], threading.Event()
    for index in range(5):
        workers.submit(lambda index=index: done.append((index, threading.current_thread().name)))
    workers.submit(finished.set)
    assert finished.wait(10)
    assert done == [(index, "w-0") for index in range(5)]
    workers.close()


def test_a_full_queue_says_so():
    workers, gate, begun = Workers("w", 1, 1), threading.Event(), threading.Event()
    workers.submit(lambda: (begun.set(), gate.wait(10)))
    assert begun.wait(10)
    workers.submit(lambda: None)
    with pytest.raises(queue.Full):
        workers.submit(lambda: None)
    gate.set()


def test_closing_drops_what_waits_and_ends_the_threads():
    workers, gate, begun, done = Workers("ending", 2, 10), threading.Event(), threading.Event(), []
    workers.submit(lambda: (begun.set(), gate.wait(10)))
    workers.submit(lambda: gate.wait(10))
    assert begun.wait(10)
    workers.submit(lambda: done.append(1))
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("ending-")]
    workers.close()
    gate.set()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert len(threads) == 2
    assert done in ([], [1])  # a thread may have taken it before the end


def test_workers_that_had_nothing_to_do_have_no_threads():
    before = threading.active_count()
    Workers("idle", 3, 1).close()
    assert threading.active_count() == before


def test_other_threads_keep_their_stack_size():
    before = threading.stack_size()
    workers = Workers("w", 1, 2)
    workers.submit(lambda: None)
    assert threading.stack_size() == before != STACK_SIZE
    workers.close()
