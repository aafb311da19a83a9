"""Runs the web app on a port, until a signal ends it."""

from __future__ import annotations

import asyncio
import resource
import socket
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from regard.errors import UserError

REQUEST_SECONDS = 15.0
"""How long a client may take to send the head of a request."""
IDLE_SECONDS = 75
"""How long a connection stays open between two requests: longer than proxies keep theirs."""
BACKLOG = 2048


class Protocol(H11Protocol):
    """HTTP/1.1 that closes a connection whose request does not arrive in time."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # asyncio does this only for sockets that name their protocol. Without it, the body of an answer waits until the client
        # has acknowledged its head, which takes 40 ms.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._late = self.loop.call_later(REQUEST_SECONDS, self._close_if_late)

    def _close_if_late(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._late.cancel()
        super().connection_lost(exc)


def listen(host: str, port: int) -> socket.socket:
    """Returns a socket that is bound, but does not listen yet. Raises UserError if that is not possible."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        bound = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise UserError(
            f"cannot listen on {host}, port {port}: {error.strerror or error}; choose another one with --host and --port"
        ) from None
    return bound


def address_of(bound: socket.socket) -> str:
    """Returns the address to type into a browser."""
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else 'localhost' if host == '127.0.0.1' else host}:{port}/"


def allow_many_connections() -> None:
    """Raises the soft limit of open files to the hard one: every connection is an open file."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def make_server(web: FastAPI, drain: float = 30.0, **options: Any) -> uvicorn.Server:
    """Returns the server of a web app. drain: how long requests may still run after SIGTERM, in seconds."""
    config = uvicorn.Config(
        web,
        http=Protocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=IDLE_SECONDS,
        timeout_graceful_shutdown=round(drain),
        **options,
    )
    return uvicorn.Server(config)
