"""The bodies of requests, as OpenAI's API and its usual extensions define them.

Decoded strictly: a wrong type is an error, never a conversion; null means "not given"; unknown fields are
ignored. What a field means, and whether this version supports it, is decided in `parameters` and in the services.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Protocol

import msgspec
from msgspec import Meta

Int = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""What a message to an engine can hold."""

Priority = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
RequestId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._:-]{1,128}\Z")]

MAX_MESSAGES = 4096
MAX_PROMPTS = 256
MAX_INPUTS = 2048  # of OpenAI's embeddings


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None


class JsonSchemaFormat(msgspec.Struct, frozen=True):
    """strict, name and description change nothing: every schema is kept to."""

    schema: dict[str, Any] | None = None


class ResponseFormat(msgspec.Struct, frozen=True):
    type: str | None = None
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(msgspec.Struct, frozen=True):
    """One of these. json: a schema, or its text."""

    json: dict[str, Any] | str | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    structural_tag: Any = None


class GenerationFields(msgspec.Struct, frozen=True, kw_only=True):
    """What chat and completions have in common."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Int | None = None
    max_tokens: Int | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: Int | None = None
    stop: str | list[str] | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    response_format: ResponseFormat | None = None
    # -- beyond OpenAI's --
    min_p: float | None = None
    top_k: Int | None = None
    min_tokens: Int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[Int] | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    priority: Priority | None = None
    request_id: RequestId | None = None
    repetition_penalty: float | None = None
    bad_words: list[str] | None = None
    allowed_token_ids: list[Int] | None = None
    structured_outputs: StructuredOutputs | None = None
    prompt_logprobs: Int | None = None


class CompletionRequest(GenerationFields, frozen=True, kw_only=True):
    """POST /v1/completions. prompt: a string, a list of strings, token ids, or a list of token ids."""

    prompt: str | list[Any] | None = None
    echo: bool | None = None
    logprobs: Int | None = None
    best_of: Int | None = None
    suffix: str | None = None
    add_special_tokens: bool | None = None


class ContentPart(msgspec.Struct, frozen=True):
    type: str
    text: str | None = None


class FunctionCall(msgspec.Struct, frozen=True):
    name: str
    arguments: str


class ToolCall(msgspec.Struct, frozen=True):
    function: FunctionCall
    id: str | None = None
    type: str = "function"


class Message(msgspec.Struct, frozen=True):
    role: str
    content: str | list[ContentPart] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


Messages = Annotated[list[Message], Meta(max_length=MAX_MESSAGES)]


class ChatFields(Protocol):
    """What turns messages into a prompt, the same for a chat and for /tokenize."""

    @property
    def messages(self) -> list[Message] | None: ...
    @property
    def add_generation_prompt(self) -> bool | None: ...
    @property
    def continue_final_message(self) -> bool | None: ...
    @property
    def chat_template_kwargs(self) -> dict[str, Any] | None: ...
    @property
    def chat_template(self) -> str | None: ...


class ChatCompletionRequest(GenerationFields, frozen=True, kw_only=True):
    """POST /v1/chat/completions."""

    messages: Messages | None = None
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    chat_template: str | None = None
    max_completion_tokens: Int | None = None
    logprobs: bool | None = None
    top_logprobs: Int | None = None
    tool_choice: Any = None
    functions: list[Any] | None = None
    function_call: Any = None


class EmbeddingRequest(msgspec.Struct, frozen=True, kw_only=True):
    """POST /v1/embeddings. input: a string, a list of strings, token ids, or a list of token ids."""

    model: str | None = None
    input: str | list[Any] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Int | None = None
    # -- beyond OpenAI's --
    pooling: Literal["last", "mean"] | None = None
    normalize: bool | None = None
    add_special_tokens: bool | None = None
    priority: Priority | None = None
    request_id: RequestId | None = None


class TokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """POST /tokenize: a prompt, or messages as for a chat."""

    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None
    messages: Messages | None = None
    tools: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    chat_template: str | None = None


class DetokenizeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """POST /detokenize."""

    tokens: list[Int]
    model: str | None = None
    skip_special_tokens: bool | None = None
