"""`regard serve` as its clients see it: a server on a loopback port of this process, with a small trained model."""

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from serving import MODEL, Running, serving

from regard import load
from regard.cli.main import app as main
from regard.errors import UserError
from regard.serving.app import Policy
from regard.serving.guard import Access
from regard.serving.keys import KeyFile
from regard.serving.limits import Limits
from regard.serving.run import reload

TEXT = "  The big dog runs.  A small red house!\r\n\r\n\tman and woman\n—\n"
GERMAN = "  Das groß hund rennt.  Ein klein rot haus!\r\n\r\n\tmann und frau\n—\n"
LONG = "The big dog sees a small red house and a man. " * 400


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving() as running:
        yield running


# --- LibreTranslate's API ----------------------------------------------------------------------------------------------------


def test_a_text_comes_back_with_its_lines_and_spaces(server: Running) -> None:
    assert server.translate(TEXT) == {"translatedText": GERMAN}
    assert server.translate([TEXT, "cat"]) == {"translatedText": [GERMAN, "katze"]}


def test_json_form_query_and_multipart_are_equal(server: Running) -> None:
    given = {"q": "the big dog", "source": "en", "target": "de", "format": "text", "api_key": ""}
    expected = {"translatedText": "das groß hund"}
    assert server.post("/translate", {**given, "api_key": None}).json == expected
    assert server.form("/translate", given).json == expected
    query = "/translate?q=the+big%20dog&source=en&target=de&api_key=x"
    assert server.ask("POST", query, b"").json == expected
    assert server.ask("POST", query, b"q=cat", {"Content-Type": "application/x-www-form-urlencoded"}).json == {
        "translatedText": "katze"  # the body comes before the query
    }
    assert multipart(server, "/translate", given) == (200, expected)


def multipart(server: Running, path: str, fields: dict[str, Any]) -> tuple[int, Any]:
    """Sends a form with files: values that are (name, content)."""
    parts = b""
    for name, value in fields.items():
        file = f'; filename="{value[0]}"' if isinstance(value, tuple) else ""
        content = value[1] if isinstance(value, tuple) else value.encode()
        parts += f'--xx\r\nContent-Disposition: form-data; name="{name}"{file}\r\n\r\n'.encode() + content + b"\r\n"
    answer = server.ask("POST", path, parts + b"--xx--\r\n", {"Content-Type": "multipart/form-data; boundary=xx"})
    return answer.status, answer.json


def test_alternatives_and_detected_languages(server: Running) -> None:
    answer = server.translate("the big dog runs", alternatives=3)
    assert answer["translatedText"] == "das groß hund rennt"
    assert len({answer["translatedText"], *answer["alternatives"]}) == 4
    beam = load(MODEL)("the big dog runs", beam=4, n_best=4)
    assert answer["alternatives"] == [output.text for output in beam.n_best[1:]]
    batch = server.translate(["cat", "😀 !"], source="auto", alternatives=1)
    assert batch["detectedLanguage"] == [{"confidence": 100.0, "language": "en"}, {"confidence": 0.0, "language": "en"}]
    assert batch["translatedText"] == ["katze", "😀 !"]
    assert [len(texts) for texts in batch["alternatives"]] == [1, 0]
    assert server.translate("<p>cat</p>", format="html", alternatives=2) == {
        "translatedText": "<p>katze</p>",
        "alternatives": [],
    }


def test_html_keeps_its_tags_around_the_right_words(server: Running) -> None:
    page = '<p>the <b class="x">big dog</b> runs. A <i>cat</i><br>&amp; —<br>red wine</p>\n<script>the("dog")</script>'
    assert server.translate(page, format="html")["translatedText"] == (
        '<p>das <b class="x">groß hund</b> rennt. Ein <i>katze</i><br>&amp; —<br>rot wein</p>\n<script>the("dog")</script>'
    )


