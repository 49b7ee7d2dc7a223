"""The package's sources as syntax trees, and who imports whom."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "aphrodited"


@dataclass(frozen=True)
class Module:
    """One source file. imports: (full name, line) of every import, those inside functions too."""

    name: str
    path: Path
    tree: ast.Module
    imports: tuple[tuple[str, int], ...]

    @property
    def part(self) -> str:
        """The package or module directly below the root package; "" for the root itself."""
        return [*self.name.split("."), ""][1]

    def is_in(self, place: str) -> bool:
        """Whether it is that module or lies in that package, `engine` or `engine.scheduler`."""
        full = f"{PACKAGE}.{place}"
        return self.name == full or self.name.startswith(f"{full}.")


@cache
def modules() -> dict[str, Module]:
    paths = sorted((ROOT / PACKAGE).rglob("*.py"))
    names = {path: _module_name(path) for path in paths}
    known = set(names.values())
    found = {}
    for path, name in names.items():
        tree = ast.parse(path.read_text("utf-8"), str(path))
        found[name] = Module(name, path, tree, tuple(_imports(tree, known)))
    return found


def _module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(tree: ast.Module, known: set[str]) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield (whole if whole in known else node.module or ""), node.lineno


def place(module: Module, line: int) -> str:
    return f"{module.path.relative_to(ROOT)}:{line}"


def cycles(edges: dict[str, set[str]]) -> list[list[str]]:
    """Every strongly connected component with more than one member, by Tarjan's algorithm."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(edges.get(node, ())):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            component = []
            while True:
                component.append(stack.pop())
                if component[-1] == node:
                    break
            if len(component) > 1:
                found.append(sorted(component))

    for node in sorted(edges):
        if node not in index:
            visit(node)
    return found
