"""The server's own page, in a browser: it streams, points at sources, offers other words, switches heads off."""

import importlib.util
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import Running, serving

pytestmark = pytest.mark.slow
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
TEXT = "The big dog sees a cat."

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving() as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None or importlib.util.find_spec("playwright") is None:
        if os.environ.get("REGARD_CI"):
            pytest.fail("no chromium or playwright, but in CI the page must be opened")
        pytest.skip("no chromium or playwright: the page is not opened")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=["--headless", "--no-sandbox", "--disable-gpu"])
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser: Any, server: Running) -> Iterator[Open]:
    """Returns a function that opens the page. It may not fail, nor request anything from elsewhere."""
    events: list[str] = []
    pages = []

    def open_page(width: int = 1000, scheme: str = "light", **options: Any) -> Any:
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme, **options)
        page.on("pageerror", lambda error: events.append(f"error: {error}"))
        page.on("console", lambda line: re.search("40[09]", line.text) or events.append(f"console: {line.text}"))
        page.on("request", lambda request: request.url.startswith((server.url, "blob:")) or events.append(request.url))
        page.goto(server.url)
        page.wait_for_selector("#target option", state="attached")
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        page.close()
    assert events == []


def translated(page: Any, text: str = TEXT) -> Any:
    page.fill("#q", text)
    page.press("#q", "Control+Enter")
    page.wait_for_selector("#to button")
    return page


@pytest.mark.parametrize(("width", "scheme"), [(1000, "light"), (1000, "dark"), (390, "light")])
def test_words_and_their_sources(opened: Open, width: int, scheme: str) -> None:
    page = translated(opened(width, scheme))
    assert page.inner_text("#output") == "Das groß hund sieht ein katze."
    assert page.locator("#from span").all_inner_texts() == TEXT.split()
    assert page.locator("#curves path").count() == 6
    page.hover("#to button:nth-child(3)")
    assert page.locator("#from .on").all_inner_texts() == ["dog"]
    assert "“\u2068hund\u2069” comes from “\u2068dog\u2069”" in page.inner_text("#readout")
    page.focus("#to button:nth-child(6)")
    assert page.locator("#from .on").all_inner_texts() == ["cat."]
    word, curve = (page.locator(where).bounding_box() for where in ("#to button:nth-child(6)", "#curves path.on"))
    middle, end = word["y"] + word["height"] / 2, curve["x"] + curve["width"]
    assert curve["y"] + curve["height"] / 2 == pytest.approx(middle, abs=2)  # the line of the last word is level
    assert end == pytest.approx(word["x"], abs=6)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate("document.documentElement.dataset.theme") == scheme
    page.click("#theme")
    assert page.evaluate("document.documentElement.dataset.theme") != scheme


def test_other_words_and_going_on_from_one(opened: Open) -> None:
    page = translated(opened(bypass_csp=True))
    page.click("#to button:nth-child(3)")
    page.wait_for_selector("#choices button")
    choices = page.locator("#choices button")
    assert choices.count() == 6
    assert choices.first.inner_text().startswith("hund")
    assert page.evaluate("document.activeElement.parentElement.id") == "choices"
    word, text = choices.nth(1).inner_text().rstrip("0123456789."), choices.nth(1).get_attribute("title")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    page.wait_for_function("word => document.querySelectorAll('#to button')[2]?.textContent === word", arg=word)
    assert page.inner_text("#output") == text


def test_heads_one_by_one_off_and_the_live_page(opened: Open, browser: Any, server: Running, tmp_path: Path) -> None:
    page = translated(opened(bypass_csp=True))
    assert page.locator("#head option").count() == 5
    page.select_option("#head", "cross.1.0")
    page.wait_for_function("document.querySelector('#to').lastChild.textContent === '<eos>'")
    expected = server.translate(TEXT, beam=4, attention="cross.1.0")["attention"][0]["weights"]
    assert page.locator("#curves path").count() == sum(weight >= 0.1 for row in expected for weight in row)
    before = page.inner_text("#output")
    page.click("#off")
    page.wait_for_selector("#offs:not([hidden])")
    assert page.inner_text("#offs") == "Off: layer 1, head 0"
    assert page.get_attribute("#off", "aria-pressed") == "true"
    off = server.translate(TEXT, beam=4, heads_off=[["cross", 1, 0]])["translatedText"]
    page.wait_for_function("text => document.getElementById('output').textContent === text", arg=off)
    page.click("#off")
    page.wait_for_function("text => document.getElementById('output').textContent === text", arg=before)
    with page.expect_download() as download:
        page.click("#live")
    download.value.save_as(tmp_path / "attention.html")
    live = browser.new_page()
    live.goto((tmp_path / "attention.html").as_uri())
    assert live.inner_text("#output") == before
    assert live.locator("#heat").count() == 1
    live.close()


def test_mistakes_are_shown(opened: Open) -> None:
    page = translated(opened(bypass_csp=True), "cat\ndog")
    page.click("#to button:nth-child(1)")
    page.wait_for_selector("#problem:not([hidden])")
    assert "one sentence" in page.inner_text("#problem")
    page.fill("#q", "x" * 30_000)
    page.click("#go")
    page.wait_for_function("document.getElementById('problem').textContent.includes('exceeds text limit')")
    assert page.is_enabled("#go")


def test_other_documents(server: Running) -> None:
    assert "script-src 'self'" in server.get("/").headers["content-security-policy"]
    assert server.get("/page/other.js").status == server.get("/page/..%2Fapp.py").status == 404
    docs, spec = server.get("/docs").body.decode(), server.get("/spec").json
    assert all(path in docs for path in spec["paths"])
    assert "http" not in docs
    routes = {route.path for route in server.web.routes if hasattr(route, "path")} - {"/page/{name}"}
    assert routes == set(spec["paths"])
    assert server.get("/frontend/settings").json["models"] == [
        {"source": "en", "target": "de", "aligns": True, "attention": {"cross": [2, 2], "encoder": [1, 2], "decoder": [2, 2]}}
    ]
