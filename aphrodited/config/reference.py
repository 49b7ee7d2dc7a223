"""Writes what people and editors read about the configuration, all from the one table in `config.schema`:

    config.example.yaml        every key with its meaning and default, ready to be copied
    docs/configuration.md      the same as tables
    docs/config.schema.json    for editors that complete and check while one types

`python -m aphrodited.config.reference` writes them into the working directory; a test compares.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec.inspect as inspect

from aphrodited.config.schema import Config
from aphrodited.config.values import Leaf, expected, format_size, leaf_of

EXAMPLES = {"name": "smollm2-135m-instruct", "path": "models/SmolLM2-135M-Instruct.Q4_1.gguf"}
"""Values in the example for keys without a default."""

WIDTH = 100

SIZE_PATTERN = r"^[0-9]{1,15}(\.[0-9]{1,6})? ?(B|KiB|MiB|GiB|TiB)$"


@dataclass(frozen=True, slots=True)
class Entry:
    """One key: its last part, its place, and what the schema says of it."""

    name: str
    leaf: Leaf
    field: inspect.Field

    @property
    def values(self) -> str:
        """What may stand there, in words, with the unit."""
        words = expected(self.leaf.type, is_size=self.leaf.is_size)
        unit = self.leaf.extra.get("unit")
        return f"{words}, in {unit}" if unit and not self.leaf.is_size and _is_number(self.leaf.type) else words

    @property
    def default(self) -> str:
        return show_value(self.field.default, is_size=self.leaf.is_size)


@dataclass(frozen=True, slots=True)
class Section:
    """One struct of the schema. path: as in keys, `models[].engine`."""

    path: str
    title: str
    entries: tuple[Entry, ...]


def sections() -> list[Section]:
    """All of them, in the order of the file; a model's engine comes after the model."""
    root = inspect.type_info(Config)
    assert isinstance(root, inspect.StructType)
    return [section for field in root.fields for section in _sections(field.type, field.name)]


def _sections(kind: inspect.Type, path: str) -> Iterator[Section]:
    kind = leaf_of(kind).type
    if isinstance(kind, inspect.VarTupleType):
        kind, path = leaf_of(kind.item_type).type, f"{path}[]"
    assert isinstance(kind, inspect.StructType)
    nested = [f for f in kind.fields if isinstance(leaf_of(f.type).type, inspect.StructType)]
    entries = tuple(Entry(f.name, leaf_of(f.type), f) for f in kind.fields if f not in nested)
    yield Section(path, (kind.cls.__doc__ or "").strip(), entries)
    for field in nested:
        yield from _sections(field.type, f"{path}.{field.name}")


