"""Counters of the server, in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """The counters of one server."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter("regard_requests", "Requests answered.", ("route", "status"), registry=self.registry)
        self._seconds = Histogram("regard_request_seconds", "Time to answer a request.", ("route",), registry=self.registry)
        self.characters = Counter("regard_characters", "Characters received to translate.", registry=self.registry)
        self.sentences = Counter("regard_sentences", "Sentences translated.", registry=self.registry)

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Counts an answer. route: the path of the route, without the names of files; "other" if there is none."""
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Adds a number that is read when the metrics are."""
        Gauge(name, text, registry=self.registry).set_function(value)

    def text(self) -> bytes:
        """Returns all metrics."""
        return generate_latest(self.registry)
