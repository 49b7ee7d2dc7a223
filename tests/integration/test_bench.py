"""The benchmarks, run small: that they measure something and write it down. The figures themselves are not judged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from aphrodited.bench import http, throughput, transport
from aphrodited.bench.modes import Mode, measure
from aphrodited.bench.workload import Workload

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "engine" / "throughput.py"
SMALL = ["--num-prompts", "3", "--input-len", "8", "--output-len", "4", "--pace-ms", "0"]


@pytest.mark.parametrize("mode", list(Mode))
def test_each_way_answers_the_whole_workload_in_a_process_of_its_own(mode: Mode) -> None:
    figures = measure(mode, Workload("m", 3, 8, 4, pace_ms=0.0))
    assert figures.elapsed_s > 0


def test_a_comparison_is_written_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "result.json"
    throughput.main([*SMALL, "--compare", "--output-json", str(path)])
    result = json.loads(path.read_text())
    assert set(result["ratios"]) == {"mq/sync", "async/sync"}
    assert set(result["requests_per_second"]) == set(result["tokens_per_second"]) == {"sync", "mq", "async"}
    assert "mq/sync" in capsys.readouterr().out


def test_the_script_measures_one_way(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    command = [sys.executable, str(SCRIPT), *SMALL, "--async-engine", "--output-json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=50)
    assert "requests/s" in done.stdout
    assert "tokens/s" in done.stdout
    result = json.loads(path.read_text())
    assert result["requests_per_second"] * 12 == pytest.approx(result["tokens_per_second"])


def test_a_model_that_is_not_there_is_said_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--model", str(tmp_path / "none.gguf"), "--num-prompts", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)
    assert done.returncode == 1
    assert "none.gguf" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_transport_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "result.jsonl"
    transport.main(["--num-seqs=4", "--output-len=20", "--num-requests=50", "--repeat=2", f"--output-json={path}"])
    (line,) = map(json.loads, path.read_text().splitlines())
    assert line["benchmark"] == "transport"
    assert line["tokens_per_second"] > 0
    assert line["requests_per_minute"] > 0
    told = capsys.readouterr().out
    for hop in ("client", "engine", "http_worker", "http_client"):
        assert f"{hop}_cpu_us_per_token" in told
        assert line[f"{hop}_cpu_us_per_token"] >= 0


@pytest.mark.timeout(120)
def test_a_real_daemon_is_measured(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "result.jsonl"
    http.main(["--pace-ms=1", "--num-prompts=5", "--input-len=8", "--output-len=10", "--workers=1", f"--output-json={path}"])
    (line,) = map(json.loads, path.read_text().splitlines())
    assert line["ratios"]["http/sync"] > 0
    assert line["requests_per_second"] > 0
    assert set(line["rounds"][0]["inter_token_ms"]) == {"p50", "p90", "p99"}
    assert set(line["cpu_us_per_token"]) == {"engine", "api", "client", "sync"}
    told = capfd.readouterr().out
    assert "time to first token" in told
    assert "of a core used by the client" in told
