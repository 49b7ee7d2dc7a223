import msgspec
import pytest

from aphrodited.config.schema import Config, EngineConfig, ModelConfig
from aphrodited.engine import standby_choice
from aphrodited.engine.standby_choice import BYTES_PER_WEIGHT, LIBRARIES, decide_standbys, engine_bytes

MIB = 1024**2
KV = 100 * MIB
NEED = LIBRARIES + 4 * MIB * BYTES_PER_WEIGHT + KV  # of the model below: four million weights
PLENTY = 64 * 1024 * MIB


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch, tmp_path):
    monkeypatch.setattr(standby_choice, "GPU_DRIVER", tmp_path / "nothing")


@pytest.fixture
def folder(tmp_path):
    """A directory of two safetensors files, of which only the heads are read."""
    for name, shape in (("a", [3, MIB]), ("b", [MIB])):
        head = msgspec.json.encode({"__metadata__": {"format": "pt"}, name: {"dtype": "F16", "shape": shape, "data_offsets": [0, 0]}})
        (tmp_path / f"{name}.safetensors").write_bytes(len(head).to_bytes(8, "little") + head)
    return tmp_path


def model(path, name="m", **fields):
    return ModelConfig(name, str(path), engine=EngineConfig(kv_cache_memory=KV), **fields)


def decide(available_bytes, *models):
    config, notes = decide_standbys(Config(models=models), available_bytes)
    return [model.standby for model in config.models], notes


def test_an_engine_takes_its_weights_its_cache_and_the_libraries(folder):
    assert engine_bytes(model(folder), PLENTY) == NEED


def test_an_automatic_cache_is_counted_as_large_as_it_may_become(folder):
    assert engine_bytes(ModelConfig("m", str(folder)), 1000 * MIB) == NEED - KV + 250 * MIB


@pytest.mark.parametrize(("available_bytes", "standby"), [(2 * NEED, 1), (2 * NEED - 1, 0)])
def test_a_standby_is_kept_where_two_engines_fit(folder, available_bytes, standby):
    standbys, (note,) = decide(available_bytes, model(folder))
    assert standbys == [standby]
    assert "an engine takes about 0.6 GiB" in note


def test_what_was_given_is_kept(folder):
    assert decide(0, model(folder, standby=3)) == ([3], [])
    assert decide(PLENTY, model(folder, standby=0)) == ([0], [])


def test_every_model_gets_its_engine_before_any_gets_a_standby(folder):
    models = model(folder, "a"), model(folder, "b"), model(folder, "c", standby=1)
    assert decide(4 * NEED, *models)[0] == [0, 0, 1]
    assert decide(5 * NEED, *models)[0] == [1, 0, 1]
    assert decide(6 * NEED, *models)[0] == [1, 1, 1]


def test_what_computes_nothing_or_cannot_be_known_has_none(folder, tmp_path):
    (tmp_path / "damaged.gguf").write_bytes(b"GGUF")
    for unknown in (
        model(folder, backend="null"),
        model("org/model"),
        model(tmp_path / "damaged.gguf"),
        model(tmp_path / "missing.gguf"),
    ):
        assert decide(PLENTY, unknown) == ([0], [])


@pytest.mark.parametrize(
    ("fields", "standby"),
    [({"device": "cuda:0"}, 0), ({}, 0), ({"device": "cpu"}, 1), ({"quantization": "int8"}, 1)],
)
def test_what_runs_on_a_gpu_has_none(folder, monkeypatch, fields, standby):
    monkeypatch.setattr(standby_choice, "GPU_DRIVER", folder)
    assert decide(PLENTY, model(folder, **fields))[0] == [standby]
