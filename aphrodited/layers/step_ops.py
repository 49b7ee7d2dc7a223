"""What a step of few rows is made of: operations as rows of one table, for `step_kernels`. Computes nothing.

Each operation reads one buffer and writes another; all of one step run one after the other, each by all threads.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Buffer(IntEnum):
    """Where rows are between operations, [R, width] float32."""

    HIDDEN = 0
    QKV = 1
    ATTENDED = 2
    RESIDUAL = 3
    INNER = 4
    LOGITS = 5


class Kind(IntEnum):
    PRODUCT = 0  # finish(norm(source) @ weight.T + bias)
    GATED = 1  # (norm(source) @ weight.T + bias) * finish(norm(source) @ gate.T + gate's bias)
    HEADS = 2  # attention of QKV's heads to ATTENDED, of some only the scores; stores keys and values first
    SUMS = 3  # what those scores make of the values


class Norm(IntEnum):
    """What a row goes through first."""

    NONE = 0
    ROOT_MEAN_SQUARE = 1
    LAYER = 2


WEIGHT_FIELDS = ("panels", "starts", "scales", "bias")
"""Addresses of an Int8Weight's arrays, or of those that a FloatWeight has."""

OP = np.dtype(
    [
        *((name, np.int64) for name in ("kind", "source", "target", "other", "finish", "is_float", "num_channels", "num_outputs")),
        *((name, np.int64) for name in (*WEIGHT_FIELDS, *(f"gate_{name}" for name in WEIGHT_FIELDS))),
        *((name, np.int64) for name in ("signs", "group")),
        *((name, np.int64) for name in ("norm", "norm_weight", "norm_bias")),
        ("norm_eps", np.float64),
        *((name, np.int64) for name in ("layer", "window", "qk_norm_weight")),
        ("qk_norm_eps", np.float64),
    ]
)
"""One operation. Addresses are those of arrays, 0 for none; other: the Buffer that is added to a product."""

SHAPE = np.dtype(
    [
        *((name, np.int64) for name in ("num_rows", "num_heads", "num_kv_heads", "head_dim", "block_size", "num_blocks")),
        ("row_limit", np.float64),
        ("scale", np.float64),
    ]
)
"""What all operations of a step have in common. row_limit: of int8_tiles.InstructionSet; scale: of attention's scores."""
