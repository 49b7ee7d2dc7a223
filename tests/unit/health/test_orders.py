"""What is written down and what the supervisor is asked, in which order. The supervisor is a small fake."""

import threading

import msgspec
import pytest

from aphrodited.health.orders import ModelOrders, OrderRefusedError
from aphrodited.page import Phase
from aphrodited.paths import engine_program
from aphrodited.supervision.desired import Desired, read_desired, write_desired
from aphrodited.supervision.ledger import Ledger
from aphrodited.supervision.rpc import (
    ALREADY_RUNNING,
    NOT_RUNNING,
    SupervisorDownError,
    SupervisorRefusedError,
)

FIRST, SECOND = engine_program("demo", 0), engine_program("demo", 1)


class FakeSupervisor:
    """Knows who runs, and keeps what it was asked, with what was wanted of the model at that moment."""

    def __init__(self, paths):
        self._paths = paths
        self.running = {FIRST, SECOND}
        self.calls = []
        self.is_down = False
        self.fault = None

    def pid(self):
        if self.is_down:
            raise SupervisorDownError("no answer")

    def start(self, name):
        self._ask("start", name, name not in self.running, ALREADY_RUNNING)
        self.running.add(name)

    def stop(self, name, *, timeout_s):
        self._ask("stop", name, name in self.running, NOT_RUNNING)
        self.running.discard(name)

    def _ask(self, command, name, is_possible, fault_code):
        self.calls.append((command, name, read_desired(self._paths.model("demo"))))
        if self.fault:
            raise SupervisorRefusedError("the daemon is stopping", self.fault)
        if not is_possible:
            raise SupervisorRefusedError("done already", fault_code)


@pytest.fixture
def supervisor(paths):
    return FakeSupervisor(paths)


@pytest.fixture
def orders(config, paths, supervisor):
    model = msgspec.structs.replace(config.models[0], standby=1)
    config = msgspec.structs.replace(config, models=(model, *config.models[1:]))
    return ModelOrders(config, paths, "a test", supervisor)


def told(paths):
    return [(entry.action, entry.model, entry.by) for entry in Ledger(paths.ledger).read()]


def test_unloading_is_written_down_before_the_standby_and_then_the_active_engine_stop(
    orders, paths, supervisor, sleeper, page_of
):
    page_of(FIRST, sleeper.pid).update(phase=Phase.READY, generation=3)
    orders.unload("demo")
    assert supervisor.calls == [("stop", SECOND, Desired.UNLOADED), ("stop", FIRST, Desired.UNLOADED)]
    assert read_desired(paths.model("other")) is Desired.SERVED
    assert told(paths) == [("unload", "demo", "a test")]


def test_orders_may_be_repeated_and_tell_only_what_they_change(orders, paths, supervisor):
    for order in (orders.load, orders.unload, orders.unload, orders.load, orders.load):
        order("demo")
    assert supervisor.running == {FIRST, SECOND}
    assert [action for action, _, _ in told(paths)] == ["unload", "load"]
    for order in (orders.undrain, orders.drain, orders.drain, orders.load, orders.undrain, orders.undrain):
        order("demo")
    assert [action for action, _, _ in told(paths)] == ["unload", "load", "drain", "undrain"]
    assert read_desired(paths.model("demo")) is Desired.SERVED


def test_an_engine_that_came_up_again_is_stopped_by_a_second_unload(orders, supervisor):
    orders.unload("demo")
    supervisor.running.add(FIRST)
    orders.unload("demo")
    assert supervisor.running == set()


def test_draining_starts_and_stops_nothing(orders, paths, supervisor):
    orders.drain("demo")
    assert read_desired(paths.model("demo")) is Desired.DRAINED
    orders.undrain("demo")
    assert read_desired(paths.model("demo")) is Desired.SERVED
    assert supervisor.calls == []


def test_a_stopped_model_is_started_by_load(orders, paths, supervisor):
    write_desired(paths, "demo", Desired.STOPPED)
    supervisor.running = {SECOND}
    orders.load("demo")
    assert supervisor.running == {FIRST, SECOND}
    assert read_desired(paths.model("demo")) is Desired.SERVED


@pytest.mark.parametrize("desired", [Desired.STOPPED, Desired.UNLOADED])
def test_what_has_no_engines_cannot_be_drained(orders, paths, desired):
    write_desired(paths, "demo", desired)
    with pytest.raises(OrderRefusedError, match="nothing to drain"):
        orders.drain("demo")
    orders.undrain("demo")
    assert read_desired(paths.model("demo")) is desired


@pytest.mark.parametrize("action", ["load", "unload", "drain", "undrain"])
def test_without_a_daemon_nothing_is_written(orders, paths, supervisor, action):
    supervisor.is_down = True
    with pytest.raises(SupervisorDownError):
        getattr(orders, action)("demo")
    assert not paths.model("demo").folder.exists()


def test_another_refusal_of_the_supervisor_is_passed_on(orders, supervisor):
    supervisor.fault = 6
    with pytest.raises(SupervisorRefusedError, match="stopping"):
        orders.unload("demo")


def test_a_full_ledger_stops_no_order(orders, paths, supervisor, monkeypatch):
    def refuse(*_):
        raise OSError("no space")

    monkeypatch.setattr(Ledger, "append", refuse)
    orders.unload("demo")
    assert supervisor.running == set()


def test_opposite_orders_at_once_leave_what_the_last_one_wanted(orders, paths, supervisor):
    for _ in range(20):
        threads = [threading.Thread(target=order, args=("demo",)) for order in (orders.load, orders.unload)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        is_unloaded = read_desired(paths.model("demo")) is Desired.UNLOADED
        assert supervisor.running == (set() if is_unloaded else {FIRST, SECOND})
