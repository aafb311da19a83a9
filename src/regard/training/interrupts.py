"""Ctrl-C and SIGTERM during training."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from regard.errors import UserError


class Interrupted(UserError):
    """Training was interrupted by the user, after a checkpoint."""


@contextmanager
def on_interrupt(handle: Callable[[], None]) -> Iterator[None]:
    """Calls `handle` for every SIGINT (Ctrl-C) and SIGTERM inside the block, and restores the handlers of before at its end.

    Outside the main thread, where no signals arrive, it does nothing.
    """
    try:
        before = {number: signal.signal(number, lambda *_: handle()) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # this is not the main thread
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
