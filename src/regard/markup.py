"""Carries markup, such as the tags of HTML or XLIFF, from a text to its translation, along a word alignment. Needs no torch.

    plain("<b>Red</b> wine &amp; cheese")                                        "Red wine & cheese", for the model
    transfer("<b>Red</b> wine", "vin rouge", [(0, 1), (1, 0)])                   "vin <b>rouge</b>"

Every tag of the source is in the output exactly once, byte for byte, and tags stay well nested:

- An element, a tag with its end tag, covers the target words that come from its words. If they are not next to each other, it
  covers the run with the most of them, the first if there are several; words that come from outside the element interrupt a
  run, words without links do not. An element that contains all words of the element around it covers all of its words.
- An element none of whose words has a link becomes empty. It, `<br>`, comments and other single tags follow the word before
  them; a single tag that touches only the word after it precedes that word.
- A tag inside a word (un<b>do</b>) stays there if the word is not translated; otherwise the whole word is inside.

The text is the translation, character by character, with & < > written as &amp; &lt; &gt; so that no text becomes a tag. Other
references (&eacute;) come out as characters. A < that does not start a tag is text. Tags that are not well nested, and
comments, scripts and styles without an end, are refused. Tags add no white space: blocks of a page (paragraphs, cells) are
texts of their own, to be translated one by one.
"""

from __future__ import annotations

import html
import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate

from regard.errors import UserError, shorten
from regard.links import word_spans
from regard.results import Result

__all__ = ["plain", "transfer"]

VOID = frozenset("area base br col embed hr img input link meta source track wbr".split())
"""Elements of HTML that have no end tag."""

MOST_NESTED = 100
"""The largest number of elements inside each other."""

_ATTRIBUTES = r"""(?:(?:\s++|(?<=["']))[^\s"'<>/=]++(?:\s*+=\s*+(?:"[^"]*+"|'[^']*+'|[^\s"'=<>`]++))?+)*+\s*+"""
_NAME = r"[A-Za-z][A-Za-z0-9:._-]*+"
MARK = re.compile(
    rf"""(?s:<!--(?:.*?-->|(?P<endless>)))"""
    rf"""|(?is:<(?P<raw>script|style)(?![A-Za-z0-9:._-]){_ATTRIBUTES}/?>(?:.*?</(?P=raw)\s*+>|(?P<unended>)))"""
    rf"""|<[!?][A-Za-z\[][^<>]*+>"""
    rf"""|</(?P<end>{_NAME})\s*+>"""
    rf"""|<(?P<name>{_NAME}){_ATTRIBUTES}(?P<single>/?)>"""
)
"""A tag, a comment, or a script or style with its content. The group `endless` or `unended` says that its end is missing."""


@dataclass
class _Node:
    """An element or a single tag. tag, end_tag: as they are written.  start, end: in characters of the plain text."""

    tag: str = ""
    end_tag: str = ""
    name: str = ""
    start: int = 0
    end: int = 0
    children: list[_Node] = field(default_factory=list)


def plain(marked: str) -> str:
    """Returns the text of a marked text, without tags, and with characters in place of references such as &amp;.

    Raises UserError if the markup is not well nested.

    >>> regard.markup.plain("<b>Red</b> wine &amp; cheese")
    'Red wine & cheese'
    """
    text, _ = _parse(marked)
    return text


def transfer_markup(marked: str, result: Result) -> str:
    """Returns the text of a result with the markup of its source.

    marked: the source with its markup; `plain(marked)` is what was translated.  See `regard.markup` on where tags go.
    Raises UserError if the markup is not well nested, if the result is that of another text, or if the model cannot align.

    >>> marked = "<b>cab</b>"
    >>> regard.transfer_markup(marked, regard.load("model")(regard.markup.plain(marked)))
    '<b>C A B</b>'
    """
    text = plain(marked)
    source = result.source if isinstance(result.source, str) else "\t".join(result.source)
    if _words(text) != _words(source):
        raise UserError(
            f"this result is that of {shorten(source)!r}, but the text of the markup is {shorten(text)!r}; translate "
            "regard.markup.plain(marked)"
        )
    return transfer(marked, result.text, result.alignment(pieces=False))


def _words(text: str) -> list[str]:
    return unicodedata.normalize("NFC", text).split()


