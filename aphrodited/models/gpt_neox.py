"""The GPT-NeoX family (Pythia): LayerNorm with bias, partial rotation, fused projections, parallel residual.

Source: https://arxiv.org/abs/2204.06745; names and layout of Hugging Face's GPTNeoXForCausalLM.
"""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from aphrodited.layers.attention import KVCache
from aphrodited.layers.linear import Projection
from aphrodited.layers.norm import LayerNorm
from aphrodited.layers.paged_attention import Attention, AttentionPlan
from aphrodited.layers.rotary import rotary_table
from aphrodited.layers.step_ops import Buffer
from aphrodited.layers.step_program import StepProgram
from aphrodited.models.causal_lm import CausalLM
from aphrodited.models.config import ModelArchitecture
from aphrodited.models.weights import Weights, load_linear

# Buffers that old checkpoints carry: the causal mask, its filler, the frequencies.
IGNORED_TENSORS = r"gpt_neox\.layers\.\d+\.attention\.(bias|masked_bias|rotary_emb\.inv_freq)"


def load_gpt_neox(config: ModelArchitecture, weights: Weights, *, num_positions: int, cache_dir: Path | None) -> CausalLM:
    """The model of a checkpoint, for sequences of up to num_positions tokens.

    Raises ModelLoadError for a tensor that is missing, damaged or of another shape.
    """
    table_shape = (config.vocab_size, config.hidden_size)
    embedding = weights.take_embedding("gpt_neox.embed_in.weight", table_shape)
    rotary = rotary_table(num_positions, config.rotary_dim, config.rope_theta, config.rope_scaling)
    attention = weights.make_attention(config.num_heads, config.head_dim, rotary, cache_dir)
    layers = [
        GPTNeoXLayer(config, weights, f"gpt_neox.layers.{index}.", attention) for index in range(config.num_layers)
    ]
    head_name = "gpt_neox.embed_in.weight" if config.tie_word_embeddings else "embed_out.weight"
    return CausalLM(
        config,
        embedding=embedding,
        attention=attention,
        layers=layers,
        final_norm=_load_norm(config, weights, "gpt_neox.final_layer_norm"),
        lm_head=weights.project(
            "head", lambda: (weights.take(head_name, table_shape)[: config.num_token_ids], None)
        ),
        num_positions=num_positions,
    )


class GPTNeoXLayer:
    """Attention and feed-forward, both added to the residual stream: side by side, or one after the other."""

    def __init__(self, config: ModelArchitecture, weights: Weights, prefix: str, attention: Attention) -> None:
        hidden, inner = config.hidden_size, config.intermediate_size
        self._has_parallel_residual = config.has_parallel_residual
        self._attention = attention
        self._input_norm = _load_norm(config, weights, f"{prefix}input_layernorm")
        self._qkv_proj = _load_qkv(config, weights, f"{prefix}attention.query_key_value")
        self._o_proj = load_linear(weights, f"{prefix}attention.dense", hidden, hidden, bias=config.has_output_bias)
        self._mlp_norm = _load_norm(config, weights, f"{prefix}post_attention_layernorm")
        self._up = load_linear(
            weights, f"{prefix}mlp.dense_h_to_4h", hidden, inner, bias=True, activation=config.activation
        )
        self._down = load_linear(weights, f"{prefix}mlp.dense_4h_to_h", inner, hidden, bias=True)
        self.linears = (self._qkv_proj, self._o_proj, self._up, self._down)

    def __call__(self, hidden: Tensor, kv_cache: KVCache, plan: AttentionPlan) -> Tensor:
        attended = self._attention(self._qkv_proj(self._input_norm(hidden)), kv_cache, plan)  # [R, H D]
        residual = self._o_proj.add(attended, hidden)
        mlp_input = hidden if self._has_parallel_residual else residual
        return self._down.add(self._up(self._mlp_norm(mlp_input)), residual)

    def write_to(self, program: StepProgram) -> None:
        program.product(self._qkv_proj, Buffer.HIDDEN, Buffer.QKV, norm=self._input_norm)
        program.attend()
        program.product(self._o_proj, Buffer.ATTENDED, Buffer.RESIDUAL, plus=Buffer.HIDDEN)
        mlp_input = Buffer.HIDDEN if self._has_parallel_residual else Buffer.RESIDUAL
        program.product(self._up, mlp_input, Buffer.INNER, norm=self._mlp_norm)
        program.product(self._down, Buffer.INNER, Buffer.HIDDEN, plus=Buffer.RESIDUAL)


def _load_norm(config: ModelArchitecture, weights: Weights, name: str) -> LayerNorm:
    shape = (config.hidden_size,)
    return LayerNorm(weights.take(f"{name}.weight", shape), weights.take(f"{name}.bias", shape), config.norm_eps)


def _load_qkv(config: ModelArchitecture, weights: Weights, name: str) -> Projection:
    """The fused projection, from rows ordered [H, 3, D] in the checkpoint to [3, H, D]."""
    heads, size = config.num_heads, config.head_dim

    def read() -> tuple[Tensor, Tensor | None]:
        weight = weights.take(f"{name}.weight", (config.qkv_size, config.hidden_size))
        weight = weight.view(heads, 3, size, -1).transpose(0, 1).reshape(config.qkv_size, -1)
        if not config.has_qkv_bias:
            return weight, None
        bias = weights.take(f"{name}.bias", (config.qkv_size,))
        return weight, bias.view(heads, 3, size).transpose(0, 1).reshape(-1)

    return weights.project(name, read)
