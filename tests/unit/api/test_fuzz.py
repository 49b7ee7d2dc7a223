"""Whatever JSON comes, the answer is a 200 or a 4xx with the error object: never a 500, never a hang."""

import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aphrodited.api.openai_types import (
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    TokenizeRequest,
)

ROUTES = {
    "/v1/chat/completions": (ChatCompletionRequest, {"messages": [{"role": "user", "content": "a"}]}),
    "/v1/completions": (CompletionRequest, {"prompt": "a"}),
    "/tokenize": (TokenizeRequest, {"prompt": "a"}),
    "/detokenize": (DetokenizeRequest, {"tokens": [65]}),
}

leaves = (
    st.none() | st.booleans() | st.integers() | st.integers(-2, 300) | st.floats() | st.text(max_size=20)
    | st.sampled_from(["auto", "none", "text", "user", "assistant", 2**63, 2**64, -(2**63), 1e308, "\x00", "<user>"])
)  # fmt: skip
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.sampled_from(["role", "content", "type", "text", "name", "function"]) | st.text(max_size=5),
                      inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@st.composite
def requests(draw):
    path = draw(st.sampled_from(sorted(ROUTES)))
    struct, base = ROUTES[path]
    fields = draw(st.dictionaries(st.sampled_from(struct.__struct_fields__), values, max_size=4))
    return path, json.dumps({**base, **fields})


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(request=requests())
async def test_any_fields_are_answered(client, request):
    await check(client, *request)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.sampled_from(sorted(ROUTES)), body=st.binary(max_size=200) | values.map(json.dumps).map(str.encode))
async def test_any_bytes_are_answered(client, path, body):
    await check(client, path, body)


async def check(client, path, body):
    async with client.post(path, data=body) as response:
        text = await response.text()
        assert response.status < 500, (body, text)
        if response.status != 200:
            assert set(json.loads(text)["error"]) == {"message", "type", "param", "code"}
