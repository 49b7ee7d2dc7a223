"""docs/api.md names everything that the HTTP surface has."""

import re
from pathlib import Path

import pytest

from aphrodited.api import error_responses
from aphrodited.api.admin_routes import Admin
from aphrodited.api.app import create_app
from aphrodited.api.openai_types import (
    MAX_INPUTS,
    MAX_PROMPTS,
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    TokenizeRequest,
)
from aphrodited.config.schema import ApiConfig, RecoveryConfig
from aphrodited.errors import EngineError, MQClientClosedError, RequestError

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "api.md").read_text()
CODES = set(re.findall(r"`([^`\s]+)`", TEXT))


def subclasses(kind):
    return {kind}.union(*(subclasses(each) for each in kind.__subclasses__()))


def routes():
    app = create_app({}, ApiConfig(), RecoveryConfig(), admin=Admin.of(ApiConfig(), Path("admin"), None, "api-0"))
    return {(route.method, route.resource.canonical) for route in app.router.routes() if route.method != "HEAD"}


def test_every_route_is_named():
    missing = {
        (method, path)
        for method, path in routes()
        if f"{method} {path}`" not in TEXT and not path.startswith(("/v1/tokenize", "/v1/detokenize"))
    }
    assert missing == set()


@pytest.mark.parametrize(
    "body", [ChatCompletionRequest, CompletionRequest, EmbeddingRequest, TokenizeRequest, DetokenizeRequest]
)
def test_every_field_is_named(body):
    assert set(body.__struct_fields__) - CODES == set()


def test_every_error_code_is_named():
    kinds = subclasses(RequestError) | subclasses(EngineError)
    told = {kind for kind in kinds if kind.__module__.startswith(("aphrodited.api", "aphrodited.errors"))}
    codes = {kind.code for kind in told - {MQClientClosedError}}  # no client of a worker is closed while it serves
    codes |= {code for code, _ in error_responses._FRAMEWORK.values()}
    assert codes - CODES == set()


def test_limits_are_those_of_the_code():
    assert f"a list of up to {MAX_INPUTS} strings" in TEXT
    assert f"a list of up to {MAX_PROMPTS} strings" in TEXT
    assert f"`api.port`, by default {ApiConfig().port}" in TEXT
