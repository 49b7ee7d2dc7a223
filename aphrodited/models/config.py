"""The shape of a model as plain numbers: all that models, KV cache and engine need to know of a checkpoint's kind.

Variants of a family are fields here, not classes. Knows no file format: `models.hf_config` builds one from a
config.json, `loaders.gguf` from GGUF metadata.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from aphrodited.layers.linear import Activation


class Architecture(StrEnum):
    """The supported families, by the names their checkpoints give in config.json's `architectures`."""

    LLAMA = "LlamaForCausalLM"
    GPT_NEOX = "GPTNeoXForCausalLM"


@dataclass(frozen=True, slots=True)
class ModelArchitecture:
    """One model's dimensions and variants."""

    architecture: Architecture
    vocab_size: int  # V
    hidden_size: int  # E
    intermediate_size: int  # I
    num_layers: int
    num_heads: int  # H
    num_kv_heads: int  # K; H is a multiple of it
    head_dim: int  # D
    max_position_embeddings: int  # tokens the model was trained for
    eos_token_ids: tuple[int, ...]  # any of them ends a sequence
    bos_token_id: int | None
    rope_theta: float
    rotary_dim: int  # leading dimensions of each head that rotate; head_dim unless rotation is partial
    norm_eps: float
    activation: Activation = Activation.SILU
    tie_word_embeddings: bool = False
    has_attention_bias: bool = False
    has_mlp_bias: bool = False
    has_parallel_residual: bool = False  # attention and feed-forward both read the layer's input

    @property
    def qkv_size(self) -> int:
        """Columns of the fused projection: every query head, then every key head, then every value head."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim
