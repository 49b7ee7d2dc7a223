"""What a process loads by importing a module: seen in a fresh interpreter."""

from __future__ import annotations

import subprocess
import sys

import pytest

import aphrodited

HEAVY = {"torch", "numba", "zmq", "aiohttp", "supervisor", "transformers", "numpy"}


def loaded_by(statement: str, names: set[str]) -> set[str]:
    code = f"import sys\n{statement}\nprint(*({names!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=50)
    return set(done.stdout.split())


def test_the_root_package_loads_nothing_heavy() -> None:
    assert loaded_by("import aphrodited; dir(aphrodited)", HEAVY | {"msgspec", "yaml", "structlog"}) == set()


@pytest.mark.parametrize(
    "module",
    [
        "aphrodited.api",
        "aphrodited.mq.client",
        "aphrodited.workers.api",
        "aphrodited.workers.monitor",
        "aphrodited.cli.aphrodited",
        "aphrodited.engine.scheduler",
        "aphrodited.engine.null_backend",
        "aphrodited.tokenizer",
    ],
)
def test_what_only_talks_never_loads_torch(module: str) -> None:
    assert loaded_by(f"import {module}", {"torch", "numba"}) == set()


def test_all_that_the_supervisor_loads_is_small() -> None:
    modules = ("aphrodited.cli.aphrodited", "aphrodited.engine.standby_choice", "aphrodited.supervision.supervise")
    assert loaded_by("\n".join(f"import {module}" for module in modules), HEAVY - {"supervisor"}) == set()


def test_every_public_torch_free_name_resolves_without_torch() -> None:
    names = ["MQAphroditeEngineClient", "MQAphroditeEngine", "ENGINE_DEAD_ERROR", "SamplingParams", "launch_engine"]
    statement = f"import aphrodited\nfor name in {names}: getattr(aphrodited, name)"
    assert loaded_by(statement, {"torch"}) == set()


@pytest.mark.parametrize("name", aphrodited.__all__)
def test_public_name_resolves(name: str) -> None:
    assert getattr(aphrodited, name).__name__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        aphrodited.Nonsense  # noqa: B018


@pytest.mark.parametrize("command", ["status", "logs", "events"])
def test_the_operators_command_stays_light(command: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("ctl")
    config = folder / "a.yaml"
    config.write_text("models: [{name: m, path: hub/m}]\npaths: {runtime_dir: run, state_dir: state}\n")
    statement = (
        "import contextlib, io\n"
        "from aphrodited.cli.aphroditectl import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):\n"
        f"    main(['--config', {str(config)!r}, {command!r}])"
    )
    assert loaded_by(statement, HEAVY | {"rich", "structlog", "asyncio"}) == set()
