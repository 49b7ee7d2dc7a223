from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import scan_cache_dir

from aphrodited.hub_cache import cached_snapshot, hub_cache_dir, is_hub_id
from tests.support.hub import put_in_hub_cache
from tests.support.tiny_models import write_tiny_llama_dir


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
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


def test_a_downloaded_model_is_found_where_the_hubs_library_sees_it(cache: Path, tmp_path: Path) -> None:
    snapshot = put_in_hub_cache(cache, "org/name", write_tiny_llama_dir(tmp_path / "model", weights=False))
    assert cached_snapshot("org/name") == snapshot
    (repository,) = scan_cache_dir(cache).repos
    (revision,) = repository.revisions
    assert (repository.repo_id, revision.snapshot_path, revision.refs) == ("org/name", snapshot, {"main"})


@pytest.mark.parametrize("commit", ["", "../../elsewhere", "f" * 40])
def test_a_reference_that_leads_nowhere_finds_nothing(cache: Path, commit: str) -> None:
    (cache / "elsewhere").mkdir(parents=True)
    (cache / "models--org--name" / "refs").mkdir(parents=True)
    (cache / "models--org--name" / "refs" / "main").write_text(commit)
    assert cached_snapshot("org/name") is None
    assert cached_snapshot("org/other") is None


def test_the_variables_are_read_in_the_order_of_the_hubs_library() -> None:
    variables = {"HF_HUB_CACHE": "/a", "HUGGINGFACE_HUB_CACHE": "/b", "HF_HOME": "/c", "XDG_CACHE_HOME": "/d"}
    found = []
    while variables:
        found.append(str(hub_cache_dir(variables)))
        variables.pop(next(iter(variables)))
    assert found == ["/a", "/b", "/c/hub", "/d/huggingface/hub"]
    assert hub_cache_dir({}) == Path("~/.cache/huggingface/hub").expanduser()
