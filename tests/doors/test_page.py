"""The page of `regard inspect`, opened from a file in a real browser, without any network."""

import importlib.util
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from test_inspection import EVERYTHING, HOSTILE, make_inspection, make_translator
from test_pictures import make_translator as make_captioner

import regard
from regard.data.labels import label
from regard.errors import UserError
from regard.inspection.capture import Gates, Inspection, Layer, inspect
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
        lacking = "no chromium was found" if path is None else "playwright is not installed"
        if os.environ.get("REGARD_CI"):
            pytest.fail(f"{lacking}, but in CI the page must be opened")
        pytest.skip(f"{lacking}: the page is not opened")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=["--headless", "--no-sandbox", "--disable-gpu"])
        yield found
        found.close()


Open = Callable[..., "Page"]


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Writes a page and opens it. In the end nothing may have gone wrong, and nothing may have been asked for."""
    noise: list[str] = []
    pages = []

    def open_page(seen: Inspection, width: int = 1280, scheme: str = "light", first: Any = None, **options: Any) -> "Page":
        path = write_page(seen, tmp_path / f"page{len(pages)}.html", model="a model <b>", **first or {})
        page = browser.new_page(viewport={"width": width, "height": 1400}, color_scheme=scheme, **options)
        page.on("console", lambda message: noise.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: noise.append(f"error: {error}"))
        page.on("request", lambda asked: asked.url == path.as_uri() or noise.append(f"request: {asked.url}"))
        page.goto(path.as_uri())
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        page.close()
    assert noise == []


def transformer() -> Inspection:
    return inspect(make_translator("transformer scaled_dot"), "abcab", output=(4, 5, 6, 4), what=EVERYTHING)


def hover(page: "Page", row: int, column: int, rows: int, columns: int) -> str:
    """Points at the middle of a cell; what the page says."""
    heat = page.locator("#heat")
    heat.scroll_into_view_if_needed()
    box = heat.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + (column + 0.5) * box["width"] / columns, box["y"] + (row + 0.5) * box["height"] / rows)
    return page.locator("#readout .value").inner_text()


def place(page: "Page") -> tuple[str, int, int, int]:
    told = page.locator("body").evaluate("body => ({...body.dataset})")
    return told["kind"], int(told["layer"]), int(told["head"]), int(told["step"])


def test_the_number_under_the_pointer_is_the_weight(opened: Open) -> None:  # SPEC A9.2
    """For every kind, layer and head."""
    seen = transformer()
    page = opened(seen)
    for one in seen.layers:
        page.click(f"#kind-{one.kind}")
        weights = one.numbers["weights"]
        heads, rows, columns = weights.shape
        for head in range(heads):
            page.click(f'.thumb[data-layer="{one.layer}"][data-head="{head}"]')
            assert place(page)[:3] == (one.kind, one.layer, head)
            assert page.inner_text("#h-one").endswith(f"layer {one.layer} · head {head}")
            for row, column in ((0, 0), (3, 2), (rows - 1, columns - 1)):
                value = weights[head, row, column].item()
                said = hover(page, row, column, rows, columns)
                assert float(said) == pytest.approx(value, abs=6e-5)
                tokens = seen.rows(one.kind)[row], seen.columns(one.kind)[column]
                assert page.inner_text("#readout span") == f"“{tokens[0]}” ({row}) looks at “{tokens[1]}” ({column})"
    page.click('.thumb[data-layer="1"][data-head="-1"]')  # the mean of the heads, of what was shown last: the decoder
    mean = seen.layer("decoder", 1).numbers["weights"].mean(0)
    assert float(hover(page, 4, 1, 5, 5)) == pytest.approx(mean[4, 1].item(), abs=6e-5)
    for what in ("scores", "norms"):
        page.select_option("#what", what)
        page.click('.thumb[data-layer="0"][data-head="1"]')
        value = seen.layer("decoder", 0).numbers[what][1, 4, 1].item()
        assert float(hover(page, 4, 1, 5, 5)) == pytest.approx(value, rel=2e-2, abs=6e-5)
    page.select_option("#what", "scores")
    assert hover(page, 0, 4, 5, 5) == "−∞"  # the future


def test_it_works_by_keyboard(opened: Open) -> None:
    page = opened(transformer())
    assert place(page) == ("cross", 1, -1, 0)
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
        assert place(page) == expected, key
    page.focus("#step")
    page.keyboard.press("ArrowRight")
    assert place(page)[3] == 2
    assert page.inner_text("#h-step") == "Step 3 of 5: “Z”"
    page.focus("#heat")
    page.keyboard.press("ArrowDown")  # a cell, from the step that is shown
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#readout span") == "“X” (3) looks at “X” (1)"
    page.keyboard.press("Tab")
    page.keyboard.press("Shift+Tab")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"  # what has the focus is seen to have it
    page.focus('.thumb[data-layer="0"][data-head="1"]')
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.dataset.layer") == "1"
    theme = page.evaluate("document.documentElement.dataset.theme")
    page.keyboard.press("d")
    assert page.evaluate("document.documentElement.dataset.theme") != theme


def test_steps_show_what_was_written_and_what_was_not(opened: Open) -> None:
    seen = transformer()
    page = opened(seen)
    page.click('.thumb[data-layer="0"][data-head="0"]')
    probs = seen.log_probs_TV.exp()
    for step in (0, 3):
        page.fill("#step", str(step))
        assert page.inner_text("#written .now") == seen.target[step]
        likeliest = seen.vocabulary[int(probs[step].argmax())]
        assert page.locator("#words span").first.inner_text() == likeliest
        assert page.locator("#words em").first.inner_text() == f"{100 * probs[step].max().item():.1f}%"
        assert page.inner_text("#words .chosen") == seen.target[step]
        best = seen.layers[0].numbers["weights"][0, step]
        said = page.inner_text("#links")
        assert said.startswith(f"“{seen.target[step]}” looks at “{seen.source[int(best.argmax())]}” {best.max().item():.2f}")
        assert page.locator("#lines .column").first.locator(".now").inner_text() == seen.target[step]
    page.locator("#written span").nth(4).click()
    assert place(page)[3] == 4
    box = page.locator("#heat").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + 9, box["y"] + 1.5 * box["height"] / 5)  # the second row
    assert place(page)[3] == 1


def test_figures_of_heads_and_layers(opened: Open) -> None:  # SPEC A9.3
    seen = transformer()
    page = opened(seen)
    page.click("#kind-encoder")
    page.click('.thumb[data-layer="1"][data-head="1"]')
    layer = seen.layer("encoder", 1)
    distance, mass = layer.distance_H(), layer.mass_HS()[1]
    assert distance is not None
    facts = page.locator("#facts strong").all_inner_texts()
    assert facts[0] == f"{layer.entropy_HT()[1].mean().item():.2f} of {math.log(6):.2f}"
    assert facts[1] == f"{100 * mass.max().item() / 6:.0f}% on “{seen.source[int(mass.argmax())]}”"
    assert facts[2] == f"{distance[1].item():.2f}"
    captions = page.locator("#charts figcaption").all_inner_texts()
    assert captions[:2] == ["Mean distance, within the source", "Mean distance, within the output"]
    titles = page.locator("#charts figure").first.locator("title").all_text_contents()
    means = [seen.layer("encoder", number).distance_H() for number in (0, 1)]
    expected = [
        f"layer {n}, head {h}: {one:.3f}" for n, of in enumerate(means) if of is not None for h, one in enumerate(of.tolist())
    ]
    assert titles == expected
    assert page.locator("#gates").is_hidden()


def test_gates_of_recurrent_models(opened: Open) -> None:  # SPEC A9.3
    seen = inspect(make_translator("rnn lstm, bahdanau, 2+2 layers"), "abcab", output=(4, 5))
    page = opened(seen)
    captions = page.locator("#gatecharts figcaption").all_inner_texts()
    assert len(captions) == len(seen.gates) == 6
    assert captions[0].startswith("encoder, layer 0, left to right")
    titles = page.locator("#gatecharts figure").nth(5).locator("title").all_text_contents()
    titles = [re.sub("[\u2068\u2069]", "", title) for title in titles]  # which keep a token apart from what stands around it
    means = {gate: opened.mean(-1) for gate, opened in seen.gates[5].opened.items()}
    assert titles == [f"{gate} gate at “{seen.read[t]}”: {means[gate][t].item():.3f}" for gate in means for t in range(3)]
    alone = opened(inspect(make_translator("rnn language model"), "ab", output=(4, 5)))  # no attention at all
    assert alone.locator("#gatecharts figure").count() == 2
    alone.fill("#step", "1")
    assert alone.inner_text("#h-step") == "Step 2 of 3: “Y”"
    assert alone.locator("#heat").is_hidden()


def test_no_text_is_taken_for_code(opened: Open) -> None:
    seen = inspect(make_translator("rnn additive"), HOSTILE, output=(4, 5))
    page = opened(seen)
    assert page.text_content("#text") == HOSTILE.replace("\u2028", r"\u2028")
    assert page.inner_text("#model") == "a model <b>"
    assert page.title().startswith("ab</script>")
    page.evaluate("getSelection().selectAllChildren(document.getElementById('reading'))")
    assert page.evaluate("getSelection().toString().includes('語')")  # text can be selected


def test_it_opens_at_what_the_terminal_shows(opened: Open) -> None:
    """The mean of the heads of the layer that was asked for, else of the last one."""
    seen = transformer()
    assert place(opened(seen)) == ("cross", 1, -1, 0)
    for kind, layer, expected in (("cross", 0, 0), ("encoder", -1, 1), ("decoder", -2, 0)):
        page = opened(seen, first={"kind": kind, "layer": layer})
        assert place(page) == (kind, expected, -1, 0)
        mean = seen.layer(kind, layer).numbers["weights"].mean(0)
        assert float(hover(page, 1, 0, *mean.shape)) == pytest.approx(mean[1, 0].item(), abs=6e-5)
        assert page.locator(f'.thumb[data-layer="{expected}"][data-head="-1"]').get_attribute("aria-pressed") == "true"
    recurrent = inspect(make_translator("rnn additive"), "abcab", output=(4, 5))
    assert place(opened(recurrent)) == ("cross", 0, 0, 0)
    with pytest.raises(UserError, match="there is no cross attention in layer 99: this model has layers 0 to 1"):
        opened(seen, first={"layer": 99})


def with_tokens(source: tuple[str, ...], target: tuple[str, ...] = ("X", "<eos>")) -> Inspection:
    shape = (2, len(target), len(source))
    gates = tuple(
        Gates(f"{side}, layer 0", side, {"update": torch.rand(size, 3)})  # type: ignore[arg-type]
        for side, size in (("encoder", len(source)), ("decoder", len(target)))
    )
    seen = make_inspection((Layer("cross", 0, {"weights": torch.rand(shape).softmax(-1)}),), len(target), len(source))
    return replace(seen, text="".join(source[:-1]), source=source, target=target, gates=gates)


def lefts(page: "Page", where: str) -> list[float]:
    boxes = [one.bounding_box() for one in page.locator(where).all()]
    return [box["x"] for box in boxes if box is not None]


def test_tokens_that_run_from_right_to_left(opened: Open) -> None:
    """Each stands for itself, so that punctuation stays with its word; a text is read in its own direction."""
    page = opened(with_tokens(("שלום!", "(אב)", "hello", "<eos>"), ("ש", "ל", "<eos>")))
    for where in ("#left", "#above", "#reading", "#written", "#words", "#lines"):
        styles = page.locator(f"{where} span").evaluate_all("all => all.map(e => getComputedStyle(e).unicodeBidi)")
        assert set(styles) == {"isolate"}, where
    directions = page.locator("#above span").evaluate_all("all => all.map(e => getComputedStyle(e).direction)")
    assert directions == ["rtl", "rtl", "ltr", "ltr"]
    assert lefts(page, "#above span") == sorted(lefts(page, "#above span"))  # columns run as those of the map
    for where in ("#reading", "#written"):
        assert lefts(page, f"{where} span") == sorted(lefts(page, f"{where} span"), reverse=True)
    hover(page, 0, 0, 3, 4)
    assert page.inner_text("#readout span") == "“ש” (0) looks at “שלום!” (0)"
    assert page.locator("#readout bdi").all_inner_texts() == ["ש", "שלום!"]
    other = opened(with_tokens(("a", "ש", "<eos>")))
    assert lefts(other, "#reading span") == sorted(lefts(other, "#reading span"))


def test_features_are_tags(opened: Open) -> None:
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
    """Nor makes it wider than the window: a picture of 100,000 pixels ends the browser's process."""
    page = opened(with_tokens(HOSTILE_TOKENS, HOSTILE_TOKENS), width)
    crashes: list[object] = []
    page.on("crash", lambda one: crashes.append(one))
    assert page.locator("#reading span").all_inner_texts() == [label(token) for token in HOSTILE_TOKENS]
    page.evaluate("for (const one of document.querySelectorAll('#gatecharts text')) one.textContent.isWellFormed() || hurt()")
    assert page.evaluate("document.documentElement.scrollWidth") <= width + 60
    page.screenshot(full_page=True)
    assert crashes == []


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_wide_and_narrow(opened: Open, scheme: str, width: int) -> None:
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
    page = opened(make_inspection((Layer("cross", 0, {"weights": weights}),), 512, 512))
    page.click('.thumb[data-head="5"]')
    for row, column in ((0, 0), (300, 17), (511, 511)):
        said = hover(page, row, column, 512, 512)
        found = [int(one) for one in re.findall(r"\((\d+)\)", page.inner_text("#readout span"))]
        assert max(abs(found[0] - row), abs(found[1] - column)) <= 1  # a pointer knows whole pixels only
        assert float(said.removeprefix("≈ ")) == pytest.approx(weights[5, found[0], found[1]].item(), rel=1e-2, abs=2e-5)
    assert page.evaluate("document.querySelectorAll('*').length") < 3000  # cells are pixels, not elements
    assert page.locator("#above span, #left span").count() == 0  # no label could be read
    page.evaluate("() => { window.painted = 0; const old = paint; paint = (...x) => { window.painted++; old(...x); }; }")
    for column in range(100, 130):
        hover(page, 9, column, 512, 512)
    assert page.evaluate("window.painted") == 0  # pointing draws no pixel again


