"""What share of this machine's arithmetic and memory the engine uses: reading prompts, and one stream's decoding.

    prefill   additions and multiplications of a prompt's products, over the rate of one large matrix product
    decode    bytes of the weights that every token reads, over the rate at which a large matrix is read by a product
              with a vector

The two rates of the machine are numpy's (OpenBLAS, all cores), taken in the same run; ours are the synchronous engine's in
a process of its own, prompts of one length together and one stream from a short prompt. All by turns, medians.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import msgspec
import numpy as np

from aphrodited.bench.modes import Mode, measure
from aphrodited.bench.report import append_json_line, report
from aphrodited.bench.workload import Workload, add_workload_options, workload_of
from aphrodited.loaders.dummy import dummy_architecture
from aphrodited.loaders.gguf_checkpoint import GgufCheckpoint
from aphrodited.loaders.safetensors_files import SafetensorsCheckpoint
from aphrodited.models.config import Architecture, ModelArchitecture

SQUARE = 4096  # rows and columns of the large product
MATRIX_BYTES = 1024**3
NUM_TRIES = 5  # of a machine's rate; the best counts
BYTES_PER_WEIGHT = {"none": 4, "int8": 1}


class Cost(NamedTuple):
    """Of a model's products: weights that every token reads, in its layers and in its output layer."""

    layer_weights: int
    head_weights: int
    attention_size: int  # query heads times their dimensions, over all layers

    def prefill_flop(self, num_prompts: int, length: int) -> float:
        """Of the products with weights, and of attention's two; only a prompt's last token has logits."""
        products = num_prompts * (length * self.layer_weights + self.head_weights)
        attention = num_prompts * self.attention_size * length * (length + 1)
        return 2.0 * (products + attention)

    @property
    def num_weights(self) -> int:
        return self.layer_weights + self.head_weights


def cost_of(model: ModelArchitecture) -> Cost:
    attention_size = model.num_heads * model.head_dim
    num_mlp_matrices = 2 if model.architecture is Architecture.GPT_NEOX else 3
    per_layer = model.hidden_size * (
        model.qkv_size + attention_size + num_mlp_matrices * model.intermediate_size
    )
    return Cost(per_layer * model.num_layers, model.num_token_ids * model.hidden_size, attention_size * model.num_layers)


def architecture_of(workload: Workload) -> ModelArchitecture:
    path = Path(workload.model)
    if workload.load_format == "dummy":
        return dummy_architecture(path)
    return SafetensorsCheckpoint(path).config if path.is_dir() else GgufCheckpoint(path).config


def product_rate() -> float:
    """Floating-point operations a second of a large float32 product."""
    first, second = (np.ones((SQUARE, SQUARE), np.float32) for _ in range(2))
    return 2.0 * SQUARE**3 / _best_s(lambda: first @ second)


def reading_rate() -> float:
    """Bytes a second at which a product with a vector reads its matrix."""
    matrix = np.ones((MATRIX_BYTES // (4 * SQUARE), SQUARE), np.float32)
    vector = np.ones(SQUARE, np.float32)
    return matrix.nbytes / _best_s(lambda: matrix @ vector)


def _best_s(compute: Callable[[], Any]) -> float:
    times = []
    for _ in range(NUM_TRIES):
        began_at_s = time.perf_counter()
        compute()
        times.append(time.perf_counter() - began_at_s)
    return min(times)


def measure_once(prefill: Workload, decode: Workload, cost: Cost) -> dict[str, float]:
    """One round: the machine's rates and ours."""
    prefill_s = measure(Mode.SYNC, prefill).elapsed_s
    decode_s = measure(Mode.SYNC, decode).elapsed_s
    flop_rate, byte_rate = product_rate(), reading_rate()
    decode_rate = decode.output_len / decode_s
    weight_bytes = cost.num_weights * BYTES_PER_WEIGHT[decode.quantization]
    return {
        "sgemm_gflop_per_second": flop_rate / 1e9,
        "read_gb_per_second": byte_rate / 1e9,
        "prefill_tokens_per_second": prefill.num_prompts * prefill.input_len / prefill_s,
        "prefill_share_of_sgemm": cost.prefill_flop(prefill.num_prompts, prefill.input_len) / prefill_s / flop_rate,
        "decode_tokens_per_second": decode_rate,
        "decode_share_of_reading": decode_rate * weight_bytes / byte_rate,
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_workload_options(parser, model="EleutherAI/pythia-70m-deduped", num_prompts=8)
    parser.add_argument("--output-json", type=Path, help="append the result to this file as one line")
    options = parser.parse_args(arguments)
    prefill = msgspec.structs.replace(workload_of(options), output_len=1)
    decode = msgspec.structs.replace(workload_of(options), num_prompts=1, input_len=8)
    cost = cost_of(architecture_of(prefill))
    rounds = [measure_once(prefill, decode, cost) for _ in range(options.repeat)]
    figures = {name: round(median(figures[name] for figures in rounds), 3) for name in rounds[0]}
    for name, value in figures.items():
        print(f"{name:28} {value:10.3f}")
    if options.output_json:
        shape = msgspec.to_builtins(workload_of(options))
        append_json_line(options.output_json, report("machine", {**figures, "workload": shape}, seed=options.seed))


if __name__ == "__main__":
    main()
