"""Pictures of a reader's own numbers: what is drawn is what was given. Pictures are read back from their SVG."""

from __future__ import annotations

import re
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any
from xml.dom import minidom

import numpy as np
import pytest
import torch

import regard
from regard.errors import UserError
from regard.inspection.figures import Panels, arrows_figure, intervals_figure, number_format
from regard.results import AttentionMap, Result

pytest.importorskip("matplotlib")

WORDS = ("I", "am", "a", "student", "שלום")
BLUE, RED, GREY = "#2166ac", "#b2182b", "#8a939c"


class Svg:
    """A drawing, read back from its SVG."""

    def __init__(self, drawing: regard.Drawing) -> None:
        self.document = minidom.parseString(drawing._repr_svg_())

    def element(self, gid: str) -> Any:
        (found,) = [node for node in self.document.getElementsByTagName("g") if node.getAttribute("id") == gid]
        return found

    def has(self, gid: str) -> bool:
        return any(node.getAttribute("id") == gid for node in self.document.getElementsByTagName("g"))

    def texts(self) -> list[str]:
        return [node.firstChild.data.strip() for node in self.document.getElementsByTagName("text") if node.firstChild]

    def style(self, gid: str, name: str) -> list[str]:
        """Returns a property of all paths of an element."""
        styles = [path.getAttribute("style") for path in self.element(gid).getElementsByTagName("path")]
        return [found[1] for style in styles if (found := re.search(rf"(?:^|; )?(?<![-\w]){name}: ([^;]+)", style))]

    def cells(self, panel: int = 0) -> list[tuple[int, int, int]]:
        """Returns the colours of the cells, row by row."""
        fills = self.style(f"cells-{panel}", "fill")
        return [tuple(int(fill[at : at + 2], 16) for at in (1, 3, 5)) for fill in fills]  # type: ignore[misc]

    def width(self, gid: str) -> float:
        return float((self.style(gid, "stroke-width") or ["1"])[0])  # 1 is not written


def darkness(colour: tuple[int, int, int]) -> int:
    return 3 * 255 - sum(colour)


# --- maps --------------------------------------------------------------------------------------------------------------------


def test_a_map_has_a_cell_for_each_number_and_darker_is_more() -> None:  # SPEC A9.5
    values = np.array([[0.02, 0.9, 0.3], [0.5, 0.07, 0.6]])
    svg = Svg(regard.draw(values, rows=("je", "suis"), columns=WORDS[:3], x="keys", y="queries", title="weights"))
    cells = svg.cells()
    assert len(cells) == 6
    order = np.argsort(values, axis=None)
    shades = [darkness(cells[index]) for index in order]
    assert all(one < other for one, other in pairwise(shades))
    texts = svg.texts()
    assert {"je", "suis", "I", "am", "a", "keys", "queries", "weights"} <= set(texts)
    assert {"0.02", "0.90", "0.30", "0.50", "0.07", "0.60"} <= set(texts)  # small matrices show their numbers
    assert "0.90" not in Svg(regard.draw(values, numbers=False)).texts()
    assert "0.50" not in Svg(regard.draw(np.full((13, 2), 0.5))).texts()


def test_numpy_torch_and_lists_are_drawn_alike() -> None:
    values = [[0.25, -1.5], [3.0, 0.5]]
    tensor = torch.tensor(values, requires_grad=True)
    same = [
        regard.draw(given) for given in (values, np.array(values), tensor, tensor.bfloat16(), [tensor[0], tensor[1]], [values])
    ]
    assert len({tuple(Svg(drawing).cells()) for drawing in same}) == 1


def test_colours_diverge_from_zero_or_span_the_values() -> None:
    """Blue above zero, red below; equally strong for x and −x. Zero is white even if the values are lopsided."""
    red, white, blue, small = Svg(regard.draw([[-4.0, 0.0, 4.0, 1.0]])).cells()
    assert red[0] > red[2]
    assert blue[2] > blue[0]
    assert min(white) > 240
    assert small[2] > small[0]
    assert darkness(small) < darkness(blue)
    assert Svg(regard.draw([[0.0, 8.0, -2.0]])).cells()[0] == white
    forced = Svg(regard.draw([[1.0, 2.0]], scale="diverging")).cells()
    assert forced[1] == blue
    low, high = Svg(regard.draw([[7.0, 9.0]], scale="own")).cells()
    assert (low, high) == tuple(Svg(regard.draw([[0.0, 1.0]])).cells())
    from_zero = Svg(regard.draw([[7.0, 9.0]])).cells()
    assert darkness(low) < darkness(from_zero[0])  # without "own", colours start at 0
    half, beyond = Svg(regard.draw([[1.0, 5.0]], scale=(0, 2))).cells()
    assert half == Svg(regard.draw([[0.5, 1.0]])).cells()[0]
    assert beyond == high


