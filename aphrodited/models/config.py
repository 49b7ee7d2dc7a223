"""The shape of a model as plain numbers: all that models, KV cache and engine need to know of a checkpoint's kind.

Variants of a family are fields here, not classes. Knows no file format: `models.hf_config` builds one from a
config.json, `loaders.gguf_config` from GGUF metadata.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from aphrodited.layers.linear import Activation
from aphrodited.layers.rotary import RopeScaling


class Architecture(StrEnum):
    """The supported kinds of checkpoints, by the names they give in config.json's `architectures`."""

    LLAMA = "LlamaForCausalLM"
    MISTRAL = "MistralForCausalLM"
    QWEN2 = "Qwen2ForCausalLM"
    QWEN3 = "Qwen3ForCausalLM"
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
    max_position_embeddings: int  # tokens the model was trained for, or was stretched to by rope_scaling
    eos_token_ids: tuple[int, ...]  # any of them ends a sequence
    bos_token_id: int | None
    rope_theta: float
    rotary_dim: int  # leading dimensions of each head that rotate; head_dim unless rotation is partial
    norm_eps: float
    activation: Activation = Activation.SILU
    tie_word_embeddings: bool = False
    has_qkv_bias: bool = False
    has_output_bias: bool = False  # of attention's last projection
    has_mlp_bias: bool = False
    has_parallel_residual: bool = False  # attention and feed-forward both read the layer's input
    has_qk_norm: bool = False  # each query and key head is normalised before it is rotated
    rope_scaling: RopeScaling | None = None
    sliding_windows: tuple[int | None, ...] = ()  # keys that a token sees, by layer; None and layers beyond: all
    tokenizer_size: int | None = None  # ids the tokenizer has; None: as many as V

    @property
    def num_token_ids(self) -> int:
        """Columns of the logits: ids that mean something. Rows of the vocabulary beyond are padding, never sampled."""
        return min(self.vocab_size, self.tokenizer_size or self.vocab_size)

    @property
    def qkv_size(self) -> int:
        """Columns of the fused projection: every query head, then every key head, then every value head."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    @property
    def widest_window(self) -> int | None:
        """How many keys a token sees at most, in any layer; None for all before it."""
        windows = [self.window(layer) for layer in range(self.num_layers)]
        known = [window for window in windows if window is not None]
        return max(known) if len(known) == self.num_layers else None

    def window(self, layer: int) -> int | None:
        """How many keys a token sees in that layer, its own included; None for all before it."""
        return self.sliding_windows[layer] if layer < len(self.sliding_windows) else None