def test_languages(server: Running) -> None:
    listed = [
        {"code": "en", "name": "English", "targets": ["en", "de"]},
        {"code": "de", "name": "German", "targets": ["de"]},
    ]
    kind = {"Content-Type": "application/x-www-form-urlencoded", "Content-Length": "0"}
    assert server.get("/languages").json == listed
    assert server.ask("GET", "/languages", b"", kind).json == listed
    assert server.ask("POST", "/languages", b"", kind).json == listed
    assert server.translate("the dog", target="en") == {"translatedText": "the dog"}
    assert server.translate("the dog", source="EN-us", target="DE") == {"translatedText": "das hund"}


MISSING = "Invalid request: missing {} parameter"
GIVEN = {"q": "cat", "source": "en", "target": "de"}


@pytest.mark.parametrize(
    ("given", "error"),
    [  # each mistake comes with all those that are checked later
        ({}, MISSING.format("q")),
        ({"q": ""}, MISSING.format("q")),
        ({"q": []}, MISSING.format("q")),
        ({"q": "cat", "alternatives": "x"}, MISSING.format("source")),
        ({"q": "cat", "source": "zz", "alternatives": "x"}, MISSING.format("target")),
        ({**GIVEN, "q": "x" * 30_000, "alternatives": "two"}, "Invalid request: alternatives parameter is not a number"),
        ({**GIVEN, "alternatives": True}, "Invalid request: alternatives parameter is not a number"),
        ({**GIVEN, "alternatives": 1.5}, "Invalid request: alternatives parameter is not a number"),
        ({**GIVEN, "alternatives": [1]}, "Invalid request: alternatives parameter is not a number"),
        ({**GIVEN, "q": ["x"] * 300, "alternatives": 10_000}, "Invalid request: alternatives parameter must be <= 10"),
        ({**GIVEN, "alternatives": -1}, "Invalid request: alternatives parameter must be >= 0"),
        ({**GIVEN, "q": ["x" * 101] * 201}, "Invalid request: request (201) exceeds text limit (200)"),
        ({**GIVEN, "q": ["x" * 10_000] * 3, "source": "zz"}, "Invalid request: request (30000) exceeds text limit (20000)"),
        ({**GIVEN, "source": "zz", "target": "yy", "format": "pdf"}, "zz is not supported"),
        ({**GIVEN, "target": "yy", "format": "pdf"}, "yy is not supported"),
        ({**GIVEN, "source": "de", "target": "en", "format": "pdf"}, "pdf format is not supported"),
        ({**GIVEN, "source": "de", "target": "en"}, "English (en) is not available as a target language from German (de)"),
        ({**GIVEN, "q": ["cat", 1]}, "Invalid request: q parameter is ['cat', 1], expected a text or a list of texts"),
        ({**GIVEN, "q": "\ud800"}, "Invalid request: q parameter is not valid Unicode: it contains a lone surrogate"),
        ([1], "Invalid JSON format"),
        (None, "Invalid JSON format"),
    ],
)
def test_mistakes_have_the_words_and_the_order_of_libretranslate(server: Running, given: Any, error: str) -> None:
    answer = server.post("/translate", given)
    assert (answer.status, answer.json) == (400, {"error": error})


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"{", "application/json"),
        (b'{"q": "\xff"}', "application/json"),
        (b"[" * 100_000, "application/json"),
        (b"q=%ff&source=en", "application/x-www-form-urlencoded"),
        (b"&".join(b"q%d=x" % number for number in range(2000)), "application/x-www-form-urlencoded"),
        (b"--x\r\nbroken", "multipart/form-data; boundary=x"),
        (b"", "multipart/form-data"),
    ],
)
def test_broken_bodies(server: Running, body: bytes, kind: str) -> None:
    answer = server.ask("POST", "/translate", body, {"Content-Type": kind})
    assert answer.status == 400
    assert set(answer.json) == {"error"}


def test_detect(server: Running) -> None:
    assert server.form("/detect", {"q": "the dog"}).json == [{"confidence": 100.0, "language": "en"}]
    assert server.post("/detect", {}).json == {"error": MISSING.format("q")}


