"""The HTML page of `regard inspect`, opened from a file in a real browser, without network access."""

import importlib.util
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from test_inspection import EVERYTHING, HOSTILE, make_inspection, make_translator
from test_pictures import make_translator as make_captioner
from test_videos import make_translator as make_film_captioner

import regard
from regard.data.labels import label
from regard.errors import UserError
from regard.inspection.capture import CapturedGates, CapturedLayer, Inspection, inspect
from regard.inspection.report import write_page
from regard.models.transformer import TransformerSettings

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None or importlib.util.find_spec("playwright") is None:
        missing = "no chromium was found" if path is None else "playwright is not installed"
        if os.environ.get("REGARD_CI"):
            pytest.fail(f"{missing}, but in CI the page must be opened")
        pytest.skip(f"{missing}: the page is not opened")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=["--headless", "--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()


Open = Callable[..., "Page"]


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Returns a function that writes a page and opens it. At the end, no page may have logged, failed or requested anything."""
    events: list[str] = []
    pages = []

    def open_page(inspection: Inspection, width: int = 1280, scheme: str = "light", view: Any = None, **options: Any) -> "Page":
        path = write_page(inspection, tmp_path / f"page{len(pages)}.html", model="a model <b>", **view or {})
        page = browser.new_page(viewport={"width": width, "height": 1400}, color_scheme=scheme, **options)
        page.on("console", lambda message: events.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: events.append(f"error: {error}"))
        page.on("request", lambda request: request.url == path.as_uri() or events.append(f"request: {request.url}"))
        page.goto(path.as_uri())
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        page.close()
    assert events == []


def transformer() -> Inspection:
    return inspect(make_translator("transformer scaled_dot"), "abcab", output=(4, 5, 6, 4), what=EVERYTHING)


def hover(page: "Page", row: int, column: int, rows: int, columns: int) -> str:
    """Points at the middle of a cell; returns the value that the page shows."""
    heat = page.locator("#heat")
    heat.scroll_into_view_if_needed()
    box = heat.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + (column + 0.5) * box["width"] / columns, box["y"] + (row + 0.5) * box["height"] / rows)
    return page.locator("#readout .value").inner_text()


def selection(page: "Page") -> tuple[str, int, int, int]:
    """Returns the kind, layer, head and step that the page shows."""
    dataset = page.locator("body").evaluate("body => ({...body.dataset})")
    return dataset["kind"], int(dataset["layer"]), int(dataset["head"]), int(dataset["step"])


def test_the_number_under_the_pointer_is_the_weight(opened: Open) -> None:  # SPEC A9.2
    """Checks every kind, layer and head."""
    inspection = transformer()
    page = opened(inspection)
    for layer in inspection.layers:
        page.click(f"#kind-{layer.kind}")
        weights = layer.numbers["weights"]
        heads, rows, columns = weights.shape
        for head in range(heads):
            page.click(f'.thumb[data-layer="{layer.layer}"][data-head="{head}"]')
            assert selection(page)[:3] == (layer.kind, layer.layer, head)
            assert page.inner_text("#h-one").endswith(f"layer {layer.layer} · head {head}")
            for row, column in ((0, 0), (3, 2), (rows - 1, columns - 1)):
                value = weights[head, row, column].item()
                shown = hover(page, row, column, rows, columns)
                assert float(shown) == pytest.approx(value, abs=6e-5)
                tokens = inspection.rows(layer.kind)[row], inspection.columns(layer.kind)[column]
                assert page.inner_text("#readout span") == f"“{tokens[0]}” ({row}) looks at “{tokens[1]}” ({column})"
    page.click('.thumb[data-layer="1"][data-head="-1"]')  # the mean of the heads of the decoder, which was shown last
    mean = inspection.layer("decoder", 1).numbers["weights"].mean(0)
    assert float(hover(page, 4, 1, 5, 5)) == pytest.approx(mean[4, 1].item(), abs=6e-5)
    for what in ("scores", "norms"):
        page.select_option("#what", what)
        page.click('.thumb[data-layer="0"][data-head="1"]')
        value = inspection.layer("decoder", 0).numbers[what][1, 4, 1].item()
        assert float(hover(page, 4, 1, 5, 5)) == pytest.approx(value, rel=2e-2, abs=6e-5)
    page.select_option("#what", "scores")
    assert hover(page, 0, 4, 5, 5) == "−∞"  # masked: a later position


def test_it_works_by_keyboard(opened: Open) -> None:
    page = opened(transformer())
    assert selection(page) == ("cross", 1, -1, 0)
    page.click('.thumb[data-layer="0"][data-head="0"]')
    for key, expected in (
        ("ArrowDown", ("cross", 1, 0, 0)),
        ("ArrowDown", ("cross", 1, 0, 0)),
        ("ArrowRight", ("cross", 1, 1, 0)),
        ("ArrowRight", ("cross", 1, -1, 0)),
        ("ArrowLeft", ("cross", 1, 1, 0)),
        ("Shift+ArrowRight", ("cross", 1, 1, 1)),
        ("]", ("cross", 1, 1, 2)),
        ("[", ("cross", 1, 1, 1)),
        ("ArrowUp", ("cross", 0, 1, 1)),
        ("k", ("encoder", 0, 1, 1)),
        ("k", ("decoder", 0, 1, 1)),
    ):
        page.keyboard.press(key)
        assert selection(page) == expected, key
    page.focus("#step")
    page.keyboard.press("ArrowRight")
    assert selection(page)[3] == 2
    assert page.inner_text("#h-step") == "Step 3 of 5: “Z”"
    page.focus("#heat")
    page.keyboard.press("ArrowDown")  # moves the cell, starting at the step that is shown
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#readout span") == "“X” (3) looks at “X” (1)"
    page.keyboard.press("Tab")
    page.keyboard.press("Shift+Tab")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"  # the focused element has a visible outline
    page.focus('.thumb[data-layer="0"][data-head="1"]')
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.dataset.layer") == "1"
    theme = page.evaluate("document.documentElement.dataset.theme")
    page.keyboard.press("d")
    assert page.evaluate("document.documentElement.dataset.theme") != theme


def test_steps_show_the_token_and_its_alternatives(opened: Open) -> None:
    inspection = transformer()
    page = opened(inspection)
    page.click('.thumb[data-layer="0"][data-head="0"]')
    probs = inspection.log_probs_TV.exp()
    for step in (0, 3):
        page.fill("#step", str(step))
        assert page.inner_text("#written .now") == inspection.target[step]
        likeliest = inspection.vocabulary[int(probs[step].argmax())]
        assert page.locator("#words span").first.inner_text() == likeliest
        assert page.locator("#words em").first.inner_text() == f"{100 * probs[step].max().item():.1f}%"
        assert page.inner_text("#words .chosen") == inspection.target[step]
        best = inspection.layers[0].numbers["weights"][0, step]
        shown = page.inner_text("#links")
        assert shown.startswith(
            f"“{inspection.target[step]}” looks at “{inspection.source[int(best.argmax())]}” {best.max().item():.2f}"
        )
        assert page.locator("#lines .column").first.locator(".now").inner_text() == inspection.target[step]
    page.locator("#written span").nth(4).click()
    assert selection(page)[3] == 4
    box = page.locator("#heat").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + 9, box["y"] + 1.5 * box["height"] / 5)  # the second row
    assert selection(page)[3] == 1


def test_statistics_of_heads_and_layers(opened: Open) -> None:  # SPEC A9.3
    inspection = transformer()
    page = opened(inspection)
    page.click("#kind-encoder")
    page.click('.thumb[data-layer="1"][data-head="1"]')
    layer = inspection.layer("encoder", 1)
    distances, mass = layer.distance_H(), layer.mass_HS()[1]
    assert distances is not None
    facts = page.locator("#facts strong").all_inner_texts()
    assert facts[0] == f"{layer.entropy_HT()[1].mean().item():.2f} of {math.log(6):.2f}"
    assert facts[1] == f"{100 * mass.max().item() / 6:.0f}% on “{inspection.source[int(mass.argmax())]}”"
    assert facts[2] == f"{distances[1].item():.2f}"
    captions = page.locator("#charts figcaption").all_inner_texts()
    assert captions[:2] == ["Mean distance, within the source", "Mean distance, within the output"]
    titles = page.locator("#charts figure").first.locator("title").all_text_contents()
    means = [inspection.layer("encoder", number).distance_H() for number in (0, 1)]
    expected = [
        f"layer {n}, head {h}: {distance:.3f}"
        for n, layer in enumerate(means)
        if layer is not None
        for h, distance in enumerate(layer.tolist())
    ]
    assert titles == expected
    assert page.locator("#gates").is_hidden()


def test_gates_of_recurrent_models(opened: Open) -> None:  # SPEC A9.3
    inspection = inspect(make_translator("rnn lstm, bahdanau, 2+2 layers"), "abcab", output=(4, 5))
    page = opened(inspection)
    captions = page.locator("#gatecharts figcaption").all_inner_texts()
    assert len(captions) == len(inspection.gates) == 6
    assert captions[0].startswith("encoder, layer 0, left to right")
    titles = page.locator("#gatecharts figure").nth(5).locator("title").all_text_contents()
    titles = [re.sub("[\u2068\u2069]", "", title) for title in titles]  # the marks that isolate a token from the text around it
    means = {gate: values.mean(-1) for gate, values in inspection.gates[5].opened.items()}
    assert titles == [f"{gate} gate at “{inspection.read[t]}”: {means[gate][t].item():.3f}" for gate in means for t in range(3)]
    language_model = opened(inspect(make_translator("rnn language model"), "ab", output=(4, 5)))  # has no attention
    assert language_model.locator("#gatecharts figure").count() == 2
    language_model.fill("#step", "1")
    assert language_model.inner_text("#h-step") == "Step 2 of 3: “Y”"
    assert language_model.locator("#heat").is_hidden()


def test_text_is_never_read_as_html(opened: Open) -> None:
    inspection = inspect(make_translator("rnn additive"), HOSTILE, output=(4, 5))
    page = opened(inspection)
    assert page.text_content("#text") == HOSTILE.replace("\u2028", r"\u2028")
    assert page.inner_text("#model") == "a model <b>"
    assert page.title().startswith("ab</script>")
    page.evaluate("getSelection().selectAllChildren(document.getElementById('reading'))")
    assert page.evaluate("getSelection().toString().includes('語')")  # text can be selected


def test_it_opens_with_what_the_terminal_shows(opened: Open) -> None:
    """It shows the mean of the heads of the requested layer, by default the last one."""
    inspection = transformer()
    assert selection(opened(inspection)) == ("cross", 1, -1, 0)
    for kind, layer, expected in (("cross", 0, 0), ("encoder", -1, 1), ("decoder", -2, 0)):
        page = opened(inspection, view={"kind": kind, "layer": layer})
        assert selection(page) == (kind, expected, -1, 0)
        mean = inspection.layer(kind, layer).numbers["weights"].mean(0)
        assert float(hover(page, 1, 0, *mean.shape)) == pytest.approx(mean[1, 0].item(), abs=6e-5)
        assert page.locator(f'.thumb[data-layer="{expected}"][data-head="-1"]').get_attribute("aria-pressed") == "true"
    recurrent = inspect(make_translator("rnn additive"), "abcab", output=(4, 5))
    assert selection(opened(recurrent)) == ("cross", 0, 0, 0)
    with pytest.raises(UserError, match="there is no cross attention in layer 99: this model has layers 0 to 1"):
        opened(inspection, view={"layer": 99})


def with_tokens(source: tuple[str, ...], target: tuple[str, ...] = ("X", "<eos>")) -> Inspection:
    shape = (2, len(target), len(source))
    gates = tuple(
        CapturedGates(f"{side}, layer 0", side, {"update": torch.rand(size, 3)})  # type: ignore[arg-type]
        for side, size in (("encoder", len(source)), ("decoder", len(target)))
    )
    inspection = make_inspection(
        (CapturedLayer("cross", 0, {"weights": torch.rand(shape).softmax(-1)}),), len(target), len(source)
    )
    return replace(inspection, text="".join(source[:-1]), source=source, target=target, gates=gates)


def lefts(page: "Page", selector: str) -> list[float]:
    """Returns the left edges of the elements."""
    boxes = [element.bounding_box() for element in page.locator(selector).all()]
    return [box["x"] for box in boxes if box is not None]


def test_tokens_that_run_from_right_to_left(opened: Open) -> None:
    """Each token is isolated, so that punctuation stays with its word; a text runs in the direction of its script."""
    page = opened(with_tokens(("שלום!", "(אב)", "hello", "<eos>"), ("ש", "ל", "<eos>")))
    for where in ("#left", "#above", "#reading", "#written", "#words", "#lines"):
        styles = page.locator(f"{where} span").evaluate_all("all => all.map(e => getComputedStyle(e).unicodeBidi)")
        assert set(styles) == {"isolate"}, where
    directions = page.locator("#above span").evaluate_all("all => all.map(e => getComputedStyle(e).direction)")
    assert directions == ["rtl", "rtl", "ltr", "ltr"]
    assert lefts(page, "#above span") == sorted(lefts(page, "#above span"))  # in the order of the columns of the map
    for where in ("#reading", "#written"):
        assert lefts(page, f"{where} span") == sorted(lefts(page, f"{where} span"), reverse=True)
    hover(page, 0, 0, 3, 4)
    assert page.inner_text("#readout span") == "“ש” (0) looks at “שלום!” (0)"
    assert page.locator("#readout bdi").all_inner_texts() == ["ש", "שלום!"]
    other = opened(with_tokens(("a", "ש", "<eos>")))
    assert lefts(other, "#reading span") == sorted(lefts(other, "#reading span"))


def test_features_are_shown_as_tags(opened: Open) -> None:
    page = opened(with_tokens(("w", " ", "\tV", "\tPST", "\t", "", "<eos>")))
    expected = ["w", "␣", "[V]", "[PST]", "⇥", "∅", "<eos>"]
    assert page.locator("#above span").all_inner_texts() == expected
    assert page.locator("#reading span").all_inner_texts() == expected
    assert page.locator("#lines .column").nth(1).locator("span").all_inner_texts() == expected
    assert page.inner_text("#text") == "w [V] [PST] []"
    assert page.locator("#gatecharts figure").first.locator("text.ink").all_text_contents() == expected


HOSTILE_TOKENS = (
    *("\x00", "\x1b[31m", "\uffff", "\ud800", "a\ud83d", "\u202eabc", "__proto__", "constructor", "<!--", "👩\u200d💻😀🇩🇪"),
    *("x" * 3000, "😀" * 300, "a" + "\u0301" * 500, "\u0301", "\tV" * 9, "\u2028", "</script>", "<eos>"),
)


@pytest.mark.parametrize("width", [390, 1280])
def test_no_token_breaks_the_page(opened: Open, width: int) -> None:
    """Nor makes it wider than the window: a drawing 100,000 pixels wide crashes the browser."""
    page = opened(with_tokens(HOSTILE_TOKENS, HOSTILE_TOKENS), width)
    crashes: list[object] = []
    page.on("crash", lambda crash: crashes.append(crash))
    assert page.locator("#reading span").all_inner_texts() == [label(token) for token in HOSTILE_TOKENS]
    page.evaluate(
        "for (const text of document.querySelectorAll('#gatecharts text')) text.textContent.isWellFormed() || notWellFormed()"
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= width + 60
    page.screenshot(full_page=True)
    assert crashes == []


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_themes_and_widths(opened: Open, scheme: str, width: int) -> None:
    page = opened(transformer(), width, scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.documentElement.dataset.theme") == scheme

    def brightness() -> float:
        return float(
            page.evaluate(
                "(c => c[0] + c[1] + c[2])(getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number))"
            )
        )

    before = brightness()
    assert (before > 600) == (scheme == "light")
    page.click("#theme")
    assert (brightness() > 600) != (scheme == "light")
    if width == 390:
        columns = page.evaluate("getComputedStyle(document.querySelector('main')).gridTemplateColumns").split()
        assert len(columns) == 1


def test_512_by_512_is_one_canvas(opened: Open) -> None:
    weights = torch.randn(8, 512, 512).mul(3).softmax(-1)
    page = opened(make_inspection((CapturedLayer("cross", 0, {"weights": weights}),), 512, 512))
    page.click('.thumb[data-head="5"]')
    for row, column in ((0, 0), (300, 17), (511, 511)):
        shown = hover(page, row, column, 512, 512)
        cell = [int(index) for index in re.findall(r"\((\d+)\)", page.inner_text("#readout span"))]
        assert max(abs(cell[0] - row), abs(cell[1] - column)) <= 1  # pointer positions are whole pixels
        assert float(shown.removeprefix("≈ ")) == pytest.approx(weights[5, cell[0], cell[1]].item(), rel=1e-2, abs=2e-5)
    assert page.evaluate("document.querySelectorAll('*').length") < 3000  # cells are pixels, not elements
    assert page.locator("#above span, #left span").count() == 0  # labels would be too small to read
    page.evaluate("() => { window.painted = 0; const old = paint; paint = (...x) => { window.painted++; old(...x); }; }")
    for column in range(100, 130):
        hover(page, 9, column, 512, 512)
    assert page.evaluate("window.painted") == 0  # hovering redraws nothing


def test_4096_by_4096_opens(opened: Open, tmp_path: Path) -> None:
    query, key = torch.randn(2, 4096, 8), torch.randn(2, 4096, 8)
    summary = regard.summarise(query, key, blocks=True, distance=True)
    inspection = make_inspection((CapturedLayer("encoder", 0, {}, summary),), 4096, 4096)
    page = opened(inspection)
    assert (tmp_path / "page0.html").stat().st_size < 4_000_000  # the matrices would take 134 MB
    page.click('.thumb[data-layer="0"][data-head="0"]')
    shown = hover(page, 5, 77, 128, 128)
    assert summary.blocks is not None
    assert float(shown.removeprefix("≈ ")) == pytest.approx(summary.blocks[0, 5, 77].item(), rel=1e-2)
    assert page.inner_text("#readout span") == "160–191 “s160 … s191” looks at 2464–2495 “s2464 … s2495”"
    assert page.inner_text("#links").startswith("“s160” looks at") == (summary.top_weights[0, 160, 0].item() > 0.005)
    assert f"{summary.distance[0].mean().item():.2f}" in page.locator("#facts strong").all_inner_texts()  # type: ignore[index]


# --- pictures ----------------------------------------------------------------------------------------------------------------


def cell_shown(page: "Page") -> tuple[str, int, int, float]:
    """Returns the token, row, column and weight that the page shows under the picture."""
    match = re.fullmatch(r"“(.*)” looks (?:most )?at row (\d+), column (\d+): ([\d.]+)", page.inner_text("#over-readout"))
    assert match
    return match[1], int(match[2]), int(match[3]), float(match[4])


@pytest.mark.parametrize("width", [390, 1280])
def test_every_word_has_a_map_over_the_picture(opened: Open, tmp_path: Path, width: int) -> None:  # SPEC A8.3
    inspection = inspect(make_captioner(tmp_path), "p.png", output=(4, 5, 6), what=EVERYTHING)
    page = opened(inspection, width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    maps = inspection.layer("cross", -1).numbers["weights"].mean(0).unflatten(-1, (3, 5))
    assert page.locator("#maps button").count() == 4
    assert page.locator("#maps img").first.evaluate("image => [image.naturalWidth, image.naturalHeight]") == [40, 24]
    for step, word in enumerate(inspection.target):
        page.hover(f'#maps button[data-word="{step}"]')
        assert selection(page)[3] == step
        assert page.inner_text("#h-over") == f"Over the picture: “{word}”"
        best = int(maps[step].argmax())
        assert cell_shown(page) == (word, best // 5, best % 5, pytest.approx(maps[step].max().item(), abs=6e-5))
        alpha = page.evaluate(
            "[...document.querySelector('#overlay canvas').getContext('2d').getImageData(0, 0, 5, 3).data]"
            ".filter((_, i) => i % 4 === 3)"
        )
        expected = (210 * (1 - maps[step] / maps[step].max())).round().flatten()
        assert (torch.tensor(alpha) - expected).abs().max() <= 1  # cells with little weight are covered
    overlay = page.locator("#overlay")
    overlay.scroll_into_view_if_needed()
    box = overlay.bounding_box()
    assert box is not None
    assert box["width"] / box["height"] == pytest.approx(40 / 24, rel=0.02)
    for row, column in ((0, 0), (1, 3), (2, 4)):
        page.mouse.move(box["x"] + (column + 0.5) * box["width"] / 5, box["y"] + (row + 0.5) * box["height"] / 3)
        assert cell_shown(page) == ("<eos>", row, column, pytest.approx(maps[3, row, column].item(), abs=6e-5))
    assert not overlay.evaluate("box => box.classList.contains('cells')")
    page.click("#style-cells")
    assert overlay.evaluate("box => box.classList.contains('cells')")
    overlay.focus()
    page.keyboard.press("m")
    assert not overlay.evaluate("box => box.classList.contains('cells')")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert selection(page)[3] == 1
    assert "most at row" in str(overlay.get_attribute("aria-label"))
    assert page.locator("#lines").is_hidden()  # pictures have no lines between tokens


def test_maps_follow_the_head_and_texts_have_none(opened: Open, tmp_path: Path) -> None:
    settings = TransformerSettings(width=20, heads=2, feed_forward=29, frontend="patches")
    inspection = inspect(make_captioner(tmp_path, settings), "p.png", output=(4, 5))
    page = opened(inspection)
    assert selection(page) == ("cross", 1, -1, 0)  # the mean of the heads of the last layer
    weights = inspection.layer("cross", 0).numbers["weights"]
    page.click('.thumb[data-layer="0"][data-head="1"]')
    assert cell_shown(page)[3] == pytest.approx(weights[1, 0].max().item(), abs=6e-5)
    page.click("#kind-encoder")
    assert cell_shown(page)[3] == pytest.approx(
        inspection.layer("cross", 1).numbers["weights"].mean(0)[0].max().item(), abs=6e-5
    )
    assert opened(transformer()).locator("#over").is_hidden()


@pytest.mark.parametrize("width", [390, 1280])
def test_every_word_has_a_map_over_each_frame(opened: Open, tmp_path: Path, width: int) -> None:  # SPEC A8.5
    """The four frames are shown two by two, with their numbers and shares of the weight."""
    inspection = inspect(make_film_captioner(tmp_path), "v.gif", output=(4, 5, 6), what=EVERYTHING)
    page = opened(inspection, width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    maps = inspection.layer("cross", -1).numbers["weights"].mean(0).unflatten(-1, (4, 3, 5))
    page.hover('#maps button[data-word="1"]')
    assert page.inner_text("#h-over") == f"Over the frames: “{inspection.target[1]}”"
    frame, cell = divmod(int(maps[1].argmax()), 15)
    assert f"looks most at frame {frame}, row {cell // 5}, column {cell % 5}: {maps[1].max():.4f}" in page.inner_text(
        "#over-readout"
    )
    shares = [f"{number} · {maps[1, number].sum():.2f}" for number in range(4)]
    assert page.locator("#overlay b span").all_inner_texts() == shares
    page.click("#style-cells")
    page.hover('#maps button[data-word="1"]')
    middles = [
        [8 * (time % 2 * 5 + column) + 4, 8 * (time // 2 * 3 + row) + 4]
        for time, row, column in product(range(4), range(3), range(5))
    ]
    alpha = page.evaluate(
        "middles => { const context = document.querySelector('#overlay canvas').getContext('2d');"
        " return middles.map(([x, y]) => context.getImageData(x, y, 1, 1).data[3]); }",
        middles,
    )
    expected = (210 * (1 - maps[1] / maps[1].max())).round().flatten()
    assert (torch.tensor(alpha) - expected).abs().max() <= 1
    overlay = page.locator("#overlay")
    overlay.scroll_into_view_if_needed()
    box = overlay.bounding_box()
    assert box is not None
    for time, row, column in ((0, 0, 0), (1, 2, 3), (2, 1, 4), (3, 2, 4)):
        x, y = (time % 2 * 5 + column + 0.5) / 10, (time // 2 * 3 + row + 0.5) / 6
        page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
        weight = maps[1, time, row, column]
        assert f"looks at frame {time}, row {row}, column {column}: {weight:.4f}" in page.inner_text("#over-readout")


# --- sound -------------------------------------------------------------------------------------------------------------------


def sound_inspection() -> Inspection:
    """Returns two seconds of sound, a tone and a louder, higher one; 50 positions, and attention that moves along them."""
    times = torch.arange(8000) / 8000
    tones = [torch.sin(2 * torch.pi * hertz * times) * loud for hertz, loud in ((500, 0.5), (2000, 1.0))]
    samples = torch.cat(tones)
    row = (samples * 32767).round().to(torch.int16).view(-1, 80)
    positions = torch.arange(50.0)
    weights = torch.stack([(-((positions - centre) ** 2) / 18).softmax(0) for centre in (8, 30, 48)])[None]
    return Inspection(
        text="a.wav",
        output="low high",
        finished=True,
        source=tuple(f"{0.04 * position:.2f} s" for position in range(50)),
        target=("low", "high", "<eos>"),
        target_ids=(4, 5, 3),
        vocabulary=("<pad>", "<unk>", "<sos>", "<eos>", "low", "high"),
        log_probs_TV=torch.zeros(3, 6).log_softmax(-1),
        layers=(CapturedLayer("cross", 0, {"weights": weights}),),
        gates=(),
        sound=row,
    )


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
def test_the_sound_is_drawn_above_its_attention(opened: Open, width: int, scheme: str) -> None:  # SPEC A8.4
    """Its columns are aligned. The waveform is larger in the second half; the spectrogram changes in the bands of the tones."""
    inspection = sound_inspection()
    page = opened(inspection, width, scheme)
    sound, heat = (page.locator(where).bounding_box() for where in ("#above canvas", "#heat"))
    assert sound is not None
    assert heat is not None
    assert (sound["x"], sound["width"]) == pytest.approx((heat["x"], heat["width"]), abs=1.5)
    assert sound["y"] + sound["height"] < heat["y"]
    assert page.locator("#above canvas").get_attribute("aria-label") == "The sound, 2.00 seconds: waveform and spectrogram"
    assert page.locator("#above time").first.inner_text() == "0 s"
    marks = [float(mark.removesuffix(" s")) for mark in page.locator("#above time").all_inner_texts()]
    assert marks == sorted(marks)
    assert marks[-1] <= 2
    assert page.locator("#h-lines").is_hidden()
    painted = page.evaluate(
        """() => {
          const canvas = document.querySelector("#above canvas"), wide = canvas.width, by = canvas.height / 132;
          const all = canvas.getContext("2d").getImageData(0, 0, wide, canvas.height).data;
          const count = (from, to) => {
            let sum = 0;
            for (let y = 0; y < 48 * by; y++)
              for (let x = Math.floor(from * wide); x < to * wide; x++) sum += all[4 * (y * wide + x) + 3] > 99;
            return sum;
          };
          const at = (share, band) => {
            const index = 4 * (Math.floor((48 + 84 * (39.5 - band) / 40) * by) * wide + Math.floor(share * wide));
            return [...all.slice(index, index + 3)];
          };
          return {waves: [count(0, .5), count(.5, 1)], low: [at(.25, 11), at(.75, 11)], high: [at(.25, 27), at(.75, 27)]};
        }"""
    )
    assert painted["waves"][1] > 1.6 * painted["waves"][0]
    assert painted["low"][0] != painted["low"][1]
    assert painted["high"][0] != painted["high"][1]
    weights = inspection.layers[0].numbers["weights"]
    assert float(hover(page, 1, 30, 3, 50)) == pytest.approx(weights[0, 1, 30].item(), abs=6e-5)
    assert page.inner_text("#readout span") == "“high” (1) looks at “1.20 s” (30)"
    stripe = page.locator("#stripe").bounding_box()
    assert stripe is not None
    assert stripe["x"] + stripe["width"] / 2 == pytest.approx(heat["x"] + 30.5 / 50 * heat["width"], abs=1.5)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_attention_from_a_sound_to_its_auxiliary_text(opened: Open) -> None:  # SPEC A6.4
    """Rows are positions of the sound, columns the words of the auxiliary text."""
    inspection = sound_inspection()
    weights = torch.rand(2, 50, 3, generator=torch.Generator().manual_seed(1)).softmax(-1)
    inspection = replace(
        inspection,
        auxiliary=("every", "second", "<eos>"),
        layers=(*inspection.layers, CapturedLayer("fusion", 0, {"weights": weights})),
    )
    page = opened(inspection)
    page.click("#kind-fusion")
    page.click('.thumb[data-layer="0"][data-head="1"]')
    assert page.inner_text("#h-one") == "source → auxiliary text · layer 0 · head 1"
    assert float(hover(page, 20, 1, 50, 3)) == pytest.approx(weights[1, 20, 1].item(), abs=6e-5)
    assert page.inner_text("#readout span") == "“0.80 s” (20) looks at “second” (1)"
    assert page.locator("#above canvas").count() == 0
    assert page.locator("#above span").all_inner_texts() == ["every", "second", "<eos>"]


@pytest.mark.parametrize("width", [390, 1280])
def test_a_long_sound_has_a_time_axis_next_to_the_rows(opened: Open, width: int) -> None:
    """26 seconds: ticks at their times, the sound along them, and a sentence that explains why no lines are drawn."""
    weights = torch.rand(1, 640, 3, generator=torch.Generator().manual_seed(1)).softmax(-1)
    within = torch.rand(1, 640, 640, generator=torch.Generator().manual_seed(1)).softmax(-1)
    inspection = replace(
        sound_inspection(),
        sound=sound_inspection().sound.repeat(13, 1)[:2560],  # type: ignore[union-attr]
        source=tuple(f"{0.04 * position:.2f} s" for position in range(640)),
        auxiliary=("every", "second", "<eos>"),
        layers=(CapturedLayer("fusion", 0, {"weights": weights}), CapturedLayer("encoder", 0, {"weights": within})),
    )
    page = opened(inspection, width)
    heat, sound = (page.locator(where).bounding_box() for where in ("#heat", "#left canvas"))
    assert heat is not None
    assert sound is not None
    assert (sound["y"], sound["height"]) == pytest.approx((heat["y"], heat["height"]), abs=1.5)
    assert sound["x"] + sound["width"] < heat["x"]
    assert heat["height"] <= 720
    marks = page.locator("#left time")
    assert 6 <= marks.count() <= 16
    for number in range(1, marks.count()):
        box = marks.nth(number).bounding_box()
        assert box is not None
        share = float(marks.nth(number).inner_text()) / 25.6
        assert box["y"] + box["height"] / 2 == pytest.approx(heat["y"] + share * heat["height"], abs=2)
    painted = page.evaluate(
        """() => {
          const canvas = document.querySelector("#left canvas"), wide = canvas.width, high = canvas.height;
          const all = canvas.getContext("2d").getImageData(0, 0, wide, high).data;
          const count = (from, to) => {
            let sum = 0;
            for (let y = Math.floor(from * high); y < to * high; y++)
              for (let x = 0; x < wide * 48 / 132 - 1; x++) sum += all[4 * (y * wide + x) + 3] > 99;
            return sum;
          };
          return [count(0, 1 / 25.6), count(1 / 25.6, 2 / 25.6)];
        }"""
    )
    assert painted[1] > 1.5 * painted[0]  # the second tone is louder, so time runs downwards
    assert page.locator("#level").is_hidden()
    hover(page, 320, 1, 640, 3)
    level, heat = (page.locator(where).bounding_box() for where in ("#level", "#heat"))
    assert level is not None
    assert heat is not None
    assert level["y"] == pytest.approx(heat["y"] + heat["height"] / 2, abs=3)
    assert page.locator("#lines").is_hidden()
    assert "Lines from 640 positions would be indistinguishable, so none are drawn" in page.inner_text("#why")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.click("#kind-encoder")  # the sound is drawn above, ticks along both axes
    assert page.locator("#above canvas").count() == 1
    assert page.locator("#left canvas").count() == 0
    assert page.locator("#left time").count() >= 2


def test_a_missing_sound(opened: Open) -> None:
    """One position: a small map, a gate drawn as a dot, and axes with numbers."""
    gates = CapturedGates("encoder, layer 0, left to right", "encoder", {"reset": torch.rand(1, 8)})
    inspection = replace(
        sound_inspection(),
        sound=None,
        source=("no sound",),
        title="no sound + say nine",
        auxiliary=("say", "nine", "<eos>"),
        layers=(
            CapturedLayer("cross", 0, {"weights": torch.ones(1, 3, 1)}),
            CapturedLayer("fusion", 0, {"weights": torch.eye(3)[None, :1]}),
        ),
        gates=(gates,),
    )
    page = opened(inspection)
    assert page.inner_text("#text") == "no sound + say nine"
    assert page.locator("#above span").all_inner_texts() == ["no sound"]
    box = page.locator(".thumb").bounding_box()
    assert box is not None
    assert max(box["width"], box["height"]) < 120
    for chart in page.locator("#charts svg").all():
        assert chart.locator("text").all_text_contents()[:3] == ["0.00", "0.50", "1.00"]
    chart = page.locator("#gatecharts svg")
    assert chart.locator('circle:not([fill="transparent"])').count() == 1
    assert chart.locator("text").all_text_contents()[-1] == "no sound"


def test_texts_say_what_they_refer_to(opened: Open) -> None:
    """Without a pointer the largest weight of the step is shown; statistics say that they cover all steps."""
    inspection = sound_inspection()
    page = opened(inspection)
    weights = inspection.layers[0].numbers["weights"]
    for step, best in ((0, 8), (1, 30)):
        page.fill("#step", str(step))
        assert float(page.inner_text("#readout .value")) == pytest.approx(weights[0, step].max().item(), abs=6e-5)
        expected = f"“{inspection.target[step]}” ({step}) looks most at “{inspection.source[best]}” ({best})"
        assert page.locator("#readout span").first.inner_text() == expected
    assert page.locator("#facts span").first.inner_text() == "Over all 3 steps:"
    recurrent = opened(replace(inspection, layers=(*inspection.layers, replace(inspection.layers[0], layer=1))))
    assert recurrent.locator("#layers").is_visible()
    assert "Distance" not in recurrent.inner_text("#layers")
    assert "Distance: how many positions" in opened(transformer()).inner_text("#layers")
