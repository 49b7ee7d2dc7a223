from aphrodited.engine.sequence import Sequence
from aphrodited.outputs import FinishReason
from aphrodited.request import GenerateRequest
from aphrodited.sampling_params import SamplingParams


def sequence(prompt=(5, 6, 7), *, num_replayed=0, eos_token_ids=(1, 2), max_model_len=100, **params):
    request = GenerateRequest("r", list(prompt), SamplingParams(**params), num_replayed=num_replayed)
    return Sequence(0, request, seed=9, arrival=0, eos_token_ids=eos_token_ids, max_model_len=max_model_len, vocab_size=100)


def test_every_eos_id_and_stop_token_id_stops():
    for token_id in (1, 2, 30):
        it = sequence(stop_token_ids=(30,))
        it.token_ids.append(token_id)
        assert it.finish_reason() is FinishReason.STOP


def test_ignore_eos_covers_every_eos_id_but_no_stop_token_id():
    it = sequence(ignore_eos=True, stop_token_ids=(30,))
    for token_id in (1, 2):
        it.token_ids.append(token_id)
        assert it.finish_reason() is None
    it.token_ids.append(30)
    assert it.finish_reason() is FinishReason.STOP


def test_max_tokens_ends_it():
    it = sequence(max_tokens=2)
    it.token_ids.append(9)
    assert it.finish_reason() is None
    it.token_ids.append(9)
    assert it.finish_reason() is FinishReason.LENGTH


def test_the_end_of_the_context_ends_it_before_max_tokens():
    it = sequence(max_tokens=50, max_model_len=4)
    it.token_ids.append(9)
    assert it.finish_reason() is FinishReason.LENGTH


def test_without_max_tokens_it_goes_on_to_the_end_of_the_context():
    assert sequence(max_tokens=None, max_model_len=77).max_total_tokens == 77


def test_replayed_tokens_count_as_output():
    it = sequence(range(10), num_replayed=4, max_tokens=6, min_tokens=5)
    assert it.num_output_tokens == 4
    assert it.max_total_tokens == 12
    assert it.sampling_row().forbidden_token_ids == {1, 2}
    it.token_ids.append(50)
    assert it.sampling_row().forbidden_token_ids == frozenset()


def test_the_position_of_a_sampled_token_is_the_same_in_a_later_life():
    first = sequence((5, 6))
    first.token_ids.append(7)
    later = sequence((5, 6, 7), num_replayed=1)
    assert first.sampling_row().position == later.sampling_row().position == 3
