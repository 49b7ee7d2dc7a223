"""One workload, once, by one of the ways to reach an engine. Run in a process of its own, see `measure`.

    sync     AphroditeEngine, stepped in this thread
    async    AsyncAphrodite: a thread steps, an event loop reads
    mq       MQAphroditeEngine in a process, MQAphroditeEngineClient here

`measure` gives each the environment that an engine process of the daemon has, or they could not be compared. The time
is from the first request to the end of the last; loading and attaching come before it.
"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import closing
from enum import StrEnum
from os import environ

import msgspec
import uvloop

from aphrodited.async_engine import AsyncAphrodite
from aphrodited.bench.progress import ProgressBar
from aphrodited.bench.workload import Prompt, Workload
from aphrodited.engine.environment import engine_environment
from aphrodited.engine.factory import create_backend
from aphrodited.errors import ConfigError
from aphrodited.interfaces import EngineBackend, EngineClient
from aphrodited.llm import default_cache_dir
from aphrodited.mq.client import MQAphroditeEngineClient, MqClientConfig
from aphrodited.request import GenerateRequest
from aphrodited.workers.launch import launch_engine

ATTACH_TIMEOUT_S = 30.0
REST_S = 8.0
"""From the end of loading to the first request: meanwhile the engine makes huge pages of its weights, as one that serves does."""


class Mode(StrEnum):
    SYNC = "sync"
    ASYNC = "async"
    MQ = "mq"


class Figures(msgspec.Struct, frozen=True):
    """cpu_s: processor time of the measuring process, which in mode mq is the client."""

    elapsed_s: float
    cpu_s: float


class Stopwatch:
    def __init__(self) -> None:
        self._elapsed_s = time.perf_counter()
        self._cpu_s = time.process_time()

    def read(self) -> Figures:
        return Figures(time.perf_counter() - self._elapsed_s, time.process_time() - self._cpu_s)


def measure(mode: Mode, workload: Workload) -> Figures:
    """Run the workload in a new process. Raises SystemExit if it fails; it has said why."""
    with workload.model_config() as config:
        environment = {**environ, **engine_environment(config)}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "aphrodited.bench.modes", mode],
        input=msgspec.json.encode(workload),
        stdout=subprocess.PIPE,
        env=environment,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"mode {mode} ended with code {done.returncode}")
    return msgspec.json.decode(done.stdout, type=Figures)


def run_sync(workload: Workload) -> Figures:
    with workload.model_config() as config:
        backend = create_backend(config, default_cache_dir(), lambda progress, what: None)
    with closing(backend):
        prompts = workload.prompts(backend.facts.vocab_size)
        _settle(workload)
        return _step_to_the_end(backend, prompts)


def _step_to_the_end(backend: EngineBackend, prompts: list[Prompt]) -> Figures:
    with ProgressBar("sync", len(prompts)) as bar:
        watch = Stopwatch()
        for key, (prompt, params) in enumerate(prompts):
            backend.add_request(key, GenerateRequest(f"bench-{key}", prompt, params))
        num_tokens = 0
        while backend.has_unfinished_requests():
            for output in backend.step():
                num_tokens += len(output.token_ids)
                if output.finish_reason is not None:
                    bar.advance()
        figures = watch.read()
    _check(num_tokens, prompts)
    return figures


def run_async(workload: Workload) -> Figures:
    async def run() -> Figures:
        with workload.model_config() as config:
            backend = create_backend(config, default_cache_dir(), lambda progress, what: None)
        with closing(AsyncAphrodite(backend)) as engine:
            prompts = workload.prompts(backend.facts.vocab_size)
            _settle(workload)
            return await generate_all(engine, prompts, "async")

    return _in_a_loop(run)


def run_mq(workload: Workload) -> Figures:
    async def run() -> Figures:
        mq = workload.mq_config()
        with (
            workload.model_config() as config,
            launch_engine(config, mq) as ipc_path,
            closing(MQAphroditeEngineClient(ipc_path, MqClientConfig(mq=mq))) as client,
        ):
            if not await client.wait_until_running(ATTACH_TIMEOUT_S) or client.facts is None:
                raise SystemExit("the engine does not answer")
            prompts = workload.prompts(client.facts.vocab_size)
            _settle(workload)
            return await generate_all(client, prompts, "mq")

    return _in_a_loop(run)


async def generate_all(client: EngineClient, prompts: list[Prompt], label: str) -> Figures:
    """All requests at once, each read token by token."""

    async def generate(number: int, prompt: Prompt) -> int:
        num_tokens = 0
        async for output in client.generate(*prompt, f"bench-{number}"):
            num_tokens += len(output.outputs[0].new_token_ids)
        bar.advance()
        return num_tokens

    with ProgressBar(label, len(prompts)) as bar:
        watch = Stopwatch()
        counts = await asyncio.gather(*(generate(number, prompt) for number, prompt in enumerate(prompts)))
        figures = watch.read()
    _check(sum(counts), prompts)
    return figures


def _in_a_loop(run: Callable[[], Awaitable[Figures]]) -> Figures:
    """The loop that API workers use."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())  # type: ignore[arg-type]


def _settle(workload: Workload) -> None:
    """As an engine process does before it serves, and a while after."""
    gc.collect()
    gc.freeze()
    rest(workload)


def rest(workload: Workload) -> None:
    """Let an engine that has weights have its time to lay them out."""
    if workload.pace_ms is None:
        time.sleep(REST_S)


def _check(num_tokens: int, prompts: list[Prompt]) -> None:
    expected = sum(params.max_tokens or 0 for _, params in prompts)
    if num_tokens != expected:
        raise SystemExit(f"{num_tokens} tokens came, {expected} were asked for")


RUN = {Mode.SYNC: run_sync, Mode.ASYNC: run_async, Mode.MQ: run_mq}


def main() -> None:
    workload = msgspec.json.decode(sys.stdin.buffer.read(), type=Workload)
    try:
        figures = RUN[Mode(sys.argv[1])](workload)
    except ConfigError as error:
        raise SystemExit(str(error)) from error
    sys.stdout.buffer.write(msgspec.json.encode(figures))


if __name__ == "__main__":
    main()