def transfer(marked: str, target: str, links: Iterable[tuple[int, int]]) -> str:
    """Returns the target with the markup of the source.

    marked: the source with its markup.  target: its translation, a text without markup.
    links: (source word, target word), words being separated by white space and counted from 0; as from
    `Result.alignment(pieces=False)`. A target word with several links follows the first of its source words.

    Raises UserError if the markup is not well nested, and ValueError if a link has no words.

    >>> regard.markup.transfer("<b>red</b> wine", "vin rouge", [(0, 1), (1, 0)])
    'vin <b>rouge</b>'
    """
    text, root = _parse(marked)
    layout = _Layout(text, target, links)
    return layout.written(root, 0, len(target), (0, len(layout.targets) - 1))


# --- reading -----------------------------------------------------------------------------------------------------------------


def _parse(marked: str) -> tuple[str, _Node]:
    """Returns the plain text, and the root of its elements."""
    root = _Node()
    open_nodes, texts, length, position = [root], list[str](), 0, 0
    for match in MARK.finditer(marked):
        texts.append(html.unescape(marked[position : match.start()]))
        length, position = length + len(texts[-1]), match.end()
        tag, name, end = match[0], (match["name"] or "").lower(), (match["end"] or "").lower()
        if match["endless"] is not None or match["unended"] is not None:
            raise UserError(f"{_at(tag, match)} has no end; add it, or write < as &lt;")
        if end:
            node = open_nodes.pop()
            if node.name != end:
                expected = f"{shorten(node.tag, 30)} is still open" if node.name else "nothing is open"
                raise UserError(f"{_at(tag, match)} has no start tag: {expected}; close elements in the order of their start")
            node.end_tag, node.end = tag, length
            continue
        node = _Node(tag, "", name, length, length)
        open_nodes[-1].children.append(node)
        if name and name not in VOID and not match["single"]:
            open_nodes.append(node)
            if len(open_nodes) > MOST_NESTED + 1:
                raise UserError(f"{_at(tag, match)} is inside more than {MOST_NESTED} other tags; simplify the markup")
    texts.append(html.unescape(marked[position:]))
    if len(open_nodes) > 1:
        raise UserError(f"the tag {shorten(open_nodes[-1].tag, 30)!r} has no end tag; add it, or write < as &lt;")
    root.end = length + len(texts[-1])
    return "".join(texts), root


def _at(tag: str, match: re.Match[str]) -> str:
    return f"the tag {shorten(tag, 30)!r} at character {match.start() + 1}"


# --- writing -----------------------------------------------------------------------------------------------------------------

Run = tuple[int, int]
"""The first and the last of some neighbouring words."""


