"""Tests of aphrodited.workers.launch and attended_engine, with real processes."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

from aphrodited import ModelConfig, launch_engine
from aphrodited.errors import ConfigError
from aphrodited.mq.endpoints import read_current
from aphrodited.paths import ModelPaths
from aphrodited.procfs import process_state
from tests.support.engine_process import wait_blocking

NULL = ModelConfig(name="m", path="/nowhere", backend="null")


def engines_of(folder: Path) -> list[int]:
    """Processes that were started for that folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                command = (entry / "cmdline").read_text()
            except OSError:
                continue
            if str(folder) in command and process_state(int(entry.name)) != "Z":
                found.append(int(entry.name))
    return found


def test_the_engine_lives_as_long_as_the_block() -> None:
    with launch_engine(NULL) as ipc_path:
        root = ipc_path.parents[2]
        assert read_current(ModelPaths(ipc_path)) is not None
        (pid,) = engines_of(root)
        environment = Path(f"/proc/{pid}/environ").read_text()
        assert "OMP_NUM_THREADS=" in environment
        assert "MALLOC_TRIM_THRESHOLD_=" in environment
    assert engines_of(root) == []
    assert not root.exists()


def test_an_error_in_the_block_ends_the_engine_too() -> None:
    folders: list[Path] = []

    def script() -> None:
        with launch_engine(NULL) as ipc_path:
            folders.append(ipc_path.parents[2])
            raise RuntimeError("an error of the script")

    with pytest.raises(RuntimeError, match="of the script"):
        script()
    assert engines_of(folders[0]) == []
    assert not folders[0].exists()


def test_a_model_that_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    broken = ModelConfig(name="m", path=str(tmp_path), backend="null")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json"), launch_engine(broken):
        pass


def test_a_path_too_long_for_sockets_is_said_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 90)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with pytest.raises(ConfigError, match="bytes and the system takes"), launch_engine(NULL):
        pass
    assert list(long.iterdir()) == []


def test_the_engine_ends_with_a_script_that_is_killed() -> None:
    code = textwrap.dedent(
        """
        import time
        from aphrodited import ModelConfig, launch_engine
        with launch_engine(ModelConfig(name="m", path="/nowhere", backend="null")) as ipc_path:
            print(ipc_path, flush=True)
            time.sleep(60)
        """
    )
    script = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert script.stdout is not None
    root = Path(script.stdout.readline().strip()).parents[2]
    assert len(engines_of(root)) == 1
    script.send_signal(signal.SIGKILL)
    script.wait()
    script.stdout.close()
    wait_blocking(lambda: engines_of(root) == [], 15)
    assert not root.exists()
