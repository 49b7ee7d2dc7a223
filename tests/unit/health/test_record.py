import msgspec
import pytest

from aphrodited.health.record import Record, describe_exit
from aphrodited.supervision.ledger import Death, Verdict, boottime_s, stamp

ENGINE = "engine-12345678-0"


def death(program, **fields):
    return Death(**stamp(program), pid=1, uptime_s=1.0, **fields)


def test_deaths_count_from_the_start_of_the_daemon_and_of_this_boot():
    entries = [
        msgspec.structs.replace(death(ENGINE, cause="long ago"), at_s=boottime_s() - 3600),
        death(ENGINE, cause="first"),
        death(ENGINE, cause="second"),
        msgspec.structs.replace(death(ENGINE, cause="elsewhere"), boot_id="another"),
    ]
    record = Record(entries, boottime_s() - 60)
    assert record.num_deaths == {ENGINE: 2}
    assert record.last_deaths[ENGINE].cause == "second"


def test_without_a_daemon_nothing_is_counted_but_the_last_death_is_known():
    record = Record([death(ENGINE, cause="boom")], None)
    assert record.num_deaths == {}
    assert record.last_deaths[ENGINE].cause == "boom"


def test_a_verdict_is_on_one_process():
    verdict = Verdict(**stamp(ENGINE), pid=7, verdict="hang", action="dump", reason="no progress")
    record = Record([verdict], None)
    assert record.verdict_on(ENGINE, 7) == verdict
    assert record.verdict_on(ENGINE, 8) is None
    assert record.verdict_on(ENGINE, None) is None


@pytest.mark.parametrize(
    ("fields", "summary"),
    [
        ({"signal": "SIGKILL", "cause": "killed by SIGKILL while ready"}, "killed by SIGKILL while ready"),
        ({"code": 70, "cause": "step failed: boom"}, "step failed: boom (exit code 70)"),
        ({"code": 0}, "exit code 0"),
        ({"signal": "SIGSEGV", "core": True, "cause": "killed by SIGSEGV"}, "killed by SIGSEGV (core dumped)"),
        ({}, "ended"),
    ],
)
def test_a_death_is_summed_up_in_one_line(fields, summary):
    assert describe_exit(death(ENGINE, **fields)).summary == summary
