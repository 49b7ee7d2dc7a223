"""The embedded engine: weights from disk, KV cache, scheduler and runner put together. Loads torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from aphrodited.config.schema import ModelConfig
from aphrodited.engine.aphrodite_engine import AphroditeEngine, Runner
from aphrodited.engine.capacity import Capacity, available_memory, max_positions, plan_capacity
from aphrodited.engine.decode_graphs import CudaGraphRecorder, GraphedModel
from aphrodited.engine.device import CPU, GpuRunner, free_gpu_memory, resolve_device
from aphrodited.engine.environment import engine_threads
from aphrodited.engine.kv_cache_pool import KVCachePool, kv_block_bytes
from aphrodited.engine.model_runner import CausalModel, ModelRunner
from aphrodited.engine.priority import run_with_low_priority
from aphrodited.engine.scheduler import create_scheduler
from aphrodited.errors import ConfigError
from aphrodited.grammar.grammars import Grammars
from aphrodited.interfaces import ModelFacts
from aphrodited.loaders import load_model
from aphrodited.log import get_logger

_LOADING_SHARE = 0.9  # of the progress reported; the rest is the warm-up

log = get_logger()


def create_embedded_backend(
    config: ModelConfig, cache_dir: Path, report: Callable[[float, str], None], *, gently: bool = False
) -> AphroditeEngine:
    """Load a model and run it once.

    report(progress from 0 to 1, what is being done).  gently: all of that with one thread, and with low priority what
    takes long.  Raises ConfigError, ModelLoadError.
    """
    device = resolve_device(config)
    if device != CPU:
        torch.cuda.set_device(device)  # of this thread, for what is compiled and recorded while loading
    num_threads = engine_threads(config)
    torch.set_num_threads(1 if gently else num_threads)
    load = partial(
        load_model,
        Path(config.path),
        load_format=config.load_format,
        dtype=config.dtype,
        quantization=config.quantization,
        device=device,
        max_positions=max_positions(config),
        cache_dir=cache_dir,
        report=lambda progress, what: report(progress * _LOADING_SHARE, what),
        gently=gently,
    )
    model = run_with_low_priority(load) if gently else load()
    report(_LOADING_SHARE, "warming up")
    engine = create_engine(config, model, lambda: report(_LOADING_SHARE, "warming up"))
    engine.on_progress = lambda: report(_LOADING_SHARE, "warming up")
    engine.warm_up()
    engine.on_progress = None
    torch.set_num_threads(num_threads)
    report(1.0, "ready")
    return engine


def create_engine(
    config: ModelConfig, model: CausalModel, on_progress: Callable[[], None] = lambda: None
) -> AphroditeEngine:
    """An engine around a loaded model. Raises ConfigError if its KV cache cannot hold what is configured."""
    architecture, engine, device = model.config, config.engine, model.device
    capacity = plan_capacity(
        config,
        max_position_embeddings=architecture.max_position_embeddings,
        block_bytes=kv_block_bytes(architecture, engine.block_size, model.cache_dtype),
        free_memory=available_memory() if device == CPU else free_gpu_memory(device),
        on_gpu=device != CPU,
        window=architecture.widest_window,
    )
    if capacity.max_model_len > model.num_positions:
        raise ConfigError(f"model {config.name} was loaded for {model.num_positions} tokens, not {capacity.max_model_len}")
    pool = KVCachePool(
        architecture, num_blocks=capacity.num_blocks, block_size=engine.block_size, device=device, dtype=model.cache_dtype
    )
    facts = ModelFacts(
        name=config.name,
        max_model_len=capacity.max_model_len,
        vocab_size=architecture.num_token_ids,
        eos_token_ids=tuple(i for i in architecture.eos_token_ids if i < architecture.num_token_ids),
        block_size=engine.block_size,
        num_blocks=capacity.num_blocks,
        max_num_seqs=engine.max_num_seqs,
        dtype=str(model.dtype).removeprefix("torch."),
        fingerprint=model.fingerprint,
        deterministic=not model.nondeterminism,
        backend="embedded",
        embedding_size=architecture.hidden_size,
        nondeterminism=model.nondeterminism,
    )
    log.info(
        "engine_created",
        model=config.name,
        max_model_len=capacity.max_model_len,
        num_blocks=capacity.num_blocks,
        block_size=engine.block_size,
        device=str(device),
        dtype=facts.dtype,
        kv_cache_dtype=str(model.cache_dtype).removeprefix("torch."),
        num_threads=torch.get_num_threads(),
    )
    return AphroditeEngine(
        facts,
        create_scheduler(engine, capacity.num_blocks, architecture.widest_window),
        _create_runner(config, model, pool, capacity, on_progress),
        Grammars(Path(config.path), facts.vocab_size, facts.eos_token_ids),
    )


def _create_runner(
    config: ModelConfig, model: CausalModel, pool: KVCachePool, capacity: Capacity, on_progress: Callable[[], None]
) -> Runner:
    """Runs batches where the model is; on a GPU decoding steps come from recorded graphs."""
    block_size = config.engine.block_size
    if model.device == CPU:
        return ModelRunner(model, pool, block_size)
    graphed = GraphedModel(
        model,
        pool.layers,
        max_num_seqs=config.engine.max_num_seqs,
        max_blocks=-(-capacity.max_model_len // block_size),
        record=CudaGraphRecorder(),
        on_recorded=on_progress,
    )
    return GpuRunner(ModelRunner(graphed, pool, block_size), model.device)