def test_masks_and_hidden_cells() -> None:
    allow = regard.masks.causal(4)
    svg = Svg(regard.draw(allow, rows="abcd", columns="abcd"))
    blue = (0x21, 0x66, 0xAC)
    assert [cell == blue for cell in svg.cells()] == allow.flatten().tolist()
    assert set(svg.texts()) == set("abcd")  # neither numbers nor a scale
    scores = torch.arange(16.0).reshape(4, 4)
    hidden = Svg(regard.draw(scores, allow=allow))
    same = Svg(regard.draw(scores.masked_fill(~allow, -torch.inf)))
    assert hidden.cells() == same.cells()
    assert hidden.texts().count("−∞") == 6
    assert len({cell for cell, seen in zip(hidden.cells(), allow.flatten(), strict=True) if not seen}) == 1
    largest = Svg(regard.draw([[3.0, 99.0]], allow=[[True, False]])).cells()[0]
    assert largest == Svg(regard.draw([[3.0]])).cells()[0]  # a hidden number has no part in the scale


def test_heads_are_panels_with_one_scale() -> None:
    heads = torch.tensor([[[0.1, 0.2]], [[0.8, 0.4]], [[0.0, 0.2]]])
    svg = Svg(regard.draw(heads, panels=("one", "two", "three")))
    panels = [svg.cells(number) for number in range(3)]
    assert [len(panel) for panel in panels] == [2, 2, 2]
    assert panels[0][1] == panels[2][1]
    assert darkness(panels[0][1]) < darkness(panels[1][1]) < darkness(panels[1][0])
    assert {"one", "two", "three"} <= set(svg.texts())
    named = Svg(regard.draw({"one": heads[0], "two": heads[1]}))
    assert {"one", "two"} <= set(named.texts())
    assert named.cells(1) == panels[1]
    batch = Svg(regard.draw(heads[None]))  # the weights of a layer, (1, heads, queries, keys)
    assert batch.cells(2) == panels[2]


def test_a_large_map_is_an_image() -> None:
    table = regard.positions.sinusoidal(torch.arange(100), 64)
    drawing = regard.draw(table @ table.T)
    svg = Svg(drawing)
    assert len(svg.document.getElementsByTagName("image")) >= 1
    assert len(drawing._repr_svg_()) < 100_000
    assert {"0", "50"} <= set(svg.texts())


def test_positions_are_counted_where_there_is_room() -> None:
    texts = Svg(regard.draw([[1.0]], numbers=False)).texts()
    assert texts.count("0") == 2  # and no −0.5
    assert not any(text.startswith("−") for text in texts)
    low = Svg(regard.draw(np.ones((3, 100)), scale=(0.5, 0.6))).texts()  # rows that are too low for three numbers
    assert {"0", "20", "80"} <= set(low)
    assert not {"1", "2"} & set(low)


@pytest.mark.parametrize(
    ("numbers", "written"),
    [
        ([0.5, -0.004, 0.0], ["0.50", "0.00", "0.00"]),
        ([0.05, -0.004], ["0.050", "−0.004"]),
        ([0.0042, 0.0003], ["0.0042", "0.0003"]),
        ([-2.13e-5, 4e-7], ["−2.1e−05", "4.0e−07"]),
        ([123.4, -50.6], ["123", "−51"]),
        ([12.34, -5.06], ["12.3", "−5.1"]),
        ([3.0, -2.0, 0.0], ["3", "−2", "0"]),
    ],
)
def test_numbers_have_the_digits_that_they_need(numbers: list[float], written: list[str]) -> None:
    assert [number_format(np.array(numbers))(number) for number in numbers] == written


