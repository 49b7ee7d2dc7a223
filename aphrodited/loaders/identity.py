"""What tells one model's numbers from another's: which files, which shape, which arithmetic."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch

from aphrodited.models.config import ModelArchitecture

ARITHMETIC_VERSION = 4  # raised when a change of ours may change the last bits of a result


def file_identity(path: Path) -> str:
    """Name, size and time of change: a file's contents, unless somebody hides a change on purpose."""
    status = path.stat()
    return f"{path.name} {status.st_size} {status.st_mtime_ns}"


def fingerprint(
    config: ModelArchitecture, checkpoint_identity: str, dtype: torch.dtype, quantization: str, kernel: str
) -> str:
    """Equal for engines that give equal bits: same weights, shape, format, libraries and kind of CPU.

    kernel: what computes attention, with versions.
    """
    parts = (
        repr(config),
        checkpoint_identity,
        f"{dtype} {quantization}",
        kernel,
        torch.__version__,
        torch.backends.cpu.get_cpu_capability(),
        str(ARITHMETIC_VERSION),
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
