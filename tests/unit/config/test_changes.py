"""What differs between two configurations, and putting it into a third."""

from __future__ import annotations

import msgspec
import pytest

from aphrodited.config.changes import find_changes, with_changes
from aphrodited.config.schema import (
    ApiConfig,
    Apply,
    Config,
    EngineConfig,
    LoggingConfig,
    ModelConfig,
    RecoveryConfig,
)

OLD = Config(models=(ModelConfig("a", "/a"), ModelConfig("b", "/b", standby=1)))


def changed(**sections: object) -> Config:
    return msgspec.structs.replace(OLD, **sections)


def test_equal_configurations_differ_in_nothing() -> None:
    assert find_changes(OLD, changed()) == []


def test_a_value_says_its_key_its_values_as_one_writes_them_and_how_it_is_applied() -> None:
    new = changed(
        api=ApiConfig(max_body_size=2 * 1024**2), recovery=RecoveryConfig(probe_minutes=(1.0,)), logging=LoggingConfig("debug")
    )
    shown = [(str(change), change.apply, change.model) for change in find_changes(OLD, new)]
    assert shown == [
        ("api.max_body_size: 8MiB -> 2MiB", Apply.API, None),
        ("recovery.probe_minutes: [5, 15, 60] -> [1]", Apply.HOT, None),
        ("logging.level: info -> debug", Apply.HOT, None),
    ]


def test_a_value_of_a_model_has_the_place_in_the_new_file_and_the_models_name() -> None:
    models = (ModelConfig("b", "/b", standby=1, engine=EngineConfig(max_num_seqs=7)), OLD.models[0])
    (change,) = find_changes(OLD, changed(models=models))
    assert (str(change), change.apply, change.model) == (
        "models[0].engine.max_num_seqs: 256 -> 7",
        Apply.ENGINE,
        "b",
    )


def test_models_that_come_and_go_need_a_full_restart() -> None:
    changes = find_changes(OLD, changed(models=(OLD.models[0], ModelConfig("c", "/c"))))
    assert [(str(change), change.apply) for change in changes] == [
        ("models[1]: absent -> c", Apply.DAEMON),
        ("models: b -> absent", Apply.DAEMON),
    ]


def test_changes_go_into_a_configuration_that_differs_elsewhere_and_out_again() -> None:
    """As into the effective one, where a free port has been chosen."""
    models = (OLD.models[0], msgspec.structs.replace(OLD.models[1], engine=EngineConfig(threads=3)))
    changes = find_changes(OLD, changed(models=models, logging=LoggingConfig("error")))
    effective = changed(api=ApiConfig(port=40404))
    after = with_changes(effective, changes)
    assert after == changed(models=models, logging=LoggingConfig("error"), api=ApiConfig(port=40404))
    assert with_changes(after, [change.reversed() for change in changes]) == effective


@pytest.mark.parametrize("key", ["api.port", "api.workers", "models[0].standby", "models[0].path", "paths.log_dir"])
def test_what_the_supervisor_has_set_up_needs_a_full_restart(key: str) -> None:
    section, _, name = key.rpartition(".")
    values = {"port": 1, "workers": 9, "standby": 3, "path": "/other", "log_dir": "/elsewhere"}
    if section.startswith("models"):
        new = changed(models=(msgspec.structs.replace(OLD.models[0], **{name: values[name]}), OLD.models[1]))
    else:
        new = changed(**{section: msgspec.structs.replace(getattr(OLD, section), **{name: values[name]})})
    assert [(change.key, change.apply) for change in find_changes(OLD, new)] == [(key, Apply.DAEMON)]
