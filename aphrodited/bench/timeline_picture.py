"""Draws curves of tokens per second over seconds as one SVG, readable on light and on dark pages. Measures nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 760, 300
LEFT, RIGHT, TOP, BOTTOM = 56, 16, 40, 44
COLOURS = ("#2f7ed8", "#e4761b")
GREY = "#8a8a8a"
STYLE = f"text {{ font: 12px sans-serif; fill: {GREY} }} path {{ fill: none; stroke-width: 2 }} line {{ stroke: {GREY} }}"


def draw(curves: Mapping[str, Sequence[float]], *, first_s: float, bin_s: float, event: str) -> str:
    """The document.  first_s: where the first bin begins; second 0 is marked with `event`."""
    event = escape(event)
    num_bins = max(len(values) for values in curves.values())
    last_s = first_s + num_bins * bin_s
    top = _nice(max(max(values) for values in curves.values()))

    def x(second: float) -> float:
        return round(LEFT + (second - first_s) / (last_s - first_s) * (WIDTH - LEFT - RIGHT), 1)

    def y(value: float) -> float:
        return round(HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM), 1)

    parts = [f'<line x1="{LEFT}" y1="{y(0)}" x2="{WIDTH - RIGHT}" y2="{y(0)}"/>']
    for step in range(5):
        value = top * step / 4
        parts.append(f'<line x1="{LEFT}" y1="{y(value)}" x2="{WIDTH - RIGHT}" y2="{y(value)}" stroke-opacity="0.25"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(value) + 4}" text-anchor="end">{value:g}</text>')
    for second in range(math.ceil(first_s), math.floor(last_s) + 1, 2):
        parts.append(f'<text x="{x(second)}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{second}</text>')
    parts.append(f'<line x1="{x(0)}" y1="{TOP}" x2="{x(0)}" y2="{y(0)}" stroke-dasharray="4 3"/>')
    parts.append(f'<text x="{x(0)}" y="{TOP - 6}" text-anchor="middle">{event}</text>')
    parts.append(f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 8}" text-anchor="end">seconds</text>')
    parts.append(f'<text x="8" y="{TOP - 6}">tokens/s</text>')
    for number, (name, values) in enumerate(curves.items()):
        colour = COLOURS[number % len(COLOURS)]
        steps = "".join(f"V{y(value)}H{x(first_s + (index + 1) * bin_s)}" for index, value in enumerate(values))
        parts.append(f'<path stroke="{colour}" d="M{x(first_s)},{y(values[0])}{steps}"/>')
        parts.append(f'<text x="{WIDTH - RIGHT - 120}" y="{TOP - 22 + 16 * number}" style="fill: {colour}">{escape(name)}</text>')
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        f' aria-label="tokens per second around {event}">\n<style>{STYLE}</style>\n{body}\n</svg>\n'
    )


def _nice(value: float) -> float:
    """A round number that is not less, so that a fourth of it is short too."""
    scale = 10 ** math.floor(math.log10(value)) if value > 0 else 1
    return float(next(step * scale for step in (1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10) if step * scale >= value))
