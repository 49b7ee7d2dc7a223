"""Model directories by hub id: the local cache first, then huggingface.co. Knows of files only which ones a model needs."""

from __future__ import annotations

import json
from pathlib import Path

from aphrodited.errors import ModelLoadError
from aphrodited.hub_cache import cached_snapshot, hub_cache_dir
from aphrodited.loaders.safetensors_files import INDEX_FILE

_PATTERNS = ["*.json", "*.safetensors", "*.jinja"]


def fetch_snapshot(hub_id: str) -> Path:
    """The directory of a hub model's files, downloaded unless the cache has them. Raises ModelLoadError."""
    cached = cached_snapshot(hub_id)
    if cached is not None and _is_complete(cached):
        return cached
    from huggingface_hub import snapshot_download  # half a second of imports that models on disk do without
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(hub_id, cache_dir=hub_cache_dir(), allow_patterns=_PATTERNS))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelLoadError(
            f"{hub_id}: no such file or directory here, and not to be had from huggingface.co: {reason}"
        ) from error


def _is_complete(directory: Path) -> bool:
    """Whether a download was not given up half-way."""
    if not (directory / "config.json").exists() or not any(directory.glob("*.safetensors")):
        return False
    try:
        files = set(json.loads((directory / INDEX_FILE).read_text("utf-8"))["weight_map"].values())
    except FileNotFoundError:
        return True  # a single file
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return True  # damaged: said by whoever reads it, and not mended by a download
    return all(isinstance(name, str) and (directory / name).exists() for name in files)
