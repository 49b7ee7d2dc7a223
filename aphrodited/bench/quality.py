"""What quantisation costs: perplexity of real text, and how often the most likely token is still the same.

Reads the text twice, in passages, with the model as it is and quantised. Its own text is the manual of Python's language,
which every interpreter carries with it. Then both continue the beginnings of the passages by themselves, greedily.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

from aphrodited.bench.report import append_json_line, report
from aphrodited.llm import LLM
from aphrodited.outputs import TokenLogprobs
from aphrodited.sampling_params import SamplingParams

NUM_BEGINNING = 64  # tokens of a passage that an answer continues


@dataclass(frozen=True, slots=True)
class Reading:
    """What one model thinks of the passages: of each token after a passage's first, and how it goes on by itself."""

    logprobs: list[float]
    most_likely: list[int]
    answers: list[list[int]]

    @property
    def perplexity(self) -> float:
        return math.exp(-sum(self.logprobs) / len(self.logprobs))


def cut_passages(token_ids: list[int], length: int, num_passages: int) -> list[list[int]]:
    """Passages of `length` tokens, spread evenly over the text."""
    available = len(token_ids) // length
    if available < num_passages:
        raise SystemExit(f"the text has {len(token_ids)} tokens, too few for {num_passages} passages of {length}")
    starts = [available * i // num_passages * length for i in range(num_passages)]
    return [token_ids[start : start + length] for start in starts]


def read(llm: LLM, passages: list[list[int]], answer_length: int) -> Reading:
    score = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=1, detokenize=False)
    scored: list[TokenLogprobs] = []
    for passage in passages:
        (output,) = llm.generate([passage], score)
        scored += output.prompt_logprobs or []
    greedy = SamplingParams(temperature=0.0, max_tokens=answer_length, ignore_eos=True, detokenize=False)
    answers = llm.generate([passage[:NUM_BEGINNING] for passage in passages], greedy)
    return Reading(
        [token.logprob for token in scored],
        [token.top_token_ids[0] for token in scored],
        [list(output.outputs[0].token_ids) for output in answers],
    )


def compare(exact: Reading, other: Reading) -> dict[str, Any]:
    """same_most_likely: share of positions.  same_answer_tokens: mean length of what answers have in common."""
    num_positions = len(exact.logprobs)
    same = sum(a == b for a, b in zip(exact.most_likely, other.most_likely, strict=True))
    shift = sum(abs(a - b) for a, b in zip(exact.logprobs, other.logprobs, strict=True))
    return {
        "num_positions": num_positions,
        "perplexity": round(exact.perplexity, 3),
        "perplexity_quantized": round(other.perplexity, 3),
        "perplexity_ratio": round(other.perplexity / exact.perplexity, 4),
        "same_most_likely": round(same / num_positions, 4),
        "mean_logprob_shift": round(shift / num_positions, 4),
        "same_answer_tokens": round(
            sum(map(common_length, exact.answers, other.answers)) / len(exact.answers), 1
        ),
    }


def common_length(first: list[int], second: list[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=True)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="a model with its tokenizer")
    parser.add_argument("--quantization", default="int8", choices=("int8",))
    parser.add_argument("--text", type=Path, help="a text of your own, in UTF-8")
    parser.add_argument("--passages", type=int, default=40)
    parser.add_argument("--passage-len", type=int, default=256, help="tokens of each")
    parser.add_argument("--output-len", type=int, default=64, help="tokens that each beginning is continued by")
    parser.add_argument("--output-json", type=Path, help="append the result to this file of JSON lines")
    options = parser.parse_args()
    text = options.text.read_text("utf-8") if options.text else "\n\n".join(topics[name] for name in sorted(topics))
    readings = []
    for quantization in ("none", options.quantization):
        llm = LLM(options.model, quantization=quantization, max_model_len=options.passage_len + options.output_len)
        passages = cut_passages(llm.tokenizer.encode(text), options.passage_len, options.passages)
        readings.append(read(llm, passages, options.output_len))
        del llm
    line = report("quality", {"model": options.model, "quantization": options.quantization, **compare(*readings)})
    print(json.dumps(line, indent=2))
    if options.output_json:
        append_json_line(options.output_json, line)


if __name__ == "__main__":
    main()
