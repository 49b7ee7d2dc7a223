"""The import direction of docs/architecture.md, read from the sources."""

from __future__ import annotations

from tests.support.sources import PACKAGE, Module, cycles, modules, place

# From the bottom up: a part imports its own modules and rows below, never a neighbour in its row.
ROWS: list[set[str]] = [
    {"errors", "outputs", "procfs", "paths", "log"},
    {"sampling_params", "page", "flight", "rulings"},
    {"request"},
    {"interfaces", "streams"},
    {"config", "metrics", "gguf_file", "hub_cache", "layers"},
    {"tokenizer", "models", "sampling"},
    {"loaders", "grammar"},
    {"mq", "async_engine", "supervision", "engine"},
    {"api", "health", "llm"},
]
COMPOSITION = {"cli", "bench", "chaos", "workers"}

# Below in the picture, and still not theirs to use: each is handed its collaborator through `interfaces`.
NEVER = {
    "api": {"mq", "async_engine", "engine", "supervision", "models", "loaders", "sampling", "grammar", "layers"},
    "health": {"engine", "async_engine", "models", "loaders", "sampling", "grammar", "layers"},
    "mq": {"models", "loaders", "sampling", "grammar", "layers"},
    "async_engine": {"models", "loaders", "sampling", "grammar", "layers"},
    "supervision": {"tokenizer", "models", "loaders", "sampling", "grammar", "layers"},
    "tokenizer": {"layers"},
}


def _row(part: str) -> int:
    return next(number for number, row in enumerate(ROWS) if part in row)


def _internal(module: Module) -> list[tuple[str, int]]:
    return [(name, line) for name, line in module.imports if name.split(".")[0] == PACKAGE]


def test_every_part_has_a_row() -> None:
    parts = {module.part for module in modules().values()} - {""}
    assert parts - COMPOSITION - set().union(*ROWS) == set()


def test_parts_import_only_from_below() -> None:
    wrong = []
    for module in modules().values():
        if module.part in COMPOSITION or not module.part:
            continue
        for name, line in _internal(module):
            other = [*name.split("."), ""][1]
            if other in ("", module.part):
                continue
            if other in COMPOSITION or _row(other) >= _row(module.part) or other in NEVER.get(module.part, ()):
                wrong.append(f"{place(module, line)}: {module.part} imports {name}")
    assert wrong == []


def test_there_is_no_cycle_between_modules() -> None:
    edges = {m.name: {name for name, _ in _internal(m)} - {m.name, PACKAGE} for m in modules().values()}
    assert cycles(edges) == []


def test_there_is_no_cycle_between_parts() -> None:
    edges: dict[str, set[str]] = {}
    for module in modules().values():
        others = {[*name.split("."), ""][1] for name, _ in _internal(module)} - {"", module.part}
        edges.setdefault(module.part, set()).update(others)
    assert cycles(edges) == []


def test_the_root_package_imports_none_of_its_own() -> None:
    assert _internal(modules()[PACKAGE]) == []
