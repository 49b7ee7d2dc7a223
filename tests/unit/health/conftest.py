"""A daemon's directories without a daemon, and stand-ins for its processes."""

import subprocess
import sys

import pytest

from aphrodited.config.schema import ApiConfig, Config, ModelConfig, MonitorConfig, RecoveryConfig
from aphrodited.page import PageWriter
from aphrodited.paths import DaemonPaths
from aphrodited.procfs import process_start_ticks


@pytest.fixture
def paths(tmp_path):
    for name in ("run", "log", "state"):
        (tmp_path / name).mkdir()
    return DaemonPaths(tmp_path / "run", tmp_path / "log", tmp_path / "state")


@pytest.fixture
def config():
    return Config(
        models=(ModelConfig("demo", "/m/demo", backend="null"), ModelConfig("other", "/m/other", backend="null")),
        api=ApiConfig(workers=1),
        monitor=MonitorConfig(interval_s=0.5),
        recovery=RecoveryConfig(hang_min_s=10, ladder_step_s=5),
    )


@pytest.fixture
def sleeper():
    """A process of its own group that does nothing."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], process_group=0)
    yield process
    process.kill()
    process.wait()


class PageOf(PageWriter):
    """A page written here on behalf of another process."""

    def __init__(self, path, pid):
        super().__init__(path)
        self.update(pid=pid, start_ticks=process_start_ticks(pid))


@pytest.fixture
def page_of(paths):
    """page_of(program, pid): the page of a process, to be written by the test."""
    pages = []

    def make(program, pid):
        pages.append(PageOf(paths.page(program), pid))
        return pages[-1]

    yield make
    for page in pages:
        page.close()
