"""A table of deaths and what is held against whom. Each death is (at_s, who was being computed with how many tokens)."""

import pytest

from aphrodited.health.judgement import (
    MAX_CONVICTED,
    MAX_JUDGED,
    QUARANTINE_S,
    TRIAL_S,
    Report,
    counts,
    judge,
)
from aphrodited.rulings import NO_RULINGS, Rulings, Suspect
from aphrodited.supervision.ledger import Death, Verdict

MINUTE = 60.0


def death(**fields):
    common = {"boot_id": "b", "at_s": 1.0, "time": "", "program": "p", "pid": 7, "uptime_s": 1.0}
    return Death(**{**common, **fields})


def verdict(**fields):
    common = {"boot_id": "b", "at_s": 1.0, "time": "", "program": "p", "pid": 7, "action": "kill", "reason": ""}
    return Verdict(**{**common, "verdict": "hang", **fields})


@pytest.mark.parametrize(
    ("fields", "judged", "expected"),
    [
        ({"signal": "SIGSEGV"}, None, True),
        ({"signal": "SIGABRT"}, None, True),
        ({"code": 70}, None, True),
        ({"code": 1}, None, True),
        ({"signal": "SIGKILL"}, None, False),
        ({"signal": "SIGTERM"}, None, False),
        ({"signal": "SIGINT"}, None, False),
        ({"signal": "SIGKILL", "oom": True}, None, True),
        ({"signal": "SIGKILL"}, verdict(), True),
        ({"signal": "SIGABRT"}, verdict(action="abort"), True),
        ({"signal": "SIGKILL"}, verdict(stopped=True), False),
        ({"signal": "SIGKILL"}, verdict(verdict="memory"), False),
        ({"code": 70, "requested": True}, None, False),
        ({"signal": "SIGSEGV", "standby": True}, None, False),
        ({"code": 0}, None, False),
        ({"code": 71}, None, False),
        ({"code": 75}, None, False),
        ({"code": 78}, None, False),
    ],
)
def test_a_death_counts_if_what_was_computed_may_be_its_cause(fields, judged, expected):
    assert counts(death(**fields), judged) is expected


def after(*deaths, known=NO_RULINGS):
    """The judgement of the last of these deaths.  Each: at_s, present, and options of its report."""
    judgement = None
    for generation, (at_s, present, *options) in enumerate(deaths, start=len(known.judged) + 1):
        fields = {"counts": True, "num_sequences": len(present), **(options[0] if options else {})}
        judgement = judge(known, Report(generation, float(at_s), present=present, **fields))
        known = judgement.rulings
    return judgement


OUTSIDE = {"counts": False}


def test_one_death_is_held_against_nobody():
    rulings, suspected, convicted = after((10, {"a": 5, "b": 9}))
    assert (rulings.suspects, rulings.convicted, suspected, convicted) == ({}, {}, frozenset(), None)
    assert rulings.judged == (1,)


def test_who_is_present_at_two_deaths_runs_alone_until_one_token_past_the_later_position():
    rulings, suspected, convicted = after((10, {"a": 5, "b": 9, "c": 1}), (20, {"a": 7, "b": 2, "d": 4}))
    assert rulings.suspects == {"a": Suspect(8, 20), "b": Suspect(10, 20)}
    assert (suspected, convicted) == ({"a", "b"}, None)


def test_a_suspect_that_was_alone_at_a_death_is_refused_for_an_hour():
    rulings, suspected, convicted = after((10, {"a": 5, "b": 9}), (20, {"a": 5, "b": 9}), (30, {"a": 5}))
    assert (convicted, suspected) == ("a", frozenset())
    assert rulings.convicted == {"a": 30 + QUARANTINE_S}
    assert list(rulings.suspects) == ["b"]


def test_a_request_that_had_no_company_at_two_deaths_is_convicted_by_the_second():
    assert after((10, {"a": 5}), (20, {"a": 5})).convicted == "a"