def test_no_label_is_cut(tmp_path: Path) -> None:
    """The outermost pixels are white, however long the labels and titles are."""
    import matplotlib.image

    long = [f"a label of some length {number}" for number in range(3)]
    for number, drawing in enumerate(
        (
            regard.draw(np.ones((3, 3)), rows=long, columns=long, title="x" * 60),
            regard.draw(np.ones((2, 3, 3)), columns=long, panels=("one", "two")),
            regard.draw(np.ones((3, 3)), kind="lines", rows=long, columns=long),
            regard.draw(np.ones(3), columns=long),
            regard.draw(([1.0, 0.0], [[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]]), kind="arrows", columns=long),
        )
    ):
        pixels = matplotlib.image.imread(drawing.save(tmp_path / f"{number}.png"))[..., :3]
        assert min(edge.min() for edge in (pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1])) == 1.0, number
        assert pixels.min() < 0.5


# --- lines and arcs ----------------------------------------------------------------------------------------------------------


def test_the_thickness_of_a_line_is_the_weight() -> None:
    weights = np.array([[0.8, 0.2, 0.0], [0.1, 0.5, -0.4]])
    svg = Svg(regard.draw(weights, kind="lines", rows=("je", "suis"), columns=WORDS[2:]))
    largest = svg.width("line-0-0-0")
    for row, column in np.ndindex(2, 3):
        weight = abs(weights[row, column])
        gid = f"line-0-{row}-{column}"
        assert svg.has(gid) == (weight > 0)
        if weight:
            assert svg.width(gid) == pytest.approx(largest * weight / 0.8, rel=1e-4)
            assert svg.style(gid, "stroke") == [BLUE if weights[row, column] > 0 else RED]
    assert {"je", "suis", "a", "student", "שלום"} <= set(svg.texts())


def test_lines_lead_from_their_row_above_to_their_column_below() -> None:
    svg = Svg(regard.draw(np.eye(3)[::-1], kind="lines"))

    def ends(gid: str) -> list[float]:
        path = svg.element(gid).getElementsByTagName("path")[0].getAttribute("d")
        return [float(number) for number in re.findall(r"-?\d+\.?\d*", path)]

    first, last = ends("line-0-0-2"), ends("line-0-2-0")
    assert first[1] == last[1] < first[3] == last[3]  # y points down
    assert first[0] == last[2] < first[2] == last[0]


def test_words_on_a_line_do_not_overlap() -> None:
    from regard.inspection.figures import LETTER, _spread

    words = ("a", "incomprehensibilities", "猫猫猫猫", "", "b")
    middles, total = _spread(words)
    halves = [LETTER * width / 2 for width in (1, 21, 8, 0, 1)]  # CJK characters are twice as wide
    assert all(right - b > left + a for (left, a), (right, b) in pairwise(zip(middles, halves, strict=True)))
    assert middles[0] - halves[0] >= 0
    assert middles[-1] + halves[-1] <= total


def test_arcs_over_one_sentence() -> None:
    sentence = "A hearing is scheduled on the issue today .".split()
    links = [(1, 0), (2, 1), (2, 3), (1, 4), (4, 6), (6, 5), (3, 7), (2, 8, 0.5)]  # the last has half the weight
    svg = Svg(regard.draw(links, kind="arcs", columns=sentence))
    assert set(sentence) <= set(svg.texts())
    drawn = {node.getAttribute("id") for node in svg.document.getElementsByTagName("g")}
    assert {gid for gid in drawn if gid.startswith("arc")} == {f"arc-0-{link[0]}-{link[1]}" for link in links}
    assert svg.width("arc-0-2-8") == pytest.approx(svg.width("arc-0-2-1") / 2, rel=1e-4)
    weights = np.array([[0.0, 0.3], [0.6, 0.4]])
    both = Svg(regard.draw(weights, kind="arcs", columns=("x", "y")))
    assert both.width("arc-0-0-1") == pytest.approx(both.width("arc-0-1-0") / 2, rel=1e-4)
    assert both.width("arc-0-1-1") == pytest.approx(both.width("arc-0-1-0") * 2 / 3, rel=1e-4)
    assert not both.has("arc-0-0-0")