def test_other_routes(server: Running) -> None:
    assert server.get("/health").json == {"status": "ok"}
    settings = server.get("/frontend/settings").json
    assert settings["language"]["source"] == {"code": "en", "name": "English"}
    assert settings["supportedFilesFormat"] == [".txt", ".html", ".srt"]
    assert server.post("/suggest", {}).status == 403
    metrics = server.get("/metrics").body.decode()
    assert 'regard_requests_total{route="/health",status="200"}' in metrics
    assert "regard_running_sentences 0.0" in metrics
    for path in ("/nothing", "/translate"):
        answer = server.get(path)
        assert answer.status == {"/nothing": 404, "/translate": 405}[path]
        assert set(answer.json) == {"error"}


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("ä b.txt", TEXT, GERMAN),
        ("x.HTM", "<p>the <b>dog</b>", "<p>das <b>hund</b>"),
        ("s.srt", "1\n00:00:01,000 --> 00:00:02,000\nthe dog\nruns\n", "1\n00:00:01,000 --> 00:00:02,000\ndas hund\nrennt\n"),
    ],
)
def test_files(server: Running, name: str, content: str, expected: str) -> None:
    fields = {"file": (name, content.encode()), "source": "en", "target": "de"}
    status, answer = multipart(server, "/translate_file", fields)
    assert status == 200
    address = answer["translatedFileUrl"]
    assert address.startswith(f"{server.url}/download_file/")
    found = server.get(address.removeprefix(server.url))
    assert found.body.decode() == expected
    assert found.headers["content-disposition"].startswith('attachment; filename="')
    assert found.headers["content-disposition"].endswith(("''%C3%A4_b.de.txt", "''x.de.html", "''s.de.srt"))
    assert server.get("/download_file/other.txt").status == 404


def test_a_field_without_a_file_name_is_a_text(server: Running) -> None:
    status, answer = multipart(server, "/translate_file", {"file": "the dog", "source": "en", "target": "de"})
    assert status == 200
    assert server.get(answer["translatedFileUrl"].removeprefix(server.url)).body == b"das hund"


def test_mistakes_in_files(server: Running) -> None:
    fields = {"source": "en", "target": "de"}
    for file, error in {
        ("a.pdf", b"x"): "a.pdf is none of .txt, .html, .srt",
        ("a.txt", b"a\xff"): "not UTF-8 at byte 1",
        ("a.txt", b"x" * 20_001): "exceeds text limit",
    }.items():
        status, answer = multipart(server, "/translate_file", {**fields, "file": file})
        assert status == 400
        assert error in answer["error"]
    assert server.post("/translate_file", {**fields, "file": 5}).json == {
        "error": "Invalid request: file parameter is 5, expected a text"
    }
    assert multipart(server, "/translate_file", fields) == (400, {"error": MISSING.format("file")})


# --- many clients ------------------------------------------------------------------------------------------------------------


def test_answers_do_not_depend_on_who_else_asks(server: Running) -> None:
    texts = ["man", "the big dog runs.", "a small red house and a tree and a cat!", "wine", "red red red", "woman sees man"]
    questions = [(text, count) for text in texts for count in (0, 1, 3)]
    alone = {question: server.translate(question[0], alternatives=question[1]) for question in questions}
    with ThreadPoolExecutor(24) as pool:
        for question, answer in pool.map(lambda each: (each, server.translate(each[0], alternatives=each[1])), questions * 5):
            assert answer == alone[question]


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


@contextmanager
def asking(server: Running, **given: Any) -> Iterator[socket.socket]:
    """Sends a long text and does not read the answer; at the end of the block the client goes away."""
    body = json.dumps({"q": LONG, "source": "en", "target": "de", **given}).encode()
    head = "POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as client:
        client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        wait_until(lambda: server.service.runner.num_running)
        yield client


def test_a_long_text_does_not_delay_a_short_one(server: Running) -> None:
    with asking(server, alternatives=9):
        server.translate("the big dog")
        assert server.service.runner.num_waiting > 200


