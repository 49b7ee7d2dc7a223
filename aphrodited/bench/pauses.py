"""The pause that a death leaves in a stream of tokens, and percentiles of such figures. Knows no process."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

LAST_FRAMES_S = 0.25
"""What an engine had sent before it died comes a little later."""


def resumed_after_s(at_s: float, times_s: Sequence[float]) -> float | None:
    """From that instant to the end of the longest pause that began then or little later, in seconds.

    times_s: when tokens came, on the same clock.  None if nothing flowed then.
    """
    if not times_s or not times_s[0] < at_s < times_s[-1] - LAST_FRAMES_S:
        return None
    pauses = [
        (later - earlier, later)
        for earlier, later in pairwise(times_s)
        if later > at_s and earlier < at_s + LAST_FRAMES_S
    ]
    return max(pauses)[1] - at_s


def percentiles_s(values: Sequence[float]) -> dict[str, float]:
    """The smallest value that so many percent do not exceed, and the largest; {} of nothing."""
    if not values:
        return {}
    ordered = sorted(values)
    ranks = {f"p{p}": max(0, -(-len(ordered) * p // 100) - 1) for p in (50, 90, 99)}
    return {name: round(ordered[rank], 3) for name, rank in ranks.items()} | {"max": round(ordered[-1], 3)}
