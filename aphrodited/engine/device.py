"""Which device a model computes on, and what becomes of an engine whose GPU fails. Knows no model and no batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from aphrodited.config.schema import ModelConfig
from aphrodited.engine.aphrodite_engine import Runner
from aphrodited.engine.pooling import Pooled
from aphrodited.engine.scheduler import ScheduledBatch
from aphrodited.errors import ConfigError, DeviceLostError
from aphrodited.sampling.sampled import Sampled

CPU = torch.device("cpu")


def resolve_device(config: ModelConfig) -> torch.device:
    """The configured device; for auto the first GPU if torch can use one and the model may. Raises ConfigError."""
    is_for_cpu = config.quantization != "none"
    if config.device == "cpu" or (config.device == "auto" and (is_for_cpu or not torch.cuda.is_available())):
        return CPU
    if is_for_cpu:
        raise ConfigError(
            f"model {config.name}: quantization {config.quantization} is made for the CPU;"
            " set quantization to none, or device to cpu"
        )
    if not torch.cuda.is_available():
        raise ConfigError(
            f"model {config.name}: device is {config.device}, but torch {torch.__version__} finds no GPU:"
            " install NVIDIA's driver and a build of torch for CUDA, or set device to cpu or auto"
        )
    device = torch.device("cuda:0" if config.device == "auto" else config.device)
    if device.index >= torch.cuda.device_count():
        raise ConfigError(
            f"model {config.name}: device is {device}, but the last GPU here is cuda:{torch.cuda.device_count() - 1}"
        )
    return device


def free_gpu_memory(device: torch.device) -> int:
    """Bytes that a process may still take there."""
    free, _ = torch.cuda.mem_get_info(device)
    return int(free)


class GpuRunner:
    """A Runner on a GPU: makes it the calling thread's, and says so if it fails."""

    def __init__(self, runner: Runner, device: torch.device) -> None:
        self._runner = runner
        self._device = device

    def execute(self, batch: ScheduledBatch, on_progress: Callable[[], None]) -> Iterable[Sampled | Pooled]:
        """Raises DeviceLostError."""
        try:
            with torch.cuda.device(self._device):
                return self._runner.execute(batch, on_progress)
        except torch.AcceleratorError as error:
            raise DeviceLostError(f"{self._device} failed: {str(error).partition(chr(10))[0]}") from error

    def close(self) -> None:
        self._runner.close()
