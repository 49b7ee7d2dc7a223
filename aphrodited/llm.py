"""LLM: generate and embed from Python, in this process, without a daemon.

    llm = LLM("SmolLM2-135M-Instruct.Q4_1.gguf")
    for output in llm.generate(["The capital of France is"], SamplingParams(temperature=0.0)):
        print(output.outputs[0].text)
    (embedding,) = llm.embed("The capital of France")

Feeds an EngineBackend and puts its tokens together. Not for use from several threads.
"""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Collection, Generator, Iterable, Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec

from aphrodited.config.schema import EngineConfig, ModelConfig
from aphrodited.engine.factory import create_backend
from aphrodited.errors import ConfigError, QueueFullError, RequestError
from aphrodited.outputs import EmbeddingOutput, RequestOutput, TokenOutput
from aphrodited.request import EncodeRequest, EngineRequest, GenerateRequest, Pooling
from aphrodited.sampling_params import SamplingParams
from aphrodited.tokenizer.chat_template import Message
from aphrodited.tokenizer.detokenizer import OutputBuilder
from aphrodited.tokenizer.tokenizer import Tokenizer, load_tokenizer

Prompts = str | Sequence[str] | Sequence[int] | Sequence[Sequence[int]]


class LLM:
    """One model, loaded. Options are those of `models[]` and `models[].engine` in the configuration, in one row.

    Raises ConfigError for an unknown or wrong option, ModelLoadError if the model cannot be loaded.
    """

    def __init__(self, model: str | Path, *, cache_dir: Path | None = None, **options: Any) -> None:
        self._path = Path(model)
        self._engine = create_backend(
            model_config(self._path, options), cache_dir or default_cache_dir(), lambda progress, what: None
        )
        self._keys = itertools.count()

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Loaded when first needed: prompts of token ids with detokenize off need none."""
        return load_tokenizer(self._path)

    def generate(
        self, prompts: Prompts, sampling_params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> list[RequestOutput]:
        """One finished RequestOutput per prompt, in their order. A prompt is a text or a list of token ids.

        sampling_params: one for all prompts, or one each.  Raises RequestError for a bad prompt or parameter; then the
        other prompts of this call are given up too.
        """
        texts_or_ids = _prompt_list(prompts)
        params = _params_list(sampling_params, len(texts_or_ids))
        return self._run([self._job(prompt, p) for prompt, p in zip(texts_or_ids, params, strict=True)])

    def chat(
        self, messages: Sequence[Message] | Sequence[Sequence[Message]], sampling_params: SamplingParams | None = None
    ) -> list[RequestOutput]:
        """The assistant's next message for one conversation or for several. Raises RequestError."""
        conversations: list[Any] = list(messages)
        if conversations and isinstance(conversations[0], dict):
            conversations = [conversations]
        return self.generate([self.tokenizer.encode_chat(c) for c in conversations], sampling_params)

    def encode(
        self, prompts: Prompts, *, pooling: str = Pooling.LAST, normalize: bool = True
    ) -> list[EmbeddingOutput]:
        """One embedding per prompt, in their order; see EncodeRequest for the options. Raises as `generate` does."""
        unfinished = {next(self._keys): self._token_ids(prompt) for prompt in _prompt_list(prompts)}
        requests = [(key, EncodeRequest(str(key), ids, pooling, normalize)) for key, ids in unfinished.items()]
        finished: dict[int, EmbeddingOutput] = {}
        with closing(self._outputs(requests, unfinished)) as outputs:
            for output in outputs:
                key, token_ids = output.key, unfinished.pop(output.key)
                if output.embedding is None:
                    code, message = output.error or ("internal_error", "the engine gave no reason")
                    raise RequestError(message, code=code)
                finished[key] = EmbeddingOutput(str(key), token_ids, output.embedding, output.num_cached_tokens)
        return [finished[key] for key, _ in requests]

    def embed(
        self, prompts: Prompts, *, pooling: str = Pooling.LAST, normalize: bool = True
    ) -> list[tuple[float, ...]]:
        """The numbers of `encode` alone."""
        return [output.values for output in self.encode(prompts, pooling=pooling, normalize=normalize)]

    def close(self) -> None:
        """Release the model's memory."""
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _token_ids(self, prompt: str | list[int]) -> list[int]:
        return self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt

    def _job(self, prompt: str | list[int], params: SamplingParams) -> tuple[int, GenerateRequest, OutputBuilder]:
        key = next(self._keys)
        token_ids = self._token_ids(prompt)
        tokenizer = self.tokenizer if params.detokenize else None
        text = prompt if isinstance(prompt, str) else None
        builder = OutputBuilder(str(key), text, token_ids, params, tokenizer)
        return key, GenerateRequest(str(key), token_ids, params), builder

    def _run(self, jobs: list[tuple[int, GenerateRequest, OutputBuilder]]) -> list[RequestOutput]:
        unfinished = {key: builder for key, _, builder in jobs}
        finished: dict[int, RequestOutput] = {}
        with closing(self._outputs([(key, request) for key, request, _ in jobs], unfinished)) as outputs:
            for token_output in outputs:
                key = token_output.key
                output = unfinished[key].add(token_output)
                if unfinished[key].stopped_by_string:
                    self._engine.abort_request(key)
                if output.finished:
                    finished[key] = output
                    del unfinished[key]
        return [finished[key] for key, _, _ in jobs]

    def _outputs(
        self, requests: Iterable[tuple[int, EngineRequest]], unfinished: Collection[int]
    ) -> Generator[TokenOutput]:
        """What the engine makes of these requests, while the caller has `unfinished` ones; closing aborts those."""
        waiting = deque(requests)
        try:
            while unfinished:
                self._submit(waiting)
                yield from self._engine.step()
        finally:
            for key in unfinished:
                self._engine.abort_request(key)

    def _submit(self, waiting: deque[tuple[int, EngineRequest]]) -> None:
        while waiting:
            try:
                self._engine.add_request(*waiting[0])
            except QueueFullError:
                return
            waiting.popleft()


def model_config(path: Path, options: dict[str, Any]) -> ModelConfig:
    """The configuration of one model from keyword options. Raises ConfigError."""
    engine_fields = set(EngineConfig.__struct_fields__)
    own_fields = set(ModelConfig.__struct_fields__) - {"name", "path", "engine"}
    unknown = sorted(options.keys() - engine_fields - own_fields)
    if unknown:
        known = ", ".join(sorted(engine_fields | own_fields))
        raise ConfigError(f"unknown option {unknown[0]}; there are {known}")
    values = {name: value for name, value in options.items() if name in own_fields}
    engine = {name: value for name, value in options.items() if name in engine_fields}
    try:
        return msgspec.convert({"name": "llm", "path": str(path), **values, "engine": engine}, ModelConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(str(error)) from error


def default_cache_dir() -> Path:
    """aphrodited's folder in $XDG_CACHE_HOME, or in ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "aphrodited"


def _prompt_list(prompts: Prompts) -> list[str | list[int]]:
    if isinstance(prompts, str):
        return [prompts]
    if prompts and isinstance(prompts[0], int):
        return [[int(token_id) for token_id in prompts]]  # type: ignore[arg-type]
    return [prompt if isinstance(prompt, str) else list(prompt) for prompt in prompts]  # type: ignore[arg-type]


def _params_list(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if len(params) != count:
        raise ValueError(f"{len(params)} sampling_params for {count} prompts: give one, or one each")
    return list(params)
