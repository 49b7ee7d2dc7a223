"""The YAML file and the `--set` overrides as one tree of nodes that know their place.

Accepts the plain part of YAML: mappings, sequences, scalars, anchors and aliases; refuses tags, merge keys,
several documents, and anything too large or nested too deeply. Knows no key of the configuration.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from aphrodited.config.problems import Problem, override_name, render
from aphrodited.errors import ConfigError

MAX_SIZE = 1024 * 1024  # bytes of the file
MAX_DEPTH = 32
MAX_NODES = 100_000

_STEP = re.compile(r"\.?([A-Za-z_][A-Za-z0-9_]*)|\[(\d{1,4})\]")


@dataclass(frozen=True, slots=True)
class Document:
    """root: the tree.  sources: the lines of the file and of each override, by the name in the nodes' marks."""

    root: yaml.MappingNode
    sources: dict[str, list[str]]


class _Unfit(Exception):
    """The text is not what this module accepts."""

    def __init__(self, message: str, mark: yaml.Mark | None, key: str = "") -> None:
        super().__init__(message)
        self.problem = Problem(mark, key, message)


def read_document(path: Path, overrides: Sequence[str] = ()) -> Document:
    """The file with the overrides (`key=value`, value in YAML) put in place. Raises ConfigError."""
    text = _read_text(path)
    sources = {str(path): text.splitlines()}
    problems: list[Problem] = []
    root: yaml.Node | None = None
    try:
        root = _compose(text, str(path))
        if not isinstance(root, yaml.MappingNode):
            raise _Unfit("expected keys and values such as `models:`", root.start_mark)
    except _Unfit as unfit:
        raise ConfigError(render([unfit.problem], sources)) from None
    for override in overrides:
        name = override_name(override)
        sources[name] = []
        try:
            root = _overridden(root, override, name)
        except _Unfit as unfit:
            problems.append(unfit.problem)
    if problems:
        raise ConfigError(render(problems, sources))
    assert isinstance(root, yaml.MappingNode)
    return Document(root, sources)


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_SIZE + 1)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; write one after config.example.yaml") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: is a directory; name the YAML file in it") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    if len(raw) > MAX_SIZE:
        raise ConfigError(f"{path}: larger than {MAX_SIZE} bytes; is this the right file?")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        column = error.start - raw.rfind(b"\n", 0, error.start)
        message = f"not UTF-8: byte 0x{raw[error.start]:02x}; save the file as UTF-8"
        raise ConfigError(f"{path}:{line}:{column}: {message}") from None
    if not text.strip():
        raise ConfigError(f"{path}: is empty; write it after config.example.yaml")
    return text


class _Loader(yaml.SafeLoader):
    """Composes nodes only: nothing is constructed, and what goes beyond the plain part of YAML is refused."""

    def __init__(self, text: str, name: str) -> None:
        super().__init__(text)
        self.name = name  # what the marks of the nodes call their source
        self._depth = 0
        self._num_nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(event, "tag", None) is not None:
            raise _Unfit(f"tags such as {event.tag} are not supported; write the plain value", event.start_mark)
        self._depth += 1
        self._num_nodes += 1
        if self._depth > MAX_DEPTH or self._num_nodes > MAX_NODES:
            raise _Unfit("nested too deeply or too long for a configuration", event.start_mark)
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


def _compose(text: str, name: str) -> yaml.Node:
    try:
        loader = _Loader(text, name)
        try:
            node = loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = ": ".join(part for part in (error.context, error.problem) if part)
        raise _Unfit(f"not valid YAML: {message}", mark) from None
    except yaml.YAMLError as error:
        raise _Unfit(f"{name}: not valid YAML: {str(error).splitlines()[0]}", None) from None
    if node is None:
        raise _Unfit(f"{name}: holds no value, only comments", None)
    return node


def _overridden(root: yaml.Node, override: str, name: str) -> yaml.Node:
    """A copy of the tree with one override in place; nodes that aliases share are not touched."""
    key, separator, text = override.partition("=")
    mark = yaml.Mark(name, 0, 0, 0, None, 0)
    if not separator:
        raise _Unfit("expected key=value, for example api.port=8080", mark)
    steps: list[str | int] = []
    position = 0
    while position < len(key):
        match = _STEP.match(key, position)
        if match is None or (position == 0 and not match[0][0].isalpha()):
            raise _Unfit("expected a key such as api.port or models[0].path before the =", mark)
        steps.append(match[1] if match[1] is not None else int(match[2]))
        position = match.end()
    if not steps:
        raise _Unfit("expected a key before the =", mark)
    value = _compose(text, name) if text.strip() else yaml.ScalarNode("", "", mark, mark, style="'")
    return _with_value(root, steps, value, mark, key)


def _with_value(
    node: yaml.Node | None, steps: list[str | int], value: yaml.Node, mark: yaml.Mark, key: str
) -> yaml.Node:
    if not steps:
        return value
    step, rest = steps[0], steps[1:]
    if isinstance(step, int):
        if not isinstance(node, yaml.SequenceNode):
            raise _Unfit(f"there is no list to take [{step}] of", mark, key)
        if step >= len(node.value):
            raise _Unfit(f"the file has only {len(node.value)} of these", mark, key)
        items = list(node.value)
        items[step] = _with_value(items[step], rest, value, mark, key)
        return yaml.SequenceNode(node.tag, items, node.start_mark, node.end_mark, node.flow_style)
    if node is None or (isinstance(node, yaml.ScalarNode) and node.value in ("", "~", "null")):
        node = yaml.MappingNode("", [], mark, mark)
    if not isinstance(node, yaml.MappingNode):
        raise _Unfit(f"{step} has no place here: what the file has there holds no keys", mark, key)
    pairs = list(node.value)
    for index, (name_node, old) in enumerate(pairs):
        if name_node.value == step:
            pairs[index] = (name_node, _with_value(old, rest, value, mark, key))
            break
    else:
        name_node = yaml.ScalarNode("", step, mark, mark)
        pairs.append((name_node, _with_value(None, rest, value, mark, key)))
    return yaml.MappingNode(node.tag, pairs, node.start_mark, node.end_mark, node.flow_style)
