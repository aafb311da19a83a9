"""BPE-dropout: splits the same text into different subwords each time, by skipping merges of a BPE vocabulary at random."""

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
"""Words with more bytes are not cached: they are rare, and can be split in too many ways."""
MOST_STATES = 500_000
"""Size of the cache of states, at about 300 bytes each."""

# Classes of characters, which decide whether two neighbours may share a subword; the pattern in codec.py says the same.
_ALONE, _BLANK, _LETTER, _NUMBER, _OTHER = range(5)
_SAMPLES = {_LETTER: "a", _NUMBER: "1", _OTHER: "."}
_JOINED = [[after >= _LETTER and before in (after, _BLANK) for after in range(5)] for before in range(5)]

Ids = tuple[int, ...]


class _State:
    """A word that is split in some way.

    ids: its tokens. indices: where two neighbours can be merged, best merge first. next, steps, end: the next state, the number
    of remaining merges and the final tokens if no merge is skipped. second: the state after the second-best merge, once it has
    been needed.
    """

    __slots__ = ("end", "ids", "indices", "next", "second", "steps")

    def __init__(self, ids: Ids, indices: bytes) -> None:
        self.ids, self.indices, self.next, self.steps, self.end = ids, indices, self, 0, ids
        self.second: _State | None = None


class Merges:
    """BPE-dropout (Provilkov et al. 2020, algorithm 1), from ids to ids.

    A word starts as its bytes. At every step each possible merge is skipped with probability p, independently; of the others,
    the one with the lowest rank is applied, the leftmost if it occurs twice. If none is left, the word is finished.

    Instead of one random number per merge, we draw the number of steps until the best merge is skipped: it is geometric, and
    one draw often lasts for several words. States are cached, which affects the speed but never the result.
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
        self._partial: set[int] = set()  # tokens that cannot be classified without their neighbours
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
            if feature and not whole:  # the start of an unknown feature, which extends to the next TAB
                self._partial.add(number)
            self._first[number] = _ALONE if whole else self._kind(text[0])
            self._last[number] = _ALONE if whole else self._kind(text[-1])

    def bpe_dropout(self, ids: Sequence[int], p: float, rng: Random) -> list[int]:
        """Returns the ids of the same text, split with BPE-dropout of probability p."""
        draw, log = rng.random, math.log
        slope = 1 / math.log1p(-p) if 0 < p < 1 else 0.0
        wait: float = log(1 - draw()) * slope // 1 if p else math.inf  # steps until the best merge is skipped
        known, result = self._starts.get, list[int]()
        for word in self._words(ids):
            state = known(word) or self._start(word)
            if state is None:
                result += self._walk([byte for number in word for byte in self._base[number]], p, rng)
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
        """Returns the first state of a word, its bytes; None if the word is too long to cache."""
        base = tuple(byte for number in word for byte in self._base[number])
        if len(base) > LONG:
            return None
        state = self._state(base)
        if len(self._starts) < MOST_STATES:
            self._starts[word] = state
        return state

    def _skip(self, state: _State, skipped: int) -> _State:
        """Returns the state after the best merge that follows `skipped` skipped ones."""
        after = self._state(self._merged(state, skipped))
        if skipped == 1 and after.ids in self._states:
            state.second = after
        return after

    def _merged(self, state: _State, order: int) -> Ids:
        """Returns the tokens after a merge. order: 0 is the best merge."""
        ids, index = state.ids, state.indices[order]
        return (*ids[:index], self._merges[ids[index], ids[index + 1]][1], *ids[index + 2 :])

    def _state(self, ids: Ids) -> _State:
        """Returns the state of these tokens, from the cache if possible."""
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

    def _walk(self, symbols: list[int], p: float, rng: Random) -> list[int]:
        """Applies BPE-dropout to one word of any length, without a cache: possible merges wait in a heap."""
        gone = -1
        after, before = [*range(1, len(symbols) + 1)], [*range(-1, len(symbols) - 1)]

        def option(index: int) -> tuple[int, int, int, int, int] | None:
            """Returns the merge at this index: (rank, index, new id, left, right). It is stale once left or right changes."""
            if index < 0 or after[index] == len(symbols):
                return None
            left, right = symbols[index], symbols[after[index]]
            merge = self._merges.get((left, right))
            return merge and (merge[0], index, merge[1], left, right)

        options = [merge for merge in map(option, range(len(symbols))) if merge]
        heapify(options)
        while options:
            skipped, chosen = [], None
            while options and not chosen:
                candidate = heappop(options)
                _, index, _, left, right = candidate
                if symbols[index] != left or after[index] == len(symbols) or symbols[after[index]] != right:
                    continue
                if p and rng.random() < p:
                    skipped.append(candidate)
                else:
                    chosen = candidate
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
        """Splits the ids into words, where the library splits a text before it merges. The first and last characters of the
        tokens are usually enough to decide."""
        if self._partial.isdisjoint(ids):
            first, last = self._first, self._last
            cuts = [index for index, (left, right) in enumerate(pairwise(ids), 1) if not _JOINED[last[left]][first[right]]]
        else:
            cuts = self._cuts_by_character(ids)
        return [tuple(ids[start:end]) for start, end in pairwise((0, *cuts, len(ids)))]

    def _cuts_by_character(self, ids: Sequence[int]) -> list[int]:
        """Returns the indices at which words start, for ids that contain partial characters or unknown features."""
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
        """Returns the class of a character. Asks the library, whose version of Unicode may differ from Python's."""
        if char not in self._kinds:
            self._kinds[char] = _BLANK if char == " " else _ALONE
            if not "\ud800" <= char <= "\udfff":
                for kind, sample in _SAMPLES.items():
                    if len(self._pre_tokenizer.pre_tokenize_str(sample + char)) == 1:
                        self._kinds[char] = kind
        return self._kinds[char]
