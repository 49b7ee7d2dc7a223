"""The generated files say what the schema says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from aphrodited.config.loader import load, load_config
from aphrodited.config.reference import FILES, SIZE_PATTERN, json_schema, sections, show_value
from aphrodited.config.schema import Apply
from aphrodited.config.show import show_config

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "config.example.yaml"


@pytest.mark.parametrize("name", FILES)
def test_the_file_in_the_checkout_is_up_to_date(name: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    assert text == FILES[name](), "run: python -m aphrodited.config.reference"


def test_the_example_loads_as_it_stands() -> None:
    assert load_config(EXAMPLE).models[0].name == "smollm2-135m-instruct"


def test_the_example_with_every_default_written_out_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / EXAMPLE.name
    path.write_text(EXAMPLE.read_text())
    plain = load_config(path)
    path.write_text(re.sub(r"(?m)^( *)#(\w+:)", r"\1\2", EXAMPLE.read_text()))
    loaded = load(path)
    assert loaded.config == plain
    keys = {f"{section.path}.{entry.name}".replace("[]", "[0]") for section in sections() for entry in section.entries}
    assert keys <= set(loaded.origins)


def test_every_key_has_words_for_people() -> None:
    for section in sections():
        assert section.title.endswith("."), section.path
        for entry in section.entries:
            assert entry.leaf.description.endswith("."), f"{section.path}.{entry.name}"
            assert entry.leaf.extra["apply"] in set(Apply)


def test_the_schema_for_editors_knows_every_key_and_no_other() -> None:
    schema = json.loads(json_schema())
    model = schema["properties"]["models"]["items"]
    assert schema["required"] == ["models"]
    assert model["required"] == ["name", "path"]
    assert model["additionalProperties"] is False
    assert set(schema["properties"]) == {"models", "api", "mq", "monitor", "recovery", "logging", "paths"}
    assert re.match(SIZE_PATTERN, "2GiB")


@pytest.mark.parametrize(
    ("value", "text"), [(True, "true"), (None, "null"), ((1.0, 0.5), "[1, 0.5]"), (30.0, "30"), ("a", "a"), (7, "7")]
)
def test_values_are_shown_as_one_writes_them(value: object, text: str) -> None:
    assert show_value(value) == text


def test_shown_configuration_says_where_each_value_comes_from(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("models: [{name: m, path: org/m}]\napi: {max_body_size: 2MiB}\n")
    lines = show_config(load(path, ["api.port=7"])).splitlines()
    found = {line.split(":")[0]: re.split(r"\s+# ", line, maxsplit=1) for line in lines}
    assert found["api.port"] == ["api.port: 7", "--set api.port=7"]
    assert found["api.max_body_size"] == ["api.max_body_size: 2MiB", f"{path}:2:22"]
    assert found["api.workers"] == ["api.workers: 2", "default"]
    assert found["models[0].name"][1] == f"{path}:1:17"
