"""The configuration in effect as text: each value with where it comes from. Contents of key files never appear."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import msgspec.inspect as inspect

from aphrodited.config.loader import LoadedConfig
from aphrodited.config.reference import show_value
from aphrodited.config.schema import Config
from aphrodited.config.values import leaf_of


def show_config(loaded: LoadedConfig) -> str:
    """One line per value: `api.port: 8080  # aphrodited.yaml:12:9`."""
    lines = list(_lines(loaded.config, inspect.type_info(Config), ""))
    width = max(len(text) for _, text in lines)
    return "\n".join(f"{text:<{width}}  # {loaded.origins.get(key, 'default')}" for key, text in lines)


def _lines(value: Any, kind: inspect.Type, key: str) -> Iterator[tuple[str, str]]:
    leaf = leaf_of(kind)
    if isinstance(leaf.type, inspect.StructType):
        for field in leaf.type.fields:
            yield from _lines(getattr(value, field.name), field.type, f"{key}.{field.name}" if key else field.name)
    elif isinstance(leaf.type, inspect.VarTupleType) and value and isinstance(value[0], msgspec.Struct):
        for index, item in enumerate(value):
            yield from _lines(item, leaf.type.item_type, f"{key}[{index}]")
    else:
        yield key, f"{key}: {show_value(value, is_size=leaf.is_size)}"
