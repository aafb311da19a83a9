"""The random numbers of samples: known answers of Philox, and uniform numbers that depend on their key and counter alone."""

import numpy as np
import pytest

from regard.decoding.philox import philox, uniform


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # Random123, tests/kat_vectors, "philox4x32 10"
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_known_answers(counter: str, key: str, expected: str) -> None:
    def words(text: str) -> list[np.ndarray]:
        return [np.array([int(word, 16)], dtype=np.uint64) for word in text.split()]

    assert [f"{int(word[0]):08x}" for word in philox(words(counter), words(key))] == expected.split()


def test_a_number_has_53_bits_of_the_first_two_words() -> None:
    """The key is the seed, low word first; the counter is (hypothesis, step, 0, 0)."""
    seed, hypothesis, step = 0x299F31D0A4093822, 2, 5
    counter = [np.array([word], dtype=np.uint64) for word in (hypothesis, step, 0, 0)]
    first, second, *_ = philox(counter, [np.array([word], dtype=np.uint64) for word in (0xA4093822, 0x299F31D0)])
    expected = ((int(first[0]) >> 5) * 2**26 + (int(second[0]) >> 6)) / 2**53
    assert uniform([1, seed], 3, [0, step])[1, hypothesis] == expected


def test_a_number_depends_on_its_seed_hypothesis_and_step_alone() -> None:
    seeds, steps = [0, 1, 2**32, 2**64 - 1, 1], [0, 7, 7, 100_000, 8]
    together = uniform(seeds, 5, steps)
    for row, (seed, step) in enumerate(zip(seeds, steps, strict=True)):
        assert uniform([seed], 3, [step])[0].tolist() == together[row, :3].tolist()
    assert len(set(together.flatten().tolist())) == 25


def test_numbers_are_uniform() -> None:
    """Along each of the three axes: mean, variance, the shares of 64 intervals, and no correlation of neighbours."""
    count = 20_000
    by_hypothesis = uniform([7], count, [3])[0]
    by_step = uniform([7] * count, 1, range(count))[:, 0]
    by_seed = uniform(range(count), 1, [3] * count)[:, 0]
    for numbers in (by_hypothesis, by_step, by_seed):
        assert 0 <= numbers.min() < numbers.max() < 1
        assert numbers.mean() == pytest.approx(1 / 2, abs=4 * (1 / 12 / count) ** 0.5)
        assert numbers.var() == pytest.approx(1 / 12, abs=4 * (1 / 180 / count) ** 0.5)
        counts = np.histogram(numbers, 64, (0, 1))[0]
        assert ((counts - count / 64) ** 2 / (count / 64)).sum() < 63 + 4 * (2 * 63) ** 0.5  # χ² with 63 degrees of freedom
        assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 4 / count**0.5
