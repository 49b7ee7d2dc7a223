"""The requests of a chaos run: one of each kind in turn, no two prompts alike, all that they ask drawn from the seed.

Each is greedy or has a seed, so that what it must be answered is known. Knows no transport and no fault.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
EMBEDDINGS = "/v1/embeddings"

# fmt: off
WORDS = [
    "river", "stone", "lantern", "orchard", "copper", "whisper", "harbour", "winter", "meadow", "engine", "paper",
    "silver", "garden", "thunder", "ladder", "island", "pocket", "mirror", "valley", "candle", "anchor", "feather",
    "market", "shadow", "bridge", "kettle", "sparrow", "needle", "forest", "window",
]
# fmt: on

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "count": {"type": "integer", "minimum": 0, "maximum": 999},
        "tags": {"type": "array", "items": {"enum": ["old", "new", "lost"]}, "maxItems": 4},
    },
    "required": ["name", "count", "tags"],
    "additionalProperties": False,
}
SCHEMA_TOKENS = 120
"""More than an answer of that shape needs, unless the model fills it with spaces."""

STREAMED_SHARE = 0.65
SAMPLED_SHARE = 0.5
LEAVING_SHARE = 0.12


@dataclass(frozen=True, slots=True)
class Case:
    """One request and how long its client stays.

    leaves_after_events: of a stream, and leaves_after_s: of a whole answer, after which the client closes its
    connection; None if it stays to the end.
    """

    number: int
    kind: str
    path: str
    body: dict[str, Any]
    leaves_after_events: int | None = None
    leaves_after_s: float | None = None

    @property
    def is_streamed(self) -> bool:
        return bool(self.body.get("stream"))

    def undisturbed(self) -> dict[str, Any]:
        """The body that asks for the same answer, whole."""
        return {name: value for name, value in self.body.items() if name not in ("stream", "stream_options")}


def cases(model: str, seed: int, num_tokens: int) -> Iterator[Case]:
    """Endless.  num_tokens: of an answer, on average; half of it to half as much again."""
    rng = random.Random(f"cases {seed}")
    number = 0
    while True:
        for kind, make in rng.sample(sorted(KINDS.items()), len(KINDS)):
            number += 1
            path, fields = make(rng, _prompt(rng, seed, number))
            length = {"max_tokens": rng.randint(num_tokens // 2, num_tokens * 3 // 2), "ignore_eos": True}
            defaults = {"model": model} if path == EMBEDDINGS else {"model": model, **length, **_sampling(rng)}
            yield _with_manners(rng, Case(number, kind, path, {**defaults, **fields}), num_tokens)


def _prompt(rng: random.Random, seed: int, number: int) -> str:
    """Its number comes first, so that no two requests share a cached prefix of any length."""
    words = rng.choices(WORDS, k=rng.randint(4, 40))
    return f"{number} of {seed}: tell me of {' '.join(words)}."


def _sampling(rng: random.Random) -> dict[str, Any]:
    if rng.random() >= SAMPLED_SHARE:
        return {"temperature": 0}
    return {"temperature": rng.choice([0.6, 1.0, 1.3]), "top_p": rng.choice([0.9, 1.0]), "seed": rng.randrange(2**31)}


def _with_manners(rng: random.Random, case: Case, num_tokens: int) -> Case:
    """Whether it is streamed, and whether its client leaves before the end."""
    is_streamed = rng.random() < STREAMED_SHARE and case.path != EMBEDDINGS
    leaves = rng.random() < LEAVING_SHARE
    if is_streamed:
        body = {**case.body, "stream": True, "stream_options": {"include_usage": True}}
        after = rng.randint(1, max(1, num_tokens // 2)) if leaves else None
        return Case(case.number, case.kind, case.path, body, leaves_after_events=after)
    return Case(case.number, case.kind, case.path, case.body, leaves_after_s=rng.uniform(0, 1) if leaves else None)


def _completion(_rng: random.Random, prompt: str) -> tuple[str, dict[str, Any]]:
    return COMPLETIONS, {"prompt": prompt}


def _chat(_rng: random.Random, prompt: str) -> tuple[str, dict[str, Any]]:
    return CHAT, {"messages": [{"role": "user", "content": prompt}]}


def _choices(rng: random.Random, prompt: str) -> tuple[str, dict[str, Any]]:
    return CHAT, {"messages": [{"role": "user", "content": prompt}], "n": rng.randint(2, 3)}


def _stops(rng: random.Random, prompt: str) -> tuple[str, dict[str, Any]]:
    """Some are found, some only begin again and again, so that text is held back."""
    stop = rng.sample([".\n\n", " the same", "\n\n\n\n\n", "e e", "zzzz", " and so on"], 3)
    return COMPLETIONS, {"prompt": prompt, "stop": stop, "frequency_penalty": 0.5}


def _completion_logprobs(_rng: random.Random, prompt: str) -> tuple[str, dict[str, Any]]:
    return COMPLETIONS, {"prompt": prompt, "logprobs": 2}


def _chat_logprobs(_rng: random.Random, prompt: str) -> tuple[str, dict[str, Any]]:
    return CHAT, {"messages": [{"role": "user", "content": prompt}], "logprobs": True, "top_logprobs": 2}


def _schema(_rng: random.Random, prompt: str) -> tuple[str, dict[str, Any]]:
    shape = {"type": "json_schema", "json_schema": {"name": "thing", "strict": True, "schema": SCHEMA}}
    fields = {"response_format": shape, "max_tokens": SCHEMA_TOKENS, "ignore_eos": False}
    return CHAT, {"messages": [{"role": "user", "content": prompt}], **fields}


def _choice(rng: random.Random, prompt: str) -> tuple[str, dict[str, Any]]:
    texts = [" ".join(rng.choices(WORDS, k=12)) for _ in range(3)]
    fields = {"structured_outputs": {"choice": texts}, "max_tokens": SCHEMA_TOKENS, "ignore_eos": False}
    return COMPLETIONS, {"prompt": prompt, **fields}


def _embedding(_rng: random.Random, prompt: str) -> tuple[str, dict[str, Any]]:
    return EMBEDDINGS, {"input": [prompt, f"{prompt} Again."], "encoding_format": "base64"}


KINDS: dict[str, Callable[[random.Random, str], tuple[str, dict[str, Any]]]] = {
    "completion": _completion,
    "chat": _chat,
    "choices": _choices,
    "stops": _stops,
    "completion logprobs": _completion_logprobs,
    "chat logprobs": _chat_logprobs,
    "schema": _schema,
    "choice": _choice,
    "embedding": _embedding,
}
