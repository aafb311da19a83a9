"""Texts that the server splits and puts together again: white space, HTML, subtitles; and what it counts."""

import asyncio
import re
from collections.abc import Sequence
from email.message import Message
from email.utils import collapse_rfc2231_value

import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving import MODEL

from regard import load, markup
from regard.errors import UserError
from regard.languages import Language
from regard.serving import rates
from regard.serving.document import split
from regard.serving.files import Downloads, disposition, named, subtitles, wrapped
from regard.serving.fleet import parse_languages
from regard.serving.languages import Directory
from regard.serving.limits import Limits
from regard.serving.marked import apart, chunks
from regard.serving.parameters import File
from regard.serving.rates import Rates, network_of
from regard.serving.refusal import Refusal

READER = load(MODEL).reader
TEXTS = st.text(st.sampled_from("ab. !?\n\r\t\u2028。”é😀<>&;\"'/-"), max_size=60)


@given(TEXTS, st.booleans())
def test_what_is_not_translated_stays_as_it_is(text: str, is_running: bool) -> None:
    document = split(text, READER, is_running=is_running)
    assert document.filled(document.parts)[0] == text
    marks = [f"⟦{number}⟧" for number in range(len(document.parts))]
    filled, spans = document.filled(marks)
    assert re.split(r"⟦\d+⟧", filled) == re.split("§", document.filled(["§"] * len(marks))[0])
    assert [filled[start:end] for start, end in spans] == marks
    for part in document.parts:
        assert part == part.strip() or not is_running
        assert is_running or not re.search(r"[\n\r\u2028]", part)
        assert any(char.isalnum() for char in part)
    rest = "".join(re.split(r"⟦\d+⟧", filled))
    assert not any(char.isalnum() for char in rest)


def test_sentences_and_lines_are_parts() -> None:
    text = "  One. Two!  three\r\n\r\n\t“Four.” Five 3.5 … 6\n---\n😀\n"
    assert split(text, READER).parts == ["One.", "Two!  three", "“Four.”", "Five 3.5 …", "6"]


@given(TEXTS)
def test_html_is_joined_from_its_chunks(text: str) -> None:
    marked = f"<p>{text}</p><ul><li>x<li><b>y"
    try:
        found = chunks(marked)
    except UserError:
        return  # a comment without an end
    assert "".join(chunk.marked for chunk in found) == marked
    for chunk in found:
        assert "".join(piece.marked for piece in apart(chunk)) == chunk.marked
        if chunk.text is not None:
            filled = chunk.filled(chunk.text, [])
            assert tags(filled) == tags(chunk.marked)


def tags(marked: str) -> list[str]:
    return [match[0] for match in markup.MARK.finditer(marked)]


def test_blocks_are_texts_of_their_own_and_inline_tags_are_not() -> None:
    page = '<!-- a --><p class="x">red <b>wine</b> &amp; cheese<br/>dog</p>\n<script>if (a<b) c()</script><td>cat</td>'
    assert [chunk.text for chunk in chunks(page) if chunk.text is not None] == ["red wine & cheese", "dog", "cat"]


def test_tags_that_are_not_well_nested_split_a_text() -> None:
    found = chunks("<p>red <i>wine</b> tree</p>")
    assert [(chunk.marked, chunk.text) for chunk in found if chunk.text] == [
        ("red ", "red "),
        ("wine", "wine"),
        (" tree", " tree"),
    ]
    assert "".join(chunk.marked for chunk in found) == "<p>red <i>wine</b> tree</p>"


async def shout(texts: Sequence[str]) -> list[str]:
    """A translation that keeps tags."""
    return [re.sub(r"(<[^>]*>)|([^<]+)", lambda match: match[1] or match[2].upper(), text) for text in texts]


def test_subtitles_keep_numbers_times_and_lines() -> None:
    first = "1\r\n00:00:01,000 --> 00:00:02,000\r\nred wine\r\nand a tree\r\n\r\n"
    text = first + "2\r\n00:00:03,000 --> 00:00:04,000\r\n<i>dog</i>\r\n"
    found = asyncio.run(subtitles(text, shout))
    assert found == text.replace("red wine\r\nand a tree", "RED WINE\r\nAND A TREE").replace("<i>dog", "<i>DOG")
    with pytest.raises(Refusal, match="has no subtitles"):
        asyncio.run(subtitles("red\nwine", shout))


@given(st.lists(st.sampled_from(["a", "bbb", "cccccc"]), max_size=9), st.integers(1, 4))
def test_lines_are_wrapped_without_losing_words(words: list[str], lines: int) -> None:
    found = wrapped(" ".join(words), lines)
    assert " ".join(found).split() == words
    assert len(found) == max(1, min(lines, len(words)))
    assert wrapped("a bbbbbb cc", 2) == ["a bbbbbb", "cc"]  # about equally long: 8 and 2 letters, not 1 and 9


def test_downloads_are_bounded_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("regard.serving.files.monotonic", lambda: now[0])
    kept = Downloads(Limits(files=10, file_seconds=60))
    names = [kept.add(File(f"{number}.txt", b"four")) for number in range(3)]
    assert kept.nbytes == 8
    assert kept.find(names[1]).name == "1.txt"
    with pytest.raises(Refusal, match="kept for 1 minutes"):
        kept.find(names[0])
    now[0] = 61
    with pytest.raises(Refusal):
        kept.find(names[2])
    assert kept.nbytes == 0
    with pytest.raises(Refusal, match="too much to keep"):
        kept.add(File("a.txt", b"x" * 11))


