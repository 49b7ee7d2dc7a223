"""A jinja environment in which a template can neither change anything nor run for long.

Templates come with a model's files, which were downloaded from somewhere. jinja's own sandbox keeps them from
Python's insides; this adds bounds that it lacks:

    time         looked at on every turn of a loop, every call and every operator
    output       counted piece by piece
    big values   results of + * ** and ~, field widths, and numbers handed to strings' methods and to filters

They stop what loops, doubles or repeats. They are no exact account of memory: one filter over a long list may
still make a value of any size. Knows no messages and no tokenizer.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any

from jinja2 import Template, nodes, pass_context
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_RENDER_S = 2.0
MAX_LENGTH = 64 * 1024 * 1024  # characters or items, of the output and of any one value
MAX_NUMBER = 100_000  # as an argument: a width, a count, an index
MAX_BITS = 4096  # of an integer

_LONG_WIDTH = re.compile(r"\d{5,}|%[^a-zA-Z]*\*")
_FILTERS_WITH_WIDTHS = ("batch", "center", "indent", "slice", "wordwrap")
_LOOP_FILTER, _TEXT_FILTER = "bounded loop", "bounded text"  # with a space: no template can name them

_deadline_s: ContextVar[float] = ContextVar("deadline_s")


class TemplateLimitError(Exception):
    """A template went over one of its limits; the message says which."""


class BoundedSandbox(ImmutableSandboxedEnvironment):
    """The environment. Several threads may render in it at once."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationTag]
        )
        self._clock = clock
        self.filters[_LOOP_FILTER] = self._bounded_loop
        self.filters[_TEXT_FILTER] = _bounded_text
        for name in _FILTERS_WITH_WIDTHS:
            self.filters[name] = _with_small_numbers(self.filters[name])
        del self.globals["lipsum"]
        self.filters["format"] = _bounded_format(self.filters["format"])

    def render(self, template: Template, variables: dict[str, Any]) -> str:
        """The output of a template of this environment.

        Raises TemplateLimitError, jinja2.TemplateError, and what Python's operators raise for wrong types.
        """
        token = _deadline_s.set(self._clock() + MAX_RENDER_S)
        try:
            return "".join(self._bounded_output(template.generate(variables)))
        finally:
            _deadline_s.reset(token)

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        self._check_time()
        if isinstance(getattr(obj, "__self__", None), str):
            _check_numbers(args, kwargs)
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        self._check_time()
        _check_operands(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            _check_format(value.__self__)
        return wrapped

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        return super()._generate(_BoundsInserter().visit(source), *args, **kwargs)

    def _check_time(self) -> None:
        if self._clock() > _deadline_s.get():
            raise TemplateLimitError(f"it ran for more than {MAX_RENDER_S:g} s")

    @pass_context
    def _bounded_loop(self, context: object, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self._check_time()
            yield item

    def _bounded_output(self, pieces: Iterable[str]) -> Iterator[str]:
        length = 0
        for piece in pieces:
            self._check_time()
            length += len(piece)
            _check_length(length)
            yield piece


class _BoundsInserter(NodeTransformer):
    """Sends what a loop runs over, and what ~ makes, through the filters that look at it."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = _filtered(node.iter, _LOOP_FILTER)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        self.generic_visit(node)
        return _filtered(node, _TEXT_FILTER)


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _GenerationTag(Extension):
    """`{% generation %}` marks an assistant's own words for training; here it is its content and nothing else."""

    tags = {"generation"}  # noqa: RUF012 - how jinja wants it declared

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _bounded_text(text: str) -> str:
    _check_length(len(text))
    return text


def _with_small_numbers(apply: Callable[..., Any]) -> Callable[..., Any]:
    """The filter, refusing large numbers; what jinja noted on it (pass_environment, ...) is kept."""

    def apply_bounded(*args: Any, **kwargs: Any) -> Any:
        _check_numbers(args, kwargs)
        return apply(*args, **kwargs)

    apply_bounded.__dict__.update(apply.__dict__)
    return apply_bounded


def _bounded_format(apply: Callable[..., str]) -> Callable[..., str]:
    def apply_bounded(value: str, *args: Any, **kwargs: Any) -> str:
        _check_format(value)
        return apply(value, *args, **kwargs)

    return apply_bounded


def _check_operands(operator: str, left: Any, right: Any) -> None:
    if operator == "%":
        _check_format(left)
    elif operator == "+":
        _check_length(_length(left) + _length(right))
    elif isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
        if bits > MAX_BITS:
            raise TemplateLimitError(f"it computes a number of more than {MAX_BITS} bits")
    elif operator == "*" and isinstance(right, int):
        _check_length(_length(left) * right)
    elif operator == "*" and isinstance(left, int):
        _check_length(_length(right) * left)


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple) else 0


def _check_length(length: int) -> None:
    if length > MAX_LENGTH:
        raise TemplateLimitError(f"it makes a text or list longer than {MAX_LENGTH}")


def _check_numbers(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if any(isinstance(value, int) and abs(value) > MAX_NUMBER for value in (*args, *kwargs.values())):
        raise TemplateLimitError(f"it asks for a width or a count above {MAX_NUMBER}")


def _check_format(text: Any) -> None:
    if isinstance(text, str) and _LONG_WIDTH.search(text):
        raise TemplateLimitError("it formats with a width of more than four digits")
