"""Two answers to one request are the same or not, however they came."""

from __future__ import annotations

from typing import Any

import pytest

from aphrodited.chaos.answers import Answer, ShapeError


def answer(*raws: dict[str, Any]) -> Answer:
    made = Answer()
    for raw in raws:
        made.add(raw)
    return made


def text(value: str, finish_reason: str | None = None, index: int = 0, logprobs: Any = None) -> dict[str, Any]:
    return {"choices": [{"index": index, "text": value, "finish_reason": finish_reason, "logprobs": logprobs}]}


def usage(num_tokens: int, cached: int = 0) -> dict[str, Any]:
    counts = {"prompt_tokens": 3, "completion_tokens": num_tokens, "total_tokens": 3 + num_tokens}
    return {"choices": [], "usage": {**counts, "prompt_tokens_details": {"cached_tokens": cached}}}


def scores(*tokens: str) -> dict[str, Any]:
    return {"tokens": list(tokens), "token_logprobs": [-1.5] * len(tokens), "text_offset": list(range(len(tokens)))}


WHOLE = answer(
    {
        "choices": [{"index": 0, "text": "abcd", "finish_reason": "length", "logprobs": scores("ab", "cd")}],
        "usage": usage(2)["usage"],
    }
)


def test_a_stream_is_the_same_as_the_whole_answer_wherever_it_was_cut() -> None:
    first = {**scores("ab"), "text_offset": [0]}
    second = {**scores("cd"), "text_offset": [1]}
    streamed = answer(text("a"), text("b", logprobs=first), text("cd", logprobs=second), text("", "length"), usage(2, cached=2))
    assert streamed.difference(WHOLE) == ""


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (answer(text("abcx", "length"), usage(2)), "text of choice 0: from 3 on 'x' instead of 'd'"),
        (answer(text("abcdd", "length"), usage(2)), "text of choice 0: from 4 on 'd' instead of ''"),
        (answer(text("abcd", "stop", logprobs=scores("ab", "cd")), usage(2)), "ending of choice 0"),
        (answer(text("abcd", "length"), usage(2)), "logprobs of choice 0"),
        (answer(text("abcd", "length", logprobs=scores("ab", "cd")), usage(4)), "usage"),
        (answer(text("abcd", "length", logprobs=scores("ab", "cd"))), "usage None"),
        (answer(text("abcd", "length"), text("abcd", "length", index=1)), "choices [0, 1] instead of [0]"),
    ],
)
def test_whatever_differs_is_said(other: Answer, words: str) -> None:
    assert words in other.difference(WHOLE)


def test_embeddings_are_compared() -> None:
    assert answer({"data": [1.0]}).difference(answer({"data": [2.0]})) == "other embeddings"
    assert answer({"data": [1.0]}).difference(answer({"data": [1.0]})) == ""


def test_a_part_is_the_beginning_of_the_answer_or_it_is_not() -> None:
    assert answer(text("abc")).is_beginning_of(WHOLE)
    assert answer().is_beginning_of(WHOLE)
    assert not answer(text("bc")).is_beginning_of(WHOLE)
    assert not answer(text("abcd", "stop")).is_beginning_of(WHOLE)
    assert not answer(text("", index=3), text("x", index=3)).is_beginning_of(WHOLE)
    assert not answer(text("ab", logprobs=scores("a"))).is_beginning_of(WHOLE)


def test_chats_are_told_by_delta_and_message() -> None:
    opening = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]}
    rest = {"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": None, "logprobs": {"content": [1]}}]}
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "stop_reason": "x"}]}
    message = {"role": "assistant", "content": "hi"}
    whole = {
        "choices": [
            {"index": 0, "message": message, "finish_reason": "stop", "stop_reason": "x", "logprobs": {"content": [1]}}
        ]
    }
    assert answer(opening, rest, end).difference(answer(whole)) == ""


@pytest.mark.parametrize(
    "raw", [{"choices": [{"text": "x"}]}, {"choices": [{"index": 0, "text": "x"}]}, {"choices": 3}, {"usage": {"a": 1}, "choices": [7]}]
)
def test_what_is_no_answer_is_refused(raw: dict[str, Any]) -> None:
    with pytest.raises(ShapeError):
        Answer().add(raw)


def test_a_choice_that_goes_on_after_its_end_is_refused() -> None:
    with pytest.raises(ShapeError, match="after its end"):
        answer(text("a", "stop"), text("b"))
