"""Holds our models against those of transformers, given the same tokens."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from aphrodited.layers.attention import AttentionMetadata, as_key_cache
from aphrodited.models.causal_lm import CausalLM

BLOCK_SIZE = 16
TIE = 1e-3  # two logits closer than this are as good as equal


def batch_of(lengths: list[int], starts: list[int]) -> AttentionMetadata:
    """The metadata of sequences that compute `lengths` tokens after `starts`; their blocks are in descending order."""
    ends = [start + length for start, length in zip(starts, lengths, strict=True)]
    width = max(-(-end // BLOCK_SIZE) for end in ends)
    block_tables = torch.arange(len(ends) * width).flip(0).view(len(ends), width)
    positions = torch.cat([torch.arange(s, e) for s, e in zip(starts, ends, strict=True)])
    sequence = torch.arange(len(ends)).repeat_interleave(torch.tensor(lengths))
    return AttentionMetadata(
        positions=positions,
        slot_mapping=block_tables[sequence, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE,
        block_tables=block_tables.int(),
        cu_seqlens=torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32),
        context_lens=torch.tensor(ends, dtype=torch.int32),
        max_query_len=max(lengths),
    )


def new_kv_caches(model: CausalLM, num_blocks: int) -> list[tuple[Tensor, Tensor]]:
    shape = (num_blocks, model.config.num_kv_heads, BLOCK_SIZE, model.config.head_dim)
    memory = [torch.zeros(2, *shape, dtype=model.cache_dtype) for _ in range(model.config.num_layers)]
    return [(as_key_cache(keys), values) for keys, values in memory]


def prompt_logits(model: CausalLM, prompt: list[int]) -> Tensor:
    """Our logits [T, V] at every position of one prompt."""
    metadata = batch_of([len(prompt)], [0])
    caches = new_kv_caches(model, metadata.block_tables.numel())
    hidden = model.forward(torch.tensor(prompt), metadata.positions, caches, metadata)
    return model.compute_logits(hidden)


def teach(teacher: PreTrainedModel, token_ids: list[int]) -> tuple[Tensor, Tensor]:
    """The teacher's logits [T, V], and its hidden states behind the last norm [T, E].

    Beyond the length it was trained for it reads token by token, as it does when it generates: a rotation that grows
    with the length then is, for each token, that of its own position.
    """
    whole = max(1, teacher.config.max_position_embeddings - 1)
    logits, hidden, cache = [], [], None
    with torch.inference_mode():
        for chunk in (token_ids[:whole], *([token_id] for token_id in token_ids[whole:])):
            output = teacher(torch.tensor([chunk]), cache=cache, use_cache=True, output_hidden_states=True)
            cache = output.cache
            logits.append(output.logits[0])
            hidden.append(output.hidden_states[-1][0])
    return torch.cat(logits), torch.cat(hidden)


def assert_greedy(teacher: PreTrainedModel, prompt: list[int], answer: list[int]) -> None:
    """Each token of the answer is the one that the teacher, given all before it, finds most likely, ties aside."""
    logits = teach(teacher, prompt + answer)[0][len(prompt) - 1 : -1]  # [answer, V]
    chosen = logits.gather(1, torch.tensor(answer).unsqueeze(1)).squeeze(1)
    behind = logits.max(dim=1).values - chosen
    assert bool((behind < TIE).all()), f"token {int(behind.argmax())} is {float(behind.max())} behind the best"
