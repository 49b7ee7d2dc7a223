"""One chaos run from beginning to end: a daemon of its own, clients, faults, what is left, and the undisturbed answers.

    settle ─▶ warm up ─▶ look ─▶ clients and faults for so long ─▶ settle ─▶ look ─▶ ask again without faults ─▶ judge

Prints nothing and writes no report.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from aphrodited.bench.port_watcher import PortWatcher
from aphrodited.chaos.cases import KINDS, Case, cases
from aphrodited.chaos.client import Ending, Outcome
from aphrodited.chaos.faults import Fault, FaultMaker, pauses_s
from aphrodited.chaos.holdings import Holdings, holdings
from aphrodited.chaos.load import Load, ResumeCounter, ask_all
from aphrodited.chaos.service import Service, ServiceError, running
from aphrodited.chaos.targets import targets
from aphrodited.chaos.verdicts import DRAIN_TIMEOUT_S, Judged, judge, needs_reference

MODEL = "chaos"
WATCHDOG_S = 5.0
BOUND_S = 180.0
"""After which a request hangs: several deaths without a standby, on a slow machine, take less."""

REFERENCE_CLIENTS = 16
PORT_PERIOD_S = 0.1


class Options(msgspec.Struct, frozen=True):
    """num_tokens: of an answer, on average.  fault_period_s: between two faults, on average."""

    model: str
    seconds: float
    seed: int
    num_clients: int
    num_tokens: int
    fault_period_s: float
    standby: int = 1
    logs: Path | None = None


@dataclass(slots=True)
class Run:
    """What came of it. Instants are monotonic."""

    options: Options
    judged: list[Judged] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    num_resumed: int = 0
    num_connections: int = 0
    refusals: list[str] = field(default_factory=list)
    slowest_connection_s: float = 0.0
    num_daemon_lives: int = 0
    num_watchdog_kills: int = 0
    settled_s: float = 0.0
    before: Holdings = field(default_factory=Holdings)
    after: Holdings = field(default_factory=Holdings)


async def rehearse(options: Options, say: Callable[[str], None]) -> Run:
    """Carry a run out.  say: is told how it goes, in words.

    Raises ServiceError if the daemon does not start, does not settle afterwards, or fails undisturbed.
    """
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        config_file = _write_config(options, Path(folder))
        try:
            async with running(config_file, watchdog_s=WATCHDOG_S) as service:
                say("the daemon is ready")
                return await _Rehearsal(service, options, say).run()
        finally:
            if options.logs is not None:
                shutil.copytree(Path(folder, "state"), options.logs, dirs_exist_ok=True)
                shutil.copy(Path(folder, "daemon.log"), options.logs)


def _write_config(options: Options, folder: Path) -> Path:
    """Small, quick to notice hangs, and without the limits that would keep a tormented process down."""
    engine = {"max_num_seqs": 32, "max_num_batched_tokens": 512, "kv_cache_memory": "256MiB"}
    model = {"name": MODEL, "path": options.model, "standby": options.standby, "dtype": "float32", "device": "cpu"}
    config = {
        "models": [{**model, "max_model_len": 1024, "engine": engine}],
        "api": {"host": "127.0.0.1", "port": 0, "workers": 2, "drain_timeout_s": DRAIN_TIMEOUT_S},
        "monitor": {"port": 0, "interval_s": 0.2},
        "recovery": {
            "hang_min_s": 2,
            "loop_hang_s": 3,
            "load_stall_s": 30,
            "ladder_step_s": 0.5,
            "strike_delay_s": 0.1,
            "max_strikes": 100,
            "max_deaths": 10000,
            "max_resumes": 1000,
            "hold_timeout_s": 120,
            "engine_stop_timeout_s": 5,
        },
        "paths": {"runtime_dir": f"{folder}/run", "state_dir": f"{folder}/state"},
    }
    path = folder / "config.yaml"
    path.write_bytes(msgspec.json.encode(config))  # JSON is YAML
    return path


class _Rehearsal:
    def __init__(self, service: Service, options: Options, say: Callable[[str], None]) -> None:
        self._service = service
        self._options = options
        self._say = say
        self._cases = cases(MODEL, options.seed, options.num_tokens)

    async def run(self) -> Run:
        run = Run(self._options)
        await self._warm_up()
        run.before = await self._look()
        load = await self._torment(run)
        began_at_s = time.monotonic()
        await self._service.wait_settled()
        run.settled_s = time.monotonic() - began_at_s
        run.after = await self._look()
        run.num_daemon_lives, run.num_watchdog_kills = self._service.num_starts, self._service.num_silences
        self._say(f"settled after {run.settled_s:.1f} s; asking again without faults")
        references = await self._undisturbed([outcome.case for outcome in load.outcomes if needs_reference(outcome)])
        for outcome in load.outcomes:
            reference = references.get(outcome.case.number)
            run.judged.append(judge(outcome, reference.answer if reference else None, run.faults))
        return run

    async def _warm_up(self) -> None:
        """What is made once, at a first use, is no leak later."""
        await self._undisturbed(list(itertools.islice(self._cases, 2 * len(KINDS))))
        await self._service.wait_settled()

    async def _look(self) -> Holdings:
        """When nothing runs any more: what a client left behind ends within a step."""
        held = Holdings()
        for _ in range(25):
            held = holdings(self._service.pid, self._service.paths)
            if not held.num_blocks_used:
                break
            await asyncio.sleep(0.2)
        return held

    async def _torment(self, run: Run) -> Load:
        options, service = self._options, self._service
        load = Load(service.url, self._cases, num_clients=options.num_clients, bound_s=BOUND_S, seed=options.seed)
        watcher = PortWatcher(*service.address, PORT_PERIOD_S)
        counter = ResumeCounter(service.paths)
        faults = FaultMaker(service.config_file, options.seed)
        end_of_load, end_of_watch = asyncio.Event(), asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(watcher.run(end_of_watch))
            tasks.create_task(counter.run(end_of_watch))
            clients = tasks.create_task(load.run(end_of_load))
            await self._make_faults(faults, counter, load)
            end_of_load.set()
            await faults.finish()
            await clients
            end_of_watch.set()
        counter.look()
        run.faults, run.num_resumed = faults.done, counter.num_resumed
        run.num_connections, run.refusals, run.slowest_connection_s = watcher.num_connections, watcher.refusals, watcher.slowest_s
        return load

    async def _make_faults(self, faults: FaultMaker, counter: ResumeCounter, load: Load) -> None:
        end_at_s = time.monotonic() + self._options.seconds
        for pause_s in pauses_s(self._options.seed, self._options.fault_period_s):
            await asyncio.sleep(min(pause_s, max(0.0, end_at_s - time.monotonic())))
            self._service.check()
            left_s = end_at_s - time.monotonic()
            if left_s <= 0:
                return
            counter.look()
            fault = await faults.strike(targets(self._service.pid, self._service.paths))
            if fault is not None:
                self._say(
                    f"{left_s:4.0f} s left, {len(load.outcomes)} requests ended, {load.num_open} open: {fault.kind.action} {fault.target}"
                )

    async def _undisturbed(self, disturbed: list[Case]) -> dict[int, Outcome]:
        """Raises ServiceError if one is not answered."""
        asked = [replace(case, body=case.undisturbed(), leaves_after_events=None, leaves_after_s=None) for case in disturbed]
        outcomes = await ask_all(self._service.url, asked, num_clients=REFERENCE_CLIENTS, bound_s=BOUND_S)
        for outcome in outcomes.values():
            if outcome.ending is not Ending.ANSWERED:
                case = outcome.case
                raise ServiceError(f"undisturbed, request {case.number} ({case.kind}) {outcome.ending}: {outcome.code} {outcome.note}")
        return outcomes
