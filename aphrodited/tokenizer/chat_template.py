"""Renders a conversation with a model's own chat template.

What callers wrote (messages, tools, extra values) goes in masked (see special_text), so that the control tokens in
the output are the template's own. The environment is the one templates on the Hugging Face hub are written for:
https://huggingface.co/docs/transformers/chat_templating_writing

Knows no token ids. There is no way to hand in a template from outside: only the model's own is ever run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import Template, TemplateError

from aphrodited.errors import RequestError
from aphrodited.tokenizer.facts import DEFAULT_TEMPLATE, TokenizerFacts
from aphrodited.tokenizer.sandbox import BoundedSandbox
from aphrodited.tokenizer.special_text import Mask, SpecialText

Message = Mapping[str, Any]

_TOOL_TEMPLATE = "tool_use"
_ROLE = re.compile(r"[a-z][a-z_]*")
_OUR_VARIABLES = frozenset({"messages", "tools", "documents", "add_generation_prompt"})


class ChatTemplate:
    """A model's chat templates, compiled when first used. Several threads may render at once."""

    def __init__(self, facts: TokenizerFacts, special: SpecialText) -> None:
        self._facts = facts
        self._special = special
        self._compiled: dict[str, Template] = {}
        self._sandbox = BoundedSandbox()
        self._sandbox.filters["tojson"] = _to_json
        self._sandbox.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
        tools: Sequence[Any] | None,
        extra: Mapping[str, Any],
    ) -> tuple[str, Mask]:
        """The conversation as the template writes it, still masked, and the mask that reveals it.

        continue_final_message ends the text inside the last message and leaves out the generation prompt.
        Raises RequestError if there is no template, or if it does not take these messages.
        """
        template = self._template(with_tools=bool(tools))
        _check_messages(messages)
        if not _OUR_VARIABLES.isdisjoint(extra):
            name = min(_OUR_VARIABLES.intersection(extra))
            raise RequestError(f"chat_template_kwargs must not set {name}", param="chat_template_kwargs")
        mask = Mask(self._special, [*messages, tools, extra, *self._facts.chat_templates.values()])
        hidden = [{key: _hidden(mask, key, value) for key, value in message.items()} for message in messages]
        end = _mark_end(hidden[-1], mask.take_mark()) if continue_final_message else None
        text = self._run(
            template,
            {
                **self._facts.special_tokens,
                **mask.hide(dict(extra)),
                "messages": hidden,
                "tools": mask.hide(tools) if tools else None,
                "documents": None,
                "add_generation_prompt": add_generation_prompt and not continue_final_message,
            },
        )
        return (text if end is None else _cut_at(text, end)), mask

    def _template(self, *, with_tools: bool) -> Template:
        sources = self._facts.chat_templates
        name = _TOOL_TEMPLATE if with_tools and _TOOL_TEMPLATE in sources else DEFAULT_TEMPLATE
        if name not in sources:
            raise RequestError(
                "this model has no chat template, so it cannot take messages; use /v1/completions with a prompt",
                param="messages",
                code="chat_template_missing",
            )
        if name not in self._compiled:
            try:
                self._compiled[name] = self._sandbox.from_string(sources[name])
            except (TemplateError, SyntaxError, RecursionError) as error:  # the last two: nested too deeply
                raise _template_error(f"is not valid jinja: {error}") from error
        return self._compiled[name]

    def _run(self, template: Template, variables: dict[str, Any]) -> str:
        try:
            return self._sandbox.render(template, variables)
        except _RefusedByTemplateError as error:
            raise _template_error(f"refused the messages: {error}") from error
        except RecursionError as error:
            raise _template_error("failed: it recurses without end") from error
        except Exception as error:
            raise _template_error(f"failed on these messages: {error}") from error


class _RefusedByTemplateError(TemplateError):
    """The template itself called raise_exception."""


def _template_error(what: str) -> RequestError:
    return RequestError(f"the model's chat template {what}", param="messages", code="chat_template_error")


def _check_messages(messages: Sequence[Message]) -> None:
    if not messages:
        raise RequestError("messages must hold at least one message", param="messages")
    for index, message in enumerate(messages):
        role = message.get("role")
        if not isinstance(role, str) or not _ROLE.fullmatch(role):
            raise RequestError(f"messages[{index}].role must be a lowercase word", param=f"messages[{index}].role")


def _hidden(mask: Mask, key: str, value: Any) -> Any:
    return value if key == "role" else mask.hide(value)


def _mark_end(message: dict[str, Any], mark: str) -> str:
    """Append a mark to the message's text; the space after the mark tells whether the template trims."""
    if not isinstance(message.get("content"), str):
        raise RequestError("the last message must have a text to be continued", param="continue_final_message")
    message["content"] += mark + " "
    return mark


def _cut_at(text: str, mark: str) -> str:
    before, found, after = text.rpartition(mark)
    if not found:
        raise _template_error("leaves out the last message, so it cannot be continued")
    return before if after.startswith(" ") else before.rstrip()


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)


def _raise_exception(message: str) -> NoReturn:
    raise _RefusedByTemplateError(message)
