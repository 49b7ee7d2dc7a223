"""The scripts: their words for a wrong command line. What they do is seen whenever the tests are run by them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = sorted((ROOT / "scripts").iterdir())


@pytest.mark.parametrize("script", [*SCRIPTS, ROOT / ".ci" / "run"], ids=lambda path: path.name)
def test_every_script_can_be_run_and_parsed(script: Path) -> None:
    assert os.access(script, os.X_OK)
    assert script.read_text().startswith("#!/usr/bin/env bash\n# ")
    subprocess.run(["bash", "-n", str(script)], check=True, timeout=30)


@pytest.mark.parametrize("words", [["run", "--nonsense"], ["run", "--config"], ["setup", "--nonsense"]])
def test_a_wrong_option_shows_the_usage_and_does_nothing(words: list[str]) -> None:
    done = subprocess.run(
        [ROOT / "scripts" / words[0], *words[1:]], capture_output=True, text=True, check=False, timeout=30
    )
    assert done.returncode == 2
    assert f"usage: scripts/{words[0]}" in done.stderr
    assert done.stdout == ""