def show_value(value: Any, *, is_size: bool = False) -> str:
    """A value as one would write it in the file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, tuple):
        return f"[{', '.join(show_value(item) for item in value)}]"
    if isinstance(value, int | float):
        return format_size(int(value)) if is_size else f"{value:.12g}"
    return str(value)


def _is_number(kind: inspect.Type) -> bool:
    if isinstance(kind, inspect.UnionType):
        return any(_is_number(member) for member in kind.types)
    if isinstance(kind, inspect.VarTupleType):
        return _is_number(kind.item_type)
    return isinstance(kind, inspect.IntType | inspect.FloatType)


def example_yaml() -> str:
    """The file to copy: what has no default is given, everything else stands there commented out."""
    lines = [
        "# yaml-language-server: $schema=docs/config.schema.json",
        "# Every key of aphrodited's configuration. A line that begins with # and a key shows the default;",
        "# remove the # to change it. Sizes are written as 2GiB or 512MiB, relative paths start at this file.",
    ]
    for section in sections():
        lines += ["", *_example_section(section)]
    return "\n".join(lines) + "\n"


def _example_section(section: Section) -> list[str]:
    depth = section.path.count(".") + section.path.count("[]")
    is_list = section.path.endswith("[]")
    name = section.path.rpartition(".")[2].removesuffix("[]")
    outer = "  " * (depth if not is_list else depth - 1)
    inner = "  " * (depth + 1)
    lines = [*_comment(section.title, outer), f"{outer}{name}:"]
    for number, entry in enumerate(section.entries):
        if number:
            lines.append("")
        lines += _comment(entry.leaf.description, inner)
        if entry.field.required:
            lines += _comment(f"Takes {entry.values}; required.", inner)
            bullet = f"{inner[:-2]}- " if is_list and number == 0 else inner
            lines.append(f"{bullet}{entry.name}: {EXAMPLES[entry.name]}")
        else:
            lines += _comment(f"Takes {entry.values}; default {entry.default}.", inner)
            lines.append(f"{inner}#{entry.name}: {entry.default}")
    return lines


def _comment(text: str, indent: str) -> list[str]:
    return [f"{indent}# {line}" for line in textwrap.wrap(text, WIDTH - len(indent), break_on_hyphens=False)]


def markdown() -> str:
    """The reference page: one table per section."""
    parts = [
        "# Configuration",
        "One YAML file describes a daemon: `aphrodited --config FILE`. Only `models`, with a `name` and a `path` each,"
        " is required. Values come from the defaults, then the file, then `--set KEY=VALUE` on the command line"
        " (`--set api.port=8080`, `--set models[0].engine.threads=4`).",
        "* The file is read strictly: an unknown key, a key given twice, a value of the wrong type or out of range"
        " stops the daemon with exit code 78, and every problem is shown at once, with its line and column.\n"
        "* Only `true` and `false` are booleans; `yes`, `no`, `on` and `off` are words. Anchors and aliases work,"
        " tags and merge keys (`<<`) do not.\n"
        "* Sizes are written as `2GiB`, `512MiB` or a number of bytes. Keys that end in `_s` are seconds.\n"
        "* Relative paths start at the file; those in `--set` start at the working directory.\n"
        "* `aphroditectl reload` brings a change into the running daemon; the column *applied* says how: `hot` at once,"
        " `monitor` by restarting the monitor, `engine` by replacing the model's engines, standbys first, `api` by"
        " replacing the API workers one after the other, `daemon` by a full restart alone.",
        "`aphrodited --check-config` validates, `aphrodited --show-config` prints each value with its origin."
        " [config.example.yaml](../config.example.yaml) has every key to copy from, and"
        " [config.schema.json](config.schema.json) is for editors. This page is made from the table that the"
        " daemon itself reads by: `python -m aphrodited.config.reference`.",
    ]
    for section in sections():
        rows = [
            f"| `{entry.name}` | {_cell(entry.values)} | {_default_cell(entry)} |"
            f" {entry.leaf.extra['apply']} | {_cell(entry.leaf.description)} |"
            for entry in section.entries
        ]
        table = "\n".join(["| key | value | default | applied | meaning |", "|---|---|---|---|---|", *rows])
        parts.append(f"## {section.path}\n\n{section.title}\n\n{table}")
    return "\n\n".join(parts) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _default_cell(entry: Entry) -> str:
    return "required" if entry.field.required else f"`{entry.default}`"


def json_schema() -> str:
    """A JSON schema (draft 2020-12) of the file."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "aphrodited"}
    body = _type_schema(inspect.type_info(Config))
    return json.dumps({**body, **schema, "description": "The configuration of a daemon."}, indent=2) + "\n"


def _schema(leaf: Leaf) -> dict[str, Any]:
    about = {"description": leaf.description} if leaf.description else {}
    return {**about, **_type_schema(leaf.type, is_size=leaf.is_size)}


def _type_schema(kind: inspect.Type, *, is_size: bool = False) -> dict[str, Any]:
    match kind:
        case inspect.StructType():
            return _struct_schema(kind)
        case inspect.VarTupleType():
            limits: dict[str, Any] = {"minItems": kind.min_length, "maxItems": kind.max_length}
            return {"type": "array", "items": _schema(leaf_of(kind.item_type)), **_given(limits)}
        case inspect.UnionType():
            return {"anyOf": [_type_schema(member, is_size=is_size) for member in kind.types]}
        case inspect.IntType() | inspect.FloatType():
            name = "integer" if isinstance(kind, inspect.IntType) else "number"
            limits = {"minimum": kind.ge, "exclusiveMinimum": kind.gt, "maximum": kind.le, "exclusiveMaximum": kind.lt}
            number = {"type": name, **_given(limits)}
            return {"anyOf": [number, {"type": "string", "pattern": SIZE_PATTERN}]} if is_size else number
        case inspect.LiteralType():
            return {"enum": [*kind.values, *([None] if "null" in kind.values else [])]}
        case inspect.StrType():
            return {"type": "string", **_given({"pattern": kind.pattern})}
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.NoneType():
            return {"type": "null"}
    raise TypeError(f"the configuration has no such type: {kind}")


def _struct_schema(kind: inspect.StructType) -> dict[str, Any]:
    properties = {}
    for field in kind.fields:
        leaf = leaf_of(field.type)
        properties[field.name] = _schema(leaf)
        if not field.required and not isinstance(leaf.type, inspect.StructType):
            properties[field.name]["default"] = field.default
    return {
        "description": (kind.cls.__doc__ or "").strip(),
        "type": ["object", "null"],
        "properties": properties,
        "required": [field.name for field in kind.fields if field.required],
        "additionalProperties": False,
    }


def _given(limits: dict[str, Any]) -> dict[str, Any]:
    return {name: limit for name, limit in limits.items() if limit is not None}


FILES: dict[str, Callable[[], str]] = {
    "config.example.yaml": example_yaml,
    "docs/configuration.md": markdown,
    "docs/config.schema.json": json_schema,
}


def write_files(root: Path) -> None:
    for name, text in FILES.items():
        (root / name).write_text(text(), "utf-8")


if __name__ == "__main__":
    write_files(Path.cwd())
