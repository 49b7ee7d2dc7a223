import asyncio

import pytest

from aphrodited.api.context import CONTEXT
from aphrodited.api.served_model import Availability, ServedModel
from tests.support.sse import events
from tests.support.waiting import wait_until

URL = "/v1/completions"


async def test_a_request_is_held_until_the_engine_runs(client, stage):
    stage.engine.is_running = False
    asking = asyncio.create_task(client.post(URL, json={"prompt": "a"}))
    await wait_until(lambda: stage.app[CONTEXT].admission.num_held == 1)
    stage.engine.is_running = True
    assert (await asking).status == 200


@pytest.mark.parametrize(
    ("expected", "code", "retry_after"),
    [
        (Availability("parked", 300.2, "no such file"), "ENGINE_DEAD", "301"),
        (Availability("backoff", 10.0, "it crashed"), "ENGINE_STARTING", "10"),
        (Availability("stopped", None, "it was stopped"), "ENGINE_STARTING", None),
    ],
)
async def test_it_is_refused_at_once_if_no_start_is_due_in_time(client, stage, expected, code, retry_after):
    stage.engine.is_running = False
    stage.expected = expected
    response = await client.post(URL, json={"prompt": "a"})
    error = (await response.json())["error"]
    assert (response.status, error["code"]) == (503, code)
    assert expected.reason in error["message"]
    assert response.headers.get("Retry-After") == retry_after
    assert response.headers["x-should-retry"] == ("false" if retry_after is None else "true")


async def test_it_is_refused_as_soon_as_the_engine_is_parked(client, stage):
    stage.engine.is_running = False
    asking = asyncio.create_task(client.post(URL, json={"prompt": "a"}))
    await wait_until(lambda: stage.app[CONTEXT].admission.num_held == 1)
    stage.expected = Availability("parked", 300.0, "three strikes")
    response = await asking
    assert response.status == 503
    assert "three strikes" in await response.text()


async def test_it_is_refused_when_the_hold_time_is_over(stage, connect):
    stage.recovery = stage.recovery.__class__(hold_timeout_s=0.1)
    client = await connect()
    stage.engine.is_running = False
    stage.engine.errored = True
    response = await client.post(URL, json={"prompt": "a"})
    error = (await response.json())["error"]
    assert (response.status, error["code"]) == (503, "ENGINE_DEAD")
    assert "the engine died" in error["message"]


async def test_the_queue_of_held_requests_is_bounded(client, stage):
    stage.engine.is_running = False
    held = [asyncio.create_task(client.post(URL, json={"prompt": "a"})) for _ in range(2)]
    await wait_until(lambda: stage.app[CONTEXT].admission.num_held == 2)
    response = await client.post(URL, json={"prompt": "a"})
    assert response.status == 503
    assert "too many" in await response.text()
    stage.engine.is_running = True
    assert [(await asking).status for asking in held] == [200, 200]


async def test_a_bad_request_is_refused_while_there_is_no_engine(client, stage):
    stage.engine.is_running = False
    assert (await client.post(URL, json={"prompt": "a", "top_p": 7})).status == 400


async def test_an_engine_that_goes_between_hold_and_start_is_a_503(client, stage):
    stage.engine.refusal = None
    stage.engine.is_running = True
    original = stage.engine.open

    def open_(*arguments, **options):
        stage.engine.is_running = False
        return original(*arguments, **options)

    stage.engine.open = open_
    response = await client.post(URL, json={"prompt": "a"})
    assert response.status == 503
    assert (await response.json())["error"]["code"] == "ENGINE_STARTING"
    assert response.headers["Retry-After"] == "3"


async def test_a_model_without_tokenizer_says_why_and_others_serve(stage, connect):
    stage.models["broken"] = ServedModel(
        "broken", stage.engine, None, lambda: Availability("parked", None, "no tokenizer in it")
    )
    client = await connect()
    response = await client.post(URL, json={"model": "broken", "prompt": "a"})
    error = (await response.json())["error"]
    assert (response.status, error["code"]) == (503, "MODEL_UNAVAILABLE")
    assert "no tokenizer in it" in error["message"]
    assert (await client.post(URL, json={"model": "fake/model", "prompt": "a"})).status == 200
    assert (await client.get("/readyz?model=broken")).status == 503
    ready = await client.get("/readyz")
    assert ready.status == 200
    assert (await ready.json())["parked"] == ["broken"]
    assert [model["id"] for model in (await (await client.get("/v1/models")).json())["data"]] == ["fake/model"]
    assert (await client.post(URL, json={"prompt": "a"})).status == 400  # several models: which one?


