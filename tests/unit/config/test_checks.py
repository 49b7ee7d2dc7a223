"""Warnings: allowed, but probably not meant."""

from __future__ import annotations

from pathlib import Path

import msgspec

from aphrodited.config.checks import find_warnings
from aphrodited.config.schema import ApiConfig, Config, ModelConfig

CONFIG = Config(models=(ModelConfig("m", "org/m"),))


def test_a_sane_configuration_has_no_warnings() -> None:
    assert find_warnings(CONFIG) == []


def test_keys_that_everybody_can_read_are_worth_a_word(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("sk-1")
    keys.chmod(0o644)
    (warning,) = find_warnings(msgspec.structs.replace(CONFIG, api=ApiConfig(keys_file=str(keys))))
    assert "every user of this host can read" in warning
    keys.chmod(0o640)
    assert find_warnings(msgspec.structs.replace(CONFIG, api=ApiConfig(keys_file=str(keys)))) == []


def test_an_open_port_without_keys_is_worth_a_word() -> None:
    api = ApiConfig(host="0.0.0.0", allow_unauthenticated=True)
    (warning,) = find_warnings(msgspec.structs.replace(CONFIG, api=api))
    assert "asks for no key" in warning
