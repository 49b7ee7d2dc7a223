"""Workers take a replaced effective.json up at once."""

import pytest

from aphrodited.config.loader import write_effective
from aphrodited.config.schema import Config, LoggingConfig, ModelConfig
from aphrodited.workers import live_config
from aphrodited.workers.live_config import follow_config
from tests.support.daemons import wait_until


def write(path, level):
    write_effective(Config(models=(ModelConfig("m", "p"),), logging=LoggingConfig(level)), path)


@pytest.mark.parametrize("has_inotify", [True, False])
def test_every_replacement_is_handed_on_and_damage_is_passed_over(tmp_path, monkeypatch, has_inotify):
    if not has_inotify:
        monkeypatch.setattr(live_config, "FileWatch", refuse)
        monkeypatch.setattr(live_config, "POLL_S", 0.02)
    path, levels = tmp_path / "effective.json", []
    write(path, "info")
    follow_config(path, lambda config: levels.append(config.logging.level))
    wait_until(lambda: levels == ["info"])
    write(path, "debug")
    wait_until(lambda: levels == ["info", "debug"])
    (tmp_path / "new").write_text("{")
    (tmp_path / "new").rename(path)
    (tmp_path / "other").write_text("")
    write(path, "error")
    wait_until(lambda: levels[-1] == "error")
    assert len(levels) == 3


def refuse(_path):
    raise OSError("no inotify here")
