"""Runs the translation server on a loopback port of this process, and asks it as clients do."""

import json
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from regard import load
from regard.serving.app import Policy
from regard.serving.fleet import Fleet, parse_languages
from regard.serving.run import make_app
from regard.serving.server import listen, make_server

MODEL = Path(__file__).parent / "served" / "model"
"""A model that translates the words of served/make.py from English to German."""


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Running:
    """A server that runs."""

    port: int
    web: Any
    fleet: Fleet | None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def service(self) -> Any:
        return self.web.state.service

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None, timeout: float = 30
    ) -> Answer:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            return Answer(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, headers=headers)

    def post(self, path: str, given: Any, **headers: str) -> Answer:
        """Sends JSON."""
        return self.ask("POST", path, json.dumps(given).encode(), {"Content-Type": "application/json", **headers})

    def form(self, path: str, given: Mapping[str, str]) -> Answer:
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        return self.ask("POST", path, urlencode(given).encode(), kind)

    def translate(self, q: Any, **given: Any) -> Any:
        """Returns the answer to a translation from English to German."""
        answer = self.post("/translate", {"q": q, "source": "en", "target": "de", **given})
        assert answer.status == 200, answer.body
        return answer.json


@contextmanager
def serving(
    *,
    models: Sequence[Path] = (MODEL,),
    languages: Sequence[str] = ("en,de",),
    policy: Policy | None = None,
    pivot: str = "",
    **search: Any,
) -> Iterator[Running]:
    """Runs a server in a thread, until the block ends."""
    fleet = Fleet(models, parse_languages(languages, len(models)), load, pivot)
    web = make_app(fleet, policy or Policy(), {"beam": 1, "max_length": 64, **search})
    bound = listen("127.0.0.1", 0)
    server = make_server(web, drain=2)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
    thread.start()
    while not hasattr(web.state, "service"):
        assert thread.is_alive()
        time.sleep(0.005)
    try:
        yield Running(bound.getsockname()[1], web, fleet)
    finally:
        server.should_exit = True
        thread.join()
