"""An int8 weight in the two layouts that products want, made in a thread beside the one that reads the checkpoint.

Packing takes as long as reading; done side by side, an engine of SmolLM2 starts a second sooner. Rounds nothing itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from aphrodited.layers.huge_pages import HugePageArena

ENGINE = "fbgemm"

# Tensors of quantised types are deprecated since torch 2.13; fbgemm's products are to be had with no others. For the whole
# process, because the list of filters is shared by all threads and cannot be changed for one of them alone.
warnings.filterwarnings("ignore", message=r"torch\.quantize_per_tensor", category=UserWarning)


@dataclass(frozen=True, slots=True)
class Int8Weight:
    """A weight [out, in], by rows and in the layout of fbgemm. One step of row n is worth steps[n]."""

    rows: NDArray[np.int8]  # [out, in]
    steps: NDArray[np.float32]  # [out]
    packed: object


def pack_weight(values: Tensor, steps: Tensor, arena: HugePageArena) -> Int8Weight:
    """The weight of int8 values [out, in] and steps [out]."""
    torch.backends.quantized.engine = ENGINE
    zero_points = torch.zeros(len(steps), dtype=torch.int64)
    quantized = torch._make_per_channel_quantized_tensor(values, steps.double(), zero_points, 0)
    packed = torch.ops.quantized.linear_prepack(quantized, None)
    return Int8Weight(arena.copy(values.numpy()), steps.numpy(), packed)


class PackingThread:
    """Packs the weights of one model in the order in which they are handed over. Its thread ends when it is dropped."""

    def __init__(self) -> None:
        self._arena = HugePageArena()
        self._executor = ThreadPoolExecutor(1, "packing")

    def submit(self, values: Tensor, steps: Tensor) -> Callable[[], Int8Weight]:
        """What waits for the packed weight and returns it; raises what packing raised."""
        return self._executor.submit(pack_weight, values, steps, self._arena).result
