"""What every client does with text, with an engine that echoes."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from aphrodited.errors import RequestError
from aphrodited.outputs import FinishReason, TokenOutput
from aphrodited.request import EncodeRequest, EngineRequest, GenerateRequest
from aphrodited.sampling_params import SamplingParams
from aphrodited.streams import TokenStream
from aphrodited.tokenizer.text_client import LONG_PROMPT, TextClient
from aphrodited.tokenizer.tokenizer import Tokenizer, load_tokenizer
from tests.support.tiny_models import write_tiny_tokenizer


class EchoClient(TextClient):
    """Answers with the prompt's ids, one at a time; an embedding is the number of them."""

    def __init__(self, tokenizer: Tokenizer | None = None, tokenizer_path: Path | None = None) -> None:
        super().__init__(tokenizer, tokenizer_path)
        self.requests: list[EngineRequest] = []

    @asynccontextmanager
    async def open(self, request: EngineRequest) -> AsyncIterator[TokenStream]:
        self.requests.append(request)
        ids = request.prompt_token_ids
        stream = TokenStream(1, request.request_id, len(ids))
        if isinstance(request, EncodeRequest):
            stream.put(TokenOutput(1, [], FinishReason.STOP, embedding=struct.pack("<f", len(ids))))
        else:
            for place, token_id in enumerate(ids, start=1):
                stream.put(TokenOutput(1, [token_id], FinishReason.LENGTH if place == len(ids) else None))
        yield stream


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_tokenizer(tmp_path_factory.mktemp("model"))


async def test_a_text_becomes_ids_and_ids_become_text(model_path: Path) -> None:
    client = EchoClient(load_tokenizer(model_path))
    answers = [answer async for answer in client.generate("the quick fox", SamplingParams(), "r", priority=3)]
    assert answers[-1].prompt == "the quick fox"
    assert answers[-1].outputs[0].text == "the quick fox"
    (request,) = client.requests
    assert isinstance(request, GenerateRequest)
    assert (request.priority, answers[-1].prompt_token_ids) == (3, request.prompt_token_ids)


async def test_a_tokenizer_is_loaded_at_first_use(model_path: Path) -> None:
    client = EchoClient(tokenizer_path=model_path)
    answers = [answer async for answer in client.generate("the fox", SamplingParams(), "r")]
    assert answers[-1].outputs[0].text == "the fox"


async def test_a_long_prompt_is_tokenised_as_a_short_one_is(model_path: Path) -> None:
    tokenizer = load_tokenizer(model_path)
    client, text = EchoClient(tokenizer), "the quick fox " * (LONG_PROMPT // 14 + 1)
    assert (await client.encode(text, "r")).prompt_token_ids == tokenizer.encode(text)


async def test_without_a_tokenizer_there_are_ids_only() -> None:
    client = EchoClient()
    answers = [answer async for answer in client.generate([5, 6], SamplingParams(), "r")]
    assert (answers[-1].outputs[0].text, answers[-1].outputs[0].token_ids) == ("", [5, 6])
    assert (await client.encode([5, 6, 7], "r")).values == (3.0,)
    with pytest.raises(RequestError, match="needs a tokenizer"):
        await client.encode("text", "r")


async def test_bad_parameters_reach_no_engine() -> None:
    client = EchoClient()
    with pytest.raises(RequestError):
        await anext(client.generate([5], SamplingParams(temperature=-1.0), "r"))
    assert client.requests == []
