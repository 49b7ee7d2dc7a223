"""Reads server-sent events."""

from __future__ import annotations

import json
from typing import Any


def events(body: str) -> list[Any]:
    """The data of each event: JSON, or "[DONE]" as it is. Fails for anything that is not an event or a comment."""
    found: list[Any] = []
    assert body.endswith("\n\n"), body[-80:]
    for block in body[:-2].split("\n\n"):
        if block.startswith(": "):
            continue
        assert block.startswith("data: "), block
        assert "\n" not in block, block
        data = block.removeprefix("data: ")
        found.append(data if data == "[DONE]" else json.loads(data))
    return found
