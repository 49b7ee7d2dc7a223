"""Metrics in Prometheus' text format, counted in several processes and rendered by any of them.

Each worker counts in memory-mapped files named after its program, not its pid: its next life counts on from
there, and the number of files is the number of programs. Gauges of processes are not counted by anybody: they
are read from the pages when asked for.
"""

from __future__ import annotations

import collections
import os
import struct
import sys
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest, values
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.mmap_dict import MmapedDict
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from aphrodited.log import get_logger
from aphrodited.page import Page
from aphrodited.procfs import resident_bytes

log = get_logger()

FIRST_TOKEN_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
INTER_TOKEN_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
REQUEST_BUCKETS_S = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)

_PAGE_GAUGES = {
    "num_running": "Sequences (engine) or requests (API worker) under way.",
    "num_waiting": "Requests waiting for a place.",
    "num_blocks_used": "KV cache blocks in use.",
    "num_blocks_total": "KV cache blocks there are.",
    "generation": "Promotions of the model's engines so far.",
    "progress": "Part of the model that is loaded, 0 to 1.",
}
_PAGE_COUNTERS = {
    "num_prompt_tokens": "Prompt tokens of this life of the engine.",
    "num_generated_tokens": "Generated tokens of this life of the engine.",
    "num_preemptions": "Preempted sequences of this life of the engine.",
    "num_steps": "Steps of this life of the engine.",
    "num_finished": "Finished requests, answers or rounds of this life of the process.",
}

_OF_ENGINES = {"generation", "progress", "num_steps", "num_blocks_used", "num_blocks_total", "num_prompt_tokens",
               "num_generated_tokens", "num_preemptions"}  # fmt: skip


class ApiMetrics:
    """The counters and histograms of one API worker.

    With a directory they go to files there, shared with whoever renders them; without one they stay in memory.
    `program` must not contain an underscore and be used by one process at a time.
    """

    def __init__(self, metrics_dir: Path | None = None, program: str = "api") -> None:
        _count_into(metrics_dir, program)
        registry = CollectorRegistry()
        self.registry = registry
        self._requests = Counter(
            "aphrodited_requests", "Requests answered.", ["model", "endpoint", "status"], registry=registry
        )
        self._durations = Histogram(
            "aphrodited_request_duration_seconds",
            "From a request's arrival to the end of its answer.",
            ["model", "endpoint"],
            buckets=REQUEST_BUCKETS_S,
            registry=registry,
        )
        self._prompt_tokens = Counter("aphrodited_prompt_tokens", "Prompt tokens taken.", ["model"], registry=registry)
        self._completion_tokens = Counter(
            "aphrodited_completion_tokens", "Tokens generated.", ["model"], registry=registry
        )
        self._embeddings = Counter("aphrodited_embeddings", "Embeddings made.", ["model"], registry=registry)
        self._resumed_requests = Counter(
            "aphrodited_resumed_requests",
            "Times that a request, or a choice of one, went on in another engine.",
            ["model"],
            registry=registry,
        )
        self._resumed_tokens = Counter(
            "aphrodited_resumed_tokens",
            "Generated tokens that another engine took over.",
            ["model"],
            registry=registry,
        )
        self._quarantined = Counter(
            "aphrodited_quarantined_requests",
            "Times that a request, or a choice of one, was refused because it ends engines.",
            ["model"],
            registry=registry,
        )
        self._first_token = Histogram(
            "aphrodited_time_to_first_token_seconds",
            "From a request's arrival to its first token.",
            ["model"],
            buckets=FIRST_TOKEN_BUCKETS_S,
            registry=registry,
        )
        self._inter_token = _BatchedHistogram(
            "aphrodited_inter_token_seconds",
            "Between one token of a choice and the next.",
            ["model"],
            buckets=INTER_TOKEN_BUCKETS_S,
            registry=registry,
        )

    def request(self, model: str, endpoint: str, status: int, duration_s: float) -> None:
        self._requests.labels(model, endpoint, str(status)).inc()
        self._durations.labels(model, endpoint).observe(duration_s)

    def prompt_tokens(self, model: str, num_tokens: int) -> None:
        self._prompt_tokens.labels(model).inc(num_tokens)

    def completion_tokens(self, model: str, num_tokens: int) -> None:
        self._completion_tokens.labels(model).inc(num_tokens)

    def embeddings(self, model: str, num_embeddings: int) -> None:
        self._embeddings.labels(model).inc(num_embeddings)

    def resumed(self, model: str, num_tokens: int) -> None:
        self._resumed_requests.labels(model).inc()
        self._resumed_tokens.labels(model).inc(num_tokens)

    def quarantined(self, model: str) -> None:
        self._quarantined.labels(model).inc()

    def first_token(self, model: str, duration_s: float) -> None:
        self._first_token.labels(model).observe(duration_s)

    def inter_tokens(self, model: str, durations_s: Sequence[float]) -> None:
        self._inter_token.labels(model).observe_all(durations_s)


