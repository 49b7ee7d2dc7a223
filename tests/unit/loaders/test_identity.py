"""The fingerprint: whatever may change the last bits of a result changes it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numba
import pytest
import torch

from aphrodited.layers import paged_attention
from aphrodited.loaders import identity
from aphrodited.loaders.dummy import KNOWN_SHAPES
from aphrodited.loaders.identity import file_identity, fingerprint
from tests.support.engine_runs import load
from tests.support.tiny_models import write_tiny_llama_dir

CONFIG = KNOWN_SHAPES["EleutherAI/pythia-70m-deduped"]
GIVEN = (CONFIG, "weights", torch.float32, "none", "numba 1")


@pytest.mark.parametrize(
    "other",
    [
        (replace(CONFIG, rope_theta=1.0), *GIVEN[1:]),
        (CONFIG, "others", *GIVEN[2:]),
        (CONFIG, "weights", torch.bfloat16, *GIVEN[3:]),
        (CONFIG, "weights", torch.float32, "int8", "numba 1"),
        (*GIVEN[:4], "numba 2"),
    ],
    ids=["shape", "weights", "dtype", "quantization", "kernel"],
)
def test_each_part_of_it_counts(other: tuple) -> None:  # type: ignore[type-arg]
    assert fingerprint(*GIVEN) == fingerprint(*GIVEN)
    assert fingerprint(*other) != fingerprint(*GIVEN)


def test_the_libraries_and_the_kind_of_cpu_count(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {fingerprint(*GIVEN)}
    for owner, name, value in (
        (torch, "__version__", "0.0"),
        (torch.backends.cpu, "get_cpu_capability", lambda: "ABACUS"),
        (identity, "ARITHMETIC_VERSION", -1),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, value)
            found.add(fingerprint(*GIVEN))
    assert len(found) == 4


def test_another_numba_is_another_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = write_tiny_llama_dir(tmp_path)
    here = load(directory)
    assert f"numba {numba.__version__} " in here.kernel
    monkeypatch.setattr(numba, "__version__", "0.0")
    assert load(directory).fingerprint != here.fingerprint


def test_an_engine_without_kernels_is_another_one_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = write_tiny_llama_dir(tmp_path)
    here = load(directory)
    monkeypatch.setattr(paged_attention, "load_kernels", lambda cache_dir: None)
    without = load(directory)
    assert here.nondeterminism == ""
    assert without.nondeterminism == "attention is computed by torch, not by kernels of its own"
    assert without.fingerprint != here.fingerprint


def test_a_file_that_was_written_again_is_another_one(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"12")
    before = file_identity(path)
    os.utime(path, ns=(1, 1))
    assert file_identity(path) != before
