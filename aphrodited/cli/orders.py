"""`aphroditectl load|unload|drain|undrain`: orders to models, given to the supervisor itself, so that they need no monitor."""

from __future__ import annotations

import os
import time

from aphrodited.cli.target import Target, UsageError
from aphrodited.cli.terminal import complain
from aphrodited.errors import EXIT_OK, AphroditeError
from aphrodited.health.orders import ModelOrders
from aphrodited.health.states import State
from aphrodited.health.status import ModelStatus, read_status

EXIT_FAILED = 1
POLL_S = 0.2
_DONE = {"load": "is to be loaded", "unload": "is unloaded", "drain": "drains", "undrain": "takes requests"}


def order(target: Target, action: str, words: list[str], wait_s: float) -> int:
    """Give an order to the models that the words mean; returns the exit code.

    wait_s: how long to wait until a loaded model serves, or nothing runs in a drained one, before the next model's turn.
    """
    exit_code = EXIT_OK
    models = _models(target, words)
    orders = ModelOrders(target.config(), target.paths, f"uid {os.getuid()}")
    for model in models:
        try:
            getattr(orders, action)(model)
            print(_wait(target, action, model, wait_s) if wait_s else f"{model} {_DONE[action]}")
        except AphroditeError as error:
            complain(str(error))
            exit_code = EXIT_FAILED
            if error.code == "supervisor_down":
                break
    return exit_code


class StillWaitingError(AphroditeError):
    """The order was given, and what was waited for has not come true."""


def _wait(target: Target, action: str, model: str, wait_s: float) -> str:
    """What has come true. Raises StillWaitingError."""
    until_s = time.monotonic() + wait_s
    while True:
        status = next(known for known in read_status(target.config(), target.paths).models if known.name == model)
        if _is_done(action, status):
            return f"{model} {'is ready' if action == 'load' else 'is drained: nothing runs in it'}"
        if time.monotonic() >= until_s or status.state is State.PARKED:
            reason = f": {status.reason}" if status.reason else ""
            raise StillWaitingError(f"{model} is {status.state} after {wait_s:g} s{reason}")
        time.sleep(POLL_S)


def _is_done(action: str, status: ModelStatus) -> bool:
    if action == "drain":
        return not status.num_running and not status.num_waiting
    return status.state in (State.READY, State.DRAINING)


def _models(target: Target, words: list[str]) -> list[str]:
    """The models named; all of them for `all`. Raises UsageError for a name that is none."""
    known = [model.name for model in target.config().models]
    if "all" in words:
        return known
    for word in words:
        if word not in known:
            raise UsageError(f"{word} is no model of this daemon; there are: {', '.join(known)}, or all")
    return list(dict.fromkeys(words))