def test_a_client_that_goes_away_frees_its_rows(server: Running) -> None:
    runner = server.service.runner
    finished = runner.finished
    with asking(server, alternatives=9):
        assert runner.num_waiting > 300
    wait_until(lambda: not (runner.num_running or runner.num_waiting))
    assert runner.nbytes == 0
    assert runner.finished - finished < 300


def test_a_sentence_that_is_being_searched_is_stopped_when_its_client_goes_away() -> None:
    """It would take minutes: it may not end before 50,000 tokens."""
    with serving(min_length=50_000, max_length=60_000) as server:
        with asking(server, q="cat"):
            assert server.service.runner.num_waiting == 0
        wait_until(lambda: not server.service.runner.num_running)


def test_limits_of_time_queue_and_memory() -> None:
    with serving(policy=Policy(limits=Limits(seconds=0.05))) as server:
        late = server.post("/translate", {**GIVEN, "q": LONG, "alternatives": 7})
        assert (late.status, late.headers["retry-after"]) == (503, "5")
        assert "took longer than 0.05 s" in late.json["error"]
        wait_until(lambda: not server.service.runner.num_running)
        assert server.service.runner.nbytes == 0
    with serving(policy=Policy(limits=Limits(waiting=1))) as server:
        with asking(server, alternatives=7):
            busy = server.post("/translate", GIVEN)
            assert busy.status == 503
            assert re.match(r"the server is busy: \d+ sentences wait; try again in \d+ s", busy.json["error"])
            assert int(busy.headers["retry-after"]) >= 1
        wait_until(lambda: not server.service.runner.num_waiting)
        assert server.post("/translate", GIVEN).status == 200
    with serving(policy=Policy(limits=Limits(memory=1 << 16))) as server:
        large = server.post("/translate", {**GIVEN, "alternatives": 9})
        assert large.status == 413
        assert re.search(r"may need [\d,.]+ MB with a beam of 10, but the limit is 0.06 MB", large.json["error"])


def test_a_search_that_fails_refuses_its_requests_and_is_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(timeout: float) -> None:
        raise RuntimeError("the weights are gone")

    with serving() as server:
        ((model,), runner) = server.service.directory.pairs.values(), server.service.runner
        monkeypatch.setattr(model.lane.search, "events", fail)
        failed = server.post("/translate", GIVEN)
        assert (failed.status, failed.json) == (500, {"error": "the search failed; the log of the server says why"})
        assert "the weights are gone" in caplog.text
        assert (runner.nbytes, runner.num_running, runner.num_waiting, runner._rows) == (0, 0, 0, 0)
        assert server.translate("cat") == {"translatedText": "katze"}


# --- safety ------------------------------------------------------------------------------------------------------------------


def test_outputs_end_after_so_many_tokens_per_source_token() -> None:
    text = "the cat runs and the dog runs and the man runs and the woman runs"
    with serving(max_ratio=0.01) as server:
        assert len(server.translate(text)["translatedText"].split()) == 10
    assert len(load(MODEL)(text).tokens) > 10


def test_hosts_and_websites(server: Running) -> None:
    for host in ("localhost", "localhost:5000", "127.0.0.1", "[::1]:80", "192.0.2.1:5000"):
        assert server.get("/health", Host=host).status == 200
    for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "evil.example:80@localhost", ""):
        assert server.get("/health", Host=host).status == 421
    here = f"127.0.0.1:{server.port}"
    assert server.get("/health", Host=here, Origin=f"http://{here}").status == 200
    for origin in ("http://evil.example", "null", f"http://{here}.evil.example"):
        answer = server.get("/health", Host=here, Origin=origin)
        assert answer.status == 403
        assert "access-control-allow-origin" not in {name.lower() for name in answer.headers}


