"""From `response_format` and `structured_outputs` to the Grammar that an answer must follow. Compiles nothing."""

from __future__ import annotations

from typing import Any

import msgspec

from aphrodited.api.openai_types import GenerationFields, ResponseFormat, StructuredOutputs
from aphrodited.errors import RequestError
from aphrodited.sampling_params import Grammar, GrammarKind

ANY_OBJECT = '{"type":"object"}'


def grammar_of(request: GenerationFields) -> Grammar | None:
    """What the answer must look like; None if it may be anything. Raises RequestError, with `param`."""
    by_format = None if request.response_format is None else _of_format(request.response_format)
    by_outputs = None if request.structured_outputs is None else _of_outputs(request.structured_outputs)
    if by_format is not None and by_outputs is not None:
        raise RequestError("response_format and structured_outputs exclude each other", param="structured_outputs")
    return by_format or by_outputs


def _of_format(format: ResponseFormat) -> Grammar | None:
    param = "response_format"
    match format.type:
        case None | "text":
            return None
        case "json_object":
            return Grammar(GrammarKind.JSON, ANY_OBJECT, param)
        case "json_schema":
            if format.json_schema is None:
                raise RequestError(
                    "response_format of type json_schema needs json_schema", param="response_format.json_schema"
                )
            return Grammar(GrammarKind.JSON, _json(format.json_schema.schema) or ANY_OBJECT, param)
        case _:
            raise RequestError(
                "response_format.type must be text, json_object or json_schema", param="response_format.type"
            )


def _of_outputs(outputs: StructuredOutputs) -> Grammar | None:
    param = "structured_outputs"
    sources = (
        (GrammarKind.JSON, _json(outputs.json)),
        (GrammarKind.JSON, ANY_OBJECT if outputs.json_object else None),
        (GrammarKind.REGEX, outputs.regex),
        (GrammarKind.CHOICE, _json(outputs.choice)),
        (GrammarKind.GRAMMAR, outputs.grammar),
    )
    given = [Grammar(kind, source, param) for kind, source in sources if source is not None]
    if outputs.structural_tag is not None:
        raise RequestError("structural_tag is not supported", param="structured_outputs.structural_tag")
    if len(given) > 1:
        raise RequestError(
            "structured_outputs takes one of json, json_object, regex, choice and grammar", param=param
        )
    return given[0] if given else None


def _json(value: Any) -> str | None:
    """A value as JSON; a text is JSON already."""
    if value is None or isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()
