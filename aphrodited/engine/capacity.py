"""How long a sequence may be and how many KV blocks there are: numbers in, numbers out. Knows no tensors.

Reads this machine's free memory, in one function.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

from aphrodited.config.schema import ModelConfig
from aphrodited.engine.windows import least_held, most_held
from aphrodited.errors import ConfigError

AUTO_MAX_MODEL_LEN = 8192
AUTO_MEMORY_SHARE = 0.25  # of what is free
AUTO_MEMORY_LIMIT = 2 * 1024**3  # bytes; a CPU computes too slowly to fill more with running sequences
AUTO_GPU_MEMORY_SHARE = 0.8  # of what is free there once the weights are loaded; steps need the rest


@dataclass(frozen=True, slots=True)
class Capacity:
    """max_model_len: tokens of one sequence at most; num_blocks blocks are enough for it."""

    max_model_len: int
    num_blocks: int


def available_memory() -> int:
    """Bytes this process may still take: free memory of the machine, or less if its cgroup allows less."""
    available = int(psutil.virtual_memory().available)
    try:
        entry = Path("/proc/self/cgroup").read_text("ascii").splitlines()[0]
        cgroup = Path("/sys/fs/cgroup") / entry.partition("::")[2].lstrip("/")
        limit = (cgroup / "memory.max").read_text("ascii").strip()
        used = int((cgroup / "memory.current").read_text("ascii"))
    except (OSError, IndexError, ValueError):
        return available  # not in a cgroup of version 2 with a memory controller
    return available if limit == "max" else max(0, min(available, int(limit) - used))


def plan_capacity(
    config: ModelConfig,
    *,
    max_position_embeddings: int,
    block_bytes: int,
    free_memory: int,
    on_gpu: bool = False,
    window: int | None = None,
) -> Capacity:
    """Settle max_model_len and num_blocks. A length that was left to us shrinks to what the memory holds.

    block_bytes: of one block over all layers.  free_memory: bytes, where the cache will be.
    window: tokens that a token sees at most; None for all before it.
    Raises ConfigError, with what to change, if an explicit length fits neither the model nor the memory.
    """
    block_size = config.engine.block_size
    if block_size & (block_size - 1):
        raise ConfigError(f"model {config.name}: engine.block_size is {block_size}, expected a power of two")
    max_model_len = _max_model_len(config, max_position_embeddings)
    needed = useful = -(-max_model_len // block_size)  # blocks of one sequence
    if window is not None:
        needed = min(needed, least_held(window, block_size))
        useful = min(useful, most_held(window, config.engine.max_num_batched_tokens, block_size))

    wanted = config.engine.max_num_seqs * useful
    if config.engine.kv_cache_memory == "auto":
        memory = min(int(free_memory * AUTO_MEMORY_SHARE), AUTO_MEMORY_LIMIT)
        if on_gpu:
            memory = int(free_memory * AUTO_GPU_MEMORY_SHARE)
        num_blocks = min(wanted, memory // block_bytes)
    else:
        memory = config.engine.kv_cache_memory
        num_blocks = memory // block_bytes
    if num_blocks >= needed:
        return Capacity(max_model_len, num_blocks)

    room = num_blocks * block_size
    if config.max_model_len != "auto" or not room:
        raise ConfigError(
            f"model {config.name}: a KV cache of {memory} bytes holds {room} tokens, but max_model_len is {max_model_len}: "
            f"lower max_model_len or set engine.kv_cache_memory to at least {needed * block_bytes}"
        )
    return Capacity(room, num_blocks)


def max_positions(config: ModelConfig) -> int:
    """Tokens that no sequence will exceed, whatever the model and the memory allow."""
    return AUTO_MAX_MODEL_LEN if config.max_model_len == "auto" else config.max_model_len


def _max_model_len(config: ModelConfig, max_position_embeddings: int) -> int:
    if config.max_model_len == "auto":
        return min(max_position_embeddings, AUTO_MAX_MODEL_LEN)
    if not 2 <= config.max_model_len <= max_position_embeddings:
        raise ConfigError(
            f"model {config.name}: max_model_len is {config.max_model_len}, expected 2 to {max_position_embeddings}, "
            "the length the model was trained for"
        )
    return config.max_model_len
