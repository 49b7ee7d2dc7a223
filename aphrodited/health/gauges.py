"""Gauges of engines and processes in Prometheus' text format, out of pages and /proc.

Counters that must outlive a process are not here: the processes keep those themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from aphrodited.config.schema import Config
from aphrodited.health.probes import Look, cgroup_oom_kills, look_at
from aphrodited.page import Page
from aphrodited.paths import DaemonPaths
from aphrodited.procfs import resident_bytes
from aphrodited.supervision.programs import Program, programs

_ENGINE_GAUGES: dict[str, tuple[str, Callable[[Page], float]]] = {
    "aphrodited_engine_requests_running": ("Sequences in the running batch.", lambda page: page.num_running),
    "aphrodited_engine_requests_waiting": ("Requests that wait for a place.", lambda page: page.num_waiting),
    "aphrodited_engine_kv_blocks_used": ("KV cache blocks in use.", lambda page: page.num_blocks_used),
    "aphrodited_engine_kv_blocks": ("KV cache blocks there are.", lambda page: page.num_blocks_total),
    "aphrodited_engine_generation": ("Promotions of the model's engine so far.", lambda page: page.generation),
    "aphrodited_engine_steps": ("Steps of this engine's life.", lambda page: page.num_steps),
    "aphrodited_engine_generated_tokens": (
        "Tokens made in this engine's life.",
        lambda page: page.num_generated_tokens,
    ),
}


def page_gauges(config: Config, paths: DaemonPaths) -> str:
    """One look at every process, as text. A process that does not live has no sample."""
    looks = [(program, look_at(program.name, paths)) for program in programs(config)]
    return "".join(f"{line}\n" for line in _lines(looks))


def _lines(looks: list[tuple[Program, Look]]) -> Iterator[str]:
    for name, (text, value) in _ENGINE_GAUGES.items():
        yield from _head(name, text)
        for program, look in looks:
            if program.model is not None and look.page is not None:
                yield f'{name}{{model="{program.model}",program="{program.name}"}} {value(look.page)}'
    living = [(program, look.pid) for program, look in looks if look.pid is not None]
    name = "aphrodited_process_resident_bytes"
    yield from _head(name, "Resident memory of a process.")
    for program, pid in living:
        yield f'{name}{{program="{program.name}"}} {resident_bytes(pid) or 0}'
    oom_kills = cgroup_oom_kills(living[0][1]) if living else None
    if oom_kills is not None:
        yield from _head("aphrodited_cgroup_oom_kills", "Processes of the daemon's cgroup that were killed for memory.")
        yield f"aphrodited_cgroup_oom_kills {oom_kills}"


def _head(name: str, text: str) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} gauge"
