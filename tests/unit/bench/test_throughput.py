"""Tests of aphrodited.bench.throughput and of what it measures with. The figures themselves are not judged."""

from __future__ import annotations

import io
import shlex
import sys

import pytest

from aphrodited.bench.modes import Figures, Mode
from aphrodited.bench.progress import ProgressBar
from aphrodited.bench.throughput import modes_of, parse_options, summary
from aphrodited.bench.workload import Workload, workload_of


@pytest.mark.parametrize(
    ("arguments", "modes"),
    [
        ([], [Mode.SYNC]),
        (["--async-engine"], [Mode.MQ]),
        (["--async-engine", "--disable-frontend-multiprocessing"], [Mode.ASYNC]),
        (["--compare"], [Mode.SYNC, Mode.MQ, Mode.ASYNC]),
    ],
)
def test_the_options_choose_the_ways(arguments: list[str], modes: list[Mode]) -> None:
    assert modes_of(parse_options(arguments)) == modes


@pytest.mark.parametrize(
    "arguments",
    [["--disable-frontend-multiprocessing"], ["--compare", "--async-engine"], ["--num-prompts", "0"], ["--repeat", "0"]],
)
def test_options_that_make_no_sense_are_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        parse_options(arguments)


def test_the_original_command_line_is_understood() -> None:
    line = "--model EleutherAI/pythia-70m-deduped --num-prompts 2000 --max-model-len 512 --input-len 128 --output-len 128"
    workload = workload_of(parse_options(shlex.split(line)))
    assert workload.num_tokens == 2000 * 256
    with workload.model_config() as config:
        assert (config.path, config.max_model_len) == ("EleutherAI/pythia-70m-deduped", 512)


def test_every_request_is_the_same_in_every_way() -> None:
    workload = Workload("m", 3, 8, 4)
    assert workload.prompts(100) == workload.prompts(100)
    assert [len(prompt) for prompt, _ in workload.prompts(100)] == [8, 8, 8]
    assert all(params.ignore_eos and not params.detokenize for _, params in workload.prompts(100))


def test_ratios_are_medians_of_rounds_and_rates_of_median_times() -> None:
    def of(sync: float, mq: float, async_: float) -> dict[Mode, Figures]:
        return {Mode.SYNC: Figures(sync, 0), Mode.MQ: Figures(mq, 0), Mode.ASYNC: Figures(async_, 0)}

    rounds = [of(1.0, 2.0, 4.0), of(2.0, 2.0, 4.0), of(4.0, 5.0, 5.0)]
    figures = summary(Workload("m", 10, 30, 70), rounds)
    assert figures["ratios"] == {"mq/sync": 0.8, "async/sync": 0.5}
    assert figures["requests_per_second"] == {Mode.SYNC: 5.0, Mode.MQ: 5.0, Mode.ASYNC: 2.5}
    assert figures["tokens_per_second"][Mode.ASYNC] == 250.0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_is_for_terminals_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream, is_shown in ((io.StringIO(), False), (Terminal(), True)):
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setattr("aphrodited.bench.progress.INTERVAL_S", 0.0)
        with ProgressBar("mq", 2) as bar:
            bar.advance()
        assert ("1/2 requests" in stream.getvalue()) == is_shown
