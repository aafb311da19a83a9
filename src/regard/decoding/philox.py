"""Random numbers for sampling: Philox4x32-10 (Salmon et al. 2011), a counter-based generator.

A number is a function of (seed, hypothesis, step) and of nothing else: there is no stream to keep in order, so a sample does
not depend on its batch, and any engine that implements these few lines draws the same samples.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# B sentences  K hypotheses

Words = NDArray[np.uint64]
"""32-bit words, held in 64 bits so that a product of two keeps its high half."""

ROUNDS = 10
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_KEY_STEPS = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW, _32 = np.uint64(0xFFFFFFFF), np.uint64(32)


def philox(counter: Sequence[Words], key: Sequence[Words]) -> tuple[Words, Words, Words, Words]:
    """Returns four random words for a counter of four words and a key of two; arrays are broadcast."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        product0, product1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (product1 >> _32) ^ c1 ^ k0, product1 & _LOW, (product0 >> _32) ^ c3 ^ k1, product0 & _LOW
        k0, k1 = (k0 + _KEY_STEPS[0]) & _LOW, (k1 + _KEY_STEPS[1]) & _LOW
    return c0, c1, c2, c3


def uniform(seeds: Sequence[int], num_hypotheses: int, steps: Sequence[int]) -> NDArray[np.float64]:
    """Returns a number in [0, 1) with 53 random bits for each hypothesis of each sentence, (B, K).

    seeds: a seed below 2^64 for each sentence: its low word, then its high word, are the key.
    steps: the number of tokens that the hypotheses of each sentence have. The counter is (hypothesis, step, 0, 0).
    """
    seeds_B1 = np.array(seeds, dtype=np.uint64)[:, None]
    steps_B1 = np.array(steps, dtype=np.uint64)[:, None]
    hypotheses_1K = np.arange(num_hypotheses, dtype=np.uint64)[None]
    zero = np.zeros((1, 1), dtype=np.uint64)
    high, low, *_ = philox((hypotheses_1K, steps_B1, zero, zero), (seeds_B1 & _LOW, seeds_B1 >> _32))
    bits_BK = (high >> np.uint64(5)) * np.uint64(2**26) + (low >> np.uint64(6))
    return bits_BK / 2.0**53
