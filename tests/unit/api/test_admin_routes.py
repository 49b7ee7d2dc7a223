"""Orders at the API's port: who may give them, and what becomes of them. The monitor is a small fake on a real socket."""

import shutil
import tempfile
from pathlib import Path

import pytest
from aiohttp import web

from aphrodited.api.admin_routes import Admin
from aphrodited.api.auth import ApiKeys
from aphrodited.config.schema import ApiConfig

PATHS = ["/v1/model/load", "/v1/model/unload"]


class FakeMonitor:
    def __init__(self, folder):
        self.socket = folder / "admin.sock"
        self.orders = []
        self.answer = 200, {"model": "fake/model", "state": "unloaded"}

    async def __aenter__(self):
        async def take(request):
            self.orders.append((request.path, dict(request.query), await request.json()))
            status, body = self.answer
            return web.json_response(body, status=status)

        application = web.Application()
        application.router.add_post("/model/{action}", take)
        self._runner = web.AppRunner(application)
        await self._runner.setup()
        await web.UnixSite(self._runner, str(self.socket)).start()
        return self

    async def __aexit__(self, *_):
        await self._runner.cleanup()


@pytest.fixture
def folder():
    path = Path(tempfile.mkdtemp(prefix="aph"))  # short: a unix socket lies in it
    yield path
    shutil.rmtree(path)


@pytest.fixture
async def monitor(folder):
    async with FakeMonitor(folder) as monitor:
        yield monitor


def admin(folder, *, keys=None, api=None):
    return Admin.of(api or ApiConfig(), folder / "admin.sock", keys, "api-0")


@pytest.mark.parametrize("path", PATHS)
async def test_an_order_goes_to_the_monitor_and_its_answer_comes_back(stage, connect, folder, monitor, path):
    stage.admin = admin(folder)
    client = await connect()
    monitor.answer = 202, {"model": "fake/model", "state": "loading"}
    body = {"model": "fake/model"}
    response = await client.post(f"{path}?wait=3", json=body, headers={"x-request-id": "r1"})
    assert (response.status, await response.json()) == monitor.answer
    assert (await client.post(path)).status == 202  # there is only one model
    order = {"model": "fake/model", "by": "api-0, request r1"}
    assert monitor.orders[0] == (path.removeprefix("/v1"), {"wait": "3"}, order)
    assert monitor.orders[1][2]["model"] == "fake/model"
    response = await client.post(path, json={"model": "nobody"})
    assert (response.status, (await response.json())["error"]["code"]) == (404, "model_not_found")
    assert (await client.post(path, data="{")).status == 400
    assert len(monitor.orders) == 2


async def test_without_a_monitor_they_answer_503(stage, connect, folder):
    stage.admin = admin(folder)
    client = await connect()
    response = await client.post(PATHS[0])
    assert (response.status, (await response.json())["error"]["code"]) == (503, "MONITOR_UNAVAILABLE")


@pytest.mark.parametrize("path", PATHS)
async def test_only_an_admin_key_opens_them_if_there_are_any(stage, connect, folder, monitor, path):
    stage.keys = ApiKeys(["user"])
    stage.admin = admin(folder, keys=ApiKeys(["boss"]), api=ApiConfig(keys_file="/keys"))
    client = await connect()
    for given, status in ((None, 401), ("user", 401), ("boss", 200)):
        headers = {"Authorization": f"Bearer {given}"} if given else {}
        assert (await client.post(path, headers=headers)).status == status
    assert len(monitor.orders) == 1
    headers = {"Authorization": "Bearer boss"}
    assert (await client.get("/v1/models", headers=headers)).status == 401  # it opens nothing else


@pytest.mark.parametrize(
    "api",
    [ApiConfig(keys_file="/keys"), ApiConfig(host="0.0.0.0", allow_unauthenticated=True)],
)
async def test_without_admin_keys_a_port_for_others_takes_no_orders(stage, connect, folder, monitor, api):
    stage.admin = admin(folder, api=api)
    client = await connect()
    response = await client.post(PATHS[1])
    assert (response.status, (await response.json())["error"]["code"]) == (403, "admin_closed")
    assert monitor.orders == []


async def test_no_web_page_gives_orders_to_a_port_without_keys(stage, connect, folder, monitor):
    stage.admin = admin(folder)
    client = await connect()
    assert (await client.post(PATHS[1], headers={"Origin": "http://elsewhere"})).status == 403
    assert monitor.orders == []
