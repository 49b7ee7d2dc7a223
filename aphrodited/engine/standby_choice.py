"""Decides what `standby: auto` means on this machine: one more engine where the memory holds it, else none.

An engine is taken to need its weights in float32 and half as much to read them, its KV cache in full, and what the
libraries take. Only heads of files are read. Loads no torch: the daemon asks before anything is started.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path

import msgspec

from aphrodited.config.schema import Config, ModelConfig
from aphrodited.engine.capacity import AUTO_MEMORY_LIMIT, AUTO_MEMORY_SHARE
from aphrodited.errors import ModelLoadError
from aphrodited.gguf_file import read_head

LIBRARIES = 500 * 1024**2
BYTES_PER_WEIGHT = 6  # float32, and what reading them leaves behind; less with quantization
MAX_HEADER = 100 * 1024**2  # bytes of a safetensors header; the format's own limit
GPU_DRIVER = Path("/dev/nvidiactl")


class _TensorHead(msgspec.Struct):
    shape: tuple[int, ...] = ()


def decide_standbys(config: Config, available_bytes: int) -> tuple[Config, list[str]]:
    """The configuration with every `standby: auto` replaced by a number, and a sentence about each.

    available_bytes: memory that the daemon's processes may take. The first models get theirs first.
    """
    needs = {model.name: engine_bytes(model, available_bytes) for model in config.models}
    left = available_bytes - sum((needs[model.name] or 0) * (1 + model.num_standbys) for model in config.models)
    models, notes = [], []
    for model in config.models:
        if model.standby == "auto":
            need = needs[model.name]
            fits = need is not None and need <= left
            left -= need if need is not None and fits else 0
            model = msgspec.structs.replace(model, standby=1 if fits else 0)
            if need is not None:
                about = f"an engine takes about {_gib(need)}, {_gib(available_bytes)} were free"
                notes.append(f"{model.name}: {'one standby' if fits else 'no standby'} (auto): {about}")
        models.append(model)
    return msgspec.structs.replace(config, models=tuple(models)), notes


def engine_bytes(model: ModelConfig, available_bytes: int) -> int | None:
    """About how much memory an engine takes; None if it computes nothing, or not on the CPU, or cannot be known."""
    if model.backend != "embedded" or _is_for_gpu(model):
        return None
    num_weights = _count_weights(Path(model.path))
    if num_weights is None:
        return None
    kv_cache = model.engine.kv_cache_memory
    auto_kv_cache = min(int(available_bytes * AUTO_MEMORY_SHARE), AUTO_MEMORY_LIMIT)
    return LIBRARIES + num_weights * BYTES_PER_WEIGHT + (auto_kv_cache if kv_cache == "auto" else kv_cache)


def _is_for_gpu(model: ModelConfig) -> bool:
    if model.device != "auto":
        return model.device != "cpu"
    return model.quantization == "none" and GPU_DRIVER.exists()


def _count_weights(path: Path) -> int | None:
    """By the heads of the model's files; None if they are not here or cannot be read: the engine will say why."""
    try:
        if path.is_file():
            return sum(math.prod(tensor.shape) for tensor in read_head(path, lambda _key: False).tensors)
        files = list(path.glob("*.safetensors"))
        return sum(map(_count_safetensors, files)) if files else None
    except (OSError, ModelLoadError, ValueError, struct.error, msgspec.DecodeError):
        return None


def _count_safetensors(path: Path) -> int:
    """https://github.com/huggingface/safetensors: 8 bytes of length, then JSON, each tensor with its shape."""
    with path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        if size > MAX_HEADER:
            raise ValueError(f"{path}: a header of {size} bytes")
        heads = msgspec.json.decode(file.read(size), type=dict[str, _TensorHead])
    return sum(math.prod(head.shape) for name, head in heads.items() if name != "__metadata__")


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 1024**3:.1f} GiB"
