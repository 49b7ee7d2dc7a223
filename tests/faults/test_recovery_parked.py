"""Models that cannot be loaded: parked at once with the reason, while the others serve; back when they are mended."""

import shutil
import time

import pytest

from aphrodited.paths import engine_program
from aphrodited.supervision.ledger import Ledger, Reset, stamp
from tests.support.daemons import wait_until
from tests.support.real_daemon import RealDaemon
from tests.support.tiny_models import write_tiny_llama_dir

LOAD_S = 90  # torch on a busy machine
MISSING, DAMAGED = engine_program("missing", 0), engine_program("damaged", 0)


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    return write_tiny_llama_dir(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def daemon(tmp_path, weights):
    shutil.copytree(weights, tmp_path / "damaged")
    file = tmp_path / "damaged" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    daemon = RealDaemon(embedded={"missing": tmp_path / "nowhere.gguf", "damaged": tmp_path / "damaged"})
    daemon.start()
    yield daemon
    daemon.close()


def model_status(daemon, name):
    return next(model for model in daemon.status().models if model.name == name)


@pytest.mark.timeout(200)
def test_models_that_cannot_be_loaded_are_parked_while_another_serves(daemon, tmp_path, weights):
    wait_until(lambda: model_status(daemon, "tiny").state == "ready", LOAD_S, "the good model")
    for name in ("missing", "damaged"):
        wait_until(lambda name=name: model_status(daemon, name).state == "parked", LOAD_S, f"{name} to be parked")
        assert model_status(daemon, name).next_try_s > 60
    assert "nowhere.gguf" in model_status(daemon, "missing").reason
    assert "model.safetensors" in model_status(daemon, "damaged").reason
    assert daemon.complete()[0] == 200
    assert daemon.complete(model="missing")[0] == 503
    assert_readiness_is_honest(daemon)
    assert_no_hot_loop(daemon)
    mend_and_reset(daemon, tmp_path, weights)


def assert_readiness_is_honest(daemon):
    status = daemon.status()
    assert (status.ready, status.state) == (False, "degraded")
    code, body = daemon.get("/readyz")
    assert (code, body["models"]["tiny"]["state"], body["models"]["damaged"]["state"]) == (200, "ready", "parked")
    assert daemon.get("/readyz?model=damaged")[0] == 503
    code, body = daemon.get("/readyz", daemon.monitor_port)
    assert (code, sorted(body["parked"])) == (200, ["damaged", "missing"])
    assert body["models"]["damaged"]["reason"] == model_status(daemon, "damaged").reason
    assert daemon.get("/readyz?model=damaged", daemon.monitor_port)[0] == 503


def assert_no_hot_loop(daemon):
    pids, num_deaths = daemon.pids(), len(daemon.deaths())
    time.sleep(2)
    assert daemon.pids() == pids
    assert len(daemon.deaths()) == num_deaths == 2
    assert {(death.program, death.code) for death in daemon.deaths()} == {(MISSING, 78), (DAMAGED, 78)}


def mend_and_reset(daemon, tmp_path, weights):
    shutil.copy(weights / "model.safetensors", tmp_path / "damaged" / "model.safetensors")
    Ledger(daemon.paths.ledger).append(Reset(**stamp(DAMAGED)))
    wait_until(lambda: model_status(daemon, "damaged").state == "ready", LOAD_S, "the mended model")
    assert daemon.complete(model="damaged", max_tokens=4)[0] == 200
    assert model_status(daemon, "missing").state == "parked"
