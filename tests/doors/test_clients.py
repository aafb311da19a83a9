"""Client libraries of LibreTranslate, as they are, with our server: each of them as its documentation shows it."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import MODEL, Running, serving

TEXT, GERMAN = "The big dog runs. A man sleeps.", "Das groß hund rennt. Ein mann schläft."


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    """Knows two source languages, so that a language is really detected."""
    with serving(models=[MODEL, MODEL], languages=["en,de", "fr,de"]) as running:
        yield running


def test_libretranslatepy(server: Running) -> None:
    api = pytest.importorskip("libretranslatepy").LibreTranslateAPI(server.url)
    assert api.translate(TEXT, "en", "de") == GERMAN
    assert [language["code"] for language in api.languages()] == ["en", "fr", "de"]
    assert api.detect("The dog sees the woman")[0]["language"] == "en"


def test_deep_translator(server: Running) -> None:
    module = pytest.importorskip("deep_translator")
    translator = module.LibreTranslator(source="en", target="de", custom_url=f"{server.url}/", api_key="x")
    assert translator.translate(TEXT) == GERMAN
    assert translator.translate_batch(["cat", "the big dog"]) == ["katze", "das groß hund"]
    with pytest.raises(module.exceptions.ServerException):
        module.LibreTranslator(source="de", target="en", custom_url=f"{server.url}/", api_key="x").translate("hund")


def test_requests_of_mastodon(server: Running) -> None:
    """app/lib/translation_service/libre_translate.rb: a list of HTML texts, and the language of each of them."""
    given = {
        "q": ["<p>The <b>big</b> dog</p>", "<p>wine</p>"],
        "source": "auto",
        "target": "de",
        "format": "html",
        "api_key": None,
    }
    answer = server.post("/translate", given)
    assert answer.json["translatedText"] == ["<p>Das <b>groß</b> hund</p>", "<p>wein</p>"]
    assert answer.json["detectedLanguage"][0]["language"] == "en"
    languages = {
        language["code"]: [code for code in language["targets"] if code != language["code"]]
        for language in server.get("/languages").json
    }
    assert languages == {"en": ["de"], "fr": ["de"], "de": []}


def test_requests_of_weblate(server: Running) -> None:
    """weblate/machinery/libretranslate.py: the languages, then forms."""
    assert [language["code"] for language in server.get("/languages").json] == ["en", "fr", "de"]
    given = {"q": TEXT, "source": "en", "target": "de", "api_key": ""}
    assert server.form("/translate", given).json["translatedText"] == GERMAN


PYTHON = """
import sys
from translate import Translator
from argostranslate.apis import LibreTranslateAPI
from libretranslatepy import LibreTranslateAPI as Older
url, text = sys.argv[1:]
translator = Translator(provider="libre", from_lang="en", to_lang="de", base_url=url + "/", secret_access_key="")
detecting = Translator(provider="libre", from_lang="autodetect", to_lang="de", base_url=url + "/", secret_access_key="")
print(translator.translate("The big dog"), detecting.translate("The woman sees the dog"), sep="|")
api = LibreTranslateAPI(url)
print(api.translate(text, "en", "de"), api.detect("The woman sees the dog")[0]["language"], len(api.languages()), sep="|")
older = Older(url)
print(older.translate(text, "en", "de"), len(older.languages()), sep="|")
"""


@pytest.mark.slow
def test_translate_argostranslate_and_an_older_libretranslatepy(server: Running, tmp_path: Path) -> None:
    """They need other versions than we have, so they are installed elsewhere, without the models that they could run."""
    packages = ["libretranslatepy==2.1.1", "translate==3.8.1", "argostranslate==1.11.0"]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(tmp_path), *packages]
    if subprocess.run(pip, capture_output=True).returncode:
        pytest.skip("the packages cannot be installed here")
    (tmp_path / "client.py").write_text(PYTHON)
    done = subprocess.run([sys.executable, "client.py", server.url, TEXT], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "Das groß hund|Das frau sieht das hund",
        f"{GERMAN}|en|3",
        f"{GERMAN}|3",
    ], done.stderr


SCRIPT = """
import translate from "translate";
import library from "libretranslate-ts";
const libre = library.libreTranslate;
const [url, text] = process.argv.slice(2);
translate.engine = "libre"; translate.url = url + "/translate"; translate.key = "x"; translate.from = "en";
const first = await translate(text, "de");
libre.setApiEndpoint(url);
const second = await libre.translate(text, "en", "de");
const third = await libre.detect("The woman sees the dog");
const fourth = await libre.translate(text, "zz", "de");
console.log(JSON.stringify([first, second.translatedText, third.language, fourth.error]));
"""


@pytest.mark.slow
def test_clients_of_node(server: Running, tmp_path: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    npm = ["npm", "install", "--silent", "--no-audit", "--no-fund", "libretranslate-ts@0.5.12", "translate@3.1.0"]
    if subprocess.run(npm, cwd=tmp_path, capture_output=True).returncode:
        pytest.skip("the packages cannot be installed here")
    (tmp_path / "client.mjs").write_text(SCRIPT)
    done = subprocess.run(["node", "client.mjs", server.url, TEXT], cwd=tmp_path, capture_output=True, text=True)
    assert json.loads(done.stdout or "null") == [GERMAN, GERMAN, "en", "zz is not supported"], done.stderr
