"""A table of lives and what follows. Each life is (at_s, what happened); the clock is a number."""

import pytest

from aphrodited.config.schema import RecoveryConfig
from aphrodited.supervision.governor import Decision, decide
from aphrodited.supervision.ledger import Conviction, Death, Reset, Trial, Verdict
from aphrodited.supervision.program_state import LaunchState

BOOT = "this-boot"
POLICY = RecoveryConfig(max_strikes=3, max_deaths=5, strike_delay_s=1.0)
MINUTE = 60.0


def entry(at_s, what, program="p", boot_id=BOOT, **fields):
    common = {"boot_id": boot_id, "at_s": float(at_s), "time": "", "program": program}
    if what == "reset":
        return Reset(**common)
    if what == "verdict":
        return Verdict(**common, pid=1, verdict="hang", action="kill", reason="stood still")
    if what == "trial":
        return Trial(**common, pid=1, num_suspects=9, model="m")
    if what == "conviction":
        return Conviction(**common, pid=1, fingerprint="ff", cause="", model="m")
    kinds = {
        "strike": {"code": 70},
        "worked": {"signal": "SIGKILL", "num_finished": 1},
        "stopped": {"code": 0, "requested": True},
        "config": {"code": 78, "cause": "model.gguf: no such file"},
        "idle": {"signal": "SIGKILL", "uptime_s": 601.0},
        "standby": {"signal": "SIGKILL", "standby": True},
    }
    return Death(**{**common, "pid": 1, "uptime_s": 1.0, **kinds[what], **fields})


def ask(lives, now_s, policy=POLICY, jitter=0.0):
    entries = [entry(*life) for life in lives]
    return decide(entries, "p", policy, boot_id=BOOT, now_s=float(now_s), jitter=jitter)


@pytest.mark.parametrize(
    ("lives", "now_s", "state", "delay_s"),
    [
        ([], 0, LaunchState.RUNNING, 0),
        ([(10, "worked")], 10, LaunchState.RUNNING, 0),
        ([(10, "idle")], 10, LaunchState.RUNNING, 0),
        ([(10, "stopped")], 10, LaunchState.RUNNING, 0),
        ([(10, "standby"), (20, "standby"), (30, "standby")], 30, LaunchState.RUNNING, 0),
        ([(at_s, "standby") for at_s in (10, 20, 30, 40, 50)], 50, LaunchState.PARKED, 5 * MINUTE),
        ([(10, "strike")], 10, LaunchState.BACKOFF, 1),
        ([(10, "strike")], 10.25, LaunchState.BACKOFF, 0.75),
        ([(10, "strike")], 11, LaunchState.RUNNING, 0),
        ([(10, "strike"), (12, "strike")], 12, LaunchState.BACKOFF, 2),
        ([(10, "strike"), (12, "worked"), (13, "strike")], 13, LaunchState.BACKOFF, 1),
        ([(10, "strike"), (12, "strike"), (15, "stopped")], 15, LaunchState.RUNNING, 0),
        ([(10, "strike"), (12, "strike"), (15, "reset"), (16, "strike")], 16, LaunchState.BACKOFF, 1),
        ([(10, "strike"), (12, "strike"), (15, "strike")], 15, LaunchState.PARKED, 5 * MINUTE),
        ([(10, "worked"), (11, "worked"), (12, "worked"), (13, "worked"), (14, "worked")], 14, LaunchState.PARKED, 300),
        ([(0, "worked"), (11, "worked"), (12, "worked"), (13, "worked"), (601, "worked")], 601, LaunchState.RUNNING, 0),
        ([(10, "config")], 10, LaunchState.PARKED, 5 * MINUTE),
        ([(10, "config"), (20, "reset")], 20, LaunchState.RUNNING, 0),
        ([(10, "config"), (20, "stopped")], 20, LaunchState.RUNNING, 0),
        ([(10, "verdict")], 10, LaunchState.RUNNING, 0),
        ([(10, "strike"), (12, "strike"), (12, "trial")], 12, LaunchState.RUNNING, 0),
        ([(10, "strike"), (12, "strike"), (12, "trial"), (15, "strike")], 15, LaunchState.BACKOFF, 1),
        ([(10, "strike"), (12, "strike"), (12, "trial"), (15, "strike"), (15, "conviction")], 15, LaunchState.RUNNING, 0),
        ([(10, "strike"), (12, "strike"), (15, "strike"), (15, "conviction")], 15, LaunchState.RUNNING, 0),
        ([(10, "config"), (12, "conviction")], 12, LaunchState.PARKED, 298),
        ([(10, "strike"), (12, "conviction")] * 5, 12, LaunchState.PARKED, 298),
    ],
)
def test_what_follows_a_history(lives, now_s, state, delay_s):
    decision = ask(lives, now_s)
    assert (decision.state, decision.delay_s) == (state, pytest.approx(delay_s))


