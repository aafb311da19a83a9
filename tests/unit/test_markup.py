"""Markup follows the links: every tag once, well nested, and the text exactly that of the translation."""

import re
from collections import Counter
from html import escape
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_inspection import make_translator

import regard
from regard.errors import UserError
from regard.links import word_spans
from regard.markup import MOST_NESTED, plain, transfer, transfer_markup

TAG = re.compile(r"""<!--.*?-->|<script>.*?</script>|</?[a-z]+(?:\s+[a-z]+="[^"]*")*\s*/?>""", re.DOTALL)
"""An independent reading of the tags that these tests write."""


def identity(text: str) -> list[tuple[int, int]]:
    return [(number, number) for number in range(len(text.split()))]


def tags(marked: str) -> list[str]:
    return TAG.findall(marked)


def is_well_nested(marked: str) -> bool:
    names: list[str] = []
    for tag in tags(marked):
        name = re.sub(r"[^a-z].*", "", tag.lstrip("</"), flags=re.DOTALL)
        if tag.startswith("</"):
            if not names or names.pop() != name:
                return False
        elif not tag.startswith(("<!--", "<script")) and not tag.endswith("/>") and name not in ("br", "img"):
            names.append(name)
    return not names


def pieces() -> st.SearchStrategy[str]:
    return st.text(st.sampled_from("ab<>&'\" \n\t;é\u00a0"), max_size=7).map(lambda text: escape(text, quote=False))


def points() -> st.SearchStrategy[str]:
    return st.sampled_from(
        ["<br/>", "<br>", '<img src="a>b.png" alt="&amp;">', "<x />", "<!-- <b> a -->", "<script>if (a<b) c()</script>"]
    )


