import os

import pytest

from aphrodited.config.schema import EngineConfig, ModelConfig
from aphrodited.engine.environment import engine_environment, engine_threads
from aphrodited.errors import ConfigError


def model(**engine):
    return ModelConfig(name="m", path="p", engine=EngineConfig(**engine))


def test_auto_threads_are_the_cores_this_process_may_use():
    assert engine_threads(model()) == len(os.sched_getaffinity(0))


def test_configured_threads_are_taken():
    assert engine_threads(model(threads=3)) == 3
    assert engine_environment(model(threads=3))["OMP_NUM_THREADS"] == "3"


def test_auto_threads_are_no_more_than_the_cpus_of_the_engine():
    cpu = min(os.sched_getaffinity(0))
    assert engine_threads(model(cpus=str(cpu))) == 1
    assert engine_environment(model(cpus=f"{cpu},9998-9999"))["OMP_NUM_THREADS"] == "1"


def test_waiting_threads_sleep_unless_they_are_told_to_spin():
    assert engine_environment(model())["OMP_WAIT_POLICY"] == "PASSIVE"
    assert engine_environment(model(wait_policy="active"))["OMP_WAIT_POLICY"] == "ACTIVE"


@pytest.mark.parametrize("threads", [0, -1])
def test_fewer_than_one_thread_is_refused(threads):
    with pytest.raises(ConfigError, match="threads"):
        engine_threads(model(threads=threads))


def test_every_value_is_text_for_execve():
    assert all(isinstance(value, str) for value in engine_environment(model()).values())