def test_4096_by_4096_opens(opened: Open, tmp_path: Path) -> None:
    query, key = torch.randn(2, 4096, 8), torch.randn(2, 4096, 8)
    summary = regard.summarise(query, key, blocks=True, distance=True)
    seen = make_inspection((Layer("encoder", 0, {}, summary),), 4096, 4096)
    page = opened(seen)
    assert (tmp_path / "page0.html").stat().st_size < 4_000_000  # the matrices would have 134 MB
    page.click('.thumb[data-layer="0"][data-head="0"]')
    said = hover(page, 5, 77, 128, 128)
    assert summary.blocks is not None
    assert float(said.removeprefix("≈ ")) == pytest.approx(summary.blocks[0, 5, 77].item(), rel=1e-2)
    assert page.inner_text("#readout span") == "160–191 “s160 … s191” looks at 2464–2495 “s2464 … s2495”"
    assert page.inner_text("#links").startswith("“s160” looks at") == (summary.top_weights[0, 160, 0].item() > 0.005)
    assert f"{summary.distance[0].mean().item():.2f}" in page.locator("#facts strong").all_inner_texts()  # type: ignore[index]


# --- over a picture ----------------------------------------------------------------------------------------------------------


def told_cell(page: "Page") -> tuple[str, int, int, float]:
    """What the page says under the picture."""
    found = re.fullmatch(r"“(.*)” looks (?:most )?at row (\d+), column (\d+): ([\d.]+)", page.inner_text("#over-readout"))
    assert found
    return found[1], int(found[2]), int(found[3]), float(found[4])


