from contextlib import nullcontext

import pytest
import torch

from aphrodited.config.schema import ModelConfig
from aphrodited.engine.device import GpuRunner, resolve_device
from aphrodited.engine.scheduler import ScheduledBatch
from aphrodited.errors import EXIT_DEVICE_LOST, ConfigError, DeviceLostError
from aphrodited.workers.engine import exit_code_of


def device_of(**options):
    return str(resolve_device(ModelConfig(name="m", path="p", **options)))


@pytest.fixture
def gpus(monkeypatch):
    """Says how many there are."""

    def set_number(number):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: number > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: number)

    return set_number


def test_auto_is_the_first_gpu_or_else_the_cpu(gpus):
    gpus(0)
    assert device_of() == "cpu"
    gpus(2)
    assert device_of() == "cuda:0"


def test_what_is_made_for_the_cpu_stays_there(gpus):
    gpus(1)
    assert device_of(quantization="int8") == "cpu"
    with pytest.raises(ConfigError, match="int8 is made for the CPU"):
        device_of(quantization="int8", device="cuda:0")


def test_the_cpu_and_any_gpu_can_be_chosen(gpus):
    gpus(2)
    assert device_of(device="cpu") == "cpu"
    assert device_of(device="cuda:1") == "cuda:1"


def test_a_gpu_that_is_not_there_is_an_error_that_says_what_to_do(gpus):
    gpus(0)
    with pytest.raises(ConfigError, match=r"model m: device is cuda:0, .*set device to cpu or auto"):
        device_of(device="cuda:0")
    gpus(2)
    with pytest.raises(ConfigError, match="the last GPU here is cuda:1"):
        device_of(device="cuda:2")


class LostDevice:
    def execute(self, batch, on_progress):
        raise torch.AcceleratorError("CUDA error: unspecified launch failure\nmore lines")

    def close(self):
        pass


def test_a_gpu_that_fails_ends_the_engine_with_a_code_of_its_own(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    with pytest.raises(DeviceLostError, match=r"^cuda:0 failed: CUDA error: unspecified launch failure$") as caught:
        GpuRunner(LostDevice(), torch.device("cuda:0")).execute(ScheduledBatch(), lambda: None)
    assert exit_code_of(caught.value) == EXIT_DEVICE_LOST
