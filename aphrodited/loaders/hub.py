"""Model directories by hub id: the local cache first, then huggingface.co. Knows no file's contents."""

from __future__ import annotations

import re
from pathlib import Path

from aphrodited.errors import ModelLoadError

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_PATTERNS = ["*.json", "*.safetensors", "*.jinja"]


def is_hub_id(path: Path) -> bool:
    """Whether this can only be `organisation/name` on the hub: nothing of that name is on disk."""
    return not path.is_absolute() and _HUB_ID.fullmatch(str(path)) is not None and not path.exists()


def fetch_snapshot(hub_id: str) -> Path:
    """The directory of a hub model's files, downloaded unless the cache has them. Raises ModelLoadError."""
    from huggingface_hub import snapshot_download  # half a second of imports that local models do without
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        cached = Path(snapshot_download(hub_id, allow_patterns=_PATTERNS, local_files_only=True))
        if (cached / "config.json").exists() and any(cached.glob("*.safetensors")):
            return cached
    except LocalEntryNotFoundError:
        pass  # not there yet: ask the hub
    try:
        return Path(snapshot_download(hub_id, allow_patterns=_PATTERNS))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelLoadError(
            f"{hub_id}: no such file or directory here, and not to be had from huggingface.co: {reason}"
        ) from error
