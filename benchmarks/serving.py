"""Load on `regard serve`: throughput and latency with 64 clients, and clients that misbehave.

    python benchmarks/serving.py MODEL TEXTS [part …]      MODEL: a folder; TEXTS: a file with one sentence per line

Parts: throughput (64 clients, one sentence each, beam 1 and 5, next to `regard translate` on the same file and number of
threads), hostile (slow clients, half requests, large bodies, broken texts, 2,000 idle connections, while others are served),
kill (kill -9 under load, and start again), saturation (more clients than the queue holds, for as many seconds as SECONDS says),
libretranslate (next to LibreTranslate with the same model and beam and two threads; LIBRETRANSLATE is the python of its
environment). Everything runs on the loopback, with one thread unless something else is said. The result is written to a dated
file in the folder of this script.
"""

from __future__ import annotations

import json
import os
import random
import re
import resource
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse
from itertools import product
from pathlib import Path

from dated import write_result

CLIENTS, SENTENCES, ROUNDS = 64, 512, 3
SEARCH = shlex.split(os.environ.get("SEARCH", ""))
"""Options of both commands, such as --max-ratio 0.4: a model that is hardly trained repeats itself up to the limit."""
REGARD = [sys.executable, "-m", "regard"]
PORT = re.compile(r"http://localhost:(\d+)/")


