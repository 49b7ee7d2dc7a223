import pytest

from aphrodited.config.schema import ApiConfig, Config, ModelConfig, RecoveryConfig
from aphrodited.supervision.programs import Role, full_name, programs, stop_timeout_s

CONFIG = Config(
    models=(ModelConfig("a", "p"), ModelConfig("b", "p")),
    api=ApiConfig(workers=2, drain_timeout_s=29.5),
    recovery=RecoveryConfig(engine_stop_timeout_s=9.2),
)


def test_the_set_of_programs_follows_from_the_configuration():
    known = programs(CONFIG)
    assert [(p.role, p.model) for p in known] == [
        (Role.MONITOR, None),
        (Role.ENGINE, "a"),
        (Role.ENGINE, "b"),
        (Role.API, None),
        (Role.API, None),
    ]
    assert [p.title for p in known] == ["monitor", "the engine of a", "the engine of b", "api-0", "api-1"]


def test_a_model_with_standbys_has_several_engines_of_equal_rank():
    config = Config(models=(ModelConfig("a", "p", standby=2), ModelConfig("b", "p", standby=0)))
    engines = [program for program in programs(config) if program.role is Role.ENGINE]
    assert [program.name[-2:] for program in engines] == ["-0", "-1", "-2", "-0"]
    assert len({program.name for program in engines}) == 4
    assert [program.title for program in engines] == ["engine 0 of a", "engine 1 of a", "engine 2 of a", "the engine of b"]


@pytest.mark.parametrize(
    ("name", "full"),
    [("monitor", "monitor:monitor"), ("engine-0a1b2c3d-0", "engines:engine-0a1b2c3d-0"), ("api-1", "api:api-1"), ("x", "x")],
)
def test_supervisor_knows_programs_by_their_group(name, full):
    assert full_name(name) == full


def test_everything_stops_within_the_sum_of_its_groups():
    assert stop_timeout_s(CONFIG) == (30 + 5) + 10 + 5
