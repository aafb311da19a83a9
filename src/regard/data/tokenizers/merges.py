"""Subword dropout: the same text cut in another way every time, by a seeded walk over the merges of a BPE vocabulary."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import accumulate, pairwise
from random import Random

from tokenizers import Tokenizer

from regard.data.tokenizers.byte_level import LETTERS, to_bytes

LONG = 32
"""Words of more bytes are walked without a memory: they are rare, and can be cut in too many ways to keep them."""
MOST_STATES = 500_000
"""How many are remembered, at some 300 bytes each."""

# What a character does to its neighbours; the pattern in codec.py tells the library the same.
_ALONE, _BLANK, _LETTER, _NUMBER, _OTHER = range(5)
_SAMPLES = {_LETTER: "a", _NUMBER: "1", _OTHER: "."}
_JOINED = [[after >= _LETTER and before in (after, _BLANK) for after in range(5)] for before in range(5)]

Ids = tuple[int, ...]


class _State:
    """A word cut in some way: where a pair may be merged, best place first; if no merge is skipped, the next state, how many
    steps are left and how it ends; and the state after the second best merge, once it was needed.
    """

    __slots__ = ("end", "ids", "indices", "next", "second", "steps")

    def __init__(self, ids: Ids, indices: bytes) -> None:
        self.ids, self.indices, self.next, self.steps, self.end = ids, indices, self, 0, ids
        self.second: _State | None = None


class Merges:
    """BPE-dropout (Provilkov et al. 2020, algorithm 1), from ids to ids.

    A word begins as its bytes. At every step each pair that could be merged is skipped with probability p, independently; of
    the others the one that was learnt first is merged, the leftmost if it is there twice. If there is none, the word is done.

    We do not draw for every pair, but how many steps pass until the best one is skipped: that number is geometric, and one draw
    often lasts for several words. States are remembered; that changes how fast it goes, never what comes out.
    """

    def __init__(self, tokenizer: Tokenizer, num_specials: int, has_features: bool) -> None:
        model = json.loads(tokenizer.to_str())["model"]
        vocabulary: dict[str, int] = model["vocab"]
        self._merges = {
            (vocabulary[left], vocabulary[right]): (rank, vocabulary[left + right])
            for rank, (left, right) in enumerate(model["merges"])
        }
        self._features = has_features
        self._pre_tokenizer = tokenizer.pre_tokenizer
        self._kinds: dict[str, int] = {}
        self._states: dict[Ids, _State] = {}
        self._starts: dict[Ids, _State] = {}

        self._bytes: dict[int, bytes] = {}
        self._base: dict[int, Ids] = {}
        self._first: dict[int, int] = {}  # kind of a token's first character
        self._last: dict[int, int] = {}
        self._partial: set[int] = set()  # tokens whose neighbours must be asked
        for token, number in vocabulary.items():
            special = number < num_specials
            content = self._bytes[number] = b"\n" if special else to_bytes(token)
            feature = self._features and content[:1] == b"\t"
            whole = special or (feature and len(content) > 1)
            self._base[number] = (number,) if whole else tuple(vocabulary[LETTERS[byte]] for byte in content)
            try:
                text = content.decode()
            except UnicodeDecodeError:
                self._partial.add(number)
                continue
            if feature and not whole:  # of a feature that was never seen; it runs on
                self._partial.add(number)
            self._first[number] = _ALONE if whole else self._kind(text[0])
            self._last[number] = _ALONE if whole else self._kind(text[-1])

    def redrop(self, ids: Sequence[int], p: float, chance: Random) -> list[int]:
        draw, log = chance.random, math.log
        slope = 1 / math.log1p(-p) if 0 < p < 1 else 0.0
        wait: float = log(1 - draw()) * slope // 1 if p else math.inf  # steps until the best pair is skipped
        known, result = self._starts.get, list[int]()
        for word in self._words(ids):
            state = known(word) or self._start(word)
            if state is None:
                result += self._walk([byte for number in word for byte in self._base[number]], p, chance)
                continue
            while wait < state.steps:
                while wait > 0:
                    state, wait = state.next, wait - 1
                skipped, most = 1, len(state.indices)
                while skipped < most and draw() < p:
                    skipped += 1
                wait = log(1 - draw()) * slope // 1
                if skipped == most:
                    result += state.ids
                    break
                state = (state.second if skipped == 1 else None) or self._skip(state, skipped)
            else:
                wait -= state.steps
                result += state.end
        return result

    def _start(self, word: Ids) -> _State | None:
        """The bytes of a word; None if it is long."""
        base = tuple(byte for number in word for byte in self._base[number])
        if len(base) > LONG:
            return None
        state = self._state(base)
        if len(self._starts) < MOST_STATES:
            self._starts[word] = state
        return state

    def _skip(self, state: _State, skipped: int) -> _State:
        after = self._state(self._merged(state, skipped))
        if skipped == 1 and after.ids in self._states:
            state.second = after
        return after

    def _merged(self, state: _State, choice: int) -> Ids:
        ids, index = state.ids, state.indices[choice]
        return (*ids[:index], self._merges[ids[index], ids[index + 1]][1], *ids[index + 2 :])

    def _state(self, ids: Ids) -> _State:
        state = self._states.get(ids)
        if state is None:
            pairs = enumerate(map(self._merges.get, pairwise(ids)))
            state = _State(ids, bytes(index for _, index in sorted((pair[0], index) for index, pair in pairs if pair)))
            if state.indices:
                state.next = self._state(self._merged(state, 0))
                state.steps, state.end = state.next.steps + 1, state.next.end
            if len(self._states) < MOST_STATES:
                self._states[ids] = state
        return state

    def _walk(self, symbols: list[int], p: float, chance: Random) -> list[int]:
        """The same on one word of any length, without a memory: what may be merged waits in a heap."""
        gone = -1
        after, before = [*range(1, len(symbols) + 1)], [*range(-1, len(symbols) - 1)]

        def option(index: int) -> tuple[int, int, int, int, int] | None:
            """(rank, place, new id, left, right); it is stale when left or right have changed."""
            if index < 0 or after[index] == len(symbols):
                return None
            left, right = symbols[index], symbols[after[index]]
            found = self._merges.get((left, right))
            return found and (found[0], index, found[1], left, right)

        options = [one for one in map(option, range(len(symbols))) if one]
        heapify(options)
        while options:
            skipped, chosen = [], None
            while options and not chosen:
                one = heappop(options)
                _, index, _, left, right = one
                if symbols[index] != left or after[index] == len(symbols) or symbols[after[index]] != right:
                    continue
                if p and chance.random() < p:
                    skipped.append(one)
                else:
                    chosen = one
            if not chosen:
                break
            _, index, new, _, _ = chosen
            right_end = after[index]
            symbols[index], symbols[right_end] = new, gone
            after[index] = after[right_end]
            if after[index] < len(symbols):
                before[after[index]] = index
            for fresh in (option(before[index]), option(index), *skipped):
                if fresh:
                    heappush(options, fresh)
        return [symbol for symbol in symbols if symbol != gone]

    def _words(self, ids: Sequence[int]) -> list[Ids]:
        """Cut where the library cuts a text before it merges. Mostly the characters at the edges of the tokens tell."""
        if self._partial.isdisjoint(ids):
            first, last = self._first, self._last
            cuts = [index for index, (left, right) in enumerate(pairwise(ids), 1) if not _JOINED[last[left]][first[right]]]
        else:
            cuts = self._cuts_by_character(ids)
        return [tuple(ids[start:end]) for start, end in pairwise((0, *cuts, len(ids)))]

    def _cuts_by_character(self, ids: Sequence[int]) -> list[int]:
        parts = [self._bytes[number] for number in ids]
        cuts, size, before, feature = set(), 0, _ALONE, False
        for char in b"".join(parts).decode(errors="surrogateescape"):
            kind = self._kind(char)
            feature = feature or (self._features and char == "\t")
            if char == "\t" if feature else not _JOINED[before][kind]:
                cuts.add(size)
            size += len(char.encode(errors="surrogateescape"))
            before = kind
        starts = accumulate(map(len, parts), initial=0)
        return [index for index, start in enumerate(starts) if start in cuts and 0 < index < len(ids)]

    def _kind(self, char: str) -> int:
        """Asks the library, which may know another version of Unicode than Python does."""
        if char not in self._kinds:
            self._kinds[char] = _BLANK if char == " " else _ALONE
            if not "\ud800" <= char <= "\udfff":
                for kind, sample in _SAMPLES.items():
                    if len(self._pre_tokenizer.pre_tokenize_str(sample + char)) == 1:
                        self._kinds[char] = kind
        return self._kinds[char]
