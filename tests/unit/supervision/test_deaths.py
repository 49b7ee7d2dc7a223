import signal

import pytest

from aphrodited.page import Page, Phase
from aphrodited.supervision.deaths import OomCounter, describe_death, last_verdict
from aphrodited.supervision.ledger import Death, Verdict, boottime_s, stamp
from aphrodited.supervision.program_state import LaunchState, ProgramState


def a_page(phase=Phase.STEPPING, **fields):
    common = {"pid": 7, "start_ticks": 0, "generation": 3, "has_work": True, "num_ticks": 1, "num_steps": 1}
    return Page(**{**common, "phase": phase, "num_finished": 5, "allowance_s": 0.0, "updated_at_s": 0.0, **fields})


def launched(state=LaunchState.RUNNING, ago_s=2.0):
    return ProgramState(program="p", pid=7, state=state, since_s=boottime_s() - ago_s)


def describe(wait_status, *, requested=False, oom=False, page=None, launch=None, verdict=None):
    return describe_death(
        "p", "m", 7, wait_status, requested=requested, oom=oom, page=page, launch=launch, verdict=verdict
    )


def verdict(action="kill"):
    return Verdict(**stamp("p"), pid=7, verdict="hang", action=action, reason="no step for 31 s")


@pytest.mark.parametrize(
    ("wait_status", "fields", "cause"),
    [
        (signal.SIGKILL, {"page": a_page()}, "killed by SIGKILL while stepping"),
        (signal.SIGSEGV | 0x80, {}, "killed by SIGSEGV"),
        (signal.SIGKILL, {"oom": True, "page": a_page()}, "killed for lack of memory while stepping"),
        (signal.SIGKILL, {"verdict": verdict()}, "hang: no step for 31 s"),
        (signal.SIGKILL, {"requested": True}, "was killed because it did not stop in time"),
        (0, {"requested": True}, "stopped on request"),
        (0, {"page": a_page(Phase.READY)}, "exited although nobody asked for it while ready"),
        (70 << 8, {"page": a_page(Phase.FAILED, message="KeyError: 'x'")}, "KeyError: 'x'"),
        (78 << 8, {}, "its configuration or model cannot be used"),
        (3 << 8, {}, "exited with code 3"),
        (signal.SIGKILL, {"launch": launched(LaunchState.PARKED)}, "killed by SIGKILL while it waited for its turn"),
        (None, {}, "ended"),
    ],
)
def test_the_cause_is_told_by_whoever_knows_best(wait_status, fields, cause):
    assert describe(wait_status, **fields).cause == cause


def test_a_death_carries_signal_core_and_what_the_page_said():
    death = describe(signal.SIGABRT | 0x80, page=a_page(), launch=launched(ago_s=2.0))
    assert (death.signal, death.code, death.core) == ("SIGABRT", None, True)
    assert (death.num_finished, death.generation, death.model) == (5, 3, "m")
    assert death.uptime_s == pytest.approx(2.0, abs=0.5)


@pytest.mark.parametrize(("phase", "standby"), [(Phase.STANDBY, True), (Phase.LOADING, False), (Phase.READY, False)])
def test_a_death_in_standby_is_told_from_others(phase, standby):
    assert describe(signal.SIGKILL, page=a_page(phase)).standby is standby


def test_a_launcher_that_waited_was_never_up():
    assert describe(signal.SIGKILL, launch=launched(LaunchState.PARKED, ago_s=3600)).uptime_s == 0.0


def test_the_last_verdict_counts_if_it_led_to_the_end():
    entries = [verdict("suspect"), verdict("kill"), Death(**stamp("p"), pid=8, uptime_s=0.0)]
    assert last_verdict(entries, "p", 7) is entries[1]
    assert last_verdict([*entries, verdict("cleared")], "p", 7) is None
    assert last_verdict(entries, "p", 8) is None


@pytest.mark.parametrize(
    ("cgroup", "source"),
    [
        ("0::/a/b", "sys/a/b/memory.events"),
        ("0::/a/b", "sys/unified/a/b/memory.events"),
        ("4:memory:/x\n0::/", "sys/memory/x/memory.oom_control"),
        ("0::/", "proc/vmstat"),
    ],
)
def test_kills_for_lack_of_memory_are_counted_wherever_the_kernel_tells(tmp_path, cgroup, source):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(cgroup + "\n")
    path = tmp_path / source
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("low 0\noom_kill 4\n")
    counter = OomCounter(tmp_path / "proc", tmp_path / "sys")
    assert not counter.has_grown()
    path.write_text("low 0\noom_kill 5\n")
    assert counter.has_grown()
    assert not counter.has_grown()


def test_a_kernel_that_tells_nothing_counts_nothing(tmp_path):
    assert not OomCounter(tmp_path, tmp_path).has_grown()
