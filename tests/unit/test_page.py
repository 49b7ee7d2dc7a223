"""The progress page: what is written is what is read, and nothing half-written is ever believed."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import pytest

from aphrodited.page import MAGIC, MESSAGE_SIZE, SIZE, Page, PageWriter, Phase, read_page


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "pages" / "engine"


def read(path: Path) -> Page:
    page = read_page(path)
    assert page is not None
    return page


def test_every_field_is_read_as_it_was_written(path: Path) -> None:
    given = {name: 100 + i for i, name in enumerate(n for n in Page.__struct_fields__ if n.startswith("num_"))}
    del given["num_ticks"]
    with closing(PageWriter(path)) as writer:
        writer.update(
            generation=3, phase=Phase.STEPPING, has_work=True, allowance_s=1.5, progress=0.5, message="é", **given
        )
        page = read(path)
    assert {name: getattr(page, name) for name in given} == given
    assert (page.generation, page.phase, page.has_work, page.allowance_s) == (3, Phase.STEPPING, True, 1.5)
    assert (page.pid, page.progress, page.message) == (os.getpid(), 0.5, "é")


@pytest.mark.parametrize("truth", [None, False, True])
def test_whether_an_engine_is_deterministic_may_be_unknown(path: Path, truth: bool | None) -> None:
    with closing(PageWriter(path)) as writer:
        assert read(path).is_deterministic is None
        writer.update(is_deterministic=truth)
        writer.tick()
        assert read(path).is_deterministic is truth


def test_every_write_is_a_sign_of_life(path: Path) -> None:
    with closing(PageWriter(path)) as writer:
        before = read(path)
        writer.tick()
        after = read(path)
    assert after.num_ticks == before.num_ticks + 1
    assert after.updated_at_s >= before.updated_at_s


def test_a_long_message_is_cut(path: Path) -> None:
    with closing(PageWriter(path)) as writer:
        writer.update(message="x" * 1000)
        assert read(path).message == "x" * MESSAGE_SIZE


def test_the_page_of_an_earlier_life_stays_as_it_was(path: Path) -> None:
    with closing(PageWriter(path)) as earlier:
        earlier.update(message="earlier")
        with path.open("rb") as held, closing(PageWriter(path)) as later:
            later.update(message="later")
            assert b"earlier" in held.read(SIZE)
        assert read(path).message == "later"


@pytest.mark.parametrize(
    "raw", [b"", MAGIC, b"XXXX" + bytes(SIZE), MAGIC + b"\xff\xff" + bytes(SIZE)], ids=["empty", "short", "other", "version"]
)
def test_what_is_no_page_is_none(path: Path, raw: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(raw)
    assert read_page(path) is None
    path.unlink()
    assert read_page(path) is None


def test_a_page_in_the_middle_of_a_write_is_not_believed(path: Path) -> None:
    with closing(PageWriter(path)):
        pass
    raw = bytearray(path.read_bytes())
    raw[8] |= 1  # the sequence counter is odd while somebody writes
    path.write_bytes(raw)
    assert read_page(path) is None
