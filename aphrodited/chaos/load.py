"""The clients of a chaos run, and an onlooker that counts resumed requests.

Each runs until it is told to stop and keeps what it saw. Knows no fault, and judges nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import aiohttp

from aphrodited.chaos.cases import Case
from aphrodited.chaos.client import Outcome, ask
from aphrodited.metrics import render_metrics
from aphrodited.paths import DaemonPaths

MAX_PAUSE_S = 0.3
RESUMED = b"aphrodited_resumed_requests_total{"


def new_session() -> aiohttp.ClientSession:
    """A connection a request, and no time limits but the caller's."""
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    return aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None))


class Load:
    """So many clients at once, each with one request after the other."""

    def __init__(self, url: str, cases: Iterator[Case], *, num_clients: int, bound_s: float, seed: int) -> None:
        self.outcomes: list[Outcome] = []
        self.num_open = 0
        self._url = url
        self._cases = cases
        self._num_clients = num_clients
        self._bound_s = bound_s
        self._rng = random.Random(f"load {seed}")

    async def run(self, end: asyncio.Event) -> None:
        """Until `end` is set and whatever is open then has ended, by bound_s later at most."""
        async with new_session() as session, asyncio.TaskGroup() as clients:
            for _ in range(self._num_clients):
                clients.create_task(self._be_client(session, end))

    async def _be_client(self, session: aiohttp.ClientSession, end: asyncio.Event) -> None:
        while not end.is_set():
            self.num_open += 1
            self.outcomes.append(await ask(session, self._url, next(self._cases), self._bound_s))
            self.num_open -= 1
            await asyncio.sleep(self._rng.uniform(0, MAX_PAUSE_S))


async def ask_all(url: str, cases: list[Case], *, num_clients: int, bound_s: float) -> dict[int, Outcome]:
    """The outcomes by the number of their case."""
    remaining = iter(cases)
    outcomes: dict[int, Outcome] = {}

    async def be_client(session: aiohttp.ClientSession) -> None:
        for case in remaining:
            outcomes[case.number] = await ask(session, url, case, bound_s)

    async with new_session() as session, asyncio.TaskGroup() as clients:
        for _ in range(num_clients):
            clients.create_task(be_client(session))
    return outcomes


class ResumeCounter:
    """Adds up a counter that begins again with each life of the daemon: what was counted between the last look and a death is missed."""

    def __init__(self, paths: DaemonPaths) -> None:
        self.num_resumed = 0
        self._paths = paths
        self._last = 0

    def look(self) -> None:
        try:
            text = render_metrics(self._paths.metrics_dir, {})
        except (OSError, ValueError, KeyError):  # the daemon makes or removes the files at this moment
            return
        now = sum(int(float(line.rpartition(b" ")[2])) for line in text.splitlines() if line.startswith(RESUMED))
        self.num_resumed += now - self._last if now >= self._last else now
        self._last = now

    async def run(self, end: asyncio.Event, period_s: float = 1.0) -> None:
        while not end.is_set():
            self.look()
            await asyncio.sleep(period_s)
