"""Whatever a file holds, loading it ends in a configuration or in a ConfigError."""

from __future__ import annotations

import contextlib
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aphrodited.config.loader import load_config
from aphrodited.errors import ConfigError

EXAMPLE = (Path(__file__).resolve().parents[3] / "config.example.yaml").read_text().replace("#", "")
LINES = EXAMPLE.splitlines()

quick = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
pieces = st.sampled_from([":", "-", "[", "]", "{", "}", "&a", "*a", "!!int", "<<", "|", ">", "'", '"', "\t", "  ", "\n", "~", "%", "---", "\x85"])


def loads_or_complains(path: Path, raw: bytes, overrides: tuple[str, ...] = ()) -> None:
    path.write_bytes(raw)
    with contextlib.suppress(ConfigError):
        load_config(path, overrides)


@quick
@given(raw=st.binary(max_size=200))
def test_bytes(tmp_path: Path, raw: bytes) -> None:
    loads_or_complains(tmp_path / "a.yaml", raw)


@quick
@given(parts=st.lists(pieces | st.sampled_from(LINES) | st.text(max_size=8), max_size=30))
def test_pieces_of_yaml(tmp_path: Path, parts: list[str]) -> None:
    loads_or_complains(tmp_path / "a.yaml", "".join(parts).encode("utf-8", "surrogatepass"))


@quick
@given(line=st.sampled_from(range(len(LINES))), text=st.text(max_size=20) | pieces)
def test_one_line_of_a_good_file_spoilt(tmp_path: Path, line: int, text: str) -> None:
    lines = [*LINES[:line], f"{LINES[line].partition(':')[0]}: {text}", *LINES[line + 1 :]]
    loads_or_complains(tmp_path / "a.yaml", "\n".join(lines).encode("utf-8", "surrogatepass"))


@quick
@given(override=st.text(max_size=20) | st.builds("api.port={}".format, st.text(max_size=10) | pieces))
def test_overrides(tmp_path: Path, override: str) -> None:
    loads_or_complains(tmp_path / "a.yaml", b"models: [{name: m, path: org/m}]", (override,))
