"""The environment an engine process must be started with: read by libraries before any of our code runs.

Knows no process: the launcher puts these in place before it becomes the engine. Loads no torch.
"""

from __future__ import annotations

from aphrodited.config.cpus import usable_cpus
from aphrodited.config.schema import ModelConfig
from aphrodited.errors import ConfigError

_KEEP_FREED_MEMORY = str(4 * 1024**3)  # bytes; far above any tensor of a step


def engine_threads(config: ModelConfig) -> int:
    """Compute threads: as configured, or one per CPU the engine may use. Raises ConfigError below 1."""
    threads = config.engine.threads
    if threads == "auto":
        return max(1, len(usable_cpus(config.engine.cpus)))
    if threads < 1:
        raise ConfigError(f"model {config.name}: engine.threads is {threads}, expected auto or 1 and more")
    return threads


def engine_environment(config: ModelConfig) -> dict[str, str]:
    """Variables to set, whatever they were.

    malloc(3) otherwise gives a step's large tensors back to the kernel and faults their pages in again at every step.
    Waiting OpenMP threads sleep by default, so that a busy neighbour costs its share and no more: where others wanted the
    same two cores, spinning made a step 3 to 20 times as slow.
    """
    threads = str(engine_threads(config))
    return {
        "MALLOC_MMAP_THRESHOLD_": _KEEP_FREED_MEMORY,
        "MALLOC_TRIM_THRESHOLD_": _KEEP_FREED_MEMORY,
        "OMP_NUM_THREADS": threads,
        "OMP_WAIT_POLICY": config.engine.wait_policy.upper(),
    }
