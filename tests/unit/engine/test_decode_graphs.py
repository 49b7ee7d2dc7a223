"""Replayed decoding steps, on the CPU: what a recorder replays is the work itself, over the same buffers."""

from functools import partial

import pytest
import torch

from aphrodited.config.schema import EngineConfig, ModelConfig
from aphrodited.engine.aphrodite_engine import AphroditeEngine
from aphrodited.engine.decode_graphs import SIZES, GraphedModel, graph_sizes
from aphrodited.engine.embedded_backend import create_engine
from aphrodited.engine.kv_cache_pool import KVCachePool
from aphrodited.engine.model_runner import ModelRunner
from aphrodited.engine.scheduler import create_scheduler
from aphrodited.loaders.checkpoint import CheckpointWeights
from aphrodited.loaders.device_weights import DeviceWeights
from aphrodited.loaders.safetensors_files import SafetensorsCheckpoint
from aphrodited.models.build import build_model
from aphrodited.sampling_params import SamplingParams
from tests.support.engine_runs import generate, load, token_ids
from tests.support.tiny_models import write_tiny_llama_dir, write_tiny_neox_dir

CPU = torch.device("cpu")
PROMPTS = [[7, 8, 9], [20, 30, 40, 50, 60, 70, 80], [3], [5, 5, 5, 5], [100 + i for i in range(40)]]
PARAMS = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, logprobs=1)
BLOCK_SIZE = 4


@pytest.fixture(scope="module", params=[write_tiny_llama_dir, write_tiny_neox_dir], ids=["llama", "gpt-neox"])
def path(request, tmp_path_factory):
    return request.param(tmp_path_factory.mktemp("model"))


def device_model(path, dtype):
    """The model as a GPU has it, on the CPU."""
    checkpoint = SafetensorsCheckpoint(path)
    weights = DeviceWeights(CheckpointWeights(checkpoint, lambda *report: None), CPU, dtype)
    return build_model(checkpoint.config, weights, cache_dir=None)


class Recorder:
    """Notes what is replayed: work's output, written into the same tensor every time."""

    def __init__(self):
        self.replayed = []

    def __call__(self, work):
        output = work()

        def replay():
            output.copy_(work())
            self.replayed.append(len(output))
            return output

        return replay


def graphed_engine(model, recorder, max_num_seqs=8):
    config = ModelConfig(
        name="m", path="-", max_model_len=64, engine=EngineConfig(max_num_seqs=max_num_seqs, block_size=BLOCK_SIZE)
    )
    plain = create_engine(config, model)
    pool = KVCachePool(model.config, num_blocks=200, block_size=BLOCK_SIZE, dtype=model.cache_dtype)
    recorded = []
    graphed = GraphedModel(
        model,
        pool.layers,
        max_num_seqs=max_num_seqs,
        max_blocks=64 // BLOCK_SIZE,
        record=recorder,
        on_recorded=partial(recorded.append, 1),
    )
    assert len(recorded) == len(graph_sizes(max_num_seqs))
    assert not any(tensor.any() for layer in pool.layers for tensor in layer)  # recording stores nothing
    return AphroditeEngine(
        plain.facts, create_scheduler(config.engine, 200), ModelRunner(graphed, pool, BLOCK_SIZE)
    )


def close(one, other, tolerance):
    return all(
        abs(a - b) < tolerance for x, y in zip(one, other, strict=True) for (_, a), (_, b) in zip(x, y, strict=True)
    )


def test_the_device_s_classes_in_float32_answer_like_the_cpu_s(path):
    ours = generate(graphed_engine(device_model(path, torch.float32), Recorder()), PROMPTS, PARAMS)
    config = ModelConfig(name="m", path="-", max_model_len=64, engine=EngineConfig(block_size=BLOCK_SIZE))
    theirs = generate(create_engine(config, load(path)), PROMPTS, PARAMS)
    assert [token_ids(run) for run in ours] == [token_ids(run) for run in theirs]
    assert close(ours, theirs, 1e-3)


def test_decoding_steps_are_replayed_and_padded_to_the_next_size(path):
    recorder = Recorder()
    generate(graphed_engine(device_model(path, torch.float32), recorder), PROMPTS, PARAMS)
    assert set(recorder.replayed) == {8}  # five sequences decode together
    assert len(recorder.replayed) == PARAMS.max_tokens - 1


def test_a_batch_larger_than_every_graph_runs_as_it_is(path, monkeypatch):
    monkeypatch.setattr("aphrodited.engine.decode_graphs.SIZES", (1, 2, 4))
    recorder = Recorder()
    engine = graphed_engine(device_model(path, torch.float32), recorder)
    assert len(generate(engine, PROMPTS, PARAMS)) == len(PROMPTS)
    assert recorder.replayed == []


def test_bfloat16_answers_almost_alike(path):
    model = device_model(path, torch.bfloat16)
    assert model.dtype is torch.bfloat16
    assert model.nondeterminism
    params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=1)  # one token: later ones may part at a tie
    ours = generate(graphed_engine(model, Recorder()), PROMPTS, params)
    theirs = generate(graphed_engine(device_model(path, torch.float32), Recorder()), PROMPTS, params)
    assert close(ours, theirs, 0.1)


@pytest.mark.parametrize("max_num_seqs", [1, 3, 8, 100, 512, 4096])
def test_sizes_ascend_to_what_a_step_may_hold(max_num_seqs):
    sizes = graph_sizes(max_num_seqs)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == min(max_num_seqs, SIZES[-1])
