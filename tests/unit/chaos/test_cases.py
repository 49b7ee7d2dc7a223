"""The requests of a run: all kinds, all different, the same for the same seed."""

from __future__ import annotations

from itertools import islice

from aphrodited.chaos.cases import EMBEDDINGS, KINDS, cases


def test_no_two_prompts_begin_alike_and_every_kind_comes_in_each_round() -> None:
    some = list(islice(cases("m", 1, 50), 10 * len(KINDS)))
    assert {case.kind for case in some[: len(KINDS)]} == set(KINDS)
    texts = [str(case.body.get("prompt") or case.body.get("messages") or case.body["input"]) for case in some]
    assert len(set(texts)) == len(texts)
    assert [case.number for case in some] == list(range(1, len(some) + 1))


def test_a_seed_says_everything() -> None:
    assert list(islice(cases("m", 5, 50), 40)) == list(islice(cases("m", 5, 50), 40))
    assert list(islice(cases("m", 5, 50), 40)) != list(islice(cases("m", 6, 50), 40))


def test_what_must_be_answered_is_known_for_every_request() -> None:
    for case in islice(cases("m", 2, 50), 200):
        assert case.path == EMBEDDINGS or case.body["temperature"] == 0 or "seed" in case.body
        assert "stream" not in case.undisturbed()
        assert case.undisturbed().items() <= case.body.items()


def test_some_are_streamed_and_some_clients_leave() -> None:
    some = list(islice(cases("m", 3, 50), 400))
    assert 0.3 < sum(case.is_streamed for case in some) / len(some) < 0.8
    assert any(case.leaves_after_s is not None for case in some)
    assert any(case.leaves_after_events is not None for case in some)
    assert all(case.is_streamed for case in some if case.leaves_after_events is not None)
