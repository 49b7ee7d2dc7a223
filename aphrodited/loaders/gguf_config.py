"""The metadata of a GGUF file as a ModelArchitecture. What is not supported is refused, never guessed."""

from __future__ import annotations

from pathlib import Path

from aphrodited.gguf_file import GgufHead
from aphrodited.layers.linear import Activation
from aphrodited.layers.rotary import LinearScaling, RopeScaling, YarnScaling, yarn_attention_factor
from aphrodited.models.config import Architecture, ModelArchitecture
from aphrodited.models.config_fields import ConfigFields
from aphrodited.models.hf_rope import stretched_length

TOKEN_TYPES = "tokenizer.ggml.token_type"

_ARCHITECTURES = {  # Mistral's files call themselves llama
    "llama": Architecture.LLAMA,
    "qwen2": Architecture.QWEN2,
    "qwen3": Architecture.QWEN3,
    "gptneox": Architecture.GPT_NEOX,
}
_END_TOKENS = ("eos", "eot", "eom")
_UNUSED_TOKEN = 5  # the type that converters give to rows of the vocabulary that their tokenizer does not fill


def read_gguf_architecture(path: Path, head: GgufHead) -> ModelArchitecture:
    """Raises ModelLoadError."""
    fields = ConfigFields(dict(head.metadata), str(path))
    family = str(fields.get("general.architecture"))
    architecture = _ARCHITECTURES.get(family)
    if architecture is None:
        raise fields.error(f"general.architecture {family!r} is not supported; supported are {', '.join(_ARCHITECTURES)}")
    is_neox = architecture is Architecture.GPT_NEOX
    shapes = {entry.name: entry.shape for entry in head.tensors}
    if len(shapes.get("token_embd.weight", ())) != 2:
        raise fields.error("tensor token_embd.weight is missing or not a table")
    hidden_size, num_layers = fields.integer(f"{family}.embedding_length"), fields.integer(f"{family}.block_count")
    num_heads = fields.integer(f"{family}.attention.head_count")
    head_dim = fields.integer(f"{family}.attention.key_length", hidden_size // num_heads)
    rotary_dim = fields.integer(f"{family}.rope.dimension_count", head_dim)
    _refuse_variants(fields, family, head_dim, is_partial=rotary_dim != head_dim and not is_neox)
    length = fields.integer(f"{family}.context_length")
    rope_scaling = _rope_scaling(fields, family, length)
    bos_token_ids = fields.token_ids("tokenizer.ggml.bos_token_id")
    end_token_ids = [i for kind in _END_TOKENS for i in fields.token_ids(f"tokenizer.ggml.{kind}_token_id")]
    eps_name = "layer_norm_epsilon" if is_neox else "layer_norm_rms_epsilon"
    return ModelArchitecture(
        architecture=architecture,
        vocab_size=shapes["token_embd.weight"][0],
        hidden_size=hidden_size,
        intermediate_size=fields.integer(f"{family}.feed_forward_length"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=_num_kv_heads(fields, family, num_heads),
        head_dim=head_dim,
        max_position_embeddings=stretched_length(fields, rope_scaling, length),
        eos_token_ids=tuple(dict.fromkeys(end_token_ids)),
        bos_token_id=bos_token_ids[0] if bos_token_ids else None,
        rope_theta=fields.number(f"{family}.rope.freq_base", 10000.0),
        rotary_dim=rotary_dim,
        norm_eps=fields.number(f"{family}.attention.{eps_name}"),
        activation=Activation.GELU if is_neox else Activation.SILU,
        tie_word_embeddings="output.weight" not in shapes,
        # Qwen2 without them would be read as something else: there they must be in the file.
        has_qkv_bias=f"blk.0.{'attn_qkv' if is_neox else 'attn_q'}.bias" in shapes or architecture is Architecture.QWEN2,
        has_output_bias="blk.0.attn_output.bias" in shapes,
        has_mlp_bias=f"blk.0.{'ffn_up' if is_neox else 'ffn_gate'}.bias" in shapes,
        has_parallel_residual=is_neox and fields.flag(f"{family}.use_parallel_residual", True),
        has_qk_norm=architecture is Architecture.QWEN3,
        rope_scaling=rope_scaling,
        sliding_windows=_sliding_windows(fields, family, num_layers),
    )


def num_used_tokens(head: GgufHead) -> int | None:
    """Ids of the tokenizer, without the unused ones at its end; None if the file does not tell them apart."""
    types = head.metadata.get(TOKEN_TYPES)
    if not isinstance(types, list):
        return None
    return max((i for i, kind in enumerate(types, start=1) if kind != _UNUSED_TOKEN), default=None)


def _num_kv_heads(fields: ConfigFields, family: str, num_heads: int) -> int:
    num_kv_heads = fields.integer(f"{family}.attention.head_count_kv", num_heads)
    if num_heads % num_kv_heads:
        raise fields.error(f"{family}.attention.head_count {num_heads} is not a multiple of head_count_kv {num_kv_heads}")
    return num_kv_heads


def _sliding_windows(fields: ConfigFields, family: str, num_layers: int) -> tuple[int | None, ...]:
    if not fields.get(f"{family}.attention.sliding_window"):
        return ()
    if _ARCHITECTURES[family] is not Architecture.LLAMA:
        raise fields.error(f"sliding window attention is not supported in {family} files, which do not say in which layers")
    return (fields.integer(f"{family}.attention.sliding_window"),) * num_layers


def _rope_scaling(fields: ConfigFields, family: str, length: int) -> RopeScaling | None:
    """The scaling among the metadata; Llama 3 has its own in a tensor."""
    scaling = f"{family}.rope.scaling"
    factor = fields.get(f"{scaling}.factor") or fields.get(f"{family}.rope.scale_linear")  # the older name
    kind = fields.get(f"{scaling}.type") or "linear"
    if kind == "none" or (kind == "linear" and factor in (None, 0, 1)):
        return None
    if kind not in ("linear", "yarn"):
        raise fields.error(f"rope scaling of type {kind!r} is not supported; supported are none, linear, yarn")
    factor = ConfigFields({f"{scaling}.factor": factor}, fields.source).number(f"{scaling}.factor")
    if kind == "linear":
        return LinearScaling(factor)
    if fields.get(f"{scaling}.yarn_ext_factor") not in (None, 1.0) or fields.get(f"{scaling}.yarn_log_multiplier"):
        raise fields.error(f"{scaling}: yarn_ext_factor other than 1 and yarn_log_multiplier are not supported")
    attention_factor = yarn_attention_factor(factor) * fields.number(f"{scaling}.attn_factor", 1.0)
    return YarnScaling(
        factor,
        fields.integer(f"{scaling}.original_context_length", length),
        attention_factor=fields.number(f"{scaling}.yarn_attn_factor", attention_factor),
        beta_fast=fields.number(f"{scaling}.yarn_beta_fast", 32.0),
        beta_slow=fields.number(f"{scaling}.yarn_beta_slow", 1.0),
    )


def _refuse_variants(fields: ConfigFields, family: str, head_dim: int, *, is_partial: bool) -> None:
    """What other models that are written under the same family name do differently."""
    if fields.get(f"{family}.expert_count"):
        raise fields.error("mixtures of experts are not supported")
    if fields.integer(f"{family}.attention.value_length", head_dim) != head_dim:
        raise fields.error("values of another size than keys are not supported")
    if fields.get(f"{family}.attention.sliding_window_pattern"):
        raise fields.error("sliding window attention in some layers only is not supported")
    if is_partial:
        raise fields.error("partial rotation is not supported in this family")
