"""Rotation, storing and paged attention in plain torch: what the kernels are tested against, and their stand-in.

Gathers each sequence's keys, so it is slow, and its bits depend on the batch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from aphrodited.layers.attention import AttentionMetadata


def rotate_and_store(
    qkv: Tensor, rotary: Tensor, metadata: AttentionMetadata, key_cache: Tensor, value_cache: Tensor
) -> None:
    """Rotate the queries and keys of qkv [T, (H + 2K) D] in place; store keys and values in [N, K, B, D] caches."""
    num_kv_heads, block_size, head_dim = key_cache.shape[1:]
    heads = qkv.view(qkv.shape[0], -1, head_dim)  # [T, H + 2K, D]
    half = rotary.shape[1] // 2
    cosines, sines = rotary[metadata.positions].unsqueeze(1).tensor_split(2, dim=-1)  # [T, 1, R / 2] each
    rotated = heads[:, :-num_kv_heads]
    x, y = rotated[..., :half].clone(), rotated[..., half : 2 * half].clone()
    rotated[..., :half] = x * cosines - y * sines
    rotated[..., half : 2 * half] = y * cosines + x * sines
    is_stored = metadata.slot_mapping >= 0
    slots = metadata.slot_mapping[is_stored]
    block_ids, offsets = slots // block_size, slots % block_size
    key_cache[block_ids, :, offsets] = heads[is_stored, -2 * num_kv_heads : -num_kv_heads].to(key_cache.dtype)
    value_cache[block_ids, :, offsets] = heads[is_stored, -num_kv_heads:].to(value_cache.dtype)


def attend(
    qkv: Tensor,
    metadata: AttentionMetadata,
    key_cache: Tensor,
    value_cache: Tensor,
    window: int,
    scale: float,
    output: Tensor,
) -> None:
    """Fill output [T, H D] with causal attention of each row over the last `window` keys of its sequence."""
    num_kv_heads, block_size, head_dim = key_cache.shape[1:]
    num_heads = output.shape[1] // head_dim
    starts = metadata.cu_seqlens.tolist()
    for sequence, num_keys in enumerate(metadata.context_lens.tolist()):
        rows = slice(starts[sequence], starts[sequence + 1])
        first_block = max(0, num_keys - (rows.stop - rows.start) - window + 1) // block_size  # that any row sees
        first_key = first_block * block_size
        blocks = metadata.block_tables[sequence, first_block : -(-num_keys // block_size)].long()
        keys, values = (
            cache[blocks].to(qkv.dtype).transpose(1, 2).reshape(-1, num_kv_heads, head_dim)[: num_keys - first_key].transpose(0, 1)
            for cache in (key_cache, value_cache)
        )  # [K, keys, D] each
        queries = qkv[rows, : num_heads * head_dim].view(-1, num_heads, head_dim).transpose(0, 1)  # [H, rows, D]
        positions = torch.arange(first_key, num_keys, device=qkv.device)
        distances = metadata.positions[rows].unsqueeze(1) - positions  # [rows, keys]
        visible = (distances >= 0) & (distances < window)
        attended = F.scaled_dot_product_attention(
            queries.unsqueeze(0), keys.unsqueeze(0), values.unsqueeze(0), attn_mask=visible, scale=scale, enable_gqa=True
        )
        output[rows] = attended[0].transpose(0, 1).reshape(-1, num_heads * head_dim)
