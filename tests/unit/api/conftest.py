"""A running application over a fake engine, as a test's client sees it."""

import socket
from contextlib import AsyncExitStack

import pytest
from aiohttp import ClientSession

from aphrodited.api.app import create_app
from aphrodited.api.served_model import Availability, ServedModel
from aphrodited.api.server import serving
from aphrodited.config.schema import ApiConfig, RecoveryConfig
from tests.support.fake_serving import FakeEngineClient, FakeTokenizer


class Stage:
    """The pieces of one application; `expected` is what is known of its engine's process.

    withheld: draining or unloaded while an operator keeps the model from new requests.
    """

    def __init__(self):
        self.engine = FakeEngineClient()
        self.expected = Availability("loading", 0.0)
        self.withheld = ""
        self.models = {
            "fake/model": ServedModel(
                "fake/model", self.engine, FakeTokenizer(), lambda: self.expected, withheld=lambda: self.withheld
            )
        }
        self.api = ApiConfig(max_body_size=65536, max_choices=4, keepalive_s=1)
        self.recovery = RecoveryConfig(on_engine_death="fail", hold_timeout_s=5, max_held_requests=2)
        self.keys = None
        self.admin = None
        self.stall_timeout_s = 0.3
        self.app = None


@pytest.fixture
def stage():
    return Stage()


@pytest.fixture
async def connect(stage):
    """Call it, after changing the stage, for a client of the running application."""
    async with AsyncExitStack() as stack:

        async def connect():
            stage.app = create_app(
                stage.models,
                stage.api,
                stage.recovery,
                keys=stage.keys,
                admin=stage.admin,
                stall_timeout_s=stage.stall_timeout_s,
            )
            listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
            await stack.enter_async_context(serving(stage.app, listening, farewell_s=1))
            stage.port = listening.getsockname()[1]
            return await stack.enter_async_context(ClientSession(f"http://127.0.0.1:{stage.port}"))

        yield connect


@pytest.fixture
async def client(connect):
    return await connect()
