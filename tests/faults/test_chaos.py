"""Everything at once: random faults under mixed load, every answer compared, nothing lost, nothing left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.support.daemons import children_of, is_alive, wait_until
from tests.support.tiny_models import write_tiny_llama_dir

SECONDS = 60
LIMIT_S = 400  # the start, the run, the wait for what is open, and all requests again


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny_llama_dir(tmp_path / "model", max_position_embeddings=2048)


def chaos(model: Path, *words: str) -> list[str]:
    return [sys.executable, "-m", "aphrodited.chaos", "--model", str(model), "--tokens", "300", *words]


@pytest.mark.timeout(LIMIT_S + 20)
def test_a_minute_of_chaos_makes_no_answer_wrong_and_leaves_nothing(model: Path, tmp_path: Path) -> None:
    report_file = tmp_path / "report.json"
    words = ["--seconds", str(SECONDS), "--seed", "4", "--report", str(report_file)]
    done = subprocess.run(chaos(model, *words), capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    report = json.loads(report_file.read_text())
    assert report["passed"]
    assert report["faults"] > SECONDS / 20
    assert report["requests"]["right"] > 20
    assert report["port"]["refused"] == 0
    assert (report["seed"], report["benchmark"]) == (4, "chaos")


@pytest.mark.timeout(150)
def test_ctrl_c_ends_it_with_everything_that_it_started(model: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="aph") as folder:  # short: unix socket paths lie below it
        environment = {**os.environ, "TMPDIR": folder}
        command = chaos(model, "--seconds", "600")
        with subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env=environment, preexec_fn=_heed_interrupts
        ) as process:
            assert process.stderr is not None
            assert "the daemon is ready" in process.stderr.readline()
            started = _descendants(process.pid)
            assert len(started) >= 5
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
        wait_until(lambda: not any(is_alive(pid) for pid in started), what="the end of every process")
        assert list(Path(folder).iterdir()) == []


def test_a_model_that_is_not_there_is_said_in_one_line(tmp_path: Path) -> None:
    done = subprocess.run(chaos(tmp_path / "none"), capture_output=True, text=True, check=False, timeout=50)
    assert done.returncode == 2
    assert "none: there is no such file or directory" in done.stderr
    assert "Traceback" not in done.stderr


def _heed_interrupts() -> None:
    """What a shell starts in the background ignores SIGINT, and so would all that these tests start there."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _descendants(pid: int) -> list[int]:
    return [found for child in children_of(pid) for found in (child, *_descendants(child))]
