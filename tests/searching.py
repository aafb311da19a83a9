"""Runs searches for tests: submits requests to a Search and collects its events."""

from collections.abc import Sequence
from typing import Any

import torch
from table import EOS, PAD, SOS

from regard.contracts import Engine, Event, Hypothesis, Request, Search, SourceRow
from regard.core import masks
from regard.core.source import Source
from regard.decoding.torch_engine import TorchEngine
from regard.models.contract import Seq2Seq
from regard.options import SearchOptions

REQUEST = ("prefix", "seed", "look", "stream", "limit")
"""Keyword arguments that belong to a request; all others are search options."""


def token_batch(rows: Sequence[SourceRow]) -> Source:
    """Returns token ids as a batch, without adding <eos>."""
    longest = max(len(row) for row in rows)
    ids = torch.tensor([[*row, *[PAD] * (longest - len(row))] for row in rows])
    return Source(ids, masks.not_padding(ids, PAD))


def make_engine(model: Seq2Seq, sos: int = SOS, eos: int = EOS, never: tuple[int, ...] = (PAD, SOS)) -> TorchEngine:
    return TorchEngine(model, token_batch, sos=sos, eos=eos, never=never)


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
    while sum(event.is_last for event in events) < number:
        events += search.events(timeout=10)
    return events


def run(engine: Engine, requests: Sequence[Request]) -> list[Event]:
    """Searches some requests together and returns all events."""
    search = engine.open()
    for request in requests:
        search.submit(request)
    events = finish(search, len(requests))
    search.close()
    return events


def outputs(engine: Engine, rows: Sequence[SourceRow], **given: Any) -> dict[int, tuple[Hypothesis, ...]]:
    """Returns the n-best outputs of each row, searched together."""
    return {event.id: event.hypotheses for event in run(engine, make_requests(rows, **given)) if event.is_last}
