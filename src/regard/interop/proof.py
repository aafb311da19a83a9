"""The proof of a conversion: both sides read the same sources, and their numbers and outputs are compared."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Any, Protocol

import numpy as np
import torch

from regard.checkpoint.files import replace_file
from regard.checkpoint.folder import Saved
from regard.contracts import Array, Request, SourceRow
from regard.core.arrays import as_array
from regard.core.spectrum import WHISPER_RATE
from regard.data.batch import source_batch
from regard.data.sources import FileCodec, num_positions
from regard.data.tokenizers.contract import TextCodec
from regard.data.whisper import WhisperSounds
from regard.decoding import schedule
from regard.decoding.torch_engine import TorchEngine
from regard.errors import UserError
from regard.models.contract import Model
from regard.options import SearchOptions

VERSION = version("regard")

SENTENCES, LONGEST, OUTPUT = 16, 17, 24
"""The probe set: how many sources, the number of tokens of the longest, and the most tokens that an output may have."""
TOLERANCE = 1e-4
"""The largest difference of a log-probability that counts as rounding, relative to its size where that is above 1."""
TIE = 1e-3
"""Two outputs may differ where the log-probabilities of both tokens lie closer together than this."""

SOUNDS = 3
"""How many sounds the probe set has instead, if the model reads sounds."""

Ids = Sequence[int]


class Peer(Protocol):
    """The other side of a conversion, run by its own library.

    name: the library and its version, for the card.
    """

    name: str

    def forced(self, sources: Sequence[Any], targets: Sequence[Ids]) -> list[Array]:
        """Returns, for each pair, the log-probabilities of the tokens of the target (T,), or of all tokens (T, V). sources
        are ids without <eos>, or the frames of sounds; targets end with <eos>. The prefix and <eos> may be left
        out together."""
        ...

    def greedy(self, sources: Sequence[Any], most: int) -> list[list[int]]:
        """Returns the output of greedy search for each source, without <eos>, of at most `most` tokens."""
        ...


@dataclass(frozen=True)
class Proof:
    """What was compared, and how far both sides differ. ties: outputs that differ where two tokens are equally probable."""

    peer: str
    sentences: int
    tokens: int
    max_difference: float
    same_outputs: int
    ties: int = 0
    regard: str = VERSION
    nouns: str = "sources of random tokens"

    def __str__(self) -> str:
        ties = f", {self.ties} more up to a tie" if self.ties else ""
        return (
            f"compared with {self.peer} on {self.sentences} {self.nouns}: the log-probabilities of {self.tokens:,} "
            f"given tokens differ by at most {self.max_difference:.1e}, and {self.same_outputs} of {self.sentences} greedy "
            f"outputs are the same{ties}"
        )


class Ours:
    """Our side of a comparison, and also a peer: a model that was written and read again."""

    def __init__(self, saved: Saved, name: str = f"regard {VERSION}") -> None:
        self.saved, self.name, self.specials = saved, name, saved.target.specials
        self.engine = engine_of_model(saved.model, saved)

    def forced(self, sources: Sequence[SourceRow], targets: Sequence[Ids]) -> list[Array]:
        requests = [Request(number, row, num_positions=num_positions(row)) for number, row in enumerate(sources)]
        found = {one.id: one for one in self.engine.force(requests, targets, distributions=True)}
        errors = [one.error for one in found.values() if one.error]
        if errors:
            raise UserError(f"the converted model fails: {errors[0]}")
        return [_present(found[number].log_probs_TV) for number in range(len(sources))]

    def greedy(self, sources: Sequence[SourceRow], most: int) -> list[list[int]]:
        options, prefix = SearchOptions(max_length=most), self.specials.prefix
        requests = [
            Request(number, row, options, num_positions(row), prefix, limit=most + len(prefix))
            for number, row in enumerate(sources)
        ]
        found = {event.id: event.hypotheses[0] for event in schedule.run(self.engine, requests) if event and event.is_last}
        return [list(found[number].ids) for number in range(len(sources))]


def _present(array: Array | None) -> Array:
    assert array is not None
    return array


def engine_of_model(model: Model, saved: Saved) -> TorchEngine:
    """Returns the engine that runs a model with the vocabularies of `saved`."""
    return TorchEngine(model, lambda rows: source_batch(rows, saved.source.specials), saved.target.specials)


def probe(saved: Saved) -> tuple[list[SourceRow], list[list[int]]]:
    """Returns sources of random tokens, or random sounds, and targets of random tokens; always the same for the same
    vocabularies."""
    rng, sources = Random(0), list[SourceRow]()
    if isinstance(saved.source, WhisperSounds):
        sources = [_sound(saved.source, rng) for _ in range(SOUNDS)]
    elif not isinstance(saved.source, FileCodec):
        sources = [*_random_rows(saved.source, rng, SENTENCES)]
    prefix, eos = saved.target.specials.prefix, saved.target.specials.eos
    return sources, [[*prefix, *row, eos] for row in _random_rows(saved.target, rng, len(sources))]


def _random_rows(codec: TextCodec, rng: Random, number: int) -> list[list[int]]:
    """Returns rows of random tokens, each longer than the one before it."""
    special = {*codec.specials.ids, *codec.specials.never, *codec.specials.prefix}
    plain = [token for token in range(len(codec)) if token not in special]
    return [[rng.choice(plain) for _ in range(1 + row * LONGEST // number)] for row in range(number)]


def _sound(codec: WhisperSounds, rng: Random) -> Array:
    """Returns the frames of a sound: noise whose loudness changes, and then silence."""
    size = WHISPER_RATE * rng.randint(1, codec.longest)
    noise_N = torch.randn(size, generator=torch.Generator().manual_seed(rng.getrandbits(32)))
    return as_array(codec.frames(0.1 * noise_N * (torch.arange(size) / (100 * rng.randint(9, 99))).sin()))


def prove(saved: Saved, peer: Peer) -> Proof:
    """Compares our model with its peer. Raises UserError that names the first token that differs by more than rounding."""
    sources, targets = probe(saved)
    ours = Ours(saved)
    numbers, theirs = ours.forced(sources, targets), peer.forced(sources, targets)
    largest = 0.0
    for number, (our_TV, their) in enumerate(zip(numbers, theirs, strict=True)):
        largest = max(largest, _difference(saved, our_TV, their, targets[number], number, peer))
    same, ties = 0, 0
    both = zip(ours.greedy(sources, OUTPUT), peer.greedy(sources, OUTPUT), strict=True)
    for number, (one, other) in enumerate(both):
        same += one == other
        if one != other:
            _check_tie(ours, saved, sources[number], one, other, number, peer.name)
            ties += 1
    nouns = "random sounds" if isinstance(saved.source, FileCodec) else Proof.nouns
    return Proof(peer.name, len(sources), sum(map(len, targets)), largest, same, ties, nouns=nouns)


def _difference(saved: Saved, our_TV: Array, their: Array, target: Ids, number: int, peer: Peer) -> float:
    """Returns the largest difference of the log-probabilities of one target. Raises UserError if it is more than rounding.
    Tokens that are never written do not count, since each side excludes them in its own way; nor does any token outside of
    `peer.counted`, if the peer has it."""
    first = len(saved.target.specials.prefix) if len(their) < len(target) else 0
    our_TV, target = our_TV[first:][: len(their)], target[first:][: len(their)]
    allowed = getattr(peer, "counted", None)
    if allowed is None:
        allowed = np.setdiff1d(np.arange(our_TV.shape[1]), saved.target.specials.never)
    ours, columns = _normalised(our_TV[:, allowed]), np.tile(allowed, (len(target), 1))
    theirs = their[:, None] if their.ndim == 1 else _normalised(their[:, allowed])
    if their.ndim == 1:
        columns = np.array(target)[:, None]
        ours = np.take_along_axis(ours, np.searchsorted(allowed, columns), axis=1)
    relative = np.nan_to_num(np.abs(ours - theirs) / np.maximum(1, np.abs(ours)), nan=np.inf)
    position, column = divmod(int(relative.argmax()), relative.shape[1])
    if relative[position, column] > TOLERANCE:
        (name,) = saved.target.tokens([int(columns[position, column])])
        raise UserError(
            f"the conversion is wrong: source {number + 1} of the probe set, position {first + position + 1}: the "
            f"log-probability of {name!r} is {ours[position, column]:.5f} here and {theirs[position, column]:.5f} with "
            f"{peer.name}; please report this model"
        )
    return float(np.abs(ours - theirs).max())


def _normalised(log_probs_TV: Array) -> Array:
    """Returns log-probabilities whose probabilities sum to 1, in float64."""
    log_probs_TV = log_probs_TV.astype(np.float64)
    with np.errstate(invalid="ignore"):  # numbers that are none are reported by `_difference`
        total: Array = log_probs_TV - np.logaddexp.reduce(log_probs_TV, axis=1, keepdims=True)
    return total


def _check_tie(ours: Ours, saved: Saved, source: SourceRow, one: Ids, other: Ids, number: int, peer: str) -> None:
    """Raises UserError unless the first tokens in which two outputs differ are equally probable."""
    eos = saved.target.specials.eos
    position = next(
        (at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), min(len(one), len(other))
    )
    tokens = [(*ids, eos)[position] for ids in (one, other)]
    (log_probs_TV,) = ours.forced([source], [[*one[:position], tokens[0]]])
    ours_token, their_token = (float(log_probs_TV[-1, token]) for token in tokens)
    if abs(ours_token - their_token) > TIE:
        names = saved.target.tokens(tokens)
        raise UserError(
            f"the conversion is wrong: the greedy output of source {number + 1} of the probe set differs at token "
            f"{position + 1}: {names[0]!r} here and {names[1]!r} with {peer}; please report this model"
        )


# --- proofs that were made before --------------------------------------------------------------------------------------------


def _kept_path(digest: str) -> Path:
    root = os.environ.get("REGARD_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "regard"
    return Path(root) / "proofs" / f"{digest}.json"


def kept(digest: str) -> Proof | None:
    """Returns the proof for files with this digest, made by this version of regard; None if there is none."""
    try:
        content: dict[str, Any] = json.loads(_kept_path(digest).read_bytes())
        proof = Proof(**content)
    except (OSError, ValueError, TypeError):
        return None
    return proof if proof.regard == VERSION else None


def keep(digest: str, proof: Proof) -> None:
    """Keeps a proof for the next opening, if the cache can be written."""
    path = _kept_path(digest)
    with suppress(OSError, UserError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(asdict(proof)).encode())
