"""Load on `regard serve`: throughput and latency with 64 clients, and clients that misbehave.

    python benchmarks/serving.py MODEL TEXTS [part …]      MODEL: a folder; TEXTS: a file with one sentence per line

Parts: throughput (64 clients, one sentence each, beam 1 and 5, next to `regard translate` on the same file and number of
threads), hostile (slow clients, half requests, large bodies, broken texts, 2,000 idle connections, while others are served),
kill (kill -9 under load, and start again). Everything runs on the loopback, with one thread. The result is written to a dated
file in the folder of this script.
"""

from __future__ import annotations

import json
import re
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path

from dated import write_result

CLIENTS, SENTENCES = 64, 512
REGARD = [sys.executable, "-m", "regard"]
PORT = re.compile(r"http://localhost:(\d+)/")


@contextmanager
def server(model: Path, *options: str) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    command = [*REGARD, "serve", str(model), "--languages", "en,de", "--threads", "1", "--port", "0", *options]
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
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            return time.perf_counter() - start, done.stdout

        (starting, _), (seconds, output) = run(one), run(file)
    return len(texts) / (seconds - starting), output.splitlines()


def throughput(model: Path, texts: list[str]) -> Iterator[str]:
    with server(model) as (port, _):
        ask_all(port, texts[:CLIENTS], 1)  # warms up
        for beam in (1, 5):
            rate, seconds, outputs = ask_all(port, texts, beam)
            p95, most = seconds[int(0.95 * len(seconds))], 1.5 * CLIENTS / rate
            alone, lines = translate_file(model, texts, beam)
            same = sum(one == other for one, other in zip(outputs, lines, strict=True))
            yield (
                f"beam {beam}: {rate:.1f} requests/s with {CLIENTS} clients; median {statistics.median(seconds):.2f} s, p95 "
                f"{p95:.2f} s (at most {most:.2f}); regard translate, same file, one thread: {alone:.1f} sentences/s; ratio "
                f"{rate / alone:.2f}; equal outputs {same} of {len(texts)}"
            )


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


PARTS = {"throughput": throughput, "hostile": hostile, "kill": kill}


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
