from pathlib import Path

import pytest

from aphrodited.errors import ConfigError, ModelLoadError, RequestError
from aphrodited.llm import LLM, default_cache_dir
from aphrodited.outputs import FinishReason
from aphrodited.sampling_params import SamplingParams
from aphrodited.tokenizer.tokenizer import load_tokenizer
from tests.support.hub import put_in_hub_cache
from tests.support.tiny_models import write_tiny_llama_dir


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write_tiny_llama_dir(tmp_path_factory.mktemp("model"), weights=False)


@pytest.fixture
def llm(path):
    """Over the null backend, which echoes the prompt's tokens."""
    with LLM(path, backend="null", max_num_seqs=2, max_num_waiting=1) as llm:
        yield llm


def test_one_text_gives_one_answer(llm):
    (output,) = llm.generate("the dog", SamplingParams(max_tokens=6))
    assert output.finished
    assert output.prompt == "the dog"
    assert output.outputs[0].text == llm.tokenizer.decode(output.outputs[0].token_ids)


def test_more_prompts_than_the_queue_holds_are_answered_in_their_order(llm):
    texts = [f"the dog {i}" for i in range(9)]
    outputs = llm.generate(texts, SamplingParams(max_tokens=3))
    assert [output.prompt for output in outputs] == texts
    assert all(output.finished for output in outputs)


def test_token_ids_are_prompts_too(llm):
    params = SamplingParams(max_tokens=2)
    assert llm.generate([30, 31], params)[0].outputs[0].token_ids == [30, 31]
    assert [o.outputs[0].token_ids for o in llm.generate([[30], [31]], params)] == [[30, 30], [31, 31]]


def test_each_prompt_may_have_its_own_parameters(llm):
    outputs = llm.generate([[30], [31]], [SamplingParams(max_tokens=1), SamplingParams(max_tokens=4)])
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1, 4]
    with pytest.raises(ValueError, match="1 sampling_params for 2 prompts"):
        llm.generate([[30], [31]], [SamplingParams()])


def test_a_stop_string_ends_the_answer_and_frees_the_engine(llm):
    (output,) = llm.generate("the dog sleeps", SamplingParams(max_tokens=100, stop=("dog",)))
    assert output.outputs[0].finish_reason is FinishReason.STOP
    assert "dog" not in output.outputs[0].text
    assert not llm._engine.has_unfinished_requests()


def test_a_conversation_is_answered(llm):
    (output,) = llm.chat([{"role": "user", "content": "the dog"}], SamplingParams(max_tokens=8))
    assert output.prompt_token_ids == llm.tokenizer.encode_chat([{"role": "user", "content": "the dog"}])
    two = llm.chat([[{"role": "user", "content": text}] for text in ("a", "b")])
    assert len(two) == 2


def test_prompts_are_embedded_in_their_order(llm):
    texts = [f"the dog {i}" for i in range(9)]
    together = llm.encode(texts, pooling="mean")
    assert [output.prompt_token_ids for output in together] == [llm.tokenizer.encode(text) for text in texts]
    assert [output.data for output in together] == [llm.encode(text, pooling="mean")[0].data for text in texts]
    assert llm.embed(texts[2], pooling="mean") == [together[2].values]


def test_what_cannot_be_embedded_gives_up_the_call_and_leaves_nothing_behind(llm):
    with pytest.raises(RequestError, match="empty"):
        llm.embed([[30], []])
    marker = 319
    with pytest.raises(RequestError, match="not finite"):
        llm.embed([[30], [marker, marker, 4], [31], [32]])
    assert not llm._engine.has_unfinished_requests()


def test_one_bad_prompt_gives_up_the_call_and_leaves_nothing_behind(llm):
    with pytest.raises(RequestError, match="empty"):
        llm.generate([[30], []])
    assert not llm._engine.has_unfinished_requests()
    assert len(llm.generate([[30]])) == 1


def test_no_prompts_give_no_answers(llm):
    assert llm.generate([]) == []


def test_an_unknown_option_is_refused(path):
    with pytest.raises(ConfigError, match="unknown option max_num_sequences"):
        LLM(path, max_num_sequences=4)


def test_a_wrong_value_is_refused(path):
    with pytest.raises(ConfigError, match="max_num_seqs"):
        LLM(path, max_num_seqs="many")


def test_the_cache_lies_where_the_user_keeps_caches(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert str(default_cache_dir()) == "/somewhere/aphrodited"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert str(default_cache_dir()).endswith("/.cache/aphrodited")


def test_a_hub_id_brings_its_tokenizer_from_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    put_in_hub_cache(tmp_path / "hub", "org/name", write_tiny_llama_dir(tmp_path / "model"))
    with LLM("org/name", threads=1) as llm:
        (output,) = llm.generate("the dog", SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True))
        (answer,) = llm.chat([{"role": "user", "content": "the dog"}], SamplingParams(max_tokens=1))
    assert output.outputs[0].text == llm.tokenizer.decode(output.outputs[0].token_ids)
    assert answer.prompt_token_ids[0] == 1


def test_a_hub_id_that_was_never_downloaded_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(ModelLoadError, match=r"org/name: is no path, and not in the cache of downloaded models"):
        load_tokenizer(Path("org/name"))
