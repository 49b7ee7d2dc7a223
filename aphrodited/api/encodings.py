"""Encodings: the prompts of one request, embedded side by side, a few at a time. Knows no HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from aphrodited.interfaces import EngineClient
from aphrodited.outputs import EmbeddingOutput
from aphrodited.request import Pooling

MAX_AT_ONCE = 64
"""Of one request, so that a large one neither fills the engine's queue nor keeps the others waiting."""


@dataclass(frozen=True, slots=True)
class EncodeOptions:
    """See EncodeRequest."""

    pooling: str = Pooling.LAST
    normalize: bool = True
    priority: int = 0


class Encodings:
    """Used once, on one event loop.

    write: what becomes of an embedding, called as soon as it is there, so that only its results pile up.
    """

    def __init__(
        self,
        client: EngineClient,
        prompts: Sequence[list[int]],
        request_id: str,
        options: EncodeOptions,
        write: Callable[[int, EmbeddingOutput], bytes],
    ) -> None:
        self._client = client
        self._prompts = prompts
        self._request_id = request_id
        self._options = options
        self._write = write
        self._written: dict[int, bytes] = {}
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def fail(self, error: BaseException) -> None:
        """Make `run` raise `error`; the first one counts."""
        if not self._failure.done():
            self._failure.set_exception(error)

    async def run(self) -> list[bytes]:
        """What was written for each prompt, in order.

        Raises the first error. Leaving by any way ends whatever is not finished.
        """
        indices = iter(range(len(self._prompts)))
        tasks = [asyncio.create_task(self._encode(indices)) for _ in range(min(MAX_AT_ONCE, len(self._prompts)))]
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
        return [self._written[index] for index in range(len(self._prompts))]

    async def _encode(self, indices: Iterator[int]) -> None:
        """One prompt after the other, from an iterator that is shared with others."""
        options = self._options
        for index in indices:
            label = self._request_id if len(self._prompts) == 1 else f"{self._request_id}-{index}"
            output = await self._client.encode(
                self._prompts[index],
                label,
                pooling=options.pooling,
                normalize=options.normalize,
                priority=options.priority,
            )
            self._written[index] = self._write(index, output)
