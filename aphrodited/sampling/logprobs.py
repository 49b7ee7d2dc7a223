"""Log-probabilities of chosen tokens and of their alternatives, from unmodified logits. Chooses nothing."""

from __future__ import annotations

from torch import Tensor

from aphrodited.outputs import TokenLogprobs
from aphrodited.sampling_params import MAX_LOGPROBS


def token_logprobs(logits: Tensor, token_ids: Tensor, num_alternatives: list[int]) -> list[TokenLogprobs]:
    """One TokenLogprobs per row.

    logits: [R, V] as the model gave them.  token_ids: [R], the chosen ones.  num_alternatives: R numbers of at
    most MAX_LOGPROBS. Always looks at as many alternatives, so that equal logits come in the same order in any batch.
    """
    logprobs = logits.log_softmax(-1)  # [R, V]
    chosen = logprobs.gather(1, token_ids[:, None])  # [R, 1]
    ranks = ((logprobs > chosen).sum(-1) + 1).tolist()
    top = logprobs.topk(min(MAX_LOGPROBS, logits.shape[1]), dim=-1)
    top_logprobs, top_token_ids = top.values.tolist(), top.indices.tolist()
    return [
        TokenLogprobs(token_id, logprob, rank, ids[:n], values[:n])
        for token_id, logprob, rank, ids, values, n in zip(
            token_ids.tolist(), chosen[:, 0].tolist(), ranks, top_token_ids, top_logprobs, num_alternatives, strict=True
        )
    ]