def test_an_arc_is_higher_than_those_that_it_spans() -> None:
    from regard.inspection.figures import _levels

    levels = _levels([(0, 5), (1, 3), (3, 1), (2, 3), (7, 6)])
    assert levels[0, 5] > levels[1, 3] == levels[3, 1] > levels[2, 3] == levels[7, 6]


# --- bars, arrows, curves ----------------------------------------------------------------------------------------------------


def bar_heights(svg: Svg, panel: int, number: int) -> list[float]:
    """Returns the extents of bars, in the units of the picture."""
    found = []
    for column in range(number):
        path = svg.element(f"bar-{panel}-{column}").getElementsByTagName("path")[0].getAttribute("d")
        ys = [float(y) for y in re.findall(r"[ML] \S+ (\S+)", path)]
        found.append(max(ys) - min(ys))
    return found


def test_bars_are_as_high_as_their_numbers() -> None:
    svg = Svg(regard.draw([0.1, 0.7, 0.2], columns=WORDS[:3]))
    heights = bar_heights(svg, 0, 3)
    assert np.allclose(np.array(heights) / heights[1], [1 / 7, 1, 2 / 7], atol=1e-3)
    assert {"I", "am", "a", "0.10", "0.70", "0.20"} <= set(svg.texts())
    rows = Svg(regard.draw([[1.0, 2.0], [4.0, -3.0]], kind="bars", rows=("one", "two")))
    assert {"one", "two", "−3"} <= set(rows.texts())
    assert np.allclose(np.array(bar_heights(rows, 1, 2)) / bar_heights(rows, 0, 2)[0], [4, 3], atol=1e-2)
    assert rows.style("bar-1-1", "fill") == [RED]
    assert rows.style("bar-1-0", "fill") == [BLUE]


def test_arrows_have_the_colour_of_the_sign_of_the_score() -> None:
    query, keys = torch.tensor([1.0, 0.5]), torch.tensor([[2.0, 1.0], [-1.0, 1.0], [-1.0, 2.0], [0.5, -2.0]])
    svg = Svg(regard.draw((query, keys), kind="arrows", columns=WORDS[:4]))
    colours = {1: BLUE, -1: RED, 0: GREY}
    for number, score in enumerate((keys @ query).sign().int().tolist()):
        assert svg.style(f"key-0-{number}", "stroke")[0] == colours[score]
    assert {"q", "I  2.50", "am  −0.50", "a  0.00", "student  −0.50"} <= set(svg.texts())
    two = Svg(regard.draw(([[1.0, 0.5], [-1.0, -0.5]], keys), kind="arrows", rows=("past", "future")))
    assert two.style("key-1-0", "stroke")[0] == RED
    assert {"past", "future"} <= set(two.texts())


def test_labels_of_arrows_cover_neither_the_numbers_of_the_axes_nor_each_other() -> None:
    keys = [[-2.0, 0.1], [2.0, 0.0], [0.0, 2.0], [0.1, -2.0], [-1.9, 0.0], [0.2, 0.1]]
    scores = np.array([[np.array(keys) @ [1.0, 0.6]]])
    panels = Panels(scores, columns=("far left", "I", "student", "am", "left", "near"))
    figure = arrows_figure(np.array([[1.0, 0.6]]), np.array(keys), panels)
    figure.canvas.draw()
    (axes,) = figure.axes
    labels = [text.get_window_extent() for text in axes.texts]
    ticks = [text.get_window_extent() for text in (*axes.get_xticklabels(), *axes.get_yticklabels())]
    assert len(labels) == 7
    assert not any(label.overlaps(tick) for label in labels for tick in ticks)
    assert not any(one.overlaps(other) for one, other in combinations(labels, 2))
    tips = axes.transData.transform(keys)
    assert not any(label.contains(*tip) for label in labels for tip in tips)
    # a label that had to move far is connected with its arrow
    assert len(axes.lines) > 3


def curve_points(svg: Svg, number: int) -> list[tuple[float, float]]:
    path = svg.element(f"curve-{number}").getElementsByTagName("path")[0].getAttribute("d")
    return [(float(x), -float(y)) for x, y in re.findall(r"[ML] (\S+) (\S+)", path)]


