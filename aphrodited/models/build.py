"""From an architecture and its weights to a model: the one table of who loads what."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from aphrodited.models import gpt_neox, llama
from aphrodited.models.causal_lm import CausalLM
from aphrodited.models.config import Architecture, ModelArchitecture
from aphrodited.models.weights import Weights


class _LoadModel(Protocol):
    def __call__(
        self, config: ModelArchitecture, weights: Weights, *, num_positions: int, cache_dir: Path | None
    ) -> CausalLM: ...


_FAMILIES: dict[Architecture, tuple[_LoadModel, str]] = {
    Architecture.LLAMA: (llama.load_llama, llama.IGNORED_TENSORS),
    Architecture.MISTRAL: (llama.load_llama, llama.IGNORED_TENSORS),
    Architecture.QWEN2: (llama.load_llama, llama.IGNORED_TENSORS),
    Architecture.QWEN3: (llama.load_llama, llama.IGNORED_TENSORS),
    Architecture.GPT_NEOX: (gpt_neox.load_gpt_neox, gpt_neox.IGNORED_TENSORS),
}


TIED_HEADS = r"|lm_head\.weight|embed_out\.weight"  # a head written out although it is the embedding


def build_model(
    config: ModelArchitecture, weights: Weights, *, cache_dir: Path | None, max_positions: int | None = None
) -> CausalLM:
    """The model, with every one of its tensors taken from `weights`. Raises ModelLoadError.

    max_positions: tokens of the longest sequence that will be computed; None: as many as the model can.
    """
    load, _ = _FAMILIES[config.architecture]
    num_positions = min(config.max_position_embeddings, max_positions or config.max_position_embeddings)
    return load(config, weights, num_positions=num_positions, cache_dir=cache_dir)


def ignored_tensors(config: ModelArchitecture) -> str:
    """A regular expression of tensor names that a checkpoint may have and its model does not read."""
    _, pattern = _FAMILIES[config.architecture]
    return pattern + TIED_HEADS if config.tie_word_embeddings else pattern
