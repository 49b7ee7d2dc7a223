from __future__ import annotations

import threading

import pytest
import torch

from aphrodited.layers.linear import Linear
from aphrodited.layers.packing import MAX_WAITING, PackingThread, pack_at_once


def test_weights_are_packed_in_their_order_in_a_thread_of_their_own() -> None:
    packed: list[tuple[int, int]] = []
    packing = PackingThread()
    results = [packing.submit(lambda i: packed.append((i, threading.get_ident())) or i, i) for i in range(9)]
    assert [result() for result in results] == list(range(9))
    assert [i for i, _ in packed] == list(range(9))
    assert {thread for _, thread in packed}.isdisjoint({threading.get_ident()})
    assert len({thread for _, thread in packed}) == 1


def test_a_reader_that_is_faster_waits() -> None:
    may_go, handed_over = threading.Event(), []
    packing = PackingThread()

    def read() -> None:
        for i in range(MAX_WAITING + 3):
            packing.submit(may_go.wait)
            handed_over.append(i)

    reader = threading.Thread(target=read)
    reader.start()
    reader.join(0.2)
    assert len(handed_over) == MAX_WAITING
    may_go.set()
    reader.join()
    assert len(handed_over) == MAX_WAITING + 3


def test_who_wants_the_weight_gets_the_error() -> None:
    packing = PackingThread()
    failed = packing.submit(int, "no number")
    others = [packing.submit(int, str(i)) for i in range(MAX_WAITING + 1)]
    assert others[-1]() == MAX_WAITING
    with pytest.raises(ValueError, match="no number"):
        failed()


def test_without_a_thread_it_is_done_at_once() -> None:
    packed: list[int] = []
    pack_at_once(packed.append, 1)
    assert packed == [1]


def test_a_projection_is_the_same_however_it_was_packed() -> None:
    generator = torch.Generator().manual_seed(0)
    weight, rows = torch.randn(24, 16, generator=generator), torch.randn(5, 16, generator=generator)
    assert torch.equal(Linear(weight, packing=PackingThread())(rows), Linear(weight)(rows))


def test_after_its_block_nothing_is_being_packed() -> None:
    packed: list[int] = []
    with PackingThread() as packing:
        results = [packing.submit(lambda i: packed.append(i), i) for i in range(3)]
    assert packed == [0, 1, 2]
    assert [result() for result in results] == [None] * 3


def test_after_a_failure_nothing_more_is_packed() -> None:
    packed: list[int] = []
    may_go, begun = threading.Event(), threading.Event()

    def load() -> None:
        with PackingThread() as packing:
            packing.submit(lambda: begun.set() or may_go.wait())
            packing.submit(packed.append, 3)
            begun.wait()
            threading.Timer(0.05, may_go.set).start()
            raise RuntimeError("unreadable")

    with pytest.raises(RuntimeError, match="unreadable"):
        load()
    assert may_go.is_set()
    assert packed == []
