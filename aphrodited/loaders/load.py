"""load_model: from a path and a few words of configuration to a model that is ready to run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch

from aphrodited.errors import ModelLoadError
from aphrodited.loaders.checkpoint import Checkpoint, CheckpointWeights
from aphrodited.loaders.dummy import DummyWeights, dummy_architecture
from aphrodited.loaders.gguf_checkpoint import GgufCheckpoint
from aphrodited.loaders.hub import fetch_snapshot, is_hub_id
from aphrodited.loaders.identity import fingerprint
from aphrodited.loaders.safetensors_files import SafetensorsCheckpoint
from aphrodited.log import get_logger
from aphrodited.models.build import build_model, ignored_tensors
from aphrodited.models.causal_lm import CausalLM

LoadFormat = Literal["auto", "safetensors", "gguf", "dummy"]
Report = Callable[[float, str], None]

log = get_logger()


def load_model(
    path: Path, *, load_format: LoadFormat = "auto", dtype: str = "auto", cache_dir: Path | None = None, report: Report
) -> CausalLM:
    """A model out of a .gguf file, a Hugging Face directory or a hub id; out of nothing if load_format is dummy.

    cache_dir: for compiled kernels.  report(progress from 0 to 1, what is read) is called for every tensor.
    Raises ModelLoadError, naming file and tensor, before anything could be answered with wrong numbers.
    """
    model_dtype = _resolve_dtype(dtype)
    if load_format == "dummy":
        return _load_dummy(path, model_dtype, cache_dir, report)
    report(0.0, str(path))
    checkpoint = _open_checkpoint(path, load_format)
    weights = CheckpointWeights(checkpoint, report)
    model = build_model(
        checkpoint.config,
        weights,
        fingerprint=fingerprint(checkpoint.config, checkpoint.identity, model_dtype),
        cache_dir=cache_dir,
    )
    weights.finish(ignored_tensors(checkpoint.config))
    _log_loaded(model, path)
    return model


def _load_dummy(path: Path, dtype: torch.dtype, cache_dir: Path | None, report: Report) -> CausalLM:
    config = dummy_architecture(path)
    weights = DummyWeights(lambda: report(0.5, "making random weights"))
    model = build_model(
        config, weights, fingerprint=fingerprint(config, weights.identity, dtype), cache_dir=cache_dir
    )
    _log_loaded(model, path)
    return model


def _log_loaded(model: CausalLM, path: Path) -> None:
    log.info(
        "model_loaded",
        path=str(path),
        architecture=model.config.architecture.value,
        fingerprint=model.fingerprint,
        deterministic=model.deterministic,
    )


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


def _resolve_dtype(dtype: str) -> torch.dtype:
    """float32, whatever the checkpoint's format.

    In float32 a request's bits do not depend on its neighbours, which resumed streams rely on, and on CPUs without
    bfloat16 arithmetic it is also faster (measured: 11-18 against 95-142 GFLOP/s).
    """
    if dtype in ("auto", "float32"):
        return torch.float32
    raise ModelLoadError(f"dtype {dtype} is not supported on the CPU; use float32 or auto")
