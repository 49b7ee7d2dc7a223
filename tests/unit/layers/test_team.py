import threading

from aphrodited.layers.team import Helper, run_together


def test_the_caller_does_the_work_and_each_helper_is_offered_it() -> None:
    threads, all_came = set(), threading.Barrier(3)

    def work(number: int) -> None:
        assert number == 5
        threads.add(threading.current_thread())
        all_came.wait(30)

    run_together(3, work, 5)
    assert len(threads) == 3
    assert threading.current_thread() in threads


def test_nobody_waits_for_a_helper_that_is_held_up() -> None:
    caller, release, began = threading.current_thread(), threading.Event(), threading.Event()

    def work() -> None:
        if threading.current_thread() is not caller:
            began.set()
            release.wait(30)

    run_together(2, work)
    run_together(2, work)
    release.set()
    assert began.wait(30)


def test_a_helper_that_was_held_up_takes_the_newest_offer_only() -> None:
    helper, release, began, done, taken = Helper("test"), threading.Event(), threading.Event(), threading.Event(), []

    def hold() -> None:
        began.set()
        release.wait(30)

    helper.offer(hold, ())
    assert began.wait(30)
    helper.offer(taken.append, ("old",))
    helper.offer(lambda: (taken.append("new"), done.set()), ())
    release.set()
    assert done.wait(30)
    assert taken == ["new"]
