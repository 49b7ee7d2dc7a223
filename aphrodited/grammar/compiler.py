"""From a Grammar to llguidance's matcher. Refuses what is wrong in it; how long it may take is its caller's business."""

from __future__ import annotations

import json

import msgspec
from llguidance import LLMatcher, LLParserLimits, grammar_from

from aphrodited.grammar.refusal import refusal
from aphrodited.grammar.vocabulary import Vocabulary
from aphrodited.sampling_params import Grammar, GrammarKind

JSON_WHITESPACE = r"( |\n[ \t]{0,32})?"
"""Between JSON's tokens: nothing, a space, or a new line with its indentation. With any whitespace allowed, small models
write it without end."""

_LIMITS = LLParserLimits(
    initial_lexer_fuel=500_000,
    step_lexer_fuel=100_000,
    step_max_items=20_000,
    max_lexer_states=50_000,
    verbose_errors=False,  # they would hold the parser's whole state
)


def compile_grammar(grammar: Grammar, vocabulary: Vocabulary) -> LLMatcher:
    """The matcher at its beginning. Raises RequestError, saying what is wrong with the grammar."""
    try:
        source = _source(grammar)
    except (ValueError, msgspec.MsgspecError, RecursionError) as error:
        raise refusal(grammar, str(error)) from error
    matcher = LLMatcher(vocabulary.tokenizer, source, log_level=0, limits=_LIMITS)
    if matcher.is_error():
        raise refusal(grammar, matcher.get_error())
    return matcher


def _source(grammar: Grammar) -> str:
    match grammar.kind:
        case GrammarKind.JSON:
            return LLMatcher.grammar_from_json_schema(
                grammar.source, defaults={"whitespace_pattern": JSON_WHITESPACE}
            )
        case GrammarKind.REGEX:
            return LLMatcher.grammar_from_regex(grammar.source)
        case GrammarKind.CHOICE:
            choices = msgspec.json.decode(grammar.source, type=list[str])
            if not choices:
                raise ValueError("there is nothing to choose from")
            return LLMatcher.grammar_from_lark("start: " + " | ".join(map(_quoted, choices)))
        case GrammarKind.GRAMMAR:
            return grammar_from("grammar", grammar.source)


def _quoted(text: str) -> str:
    """A string of Lark's notation, which is JSON's but for one more control character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
