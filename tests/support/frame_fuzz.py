"""Frames that are almost messages: valid ones with a few bytes changed, cut or doubled."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence


def almost_messages(frames: Sequence[bytes], count: int, seed: int) -> Iterator[bytes]:
    rng = random.Random(seed)
    below = rng.randrange
    for _ in range(count):
        frame = bytearray(frames[below(len(frames))])
        for _ in range(1 + below(3)):
            if not frame:
                break
            at = below(len(frame))
            match below(8):
                case 0:
                    del frame[at:]
                case 1:
                    frame[at:at] = frame[at : at + 1 + below(8)]
                case 2:
                    del frame[at]
                case _:
                    frame[at] = below(256)
        yield bytes(frame)
