"""The metadata of a GGUF file as a ModelArchitecture. What is not supported is refused, never guessed."""

from __future__ import annotations

from pathlib import Path

from aphrodited.gguf_file import GgufHead
from aphrodited.layers.linear import Activation
from aphrodited.models.config import Architecture, ModelArchitecture
from aphrodited.models.hf_config import ConfigFields

_ARCHITECTURES = {"llama": Architecture.LLAMA, "gptneox": Architecture.GPT_NEOX}
_END_TOKENS = ("eos", "eot", "eom")


def read_gguf_architecture(path: Path, head: GgufHead) -> ModelArchitecture:
    """Raises ModelLoadError."""
    fields = ConfigFields(dict(head.metadata), str(path))
    family = fields.get("general.architecture")
    architecture = _ARCHITECTURES.get(str(family))
    if architecture is None:
        raise fields.error(f"general.architecture {family!r} is not supported; supported are {', '.join(_ARCHITECTURES)}")
    is_llama = architecture is Architecture.LLAMA
    shapes = {entry.name: entry.shape for entry in head.tensors}
    if len(shapes.get("token_embd.weight", ())) != 2:
        raise fields.error("tensor token_embd.weight is missing or not a table")
    hidden_size = fields.integer(f"{family}.embedding_length")
    num_heads = fields.integer(f"{family}.attention.head_count")
    head_dim = fields.integer(f"{family}.attention.key_length", hidden_size // num_heads)
    rotary_dim = fields.integer(f"{family}.rope.dimension_count", head_dim)
    _refuse_variants(fields, str(family), is_llama=is_llama, is_partial=rotary_dim != head_dim)
    bos_token_ids = fields.token_ids("tokenizer.ggml.bos_token_id")
    end_token_ids = [i for kind in _END_TOKENS for i in fields.token_ids(f"tokenizer.ggml.{kind}_token_id")]
    eps_name = "layer_norm_rms_epsilon" if is_llama else "layer_norm_epsilon"
    return ModelArchitecture(
        architecture=architecture,
        vocab_size=shapes["token_embd.weight"][0],
        hidden_size=hidden_size,
        intermediate_size=fields.integer(f"{family}.feed_forward_length"),
        num_layers=fields.integer(f"{family}.block_count"),
        num_heads=num_heads,
        num_kv_heads=fields.integer(f"{family}.attention.head_count_kv", num_heads),
        head_dim=head_dim,
        max_position_embeddings=fields.integer(f"{family}.context_length"),
        eos_token_ids=tuple(dict.fromkeys(end_token_ids)),
        bos_token_id=bos_token_ids[0] if bos_token_ids else None,
        rope_theta=fields.number(f"{family}.rope.freq_base", 10000.0),
        rotary_dim=rotary_dim,
        norm_eps=fields.number(f"{family}.attention.{eps_name}"),
        activation=Activation.SILU if is_llama else Activation.GELU,
        tie_word_embeddings="output.weight" not in shapes,
        has_attention_bias=("blk.0.attn_q.bias" if is_llama else "blk.0.attn_qkv.bias") in shapes,
        has_mlp_bias=("blk.0.ffn_gate.bias" if is_llama else "blk.0.ffn_up.bias") in shapes,
        has_parallel_residual=not is_llama and fields.flag(f"{family}.use_parallel_residual", True),
    )


def _refuse_variants(fields: ConfigFields, family: str, *, is_llama: bool, is_partial: bool) -> None:
    """What other models that are written under the same family name do differently."""
    scaling = fields.get(f"{family}.rope.scaling.type")
    if scaling not in (None, "none"):
        raise fields.error(f"rope scaling of type {scaling!r} is not supported; only unscaled positions are")
    if fields.get(f"{family}.expert_count"):
        raise fields.error("mixtures of experts are not supported")
    if fields.get(f"{family}.attention.sliding_window"):
        raise fields.error("sliding window attention is not supported")
    if is_llama and is_partial:
        raise fields.error("partial rotation is not supported in this family")