@contextmanager
def server(model: Path, *options: str) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    command = [*REGARD, "serve", str(model), "--languages", "en,de", "--threads", "1", "--port", "0"]
    command += [*SEARCH, *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        found = PORT.search(process.stdout.readline())
        assert found, "the server did not start"
        try:
            yield int(found[1]), process
        finally:
            process.terminate()


def post(connection: HTTPConnection, given: object) -> tuple[int, bytes]:
    connection.request("POST", "/translate", json.dumps(given), {"Content-Type": "application/json"})
    response = connection.getresponse()
    return response.status, response.read()


def question(text: str, **given: object) -> dict[str, object]:
    return {"q": text, "source": "en", "target": "de", **given}


def ask_all(port: int, texts: list[str], beam: int) -> tuple[float, list[float], list[str]]:
    """Returns requests per second, the seconds of each request, and the translations."""
    share = len(texts) // CLIENTS

    def client(number: int) -> list[tuple[float, str]]:
        connection, found = HTTPConnection("127.0.0.1", port, timeout=120), []
        for text in texts[number * share : (number + 1) * share]:
            start = time.perf_counter()
            status, body = post(connection, question(text, beam=beam))
            assert status == 200, body
            found.append((time.perf_counter() - start, json.loads(body)["translatedText"]))
        connection.close()
        return found

    start = time.perf_counter()
    with ThreadPoolExecutor(CLIENTS) as pool:
        results = [each for found in pool.map(client, range(CLIENTS)) for each in found]
    seconds = time.perf_counter() - start
    return len(results) / seconds, sorted(each for each, _ in results), [text for _, text in results]


def translate_file(model: Path, texts: list[str], beam: int) -> tuple[float, list[str]]:
    """Returns the sentences per second of `regard translate`, without the time to start, and the translations."""
    with tempfile.TemporaryDirectory() as folder:
        file, one = Path(folder, "in.txt"), Path(folder, "one.txt")
        file.write_text("\n".join(texts) + "\n")
        one.write_text(texts[0] + "\n")

        def run(path: Path) -> tuple[float, str]:
            start = time.perf_counter()
            command = [*REGARD, "translate", str(model), str(path), "--threads", "1", "--beam", str(beam)]
            command += SEARCH
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            return time.perf_counter() - start, done.stdout

        (starting, _), (seconds, output) = run(one), run(file)
    return len(texts) / (seconds - starting), output.splitlines()


def throughput(model: Path, texts: list[str]) -> Iterator[str]:
    with server(model) as (port, _):
        ask_all(port, texts[:CLIENTS], 1)  # warms up
        for beam, _ in product((1, 5), range(ROUNDS)):
            rate, seconds, outputs = ask_all(port, texts, beam)
            p95, most = seconds[int(0.95 * len(seconds))], 1.5 * CLIENTS / rate
            alone, lines = translate_file(model, texts, beam)
            same = sum(one == other for one, other in zip(outputs, lines, strict=True))
            yield (
                f"beam {beam}: {rate:.1f} requests/s with {CLIENTS} clients; median {statistics.median(seconds):.2f} s, p95 "
                f"{p95:.2f} s (at most {most:.2f}); regard translate, same file, one thread: {alone:.1f} sentences/s; ratio "
                f"{rate / alone:.2f}; equal outputs {same} of {len(texts)}"
            )


def saturation(model: Path, texts: list[str]) -> Iterator[str]:
    """Sends more than there is room for: every request must be answered, by a translation or by 503 with Retry-After."""
    seconds, clients, queue = float(os.environ.get("SECONDS", "1200")), 160, 32
    answers: Counter[str] = Counter()
    resident: list[float] = []
    waiting: list[float] = []
    with server(model, "--queue", str(queue)) as (port, process):
        expected = {text: ask_one(port, text) for text in texts[:64]}
        end = time.perf_counter() + seconds

        def client(number: int) -> None:
            rng, connection = random.Random(number), HTTPConnection("127.0.0.1", port, timeout=120)
            while time.perf_counter() < end:
                text = rng.choice(texts[:64])
                try:
                    connection.request("POST", "/translate", json.dumps(question(text)), {"Content-Type": "application/json"})
                    response = connection.getresponse()
                    body = json.loads(response.read())
                except (OSError, HTTPException, ValueError) as error:
                    answers[f"lost: {type(error).__name__}"] += 1
                    connection.close()
                    continue
                answers[kind_of_answer(response, body, expected[text])] += 1
                if response.status == 503:
                    time.sleep(rng.uniform(0.2, 0.6))  # sooner than the server asks for, so that it stays full

        threads = [threading.Thread(target=client, args=(number,)) for number in range(clients)]
        for thread in threads:
            thread.start()
        metrics = HTTPConnection("127.0.0.1", port, timeout=60)
        while time.perf_counter() < end:
            time.sleep(min(1.0, seconds / 30))
            resident.append(resident_megabytes(process.pid))
            metrics.request("GET", "/metrics")
            found = re.search(r"^regard_waiting_sentences (.*)$", metrics.getresponse().read().decode(), re.MULTILINE)
            waiting.append(float(found[1]) if found else -1)
        for thread in threads:
            thread.join()
    third = len(resident) // 3
    middle, last = statistics.mean(resident[third : 2 * third]), statistics.mean(resident[2 * third :])
    yield (
        f"{clients} clients for {seconds:.0f} s, room for {queue} waiting sentences: {dict(answers)}; at most "
        f"{max(waiting):.0f} sentences waited; resident memory {middle:.1f} MB in the second third, {last:.1f} MB in the last "
        f"({last / middle - 1:+.1%})"
    )


def ask_one(port: int, text: str) -> str:
    status, body = post(HTTPConnection("127.0.0.1", port), question(text))
    assert status == 200, body
    return str(json.loads(body)["translatedText"])


def kind_of_answer(response: HTTPResponse, body: dict[str, str], expected: str) -> str:
    if response.status == 200:
        return "200" if body["translatedText"] == expected else "200, but another text than alone"
    has_time = (response.getheader("Retry-After") or "").isdecimal()
    return f"{response.status} with Retry-After" if has_time else f"{response.status}: {body}"


def resident_megabytes(pid: int) -> float:
    found = re.search(r"^VmRSS:\s*(\d+) kB", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) / 1024


def libretranslate(model: Path, texts: list[str]) -> Iterator[str]:
    """Takes turns with LibreTranslate. Its beam is 4."""
    with tempfile.TemporaryDirectory() as folder:
        package, port = Path(folder, "en_de.argosmodel"), free_port()
        subprocess.run([*REGARD, "convert", str(model), str(package), "--to", "argos"], check=True, capture_output=True)
        script = Path(__file__).with_name("libretranslate_server.py")
        command = [os.environ["LIBRETRANSLATE"], str(script), str(package), folder, str(port), "2"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        with subprocess.Popen(command, **quiet) as theirs, server(model, "--threads", "2") as (own, _):  # type: ignore[call-overload]
            try:
                wait_for(port)
                for each in (own, port):
                    ask_all(each, texts[:CLIENTS], 4)  # warms up
                for _ in range(ROUNDS):
                    rates = [ask_all(each, texts[: 2 * CLIENTS], 4)[0] for each in (own, port)]
                    yield (
                        f"beam 4, 2 threads, {CLIENTS} clients: {rates[0]:.1f} requests/s, LibreTranslate {rates[1]:.1f}; "
                        f"ratio {rates[0] / rates[1]:.2f}"
                    )
            finally:
                theirs.terminate()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        return int(bound.getsockname()[1])


def wait_for(port: int) -> None:
    for _ in range(240):
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.5)
    raise SystemExit("LibreTranslate did not start")


def hostile(model: Path, texts: list[str]) -> Iterator[str]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    with server(model) as (port, _):

        def raw(content: bytes) -> str:
            with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
                with suppress(ConnectionError):
                    client.sendall(content)
                with suppress(ConnectionError):
                    return client.recv(200).decode(errors="replace").partition("\r\n")[0] or "closed"
            return "closed"

        def with_body(body: bytes, length: int | None = None) -> bytes:
            head = "POST /translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
            return f"{head}{len(body) if length is None else length}\r\n\r\n".encode() + body

        def body_of(**given: object) -> bytes:
            return with_body(json.dumps(question(texts[0], **given)).encode())

        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(2000)]
        cases = {
            "half a head": b"POST /translate HT",
            "half a body": with_body(b'{"q":', 100),
            "a body of 100 MB": with_body(b"x" * 100_000_000),
            "broken JSON": with_body(b'{"q": '),
            "broken UTF-8": with_body(b'{"q": "\xff"}'),
            "10,000 alternatives": body_of(alternatives=10_000),
            "a sentence of 1 MB": body_of(q="a" * 1_000_000),
            "a sentence of 20,000 characters": body_of(q="cat " * 5_000),
            "no HTTP": b"\x16\x03\x01" * 100,
        }
        with ThreadPoolExecutor(len(cases)) as pool:
            answers = {name: pool.submit(raw, content) for name, content in cases.items()}
            connection, waits, statuses = HTTPConnection("127.0.0.1", port, timeout=60), [], Counter[int]()
            while not all(answer.done() for answer in answers.values()):
                start = time.perf_counter()
                status, _ = post(connection, question(texts[0]))
                statuses[status] += 1
                waits.append(time.perf_counter() - start)
                time.sleep(0.02)
        for name, answer in answers.items():
            yield f"{name}: {answer.result()}"
        yield f"meanwhile, next to 2,000 idle connections: {dict(statuses)}, at most {max(waits):.2f} s each"
        for each in idle:
            each.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def kill(model: Path, texts: list[str]) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder, "keys.db")
        key = subprocess.run(
            [*REGARD, "keys", "add", "ann", "--file", str(keys)], capture_output=True, text=True
        ).stdout.strip()
        options = ("--keys", str(keys), "--require-key")
        with server(model, *options) as (port, process), ThreadPoolExecutor(16) as pool:

            def ask(text: str) -> None:
                with suppress(OSError, HTTPException):
                    post(HTTPConnection("127.0.0.1", port), question(text, api_key=key))

            list(pool.map(ask, texts[:32]))
            waiting = [pool.submit(ask, text) for text in texts[:200]]
            time.sleep(0.5)
            process.kill()
            for each in waiting:
                each.result()
        start = time.perf_counter()
        with server(model, *options) as (port, _):
            status, _ = post(HTTPConnection("127.0.0.1", port), question(texts[0], api_key=key))
            yield f"kill -9 under load: served again after {time.perf_counter() - start:.1f} s, the key still counts: {status}"


PARTS = {
    "throughput": throughput,
    "hostile": hostile,
    "kill": kill,
    "saturation": saturation,
    "libretranslate": libretranslate,
}


def main(model: Path, file: Path, names: list[str]) -> None:
    texts = [line for line in file.read_text().splitlines() if line.strip()][:SENTENCES]
    for name in names or PARTS:
        lines = []
        for line in PARTS[name](model, texts):
            print(line, flush=True)
            lines.append(line)
        write_result(__file__, lines, name)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
