"""Runs searches for tests: submits requests to a Search and collects its events."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import pytest
import torch
from table import EOS, PAD, SOS

from regard.contracts import Engine, Event, Hypothesis, Request, Search, SourceRow, Specials
from regard.core import masks
from regard.core.source import Source
from regard.decoding.torch_engine import TorchEngine
from regard.models.contract import Seq2Seq
from regard.options import SearchOptions

T = TypeVar("T")

REQUEST = ("prefix", "seed", "look", "stream", "limit")
"""Keyword arguments that belong to a request; all others are search options."""


def token_batch(rows: Sequence[SourceRow], room: int = 0) -> Source:
    """Returns token ids as a batch, without adding <eos>; it is padded to `room` positions if that is more than needed."""
    longest = max(room, *map(len, rows))
    ids = torch.tensor([[*row, *[PAD] * (longest - len(row))] for row in rows])
    return Source(ids, masks.not_padding(ids, PAD))


def make_engine(
    model: Seq2Seq,
    sos: int = SOS,
    eos: int = EOS,
    never: tuple[int, ...] = (PAD, SOS),
    collate: Callable[[Sequence[SourceRow]], Source] = token_batch,
) -> TorchEngine:
    return TorchEngine(model, collate, Specials(pad=PAD if eos != PAD else sos, unk=eos, start=sos, eos=eos, never=never))


def rows_of(source: Source) -> list[SourceRow]:
    """Returns the ids of a batch as rows without padding."""
    return [ids[allow].tolist() for ids, allow in zip(source.values, source.allow, strict=True)]


def make_requests(rows: Sequence[SourceRow], first: int = 0, **given: Any) -> list[Request]:
    """Returns one request for each row, numbered from `first`; a request's seed is mixed from `seed` and its number."""
    options = SearchOptions(**{name: value for name, value in given.items() if name not in REQUEST})
    own = {"limit": options.max_length, **{name: given[name] for name in REQUEST if name in given}}
    seed = own.pop("seed", 0)
    return [
        Request(number, row, options, num_positions=len(row), seed=1000 * seed + number, **own)
        for number, row in enumerate(rows, first)
    ]


def finish(search: Search, number: int) -> list[Event]:
    """Goes on with a search until this many requests have ended, and returns all events."""
    events: list[Event] = []
    while number:
        new = search.events(timeout=10)
        number -= sum(event.is_last for event in new)
        events += new
    return events


def run(engine: Engine, requests: Sequence[Request]) -> list[Event]:
    """Searches some requests together and returns all events."""
    search = engine.open()
    for request in requests:
        search.submit(request)
    events = finish(search, len(requests))
    search.close()
    return events


def run_joining(engine: Engine, batches: Iterable[Sequence[Request]], every: int = 1) -> list[Event]:
    """Like `run`, but takes `every` steps after each batch, so that the next one joins a running search."""
    search, events, number = engine.open(), [], 0
    for batch in batches:
        for request in batch:
            search.submit(request)
        number += len(batch)
        for _ in range(every):
            events += search.events(timeout=0)
    events += finish(search, number - sum(event.is_last for event in events))
    search.close()
    return events


def batched(items: Sequence[T], size: int) -> list[Sequence[T]]:
    """Splits a list into batches of `size`."""
    return [items[first : first + size] for first in range(0, len(items), size)]


def last_outputs(events: Iterable[Event]) -> dict[int, tuple[Hypothesis, ...]]:
    """Returns the n-best outputs of the requests that ended."""
    return {event.id: event.hypotheses for event in events if event.hypotheses}


def alone_outputs(engine: Engine, requests: Sequence[Request]) -> dict[int, tuple[Hypothesis, ...]]:
    """Returns the n-best outputs of each request, searched alone."""
    return last_outputs(event for request in requests for event in run(engine, [request]))


def outputs(engine: Engine, rows: Sequence[SourceRow], **given: Any) -> dict[int, tuple[Hypothesis, ...]]:
    """Returns the n-best outputs of each row, searched together."""
    return last_outputs(run(engine, make_requests(rows, **given)))


def assert_same_hypotheses(found: Sequence[Hypothesis], expected: Sequence[Hypothesis], tolerance: float = 1e-9) -> None:
    """Checks that two n-best lists are equal, except for rounding errors of their numbers."""
    assert [(one.ids, one.finished) for one in found] == [(one.ids, one.finished) for one in expected]
    for one, other in zip(found, expected, strict=True):
        assert one.log_prob == pytest.approx(other.log_prob, abs=tolerance)
        assert one.rank_score == pytest.approx(other.rank_score, abs=tolerance)
        assert one.token_log_probs == pytest.approx(other.token_log_probs, abs=tolerance)
