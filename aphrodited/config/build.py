"""From a tree of nodes to the structs of `config.schema`, with every problem on the way.

Walks the node tree and the type tree side by side. A wrong value is noted, something harmless stands in for it,
and the walk goes on. Also keeps where each value stood, for the checks between values and for showing origins.
Knows no key by name.
"""

from __future__ import annotations

import difflib
from typing import Any

import msgspec
import msgspec.inspect as inspect
import yaml

from aphrodited.config.problems import Problem
from aphrodited.config.values import Leaf, Unacceptable, convert, expected, found, interpret, leaf_of

_WRONG: Any = object()  # the value has a problem


class Builder:
    """Builds one configuration. After `build`: `problems`, and `marks`, the place of each key the file has."""

    def __init__(self, schema: type[msgspec.Struct]) -> None:
        self._schema = inspect.type_info(schema)
        self.problems: list[Problem] = []
        self.marks: dict[str, yaml.Mark] = {}

    def build(self, root: yaml.Node) -> Any:
        """The struct. Values with a problem are their default or, without one, the key's own name."""
        assert isinstance(self._schema, inspect.StructType)
        self.marks[""] = root.start_mark
        return self._struct(root, self._schema, "")

    def _value(self, node: yaml.Node, kind: inspect.Type, key: str) -> Any:
        leaf = leaf_of(kind)
        self.marks[key] = node.start_mark
        if isinstance(leaf.type, inspect.StructType):
            return self._struct(node, leaf.type, key)
        if isinstance(leaf.type, inspect.VarTupleType):
            return self._tuple(node, leaf.type, key)
        return self._scalar(node, leaf, key)

    def _scalar(self, node: yaml.Node, leaf: Leaf, key: str) -> Any:
        wanted = expected(leaf.type, is_size=leaf.is_size)
        if not isinstance(node, yaml.ScalarNode):
            return self._wrong(node, key, f"expected {wanted}, {found(node)}")
        try:
            return convert(node, leaf.type, is_size=leaf.is_size)
        except Unacceptable as error:
            return self._wrong(node, key, f"expected {wanted}, {error}")

    def _tuple(self, node: yaml.Node, kind: inspect.VarTupleType, key: str) -> Any:
        if not isinstance(node, yaml.SequenceNode):
            return self._wrong(node, key, f"expected a list, {found(node)}")
        count = len(node.value)
        if count < (kind.min_length or 0) or count > (kind.max_length or 1000):
            limit = f"at least {kind.min_length}" if count < (kind.min_length or 0) else "fewer"
            return self._wrong(node, key, f"has {count} items, expected {limit}")
        items = [
            self._value(item, kind.item_type, f"{key}[{index}]") for index, item in enumerate(node.value)
        ]
        if isinstance(kind.item_type, inspect.StructType):
            items = [
                _stand_in(kind.item_type, f"{key}[{index}]") if item is _WRONG else item
                for index, item in enumerate(items)
            ]
        return _WRONG if any(item is _WRONG for item in items) else tuple(items)

    def _struct(self, node: yaml.Node, kind: inspect.StructType, key: str) -> Any:
        fields = {field.name: field for field in kind.fields}
        if isinstance(node, yaml.ScalarNode) and interpret(node) is None:
            node = yaml.MappingNode("", [], node.start_mark, node.end_mark)  # a section whose keys are comments
        if not isinstance(node, yaml.MappingNode):
            return self._wrong(node, key, f"expected keys and values, {found(node)}")
        values: dict[str, Any] = {}
        for name_node, value_node in node.value:
            name = self._key(name_node, fields, values, key)
            if name is not None:
                values[name] = self._value(value_node, fields[name].type, _join(key, name))
        for name, field in fields.items():
            if field.required and name not in values:
                leaf = leaf_of(field.type)
                about = f": {leaf.description}" if leaf.description else ""
                values[name] = self._wrong(node, _join(key, name), f"is missing and has no default{about}")
        for name, value in values.items():
            if value is _WRONG:
                values[name] = _stand_in_field(fields[name], _join(key, name))
        return kind.cls(**values)

    def _key(
        self, node: yaml.Node, fields: dict[str, inspect.Field], values: dict[str, Any], parent: str
    ) -> str | None:
        """The key's name if it may stand here; notes the problem and gives None if not."""
        if not isinstance(node, yaml.ScalarNode):
            self._wrong(node, parent, f"expected a key, {found(node)}")
            return None
        name: str = node.value
        key = _join(parent, name)
        if name in values:
            first = self.marks[key].line + 1
            self._wrong(node, key, f"is given twice; the first is in line {first}")
            return None
        if name in fields:
            return name
        if name == "<<":
            self._wrong(node, key, "merge keys are not supported; write the keys out")
            return None
        self._wrong(node, key, f"unknown key; {self._suggestion(name, list(fields))}")
        return None

    def _suggestion(self, name: str, known: list[str]) -> str:
        close = difflib.get_close_matches(name.lower().replace("-", "_"), known, n=1, cutoff=0.6)
        if close:
            return f"did you mean {close[0]}?"
        homes = [home for home in _homes(self._schema, "") if home.rpartition(".")[2] == name]
        if homes:
            return f"it belongs to {' or '.join(homes)}"
        return f"known here: {', '.join(known)}"

    def _wrong(self, node: yaml.Node, key: str, message: str) -> Any:
        self.problems.append(Problem(node.start_mark, key, message))
        return _WRONG


def _join(parent: str, name: str) -> str:
    return f"{parent}.{name}" if parent else name


def _stand_in_field(field: inspect.Field, key: str) -> Any:
    return _stand_in(leaf_of(field.type).type, key) if field.required else field.default


def _stand_in(kind: inspect.Type, key: str) -> Any:
    """A value for a required field that is wrong: never used, but the checks of its neighbours can go on."""
    if isinstance(kind, inspect.StructType):
        fields = {field.name: _stand_in_field(field, _join(key, field.name)) for field in kind.fields}
        return kind.cls(**fields)
    return () if isinstance(kind, inspect.VarTupleType) else key


def _homes(kind: inspect.Type, key: str) -> list[str]:
    """Every key of the schema in full: api.port, models[].name."""
    kind = leaf_of(kind).type
    if isinstance(kind, inspect.VarTupleType) and isinstance(kind.item_type, inspect.StructType):
        return _homes(kind.item_type, f"{key}[]")
    if isinstance(kind, inspect.StructType):
        return [home for field in kind.fields for home in _homes(field.type, _join(key, field.name))]
    return [key]
