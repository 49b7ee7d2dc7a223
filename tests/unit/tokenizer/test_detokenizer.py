from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models

from aphrodited.outputs import FinishReason, RequestOutput, TokenLogprobs, TokenOutput
from aphrodited.sampling_params import SamplingParams
from aphrodited.tokenizer.detokenizer import IncrementalDetokenizer, OutputBuilder
from aphrodited.tokenizer.facts import TokenizerFacts
from aphrodited.tokenizer.tokenizer import Tokenizer
from tests.support.tiny_models import VOCAB_SIZE, build_tiny_tokenizer

END = 2
tiny = Tokenizer(build_tiny_tokenizer(), TokenizerFacts())


def build_sentencepiece() -> Tokenizer:
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁a", "b", "日"]
    fast = FastTokenizer(models.WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token="<unk>"))
    fast.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return Tokenizer(fast, TokenizerFacts())


sentencepiece = build_sentencepiece()


def pieces_of(tokenizer: Tokenizer, ids: list[int], **options: bool) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, **options)
    return [*map(detokenizer.push, ids), detokenizer.flush()]


def builder(tokenizer: Tokenizer | None = tiny, **params: Any) -> OutputBuilder:
    return OutputBuilder("r", "prompt", [5, 6], SamplingParams(**params), tokenizer)


def ids_of(text: str) -> list[int]:
    return tiny.encode(text)


def output(ids: list[int], reason: FinishReason | None = None, **fields: Any) -> TokenOutput:
    return TokenOutput(key=1, token_ids=ids, finish_reason=reason, **fields)


def stop_output(ids: list[int], token_id: int = END) -> TokenOutput:
    return output([*ids, token_id], FinishReason.STOP, stop_token_id=token_id)


def run(made: OutputBuilder, *steps: TokenOutput) -> RequestOutput:
    """The last answer, after checking that the additions add up to the whole."""
    text, ids = "", []
    for step in steps:
        answer = made.add(step)
        text += answer.outputs[0].new_text
        ids += answer.outputs[0].new_token_ids
        assert answer.outputs[0].text == text
        assert answer.outputs[0].token_ids == ids
        if answer.finished:
            break
    return answer


@pytest.mark.parametrize("tokenizer", [tiny, sentencepiece])
@given(data=st.data(), skip_special_tokens=st.booleans())
@settings(deadline=None)
def test_pieces_joined_are_the_whole_decoded(tokenizer: Tokenizer, data: st.DataObject, skip_special_tokens: bool) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 2), max_size=30))
    pieces = pieces_of(tokenizer, ids, skip_special_tokens=skip_special_tokens)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens)


@given(st.text("aé日🎉👩‍🚀 \n", max_size=12))
@settings(deadline=None)
def test_each_character_appears_with_its_last_byte_and_never_in_part(text: str) -> None:
    detokenizer = IncrementalDetokenizer(tiny)
    consumed, shown = b"", ""
    for token_id in tiny.encode(text):
        consumed += tiny.token_bytes(token_id)
        shown += detokenizer.push(token_id)
        assert shown == consumed.decode("utf-8", "ignore")


def test_a_long_run_of_characters_of_several_tokens_is_released_one_by_one() -> None:
    pieces = pieces_of(tiny, tiny.encode("🎉" * 50))
    assert pieces.count("🎉") == 50
    assert set(pieces) == {"🎉", ""}


def test_bytes_that_never_become_a_character_are_replaced_at_the_end() -> None:
    assert pieces_of(tiny, tiny.encode("🎉")[:3]) == ["", "", "", "\ufffd"]


def test_a_leading_space_is_text_only_after_a_prompt() -> None:
    ids = [258, 259]  # "▁a", "b"
    assert "".join(pieces_of(sentencepiece, ids)) == "ab"
    assert "".join(pieces_of(sentencepiece, ids, continues_text=True)) == " ab"


def test_an_answer_grows_and_names_what_is_new() -> None:
    made = builder()
    ids = ids_of("the quick")
    first = made.add(output(ids[:1], num_cached_tokens=3))
    last = made.add(output(ids[1:], FinishReason.LENGTH))
    assert (first.request_id, first.prompt, first.prompt_token_ids, first.finished) == ("r", "prompt", [5, 6], False)
    assert (first.num_cached_tokens, last.num_cached_tokens) == (3, 3)
    assert last.finished
    assert made.finished
    assert last.outputs[0].finish_reason is FinishReason.LENGTH
    assert last.outputs[0].text == "the quick"
    assert last.outputs[0].token_ids is first.outputs[0].token_ids
    assert first.outputs[0].new_token_ids == ids[:1]
    assert last.outputs[0].logprobs is None


def test_the_token_that_ends_an_answer_is_counted_but_not_shown() -> None:
    answer = run(builder(), stop_output(ids_of("the")))
    assert answer.outputs[0].text == "the"
    assert answer.outputs[0].token_ids == [*ids_of("the"), END]
    assert answer.outputs[0].stop_reason is None


def test_a_stop_token_of_the_request_is_its_reason_and_shown_on_demand() -> None:
    (dot,) = ids_of(".")
    hidden = run(builder(stop_token_ids=(dot,)), stop_output(ids_of("the"), dot))
    shown = run(builder(stop_token_ids=(dot,), include_stop_str_in_output=True), stop_output(ids_of("the"), dot))
    assert (hidden.outputs[0].text, hidden.outputs[0].stop_reason) == ("the", dot)
    assert (shown.outputs[0].text, shown.outputs[0].stop_reason) == ("the.", dot)