def test_probes_of_a_parked_program_come_after_5_15_and_60_minutes_then_hourly():
    lives, probes_at = [(0, "config")], []
    for _ in range(6):
        decision = ask(lives, lives[-1][0])
        assert decision.state is LaunchState.PARKED
        probes_at.append(decision.next_try_at_s / MINUTE)
        assert ask(lives, decision.next_try_at_s).state is LaunchState.RUNNING
        lives.append((decision.next_try_at_s + 3, "strike"))
    assert probes_at == [5, 15, 60, 120, 180, 240]


def test_a_probe_that_worked_ends_the_parking():
    lives = [(0, "config"), (301, "worked")]
    assert ask(lives, 301) == Decision(LaunchState.RUNNING)
    assert ask([*lives, (302, "strike")], 302).num_strikes == 1


def test_a_probe_that_loaded_for_long_waits_for_the_next_instant_after_its_end():
    assert ask([(0, "config"), (16 * MINUTE, "strike")], 16 * MINUTE).next_try_at_s == 60 * MINUTE


def test_delays_double_to_a_minute_and_no_further():
    policy = RecoveryConfig(max_strikes=100, max_deaths=1000)
    delays = [ask([(0, "strike")] * n, 0, policy).delay_s for n in range(1, 40)]
    assert delays[:7] == [1, 2, 4, 8, 16, 32, 60]
    assert set(delays[6:]) == {60}


@pytest.mark.parametrize(("jitter", "delay_s"), [(-1, 0.8), (0, 1), (1, 1.2)])
def test_jitter_moves_a_delay_by_a_fifth(jitter, delay_s):
    assert ask([(0, "strike")], 0, jitter=jitter).delay_s == pytest.approx(delay_s)


def test_other_programs_and_other_boots_do_not_count():
    entries = [entry(1, "config", program="other"), entry(2, "config", boot_id="before")]
    assert decide(entries, "p", POLICY, boot_id=BOOT, now_s=3.0, jitter=0).state is LaunchState.RUNNING


def test_reasons_say_what_happened():
    assert ask([(0, "config")], 1).reason == "model.gguf: no such file"
    assert ask([(0, "strike")], 0).reason == "exited with code 70"
    parked = ask([(0, "strike")] * 3, 0)
    assert parked.reason == "died 3 times in a row before it did anything; the last: exited with code 70"
    assert ask([(0, "worked")] * 5, 0).reason.startswith("died 5 times in 10 minutes")
    assert ask([], 0).reason == ""


def test_whatever_the_history_a_program_is_never_given_up_and_never_in_a_hot_loop():
    """Play a program that dies at once for a day: bounded tries, and always a next one."""
    lives, now_s, num_starts = [], 0.0, 0
    while now_s < 24 * 3600:
        decision = ask(lives, now_s)
        if decision.state is not LaunchState.RUNNING:
            assert 0 < decision.delay_s <= 3600
            now_s = decision.next_try_at_s
            continue
        num_starts += 1
        lives.append((now_s, "strike"))
    assert 20 <= num_starts <= 40