class MonitorMetrics:
    """What the monitor counts, beside the API workers' files."""

    def __init__(self, metrics_dir: Path | None = None, program: str = "monitor") -> None:
        _count_into(metrics_dir, program)
        self.registry = CollectorRegistry()
        self._verdicts = Counter(
            "aphrodited_verdicts",
            "Verdicts of the monitor on processes: hang and memory, by what was done.",
            ["program", "verdict", "action"],
            registry=self.registry,
        )

    def verdict(self, program: str, verdict: str, action: str) -> None:
        self._verdicts.labels(program, verdict, action).inc()


class _BatchedHistogram(Histogram):
    """A histogram that takes many values at the price of one."""

    def observe_all(self, amounts: Sequence[float]) -> None:
        """What `observe` of each would do. The library offers no such call, so this adds to its values itself."""
        self._sum.inc(sum(amounts))
        for place, count in collections.Counter(bisect_left(self._upper_bounds, amount) for amount in amounts).items():
            self._buckets[place].inc(count)


def _count_into(metrics_dir: Path | None, program: str) -> None:
    """Choose where prometheus_client keeps the values that are made from now on."""
    if metrics_dir is None:
        values.ValueClass = values.MutexValue
        return
    metrics_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in metrics_dir.glob(f"*_{program}.db"):
        _drop_if_damaged(path)
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = str(metrics_dir)
    values.ValueClass = values.MultiProcessValue(lambda: program)  # type: ignore[no-untyped-call]


def _drop_if_damaged(path: Path) -> None:
    """Counting again from zero is better than a worker that cannot start."""
    try:
        with open(path, "rb") as file:
            num_used = int.from_bytes(file.read(4), sys.byteorder, signed=True)
        if not 0 <= num_used <= path.stat().st_size:
            raise ValueError(num_used)
        for _ in MmapedDict.read_all_values_from_file(path):  # type: ignore[no-untyped-call]
            pass
    except (RuntimeError, ValueError, struct.error):
        path.unlink(missing_ok=True)
        log.warning("metrics_file_dropped", path=str(path))


def render_metrics(metrics_dir: Path, pages: Mapping[str, Page]) -> bytes:
    """What every worker has counted and what every page says now; `pages` is by program name."""
    registry = CollectorRegistry()
    if metrics_dir.is_dir():
        MultiProcessCollector(registry, str(metrics_dir))  # type: ignore[no-untyped-call]
    registry.register(_PageCollector(pages))
    return generate_latest(registry)


class _PageCollector(Collector):
    def __init__(self, pages: Mapping[str, Page]) -> None:
        self._pages = pages

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily("aphrodited_process_phase", "Phase of each process.", labels=["program", "phase"])
        for program, page in self._pages.items():
            up.add_metric([program, page.phase.name.lower()], 1)
        yield up
        resident = GaugeMetricFamily(
            "aphrodited_process_resident_bytes", "Resident memory of each process.", labels=["program"]
        )
        for program, page in self._pages.items():
            num_bytes = resident_bytes(page.pid)
            if num_bytes is not None:
                resident.add_metric([program], num_bytes)
        yield resident
        for kinds, family in ((_PAGE_GAUGES, GaugeMetricFamily), (_PAGE_COUNTERS, CounterMetricFamily)):
            for name, text in kinds.items():
                metric = family(f"aphrodited_process_{name.removeprefix('num_')}", text, labels=["program"])
                for program, page in self._pages.items():
                    if name in _OF_ENGINES and not page.generation:
                        continue
                    metric.add_metric([program], getattr(page, name))
                yield metric
