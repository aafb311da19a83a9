"""Labels that people can read and that every format can hold."""

import warnings
from pathlib import Path
from xml.dom import minidom

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.data import labels
from regard.data.labels import label, readable
from regard.errors import UserError
from regard.inspection import render
from regard.results import AttentionMap

EVERYTHING = st.text(st.characters(exclude_categories=()), max_size=60)


def test_labels_by_hand() -> None:
    for token, expected in {
        "a": "a",
        " the": " the",
        "<eos>": "<eos>",
        " ": "␣",
        "\n": "⏎",
        "\t": "⇥",
        "": "∅",
        "\tV": "[V]",
        "\tV\tPST": "⇥V⇥PST",
        "a\tb": "a⇥b",
        "\x00": r"\x00",
        "\x1b[31m": r"\x1b[31m",
        "\x85": r"\x85",
        "\uffff": r"\uffff",
        "\U0001fffe": r"\U0001fffe",
        "\ud800": r"\ud800",
        "\u202eabc": r"\u202eabc",
        "\u2028": r"\u2028",
        "\u200d": r"\u200d",
        "\u00a0": r"\xa0",
        "👩\u200d💻": "👩\u200d💻",
        "\u0301": "◌\u0301",
        "ि": "◌ि",
        "é": "é",
        "x" * 40: "x" * 40,
        "x" * 41: "x" * 39 + "…",
    }.items():
        assert label(token) == expected
    assert readable("walk\tV\tPST") == "walk [V] [PST]"
    assert readable("\tsay nine") == "[say nine]"
    assert readable("a\x00\nb") == r"a\x00⏎b"


@given(EVERYTHING)
def test_every_label_is_xml_and_utf_8(token: str) -> None:
    for shown in (label(token), readable(token)):
        shown.encode()
        document = minidom.Document()
        document.appendChild(document.createElement("text")).appendChild(document.createTextNode(shown))
        assert minidom.parseString(document.toxml()).documentElement.firstChild is not None or not shown
    assert label(token).strip()
    assert len(label(token)) <= 10 * labels.LONGEST


HOSTILE = (
    "\tV",
    "\tPST",
    "\x00",
    "\x1b",
    "\uffff",
    "\ud800",
    " ",
    "\u202e",
    "😀",
    "]]>",
    "&<",
    "x" * 5000,
    "שלום",
    "",
    "<eos>",
)


def make_map(tokens: tuple[str, ...]) -> AttentionMap:
    return AttentionMap(torch.eye(len(tokens))[None], tokens, tokens, "cross", 0)


def test_drawings_hold_any_token(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "no installed font has")
        for ending in (".png", ".pdf", ".SVG"):
            render.draw(make_map(HOSTILE), tmp_path / f"map{ending}")
    drawing = minidom.parse(str(tmp_path / "map.SVG"))
    texts = [node.firstChild.data.strip() for node in drawing.getElementsByTagName("text") if node.firstChild]
    assert {label(token).strip() for token in HOSTILE} <= set(texts)
    assert not [text for text in texts if "\t" in text]
    assert {"[V]", "[PST]", "␣", r"\x00"} <= set(render.in_terminal(make_map(HOSTILE), 9999).plain.split())


def test_a_font_that_has_the_characters_is_used(tmp_path: Path) -> None:
    """DejaVu Sans Mono has no emoji; DejaVu Sans, which comes with matplotlib, has some."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        render.draw(make_map(("😀", "a")), tmp_path / "map.png")
    assert render._font([make_map(("😀", "a"))], 9)["family"] == ["DejaVu Sans Mono", "DejaVu Sans"]
    assert render._font([make_map(("\U000f1234",))], 9)["family"] == ["DejaVu Sans Mono"]


def test_drawing_errors_are_one_line(tmp_path: Path) -> None:
    nan = AttentionMap(torch.full((1, 1, 1), torch.nan), ("a",), ("b",), "cross", 2)
    for show in (lambda: render.draw(nan, tmp_path / "nan.png"), lambda: render.in_terminal(nan)):
        with pytest.raises(UserError, match="the cross attention of layer 2 holds NaN or infinity, so it cannot be shown"):
            show()
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "file").write_text("")
    for path, expected in (
        ("folder.png", r"folder\.png is a folder; expected the name of a file to write$"),
        ("file/map.png", r"file/map\.png cannot be written: its folder is a file; choose another file"),
        ("x" * 300 + ".png", r"x\.png cannot be written: File name too long; choose another file"),
    ):
        with pytest.raises(UserError, match=expected):
            render.draw(make_map(("a",)), tmp_path / path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.png"]
    sound = AttentionMap(torch.ones(1, 1, 1), ("0.00 s",), ("b",), "cross", 0, seconds=0.04)
    picture = AttentionMap(torch.ones(1, 1, 4), ("0",) * 4, ("b",), "cross", 0, (2, 2))
    for attention_map, over in ((sound, "none.wav"), (picture, "none.png")):
        with pytest.raises(UserError, match=rf"{over}: no such file"):
            render.draw(attention_map, tmp_path / "over.png", over=tmp_path / over)
