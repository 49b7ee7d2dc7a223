"""The engine's door and step, over the null runner: what is common to every runner."""

import math

import msgspec
import pytest

from aphrodited.config.schema import EngineConfig, ModelConfig
from aphrodited.engine.null_backend import create_null_backend
from aphrodited.errors import ContextLengthError, QueueFullError, RequestError
from aphrodited.flight import UNKNOWN
from aphrodited.interfaces import StepPlan
from aphrodited.outputs import FinishReason
from aphrodited.request import EncodeRequest, GenerateRequest
from aphrodited.sampling_params import SamplingParams

VOCAB_SIZE = 131072


def create(max_model_len=64, **engine):
    return create_null_backend(
        ModelConfig(name="m", path="/none", max_model_len=max_model_len, engine=EngineConfig(**engine))
    )


def request(prompt=(5, 6, 7), *, num_replayed=0, **params):
    return GenerateRequest("r", list(prompt), SamplingParams(**params), num_replayed=num_replayed)


def run(engine):
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    return outputs


@pytest.mark.parametrize(
    ("bad", "param"),
    [
        (request(()), "prompt"),
        (request([VOCAB_SIZE]), "prompt"),
        (request([5, -1]), "prompt"),
        (request(stop_token_ids=(VOCAB_SIZE,)), "stop_token_ids"),
        (request(temperature=-1.0), "temperature"),
        (request(temperature=math.nan), "temperature"),
        (request(top_p=0.0), "top_p"),
        (request(max_tokens=0), "max_tokens"),
        (request(num_replayed=3), "num_replayed"),
        (request(num_replayed=-1), "num_replayed"),
        (request(num_replayed=2, max_tokens=2), "num_replayed"),
    ],
)
def test_a_bad_request_is_refused_by_its_parameter_and_nothing_is_accepted(bad, param):
    engine = create()
    with pytest.raises(RequestError) as caught:
        engine.add_request(1, bad)
    assert caught.value.param == param
    assert not engine.has_unfinished_requests()


def test_a_prompt_that_fills_the_context_is_refused():
    engine = create(max_model_len=8)
    engine.add_request(1, request(range(7)))
    with pytest.raises(ContextLengthError, match="8 tokens"):
        engine.add_request(2, request(range(8)))


def test_max_tokens_beyond_the_context_ends_with_length():
    engine = create(max_model_len=8)
    engine.add_request(1, request(range(5), max_tokens=1000))
    outputs = run(engine)
    assert len(outputs) == 3
    assert outputs[-1].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("bad", "param"),
    [
        (EncodeRequest("r", []), "prompt"),
        (EncodeRequest("r", [VOCAB_SIZE]), "prompt"),
        (EncodeRequest("r", [5], pooling="max"), "pooling"),
    ],
)
def test_what_cannot_be_embedded_is_refused_by_its_parameter(bad, param):
    engine = create()
    with pytest.raises(RequestError) as caught:
        engine.add_request(1, bad)
    assert caught.value.param == param
    assert not engine.has_unfinished_requests()


def test_a_prompt_to_embed_may_fill_the_context_and_not_more():
    engine = create(max_model_len=8)
    engine.add_request(1, EncodeRequest("r", list(range(8))))
    with pytest.raises(ContextLengthError, match="9 tokens"):
        engine.add_request(2, EncodeRequest("r", list(range(9))))
    (output,) = run(engine)
    assert len(output.embedding) == 4 * engine.facts.embedding_size


def test_a_model_that_gives_no_embeddings_says_so():
    engine = create()
    engine.facts = msgspec.structs.replace(engine.facts, embedding_size=0)
    with pytest.raises(RequestError) as caught:
        engine.add_request(1, EncodeRequest("r", [5]))
    assert caught.value.code == "embeddings_not_supported"


def test_an_embedding_is_one_output_and_is_counted():
    engine = create(max_num_batched_tokens=16)
    engine.add_request(1, EncodeRequest("r", list(range(40))))
    engine.add_request(2, request(range(5), max_tokens=3))
    outputs = [output for output in run(engine) if output.key == 1]
    assert [(o.token_ids, o.finish_reason) for o in outputs] == [([], FinishReason.STOP)]
    stats = engine.stats()
    assert (stats.num_prompt_tokens, stats.num_generated_tokens, stats.num_finished) == (45, 3, 2)
    assert (stats.num_running, stats.num_blocks_used) == (0, 0)


def test_a_full_queue_is_told():
    engine = create(max_num_seqs=1, max_num_waiting=1)
    engine.add_request(1, request())
    engine.add_request(2, request())
    with pytest.raises(QueueFullError):
        engine.add_request(3, request())


def test_a_step_without_work_does_nothing():
    engine = create()
    assert engine.step() == []
    assert engine.stats().num_steps == 0


def test_the_plan_is_told_before_the_step_computes_and_progress_while_it_does():
    engine = create()
    seen = []
    engine.on_plan = seen.append
    engine.on_progress = lambda: seen.append("progress")
    engine.add_request(1, request(range(5)))
    engine.step()
    assert seen[0] == StepPlan(5, 1, [UNKNOWN], [5])
    assert "progress" in seen[1:]


def test_an_aborted_request_gets_no_further_output():
    engine = create()
    engine.add_request(1, request())
    engine.step()
    assert engine.abort_request(1)
    assert not engine.abort_request(1)
    assert not engine.has_unfinished_requests()
    assert engine.step() == []


def test_a_request_without_a_seed_is_given_its_own():
    engine = create()
    engine.add_request(1, request(seed=None))
    engine.add_request(2, request(seed=None))
    first, second = engine._scheduler._sequences.values()
    assert first.seed != second.seed


def test_warming_up_leaves_no_trace():
    engine = create()
    before = engine.stats()
    engine.warm_up()
    assert engine.stats() == before


def test_a_context_of_two_tokens_can_be_warmed_up():
    create(max_model_len=2).warm_up()
