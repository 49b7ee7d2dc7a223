import itertools
from typing import Any

import jinja2
import pytest

from aphrodited.tokenizer.sandbox import MAX_LENGTH, MAX_RENDER_S, BoundedSandbox, TemplateLimitError


def render(source: str, **variables: Any) -> str:
    sandbox = BoundedSandbox()
    return sandbox.render(sandbox.from_string(source), variables)


class SlowClock:
    """Every look at it moves it on."""

    def __init__(self, step_s: float) -> None:
        self._ticks = itertools.count()
        self._step_s = step_s

    def __call__(self) -> float:
        return next(self._ticks) * self._step_s


@pytest.mark.parametrize(
    ("source", "output"),
    [
        ("{% for x in [1, 2, 3] %}{{ loop.index }}{{ '!' if loop.last }}{% endfor %}", "123!"),
        ("{% for x in 'abc' %}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }}{% endfor %}", "3b3ac3b"),
        ("{% for k, v in {'a': 1}.items() %}{{ k ~ v ~ '.' }}{% endfor %}", "a1."),
        ("{% for x in [1, 2, 3] if x > 1 %}{{ x }}{% else %}none{% endfor %}", "23"),
        ("{% for x in [] %}{{ x }}{% else %}none{% endfor %}", "none"),
        ("{% for x in [1, 2, 3] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}", "1"),
        ("{% for x in [[1], 2] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}", "12"),
        ("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(10000000) }}", "<10000000>"),
        ("{% set ns = namespace(n=0) %}{% for i in range(5) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "10"),
        ("{{ '-' * 3 }}{{ 2 ** 10 }}{{ 7 % 4 }}{{ '%s!' % 'a' }}{{ '%5.1f'|format(2.5) }}", "---10243a!  2.5"),
        ("{{ 'a\nb'|indent(2) }}{{ '{:>3}'.format(1) }}{{ 'a'|center(3) }}", "a\n  b  1 a "),
        ("{% generation %}{{ 'mine' }}{% endgeneration %}", "mine"),
        ("  {% if true %}\n  x\n  {% endif %}\n", "  x\n"),
    ],
)
def test_ordinary_templates_render_as_they_always_do(source: str, output: str) -> None:
    assert render(source) == output


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% set c = b %}{% endfor %}{% endfor %}",
        "{% set l = range(99999)|list %}{% for a in l %}{% for b in l %}x{% endfor %}{% endfor %}",
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    ],
)
def test_a_template_that_does_not_end_is_stopped_by_the_clock(source: str) -> None:
    sandbox = BoundedSandbox(SlowClock(MAX_RENDER_S / 1000))
    with pytest.raises(TemplateLimitError, match="ran for more than 2 s"):
        sandbox.render(sandbox.from_string(source), {})


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x' * 1000000000 }}",
        "{{ 1000000000 * [1] }}",
        "{{ 9 ** 99999 }}",
        "{% set n = namespace(v=2) %}{% for i in range(40) %}{% set n.v = n.v * n.v %}{% endfor %}",
        "{% set n = namespace(v='xxxxxxxx') %}{% for i in range(60) %}{% set n.v = n.v ~ n.v %}{% endfor %}",
        "{% set n = namespace(v=[1, 2]) %}{% for i in range(60) %}{% set n.v = n.v + n.v %}{% endfor %}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ '%1000000000d'|format(1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ 'x'.ljust(1000000000) }}",
        "{{ 'x'|center(1000000000) }}",
        "{{ 'x\nx'|indent(width=1000000000) }}",
    ],
)
def test_a_template_that_makes_something_huge_is_stopped_before_it_does(source: str) -> None:
    with pytest.raises(TemplateLimitError):
        render(source)


def test_an_output_that_is_too_long_is_stopped() -> None:
    with pytest.raises(TemplateLimitError, match=f"longer than {MAX_LENGTH}"):
        render("{% for i in range(80) %}{{ text }}{% endfor %}", text="x" * 2**20)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''['__class__']['__mro__'] }}",
        "{{ {}.update({1: 2}) }}",
        "{{ items.append(1) }}",
        "{% include '/etc/passwd' %}",
        "{{ lipsum(1000) }}",
        "{{ 'x'|bounded loop }}",
    ],
)
def test_a_template_reaches_nothing_outside_and_changes_nothing_inside(source: str) -> None:
    items: list[int] = []
    with pytest.raises((jinja2.TemplateError, TypeError)):
        render(source, items=items)
    assert items == []


def test_pythons_insides_are_undefined() -> None:
    assert render("{{ ''.__class__ }}{{ render.__globals__ }}", render=render) == ""