class _Layout:
    """Finds where each node of the source starts and ends in the target."""

    def __init__(self, source: str, target: str, links: Iterable[tuple[int, int]]) -> None:
        self.source, self.target = source, target
        self.sources, self.targets = word_spans(source), word_spans(target)
        self.starts, self.ends = [start for start, _ in self.sources], [end for _, end in self.sources]
        self.origin: dict[int, int] = {}
        for i, j in sorted(links, reverse=True):
            if not (0 <= i < len(self.sources) and 0 <= j < len(self.targets)):
                sizes = f"{len(self.sources)} source words and {len(self.targets)} target words"
                raise ValueError(f"there are {sizes}, but a link is {i}-{j}; links count words, from 0")
            self.origin[j] = i  # the first source word of several
        self.written_as: dict[int, list[int]] = {}
        for j in sorted(self.origin):
            self.written_as.setdefault(self.origin[j], []).append(j)
        self.linked = sorted(self.written_as)
        self.num_linked = [0, *accumulate(j in self.origin for j in range(len(self.targets)))]

    def written(self, node: _Node, start: int, end: int, run: Run | None) -> str:
        """Returns a node with what is inside it. start, end: in characters of the target.  run: the target words inside it."""
        found = []
        for number, child in enumerate(node.children):
            inner = self.run(child, node, run)
            found.append((*(self.gap(child) if inner is None else self.span(child, inner)), number, inner))
        parts, position = [node.tag], start
        for wanted_start, wanted_end, number, inner in sorted(found, key=lambda one: one[:3]):
            child_start = min(max(wanted_start, position), end)
            child_end = min(max(wanted_end, child_start), end)
            parts.append(html.escape(self.target[position:child_start], quote=False))
            parts.append(self.written(node.children[number], child_start, child_end, inner))
            position = child_end
        return "".join((*parts, html.escape(self.target[position:end], quote=False), node.end_tag))

    def words(self, node: _Node) -> range:
        """The source words that are, partly at least, inside a node."""
        if node.start == node.end:
            return range(0)
        return range(bisect_right(self.ends, node.start), bisect_left(self.starts, node.end))

    def run(self, node: _Node, parent: _Node, within: Run | None) -> Run | None:
        """Returns the target words of a node among those of its parent; None if there are none."""
        words = self.words(node)
        if not words or within is None or within[0] > within[1]:
            return None
        if words == self.words(parent):
            return within
        own = sorted(j for i in words for j in self.written_as.get(i, ()) if within[0] <= j <= within[1])
        runs: list[list[int]] = []
        for j in own:
            if runs and self.num_linked[j] == self.num_linked[runs[-1][-1] + 1]:
                runs[-1].append(j)
            else:
                runs.append([j])
        if not runs:
            return None
        longest = max(runs, key=len)
        return longest[0], longest[-1]

    def span(self, node: _Node, run: Run) -> tuple[int, int]:
        """Returns where a node that covers a run of target words starts and ends: with as much white space before and after
        the words as in the source, and inside a word only if the target has the same word."""
        words, (first, last) = self.words(node), run
        start, end = self.targets[first][0], self.targets[last][1]
        inside = node.start - self.starts[words[0]]
        if inside <= 0:
            start = max(start + inside, self.end_before(first))
        elif self.is_same(words[0], first):
            start += inside
        beyond = node.end - self.ends[words[-1]]
        if beyond >= 0:
            end = min(end + beyond, self.start_after(last))
        elif self.is_same(words[-1], last):
            end += beyond
        return start, end

    def gap(self, node: _Node) -> tuple[int, int]:
        """Returns where a node without target words starts and ends: next to the nearest source word that has a link."""
        is_empty = not self.words(node)  # otherwise its words have no links
        start, end = node.start, node.end if is_empty else node.start
        after = bisect_right(self.ends, start)
        if after < len(self.starts) and self.starts[after] < start:
            return self.inside(after, start - self.starts[after])
        before = after - 1
        previous, following = bisect_left(self.linked, after) - 1, bisect_left(self.linked, after)
        touches_next = is_empty and self.starts[after : after + 1] == [end] and self.ends[before] < start
        if following < len(self.linked) and (touches_next or previous < 0):
            first = self.written_as[self.linked[following]][0]
            base, limit = self.targets[first][0] - self.starts[after], self.end_before(first)
            return max(base + start, limit), max(base + end, limit)
        if previous >= 0:
            last = self.written_as[self.linked[previous]][-1]
            base, limit = self.targets[last][1] - self.ends[before], self.start_after(last)
            return min(base + start, limit), min(base + end, limit)
        return self.outside_words(start), self.outside_words(end)

    def inside(self, word: int, offset: int) -> tuple[int, int]:
        """Returns where an empty node inside a source word is: inside the target word if it is the same, else after it."""
        for j in self.written_as.get(word, ()):
            if self.is_same(word, j):
                return self.targets[j][0] + offset, self.targets[j][0] + offset
        previous = bisect_right(self.linked, word) - 1
        position = self.targets[self.written_as[self.linked[previous]][-1]][1] if previous >= 0 else 0
        return position, position

    def is_same(self, i: int, j: int) -> bool:
        """Whether a target word is its source word, unchanged."""
        return self.origin.get(j) == i and self.source[slice(*self.sources[i])] == self.target[slice(*self.targets[j])]

    def end_before(self, j: int) -> int:
        """Returns where the target word before this one ends."""
        return self.targets[j - 1][1] if j else 0

    def start_after(self, j: int) -> int:
        """Returns where the target word after this one starts."""
        return self.targets[j + 1][0] if j + 1 < len(self.targets) else len(self.target)

    def outside_words(self, position: int) -> int:
        """Returns a position of the source as one of the target that is not inside a word; for texts without links."""
        return next((end for start, end in self.targets if start < position < end), min(position, len(self.target)))
