"""What a Pooler makes of hidden states, whole or in pieces."""

import math
import struct

import numpy as np
import pytest

from aphrodited.engine.pooling import Pooler, pooled
from aphrodited.request import Pooling

HIDDEN = np.random.default_rng(5).normal(size=(50, 24)) * 100


def embed(pooling, cuts=(), *, normalize=False, hidden=HIDDEN):
    pooler = Pooler(pooling, normalize=normalize)
    ends = [*cuts, len(hidden)]
    for start, end in zip([0, *ends], ends, strict=False):
        pooler.take(hidden[start:end].copy(), start)
    return numbers(pooler.finish())


def numbers(result):
    return np.frombuffer(result.data, "<f4")


def test_the_mean_is_that_of_every_token():
    np.testing.assert_allclose(embed(Pooling.MEAN), HIDDEN.mean(axis=0), rtol=1e-5)


def test_the_last_is_that_of_the_last_token():
    np.testing.assert_array_equal(embed(Pooling.LAST), HIDDEN[-1].astype(np.float32))


@pytest.mark.parametrize("pooling", Pooling)
@pytest.mark.parametrize("cuts", [[1], [49], [16, 32, 48], list(range(1, 50))])
def test_pieces_give_the_bits_of_the_whole(pooling, cuts):
    np.testing.assert_array_equal(embed(pooling, cuts), embed(pooling))


def test_a_sequence_that_begins_again_forgets_what_it_had():
    pooler = Pooler(Pooling.MEAN, normalize=True)
    pooler.take(HIDDEN[:30].copy(), 0)
    pooler.take(HIDDEN[:20].copy(), 0)
    pooler.take(HIDDEN[20:].copy(), 20)
    np.testing.assert_array_equal(numbers(pooler.finish()), embed(Pooling.MEAN, normalize=True))


@pytest.mark.parametrize("pooling", Pooling)
def test_a_normalised_embedding_has_length_one_and_the_same_direction(pooling):
    unit = embed(pooling, normalize=True)
    assert math.hypot(*unit.tolist()) == pytest.approx(1.0, abs=1e-6)
    plain = embed(pooling).astype(np.float64)
    np.testing.assert_allclose(unit, plain / np.linalg.norm(plain), rtol=1e-5)


def test_zero_stays_zero():
    assert not numbers(pooled(np.zeros(3), normalize=True)).any()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_is_no_embedding(value):
    assert pooled(np.array([1.0, value]), normalize=False).data is None


def test_the_bytes_are_little_endian_float32():
    assert pooled(np.array([1.5, -2.0]), normalize=False).data == struct.pack("<2f", 1.5, -2.0)
