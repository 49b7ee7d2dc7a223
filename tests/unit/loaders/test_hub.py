from __future__ import annotations

import json
from pathlib import Path

import huggingface_hub.constants
import pytest

from aphrodited.errors import ModelLoadError
from aphrodited.loaders.hub import fetch_snapshot
from tests.support.hub import put_in_hub_cache
from tests.support.tiny_models import write_tiny_llama_dir


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache, and no network."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def test_what_the_cache_has_is_not_asked_for(cache: Path, tmp_path: Path) -> None:
    snapshot = put_in_hub_cache(cache, "org/name", write_tiny_llama_dir(tmp_path / "model"))
    assert fetch_snapshot("org/name") == snapshot


def test_without_cache_and_network_the_error_names_the_model(cache: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"org/name: no such file or directory here, and not to be had"):
        fetch_snapshot("org/name")


def test_a_download_that_was_given_up_is_asked_for_again(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = put_in_hub_cache(cache, "org/name", write_tiny_llama_dir(tmp_path / "model"))
    index = {"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
    asked = []

    def download(hub_id: str, **options: object) -> str:
        asked.append((hub_id, options["cache_dir"]))
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    fetch_snapshot("org/name")
    assert asked == [("org/name", cache)]
