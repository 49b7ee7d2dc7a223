import json
import os

import pytest

from aphrodited.config.schema import ModelConfig
from aphrodited.engine.factory import create_backend
from aphrodited.engine.null_backend import (
    DEFAULT_HIDDEN_SIZE,
    DEFAULT_VOCAB_SIZE,
    Drill,
    DrillError,
    NullModel,
    NullRunner,
    create_null_backend,
)
from aphrodited.errors import ModelLoadError
from aphrodited.outputs import FinishReason
from aphrodited.procfs import resident_bytes
from aphrodited.request import EncodeRequest, GenerateRequest
from aphrodited.sampling_params import SamplingParams

MARKER = DEFAULT_VOCAB_SIZE - 1


@pytest.fixture
def engine():
    return create_null_backend(ModelConfig(name="m", path="/none", backend="null"))


def generate(engine, prompt, *, key=1, num_replayed=0, **params):
    engine.add_request(key, GenerateRequest("r", prompt, SamplingParams(**params), num_replayed=num_replayed))
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    return outputs


def tokens(outputs):
    return [token_id for output in outputs for token_id in output.token_ids]


class Crashed(Exception):
    """Instead of the end of this process."""


def crash():
    raise Crashed


@pytest.mark.parametrize(("poison_after", "num_steps"), [(0, 1), (1, 2), (3, 4)])
def test_a_poison_token_ends_the_process_after_so_many_tokens(tmp_path, poison_after, num_steps):
    (tmp_path / "config.json").write_text(json.dumps({"poison_token": 11, "poison_after": poison_after}))
    engine = create_null_backend(ModelConfig(name="m", path=str(tmp_path), backend="null"))
    engine._runner._crash = crash
    assert len(tokens(generate(engine, [10, 12], max_tokens=5))) == 5
    engine.add_request(1, GenerateRequest("r", [10, 11, 12], SamplingParams(max_tokens=9)))
    engine.add_request(2, GenerateRequest("r", [10, 12], SamplingParams(max_tokens=9)))
    for _ in range(num_steps - 1):
        engine.step()
    with pytest.raises(Crashed):
        engine.step()


class Hanging(Exception):
    """Instead of sleeping for an hour."""


class FakeSleep:
    def __init__(self):
        self.slept_s = 0.0

    def __call__(self, seconds):
        if seconds > 60:
            raise Hanging
        self.slept_s += seconds


def test_the_prompt_is_echoed(engine):
    assert tokens(generate(engine, [10, 11, 12], max_tokens=5)) == [10, 11, 12, 10, 11]


def test_a_resumed_request_goes_on_where_it_was(engine):
    whole = tokens(generate(engine, [10, 11, 12], max_tokens=7))
    resumed = tokens(generate(engine, [10, 11, 12, *whole[:4]], key=2, num_replayed=4, max_tokens=7))
    assert whole[:4] + resumed == whole


def test_a_stop_token_stops_but_not_before_min_tokens(engine):
    outputs = generate(engine, [10, 11, 12], stop_token_ids=(11,), max_tokens=9)
    assert (tokens(outputs), outputs[-1].finish_reason) == ([10, 11], FinishReason.STOP)
    outputs = generate(engine, [10, 11, 12], key=2, stop_token_ids=(11,), min_tokens=4, max_tokens=9)
    assert tokens(outputs) == [10, 12, 12, 10, 11]


def test_eos_ids_are_not_echoed(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 50, "eos_token_id": [3, 4], "other": 1}))
    engine = create_null_backend(ModelConfig(name="m", path=str(tmp_path), backend="null"))
    assert engine.facts.vocab_size == 50
    assert engine.facts.eos_token_ids == (3, 4)
    assert set(tokens(generate(engine, [3, 9, 4, 49], max_tokens=8))) == {9}
    assert tokens(generate(engine, [3], key=2, max_tokens=2)) == [0, 0]


def test_logprobs_are_certain(engine):
    (output,) = generate(engine, [10], max_tokens=1, logprobs=2)
    assert (output.logprobs[0].logprob, output.logprobs[0].top_token_ids) == (0.0, [10])


