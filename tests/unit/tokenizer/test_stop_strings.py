from hypothesis import given
from hypothesis import strategies as st

from aphrodited.tokenizer.stop_strings import StopChecker


def run(pieces: list[str], stops: list[str], **options: bool) -> tuple[str, str | None]:
    """The whole text that is shown, and the stop string that ended it."""
    checker = StopChecker(stops, **options)
    shown = ""
    for piece in pieces:
        result = checker.push(piece)
        shown += result.text
        if result.stop is not None:
            return shown, result.stop
    return shown + checker.flush(), None


def reference(text: str, stops: list[str]) -> tuple[str, str | None]:
    for end in range(1, len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended:
            stop = max(ended, key=len)
            return text[: end - len(stop)], stop
    return text, None


def test_without_stop_strings_text_passes_at_once() -> None:
    checker = StopChecker([])
    assert checker.push("abc").text == "abc"
    assert checker.flush() == ""


def test_a_possible_beginning_is_held_back_and_let_go_when_it_is_none() -> None:
    checker = StopChecker(["\nUser:"])
    assert checker.push("Hi\nU").text == "Hi"
    assert checker.push("se").text == ""
    assert checker.push("d").text == "\nUsed"
    assert checker.push("\nUs").text == ""
    assert checker.flush() == "\nUs"


def test_the_longest_possible_beginning_of_any_stop_string_is_held_back() -> None:
    checker = StopChecker(["abcd", "cx"])
    assert checker.push("zabc").text == "z"
    assert checker.push("e").text == "abce"


def test_a_stop_string_across_pieces_is_found_and_what_follows_is_dropped() -> None:
    assert run(["one ST", "O", "P two"], ["STOP"]) == ("one ", "STOP")
    assert run(["one ST", "O", "P two"], ["STOP"], include_stop=True) == ("one STOP", "STOP")


def test_the_stop_string_that_ends_first_wins_and_of_those_the_longest() -> None:
    assert run(["xabc"], ["abc", "ab"]) == ("x", "ab")
    assert run(["xabc"], ["c", "abc"]) == ("x", "abc")


def test_a_stop_string_that_ends_too_early_is_text() -> None:
    checker = StopChecker(["ab"])
    assert checker.push("xab", may_stop=False).text == "xab"
    assert checker.push("a", may_stop=False).text == ""
    assert checker.push("bz") .stop == "ab"


@given(
    pieces=st.lists(st.text("ab\n", max_size=5), max_size=8),
    stops=st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3),
)
def test_how_the_text_is_cut_makes_no_difference(pieces: list[str], stops: list[str]) -> None:
    assert run(pieces, stops) == reference("".join(pieces), stops)


@given(pieces=st.lists(st.text("ab", max_size=4), max_size=8), stop=st.text("ab", min_size=1, max_size=4))
def test_nothing_is_held_back_that_cannot_become_a_stop_string(pieces: list[str], stop: str) -> None:
    checker, shown, given_text = StopChecker([stop]), "", ""
    for piece in pieces:
        result = checker.push(piece)
        shown += result.text
        given_text += piece
        if result.stop is not None:
            return
        held = given_text.removeprefix(shown)
        assert shown + held == given_text
        assert stop.startswith(held)
        assert held != stop
