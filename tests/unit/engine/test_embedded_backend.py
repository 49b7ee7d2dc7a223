"""The real engine over tiny models: whatever happens to a request on its way, its tokens are the same bits."""

import random
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file

from aphrodited.config.schema import EngineConfig, ModelConfig
from aphrodited.engine.factory import create_backend
from aphrodited.engine.kv_cache_pool import kv_block_bytes
from aphrodited.errors import ConfigError, ModelLoadError
from aphrodited.layers import paged_attention
from aphrodited.request import EncodeRequest, GenerateRequest, Pooling
from aphrodited.sampling_params import SamplingParams
from tests.support.engine_runs import embed, engine_of, load
from tests.support.tiny_models import VOCAB_SIZE, write_tiny_llama_dir, write_tiny_neox_dir

NUM_REQUESTS = 10
BLOCK_SIZE = 4  # small, so that sequences often need another block


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Threads of tiny products spend their time waiting for each other, on a busy machine most of it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=[write_tiny_llama_dir, write_tiny_neox_dir], ids=["llama", "gpt-neox"])
def path(request, tmp_path_factory):
    return request.param(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def model(path):
    return load(path)


@pytest.fixture
def create(model):
    return partial(engine_of, model, block_size=BLOCK_SIZE)


def requests():
    """Prompts that share beginnings, every kind of sampling, logprobs to compare with."""
    chooser = random.Random(11)
    beginning = [chooser.randrange(VOCAB_SIZE) for _ in range(40)]
    made = []
    for i in range(NUM_REQUESTS):
        prompt = beginning[: chooser.choice([0, 16, 40])] + [
            chooser.randrange(VOCAB_SIZE) for _ in range(chooser.randrange(1, 30))
        ]
        params = SamplingParams(
            temperature=chooser.choice([0.0, 0.7, 1.5]),
            top_k=chooser.choice([0, 20]),
            top_p=chooser.choice([1.0, 0.9]),
            min_p=chooser.choice([0.0, 0.02]),
            seed=i,
            max_tokens=25,
            min_tokens=chooser.choice([0, 25]),
            stop_token_ids=(5, 6),
            logprobs=3,
        )
        made.append(GenerateRequest(str(i), prompt, params, priority=chooser.choice([0, 1])))
    return made


def run(engine, some):
    """Token ids and exact logprobs of each request."""
    for key, request in enumerate(some):
        engine.add_request(key, request)
    answers = [[] for _ in some]
    while engine.has_unfinished_requests():
        for output in engine.step():
            answers[output.key] += zip(output.token_ids, output.logprobs, strict=True)
    return answers


@pytest.fixture(scope="module")
def expected(model):
    """Each request alone, nothing cached."""
    engine = engine_of(model, block_size=BLOCK_SIZE, enable_prefix_caching=False)
    return [run(engine, [request])[0] for request in requests()]


def test_batched_equals_alone(create, expected):
    assert run(create(), requests()) == expected


def test_chunked_equals_whole(create, expected):
    assert run(create(max_num_batched_tokens=16), requests()) == expected


def test_preempted_equals_not_preempted(create, expected, model):
    # 34 blocks: one sequence at its longest has 32
    engine = create(kv_cache_memory=34 * kv_block_bytes(model.config, BLOCK_SIZE, model.cache_dtype))
    assert run(engine, requests()) == expected
    assert engine.stats().num_preemptions > 0


def test_cached_equals_cold(create, expected):
    engine = create()
    run(engine, requests())
    assert run(engine, requests()) == expected
    assert engine.stats().num_cached_tokens > 0


def test_resumed_equals_undisturbed(create, expected):
    resumed, cuts = [], []
    for request, answer in zip(requests(), expected, strict=True):
        cut = len(answer) // 2
        cuts.append(cut)
        prompt = request.prompt_token_ids + [token_id for token_id, _ in answer[:cut]]
        resumed.append(GenerateRequest("r", prompt, request.sampling_params, num_replayed=cut))
    assert run(create(), resumed) == [answer[cut:] for answer, cut in zip(expected, cuts, strict=True)]


@pytest.fixture(scope="module", params=Pooling)
def embeddings(request, model):
    """How, and each prompt's embedding alone, nothing cached."""
    engine = engine_of(model, block_size=BLOCK_SIZE, enable_prefix_caching=False)
    return request.param, [embed(engine, [each.prompt_token_ids], request.param)[0] for each in requests()]


def prompts():
    return [request.prompt_token_ids for request in requests()]


@pytest.mark.parametrize("options", [{}, {"max_num_batched_tokens": 16}], ids=["whole", "chunked"])
def test_embeddings_do_not_depend_on_the_batch(create, embeddings, options):
    pooling, expected = embeddings
    assert embed(create(**options), prompts(), pooling) == expected


def test_embeddings_do_not_depend_on_cached_prefixes(create, embeddings):
    pooling, expected = embeddings
    engine = create()
    run(engine, requests())
    num_cached = engine.stats().num_cached_tokens
    assert embed(engine, prompts(), pooling) == expected
    is_cached = engine.stats().num_cached_tokens > num_cached
    assert is_cached is (pooling is Pooling.LAST)  # the mean needs every token's hidden state


def test_embeddings_do_not_depend_on_preemption(create, embeddings, model):
    pooling, expected = embeddings
    longest = max(range(NUM_REQUESTS), key=lambda key: len(prompts()[key]))
    # It gets two tokens of each step, while four others of a higher rank grow into its blocks.
    engine = create(max_num_batched_tokens=6, kv_cache_memory=34 * kv_block_bytes(model.config, BLOCK_SIZE, model.cache_dtype))
    for key in range(4):
        engine.add_request(key, GenerateRequest("g", [key], SamplingParams(max_tokens=30, ignore_eos=True)))
    engine.add_request(9, EncodeRequest("e", prompts()[longest], pooling, priority=1))
    made = [output.embedding for _ in range(200) for output in engine.step() if output.embedding is not None]
    assert made == [expected[longest]]
    assert engine.stats().num_preemptions == 1


def test_a_generated_answer_is_not_disturbed_by_embeddings_beside_it(create, expected):
    engine = create(max_num_batched_tokens=32)
    for key, prompt in enumerate(prompts()):
        engine.add_request(1000 + key, EncodeRequest("e", prompt, Pooling.MEAN))
    answers = [[] for _ in expected]
    for key, request in enumerate(requests()):
        engine.add_request(key, request)
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.key < 1000:
                answers[output.key] += zip(output.token_ids, output.logprobs, strict=True)
    assert answers == expected


def test_the_size_of_blocks_changes_no_bit_and_no_fingerprint(model):
    small, large = engine_of(model, block_size=4), engine_of(model, block_size=32, max_num_seqs=3)
    assert small.facts.fingerprint == large.facts.fingerprint
    assert run(small, requests()) == run(large, requests())


def test_loading_reports_its_progress_and_leaves_no_trace_of_the_warm_up(path, tmp_path):
    reports = []
    engine = create_backend(
        ModelConfig(name="m", path=str(path), engine=EngineConfig(threads=1)), tmp_path, lambda progress, what: reports.append(progress)
    )
    assert reports == sorted(reports)
    assert reports[-1] == 1.0
    stats = engine.stats()
    assert (stats.num_steps, stats.num_generated_tokens, stats.num_blocks_used) == (0, 0, 0)


def test_every_layer_is_a_sign_of_progress(create):
    engine = create()
    ticks = []
    engine.on_progress = lambda: ticks.append(1)
    engine.add_request(1, requests()[0])
    engine.step()
    assert len(ticks) > 1


def test_a_missing_model_is_named(tmp_path):
    with pytest.raises(ModelLoadError, match="nowhere"):
        create_backend(ModelConfig(name="m", path=str(tmp_path / "nowhere")), tmp_path, lambda *report: None)


OVERFLOWS = 7  # a token whose hidden state is too large for the first norm


@pytest.fixture(scope="module")
def overflowing(tmp_path_factory):
    directory = write_tiny_neox_dir(tmp_path_factory.mktemp("overflowing"))
    tensors = load_file(directory / "model.safetensors")
    tensors["gpt_neox.embed_in.weight"][OVERFLOWS, :2] = torch.tensor([3e38, -3e38])
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return load(directory)


@pytest.mark.parametrize("options", [{}, {"max_num_batched_tokens": 16}], ids=["whole", "chunked"])
def test_a_request_that_overflows_fails_alone_whatever_it_shares(overflowing, options):
    good = [GenerateRequest("g", [*range(20, 60), i], SamplingParams(seed=i, max_tokens=9, logprobs=3)) for i in range(4)]
    create = partial(engine_of, overflowing, block_size=BLOCK_SIZE)
    expected = [run(create(enable_prefix_caching=False), [request])[0] for request in good]

    engine = create(**options)
    bad_prompts = [[*range(20, 50), OVERFLOWS, *range(30)], [OVERFLOWS, *range(20, 60)]]
    for _ in range(2):  # the second time what is left of the first lies in the cache
        for key, prompt in enumerate(bad_prompts):
            engine.add_request(100 + key, GenerateRequest("b", prompt, SamplingParams(logprobs=3)))
            engine.add_request(200 + key, EncodeRequest("b", prompt, Pooling.MEAN))
        for key, request in enumerate(good):
            engine.add_request(key, request)
        answers, errors = [[] for _ in good], {}
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.error is None:
                    answers[output.key] += zip(output.token_ids, output.logprobs, strict=True)
                else:
                    assert output.key not in errors
                    errors[output.key] = output.error[0]
        assert answers == expected
        assert errors == dict.fromkeys([100, 101, 200, 201], "not_finite")
        assert engine.stats().num_blocks_used == 0


def test_ends_that_the_model_cannot_write_are_let_be(tmp_path):
    engine = engine_of(load(write_tiny_llama_dir(tmp_path, eos_token_id=[2, VOCAB_SIZE, 10 * VOCAB_SIZE])))
    (answer,) = run(engine, [GenerateRequest("g", [5, 6], SamplingParams(min_tokens=3, max_tokens=3, logprobs=0))])
    assert len(answer) == 3
    assert engine.facts.eos_token_ids == (2,)


def test_an_engine_is_no_longer_than_what_its_model_was_prepared_for(path):
    with pytest.raises(ConfigError, match="was loaded for 64 tokens, not 128"):
        engine_of(load(path, max_positions=64))


def test_an_engine_forced_onto_plain_torch_says_so(path, monkeypatch):
    monkeypatch.setattr(paged_attention, "load_kernels", lambda cache_dir: None)
    facts = engine_of(load(path)).facts
    assert not facts.deterministic
    assert "torch" in facts.nondeterminism
