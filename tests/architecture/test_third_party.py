"""Each third-party library has its few places, so that a process loads what its job needs and no more."""

from __future__ import annotations

import configparser
import sys

import pytest

from tests.support.sources import PACKAGE, ROOT, modules, place

CONFINED: dict[str, set[str]] = {
    "aiohttp": {"api", "health", "workers", "bench", "chaos"},
    "gguf": {"loaders"},
    "huggingface_hub": {"loaders", "tokenizer"},
    "jinja2": {"tokenizer"},
    "llvmlite": {"layers"},
    "llguidance": {"grammar"},
    "numba": {"layers"},
    "prometheus_client": {"metrics", "health", "api"},
    "psutil": {"engine", "bench"},
    "safetensors": {"loaders"},
    "structlog": {"log"},
    "supervisor": {"supervision"},
    "tokenizers": {"tokenizer"},
    "torch": {"engine", "layers", "models", "loaders", "sampling"},
    "triton": {"layers"},
    "uvloop": {"workers", "bench"},
    "yaml": {"config"},
    "zmq": {"mq", "health", "workers"},
}
EVERYWHERE = {"msgspec", "numpy"}

# In a package that may use torch, these must work without it.
TORCH_FREE = {"engine.sequence", "engine.block_manager", "engine.scheduler", "engine.null_backend"}


@pytest.mark.parametrize("library", sorted(CONFINED))
def test_library_stays_in_its_places(library: str) -> None:
    wrong = [
        place(module, line)
        for module in modules().values()
        for name, line in module.imports
        if name.split(".")[0] == library and not any(module.is_in(home) for home in CONFINED[library])
    ]
    assert wrong == []


def test_scheduling_is_free_of_torch() -> None:
    wrong = [
        place(module, line)
        for module in modules().values()
        if any(module.is_in(home) for home in TORCH_FREE)
        for name, line in module.imports
        if name.split(".")[0] == "torch"
    ]
    assert wrong == []


def test_no_other_library_is_imported() -> None:
    known = set(CONFINED) | EVERYWHERE | {PACKAGE} | sys.stdlib_module_names
    found = {name.split(".")[0] for module in modules().values() for name, _ in module.imports}
    assert found - known == set()


def test_every_declared_dependency_is_imported() -> None:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    declared = {
        line.split(">")[0].strip().replace("-", "_")
        for line in parser["options"]["install_requires"].splitlines()
        if line.strip()
    }
    names = {"pyyaml": "yaml", "pyzmq": "zmq"}
    imported = {name.split(".")[0] for module in modules().values() for name, _ in module.imports}
    assert {names.get(name, name) for name in declared} - imported == set()
