"""Waiting for something to become true, with an end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def wait_until(condition: Callable[[], object], timeout_s: float = 5.0) -> None:
    """Return when `condition` holds; fail if it does not in time."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)
