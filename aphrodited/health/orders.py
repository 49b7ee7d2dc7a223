"""Carries out what an operator wants of a model: unload, load, drain, undrain.

Each order may be repeated, waits for any other one to the same model, and is told in the ledger if it changes anything.
Knows in which order engines stop so that no standby takes over; neither HTTP nor a terminal.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from aphrodited.config.schema import Config
from aphrodited.errors import AphroditeError
from aphrodited.health.probes import look_at
from aphrodited.log import get_logger
from aphrodited.paths import DaemonPaths, ModelPaths
from aphrodited.supervision.desired import Desired, read_desired, write_desired
from aphrodited.supervision.ledger import Ledger, Order, stamp
from aphrodited.supervision.programs import STOP_SLACK_S, Program, Role, programs
from aphrodited.supervision.rpc import ALREADY_RUNNING, NOT_RUNNING, SupervisorClient, SupervisorRefusedError

log = get_logger()


class OrderRefusedError(AphroditeError):
    """The order makes no sense for a model in this state."""

    code = "order_refused"
    http_status = 409


class ModelOrders:
    """Orders to the models of one running daemon. by: who gives them, for the ledger.

    Every method blocks until it is done, and raises SupervisorDownError without a daemon, before anything has changed, and
    SupervisorRefusedError and OSError if it cannot be carried out.
    """

    def __init__(self, config: Config, paths: DaemonPaths, by: str, client: SupervisorClient | None = None) -> None:
        self._config = config
        self._paths = paths
        self._by = by
        self._client = client or SupervisorClient(paths.supervisor_socket)

    def unload(self, model: str) -> None:
        """End the model's engines, standbys first; the active one may finish what runs until it has to stop."""
        with self._alone(model):
            if read_desired(self._paths.model(model)) is not Desired.UNLOADED:
                self._want(model, Desired.UNLOADED, "unload")
            for program in sorted(self._engines(model), key=lambda program: is_active(self._paths, program)):
                stop_timeout_s = program.stop_timeout_s + STOP_SLACK_S
                self._ask(lambda: self._client.stop(program.name, timeout_s=stop_timeout_s), NOT_RUNNING)  # noqa: B023

    def load(self, model: str) -> None:
        """Start the model's engines; they load by themselves."""
        with self._alone(model):
            if not read_desired(self._paths.model(model)).wants_engines:
                self._want(model, Desired.SERVED, "load")
            for program in self._engines(model):
                self._ask(lambda: self._client.start(program.name), ALREADY_RUNNING)  # noqa: B023

    def drain(self, model: str) -> None:
        """Have new requests refused. Raises OrderRefusedError if the model's engines are not there anyway."""
        with self._alone(model):
            desired = read_desired(self._paths.model(model))
            if not desired.wants_engines:
                raise OrderRefusedError(f"{model} is {desired}: there is nothing to drain")
            if desired is not Desired.DRAINED:
                self._want(model, Desired.DRAINED, "drain")

    def undrain(self, model: str) -> None:
        """Have requests taken again. Nothing changes for a model that is not drained."""
        with self._alone(model):
            if read_desired(self._paths.model(model)) is Desired.DRAINED:
                self._want(model, Desired.SERVED, "undrain")

    def _engines(self, model: str) -> list[Program]:
        return [program for program in programs(self._config) if program.model == model]

    def _want(self, model: str, desired: Desired, action: str) -> None:
        write_desired(self._paths, model, desired)
        entry = Order(**stamp(self._engines(model)[0].name), action=action, model=model, by=self._by)
        try:
            Ledger(self._paths.ledger).append(entry)
        except OSError as error:  # what is wanted is written down elsewhere
            log.error("ledger_write_failed", error=str(error))

    def _ask(self, call: Callable[[], None], done_already: int) -> None:
        try:
            call()
        except SupervisorRefusedError as error:
            if error.fault_code != done_already:
                raise

    @contextmanager
    def _alone(self, model: str) -> Iterator[None]:
        self._client.pid()  # raises if there is no daemon: nothing is written into its folders then
        with _order_lock(self._paths.model(model)):
            yield


def is_active(paths: DaemonPaths, program: Program) -> bool:
    """Whether the program is an engine that was promoted."""
    page = look_at(program.name, paths).page
    return program.role is Role.ENGINE and page is not None and page.generation > 0


@contextmanager
def _order_lock(paths: ModelPaths) -> Iterator[None]:
    """One order to a model at a time, whichever process gives it; the kernel frees the lock of one that dies."""
    paths.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(paths.folder / "orders", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)