def test_curves_are_columns_over_positions() -> None:
    table = regard.positions.sinusoidal(torch.arange(30), 4)
    svg = Svg(regard.draw(table, kind="curves", columns=("a", "b", "c", "d"), x="position"))
    xs, ys = zip(*curve_points(svg, 2), strict=True)
    slope = np.polyfit(table[: len(ys), 2].numpy(), ys, 1) if len(ys) == 30 else None
    assert slope is not None
    assert np.allclose(np.polyval(slope, table[:, 2].numpy()), ys, atol=0.02)
    assert np.allclose(np.diff(xs), np.diff(xs)[0], atol=1e-3)
    assert {"a", "b", "c", "d", "position"} <= set(svg.texts())
    assert len(Svg(regard.draw(table[:, 0], kind="curves")).style("curve-0", "stroke")) >= 1


def test_curves_by_name_with_their_own_positions() -> None:
    svg = Svg(regard.draw({"plain": [4.0, 2.0, 1.0], "gated": [(1, 3.0), (3, 1.5)]}, rows=(1, 2, 4), y="loss"))
    (x1, _), (x2, _), (x4, _) = curve_points(svg, 0)
    (gated1, high), (gated3, low) = curve_points(svg, 1)
    assert x4 - x1 == pytest.approx(3 * (x2 - x1), rel=1e-3)
    assert gated1 == pytest.approx(x1, abs=1e-3)
    assert gated3 == pytest.approx((x2 + x4) / 2, abs=1e-2)
    assert high > low
    assert {"plain", "gated", "loss"} <= set(svg.texts())
    words = Svg(regard.draw({"weight": [0.5, 0.2]}, rows=("near", "far")))
    assert {"near", "far"} <= set(words.texts())


def test_logarithmic_curves_leave_out_what_is_not_above_zero() -> None:
    svg = Svg(regard.draw({"gradient": [1.0, 1e-3, 0.0, 1e-9]}, scale="log"))
    points = curve_points(svg, 0)
    assert len(points) == 3
    (x0, a), (x1, b), (x3, c) = points
    assert x3 - x1 == pytest.approx(2 * (x1 - x0), rel=1e-3)
    assert (b - c) == pytest.approx(2 * (a - b), rel=1e-3)
    both = curve_points(Svg(regard.draw({"cost": [1.0, 10.0, 100.0]}, rows=(4, 16, 64), scale="log-log")), 0)
    assert both[1][0] - both[0][0] == pytest.approx(both[2][0] - both[1][0], rel=1e-3)


def test_many_curves_name_the_first_and_the_last() -> None:
    texts = Svg(regard.draw(np.random.default_rng(0).random((50, 20)), kind="curves")).texts()
    assert {"0", "19"} <= set(texts)
    assert "11" not in texts


# --- attention maps ----------------------------------------------------------------------------------------------------------


def make_map() -> AttentionMap:
    weights = np.array([[[0.9, 0.1], [0.2, 0.8]], [[0.5, 0.5], [0.4, 0.6]]])
    return AttentionMap(weights, ("ph", "<eos>"), ("F", "<eos>"), "cross", 0, heads=(3, 5))


class Inspector:
    """Computes the attention of a result, as a Translator does."""

    def attention(self, result: Result, /, *options: Any, **more: Any) -> AttentionMap:
        return make_map()

    def alignment(self, result: Result, *, pieces: bool | None = None) -> tuple[tuple[int, int], ...]:
        return ()


def test_the_attention_of_a_result_is_drawn_as_its_map(tmp_path: Path) -> None:
    result = Result("F", ("F",), "ph", ("ph",), 0.0, 0.0, True, (), ()).made_by(Inspector())
    one = regard.draw(result, tmp_path / "a.svg").path
    other = regard.draw(make_map(), tmp_path / "b.svg").path
    texts = [Svg(regard.draw(what)).texts() for what in (result, make_map())]
    assert texts[0] == texts[1]
    assert one is not None
    assert other is not None
    assert len(one.read_bytes()) == len(other.read_bytes())


