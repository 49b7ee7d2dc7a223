"""Encodings: the prompts of one request, embedded side by side, a few at a time. Knows no HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence

from aphrodited.outputs import EmbeddingOutput
from aphrodited.request import EncodeRequest

MAX_AT_ONCE = 64
"""Of one request, so that a large one neither fills the engine's queue nor keeps the others waiting."""


class Encodings:
    """Used once, on one event loop.

    encode: gets one prompt's embedding from an engine.
    write: what becomes of an embedding, called as soon as it is there, so that only its results pile up.
    """

    def __init__(
        self,
        requests: Sequence[EncodeRequest],
        encode: Callable[[EncodeRequest], Awaitable[EmbeddingOutput]],
        write: Callable[[int, EmbeddingOutput], bytes],
    ) -> None:
        self._requests = requests
        self._encode = encode
        self._write = write
        self._written: dict[int, bytes] = {}
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fail(self, error: BaseException) -> None:
        """Make `run` raise `error`; the first one counts."""
        if not self._failure.done():
            self._failure.set_exception(error)

    async def run(self) -> list[bytes]:
        """What was written for each request, in order.

        Raises the first error. Leaving by any way ends whatever is not finished.
        """
        indices = iter(range(len(self._requests)))
        tasks = [asyncio.create_task(self._work(indices)) for _ in range(min(MAX_AT_ONCE, len(self._requests)))]
        waiting: set[asyncio.Future[None]] = set(tasks)
        try:
            while waiting:
                done, _ = await asyncio.wait({*waiting, self._failure}, return_when=asyncio.FIRST_COMPLETED)
                for future in done:
                    future.result()
                waiting -= done
        finally:
            for future in (*tasks, self._failure):
                future.cancel()
            await asyncio.gather(*tasks, self._failure, return_exceptions=True)
        return [self._written[index] for index in range(len(self._requests))]

    async def _work(self, indices: Iterator[int]) -> None:
        """One request after the other, from an iterator that is shared with others."""
        for index in indices:
            self._written[index] = self._write(index, await self._encode(self._requests[index]))
