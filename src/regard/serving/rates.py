"""How many requests each client may send in a minute."""

from __future__ import annotations

from collections import OrderedDict
from ipaddress import IPv6Address, ip_address
from time import monotonic

from regard.serving.refusal import Refusal

MOST_CLIENTS = 100_000
"""How many clients are remembered; beyond that, those who have not asked for longest are forgotten."""


class Rates:
    """Counts requests by client. Who has not asked for a minute may send a minute's requests at once.

    per_minute: how many a client may send; 0 is no limit.
    """

    def __init__(self, per_minute: int) -> None:
        self.per_minute = per_minute
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Client -> how many requests it had left, and when."""

    def check(self, client: str, per_minute: int | None = None) -> None:
        """Counts one request. Raises Refusal if the client sends too many. per_minute: a limit of its own."""
        limit = self.per_minute if per_minute is None else per_minute
        if not limit:
            return
        now = monotonic()
        left, before = self._left.pop(client, (float(limit), now))
        left = min(limit, left + (now - before) * limit / 60)
        self._left[client] = (left - 1 if left >= 1 else left), now
        if len(self._left) > MOST_CLIENTS:
            self._left.popitem(last=False)
        if left < 1:
            raise Refusal(429, f"Slowdown: {limit} per 1 minute", retry_after=max(1, round((1 - left) * 60 / limit)))


def network_of(address: str) -> str:
    """Returns what is counted as one client: an IPv4 address, or an IPv6 network of 64 bits, which one customer usually has."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is None:
        return f"{IPv6Address(int(parsed) >> 64 << 64)}/64"
    return str(parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else parsed)