async def test_stopping_refuses_what_is_new_and_held_and_lets_the_rest_finish(client, stage):
    admission = stage.app[CONTEXT].admission
    stage.engine.gate.clear()
    running = asyncio.create_task(client.post(URL, json={"prompt": "a"}))
    await wait_until(lambda: stage.engine.num_open == 1)
    stage.engine.is_running = False
    held = asyncio.create_task(client.post(URL, json={"prompt": "a"}))
    await wait_until(lambda: admission.num_held == 1)
    admission.stop()
    for response in (await client.post(URL, json={"prompt": "a"}), await held):
        assert response.status == 503
        assert (await response.json())["error"]["code"] == "SHUTTING_DOWN"
        assert response.headers["Connection"] == "close"
    assert (await client.get("/readyz")).status == 503
    assert (await client.get("/livez")).status == 200
    stage.engine.gate.set()
    assert (await running).status == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_the_end_of_the_drain_ends_what_still_runs(client, stage, stream):
    admission = stage.app[CONTEXT].admission
    stage.engine.gate.clear()
    stage.engine.gate_after = 2
    asking = asyncio.create_task(client.post(URL, json={"prompt": "a", "stream": stream}))
    await asyncio.wait_for(stage.engine.started.wait(), 5)
    response = await asking if stream else None
    assert admission.end_running() == 1
    response = response or await asking
    if stream:
        *_, failure, done = events(await response.text())
        assert (failure["error"]["code"], done) == ("SHUTTING_DOWN", "[DONE]")
    else:
        assert response.status == 503
    await wait_until(lambda: stage.engine.aborted)


async def test_a_stream_that_waits_gets_headers_and_comments(stage, connect):
    stage.api = stage.api.__class__(keepalive_s=1)
    stage.engine.gate.clear()
    client = await connect()
    response = await client.post(URL, json={"prompt": "a", "stream": True})  # returns with the headers
    assert (await response.content.readline()) == b": keep-alive\n"
    stage.engine.die_after = 0
    stage.engine.gate.set()
    assert events((await response.text()).lstrip("\n"))[0]["error"]["code"] == "ENGINE_DEAD"


# -- what an operator withholds -----------------------------------------------------------------------------------


async def test_a_drained_model_refuses_what_is_new_and_finishes_what_runs(client, stage):
    stage.engine.gate.clear()
    running = asyncio.create_task(client.post(URL, json={"prompt": "a"}))
    await wait_until(lambda: stage.engine.num_open == 1)
    stage.withheld = "draining"
    refused = await client.post(URL, json={"prompt": "a"})
    assert (refused.status, (await refused.json())["error"]["code"]) == (503, "MODEL_DRAINING")
    assert (refused.headers["Retry-After"], refused.headers["x-should-retry"]) == ("5", "true")
    ready = await client.get("/readyz")
    assert (ready.status, (await ready.json())["models"]["fake/model"]["state"]) == (503, "draining")
    assert [model["id"] for model in (await (await client.get("/v1/models")).json())["data"]] == ["fake/model"]
    stage.engine.gate.set()
    assert (await running).status == 200
    stage.withheld = ""
    assert (await client.post(URL, json={"prompt": "a"})).status == 200


async def test_a_request_that_was_held_before_the_drain_is_not_refused(client, stage):
    stage.engine.is_running = False
    held = asyncio.create_task(client.post(URL, json={"prompt": "a"}))
    await wait_until(lambda: stage.app[CONTEXT].admission.num_held == 1)
    stage.withheld = "draining"
    stage.engine.is_running = True
    assert (await held).status == 200


async def test_an_unloaded_model_refuses_at_once_what_is_new_and_held(client, stage):
    stage.engine.is_running = False
    held = asyncio.create_task(client.post(URL, json={"prompt": "a"}))
    await wait_until(lambda: stage.app[CONTEXT].admission.num_held == 1)
    stage.withheld = "unloaded"
    stage.expected = Availability("unloaded", None)
    for refused in (await client.post(URL, json={"prompt": "a"}), await held):
        assert (refused.status, (await refused.json())["error"]["code"]) == (503, "MODEL_UNLOADED")
        assert "Retry-After" not in refused.headers
        assert refused.headers["x-should-retry"] == "false"
    ready = await client.get("/readyz")
    assert (ready.status, (await ready.json())["models"]["fake/model"]["state"]) == (503, "unloaded")
    assert (await (await client.get("/v1/models")).json())["data"] == []


async def test_the_last_answer_of_an_ending_worker_closes_its_connection(client, stage):
    assert "Connection" not in (await client.post(URL, json={"prompt": "a"})).headers
    stage.app[CONTEXT].traffic.is_ending = True
    for body in ({"prompt": "a"}, {"prompt": "a", "stream": True}, {"prompt": 5}):
        response = await client.post(URL, json=body)
        assert response.headers["Connection"] == "close"
        await response.read()
