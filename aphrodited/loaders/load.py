"""load_model: from a path and a few words of configuration to a model that is ready to run."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Literal

import torch

from aphrodited.errors import ModelLoadError
from aphrodited.layers.int8_weight import PackingThread
from aphrodited.layers.linear import Linear, MakeProjection
from aphrodited.layers.quantized_linear import QuantizedLinear, can_quantize
from aphrodited.loaders.checkpoint import Checkpoint, CheckpointWeights
from aphrodited.loaders.device_weights import DeviceWeights
from aphrodited.loaders.dummy import DummyWeights, dummy_architecture
from aphrodited.loaders.gguf_checkpoint import GgufCheckpoint
from aphrodited.loaders.hub import fetch_snapshot, is_hub_id
from aphrodited.loaders.identity import fingerprint
from aphrodited.loaders.safetensors_files import SafetensorsCheckpoint
from aphrodited.log import get_logger
from aphrodited.models.build import build_model, ignored_tensors
from aphrodited.models.causal_lm import CausalLM

LoadFormat = Literal["auto", "safetensors", "gguf", "dummy"]
Quantization = Literal["none", "int8"]
Report = Callable[[float, str], None]

CPU = torch.device("cpu")
BFLOAT16_CAPABILITY = (8, 0)  # GPUs before that have no products in bfloat16

log = get_logger()


def load_model(
    path: Path,
    *,
    load_format: LoadFormat = "auto",
    dtype: str = "auto",
    quantization: Quantization = "none",
    device: torch.device = CPU,
    cache_dir: Path | None = None,
    report: Report,
) -> CausalLM:
    """A model out of a .gguf file, a Hugging Face directory or a hub id; out of nothing if load_format is dummy.

    cache_dir: for compiled kernels.  report(progress from 0 to 1, what is read) is called for every tensor.
    Raises ModelLoadError, naming file and tensor, before anything could be answered with wrong numbers.
    """
    model_dtype, make_projection = _resolve_dtype(dtype, device), _resolve_quantization(quantization)
    weights: CheckpointWeights | DummyWeights
    if load_format == "dummy":
        config = dummy_architecture(path)
        weights = DummyWeights(lambda: report(0.5, "making random weights"), make_projection)
        identity = weights.identity
    else:
        report(0.0, str(path))
        checkpoint = _open_checkpoint(path, load_format)
        config, identity = checkpoint.config, checkpoint.identity
        weights = CheckpointWeights(checkpoint, report, make_projection)
    if device != CPU:
        identity = f"{identity} on {torch.cuda.get_device_name(device)}"
    model = build_model(
        config,
        weights if device == CPU else DeviceWeights(weights, device, model_dtype),
        fingerprint=fingerprint(config, identity, model_dtype, quantization),
        cache_dir=cache_dir,
    )
    weights.finish(ignored_tensors(config))
    log.info(
        "model_loaded",
        path=str(path),
        architecture=model.config.architecture.value,
        quantization=quantization,
        fingerprint=model.fingerprint,
        deterministic=model.deterministic,
    )
    return model


def _open_checkpoint(path: Path, load_format: LoadFormat) -> Checkpoint:
    if is_hub_id(path):
        path = fetch_snapshot(str(path))
    if path.is_dir():
        if load_format == "gguf":
            raise ModelLoadError(f"{path}: is a directory; load_format gguf needs the path of a .gguf file")
        return SafetensorsCheckpoint(path)
    if not path.exists():
        raise ModelLoadError(f"{path}: there is no such file or directory")
    if load_format == "safetensors":
        raise ModelLoadError(f"{path}: is a file; load_format safetensors needs a model directory")
    return GgufCheckpoint(path)


def _resolve_dtype(dtype: str, device: torch.device) -> torch.dtype:
    """On the CPU float32, on a GPU bfloat16 if it can, whatever the checkpoint's format.

    In float32 on the CPU a request's bits do not depend on its neighbours, which resumed streams rely on, and on CPUs without
    bfloat16 arithmetic it is also faster (measured: 11-18 against 95-142 GFLOP/s).
    """
    if device != CPU:
        has_bfloat16 = torch.cuda.get_device_capability(device) >= BFLOAT16_CAPABILITY
        return torch.bfloat16 if dtype == "bfloat16" or (dtype == "auto" and has_bfloat16) else torch.float32
    if dtype in ("auto", "float32"):
        return torch.float32
    raise ModelLoadError(f"dtype {dtype} is not supported on the CPU; use float32 or auto")


def _resolve_quantization(quantization: Quantization) -> MakeProjection:
    """What makes projections. Raises ModelLoadError where this machine has no int8 products."""
    if quantization == "none":
        return Linear
    if not can_quantize():
        raise ModelLoadError("quantization int8 is not supported on this CPU or by this build of torch; use none")
    return partial(QuantizedLinear, packing=PackingThread())
