"""A real engine and a real worker that grow beyond their soft limit: told, replaced at a quiet moment, nothing lost."""

import time
import urllib.request

from aphrodited.cli.aphroditectl import main as aphroditectl
from aphrodited.paths import engine_program
from aphrodited.procfs import resident_bytes
from aphrodited.supervision.ledger import Verdict
from tests.support.daemons import wait_until
from tests.support.real_daemon import MARKER, real_daemon

ENGINE = engine_program("tiny", 0)
LEAK = 5
LEAK_MIB = 120


def set_limits(daemon, engine_mib, api_mib):
    """By a reload: they are hot."""
    text = daemon.config.read_text()
    text = text.replace("standby: 0}", f"standby: 0, engine: {{memory_soft_limit: {engine_mib}MiB}}}}")
    text = text.replace("api: {", f"api: {{memory_soft_limit: {api_mib}MiB, ")
    daemon.config.write_text(text)
    assert aphroditectl(["--config", str(daemon.config), "reload", "--wait"]) == 0


def memory_actions(daemon, program):
    return [e.action for e in daemon.ledger.read() if isinstance(e, Verdict) and e.program == program]


def mib(pid):
    return (resident_bytes(pid) or 0) // 1024**2


def test_an_engine_that_leaks_is_replaced_when_it_is_idle_and_workers_within_their_limit_are_not():
    with real_daemon(on_death="resume") as daemon:
        assert daemon.complete()[0] == 200
        engine, workers = daemon.pid(ENGINE), (daemon.pid("api-0"), daemon.pid("api-1"))
        set_limits(daemon, engine_mib=mib(engine) + LEAK_MIB // 2, api_mib=mib(workers[0]) + 500)
        stream = daemon.open_stream([MARKER, MARKER, LEAK, LEAK_MIB], max_tokens=1000)
        wait_until(lambda: memory_actions(daemon, ENGINE) == ["exceeded"], what="the verdict")
        assert "it is replaced at a quiet moment" in daemon.process_status(ENGINE).reason
        assert daemon.pid(ENGINE) == engine  # it is busy
        stream.wait(40)
        assert stream.is_done
        assert stream.error is None
        assert daemon.new_engine(engine).pid != engine
        (death,) = daemon.deaths(ENGINE)
        assert death.requested
        assert death.cause.startswith("memory: ")
        assert memory_actions(daemon, ENGINE) == ["exceeded", "restart"]
        assert daemon.process_status(ENGINE).reason == ""
        assert (daemon.pid("api-0"), daemon.pid("api-1")) == workers
        assert_not_again_so_soon(daemon)
        assert 'aphrodited_verdicts_total{action="restart"' in metrics(daemon)


def assert_not_again_so_soon(daemon):
    """Once in ten minutes at most."""
    engine = daemon.pid(ENGINE)
    assert daemon.complete([MARKER, MARKER, LEAK, LEAK_MIB])[0] == 200
    wait_until(lambda: memory_actions(daemon, ENGINE)[-1] == "exceeded", what="the next verdict")
    time.sleep(1)
    assert daemon.pid(ENGINE) == engine


def metrics(daemon):
    with urllib.request.urlopen(f"http://127.0.0.1:{daemon.monitor_port}/metrics", timeout=5) as answer:
        return answer.read().decode()


def test_a_limit_below_what_a_process_needs_by_itself_restarts_nothing():
    with real_daemon() as daemon:
        pids = daemon.pids()
        set_limits(daemon, engine_mib=2, api_mib=2)
        for program in (ENGINE, "api-0", "api-1"):
            wait_until(lambda program=program: memory_actions(daemon, program) == ["useless"], what=f"the verdict on {program}")
        assert "raise the limit" in daemon.process_status(ENGINE).reason
        assert daemon.pids() == pids
