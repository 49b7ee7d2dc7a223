"""Several generations read as one: order, quiet times, failures, and that leaving ends them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from aphrodited.api.choices import Choices, Delta, WholeChoice
from aphrodited.errors import RequestAbortedError
from aphrodited.outputs import CompletionOutput, FinishReason, RequestOutput, TokenLogprobs


class Scene:
    """A generation that says what it is given: a text, a finish reason, or an error."""

    def __init__(self) -> None:
        self.cues: asyncio.Queue[str | FinishReason | Exception] = asyncio.Queue(maxsize=100)
        self.has_ended = False

    def say(self, *cues: str | FinishReason | Exception) -> None:
        for cue in cues:
            self.cues.put_nowait(cue)

    async def run(self) -> AsyncIterator[RequestOutput]:
        try:
            while True:
                cue = await self.cues.get()
                if isinstance(cue, Exception):
                    raise cue
                text, reason = ("", cue) if isinstance(cue, FinishReason) else (cue, None)
                choice = CompletionOutput(new_text=text, new_token_ids=[1], finish_reason=reason)
                yield RequestOutput("r", None, [], [choice], finished=reason is not None)
        finally:
            self.has_ended = True


def texts(deltas: list[Delta]) -> list[tuple[int, str]]:
    return [(delta.index, delta.text) for delta in deltas]


async def test_what_became_ready_together_is_taken_together_in_order() -> None:
    scenes = [Scene(), Scene()]
    async with Choices([scene.run() for scene in scenes]) as choices:
        scenes[0].say("a", "b")
        scenes[1].say("x")
        assert sorted(texts(await choices.take())) == [(0, "a"), (0, "b"), (1, "x")]
        scenes[1].say(FinishReason.STOP)
        (ending,) = await choices.take()
        assert (ending.index, ending.finish_reason) == (1, FinishReason.STOP)
        assert not choices.are_finished
        scenes[0].say(FinishReason.LENGTH)
        await choices.take()
        assert choices.are_finished


async def test_a_quiet_time_is_told_and_told_again_and_ends_nothing() -> None:
    scene = Scene()
    async with Choices([scene.run()], quiet_s=0.02) as choices:
        assert await choices.take() == []
        assert await choices.take() == []
        scene.say("late")
        assert texts(await choices.take()) == [(0, "late")]
        assert await choices.take() == []


async def test_the_quiet_time_begins_anew_with_everything_taken() -> None:
    scene = Scene()
    loop = asyncio.get_running_loop()
    async with Choices([scene.run()], quiet_s=0.1) as choices:
        await asyncio.sleep(0.06)
        scene.say("a")
        await choices.take()
        taken_at_s = loop.time()
        assert await choices.take() == []
        assert loop.time() - taken_at_s >= 0.09  # not what was left of the first 0.1 s


async def test_a_failure_is_raised_after_what_came_before_it() -> None:
    scene, other = Scene(), Scene()
    async with Choices([scene.run(), other.run()]) as choices:
        scene.say("a", ValueError("lost"))
        assert texts(await choices.take()) == [(0, "a")]
        for _ in range(2):
            with pytest.raises(ValueError, match="lost"):
                await choices.take()
    assert other.has_ended


async def test_whoever_waits_is_told_of_a_failure_from_outside_and_the_first_counts() -> None:
    async with Choices([Scene().run()]) as choices:
        waiting = asyncio.create_task(choices.take())
        await asyncio.sleep(0)
        choices.fail(ValueError("first"))
        choices.fail(ValueError("second"))
        with pytest.raises(ValueError, match="first"):
            await waiting


async def test_an_abort_in_the_engine_is_a_failure() -> None:
    scene = Scene()
    async with Choices([scene.run()]) as choices:
        scene.say(FinishReason.ABORT)
        with pytest.raises(RequestAbortedError):
            await choices.take()


async def test_a_reader_that_was_cancelled_leaves_what_comes_next_to_another() -> None:
    scene = Scene()
    async with Choices([scene.run()]) as choices:
        waiting = asyncio.create_task(choices.take())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        scene.say("a")
        assert texts(await choices.take()) == [(0, "a")]


async def test_a_shortcut_gets_what_it_takes_and_the_reader_the_rest_and_every_ending() -> None:
    scene, taken = Scene(), []

    def shortcut(delta: Delta) -> bool:
        if delta.text.isupper():
            return False
        taken.append(delta.text)
        return True

    async with Choices([scene.run()], shortcut=shortcut) as choices:
        scene.say("early")  # nobody waits yet
        await asyncio.sleep(0.01)
        assert texts(await choices.take()) == [(0, "early")]
        waiting = asyncio.create_task(choices.take())
        await asyncio.sleep(0)
        scene.say("a", "b", "C", "d")
        assert texts(await waiting)[0] == (0, "C")
        assert taken == ["a", "b"]
        scene.say(FinishReason.STOP)
        await choices.take()
        assert choices.are_finished


@pytest.mark.parametrize("seed", range(20))
async def test_nothing_overtakes_on_the_shortcut(seed: int) -> None:
    rng, scene, told = random.Random(seed), Scene(), []
    words = [str(number) for number in range(80)]

    def shortcut(delta: Delta) -> bool:
        is_taken = rng.random() < 0.5
        if is_taken:
            told.append(delta.text)
        return is_taken

    async def speak() -> None:
        for word in words:
            scene.say(word)
            if rng.random() < 0.5:
                await asyncio.sleep(0)
        scene.say(FinishReason.STOP)

    async with Choices([scene.run()], shortcut=shortcut) as choices:
        speaking = asyncio.create_task(speak())
        while not choices.are_finished:
            told += [delta.text for delta in await choices.take()]
            if rng.random() < 0.3:
                await asyncio.sleep(0)  # as if it had to wait for its client
        await speaking
    assert told == [*words, ""]


async def test_what_takes_the_shortcut_breaks_the_quiet_too() -> None:
    scene, loop = Scene(), asyncio.get_running_loop()
    async with Choices([scene.run()], quiet_s=0.1, shortcut=lambda delta: True) as choices:
        waiting = asyncio.create_task(choices.take())
        await asyncio.sleep(0.06)
        scene.say("a")
        await asyncio.sleep(0)
        said_at_s = loop.time()
        assert await waiting == []
        assert loop.time() - said_at_s >= 0.09


async def test_leaving_ends_every_generation() -> None:
    scenes = [Scene(), Scene()]
    async with Choices([scene.run() for scene in scenes], quiet_s=5.0):
        await asyncio.sleep(0)
    assert all(scene.has_ended for scene in scenes)


def test_a_whole_choice_is_all_its_deltas() -> None:
    entries = [TokenLogprobs(token_id, -0.5, 1, [], []) for token_id in (1, 2)]
    whole = WholeChoice(0)
    whole.add(Delta(0, "a", 1, entries[:1], None, None, 0, prompt_logprobs=[entries[0]]))
    whole.add(Delta(0, "b", 1, None, None, None, 0))
    whole.add(Delta(0, "c", 1, entries[1:], FinishReason.STOP, "c", 0))
    assert (whole.text, whole.logprobs, whole.prompt_logprobs) == ("abc", entries, [entries[0]])
    assert (whole.finish_reason, whole.stop_reason) == (FinishReason.STOP, "c")