def test_a_website_that_is_allowed() -> None:
    policy = Policy(Access(names=["translate.example"], origins=["https://a.example"]), per_minute=3)
    with serving(policy=policy) as server:
        allowed = server.get("/health", Host="translate.example", Origin="https://a.example")
        assert allowed.status == 200
        assert allowed.headers["Access-Control-Allow-Origin"] == "https://a.example"
        assert server.get("/health", Origin="https://b.example").status == 403
        preflight = {"Origin": "https://a.example", "Access-Control-Request-Method": "POST"}
        assert server.ask("OPTIONS", "/translate", headers=preflight).status == 204
        answers = [server.form("/detect", {"q": "x"}) for _ in range(4)]
        assert [answer.status for answer in answers] == [200, 200, 200, 429]
        assert answers[-1].json == {"error": "Slowdown: 3 per 1 minute"}
        assert server.get("/health").status == 200


def test_an_answer_does_not_wait_for_an_acknowledgement(server: Running) -> None:
    connection, seconds = HTTPConnection("127.0.0.1", server.port, timeout=30), []
    for _ in range(40):
        start = time.perf_counter()
        connection.request("GET", "/health")
        assert connection.getresponse().read() == b'{"status":"ok"}'
        seconds.append(time.perf_counter() - start)
    connection.close()
    assert min(seconds[20:]) < 0.03  # with Nagle's algorithm each takes 0.04


def test_headers(server: Running) -> None:
    headers = {name.lower(): value for name, value in server.get("/languages").headers.items()}
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["content-security-policy"].startswith("default-src 'none'")
    assert headers["cache-control"] == "no-store"
    assert "server" not in headers


def test_bodies_that_are_too_large_or_too_slow() -> None:
    with serving(policy=Policy(limits=Limits(body=1000, receiving=0.2))) as server:
        answer = server.ask("POST", "/translate", b"x" * 3_000_000)
        assert answer.status == 413
        assert "larger than 1,000 bytes" in answer.json["error"]
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as client:
            client.sendall(b"POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nhalf")
            assert client.recv(1000).startswith(b"HTTP/1.1 408")
        assert server.get("/health").status == 200


# --- keys --------------------------------------------------------------------------------------------------------------------


def test_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "keys.db"

    def keys(*arguments: str) -> str:
        main(["keys", *arguments, "--file", str(file)], standalone_mode=False)
        return capsys.readouterr().out.strip()

    with pytest.raises(UserError, match="no such file; make a key with"):
        keys("list")
    key, limited = keys("add", "ann"), keys("add", "bob", "--per-minute", "2")
    with pytest.raises(UserError, match="a key with the name 'ann' already"):
        keys("add", "ann")
    assert [line.split()[0] for line in keys("list").splitlines()] == ["ann", "bob"]
    assert key.encode() not in file.read_bytes()
    assert file.stat().st_mode & 0o077 == 0
    policy = Policy(keys=KeyFile(file), requires_key=True)
    with caplog.at_level("INFO", "regard.serve"), serving(policy=policy) as server:
        settings = server.get("/frontend/settings").json
        assert (settings["apiKeys"], settings["keyRequired"]) == (True, True)
        for given, status, error in (
            ({}, 400, "Please contact the server operator to get an API key"),
            ({"api_key": ""}, 400, "Please contact the server operator to get an API key"),
            ({"api_key": None}, 400, "Please contact the server operator to get an API key"),
            ({"api_key": 5}, 400, "Invalid request: api_key parameter is 5, expected a text"),
            ({"api_key": key[:-1]}, 403, "Invalid API key"),
            ({"api_key": key}, 400, MISSING.format("q")),
        ):
            answer = server.post("/translate", given)
            assert (answer.status, answer.json) == (status, {"error": error})
        assert server.form("/translate", {**GIVEN, "api_key": key}).json == {"translatedText": "katze"}
        statuses = [server.form("/detect", {"q": "cat", "api_key": limited}).status for _ in range(3)]
        assert statuses == [200, 200, 429]
        keys("remove", "ann")
        assert server.form("/translate", {**GIVEN, "api_key": key}).status == 403
        new = keys("add", "eve")
        assert server.ask("POST", f"/translate?q=cat&source=en&target=de&api_key={new}").status == 200
    assert "POST /translate 200" in caplog.text
    assert not any(secret in caplog.text for secret in (key, new, "cat", "katze"))
    with pytest.raises(UserError, match="no key with the name 'ann'"):
        keys("remove", "ann")
    file.write_bytes(b"no database" * 100)
    with pytest.raises(UserError, match="cannot be used as a file of keys"):
        keys("list")


