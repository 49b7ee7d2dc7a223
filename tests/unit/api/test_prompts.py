"""Messages through a real chat template."""

import json

import pytest

from aphrodited.api.body import decode_body
from aphrodited.api.chat import _decoder
from aphrodited.api.prompts import chat_prompt
from aphrodited.errors import RequestError
from aphrodited.tokenizer.tokenizer import load_tokenizer
from tests.support.tiny_models import write_tiny_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return load_tokenizer(write_tiny_tokenizer(tmp_path_factory.mktemp("model")))


async def ids(tokenizer, size=0, **fields):
    body = decode_body(json.dumps(fields).encode(), _decoder)
    return await chat_prompt(body, body.tools, tokenizer, size)


@pytest.mark.parametrize("size", [0, 10**6])
async def test_the_same_ids_come_from_a_thread(tokenizer, size):
    messages = [{"role": "user", "content": "the fox"}]
    text = tokenizer.decode(await ids(tokenizer, size, messages=messages), skip_special_tokens=False)
    assert text == "<|im_start|>user\nthe fox<|im_end|>\n<|im_start|>assistant\n"


async def test_no_generation_prompt_if_it_is_not_wanted(tokenizer):
    messages = [{"role": "user", "content": "the fox"}]
    found = await ids(tokenizer, messages=messages, add_generation_prompt=False)
    assert tokenizer.decode(found, skip_special_tokens=False).endswith("the fox<|im_end|>\n")


@pytest.mark.parametrize("field", ["tools", "chat_template_kwargs"])
async def test_deep_nesting_is_a_bad_request(tokenizer, field):
    deep: object = "x"
    for _ in range(600):
        deep = {"a": deep}
    value = [deep] if field == "tools" else deep
    with pytest.raises(RequestError, match="deep"):
        await ids(tokenizer, messages=[{"role": "user", "content": "a"}], **{field: value})
