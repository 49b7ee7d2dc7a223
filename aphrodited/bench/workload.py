"""What a throughput benchmark asks of an engine, the same for every way to reach one.

Random prompts of one length, answers of one length (`ignore_eos`), no text. Loads no engine.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import msgspec

from aphrodited.config.schema import EngineConfig, ModelConfig, MqConfig
from aphrodited.sampling_params import SamplingParams

Prompt = tuple[list[int], SamplingParams]

PACED_VOCAB_SIZE = 50304
LETTERS = [chr(code) for code in range(ord("!"), ord("~") + 1)]
"""What the paced backend's tokenizer knows: each is one token, so that over HTTP each token is text."""


class Workload(msgspec.Struct, frozen=True):
    """pace_ms: instead of the model, a backend that computes nothing and whose step ends with such a pause."""

    model: str
    num_prompts: int
    input_len: int
    output_len: int
    max_model_len: int | None = None
    load_format: Literal["auto", "safetensors", "gguf", "dummy"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    quantization: Literal["none", "int8"] = "none"
    pace_ms: float | None = None
    async_sockets: bool | None = None
    seed: int = 1

    @property
    def num_tokens(self) -> int:
        """Prompts and answers together."""
        return self.num_prompts * (self.input_len + self.output_len)

    @contextmanager
    def model_config(self) -> Iterator[ModelConfig]:
        """The model to load; valid within the block."""
        config = ModelConfig(
            name="bench",
            path=self.model,
            load_format=self.load_format,
            dtype=self.dtype,
            quantization=self.quantization,
            max_model_len=self.max_model_len or self.input_len + self.output_len,
            engine=EngineConfig(max_num_waiting=self.num_prompts),
        )
        if self.pace_ms is None:
            yield config
            return
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            model = {"vocab_size": PACED_VOCAB_SIZE, "null_step_s": self.pace_ms / 1000}
            Path(folder, "config.json").write_bytes(msgspec.json.encode(model))
            Path(folder, "tokenizer.json").write_bytes(msgspec.json.encode(_letter_tokenizer()))
            yield msgspec.structs.replace(config, path=folder, backend="null", load_format="auto", dtype="auto")

    def mq_config(self) -> MqConfig:
        """The defaults, with room for all requests at once."""
        config = MqConfig()
        if self.async_sockets is not None:
            config = msgspec.structs.replace(config, async_sockets=self.async_sockets)
        return msgspec.structs.replace(config, input_hwm=max(config.input_hwm, self.num_prompts))

    def prompts(self, vocab_size: int) -> list[Prompt]:
        rng = random.Random(self.seed)
        if self.pace_ms is not None:
            vocab_size = len(LETTERS)
        params = SamplingParams(temperature=1.0, max_tokens=self.output_len, ignore_eos=True, detokenize=False)
        return [
            (
                [rng.randrange(vocab_size) for _ in range(self.input_len)],
                msgspec.structs.replace(params, seed=self.seed * 1_000_003 + i),
            )
            for i in range(self.num_prompts)
        ]


def add_workload_options(parser: argparse.ArgumentParser, *, model: str, num_prompts: int = 256) -> None:
    """An option for each field of Workload but async_sockets."""
    parser.add_argument("--model", default=model, help="hub id, directory or .gguf file")
    parser.add_argument("--num-prompts", type=_positive, default=num_prompts)
    parser.add_argument("--input-len", type=_positive, default=128, help="tokens of each prompt")
    parser.add_argument("--output-len", type=_positive, default=128, help="tokens of each answer")
    parser.add_argument("--max-model-len", type=_positive)
    parser.add_argument("--load-format", default="auto", choices=("auto", "safetensors", "gguf", "dummy"))
    parser.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16"))
    parser.add_argument("--quantization", default="none", choices=("none", "int8"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--repeat", type=_positive, default=1, help="rounds")
    parser.add_argument(
        "--pace-ms", type=float, help="a backend that computes nothing and pauses so long at the end of each step"
    )


def workload_of(options: argparse.Namespace) -> Workload:
    return msgspec.convert({name: getattr(options, name, None) for name in Workload.__struct_fields__}, Workload)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def _letter_tokenizer() -> dict[str, Any]:
    """A tokenizer.json."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": {letter: number for number, letter in enumerate(LETTERS)}, "merges": []},
    }