# --- models that change ------------------------------------------------------------------------------------------------------


def test_a_broken_model_never_replaces_a_running_one(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(MODEL, folder)
    with serving(models=[folder]) as server:
        old, weights = server.service.directory, (folder / "model.safetensors").read_bytes()

        def load_again() -> None:
            asyncio.run_coroutine_threadsafe(reload(server.fleet, server.service), server.service.runner.loop).result(20)

        (folder / "model.safetensors").write_bytes(weights[:-8])
        load_again()
        assert server.service.directory is old
        assert server.translate("cat") == {"translatedText": "katze"}
        (folder / "model.safetensors").write_bytes(weights)
        with asking(server):
            load_again()
            assert server.service.directory is not old
            assert server.translate("cat") == {"translatedText": "katze"}


def test_two_models_and_a_pivot() -> None:
    with serving(models=[MODEL, MODEL], languages=["en,de", "de,fr"], pivot="de") as server:
        assert server.get("/languages").json[0] == {"code": "en", "name": "English", "targets": ["en", "de", "fr"]}
        assert server.translate("the dog", target="fr")["translatedText"]
        given = {"q": "<p>the <b>dog</b></p>", "source": "en", "target": "fr", "format": "html"}
        assert re.fullmatch(r"<p>.*<b>.*</b>.*</p>", server.post("/translate", given).json["translatedText"])
        detected = server.post(
            "/translate", {**GIVEN, "q": ["The dog and the cat", "Der Hund und die Katze"], "source": "auto", "target": "fr"}
        )
        assert [found["language"] for found in detected.json["detectedLanguage"]] == ["en", "de"]
        options = server.service.options(server.service.directory.route("en", "fr"), alternatives=3)
        assert [one.search.num_hypotheses for one in options] == [1, 4]  # only the last model writes alternatives
        both = server.post("/detect", {"q": "hand in arm"}).json
        assert sum(found["confidence"] for found in both) == pytest.approx(100, abs=1)
        assert len(both) > 1
    with serving(languages=[]) as server:
        assert server.post("/translate", {"q": "cat", "source": "src", "target": "tgt"}).json == {"translatedText": "katze"}


@pytest.mark.slow
def test_the_command_reloads_drains_and_needs_no_writable_folder(tmp_path: Path) -> None:
    """In a process of its own, as another user would run it: SIGHUP loads the model again, SIGTERM lets requests end."""
    folder = tmp_path / "model"
    shutil.copytree(MODEL, folder)
    command = [sys.executable, "-m", "regard", "serve", str(folder), "--languages", "en,de", "--port", "0", "--threads", "1"]
    command += ["--max-ratio", "9"]
    environment = {**os.environ, "TMPDIR": "/nonexistent", "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd="/proc"
    ) as process:
        assert process.stdout is not None
        found = re.search(r"http://localhost:(\d+)/", process.stdout.readline())
        assert found
        server = Running(int(found[1]), None, None)
        wait_until(lambda: reachable(server))
        process.send_signal(signal.SIGHUP)
        with ThreadPoolExecutor(1) as pool:
            late = pool.submit(server.translate, LONG)
            time.sleep(0.3)
            process.send_signal(signal.SIGTERM)
            assert len(late.result(30)["translatedText"]) > 10_000
        _, log = process.communicate(timeout=30)
    assert "the models were loaded again" in log
    assert "Traceback" not in log
    assert process.returncode in (0, -signal.SIGTERM)


def reachable(server: Running) -> bool:
    try:
        return server.get("/health").status == 200
    except OSError:
        return False
