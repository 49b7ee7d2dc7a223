import asyncio

import pytest

from aphrodited import __version__
from aphrodited.api.auth import ApiKeys

CHAT = {"messages": [{"role": "user", "content": "a"}]}


async def test_models_are_listed_and_found_by_ids_with_slashes(client):
    listed = (await (await client.get("/v1/models")).json())["data"]
    assert [(model["id"], model["object"], model["max_model_len"]) for model in listed] == [
        ("fake/model", "model", 256)
    ]
    for path in ("/v1/models/fake/model", "/v1/models/fake%2Fmodel"):
        assert (await (await client.get(path)).json())["id"] == "fake/model"


async def test_health_is_told_without_an_engine(client, stage):
    assert (await client.get("/livez")).status == 200
    assert (await client.get("/readyz?model=fake/model")).status == 200
    assert (await client.get("/health")).status == 200
    assert await (await client.get("/version")).json() == {"version": __version__}
    stage.engine.is_running = False
    assert (await client.get("/livez")).status == 200
    response = await client.get("/readyz")
    assert response.status == 503
    assert (await response.json())["models"]["fake/model"]["state"] == "loading"


@pytest.mark.parametrize("prefix", ["", "/v1"])
async def test_text_goes_to_tokens_and_back(client, prefix):
    tokens = await (await client.post(f"{prefix}/tokenize", json={"prompt": "hi"})).json()
    assert tokens == {"count": 3, "max_model_len": 256, "tokens": [1, 104, 105]}
    text = await (await client.post(f"{prefix}/detokenize", json={"tokens": [104, 105]})).json()
    assert text == {"prompt": "hi"}
    chat = await (await client.post(f"{prefix}/tokenize", json=CHAT)).json()
    assert chat["count"] == len("<user>a<assistant>")


async def test_long_texts_are_tokenised_too(client):
    response = await client.post("/tokenize", json={"prompt": "a" * 20_000})
    assert (await response.json())["count"] == 20_001


@pytest.mark.parametrize(("given", "kept"), [("my-id.1", True), ("two words", False), ("x" * 129, False)])
async def test_the_callers_request_id_is_kept_if_it_is_valid(client, given, kept):
    for path in ("/livez", "/nothing"):
        answered = (await client.get(path, headers={"x-request-id": given})).headers["x-request-id"]
        assert (answered == given) is kept
    response = await client.post("/v1/completions", json={"prompt": "a"}, headers={"x-request-id": given})
    assert ((await response.json())["id"] == f"cmpl-{given}") is kept


async def test_keys_are_asked_for_everywhere_but_at_health(stage, connect):
    stage.keys = ApiKeys(["secret-one", "secret-two"])
    client = await connect()
    for path in ("/livez", "/readyz", "/health", "/version"):
        assert (await client.get(path)).status == 200
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic secret-one"},
                    {"Authorization": "Bearer"}, {"Authorization": "Bearer secret-one2"}):  # fmt: skip
        for path in ("/v1/models", "/metrics", "/nothing"):
            response = await client.get(path, headers=headers)
            assert response.status == 401
            assert (await response.json())["error"]["code"] == "invalid_api_key"
            assert "secret" not in await response.text()
        assert (await client.post("/v1/chat/completions", json=CHAT, headers=headers)).status == 401
    for key in ("secret-one", "secret-two"):
        response = await client.post(
            "/v1/chat/completions", json=CHAT, headers={"Authorization": f"Bearer {key}"}
        )
        assert response.status == 200


@pytest.mark.parametrize(
    "raw", [b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"A" * 20000 + b"\r\n\r\n",
            b"POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 20000 + b"\r\n\r\n"]
)  # fmt: skip
async def test_bytes_that_are_no_request_get_the_error_object_and_a_closed_connection(client, stage, raw):
    reader, writer = await asyncio.open_connection("127.0.0.1", stage.port)
    writer.write(raw)
    answer = await asyncio.wait_for(reader.read(), 5)
    writer.close()
    assert answer.split()[1] == b"400"
    assert b'{"error":{"message":"The bytes received are not a valid HTTP request"' in answer
    assert b"x-request-id: " in answer.lower()


async def test_one_connection_serves_many_requests(client, stage):
    reader, writer = await asyncio.open_connection("127.0.0.1", stage.port)
    for _ in range(3):
        writer.write(b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n")
        assert (await asyncio.wait_for(reader.readuntil(b"}"), 5)).startswith(b"HTTP/1.1 200")
    writer.close()


async def test_a_body_that_never_arrives_is_a_408(stage, client, monkeypatch):
    monkeypatch.setattr("aphrodited.api.body.BODY_TIMEOUT_S", 0.05)
    reader, writer = await asyncio.open_connection("127.0.0.1", stage.port)
    writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n{")
    assert (await asyncio.wait_for(reader.readline(), 5)).startswith(b"HTTP/1.1 408")
    writer.close()
