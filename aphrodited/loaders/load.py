"""load_model: from a path and a few words of configuration to a model that is ready to run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import torch

from aphrodited.errors import ModelLoadError
from aphrodited.hub_cache import is_hub_id
from aphrodited.layers import linear, quantized_linear, step_program
from aphrodited.layers.huge_pages import HugePageArena
from aphrodited.layers.linear import Linear, MakeProjection
from aphrodited.layers.packing import PackingThread
from aphrodited.layers.paged_attention import (
    MakeAttention,
    PagedAttention,
    cache_dtypes,
    kernels_version,
    load_kernels,
    preload_kernels,
)
from aphrodited.layers.quantized_linear import QuantizedLinear, can_quantize
from aphrodited.loaders.checkpoint import Checkpoint, CheckpointWeights
from aphrodited.loaders.device_weights import DeviceWeights
from aphrodited.loaders.dummy import DummyWeights, dummy_architecture
from aphrodited.loaders.gguf_checkpoint import GgufCheckpoint
from aphrodited.loaders.hub import fetch_snapshot
from aphrodited.loaders.identity import fingerprint
from aphrodited.loaders.kept_weights import KeepingWeights, KeptWeights, kept_file
from aphrodited.loaders.safetensors_files import SafetensorsCheckpoint
from aphrodited.log import get_logger
from aphrodited.models.build import build_model, ignored_tensors
from aphrodited.models.causal_lm import CausalLM
from aphrodited.models.config import ModelArchitecture
from aphrodited.models.weights import Weights

LoadFormat = Literal["auto", "safetensors", "gguf", "dummy"]
Quantization = Literal["none", "int8"]
Report = Callable[[float, str], None]

CPU = torch.device("cpu")
GENTLE_SHARE = 0.2  # of a core, for what goes on after loading
BFLOAT16_CAPABILITY = (8, 0)  # GPUs before that have no products in bfloat16

log = get_logger()


def load_model(
    path: Path,
    *,
    load_format: LoadFormat = "auto",
    dtype: str = "auto",
    quantization: Quantization = "none",
    device: torch.device = CPU,
    max_positions: int | None = None,
    cache_dir: Path | None = None,
    report: Report,
    gently: bool = False,
) -> CausalLM:
    """A model out of a .gguf file, a Hugging Face directory or a hub id; out of nothing if load_format is dummy.

    max_positions: tokens of the longest sequence that will be computed; None: as many as the model can.
    cache_dir: for compiled kernels and rounded weights.  report(progress from 0 to 1, what is read) is called for every
    tensor or projection.  gently: another engine needs the processor, also after this one has loaded.
    Raises ModelLoadError, naming file and tensor, before anything could be answered with wrong numbers.
    """
    model_dtype = _resolve_dtype(dtype, device)
    if quantization == "int8":
        load_kernels(cache_dir)  # before anything else imports numba, which reads once where kernels are kept
    arena = HugePageArena()
    with PackingThread() as packing:
        report = _rising(report)
        make_projection = _resolve_quantization(quantization, arena, packing)
        cache_dtype = cache_dtypes()[-1] if quantization == "int8" else torch.float32
        make_attention = partial(PagedAttention, cache_dtype=cache_dtype)
        weights, config, identity = _open_weights(path, load_format, make_projection, make_attention, report)
        if device != CPU:
            identity = f"{identity} on {torch.cuda.get_device_name(device)}"
        identify = partial(fingerprint, config, identity, model_dtype, quantization)
        file = None
        if quantization == "int8" and device == CPU and cache_dir is not None and load_format != "dummy":
            file = kept_file(cache_dir, path, identify(kernels_version()))
        kept = None if file is None else file.read()
        source: Weights = weights if device == CPU else DeviceWeights(weights, device, model_dtype)
        if file is not None:
            source = KeepingWeights(weights) if kept is None else KeptWeights(weights, kept, report, arena)
        rounds = quantization == "int8" and kept is None  # by kernels
        with _kernels_loading(cache_dir, quantization, cache_dtype, beside=device == CPU and not rounds):
            model = build_model(config, source, max_positions=max_positions, cache_dir=cache_dir)
            if kept is None:  # what is kept was made of weights that had been checked
                weights.finish(ignored_tensors(config))
    arena.collapse(model.rested_s, share=GENTLE_SHARE if gently else 1.0)
    model.fingerprint = identify(model.kernel)
    if file is not None and isinstance(source, KeepingWeights):
        source.keep(file)
    log.info(
        "model_loaded",
        path=str(path),
        architecture=model.config.architecture.value,
        quantization=quantization,
        fingerprint=model.fingerprint,
        deterministic=not model.nondeterminism,
        nondeterminism=model.nondeterminism,
    )
    return model


@contextmanager
def _kernels_loading(
    cache_dir: Path | None, quantization: Quantization, cache_dtype: torch.dtype, *, beside: bool
) -> Iterator[None]:
    """Load the kernels in a thread beside the block, which must run none; without `beside` do nothing."""
    if not beside:
        yield
        return
    with ThreadPoolExecutor(1, "kernels") as executor:
        loading = executor.submit(_preload_kernels, cache_dir, quantization, cache_dtype)
        yield
        loading.result()


def _preload_kernels(cache_dir: Path | None, quantization: Quantization, cache_dtype: torch.dtype) -> None:
    preload_kernels(cache_dir, cache_dtype)
    (quantized_linear if quantization == "int8" else linear).compile_kernels()
    step_program.preload_kernel(cache_dtype)
    if find_spec("numba") is not None:
        from aphrodited.layers import ggml_kernels  # late, see quantized_linear

        ggml_kernels.compile_kernels()


def _rising(report: Report) -> Report:
    """The same, with a progress that never falls, whoever reports."""
    highest = 0.0

    def rise(progress: float, what: str) -> None:
        nonlocal highest
        highest = max(highest, progress)
        report(highest, what)

    return rise


def _open_weights(
    path: Path, load_format: LoadFormat, make_projection: MakeProjection, make_attention: MakeAttention, report: Report
) -> tuple[CheckpointWeights | DummyWeights, ModelArchitecture, str]:
    """The weights, the shape of their model, and what they are: differs if any value may differ."""
    if load_format == "dummy":
        dummy = DummyWeights(lambda: report(0.5, "making random weights"), make_projection, make_attention)
        return dummy, dummy_architecture(path), dummy.identity
    report(0.0, str(path))
    checkpoint = _open_checkpoint(path, load_format)
    return CheckpointWeights(checkpoint, report, make_projection, make_attention), checkpoint.config, checkpoint.identity


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

    In float32 on the CPU a request's bits do not depend on its neighbours, which resumed streams rely on. It is faster on CPUs
    without bfloat16 arithmetic (95-142 against 11-18 GFLOP/s); with it, conversions leave a third to gain in large products, and
    int8 gains more (docs/performance.md).
    """
    if device != CPU:
        has_bfloat16 = torch.cuda.get_device_capability(device) >= BFLOAT16_CAPABILITY
        return torch.bfloat16 if dtype == "bfloat16" or (dtype == "auto" and has_bfloat16) else torch.float32
    if dtype in ("auto", "float32"):
        return torch.float32
    raise ModelLoadError(f"dtype {dtype} is not supported on the CPU; use float32 or auto")


def _resolve_quantization(quantization: Quantization, arena: HugePageArena, packing: PackingThread) -> MakeProjection:
    """What makes projections, with their weights in the arena and packed in that thread.

    Raises ModelLoadError where this machine has no int8 products.
    """
    if quantization == "none":
        return partial(Linear, arena=arena, packing=packing)
    if not can_quantize():
        raise ModelLoadError("quantization int8 is not supported on this CPU or by this build of torch; use none")
    return partial(QuantizedLinear, arena=arena)
