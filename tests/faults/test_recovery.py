"""Real processes that die under load: every client is told at once, everything comes back, nothing is left behind."""

import http.client
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from aphrodited.page import read_page
from aphrodited.paths import engine_program
from tests.support.daemons import is_alive, wait_until
from tests.support.real_daemon import MARKER, RealDaemon, Stream, real_daemon

ENGINE = engine_program("tiny", 0)
WORKERS = ("api-0", "api-1")
NUM_STREAMS = 32
RAISE = 1


@pytest.fixture(scope="module")
def shared():
    with real_daemon() as daemon:
        yield daemon


@pytest.fixture
def daemon(shared):
    """One daemon for the whole module: each test leaves it as it found it, serving."""
    shared.wait_serving()
    yield shared
    shared.wait_serving()


class Watcher:
    """Asks a path again and again, and keeps every answer."""

    def __init__(self, daemon: RealDaemon, path: str) -> None:
        self.answers: list[tuple[float, int]] = []
        self.failures: list[Exception] = []
        self._daemon, self._path = daemon, path
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)

    def _ask(self) -> None:
        while not self._stop.wait(0.02):
            try:
                status, _ = self._daemon.get(self._path)
                self.answers.append((time.monotonic(), status))
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.failures.append(error)

    @contextmanager
    def watching(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join(20)


def flowing_streams(daemon, count=NUM_STREAMS):
    streams = [daemon.open_stream() for _ in range(count)]
    wait_until(lambda: all(stream.num_events for stream in streams), what="a token on every stream")
    return streams


def assert_told_of_the_death(streams: list[Stream], killed_at_s: float) -> None:
    for stream in streams:
        stream.wait()
        assert stream.failure is None
        assert stream.status == 200
        assert stream.error is not None
        assert stream.error["code"] == "ENGINE_DEAD"
        assert stream.error["type"] == "service_unavailable_error"
        assert sum('"error"' in line for _, line in stream.lines) == 1
        assert stream.lines[-1][1] == "data: [DONE]"
        assert stream.ended_at_s - killed_at_s < 1.0


@pytest.mark.timeout(180)
def test_ten_engine_deaths_with_32_streams_each_are_told_survived_and_leave_nothing(daemon):
    held = None
    for _ in range(10):
        assert daemon.complete()[0] == 200  # a finished request: the death is no strike
        streams = flowing_streams(daemon)
        wait_until(lambda: all(daemon.process_status(name).num_running for name in WORKERS), what="work on each worker")
        before = daemon.engine()
        port, readiness = Watcher(daemon, "/livez"), Watcher(daemon, "/readyz")
        with port.watching(), readiness.watching():
            killed_at_s = time.monotonic()
            os.kill(before.pid, signal.SIGKILL)
            assert_told_of_the_death(streams, killed_at_s)
            after = daemon.new_engine(before.pid)
            assert daemon.complete()[0] == 200
        assert after.generation == before.generation + 1
        assert after.last_exit.cause in ("killed by SIGKILL while stepping", "killed by SIGKILL while ready")
        assert port.failures == []
        assert {status for _, status in port.answers} == {200}
        assert readiness.failures == []
        assert 503 in {status for _, status in readiness.answers}
        assert daemon.get("/readyz")[0] == 200
        wait_until(lambda: read_page(daemon.paths.page(ENGINE)).num_blocks_used == 0, what="every KV block back")
        holds = (sorted(daemon.pids()), len(daemon.group_members()), daemon.runtime_files())
        files = daemon.open_files()
        if held is None:
            held, held_files = holds, files
        assert holds == held
        assert all(files[name] <= held_files[name] + 2 for name in files), (files, held_files)
    assert [daemon.process_status(name).restarts for name in WORKERS] == [0, 0]


def test_a_step_that_raises_is_told_with_its_cause_everywhere(daemon):
    bystander = daemon.open_stream()
    wait_until(lambda: bystander.num_events, what="a first token")
    pid = daemon.engine().pid
    culprit = daemon.open_stream([MARKER, MARKER, RAISE, 3])
    for stream in (culprit, bystander):
        stream.wait()
        assert stream.error["code"] == "ENGINE_DEAD"
        assert "this step was asked to fail after 3 tokens" in stream.error["message"]
    engine = daemon.new_engine(pid)
    assert engine.last_exit.code == 70
    assert "this step was asked to fail after 3 tokens" in engine.last_exit.cause
    assert "DrillError" in daemon.log(ENGINE)
    assert daemon.complete()[0] == 200


def test_requests_without_streaming_are_told_too(daemon):
    answers = []
    threads = [
        threading.Thread(target=lambda: answers.append(daemon.complete(max_tokens=3000, ignore_eos=True)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    pid = daemon.engine().pid
    wait_until(lambda: read_page(daemon.paths.page(ENGINE)).num_running == 4, what="four running requests")
    os.kill(pid, signal.SIGKILL)
    for thread in threads:
        thread.join(20)
    assert [status for status, _ in answers] == [503] * 4
    assert {answer["error"]["code"] for _, answer in answers} == {"ENGINE_DEAD"}
    daemon.new_engine(pid)


def test_a_killed_api_worker_takes_only_its_own_streams(daemon):
    streams = flowing_streams(daemon, 16)
    engine, victim = daemon.engine().pid, daemon.pid("api-0")
    watcher = Watcher(daemon, "/livez")
    with watcher.watching():
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: any(stream.ended_at_s for stream in streams), what="the victim's streams to break")
        # Its sequences end in the engine, those of the other worker go on.
        page = daemon.paths.page(ENGINE)
        wait_until(lambda: read_page(page).num_running == sum(not s.ended_at_s for s in streams), what="its aborts")
        survivors = [stream for stream in streams if not stream.ended_at_s]
        assert survivors
        counts = [stream.num_events for stream in survivors]
        wait_until(lambda: all(s.num_events > n for s, n in zip(survivors, counts, strict=True)), what="progress")
        daemon.pid("api-0", other_than=victim)
        daemon.wait_serving()
    assert all(stream.error is None for stream in survivors)
    for stream in survivors:
        stream.close()
    # A connection that the victim had accepted, or was about to, breaks with it; every later one is answered.
    assert len(watcher.failures) <= 2
    assert {status for _, status in watcher.answers} == {200}
    assert daemon.engine().pid == engine
    wait_until(lambda: read_page(daemon.paths.page(ENGINE)).num_running == 0, what="an idle engine")


def test_a_killed_monitor_is_noticed_by_nobody(daemon):
    streams = flowing_streams(daemon, 4)
    engine, victim = daemon.engine().pid, daemon.pid("monitor")
    watcher = Watcher(daemon, "/readyz")
    with watcher.watching():
        os.kill(victim, signal.SIGKILL)
        daemon.pid("monitor", other_than=victim)
        daemon.wait_serving()
        counts = [stream.num_events for stream in streams]
        wait_until(lambda: all(s.num_events > n for s, n in zip(streams, counts, strict=True)), what="progress")
    assert watcher.failures == []
    assert {status for _, status in watcher.answers} == {200}
    for stream in streams:
        assert stream.error is None
        stream.close()
    assert daemon.engine().pid == engine


def test_an_engine_comes_back_while_there_is_no_monitor(daemon):
    """Nothing of the restart path needs the monitor."""
    monitor, pid = daemon.pid("monitor"), daemon.engine().pid
    assert daemon.complete()[0] == 200
    os.kill(monitor, signal.SIGSTOP)
    try:
        stream = daemon.open_stream()
        wait_until(lambda: stream.num_events, what="a first token")
        killed_at_s = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        assert_told_of_the_death([stream], killed_at_s)
        daemon.new_engine(pid)
        assert daemon.complete()[0] == 200
    finally:
        if is_alive(monitor):
            os.kill(monitor, signal.SIGCONT)


def test_when_the_supervisor_is_killed_everything_ends_and_a_new_start_works():
    with real_daemon() as daemon:
        stream = daemon.open_stream()
        wait_until(lambda: stream.num_events, what="a first token")
        members = daemon.group_members()
        assert len(members) == 4
        daemon.process.kill()
        daemon.process.wait(10)
        wait_until(lambda: not any(is_alive(pid) for pid in members), what="the end of every process")
        stream.wait()
        assert not stream.is_done
        status = daemon.status()
        assert (status.ready, status.state) == (False, "down")
        assert {process.state for process in status.processes} == {"stopped"}
        daemon.start_serving()
        assert daemon.complete()[0] == 200


def test_two_daemons_do_not_see_each_other(daemon):
    with real_daemon("other") as second:
        assert second.complete(model="other")[0] == 200
        assert daemon.complete(model="other")[0] == 404
        first_engine, pid = daemon.engine().pid, second.engine("other").pid
        os.kill(pid, signal.SIGKILL)
        second.new_engine(pid, "other")
        assert daemon.engine().pid == first_engine
        assert daemon.complete()[0] == 200
        assert second.terminate() == 0
    assert daemon.complete()[0] == 200
    assert daemon.status().ready