def test_special_tokens_are_shown_on_demand() -> None:
    ids = [*ids_of("a"), 0, *ids_of("b")]
    assert run(builder(), output(ids, FinishReason.LENGTH)).outputs[0].text == "ab"
    shown = run(builder(skip_special_tokens=False), output(ids, FinishReason.LENGTH))
    assert shown.outputs[0].text == "a<|endoftext|>b"


def test_a_stop_string_across_steps_ends_the_answer() -> None:
    made = builder(stop=("quick",))
    answer = run(made, *(output([token_id]) for token_id in ids_of("the q")), output(ids_of("uick")))
    assert answer.finished
    assert made.stopped_by_string
    assert answer.outputs[0].finish_reason is FinishReason.STOP
    assert answer.outputs[0].stop_reason == "quick"
    assert answer.outputs[0].text == "the "


def test_a_stop_string_amid_a_steps_tokens_drops_the_tokens_after_it() -> None:
    before, after = ids_of("one! two"), ids_of(" three")
    logprobs = [TokenLogprobs(i, -1.0, 1, [], []) for i in [*before, *after]]
    made = builder(stop=("!",), logprobs=0)
    answer = run(made, output([*before, *after], FinishReason.LENGTH, logprobs=logprobs)).outputs[0]
    end = before.index(ids_of("!")[0]) + 1
    assert (answer.text, answer.finish_reason, answer.stop_reason) == ("one", FinishReason.STOP, "!")
    assert answer.token_ids == answer.new_token_ids == before[:end]
    assert answer.logprobs == answer.new_logprobs == logprobs[:end]


def test_the_stop_string_is_shown_on_demand() -> None:
    answer = run(builder(stop=("!",), include_stop_str_in_output=True), output(ids_of("one! two")))
    assert answer.outputs[0].text == "one!"


def test_what_was_held_back_is_shown_when_the_answer_ends() -> None:
    made = builder(stop=("STOP",))
    assert made.add(output(ids_of("a ST"))).outputs[0].text == "a "
    assert made.add(stop_output([])).outputs[0].new_text == "ST"
    assert not made.stopped_by_string


def test_half_a_character_is_replaced_when_the_answer_ends() -> None:
    answer = run(builder(stop=("\ufffd",)), output(ids_of("é")[:1], FinishReason.LENGTH))
    assert (answer.outputs[0].text, answer.outputs[0].stop_reason) == ("", "\ufffd")
    assert run(builder(), output(ids_of("é")[:1], FinishReason.LENGTH)).outputs[0].text == "\ufffd"


def test_a_stop_string_within_the_first_min_tokens_does_not_count() -> None:
    ids = ids_of("!!!")
    assert len(ids) == 3
    answer = run(builder(stop=("!",), min_tokens=2, max_tokens=16), *(output([i]) for i in ids))
    assert (answer.outputs[0].text, answer.outputs[0].stop_reason) == ("!!", "!")


@pytest.mark.parametrize("made", [builder(None, stop=("e",)), builder(detokenize=False, stop=("e",))])
def test_without_detokenising_answers_carry_ids_only(made: OutputBuilder) -> None:
    answer = run(made, output(ids_of("the")), stop_output([]))
    assert (answer.outputs[0].text, answer.outputs[0].finish_reason) == ("", FinishReason.STOP)
    assert answer.outputs[0].token_ids == [*ids_of("the"), END]


def test_logprobs_grow_with_the_tokens() -> None:
    entries = [TokenLogprobs(i, -1.0, 1, [i], [-1.0]) for i in range(3)]
    made = builder(logprobs=1)
    made.add(output([10], logprobs=entries[:1]))
    answer = made.add(output([11, 12], FinishReason.LENGTH, logprobs=entries[1:]))
    assert answer.outputs[0].logprobs == entries
    assert answer.outputs[0].new_logprobs == entries[1:]


@given(
    ids=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=30),
    cuts=st.lists(st.integers(0, 30)),
    stop=st.lists(st.text("the x\ufffd", min_size=1, max_size=3), max_size=2),
)
@settings(deadline=None)
def test_how_tokens_are_grouped_into_steps_makes_no_difference(ids: list[int], cuts: list[int], stop: list[str]) -> None:
    bounds = [0, *sorted(cut for cut in set(cuts) if 0 < cut < len(ids)), len(ids)]
    steps = [output(ids[a:b]) for a, b in pairwise(bounds)]
    steps[-1] = output(steps[-1].token_ids, FinishReason.LENGTH)
    grouped = run(builder(stop=tuple(stop)), *steps).outputs[0]
    whole = run(builder(stop=tuple(stop)), output(ids, FinishReason.LENGTH)).outputs[0]
    assert (grouped.text, grouped.token_ids, grouped.finish_reason, grouped.stop_reason) == (
        whole.text,
        whole.token_ids,
        whole.finish_reason,
        whole.stop_reason,
    )


def test_a_prompts_logprobs_come_with_every_answer_from_the_first_on() -> None:
    made = builder()
    scores = [TokenLogprobs(5, -0.5, 1, [], [])]
    answers = [made.add(output([70], prompt_logprobs=scores)), made.add(output([71]))]
    assert [answer.prompt_logprobs for answer in answers] == [scores, scores]
