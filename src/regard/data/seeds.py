"""Seeds that are functions of what they are for, so that random numbers can be reproduced without those drawn before them."""

from __future__ import annotations

import hashlib


def derived_seed(*parts: object) -> int:
    """Returns a seed below 2^63 that depends only on `parts`, such as (seed, purpose, update, example)."""
    return int.from_bytes(hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()) >> 1
