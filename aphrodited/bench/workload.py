"""What a throughput benchmark asks of an engine, the same for every way to reach one.

Random prompts of one length, answers of one length (`ignore_eos`), no text. Loads no engine.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import msgspec

from aphrodited.config.schema import EngineConfig, ModelConfig, MqConfig
from aphrodited.sampling_params import SamplingParams

Prompt = tuple[list[int], SamplingParams]

PACED_VOCAB_SIZE = 50304


class Workload(msgspec.Struct, frozen=True):
    """pace_ms: instead of the model, a backend that computes nothing and whose step ends with such a pause."""

    model: str
    num_prompts: int
    input_len: int
    output_len: int
    max_model_len: int | None = None
    load_format: Literal["auto", "safetensors", "gguf", "dummy"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
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
            max_model_len=self.max_model_len or self.input_len + self.output_len,
            engine=EngineConfig(max_num_waiting=self.num_prompts),
        )
        if self.pace_ms is None:
            yield config
            return
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            model = {"vocab_size": PACED_VOCAB_SIZE, "null_step_s": self.pace_ms / 1000}
            Path(folder, "config.json").write_bytes(msgspec.json.encode(model))
            yield msgspec.structs.replace(config, path=folder, backend="null", load_format="auto", dtype="auto")

    def mq_config(self) -> MqConfig:
        """The defaults, with room for all requests at once."""
        config = MqConfig()
        if self.async_sockets is not None:
            config = msgspec.structs.replace(config, async_sockets=self.async_sockets)
        return msgspec.structs.replace(config, input_hwm=max(config.input_hwm, self.num_prompts))

    def prompts(self, vocab_size: int) -> list[Prompt]:
        rng = random.Random(self.seed)
        params = SamplingParams(temperature=1.0, max_tokens=self.output_len, ignore_eos=True, detokenize=False)
        return [
            (
                [rng.randrange(vocab_size) for _ in range(self.input_len)],
                msgspec.structs.replace(params, seed=self.seed * 1_000_003 + i),
            )
            for i in range(self.num_prompts)
        ]