@pytest.mark.parametrize("width", [390, 1280])
def test_the_map_of_every_word_lies_over_the_picture(opened: Open, tmp_path: Path, width: int) -> None:  # SPEC A8.3
    seen = inspect(make_captioner(tmp_path), "p.png", output=(4, 5, 6), what=EVERYTHING)
    page = opened(seen, width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    maps = seen.layer("cross", -1).numbers["weights"].mean(0).unflatten(-1, (3, 5))
    assert page.locator("#maps button").count() == 4
    assert page.locator("#maps img").first.evaluate("image => [image.naturalWidth, image.naturalHeight]") == [40, 24]
    for step, word in enumerate(seen.target):
        page.hover(f'#maps button[data-word="{step}"]')
        assert place(page)[3] == step
        assert page.inner_text("#h-over") == f"Over the picture: “{word}”"
        best = int(maps[step].argmax())
        assert told_cell(page) == (word, best // 5, best % 5, pytest.approx(maps[step].max().item(), abs=6e-5))
        alpha = page.evaluate(
            "[...document.querySelector('#overlay canvas').getContext('2d').getImageData(0, 0, 5, 3).data]"
            ".filter((_, i) => i % 4 === 3)"
        )
        expected = (210 * (1 - maps[step] / maps[step].max())).round().flatten()
        assert (torch.tensor(alpha) - expected).abs().max() <= 1  # what was not looked at is veiled
    capture = page.locator("#overlay")
    capture.scroll_into_view_if_needed()
    box = capture.bounding_box()
    assert box is not None
    assert box["width"] / box["height"] == pytest.approx(40 / 24, rel=0.02)
    for row, column in ((0, 0), (1, 3), (2, 4)):
        page.mouse.move(box["x"] + (column + 0.5) * box["width"] / 5, box["y"] + (row + 0.5) * box["height"] / 3)
        assert told_cell(page) == ("<eos>", row, column, pytest.approx(maps[3, row, column].item(), abs=6e-5))
    assert not capture.evaluate("box => box.classList.contains('cells')")
    page.click("#style-cells")
    assert capture.evaluate("box => box.classList.contains('cells')")
    capture.focus()
    page.keyboard.press("m")
    assert not capture.evaluate("box => box.classList.contains('cells')")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert place(page)[3] == 1
    assert "most at row" in str(capture.get_attribute("aria-label"))
    assert page.locator("#lines").is_hidden()  # a picture is not read cell by cell


def test_maps_follow_the_head_and_other_pages_have_none(opened: Open, tmp_path: Path) -> None:
    settings = TransformerSettings(width=20, heads=2, feed_forward=29, frontend="patches")
    seen = inspect(make_captioner(tmp_path, settings), "p.png", output=(4, 5))
    page = opened(seen)
    assert place(page) == ("cross", 1, -1, 0)  # the mean of the last layer
    weights = seen.layer("cross", 0).numbers["weights"]
    page.click('.thumb[data-layer="0"][data-head="1"]')
    assert told_cell(page)[3] == pytest.approx(weights[1, 0].max().item(), abs=6e-5)
    page.click("#kind-encoder")
    assert told_cell(page)[3] == pytest.approx(seen.layer("cross", 1).numbers["weights"].mean(0)[0].max().item(), abs=6e-5)
    assert opened(transformer()).locator("#over").is_hidden()


# --- sound -------------------------------------------------------------------------------------------------------------------


def heard() -> Inspection:
    """Two seconds: a tone, and a higher one, which is louder; 50 places, and attention that moves along them."""
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
        source=tuple(f"{0.04 * place:.2f} s" for place in range(50)),
        target=("low", "high", "<eos>"),
        target_ids=(4, 5, 3),
        vocabulary=("<pad>", "<unk>", "<sos>", "<eos>", "low", "high"),
        log_probs_TV=torch.zeros(3, 6).log_softmax(-1),
        layers=(Layer("cross", 0, {"weights": weights}),),
        gates=(),
        sound=row,
    )


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
def test_sound_stands_over_the_attention_that_hears_it(opened: Open, width: int, scheme: str) -> None:  # SPEC A8.4
    """Column for column: the waveform is louder in the second half, the spectrogram brighter where the tones are."""
    seen = heard()
    page = opened(seen, width, scheme)
    sound, heat = (page.locator(where).bounding_box() for where in ("#above canvas", "#heat"))
    assert sound is not None
    assert heat is not None
    assert (sound["x"], sound["width"]) == pytest.approx((heat["x"], heat["width"]), abs=1.5)
    assert sound["y"] + sound["height"] < heat["y"]
    assert page.locator("#above canvas").get_attribute("aria-label") == "The sound, 2.00 seconds: waveform and spectrogram"
    assert page.locator("#above time").first.inner_text() == "0 s"
    marks = [float(one.removesuffix(" s")) for one in page.locator("#above time").all_inner_texts()]
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
            const place = 4 * (Math.floor((48 + 84 * (39.5 - band) / 40) * by) * wide + Math.floor(share * wide));
            return [...all.slice(place, place + 3)];
          };
          return {waves: [count(0, .5), count(.5, 1)], low: [at(.25, 11), at(.75, 11)], high: [at(.25, 27), at(.75, 27)]};
        }"""
    )
    assert painted["waves"][1] > 1.6 * painted["waves"][0]
    assert painted["low"][0] != painted["low"][1]
    assert painted["high"][0] != painted["high"][1]
    weights = seen.layers[0].numbers["weights"]
    assert float(hover(page, 1, 30, 3, 50)) == pytest.approx(weights[0, 1, 30].item(), abs=6e-5)
    assert page.inner_text("#readout span") == "“high” (1) looks at “1.20 s” (30)"
    stripe = page.locator("#stripe").bounding_box()
    assert stripe is not None
    assert stripe["x"] + stripe["width"] / 2 == pytest.approx(heat["x"] + 30.5 / 50 * heat["width"], abs=1.5)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_words_beside_a_sound(opened: Open) -> None:  # SPEC A6.4
    """Rows are places of the sound, columns the words beside it."""
    seen = heard()
    weights = torch.rand(2, 50, 3, generator=torch.Generator().manual_seed(1)).softmax(-1)
    seen = replace(
        seen, auxiliary=("every", "second", "<eos>"), layers=(*seen.layers, Layer("fusion", 0, {"weights": weights}))
    )
    page = opened(seen)
    page.click("#kind-fusion")
    page.click('.thumb[data-layer="0"][data-head="1"]')
    assert page.inner_text("#h-one") == "source → auxiliary text · layer 0 · head 1"
    assert float(hover(page, 20, 1, 50, 3)) == pytest.approx(weights[1, 20, 1].item(), abs=6e-5)
    assert page.inner_text("#readout span") == "“0.80 s” (20) looks at “second” (1)"
    assert page.locator("#above canvas").count() == 0
    assert page.locator("#above span").all_inner_texts() == ["every", "second", "<eos>"]


@pytest.mark.parametrize("width", [390, 1280])
def test_a_long_sound_has_its_time_beside_the_rows(opened: Open, width: int) -> None:
    """26 seconds: ticks at the height of their time, the sound along them, and why there are no lines."""
    weights = torch.rand(1, 640, 3, generator=torch.Generator().manual_seed(1)).softmax(-1)
    within = torch.rand(1, 640, 640, generator=torch.Generator().manual_seed(1)).softmax(-1)
    seen = replace(
        heard(),
        sound=heard().sound.repeat(13, 1)[:2560],  # type: ignore[union-attr]
        source=tuple(f"{0.04 * place:.2f} s" for place in range(640)),
        auxiliary=("every", "second", "<eos>"),
        layers=(Layer("fusion", 0, {"weights": weights}), Layer("encoder", 0, {"weights": within})),
    )
    page = opened(seen, width)
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
    assert painted[1] > 1.5 * painted[0]  # the second tone is louder: time runs downwards
    assert page.locator("#level").is_hidden()
    hover(page, 320, 1, 640, 3)
    level, heat = (page.locator(where).bounding_box() for where in ("#level", "#heat"))
    assert level is not None
    assert heat is not None
    assert level["y"] == pytest.approx(heat["y"] + heat["height"] / 2, abs=3)
    assert page.locator("#lines").is_hidden()
    assert "Lines from 640 positions would be indistinguishable, so none are drawn" in page.inner_text("#why")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.click("#kind-encoder")  # the sound stands above, the ticks on both sides
    assert page.locator("#above canvas").count() == 1
    assert page.locator("#left canvas").count() == 0
    assert page.locator("#left time").count() >= 2


def test_a_sound_that_is_missing(opened: Open) -> None:
    """One place: a small map, a gate that is a dot, and axes that have numbers."""
    gates = Gates("encoder, layer 0, left to right", "encoder", {"reset": torch.rand(1, 8)})
    seen = replace(
        heard(),
        sound=None,
        source=("no sound",),
        title="no sound + say nine",
        auxiliary=("say", "nine", "<eos>"),
        layers=(Layer("cross", 0, {"weights": torch.ones(1, 3, 1)}), Layer("fusion", 0, {"weights": torch.eye(3)[None, :1]})),
        gates=(gates,),
    )
    page = opened(seen)
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


def test_words_say_what_they_are_about(opened: Open) -> None:
    """Without a pointer the largest weight of the step is told; figures say that they are of all steps."""
    seen = heard()
    page = opened(seen)
    weights = seen.layers[0].numbers["weights"]
    for step, place_of_most in ((0, 8), (1, 30)):
        page.fill("#step", str(step))
        assert float(page.inner_text("#readout .value")) == pytest.approx(weights[0, step].max().item(), abs=6e-5)
        said = f"“{seen.target[step]}” ({step}) looks most at “{seen.source[place_of_most]}” ({place_of_most})"
        assert page.locator("#readout span").first.inner_text() == said
    assert page.locator("#facts span").first.inner_text() == "Over all 3 steps:"
    recurrent = opened(replace(seen, layers=(*seen.layers, replace(seen.layers[0], layer=1))))
    assert recurrent.locator("#layers").is_visible()
    assert "Distance" not in recurrent.inner_text("#layers")
    assert "Distance: how many positions" in opened(transformer()).inner_text("#layers")
