"""A hub cache with one model in it, as huggingface_hub leaves it, without a hub."""

from __future__ import annotations

import shutil
from pathlib import Path

COMMIT = "0123456789abcdef" * 2 + "01234567"


def put_in_hub_cache(cache: Path, hub_id: str, directory: Path) -> Path:
    """Move a model directory into the cache; the snapshot it has become."""
    repository = cache / f"models--{hub_id.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    (repository / "snapshots").mkdir()
    return Path(shutil.move(directory, repository / "snapshots" / COMMIT))