def elements(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    attributes = st.sampled_from(["", ' href="a?b=1&amp;c"', ' title="it\'s" ', '\n class="x y"'])
    names = st.sampled_from("a b i span".split())
    return st.builds(lambda name, given, parts: f"<{name}{given}>{''.join(parts)}</{name}>", names, attributes, st.lists(inner))


MARKED = st.lists(st.recursive(st.one_of(pieces(), points()), elements, max_leaves=12), max_size=6).map("".join)


@settings(max_examples=100)
@given(marked=MARKED)
def test_the_identity_returns_the_source_exactly(marked: str) -> None:
    text = plain(marked)
    assert transfer(marked, text, identity(text)) == marked


@settings(max_examples=100)
@given(marked=MARKED, target=st.text(st.sampled_from("xyz<>&; \n"), max_size=40), seed=st.integers(0, 2**32))
def test_every_tag_is_written_once_well_nested_and_the_text_is_the_translation(marked: str, target: str, seed: int) -> None:
    rng, num_sources, num_targets = Random(seed), len(plain(marked).split()), len(target.split())
    density = rng.random()
    links = [(i, j) for i in range(num_sources) for j in range(num_targets) if rng.random() < density]
    output = transfer(marked, target, links)
    assert plain(output) == target
    assert Counter(tags(output)) == Counter(tags(marked))
    assert is_well_nested(marked)
    assert is_well_nested(output)
    assert escape(target, quote=False) == TAG.sub("", output)


@settings(max_examples=200)
@given(words=st.integers(1, 8), seed=st.integers(0, 2**32))
def test_words_inside_an_element_are_inside_in_any_order(words: int, seed: int) -> None:
    """Elements of one word each, next to each other: whatever the order, each target word is inside the tag of its source."""
    rng = Random(seed)
    order = rng.sample(range(words), words)
    marked = " ".join(f"<b n{i}>w{i}</b>" if rng.random() < 0.7 else f"w{i}" for i in range(words))
    output = transfer(marked, " ".join(f"v{i}" for i in order), [(i, j) for j, i in enumerate(order)])
    expected = " ".join((f"<b n{i}>v{i}</b>" if f"<b n{i}>" in marked else f"v{i}") for i in order)
    assert output == expected


@pytest.mark.parametrize(
    ("marked", "target", "links", "expected"),
    [
        # adjectives move; nested elements move with them
        ("A <b>red</b> house", "Une maison rouge", [(0, 0), (1, 2), (2, 1)], "Une maison <b>rouge</b>"),
        (
            '<p>the <a href="/x">big <i>red</i> dog</a> sleeps</p>',
            "le gros chien rouge dort",
            [(0, 0), (1, 1), (2, 3), (3, 2), (4, 4)],
            '<p>le <a href="/x">gros chien <i>rouge</i></a> dort</p>',
        ),
        # not contiguous: the run with the most words, the first of two; words without links do not interrupt it
        (
            "he <b>called off</b> the game",
            "er sagte das Spiel ab",
            [(0, 0), (1, 1), (2, 4), (3, 2), (4, 3)],
            "er <b>sagte</b> das Spiel ab",
        ),
        ("<i>a b c</i> d", "x w y z", [(0, 0), (3, 1), (1, 2), (2, 3)], "x w <i>y z</i>"),
        ("<i>a b</i> c", "x so y z", [(0, 0), (1, 2), (2, 3)], "<i>x so y</i> z"),
        # all words: also those without links
        ("<b>a b</b>", "oh x y ah", [(0, 1), (1, 2)], "<b>oh x y ah</b>"),
        ("<b>a b</b>", "x y", [], "<b>x y</b>"),
        # no link: empty, after the word before it; or before the next word that has one
        ("a <b>b</b> c", "x z", [(0, 0), (2, 1)], "x <b></b>z"),
        ("<b>a</b> c", "z", [(1, 0)], "<b></b>z"),
        # single tags stay with the word that they touch
        ("a<br> b", "y x", [(0, 1), (1, 0)], "y x<br>"),
        ('a <img src="i">b', "y x", [(0, 1), (1, 0)], '<img src="i">y x'),
        ("a <!-- note --> b", "x y", [(0, 0), (1, 1)], "x <!-- note -->y"),
        # inside a word: there if the word is the same, else the whole word
        ("i<b>Pad</b> users", "usagers iPad", [(0, 1), (1, 0)], "usagers i<b>Pad</b>"),
        ("un<b>do</b> it", "défais le", [(0, 0), (1, 1)], "<b>défais</b> le"),
        ("<b>un</b><i>do</i> it", "défais le", [(0, 0), (1, 1)], "<b>défais</b><i></i> le"),
        # several links: the first source word
        ("in <b>the</b> end", "im Ende", [(0, 0), (1, 0), (2, 1)], "im <b></b>Ende"),
        # white space of a tag goes as far as the target has it
        ("<b>a </b>b", "y  x ", [(0, 1), (1, 0)], "y  <b>x </b>"),
        # text never becomes markup, and what is no tag is text
        ("<b>1</b> &lt; 2", "1 <script>", [(0, 0), (2, 1)], "<b>1</b> &lt;script&gt;"),
        ("I <3 <b>you</b>", "I <3 you", [(0, 0), (1, 1), (2, 2)], "I &lt;3 <b>you</b>"),
        ("R&#38;D <b>it&#39;s</b> &eacute;", "R&D it's é", [(0, 0), (1, 1), (2, 2)], "R&amp;D <b>it's</b> é"),
        ("", "", [], ""),
        ("<b></b>", "", [], "<b></b>"),
        ("a <b>b</b><br>", "", [], "<b></b><br>"),
    ],
)
def test_by_hand(marked: str, target: str, links: list[tuple[int, int]], expected: str) -> None:
    assert transfer(marked, target, links) == expected


def test_plain_texts() -> None:
    assert plain("<b>Red</b> wine &amp; <i>cheese</i>") == "Red wine & cheese"
    assert plain("a<!-- <b> --><style>b { }</style><SCRIPT src='x'>1 < 2</script >b<?xml v?><!DOCTYPE html>") == "ab"
    assert plain("&am<b></b>p; &lt;b&gt; &amp;lt;") == "&amp; <b> &lt;"  # each text is read by itself, and once
    assert plain("a < b, x<3, <> </ > <1>") == "a < b, x<3, <> </ > <1>"
    assert plain("<B>x</b> <x/> <br> <a b=c/>d</a> <a b='1'c>e</a>") == "x   d e"


@pytest.mark.parametrize(
    ("marked", "message"),
    [
        ("a <b>b", r"the tag '<b>' has no end tag; add it, or write < as &lt;"),
        ("a b</b>", r"the tag '</b>' at character 4 has no start tag: nothing is open; close elements in the order"),
        ("<b><i>x</b></i>", r"the tag '</b>' at character 8 has no start tag: <i> is still open"),
        ("a <!-- b", r"the tag '<!--' at character 3 has no end"),
        ("<script src='a'/>x", r"the tag \"<script src='a'/>\" at character 1 has no end"),
        ("<b>" * (MOST_NESTED + 1) + "x" + "</b>" * (MOST_NESTED + 1), r"at character 301 is inside more than 100 other tags"),
    ],
)
def test_markup_that_is_not_well_nested_is_refused(marked: str, message: str) -> None:
    for call in (lambda: plain(marked), lambda: transfer(marked, "x", [])):
        with pytest.raises(UserError, match=message):
            call()


@settings(max_examples=300)
@given(marked=st.text(st.sampled_from("<>/!-ab\"'= &;x?[]"), max_size=30))
def test_any_text_is_read_or_refused(marked: str) -> None:
    try:
        text = plain(marked)
    except UserError:
        return
    output = transfer(marked, text, identity(text))
    assert plain(output) == text
    assert plain(transfer(output, "x", [])) == "x"


def test_large_hostile_markup_takes_linear_time() -> None:
    for marked in ("<" * 200_000, "<a " * 70_000, '<a b="' * 40_000, "<!" * 100_000, "<br " + "b=1 " * 50_000, "&" * 200_000):
        assert len(plain(marked)) == len(marked)
    marked = "<b>a</b> " * 20_000
    assert transfer(marked, plain(marked), identity(plain(marked))) == marked


def test_links_that_do_not_fit_are_refused() -> None:
    for links in ([(1, 0)], [(0, 2)], [(-1, 0)]):
        with pytest.raises(
            ValueError, match=r"there are 1 source words and 2 target words, but a link is .*count words, from 0"
        ):
            transfer("<b>a</b>", "x y", links)


def test_the_markup_of_a_result_follows_its_words() -> None:
    """For a model of characters as well: links are then counted in words."""
    translator = make_translator("transformer scaled_dot")
    result = translator("ab ca", max_length=6)
    marked = "ab <b>ca</b>"
    assert len(result.text.split()) > 1
    expected = transfer(marked, result.text, result.alignment(pieces=False))
    assert regard.transfer_markup(marked, result) == transfer_markup(marked, result) == expected
    assert plain(expected) == result.text
    with pytest.raises(UserError, match=r"this result is that of 'ab ca', but the text of the markup is 'ab cb'; translate"):
        transfer_markup("ab <b>cb</b>", result)


def test_words_are_those_of_split() -> None:
    text = " a\u00a0b\tc\u2003\x1cd  é\n"
    assert [text[start:end] for start, end in word_spans(text)] == text.split()
