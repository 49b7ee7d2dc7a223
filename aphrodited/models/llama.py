"""The Llama family: RMSNorm, rotary positions, grouped key/value heads, gated feed-forward.

Mistral and Qwen are this with other values of ModelArchitecture's fields.
Source: https://arxiv.org/abs/2302.13971; names and layout of Hugging Face's LlamaForCausalLM.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from aphrodited.layers.attention import KVCache
from aphrodited.layers.linear import Projection
from aphrodited.layers.norm import QKNorm, RMSNorm
from aphrodited.layers.paged_attention import Attention, AttentionPlan
from aphrodited.layers.rotary import rotary_table
from aphrodited.layers.step_ops import Buffer
from aphrodited.layers.step_program import StepProgram
from aphrodited.models.causal_lm import CausalLM
from aphrodited.models.config import ModelArchitecture
from aphrodited.models.weights import Weights, load_linear

# Buffers that old checkpoints carry and that are computed here.
IGNORED_TENSORS = r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq"


def load_llama(config: ModelArchitecture, weights: Weights, *, num_positions: int, cache_dir: Path | None) -> CausalLM:
    """The model of a checkpoint, for sequences of up to num_positions tokens.

    Raises ModelLoadError for a tensor that is missing, damaged or of another shape.
    """
    table_shape = (config.vocab_size, config.hidden_size)
    embedding = weights.take_embedding("model.embed_tokens.weight", table_shape)
    rotary = rotary_table(num_positions, config.rotary_dim, config.rope_theta, config.rope_scaling)
    attention = weights.make_attention(config.num_heads, config.head_dim, rotary, cache_dir)
    layers = [LlamaLayer(config, weights, index, attention) for index in range(config.num_layers)]
    norm = RMSNorm(weights.take("model.norm.weight", (config.hidden_size,)), config.norm_eps)
    head_name = "model.embed_tokens.weight" if config.tie_word_embeddings else "lm_head.weight"
    return CausalLM(
        config,
        embedding=embedding,
        attention=attention,
        layers=layers,
        final_norm=norm,
        lm_head=weights.project(
            "head", lambda: (weights.take(head_name, table_shape)[: config.num_token_ids], None)
        ),
        num_positions=num_positions,
    )


class LlamaLayer:
    """hidden + attention(norm(hidden)), then the same again with a gated feed-forward."""

    def __init__(self, config: ModelArchitecture, weights: Weights, index: int, attention: Attention) -> None:
        hidden, eps, prefix = config.hidden_size, config.norm_eps, f"model.layers.{index}."
        self._attention = attention
        self._window = config.window(index)
        self._input_norm = RMSNorm(weights.take(f"{prefix}input_layernorm.weight", (hidden,)), eps)
        self._qkv_proj = _load_qkv(config, weights, f"{prefix}self_attn.")
        self._qk_norm = _load_qk_norm(config, weights, f"{prefix}self_attn.") if config.has_qk_norm else None
        self._o_proj = load_linear(
            weights,
            f"{prefix}self_attn.o_proj",
            config.num_heads * config.head_dim,
            hidden,
            bias=config.has_output_bias,
        )
        self._mlp_norm = RMSNorm(weights.take(f"{prefix}post_attention_layernorm.weight", (hidden,)), eps)
        self._mlp = GatedMLP(config, weights, f"{prefix}mlp.")
        self.linears = (self._qkv_proj, self._o_proj, *self._mlp.linears)

    def __call__(self, hidden: Tensor, kv_cache: KVCache, plan: AttentionPlan) -> Tensor:
        qkv = self._qkv_proj(self._input_norm(hidden))  # [R, (H + 2K) D]
        if self._qk_norm is not None:
            qkv = self._qk_norm(qkv)
        attended = self._attention(qkv, kv_cache, plan, self._window)  # [R, H D]
        hidden = self._o_proj.add(attended, hidden)
        return self._mlp(self._mlp_norm(hidden), hidden)

    def write_to(self, program: StepProgram) -> None:
        program.product(self._qkv_proj, Buffer.HIDDEN, Buffer.QKV, norm=self._input_norm)
        program.attend(window=self._window, qk_norm=self._qk_norm)
        program.product(self._o_proj, Buffer.ATTENDED, Buffer.RESIDUAL, plus=Buffer.HIDDEN)
        self._mlp.write_to(program, self._mlp_norm)


class GatedMLP:
    """residual + down(activation(gate(x)) * up(x)); the product and the sum are part of the projections."""

    def __init__(self, config: ModelArchitecture, weights: Weights, prefix: str) -> None:
        hidden, inner, bias = config.hidden_size, config.intermediate_size, config.has_mlp_bias
        self._gate = load_linear(weights, f"{prefix}gate_proj", hidden, inner, bias=bias, activation=config.activation)
        self._up = load_linear(weights, f"{prefix}up_proj", hidden, inner, bias=bias)
        self._down = load_linear(weights, f"{prefix}down_proj", inner, hidden, bias=bias)
        self.linears = (self._gate, self._up, self._down)

    def __call__(self, x: Tensor, residual: Tensor) -> Tensor:
        return self._down.add(self._up.multiply(x, self._gate(x)), residual)

    def write_to(self, program: StepProgram, norm: RMSNorm) -> None:
        program.gated(self._up, self._gate, Buffer.RESIDUAL, Buffer.INNER, norm=norm)
        program.product(self._down, Buffer.INNER, Buffer.HIDDEN, plus=Buffer.RESIDUAL)


def _load_qkv(config: ModelArchitecture, weights: Weights, prefix: str) -> Projection:
    """One projection for queries, keys and values."""
    num_heads = {"q_proj": config.num_heads, "k_proj": config.num_kv_heads, "v_proj": config.num_kv_heads}
    sizes = {name: heads * config.head_dim for name, heads in num_heads.items()}

    def read() -> tuple[Tensor, Tensor | None]:
        weight = torch.cat(
            [weights.take(f"{prefix}{name}.weight", (size, config.hidden_size)) for name, size in sizes.items()]
        )
        if not config.has_qkv_bias:
            return weight, None
        return weight, torch.cat([weights.take(f"{prefix}{name}.bias", (size,)) for name, size in sizes.items()])

    return weights.project(f"{prefix}qkv", read)


def _load_qk_norm(config: ModelArchitecture, weights: Weights, prefix: str) -> QKNorm:
    query_weight, key_weight = (weights.take(f"{prefix}{name}.weight", (config.head_dim,)) for name in ("q_norm", "k_norm"))
    return QKNorm(query_weight, key_weight, config.num_heads, config.num_kv_heads, config.norm_eps)
