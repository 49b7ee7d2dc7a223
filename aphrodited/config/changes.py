"""What differs between two configurations, and how each difference comes into a running daemon.

Models are known by their names: another order of them is no difference, one that comes or goes needs a full restart.
Pure; knows the schema's types and marks, and none of its keys but `models`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import msgspec.inspect as inspect

from aphrodited.config.reference import show_value
from aphrodited.config.schema import Apply, Config, ModelConfig
from aphrodited.config.values import leaf_of

ABSENT = "absent"


@dataclass(frozen=True, slots=True)
class Change:
    """One value that differs. key: as in the new file.  shown_old, shown_new: as one would write the values.

    model: whose value it is, None outside models.  path: the names of the fields that lead to it, from the model's
    struct or from the root on; () for a model as a whole.
    """

    key: str
    apply: Apply
    old: Any
    new: Any
    shown_old: str
    shown_new: str
    path: tuple[str, ...]
    model: str | None = None

    def __str__(self) -> str:
        return f"{self.key}: {self.shown_old} -> {self.shown_new}"

    def reversed(self) -> Change:
        """The change back."""
        return Change(
            self.key, self.apply, self.new, self.old, self.shown_new, self.shown_old, self.path, self.model
        )


def find_changes(old: Config, new: Config) -> list[Change]:
    """Every value that differs, in the order of the file."""
    return [*_model_changes(old, new), *_changes(old, new, Config, "", (), None)]


def with_changes(config: Config, changes: Iterable[Change]) -> Config:
    """The configuration with the new value of each change, everything else as it is. Not for whole models."""
    for change in changes:
        if change.model is None:
            config = _with_value(config, change.path, change.new)
        else:
            models = tuple(
                _with_value(model, change.path, change.new) if model.name == change.model else model
                for model in config.models
            )
            config = msgspec.structs.replace(config, models=models)
    return config


def _model_changes(old: Config, new: Config) -> Iterator[Change]:
    before = {model.name: model for model in old.models}
    after = {model.name for model in new.models}
    for index, model in enumerate(new.models):
        key = f"models[{index}]"
        if model.name in before:
            yield from _changes(before[model.name], model, ModelConfig, key, (), model.name)
        else:
            yield Change(key, Apply.DAEMON, None, model, ABSENT, model.name, (), model.name)
    for name, model in before.items():
        if name not in after:
            yield Change("models", Apply.DAEMON, model, None, name, ABSENT, (), name)


def _changes(
    old: msgspec.Struct, new: msgspec.Struct, kind: type[msgspec.Struct], key: str, path: tuple[str, ...], model: str | None
) -> Iterator[Change]:
    struct = inspect.type_info(kind)
    assert isinstance(struct, inspect.StructType)
    for field in struct.fields:
        leaf = leaf_of(field.type)
        before, after = getattr(old, field.name), getattr(new, field.name)
        inner, steps = f"{key}.{field.name}" if key else field.name, (*path, field.name)
        if isinstance(leaf.type, inspect.StructType):
            yield from _changes(before, after, leaf.type.cls, inner, steps, model)
        elif "apply" in leaf.extra and before != after:
            shown = (show_value(before, is_size=leaf.is_size), show_value(after, is_size=leaf.is_size))
            yield Change(inner, Apply(leaf.extra["apply"]), before, after, *shown, steps, model)


def _with_value(struct: Any, path: tuple[str, ...], value: Any) -> Any:
    name, *rest = path
    inner = _with_value(getattr(struct, name), tuple(rest), value) if rest else value
    return msgspec.structs.replace(struct, **{name: inner})
