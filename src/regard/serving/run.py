"""`regard serve`: loads models, opens a port, and serves until a signal ends it."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import FastAPI

from regard.serving.app import Policy, app
from regard.serving.fleet import Fleet
from regard.serving.languages import Directory
from regard.serving.metrics import Metrics
from regard.serving.runner import Runner
from regard.serving.server import allow_many_connections, make_server
from regard.serving.service import Service
from regard.serving.translation import Served

LOGGER = logging.getLogger("regard.serve")


def make_app(fleet: Fleet, policy: Policy, search: Mapping[str, Any]) -> FastAPI:
    """Loads the models and returns their web app. SIGHUP loads them again.

    search: options of all requests, such as the beam. Raises UserError if a model cannot be loaded.
    """
    directory: Directory[Served] = fleet.open()

    @asynccontextmanager
    async def serving(metrics: Metrics) -> AsyncIterator[Service]:
        loop = asyncio.get_running_loop()
        runner = Runner(policy.limits, loop)
        service = Service(directory, runner, policy.limits, search, metrics)
        metrics.watch("regard_waiting_sentences", "Sentences that wait for a search.", lambda: runner.num_waiting)
        metrics.watch("regard_running_sentences", "Sentences that are searched.", lambda: runner.num_running)
        metrics.watch("regard_predicted_bytes", "Predicted memory of all searches.", lambda: runner.nbytes)
        reloads: set[asyncio.Task[None]] = set()

        def on_hangup() -> None:
            task = loop.create_task(reload(fleet, service))
            reloads.add(task)
            task.add_done_callback(reloads.discard)

        with suppress(ValueError, RuntimeError, AttributeError, NotImplementedError):  # not the main thread, or Windows
            loop.add_signal_handler(signal.SIGHUP, on_hangup)
        try:
            yield service
        finally:
            await asyncio.to_thread(runner.close)

    return app(serving, policy)


async def reload(fleet: Fleet, service: Service) -> None:
    """Loads the models again. Requests that run end with the models that they began with. Models of which one cannot be loaded
    do not replace those that are served."""
    try:
        service.directory = await asyncio.to_thread(fleet.open)
    except Exception as error:
        LOGGER.error("the models were not loaded again, those before are still served: %s", error)
    else:
        LOGGER.warning("the models were loaded again")


def start_log() -> None:
    """Writes the log to standard error: times, addresses, routes, statuses."""
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.WARNING)
    LOGGER.setLevel(logging.INFO)


def run(web: FastAPI, bound: socket.socket) -> None:
    """Serves until SIGTERM or SIGINT."""
    allow_many_connections()
    make_server(web).run(sockets=[bound])
