"""From prompts and messages to token ids. Long texts are worked on in a thread, short ones at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from aphrodited.api.body import wrong_type
from aphrodited.api.openai_types import ChatFields, ContentPart, Int, Message, ToolCall
from aphrodited.errors import RequestError
from aphrodited.sampling_params import MAX_BAD_WORDS, SamplingParams
from aphrodited.tokenizer.tokenizer import Tokenizer

INLINE_CHARS = 8192
"""About 2 ms of tokenising: shorter than what a thread costs, and no pause that a stream would notice."""

ROLES = ("system", "developer", "user", "assistant", "tool")
_RESERVED = frozenset(
    {"messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template", "bos_token", "eos_token"}
)

T = TypeVar("T")


async def work(size: int, task: Callable[[], T]) -> T:
    """Run `task`, whose work grows with `size` characters, here or in a thread."""
    if size <= INLINE_CHARS:
        return task()
    return await asyncio.to_thread(task)


def given_prompts(given: str | list[Any] | None, param: str, max_prompts: int) -> list[str] | list[list[int]]:
    """The prompts in the field `param`, a string, strings, token ids or lists of them. Raises RequestError."""
    if given is None or given == "" or given == []:
        raise RequestError(f"{param} must be given and not be empty", param=param)
    if isinstance(given, str):
        return [given]
    try:
        if isinstance(given[0], int):
            return [msgspec.convert(given, list[Int])]
        if len(given) > max_prompts:
            raise RequestError(f"{param} must be a list of at most {max_prompts} prompts", param=param)
        if isinstance(given[0], str):
            return msgspec.convert(given, list[str])
        return msgspec.convert(given, list[list[Int]])
    except msgspec.ValidationError as error:
        raise wrong_type(error, param) from error


async def with_bad_words(params: SamplingParams, words: list[str] | None, tokenizer: Tokenizer) -> SamplingParams:
    """The parameters with the usual tokens of each word, as it begins a text and as it follows a space.

    Raises RequestError.
    """
    if not words:
        return params
    if len(words) > MAX_BAD_WORDS // 2 or not all(words):
        raise RequestError(f"bad_words must be at most {MAX_BAD_WORDS // 2} words, none of them empty", param="bad_words")

    def tokenize() -> tuple[tuple[int, ...], ...]:
        spellings = [spelling for word in words for spelling in (word, f" {word.lstrip()}")]
        return tuple({tuple(tokenizer.encode(text, add_special_tokens=False)): None for text in spellings})

    token_ids = await work(sum(map(len, words)), tokenize)
    return msgspec.structs.replace(params, bad_words_token_ids=token_ids)


async def chat_prompt(
    request: ChatFields, tools: list[dict[str, Any]] | None, tokenizer: Tokenizer, size: int
) -> list[int]:
    """The token ids of the messages and tools in the model's chat template; `size` is the whole request's in bytes.

    Raises RequestError.
    """
    messages = _template_messages(request.messages)
    extra = _template_values(request.chat_template_kwargs)
    continues = bool(request.continue_final_message)
    opens = request.add_generation_prompt
    if continues and opens:
        raise RequestError(
            "add_generation_prompt and continue_final_message exclude each other", param="continue_final_message"
        )

    def render() -> list[int]:
        return tokenizer.encode_chat(
            messages,
            add_generation_prompt=not continues if opens is None else opens,
            continue_final_message=continues,
            tools=tools,
            chat_template_kwargs=extra,
        )

    try:
        return await work(size, render)
    except RecursionError as error:
        raise RequestError("messages, tools or chat_template_kwargs are nested too deeply") from error


def _template_values(given: dict[str, Any] | None) -> dict[str, Any]:
    reserved = sorted(_RESERVED & set(given or {}))
    if reserved:
        raise RequestError(
            f"chat_template_kwargs must not set {', '.join(reserved)}", param=f"chat_template_kwargs.{reserved[0]}"
        )
    return given or {}


def _template_messages(messages: list[Message] | None) -> list[dict[str, Any]]:
    if not messages:
        raise RequestError("messages must be given and not be empty", param="messages")
    return [_template_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _template_message(message: Message, place: str) -> dict[str, Any]:
    """A message as templates know it: text content, tool calls with their arguments as objects."""
    if message.role not in ROLES:
        raise RequestError(f"role must be one of {', '.join(ROLES)}", param=f"{place}.role")
    if message.content is None and not message.tool_calls:
        raise RequestError("content may be null only beside tool_calls", param=f"{place}.content")
    made: dict[str, Any] = {
        "role": message.role,
        "content": _text(message.content, f"{place}.content"),
    }
    if message.name is not None:
        made["name"] = message.name
    if message.tool_call_id is not None:
        made["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        made["tool_calls"] = [
            _tool_call(call, f"{place}.tool_calls[{index}]") for index, call in enumerate(message.tool_calls)
        ]
    return made


def _text(content: str | list[ContentPart] | None, place: str) -> str | None:
    if content is None or isinstance(content, str):
        return content
    for index, part in enumerate(content):
        if part.type != "text" or part.text is None:
            raise RequestError(
                f"this model takes text parts only, not {part.type!r}", param=f"{place}[{index}].type"
            )
    return "".join(part.text or "" for part in content)


def _tool_call(call: ToolCall, place: str) -> dict[str, Any]:
    try:
        arguments = msgspec.json.decode(call.function.arguments or "{}")
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestError(f"arguments must be JSON: {error}", param=f"{place}.function.arguments") from error
    return {
        "id": call.id,
        "type": call.type,
        "function": {"name": call.function.name, "arguments": arguments},
    }
