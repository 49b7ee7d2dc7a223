"""What no source of this project holds, and how long its parts may be."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator

import pytest

from tests.support.sources import ROOT, Module, modules, place

MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 60

PRINTING = {"cli", "bench", "chaos"}

# Assembled here, so that this file does not hold what it forbids.
UNFINISHED = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK"]) + r")\b")
MACHINE_PATHS = re.compile(r"(?<![\w.])/(" + "|".join(["wo" + "rk", "ro" + "ot", "ho" + r"me/[a-z]"]) + r")(/|\b)")
PROCESS_WORDS = re.compile(
    r"(?i)\b(" + "|".join(["issue " + r"\d", "co-authored" + "-by", "sub" + "agent", "work" + "place"]) + r")\b"
)
BINARY = {".png", ".ico", ".gguf", ".safetensors", ".woff2", ".npz"}


def tracked_texts() -> Iterator[tuple[str, str]]:
    """Every text file that git tracks; an export without git has nothing to check."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("not a git checkout")
    for name in filter(None, done.stdout.split("\0")):
        path = ROOT / name
        if path.suffix not in BINARY and path.is_file():
            yield name, path.read_text("utf-8")


def calls(module: Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node.lineno


def test_every_module_says_what_it_is_for() -> None:
    silent = [m.name for m in modules().values() if m.tree.body and not ast.get_docstring(m.tree)]
    assert silent == []


def test_nothing_is_pickled() -> None:
    wrong = [
        place(m, line)
        for m in modules().values()
        for name, line in m.imports
        if name.split(".")[0] in {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal"}
    ]
    wrong += [place(m, line) for m in modules().values() for name, line in calls(m) if name in ("torch.load", "eval", "exec")]
    assert wrong == []


def test_no_error_is_swallowed_whole() -> None:
    wrong = []
    for module in modules().values():
        for node in ast.walk(module.tree):
            if not isinstance(node, ast.ExceptHandler):
                continue
            broad = node.type is None or ast.unparse(node.type) in ("Exception", "BaseException")
            if broad and all(isinstance(s, ast.Pass | ast.Continue) for s in node.body):
                wrong.append(place(module, node.lineno))
        wrong += [
            place(module, node.lineno)
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Call)
            and ast.unparse(node.func).endswith("suppress")
            and {ast.unparse(a) for a in node.args} & {"Exception", "BaseException"}
        ]
    assert wrong == []


def test_only_commands_print() -> None:
    wrong = [
        place(m, line)
        for m in modules().values()
        if m.part not in PRINTING
        for name, line in calls(m)
        if name in ("print", "pprint", "breakpoint", "input")
    ]
    assert wrong == []


def test_queues_have_a_bound() -> None:
    wrong = []
    for module in modules().values():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Call) and re.fullmatch(r"(\w+\.)?(Queue|LifoQueue|PriorityQueue)", ast.unparse(node.func)):
                if not node.args and not any(k.arg == "maxsize" for k in node.keywords):
                    wrong.append(place(module, node.lineno))
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("SimpleQueue"):
                wrong.append(place(module, node.lineno))
    assert wrong == []


def test_modules_are_short() -> None:
    lengths = {m.name: len(m.path.read_text().splitlines()) for m in modules().values()}
    assert {name: length for name, length in lengths.items() if length > MAX_MODULE_LINES} == {}


def test_functions_are_short() -> None:
    long = {
        place(module, node.lineno): node.end_lineno - node.lineno + 1
        for module in modules().values()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > MAX_FUNCTION_LINES
    }
    assert long == {}


def test_nothing_is_left_unfinished() -> None:
    wrong = [name for name, text in tracked_texts() if UNFINISHED.search(text)]
    assert wrong == []
    stubs = [
        place(module, node.lineno)
        for module in modules().values()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Raise) and node.exc is not None and "NotImplementedError" in ast.unparse(node.exc)
    ]
    assert stubs == []


@pytest.mark.parametrize("pattern", [MACHINE_PATHS, PROCESS_WORDS], ids=["machine paths", "process words"])
def test_the_project_speaks_of_itself_only(pattern: re.Pattern[str]) -> None:
    wrong = [
        f"{name}:{number}: {match[0]}"
        for name, text in tracked_texts()
        if name != "LICENSE"
        for number, line in enumerate(text.splitlines(), 1)
        if (match := pattern.search(line))
    ]
    assert wrong == []
