from __future__ import annotations

import shutil
from pathlib import Path

import huggingface_hub.constants
import pytest

from aphrodited.errors import ModelLoadError
from aphrodited.loaders.hub import fetch_snapshot, is_hub_id
from tests.support.tiny_models import write_tiny_llama_dir


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache, and no network."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


@pytest.mark.parametrize(
    ("path", "expected"),
    [("EleutherAI/pythia-70m", True), ("/EleutherAI/pythia-70m", False), ("model.gguf", False), ("a/b/c", False)],
)
def test_only_two_words_that_are_no_path_are_a_hub_id(path: str, expected: bool) -> None:
    assert is_hub_id(Path(path)) is expected


def test_a_directory_of_that_name_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert not is_hub_id(Path("org/name"))


def test_what_the_cache_has_is_not_asked_for(cache: Path, tmp_path: Path) -> None:
    repository, commit = cache / "models--org--name", "0" * 40
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    (repository / "snapshots").mkdir()
    shutil.move(write_tiny_llama_dir(tmp_path / "model"), repository / "snapshots" / commit)
    assert fetch_snapshot("org/name") == repository / "snapshots" / commit


def test_without_cache_and_network_the_error_names_the_model(cache: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"org/name: no such file or directory here, and not to be had"):
        fetch_snapshot("org/name")
