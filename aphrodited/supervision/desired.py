"""What the operator wants of a model: that it is served, or that its engines stay stopped.

A file in the model's folder, gone when the daemon starts anew. Whoever stops a model's engines writes it first, so
that a standby that sees the active engine end knows that this was meant. Starts and stops nothing.
"""

from __future__ import annotations

import os
from enum import StrEnum

from aphrodited.paths import ModelPaths


class Desired(StrEnum):
    SERVED = "served"
    STOPPED = "stopped"


def read_desired(paths: ModelPaths) -> Desired:
    """SERVED unless the file says otherwise."""
    try:
        return Desired(paths.desired.read_text("ascii").strip())
    except (FileNotFoundError, ValueError):
        return Desired.SERVED


def write_desired(paths: ModelPaths, desired: Desired) -> None:
    """Replace the file atomically."""
    paths.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = paths.folder / f".desired.{os.getpid()}"
    temporary.write_text(f"{desired}\n", "ascii")
    os.replace(temporary, paths.desired)
