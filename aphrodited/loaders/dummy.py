"""Random weights of whatever shape a model asks for, for benchmarks and drills: nothing but the shape is real."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from aphrodited.errors import ModelLoadError
from aphrodited.layers.embedding import DenseEmbedding, Embedding
from aphrodited.layers.linear import Activation, Linear, MakeProjection, Projection
from aphrodited.layers.paged_attention import MakeAttention, PagedAttention
from aphrodited.models.config import Architecture, ModelArchitecture
from aphrodited.models.hf_config import read_architecture
from aphrodited.models.weights import ReadWeight

_STANDARD_DEVIATION = 0.02  # the usual initialisation: products neither vanish nor overflow
_SEED = 0

# Shapes that need no file. Source: https://huggingface.co/EleutherAI/pythia-70m-deduped/blob/main/config.json
KNOWN_SHAPES = {
    "EleutherAI/pythia-70m-deduped": ModelArchitecture(
        architecture=Architecture.GPT_NEOX,
        vocab_size=50304,
        hidden_size=512,
        intermediate_size=2048,
        num_layers=6,
        num_heads=8,
        num_kv_heads=8,
        head_dim=64,
        max_position_embeddings=2048,
        eos_token_ids=(0,),
        bos_token_id=0,
        rope_theta=10000.0,
        rotary_dim=16,
        norm_eps=1e-5,
        activation=Activation.GELU,
        has_qkv_bias=True,
        has_output_bias=True,
        has_mlp_bias=True,
        has_parallel_residual=True,
    )
}


class DummyWeights:
    """Weights that make up every tensor when it is asked for; the same name always gives the same numbers."""

    identity = f"dummy weights, seed {_SEED}"

    def __init__(
        self,
        report: Callable[[], None],
        make_projection: MakeProjection = Linear,
        make_attention: MakeAttention = PagedAttention,
    ) -> None:
        self._make_projection = make_projection
        self.make_attention = make_attention
        self._report = report

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        self._report()
        if "norm" in name:
            return torch.ones(shape) if name.endswith(".weight") else torch.zeros(shape)
        digest = hashlib.sha256(f"{_SEED} {name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
        return torch.empty(shape).normal_(std=_STANDARD_DEVIATION, generator=generator)

    def take_embedding(self, name: str, shape: tuple[int, int]) -> Embedding:
        return DenseEmbedding(self.take(name, shape))

    def project(self, name: str, read: ReadWeight, activation: Activation = Activation.NONE) -> Projection:
        return self._make_projection(*read(), activation=activation)

    def finish(self, ignored: str) -> None:
        """Nothing is left over: a tensor is made when it is asked for."""


def dummy_architecture(path: Path) -> ModelArchitecture:
    """The shape of a directory's config.json, or a known one by its hub id. Raises ModelLoadError."""
    if path.is_dir():
        return read_architecture(path)
    for hub_id, architecture in KNOWN_SHAPES.items():
        if path.parts[-2:] == tuple(hub_id.split("/")):
            return architecture
    raise ModelLoadError(
        f"{path}: load_format dummy needs a directory with a config.json, or one of the built-in shapes: "
        f"{', '.join(KNOWN_SHAPES)}"
    )
