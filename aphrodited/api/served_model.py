"""A model as an API worker sees it: its engine's client, its tokenizer, and whether an engine is to be expected."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from aphrodited.api.error_responses import EngineUnavailableError
from aphrodited.errors import EngineError, ModelNotFoundError, MQEngineDeadError, RequestError
from aphrodited.interfaces import EngineClient
from aphrodited.rulings import RulingsReader
from aphrodited.tokenizer.tokenizer import Tokenizer

DRAIN_RETRY_S = 5.0
"""Told to whom a drained model refuses: nobody knows how long the operator needs."""

_WITHHELD = {"draining": "an operator drains it", "unloaded": "an operator unloaded it"}


@dataclass(frozen=True, slots=True)
class Availability:
    """What is known of a model's engine process.

    state: a word of `aphroditectl status`.  due_in_s: seconds until it may be starting (0: it is starting or runs);
    None if no start is to be expected.  reason: why it does not run, for people.
    """

    state: str
    due_in_s: float | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """One model of this worker. tokenizer is None if it could not be loaded: then availability says why.

    rulings: on its requests.  withheld: `draining` or `unloaded` as long as the operator keeps it from new requests.
    """

    name: str
    client: EngineClient
    tokenizer: Tokenizer | None
    availability: Callable[[], Availability]
    rulings: RulingsReader = field(default_factory=RulingsReader)
    withheld: Callable[[], str] = str

    @property
    def is_serving(self) -> bool:
        return self.tokenizer is not None and self.client.is_running and not self.withheld()

    def state(self) -> Availability:
        """The availability as it is told to others: ready if a request would be taken now."""
        if self.is_serving:
            return Availability("ready", 0.0)
        known = self.availability()
        if state := self.withheld():
            return replace(known, state=state, reason=_WITHHELD[state])
        return replace(known, state="starting") if known.state == "ready" else known  # its engine, but not for us yet

    def check_taken(self) -> None:
        """Raises EngineUnavailableError if the operator keeps the model from new requests."""
        match self.withheld():
            case "draining":
                message = f"The model {self.name} takes no new requests for the moment: {_WITHHELD['draining']}"
                raise EngineUnavailableError(message, code="MODEL_DRAINING", retry_after_s=DRAIN_RETRY_S)
            case "unloaded":
                raise self._unloaded()

    def _unloaded(self, before: str = "") -> EngineUnavailableError:
        message = f"{before}The model {self.name} is not loaded: {_WITHHELD['unloaded']}"
        return EngineUnavailableError(message, code="MODEL_UNLOADED", retry_after_s=None)

    def usable_tokenizer(self) -> Tokenizer:
        """Raises EngineUnavailableError if this worker could not load it."""
        if self.tokenizer is None:
            raise EngineUnavailableError(
                f"The model {self.name} cannot be served: {self.availability().reason}",
                code="MODEL_UNAVAILABLE",
                retry_after_s=None,
            )
        return self.tokenizer

    def unavailable(self, why: str) -> EngineUnavailableError:
        """The error for a request that no engine takes, with the time of the next start as far as it is known."""
        if self.withheld() == "unloaded":
            return self._unloaded()
        known = self.availability()
        reason = f": {known.reason}" if known.reason else ""
        if self.client.errored:
            code, message = "ENGINE_DEAD", f"The engine of {self.name} is dead ({self.client.dead_error})"
        else:
            code, message = "ENGINE_STARTING", f"The engine of {self.name} is not ready ({known.state}{reason})"
        if known.state == "parked":
            code, message = "ENGINE_DEAD", f"The engine of {self.name} is parked after failures{reason}"
        retry_after_s = None if known.due_in_s is None else max(1.0, known.due_in_s)
        return EngineUnavailableError(f"{message}; {why}", code=code, retry_after_s=retry_after_s)

    def died(self, error: EngineError, why: str = "") -> EngineUnavailableError:
        """The end of the engine that held a request, as it is told to its client.  why: no other engine goes on with it."""
        message = str(error)
        if isinstance(error, MQEngineDeadError) and error.cause and error.cause not in message:
            message = f"{message}: {error.cause}"
        if self.withheld() == "unloaded":
            return self._unloaded(f"{message}. ")
        due_in_s = self.availability().due_in_s
        if why:
            message = why if message in why else f"{message}; {why}"
        return EngineUnavailableError(
            message,
            code=error.code,
            retry_after_s=None if due_in_s is None else max(1.0, due_in_s),
        )


def choose_model(models: Mapping[str, ServedModel], name: str | None) -> ServedModel:
    """The model of that name; without a name, the only one there is.

    Raises ModelNotFoundError, or RequestError if there is no name and more than one model.
    """
    if name is None:
        if len(models) == 1:
            return next(iter(models.values()))
        raise RequestError("model must be given, since several are served", param="model")
    try:
        return models[name]
    except KeyError:
        served = ", ".join(models)
        raise ModelNotFoundError(f"There is no model {name!r}; served are: {served}", param="model") from None
