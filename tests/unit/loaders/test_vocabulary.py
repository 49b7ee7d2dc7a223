from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from aphrodited.errors import ModelLoadError, RequestError
from aphrodited.loaders.gguf_checkpoint import GgufCheckpoint
from aphrodited.loaders.safetensors_files import SafetensorsCheckpoint
from aphrodited.loaders.vocabulary import count_token_ids
from aphrodited.request import GenerateRequest
from aphrodited.sampling_params import SamplingParams
from tests.support.engine_runs import engine_of, generate, load, token_ids
from tests.support.teacher import prompt_logits
from tests.support.tiny_gguf import byte_level_metadata
from tests.support.tiny_gguf_models import write_gguf_model
from tests.support.tiny_models import build_tiny_tokenizer, write_tiny_llama_dir, write_tiny_neox_dir

NUM_IDS = build_tiny_tokenizer().get_vocab_size()
NUM_ROWS = NUM_IDS + 64
PROMPT = [5, 7, 200, 31, 9]
UNUSED = 5


def test_ids_are_counted_in_every_kind_of_tokenizer(tmp_path: Path) -> None:
    def count(model: object, added: list[dict[str, object]]) -> int | None:
        (tmp_path / "tokenizer.json").write_text(json.dumps({"model": model, "added_tokens": added, "version": "1.0"}))
        return count_token_ids(tmp_path)

    assert count({"type": "BPE", "vocab": {"a": 0, "b": 7}, "merges": []}, []) == 8
    assert count({"type": "BPE", "vocab": {"a": 0}}, [{"id": 9, "content": "<|end|>"}]) == 10
    assert count({"type": "Unigram", "vocab": [["a", -1.0], ["b", -2.0]]}, [{"id": 0, "content": "a"}]) == 2
    assert count({"type": "BPE", "vocab": {}}, []) is None
    assert count_token_ids(tmp_path / "nowhere") is None


@pytest.mark.parametrize("text", ["", "[]", '{"model": {"vocab": 3}}', "{" * 10])
def test_a_damaged_tokenizer_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ModelLoadError, match=r"tokenizer\.json: is not a tokenizer"):
        count_token_ids(tmp_path)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("write", [write_tiny_llama_dir, write_tiny_neox_dir])
def test_ids_that_the_tokenizer_lacks_have_no_logits(write: object, tied: bool, tmp_path: Path) -> None:
    directory = write(tmp_path / "model", vocab_size=NUM_ROWS, tie_word_embeddings=tied)  # type: ignore[operator]
    logits = prompt_logits(load(directory), PROMPT)
    (directory / "tokenizer.json").unlink()
    whole = prompt_logits(load(directory), PROMPT)
    assert (logits.shape[1], whole.shape[1]) == (NUM_IDS, NUM_ROWS)
    torch.testing.assert_close(logits, whole[:, :NUM_IDS])


def test_unused_rows_at_the_end_of_a_gguf_vocabulary_have_no_logits(tmp_path: Path) -> None:
    directory = write_tiny_llama_dir(tmp_path / "model", vocab_size=NUM_ROWS)
    vocabulary = byte_level_metadata()
    padding = [f"[PAD{i}]" for i in range(NUM_IDS, NUM_ROWS)]
    metadata = {
        "tokenizer.ggml.tokens": vocabulary["tokenizer.ggml.tokens"] + padding,
        "tokenizer.ggml.token_type": vocabulary["tokenizer.ggml.token_type"] + [UNUSED] * len(padding),
    }
    file = write_gguf_model(tmp_path / "model.gguf", directory, metadata=metadata)
    assert GgufCheckpoint(file).config.num_token_ids == NUM_IDS
    assert torch.equal(prompt_logits(load(file), PROMPT), prompt_logits(load(directory), PROMPT))


def test_padding_is_never_sampled_and_no_request_may_name_it(tmp_path: Path) -> None:
    directory = write_tiny_llama_dir(tmp_path / "model", vocab_size=NUM_ROWS)
    engine = engine_of(load(directory))
    assert engine.facts.vocab_size == NUM_IDS
    wild = SamplingParams(temperature=50.0, max_tokens=100, ignore_eos=True, logprobs=0, seed=1)
    assert max(token_ids(generate(engine, [PROMPT], wild)[0])) < NUM_IDS
    with pytest.raises(RequestError, match=f"from 0 to {NUM_IDS - 1}"):
        engine.add_request(0, GenerateRequest("r", [NUM_IDS], SamplingParams()))


def test_ends_beyond_the_tokenizer_are_dropped_and_every_other_one_ends_an_answer(tmp_path: Path) -> None:
    directory = write_tiny_llama_dir(tmp_path / "model", vocab_size=NUM_ROWS, eos_token_id=[2, NUM_ROWS - 1])
    assert SafetensorsCheckpoint(directory).config.eos_token_ids == (2,)
    params = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, logprobs=0)
    answer = token_ids(generate(engine_of(load(directory)), [PROMPT], params)[0])
    for end in (answer[3], answer[6]):
        path = write_tiny_llama_dir(tmp_path / str(end), vocab_size=NUM_ROWS, eos_token_id=[2, 1, end])
        params = SamplingParams(temperature=0.0, max_tokens=40, min_tokens=2, logprobs=0)
        ended = token_ids(generate(engine_of(load(path)), [PROMPT], params)[0])
        assert ended == answer[: answer.index(end, 2) + 1]
