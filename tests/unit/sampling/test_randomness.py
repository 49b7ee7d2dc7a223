import numpy as np

from aphrodited.sampling.randomness import philox4x32, uniforms


def words(*values):
    return tuple(np.array([value], dtype=np.uint64) for value in values)


def run(counter, key):
    return [int(word[0]) for word in philox4x32(words(*counter), words(*key))]


def test_philox_gives_its_published_answers():
    # tests/kat_vectors of Random123 1.14.0, "philox4x32 10"
    ones = 0xFFFFFFFF
    assert run([0] * 4, [0] * 2) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    assert run([ones] * 4, [ones] * 2) == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]
    assert run([0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344], [0xA4093822, 0x299F31D0]) == [
        0xD16CFE09,
        0x94FDCCEB,
        0x5001E420,
        0x24126EA1,
    ]


def test_uniforms_depend_on_their_own_seed_and_position_only():
    together = uniforms([7, 7, 2**63 - 1], [0, 1, 2**40])
    assert together.tolist() == [
        uniforms([7], [0])[0],
        uniforms([7], [1])[0],
        uniforms([2**63 - 1], [2**40])[0],
    ]


def test_every_part_of_the_input_changes_the_number():
    numbers = {
        uniforms([seed], [position], draw)[0]
        for seed in (0, 1, 2**32, 2**62)
        for position in (0, 1, 2**32)
        for draw in (0, 1)
    }
    assert len(numbers) == 24


def test_uniforms_fill_the_unit_interval_evenly():
    u = uniforms(np.full(100_000, 5), np.arange(100_000))
    assert u.min() >= 0.0
    assert u.max() < 1.0
    counts = np.histogram(u, bins=100, range=(0, 1))[0]
    chi_square = ((counts - 1000) ** 2 / 1000).sum()
    assert chi_square < 149  # 99 degrees of freedom: 0.999 quantile 148.2