def test_with_a_kind_each_head_is_a_panel() -> None:
    svg = Svg(regard.draw(make_map(), kind="map"))
    assert {"head 3", "head 5", "ph", "F"} <= set(svg.texts())
    assert svg.cells(1) == Svg(regard.draw(make_map().weights_HTS)).cells(1)
    lines = Svg(regard.draw(make_map(), kind="lines"))
    assert lines.width("line-0-0-0") == pytest.approx(9 * lines.width("line-0-0-1"), rel=1e-3)


def test_numbers_over_a_picture(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (24, 16), "red").save(tmp_path / "red.png")
    windows = np.zeros((3, 2, 3))
    windows[0, 0, 0], windows[1, 1, 1], windows[2, 1, 2] = 1, 0.5, 0.25
    svg = Svg(regard.draw(windows, over=tmp_path / "red.png", panels=("left", "middle", "right")))
    assert {"left", "middle", "right", "1.00", "0.50", "0.25"} <= set(svg.texts())
    assert len(svg.document.getElementsByTagName("image")) == 6  # each word smoothly and cell by cell


# --- files and mistakes ------------------------------------------------------------------------------------------------------


def test_files_are_written_by_their_extension(tmp_path: Path) -> None:
    drawing = regard.draw([[1.0, 2.0]], tmp_path / "a.png")
    assert drawing.path == tmp_path / "a.png"
    assert repr(drawing) == f"<Drawing, written to {tmp_path / 'a.png'}>"
    assert drawing.path.read_bytes().startswith(b"\x89PNG\r\n")
    assert drawing.save(tmp_path / "a.pdf").read_bytes().startswith(b"%PDF-")
    assert "<svg" in drawing.save(tmp_path / "new" / "a.SVG").read_text()
    with pytest.raises(UserError, match=r"a.gif: the file extension selects the format; expected one of .png, .svg, .pdf"):
        drawing.save(tmp_path / "a.gif")
    with pytest.raises(UserError, match=r"a.gif: the file extension"):
        regard.draw([[1.0, 2.0]], tmp_path / "a.gif")


def test_labels_of_any_language() -> None:
    words = ("猫", "שלום", "$x^$", " ", "a\tb")
    for kind in ("map", "lines", "arcs", "bars"):
        texts = Svg(regard.draw(np.eye(5), kind=kind, rows=words, columns=words)).texts()
        assert {"猫", "שלום", "$x^$", "␣", "a⇥b"} <= set(texts), kind