@given(st.text(max_size=100), st.sampled_from((".txt", ".HTML", ".srt")))
def test_no_name_of_a_file_breaks_its_header(stem: str, ending: str) -> None:
    name = named(File(stem + ending, b""), "de", "").name
    assert re.fullmatch(r"[\w.-]+", name)
    header = disposition(name)
    assert header.isascii()
    assert header.isprintable()
    message = Message()  # reads headers as mail programs do
    message["Content-Disposition"] = header.replace("filename=", "plain=")
    assert collapse_rfc2231_value(message.get_param("filename", header="Content-Disposition")) == name  # type: ignore[arg-type]
    plain = message.get_param("plain", header="Content-Disposition")
    assert re.fullmatch(r"[A-Za-z0-9_-][\w.-]*\.de\.(txt|html|srt)", str(plain), re.ASCII)


@pytest.mark.parametrize(
    ("given", "kept", "plain"),
    [
        ("Über uns.txt", "Über_uns.de.txt", "ber_uns.de.txt"),
        ('a";\r\nSet-Cookie: x=1.txt', "a_Set-Cookie_x_1.de.txt", "a_Set-Cookie_x_1.de.txt"),
        ("../../etc/пароль.srt", "etc_пароль.de.srt", "etc.de.srt"),
        ("\u202etxt.exe.html", "txt.exe.de.html", "txt.exe.de.html"),
        ("....txt", "file.de.txt", "file.de.txt"),
    ],
)
def test_names_of_translated_files(given: str, kept: str, plain: str) -> None:
    name = named(File(given, b""), "de", "").name
    assert name == kept
    assert disposition(name).startswith(f'attachment; filename="{plain}"; ')


def test_rates_refill_and_do_not_mix_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(rates, "monotonic", lambda: now[0])
    counted = Rates(6)
    for _ in range(6):
        counted.check("a")
    with pytest.raises(Refusal, match="Slowdown: 6 per 1 minute") as refused:
        counted.check("a")
    assert (refused.value.status, refused.value.retry_after) == (429, 10)
    counted.check("b")
    now[0] = 10
    counted.check("a")
    with pytest.raises(Refusal):
        counted.check("a")
    for _ in range(100):
        counted.check("a", 0)
    monkeypatch.setattr(rates, "MOST_CLIENTS", 3)
    for client in range(50):
        counted.check(str(client))
    assert list(counted._left) == ["47", "48", "49"]  # who asked last is remembered
    idle = Rates(6)
    idle.check("a")
    now[0] += 1e6
    for _ in range(6):  # not more than a minute's requests at once
        idle.check("a")
    with pytest.raises(Refusal):
        idle.check("a")


def test_addresses_that_count_as_one_client() -> None:
    assert network_of("192.0.2.7") == network_of("::ffff:192.0.2.7") == "192.0.2.7"
    assert network_of("2001:db8:0:5::1") == network_of("2001:db8:0:5:ffff::2") == "2001:db8:0:5::/64"
    assert network_of("2001:db8:0:6::1") != network_of("2001:db8:0:5::1")
    assert network_of("unknown") == "unknown"


class Pair:
    def __init__(self, source: str, target: str) -> None:
        self.source, self.target = Language.parse(source), Language.parse(target)


def test_routes_and_codes() -> None:
    models = [Pair("en", "de"), Pair("de", "fr"), Pair("fr", "zh-Hans")]
    direct, pivoted = Directory.of(models), Directory.of(models, "de")
    assert [pair.target.code for pair in direct.route("en", "de")] == ["de"]
    assert direct.route("en", "en") == ()
    assert [pair.target.code for pair in pivoted.route("en", "fr")] == ["de", "fr"]
    with pytest.raises(Refusal, match=r"^French \(fr\) is not available as a target language from English \(en\)$"):
        direct.route("en", "fr")
    with pytest.raises(Refusal, match="not available"):
        pivoted.route("en", "zh-Hans")  # not through two languages
    assert [entry["targets"] for entry in pivoted.listed()] == [
        ["en", "de", "fr"],
        ["de", "fr"],
        ["fr", "zh-Hans"],
        ["zh-Hans"],
    ]
    assert [direct.code(given) for given in ("EN", " de ", "fr_FR", "zh-hans")] == ["en", "de", "fr", "zh-Hans"]
    chinese = Directory.of([Pair("pb", "zt"), Pair("zh", "pb")])
    assert [chinese.code(given) for given in ("pt-BR", "zh_Hant", "zh-CN", "zh-SG")] == ["pb", "zt", "zh", "zh"]
    with pytest.raises(Refusal, match=r"^zz is not supported$"):
        direct.code("zz")
    with pytest.raises(UserError, match="two models translate from en to de"):
        Directory.of([*models[:2], Pair("en", "de")])
    with pytest.raises(UserError, match="--pivot es: no model knows it"):
        Directory.of(models, "es")


def test_languages_as_typed() -> None:
    (first, second) = parse_languages(["en,de", "pt-BR=Brazilian,en+fr"], 2)
    assert (first.source[0].name, second.source[0].name) == ("English", "Brazilian")
    assert [one.code for one in second.target] == ["en", "fr"]
    with pytest.raises(UserError, match="expected two"):
        parse_languages(["en"], 1)
    with pytest.raises(UserError, match="given 2 times for 1 models"):
        parse_languages(["en,de", "de,en"], 1)
