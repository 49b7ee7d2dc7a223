"""One scalar of the file as a value, and what a type expects in words.

Reads scalars by YAML 1.2's rules, not 1.1's: only true and false are booleans, `no` and `on` are words,
`010` is not eight and `1:30` is not ninety. Knows the types of `config.schema`, none of its keys.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import msgspec.inspect as inspect
import yaml

Scalar = None | bool | int | float | str

_NULLS = {"", "~", "null", "Null", "NULL"}
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,30})")
_FLOAT = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]{1,3})?")
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?(B|KiB|MiB|GiB|TiB)")
_DECIMAL_SIZE = re.compile(r"[0-9.]+ ?([KMGT])i?B?", re.IGNORECASE)
_UNITS = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "TiB": 1024**4}


class Unacceptable(Exception):
    """The value is not what the type expects; the message says both."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A type without its wrapping, and what the schema says of it (`config.schema.doc`)."""

    type: inspect.Type
    description: str = ""
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def is_size(self) -> bool:
        return self.extra.get("kind") == "size"


def leaf_of(kind: inspect.Type) -> Leaf:
    if not isinstance(kind, inspect.Metadata):
        return Leaf(kind)
    schema = kind.extra_json_schema or {}
    return Leaf(kind.type, str(schema.get("description", "")), dict(kind.extra or {}))


def interpret(node: yaml.ScalarNode) -> Scalar:
    """The value of a scalar. Quoted ones are text; plain ones follow YAML 1.2's core schema, decimal only."""
    text: str = node.value
    if node.style is not None:
        return text
    if text in _NULLS:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text) and not re.fullmatch(r"[-+]?0[0-9]+", text):
        return float(text)
    return text


def parse_size(text: str) -> int:
    """Bytes of a size such as 2GiB or 1.5 MiB. Raises Unacceptable."""
    match = _SIZE.fullmatch(text)
    if match is None:
        hint = ""
        if unit := _DECIMAL_SIZE.fullmatch(text):
            hint = f"; units are powers of 1024, so write {unit[1].upper()}iB"
        raise Unacceptable(f"found {text!r}{hint}")
    return int(float(match[1]) * _UNITS[match[2]])


def format_size(num_bytes: int) -> str:
    """The shortest way to write it: 8388608 is 8MiB."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if num_bytes and num_bytes % _UNITS[unit] == 0:
            return f"{num_bytes // _UNITS[unit]}{unit}"
    return str(num_bytes)


def convert(node: yaml.ScalarNode, kind: inspect.Type, *, is_size: bool = False) -> Scalar:
    """The scalar as `kind` wants it. Raises Unacceptable with what was found instead."""
    if isinstance(kind, inspect.UnionType):
        return _convert_union(node, kind, is_size=is_size)
    if isinstance(kind, inspect.LiteralType):
        # By its text: `backend: null` names the null backend, it is not the absence of one.
        if node.value in kind.values:
            return str(node.value)
        raise Unacceptable(found(node))
    value = interpret(node)
    match kind:
        case inspect.NoneType():
            if value is None:
                return None
        case inspect.BoolType():
            if isinstance(value, bool):
                return value
        case inspect.StrType():
            if isinstance(value, str):
                _check_text(value, kind)
                return value
            raise Unacceptable(f"{found(node)}; put it in quotes to make it text")
        case inspect.IntType() | inspect.FloatType():
            if is_size and isinstance(value, str):
                value = parse_size(value)
            wanted = (int,) if isinstance(kind, inspect.IntType) else (int, float)
            if isinstance(value, wanted) and not isinstance(value, bool):
                _check_range(value, kind, found(node))
                return value if isinstance(kind, inspect.IntType) else float(value)
    raise Unacceptable(found(node))


def _convert_union(node: yaml.ScalarNode, kind: inspect.UnionType, *, is_size: bool) -> Scalar:
    complaint = ""
    for member in kind.types:
        try:
            return convert(node, member, is_size=is_size)
        except Unacceptable as error:
            complaint = max(complaint, str(error), key=len)
    raise Unacceptable(complaint)


def _check_text(value: str, kind: inspect.StrType) -> None:
    if kind.pattern is not None and not re.search(kind.pattern, value):
        raise Unacceptable(f"found {_short(value)}")
    if "\0" in value or "\n" in value:
        raise Unacceptable("found text with line breaks or NUL characters")


def _check_range(value: int | float, kind: inspect.IntType | inspect.FloatType, shown: str) -> None:
    fits = (
        (kind.ge is None or value >= kind.ge)
        and (kind.gt is None or value > kind.gt)
        and (kind.le is None or value <= kind.le)
        and (kind.lt is None or value < kind.lt)
        and abs(value) < 2**63
    )
    if not fits:
        raise Unacceptable(shown)


def found(node: yaml.Node) -> str:
    """What stands there, in words: `found the text 'yes'`."""
    if isinstance(node, yaml.MappingNode):
        return "found keys and values"
    if isinstance(node, yaml.SequenceNode):
        return "found a list"
    assert isinstance(node, yaml.ScalarNode)
    value = interpret(node)
    if value is None:
        return "found nothing"
    if isinstance(value, bool):
        return f"found the boolean {node.value}"
    if isinstance(value, int | float):
        return f"found the number {_short(node.value, quote=False)}"
    if node.style is None and re.fullmatch("(?i)yes|no|on|off|y|n", value):
        return f"found the word {value}"
    return f"found the text {_short(value)}"


def _short(text: str, *, quote: bool = True) -> str:
    cut = text if len(text) <= 60 else f"{text[:57]}..."
    return repr(cut) if quote else cut


def expected(kind: inspect.Type, *, is_size: bool = False) -> str:
    """What the type accepts, in words: `an integer from 1 to 4096`."""
    match kind:
        case inspect.Metadata():
            leaf = leaf_of(kind)
            return expected(leaf.type, is_size=leaf.is_size)
        case inspect.BoolType():
            return "true or false"
        case inspect.NoneType():
            return "null"
        case inspect.LiteralType():
            return " or ".join(str(value) for value in kind.values)
        case inspect.UnionType():
            return ", or ".join(expected(member, is_size=is_size) for member in kind.types)
        case inspect.IntType() | inspect.FloatType() if is_size:
            return f"a size such as 2GiB or a number of bytes{_range_words(kind, is_size=True)}"
        case inspect.IntType():
            return f"an integer{_range_words(kind)}"
        case inspect.FloatType():
            return f"a number{_range_words(kind)}"
        case inspect.VarTupleType():
            return f"a list, each item {expected(kind.item_type)}"
        case inspect.StrType() if kind.pattern is not None:
            return f"text that matches {kind.pattern}"
        case inspect.StructType():
            return "keys and values"
        case _:
            return "text"


def _range_words(kind: inspect.IntType | inspect.FloatType, *, is_size: bool = False) -> str:
    def show(number: float) -> str:
        return format_size(int(number)) if is_size else f"{number:g}" if number < 10**6 else str(int(number))

    low = kind.ge if kind.ge is not None else kind.gt
    high = kind.le if kind.le is not None else kind.lt
    if low is None and high is None:
        return ""
    if kind.gt is not None:
        return f" above {show(kind.gt)}" + (f", at most {show(high)}" if high is not None else "")
    if low is None:
        return f" of at most {show(high or 0)}"
    if high is None:
        return f" of at least {show(low)}"
    return f" from {show(low)} to {show(high)}"
