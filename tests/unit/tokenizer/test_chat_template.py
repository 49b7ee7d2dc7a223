import re
from typing import Any

import pytest

from aphrodited.errors import RequestError
from aphrodited.tokenizer.chat_template import ChatTemplate
from aphrodited.tokenizer.facts import TokenizerFacts
from aphrodited.tokenizer.special_text import SpecialText
from tests.support.tiny_models import CHAT_TEMPLATE, SPECIAL_TOKENS

HELLO = [{"role": "user", "content": "Hello"}]


def render(source: str | dict[str, str], messages: Any = HELLO, **options: Any) -> str:
    templates = {"default": source} if isinstance(source, str) else source
    facts = TokenizerFacts(special_tokens={"bos_token": "<s>"}, chat_templates=templates)
    settings = {"add_generation_prompt": False, "continue_final_message": False, "tools": None, "extra": {}}
    text, mask = ChatTemplate(facts, SpecialText(SPECIAL_TOKENS)).render(messages, **(settings | options))
    return mask.reveal(text)


def test_a_conversation_is_written_as_the_template_says() -> None:
    assert render(CHAT_TEMPLATE) == "<|im_start|>user\nHello<|im_end|>\n"
    assert render(CHAT_TEMPLATE, add_generation_prompt=True).endswith("<|im_start|>assistant\n")


def test_templates_find_the_special_tokens_tools_and_extra_values_by_name() -> None:
    source = "{{ bos_token }}|{{ tools[0].name }}|{{ mood }}|{{ undefined_thing }}"
    assert render(source, tools=[{"name": "t"}], extra={"mood": "calm"}) == "<s>|t|calm|"


def test_without_tools_a_template_sees_none() -> None:
    assert render("{{ tools is none }}{{ documents is none }}", tools=[]) == "TrueTrue"


def test_the_tool_template_is_used_when_there_are_tools() -> None:
    both = {"default": "plain", "tool_use": "tools"}
    assert render(both) == "plain"
    assert render(both, tools=[{"name": "t"}]) == "tools"


def test_json_is_written_without_escapes_and_dates_as_asked() -> None:
    assert render("{{ messages[0]|tojson }}") == '{"role": "user", "content": "Hello"}'
    assert render("{{ x|tojson(indent=1) }}", extra={"x": {"é": "<&>"}}) == '{\n "é": "<&>"\n}'
    assert re.fullmatch(r"\d{4}-\d\d", render("{{ strftime_now('%Y-%m') }}"))


def test_a_message_keeps_its_special_text() -> None:
    message = {"role": "user", "content": "<|im_end|> and <|im_"}
    assert render(CHAT_TEMPLATE, [message]) == "<|im_start|>user\n<|im_end|> and <|im_<|im_end|>\n"


@pytest.mark.parametrize(
    ("source", "content", "output"),
    [
        (CHAT_TEMPLATE, "The answer ", "<|im_start|>assistant\nThe answer "),
        ("{% for m in messages %}[{{ m.content|trim }}]{% endfor %}", "The answer ", "[The answer"),
        ("{% for m in messages %}[{{ m.content }}]{% endfor %}", "", "["),
    ],
)
def test_a_message_to_be_continued_ends_the_text(source: str, content: str, output: str) -> None:
    messages = [{"role": "assistant", "content": content}]
    assert render(source, messages, continue_final_message=True, add_generation_prompt=True) == output


def test_continuing_does_not_change_the_callers_messages() -> None:
    messages = [{"role": "assistant", "content": "So"}]
    render(CHAT_TEMPLATE, messages, continue_final_message=True)
    assert messages == [{"role": "assistant", "content": "So"}]


@pytest.mark.parametrize(
    ("source", "options", "complaint"),
    [
        ({}, {}, "has no chat template"),
        ("{% for %}", {}, "chat template is not valid jinja"),
        ("{{ " + "(" * 5000 + ")" * 5000 + " }}", {}, "chat template is not valid jinja"),
        ("{% for a in [1] %}" * 60 + "{% endfor %}" * 60, {}, "chat template is not valid jinja"),
        ("{{ raise_exception('roles must alternate') }}", {}, "refused the messages: roles must alternate"),
        ("{{ messages[0].nothing.here }}", {}, "failed on these messages: .*has no attribute 'nothing'"),
        ("{{ 'a' + 1 }}", {}, "failed on these messages"),
        ("{{ 'x' * 1000000000 }}", {}, "it makes a text or list longer"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", {}, "it recurses without end"),
        (CHAT_TEMPLATE, {"messages": []}, "at least one message"),
        (CHAT_TEMPLATE, {"messages": [{"content": "x"}]}, r"messages\[0\].role must be a lowercase word"),
        (CHAT_TEMPLATE, {"messages": [{"role": "<|im_end|>", "content": ""}]}, r"messages\[0\].role"),
        (CHAT_TEMPLATE, {"extra": {"messages": []}}, "must not set messages"),
        ("fixed", {"continue_final_message": True}, "leaves out the last message"),
        (
            CHAT_TEMPLATE,
            {"continue_final_message": True, "messages": [{"role": "assistant", "content": None}]},
            "the last message must have a text",
        ),
    ],
)
def test_what_cannot_be_rendered_is_the_callers_to_mend(source: Any, options: Any, complaint: str) -> None:
    with pytest.raises(RequestError, match=complaint) as caught:
        render(source, **options)
    assert caught.value.http_status == 400
    assert caught.value.param is not None
