"""docs/migration.md, executed: its two programs as they stand, and each promise it makes."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest

from aphrodited import (
    ENGINE_DEAD_ERROR,
    AsyncAphrodite,
    ModelConfig,
    MQAphroditeEngineClient,
    MQClientClosedError,
    SamplingParams,
    launch_engine,
)
from aphrodited.config.schema import MqConfig
from tests.support.tiny_models import write_tiny_llama_dir

GUIDE = Path(__file__).parents[2] / "docs" / "migration.md"
PROGRAMS = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
PROMPT = [30, 31, 32]
RAISE = 1


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama_dir(tmp_path_factory.mktemp("model"))


@pytest.fixture
def engine_config(model_dir: Path) -> ModelConfig:
    return ModelConfig(name="tiny", path=str(model_dir), backend="null")


@pytest.mark.parametrize("program", PROGRAMS, ids=["before", "after"])
def test_each_program_of_the_guide_runs_as_it_stands(program: str, model_dir: Path, tmp_path: Path) -> None:
    assert len(PROGRAMS) == 2
    script = tmp_path / "program.py"
    script.write_text(program.replace("SmolLM2-135M-Instruct.Q4_1.gguf", str(model_dir)))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False, timeout=55)
    assert done.returncode == 0, done.stderr
    assert "died" not in done.stdout
    assert done.stdout.strip()
    assert done.stdout.endswith("closed\n") == ("MQClientClosedError" in program)


async def test_both_sides_of_the_guide_give_the_same_answer(model_dir: Path) -> None:
    engine_config = ModelConfig(name="tiny", path=str(model_dir))
    sampling_params = SamplingParams(temperature=0.0, max_tokens=7)
    engine = AsyncAphrodite.from_engine_args(engine_config)
    before = [output.outputs[0].new_text async for output in engine.generate("the dog", sampling_params, "r")]
    engine.close()
    with launch_engine(engine_config) as ipc_path:
        engine_client = MQAphroditeEngineClient(ipc_path, engine_config)
        after = [output.outputs[0].new_text async for output in engine_client.generate("the dog", sampling_params, "r")]
        engine_client.context.term()
    assert "".join(after) == "".join(before) != ""


async def test_an_engine_that_dies_raises_its_cause_everywhere(engine_config: ModelConfig) -> None:
    vocab_size = 131072
    poison = [vocab_size - 1, vocab_size - 1, RAISE, 2]
    with launch_engine(ModelConfig(name="tiny", path="/nowhere", backend="null")) as ipc_path:
        engine_client = MQAphroditeEngineClient(ipc_path, ModelConfig(name="tiny", path="/nowhere", backend="null"))
        await engine_client.check_health()
        with pytest.raises(ENGINE_DEAD_ERROR) as died:
            async for _ in engine_client.generate(poison, SamplingParams(max_tokens=100), "r"):
                pass
        assert "asked to fail" in str(died.value.cause)
        with pytest.raises(ENGINE_DEAD_ERROR, match="asked to fail"):
            await engine_client.check_health()
        await engine_client.abort("r")
        assert engine_client.errored
        engine_client.context.term()


async def test_aborting_from_beside_ends_the_stream(engine_config: ModelConfig) -> None:
    with launch_engine(engine_config, MqConfig(async_sockets=True)) as ipc_path:
        engine_client = MQAphroditeEngineClient(ipc_path, engine_config)
        outputs = []
        async for output in engine_client.generate(PROMPT, SamplingParams(max_tokens=None, ignore_eos=True), "r"):
            outputs.append(output)
            await engine_client.abort("r")
        assert outputs[-1].finished
        assert outputs[-1].outputs[0].finish_reason == "abort"
        await engine_client.abort("r")
        await engine_client.abort("never was")
        engine_client.context.term()


async def test_after_term_every_call_says_closed(engine_config: ModelConfig) -> None:
    with launch_engine(engine_config) as ipc_path:
        engine_client = MQAphroditeEngineClient(ipc_path, engine_config)
        waiting = asyncio.ensure_future(
            anext(engine_client.generate(PROMPT, SamplingParams(max_tokens=None, ignore_eos=True), "r"))
        )
        await engine_client.check_health()
        engine_client.context.term()
        assert engine_client.context.closed
        with pytest.raises(MQClientClosedError):
            await waiting
        for call in (engine_client.check_health, engine_client.do_log_stats):
            with pytest.raises(MQClientClosedError):
                await call()
        with pytest.raises(MQClientClosedError):
            await engine_client.abort("r")