@pytest.mark.parametrize(
    "deaths",
    [
        [(10, {"a": 5})],
        [(10, {"a": 5}), (20, {"b": 5})],
        [(10, {"a": 5}), (20, {"b": 5}), (30, {"a": 5})],
        [(10, {"a": 5, "b": 1}), (20, {"a": 5, "b": 1}), (30, {"a": 5, "b": 1})],
        [(10, {"a": 5}, OUTSIDE), (20, {"a": 5}, OUTSIDE), (30, {"a": 5}, OUTSIDE), (40, {"a": 5})],
        [(10, {"a": 5}), (20, {"a": 5}, OUTSIDE)],
        [(10, {"a": 5, "b": 1}), (20, {"a": 5, "b": 1}), (30, {"a": 5}, OUTSIDE)],
        [(10, {"a": 5}, {"num_sequences": 2}), (20, {"a": 5}, {"num_sequences": 2})],  # twice, or beside a nameless one
        [(10, {}), (20, {})],
        [(10, {"a": 5}), (20 + QUARANTINE_S, {"a": 5})],
    ],
    ids=[
        "once", "two, one each", "not in a row", "never alone", "outside", "outside after one", "outside while alone",
        "same request twice", "between steps", "an hour apart",
    ],
)  # fmt: skip
def test_nobody_is_convicted_by(deaths):
    judgement = after(*deaths)
    assert (judgement.convicted, judgement.rulings.convicted) == (None, {})


def test_kills_from_outside_are_not_in_between():
    """Two counted deaths in a row are those that count."""
    assert after((10, {"a": 5}), (15, {"b": 1}, OUTSIDE), (20, {"a": 5})).convicted == "a"


def test_twelve_kills_from_outside_leave_no_trace():
    rulings = after(*[(at_s, {"a": at_s, "b": 3}, OUTSIDE) for at_s in range(12)]).rulings
    assert (rulings.suspects, rulings.convicted, rulings.last) == ({}, {}, None)


def test_suspects_that_were_not_tried_yet_stay_suspects_and_are_tried_after_a_kill_from_outside():
    three = {"a": 5, "b": 5, "c": 5}
    judgement = after((10, three), (20, three), (30, {"a": 5}), (40, {"b": 5}, OUTSIDE), (50, {"b": 5}))
    assert sorted(judgement.rulings.convicted) == ["a", "b"]
    assert list(judgement.rulings.suspects) == ["c"]


def test_one_that_got_further_in_company_is_suspected_no_longer():
    both = {"a": 5, "b": 5}
    rulings = after((10, both), (20, both), (30, {"a": 90, "c": 3})).rulings
    assert rulings.suspects["a"].alone_until == 91  # at two deaths in a row once more
    rulings = after((10, both), (20, both), (30, {"a": 90, "c": 3}, OUTSIDE)).rulings
    assert list(rulings.suspects) == ["b"]


def test_suspicion_ends_by_itself():
    both = {"a": 5, "b": 5}
    assert after((10, both), (20, both), (21 + TRIAL_S, {}, OUTSIDE)).rulings.suspects == {}


def test_a_conviction_ends_by_itself():
    lone = [(10, {"a": 5}), (20, {"a": 5})]
    assert list(after(*lone, (19 + QUARANTINE_S, {"b": 1})).rulings.convicted) == ["a"]
    assert after(*lone, (21 + QUARANTINE_S, {"b": 1})).rulings.convicted == {}


def test_what_is_kept_has_bounds():
    convicted = {f"{number:04}": 100.0 + number for number in range(MAX_CONVICTED)}
    known = Rulings(judged=tuple(range(MAX_JUDGED)), convicted=convicted)
    rulings = after((10, {"a": 5}), (20, {"a": 5}), known=known).rulings
    assert len(rulings.convicted) == MAX_CONVICTED
    assert "a" in rulings.convicted
    assert "0000" not in rulings.convicted  # it had the least to go
    assert len(rulings.judged) == MAX_JUDGED
    assert rulings.judged[-1] == MAX_JUDGED + 2


def test_rulings_are_not_changed_by_a_later_judgement():
    before = after((10, {"a": 5, "b": 1}), (20, {"a": 5, "b": 1})).rulings
    judge(before, Report(3, 30.0, True, 1, {"a": 5}))
    assert sorted(before.suspects) == ["a", "b"]
    assert before.convicted == {}
