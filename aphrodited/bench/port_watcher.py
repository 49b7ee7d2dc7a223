"""Connects to a port and hangs up, again and again: whether anybody was ever refused. Asks nothing."""

from __future__ import annotations

import asyncio
import time

CONNECT_TIMEOUT_S = 30.0


class PortWatcher:
    """refusals: in words, also of what took CONNECT_TIMEOUT_S.  slowest_s: to be connected."""

    def __init__(self, host: str, port: int, period_s: float) -> None:
        self.num_connections = 0
        self.refusals: list[str] = []
        self.slowest_s = 0.0
        self._address = host, port
        self._period_s = period_s

    async def run(self, end: asyncio.Event) -> None:
        while not end.is_set():
            began_at_s = time.monotonic()
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    _, writer = await asyncio.open_connection(*self._address)
                writer.transport.abort()
            except OSError as error:
                self.refusals.append(f"{type(error).__name__}: {error}")
            self.num_connections += 1
            took_s = time.monotonic() - began_at_s
            self.slowest_s = max(self.slowest_s, took_s)
            await asyncio.sleep(max(0.0, self._period_s - took_s))