def test_a_step_can_be_made_to_raise(engine):
    with pytest.raises(DrillError, match="after 2 tokens"):
        generate(engine, [MARKER, MARKER, Drill.RAISE, 2], max_tokens=9)
    assert engine.stats().num_generated_tokens == 2


def test_a_request_can_be_made_to_fail_alone(engine):
    outputs = generate(engine, [MARKER, MARKER, Drill.NOT_FINITE, 1, 5], max_tokens=9)
    assert [output.finish_reason for output in outputs] == [None, FinishReason.ERROR]


def test_a_step_can_be_made_to_hang_without_progress(engine):
    engine._runner = NullRunner(NullModel(), sleep=FakeSleep())
    ticks = []
    engine.on_progress = lambda: ticks.append(1)
    with pytest.raises(Hanging):
        generate(engine, [MARKER, MARKER, Drill.HANG], max_tokens=9)
    assert ticks == []


def test_memory_can_be_made_to_leak(engine):
    before = resident_bytes(os.getpid())
    generate(engine, [MARKER, MARKER, Drill.LEAK, 300], max_tokens=3)
    assert resident_bytes(os.getpid()) - before > 200 * 1024**2, "what other tests leave to be freed is less than the rest"


def test_a_step_can_be_made_slow_with_progress(engine):
    sleep = FakeSleep()
    engine._runner = NullRunner(NullModel(), sleep=sleep)
    ticks = []
    engine.on_progress = lambda: ticks.append(1)
    generate(engine, [MARKER, MARKER, Drill.SLOW, 30, 5], max_tokens=3)
    assert sleep.slept_s == pytest.approx(30)
    assert len(ticks) > 500


def test_the_pace_is_what_config_json_says(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"null_step_s": 0.25}))
    engine = create_null_backend(ModelConfig(name="m", path=str(tmp_path), backend="null"))
    engine._runner._sleep = sleep = FakeSleep()
    generate(engine, [5], max_tokens=4)
    assert sleep.slept_s == pytest.approx(1.0)


def test_a_damaged_config_json_is_named(tmp_path):
    (tmp_path / "config.json").write_text('{"vocab_size": "many"}')
    with pytest.raises(ModelLoadError, match=r"config\.json.*vocab_size"):
        create_null_backend(ModelConfig(name="m", path=str(tmp_path), backend="null"))


def test_the_factory_makes_it_and_reports():
    reports = []
    backend = create_backend(
        ModelConfig(name="m", path="/none", backend="null"), "/none", lambda progress, what: reports.append(progress)
    )
    assert backend.facts.backend == "null"
    assert reports[-1] == 1.0


def embedding(engine, prompt, **options):
    engine.add_request(1, EncodeRequest("r", prompt, **options))
    outputs = []
    while engine.has_unfinished_requests():
        outputs += engine.step()
    (output,) = outputs
    return output


def test_embeddings_are_a_function_of_the_prompt(engine):
    first = embedding(engine, [10, 11, 12], pooling="mean").embedding
    assert first == embedding(engine, [10, 11, 12], pooling="mean").embedding
    assert first != embedding(engine, [10, 11, 13], pooling="mean").embedding
    assert embedding(engine, [9, 12]).embedding == embedding(engine, [12]).embedding
    assert len(first) == 4 * DEFAULT_HIDDEN_SIZE == 4 * engine.facts.embedding_size


def test_an_embedding_can_be_made_to_fail_alone(engine):
    output = embedding(engine, [MARKER, MARKER, Drill.NOT_FINITE])
    assert (output.finish_reason, output.error[0]) == (FinishReason.ERROR, "not_finite")


def test_a_prompt_of_which_nothing_may_be_echoed_does_not_end_the_engine(tmp_path):
    (tmp_path / "config.json").write_text('{"vocab_size": 8}')
    engine = create_null_backend(ModelConfig(name="m", path=str(tmp_path)))
    params = SamplingParams(max_tokens=1, min_tokens=1, stop_token_ids=tuple(range(7)))
    engine.add_request(1, GenerateRequest("r", [1, 2], params))
    (output,) = engine.step()
    assert output.token_ids == [7]
