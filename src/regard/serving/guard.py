"""What every request passes before a route sees it: the check of its host and origin, the limit of its body, the log.

It reads the body, stops the route if the client goes away, and adds headers to the answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from time import monotonic
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from regard.serving.limits import MEGABYTE, Limits
from regard.serving.metrics import Metrics
from regard.serving.refusal import Refusal

LOGGER = logging.getLogger("regard.serve")

ENDLESS = 64 * MEGABYTE
"""The rest of a body that is too large is read, so that the client sees the answer; but not if it is larger than this."""

HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'",
    "Cache-Control": "no-store",
}
"""Headers of every answer that does not set them itself."""


@dataclass(frozen=True)
class Access:
    """Who may use the server.

    names: host names that it answers for, apart from localhost and every IP address. "*" is every name.
    origins: other websites that may use it from a browser, such as https://example.org. "*" is every website.
    trusts_forwarded: whether the client's address is the last one in X-Forwarded-For, which a proxy wrote.
    """

    names: Sequence[str] = ()
    origins: Sequence[str] = ()
    trusts_forwarded: bool = False

    def check_host(self, host: str) -> None:
        """Raises Refusal if a Host header names a host that the server does not answer for.

        A website can let its own name lead to this machine (DNS rebinding), but it cannot be an IP address or localhost.
        """
        name = urlsplit(f"//{host}").hostname or "" if _is_host(host) else ""
        if not ("*" in self.names or name == "localhost" or name in self.names or _is_address(name)):
            raise Refusal(
                421, f"this server does not answer for the host {host[:100]!r}; start it with --name {name or 'NAME'}"
            )

    def allows_origin(self, origin: str, host: str) -> bool:
        """Whether a page of this origin may use the server: its own page, or one of a website that is allowed."""
        return urlsplit(origin).netloc == host or "*" in self.origins or origin in self.origins

    def client_of(self, scope: Scope, headers: Headers) -> str:
        """Returns the address of the client."""
        forwarded = headers.getlist("x-forwarded-for") if self.trusts_forwarded else []
        if forwarded:
            return forwarded[-1].rpartition(",")[2].strip()
        return str(scope["client"][0]) if scope.get("client") else "unknown"


def _is_host(host: str) -> bool:
    return not any(char in host for char in "/?#@\\") and host.isascii()


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


class Guard:
    """The outermost layer of the web app."""

    def __init__(self, app: ASGIApp, access: Access, limits: Limits, metrics: Metrics) -> None:
        self.app, self.access, self.limits, self.metrics = app, access, limits, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers, start = Headers(scope=scope), monotonic()
        scope["state"]["client"] = self.access.client_of(scope, headers)
        answer = Answer(send, self._headers(headers))
        try:
            await self._answer(scope, headers, receive, answer)
        finally:
            seconds = monotonic() - start
            route = getattr(scope.get("route"), "path", "other")
            self.metrics.answered(route, answer.status, seconds)
            LOGGER.info("%s %s %s %d %.0f ms", scope["state"]["client"], scope["method"], route, answer.status, 1000 * seconds)

    async def _answer(self, scope: Scope, headers: Headers, receive: Receive, answer: Answer) -> None:
        try:
            self._check(scope, headers)
            body = await self._body(headers, receive)
        except Refusal as refusal:
            await refused(refusal)(scope, receive, answer.send)
            return
        except ClientGone:
            return
        if scope["method"] == "OPTIONS" and "access-control-request-method" in headers:
            await Response(status_code=204)(scope, receive, answer.send)
            return
        await _while_connected(self.app, scope, body, receive, answer)

    def _check(self, scope: Scope, headers: Headers) -> None:
        host, origin = headers.get("host", ""), headers.get("origin")
        self.access.check_host(host)
        if origin is not None and not self.access.allows_origin(origin, host):
            raise Refusal(403, f"pages of {origin[:100]!r} may not use this server; start it with --cors {origin[:100]}")

    def _headers(self, headers: Headers) -> dict[str, str]:
        """Returns the headers that are added to an answer."""
        origin = headers.get("origin", "")
        if not self.access.origins or not origin or not self.access.allows_origin(origin, headers.get("host", "")):
            return {**HEADERS, "Cross-Origin-Resource-Policy": "same-origin"}
        return {
            **HEADERS,
            "Access-Control-Allow-Origin": "*" if "*" in self.access.origins else origin,
            "Access-Control-Allow-Headers": "Authorization, Content-Type",
            "Access-Control-Allow-Methods": "GET, POST",
            "Access-Control-Max-Age": "1728000",
            "Vary": "Origin",
        }

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        """Returns the body of a request. Raises Refusal if it is too large or too slow."""
        too_large = Refusal(413, f"the body of the request is larger than {self.limits.body:,} bytes; send less at a time")
        if (declared := headers.get("content-length", "0")).isdecimal() and int(declared) > ENDLESS:
            raise too_large
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(self.limits.receiving):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise ClientGone
                    size += len(message.get("body", b""))
                    if size <= self.limits.body:
                        parts.append(message.get("body", b""))
                    elif size > ENDLESS:
                        raise too_large
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            raise Refusal(408, f"the request did not arrive within {self.limits.receiving:g} s") from None
        if size > self.limits.body:
            raise too_large
        return b"".join(parts)


class ClientGone(Exception):
    """The client closed the connection before it had sent its request."""


class Answer:
    """Adds headers to an answer on its way, and remembers its status: 499 until there is one, as the client may go away."""

    def __init__(self, send: Send, headers: dict[str, str]) -> None:
        self._send, self._headers = send, headers
        self.status = 499

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            present = {name.lower() for name, _ in message["headers"]}
            added = [
                (name.encode(), value.encode()) for name, value in self._headers.items() if name.lower().encode() not in present
            ]
            closing = [(b"Connection", b"close")] if self.status in (408, 413) else []
            message = {**message, "headers": [*message["headers"], *added, *closing]}
        await self._send(message)


def refused(refusal: Refusal) -> JSONResponse:
    """Returns the answer for a request that is refused."""
    headers = {"Retry-After": str(refusal.retry_after)} if refusal.retry_after else None
    return JSONResponse({"error": refusal.text}, refusal.status, headers)


async def _while_connected(app: ASGIApp, scope: Scope, body: bytes, receive: Receive, answer: Answer) -> None:
    """Runs the app until it is done or the client goes away."""
    messages: list[dict[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        if messages:
            return messages.pop()
        await asyncio.Event().wait()  # the app is stopped if the client goes away
        raise AssertionError

    work, gone = asyncio.ensure_future(app(scope, again, answer.send)), asyncio.ensure_future(receive())
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            work.cancel()
        await asyncio.wait({work})
    finally:
        gone.cancel()
        work.cancel()
    if not work.cancelled():
        work.result()
