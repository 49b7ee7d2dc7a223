"""Finds models of huggingface.co that are already on this machine, in the cache that all of Hugging Face's tools share.

Reads a few names and one short file: every process that needs a tokenizer can afford that, and half a second of imports for
the hub's own library it cannot. Downloads nothing and knows no file's contents.

Source of the layout: https://huggingface.co/docs/huggingface_hub/guides/manage-cache
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_COMMIT = re.compile(r"[0-9a-f]{40}")


def is_hub_id(path: Path) -> bool:
    """Whether this can only be `organisation/name` on the hub: nothing of that name is on disk."""
    return not path.is_absolute() and _HUB_ID.fullmatch(str(path)) is not None and not path.exists()


def hub_cache_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """The folder of downloaded models, by the variables that the hub's own library reads."""
    if chosen := environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE"):
        return Path(chosen).expanduser()
    if home := environment.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    return Path(environment.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "huggingface" / "hub"


def cached_snapshot(hub_id: str) -> Path | None:
    """The directory that holds a model's files of the branch main, perhaps not all of them yet; None if there is none."""
    repository = hub_cache_dir() / f"models--{hub_id.replace('/', '--')}"
    try:
        commit = (repository / "refs" / "main").read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    snapshot = repository / "snapshots" / commit
    return snapshot if _COMMIT.fullmatch(commit) and snapshot.is_dir() else None