MISTAKES: dict[str, tuple[Any, dict[str, Any], type[Exception], str]] = {
    "an unknown kind": ([[1]], {"kind": "mapp"}, ValueError, r"kind is 'mapp', expected one of map, .* did you mean \"map\""),
    "a number": (3.0, {}, ValueError, r"got numbers of shape \(\), but kind=map expects \(rows, columns\) or"),
    "too many axes": (np.ones((2, 3, 4, 5)), {}, ValueError, r"shape \(2, 3, 4, 5\), but kind=map expects \(rows, columns\)"),
    "one row as a map": ([1, 2], {"kind": "map"}, ValueError, r"shape \(2,\), but kind=map expects \(rows, columns\)"),
    "panels of bars": (
        np.ones((2, 2, 2)),
        {"kind": "bars"},
        ValueError,
        r"kind=bars expects \(columns,\) or \(rows, columns\)",
    ),
    "nothing": (np.ones((0, 3)), {}, ValueError, r"shape \(0, 3\), which is empty"),
    "an empty list": ([], {}, ValueError, "got no map to draw"),
    "ragged rows": ([[1, 2], [3]], {}, ValueError, "rows of different lengths"),
    "a word": ("abc", {}, TypeError, "draw expects numbers, an attention map or a result, but got a str"),
    "a model": (torch.nn.Linear(1, 1), {}, TypeError, "but got a Linear"),
    "NaN": ([[np.nan]], {}, UserError, "hold NaN"),
    "labels": ([[1, 2]], {"columns": "abc"}, ValueError, "columns has 3 labels, but there are 2 columns"),
    "panels": ([[[1]], [[2]]], {"panels": "a"}, ValueError, "panels has 1 labels, but there are 2 panels"),
    "a scale": ([[1]], {"scale": "log"}, ValueError, "scale is 'log', but map expects"),
    "an empty scale": ([[1]], {"scale": (1, 1)}, ValueError, r"expected \(low, high\) with low < high"),
    "a scale of lines": ([[1]], {"kind": "lines", "scale": (0, 1)}, ValueError, "the thickness of lines is the weight"),
    "a scale of curves": ([1], {"kind": "curves", "scale": "own"}, ValueError, 'curves expect "log"'),
    "a mask of numbers": ([[1]], {"allow": [[1]]}, TypeError, "expected booleans"),
    "a mask of another shape": ([[1]], {"allow": [[True, False]]}, ValueError, r"allow has shape \(1, 2\), expected that"),
    "a mask of bars": ([1], {"allow": [False]}, ValueError, "which bars cannot show"),
    "a mask of curves": ([1], {"kind": "curves", "allow": [True]}, ValueError, "got allow, but curves have none"),
    "arcs between two sentences": (np.ones((2, 3)), {"kind": "arcs"}, ValueError, r"shape \(2, 3\).*kind=lines connects two"),
    "a link that ends nowhere": ([(0, 5)], {"kind": "arcs", "columns": "ab"}, ValueError, r"\(0, 5\), but there are 2 words"),
    "no link": ([(0, 1, 2, 3)], {"kind": "arcs"}, ValueError, r"got the link \(0, 1, 2, 3\), expected"),
    "arrows without queries": (
        np.ones((4, 2)),
        {"kind": "arrows"},
        ValueError,
        r"got shape \(4, 2\), but kind=arrows expects a",
    ),
    "arrows in space": (
        ([1, 2], [[1, 2, 3]]),
        {"kind": "arrows"},
        ValueError,
        r"keys of shape \(1, 3\).*project wider vectors",
    ),
    "curves in space": ({"a": np.ones((2, 3))}, {"kind": "curves"}, ValueError, r"the curve a has shape \(2, 3\), expected"),
    "no dictionary": ({}, {}, ValueError, "got an empty dictionary"),
    "panels of different shapes": ({"a": np.ones((2, 3)), "b": np.ones((3, 2))}, {}, ValueError, "panels of different shapes"),
    "nothing above zero": ([0.0, -1.0], {"kind": "curves", "scale": "log"}, ValueError, "no point to draw"),
    "labels of a map": (make_map(), {"rows": "ab"}, ValueError, "got rows, but an attention map has labels"),
    "maps with a kind": ([make_map()] * 2, {"kind": "lines"}, ValueError, "got 2 attention maps, but a kind is drawn for one"),
    "too many panels": (np.ones((65, 1, 1)), {}, ValueError, "got 65 panels, but a picture has room for 64"),
    "one row over a picture": ([1, 2], {"over": "a.png"}, ValueError, r"shape \(2,\) over a picture"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_say_what_fits(name: str) -> None:
    what, options, kind, message = MISTAKES[name]
    with pytest.raises(kind, match=message):
        regard.draw(what, **options)


# --- intervals ---------------------------------------------------------------------------------------------------------------


def test_intervals_are_where_their_numbers_are() -> None:
    intervals = np.array([[10.0, 30.0, 40.0], [50.0, 55.0, 70.0]])
    groups = np.array([[[20.0, 75.0, 90.0], [5.0, 60.0, 40.0]]])
    panels = Panels(groups, ("soft", "hard"), ("2-5", "6", "7-9"), scale=(0.0, 100.0), x="length", y="right", title="all")
    svg = Svg(regard.Drawing(intervals_figure(intervals, panels)))
    assert {"soft", "hard", "2-5", "6", "7-9", "length", "right", "all", "90", "60"} <= set(svg.texts())
    ends = [
        [float(number) for number in re.findall(r"[ML] ([\d.]+)", path.getAttribute("d"))]
        for path in svg.element("intervals").getElementsByTagName("path")
    ]
    points = [float(use.getAttribute("x")) for use in svg.element("values").getElementsByTagName("use")]
    drawn = np.array([[low, point, high] for (low, high), point in zip(ends, points, strict=True)])
    scale = (drawn[1, 2] - drawn[0, 0]) / 60
    np.testing.assert_allclose(drawn, drawn[0, 0] + scale * (intervals - 10), atol=0.01)
    assert np.argsort([darkness(cell) for cell in svg.cells()]).tolist() == np.argsort(groups.ravel()).tolist()
