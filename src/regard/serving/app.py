"""The web app: LibreTranslate's routes. Each reads the parameters, asks the service, and returns JSON."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse, StreamingResponse

from regard.errors import UserError
from regard.serving.alignment import can_align
from regard.serving.documents import POLICY, documentation, page_file
from regard.serving.files import disposition
from regard.serving.guard import Access, Guard, refused
from regard.serving.keys import KeyFile
from regard.serving.limits import Limits
from regard.serving.metrics import CONTENT_TYPE, Metrics
from regard.serving.parameters import Parameters, parse, text, text_to_detect
from regard.serving.rates import Rates, network_of
from regard.serving.refusal import Refusal
from regard.serving.service import Service
from regard.serving.spec import spec

LOGGER = logging.getLogger("regard.serve")


@dataclass(frozen=True)
class Policy:
    """Who may use the server, and how much.

    per_minute: requests of a client; 0 is no limit.  keys: the keys that are valid, if there are any.
    requires_key: whether a client needs one.  logs_texts: whether what is translated is logged.
    """

    access: Access = field(default_factory=Access)
    limits: Limits = field(default_factory=Limits)
    per_minute: int = 0
    keys: KeyFile | None = None
    requires_key: bool = False
    logs_texts: bool = False


Serving = Callable[[Metrics], AbstractAsyncContextManager[Service]]
"""Opens the service in the loop that runs the app, and closes it."""


def app(serving: Serving, policy: Policy) -> FastAPI:
    """Returns the web app."""
    metrics = Metrics()

    @asynccontextmanager
    async def lifespan(web: FastAPI) -> AsyncIterator[None]:
        async with serving(metrics) as web.state.service:
            yield

    web = FastAPI(title="Regard", docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    web.add_middleware(Guard, access=policy.access, limits=policy.limits, metrics=metrics)
    web.state.rates = Rates(policy.per_minute)
    _add_errors(web)
    _add_routes(web, metrics, policy)
    return web


def _add_errors(web: FastAPI) -> None:
    """Every error is JSON: {"error": "…"}."""

    @web.exception_handler(Refusal)
    async def refuse(request: Request, refusal: Refusal) -> Response:
        return refused(refusal)

    @web.exception_handler(UserError)
    async def mistake(request: Request, error: UserError) -> Response:
        return refused(Refusal(409, f"Invalid request: {error}"))

    @web.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)

    @web.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> Response:
        return refused(Refusal(500, "the server failed; its log says why"))


def _add_routes(web: FastAPI, metrics: Metrics, policy: Policy) -> None:
    def service() -> Service:
        found: Service = web.state.service
        return found

    async def parameters(request: Request) -> Parameters:
        given = await parse(request)
        _admit(policy, web.state.rates, network_of(request.state.client), text(given, "api_key"))
        if policy.logs_texts:
            LOGGER.info("%s %r", request.state.client, given.get("q"))
        return given

    @web.post("/translate")
    async def translate(request: Request) -> Response:
        given = await parameters(request)
        if "text/event-stream" not in request.headers.get("accept", ""):
            return JSONResponse(await service().translate(given))
        events = service().stream(given)
        first = await anext(events)  # a mistake in the request has a status of its own
        return StreamingResponse(_event_stream(first, events), media_type="text/event-stream")

    @web.post("/detect")
    async def detect(request: Request) -> Response:
        return JSONResponse(service().detect(text_to_detect(await parameters(request), policy.limits)))

    @web.api_route("/languages", methods=["GET", "POST"])
    async def languages(request: Request) -> Response:
        return JSONResponse(service().directory.listed())

    @web.post("/translate_file")
    async def translate_file(request: Request) -> Response:
        return JSONResponse(await service().translate_file(await parameters(request), str(request.base_url)))

    @web.get("/download_file/{name}")
    async def download_file(request: Request) -> Response:
        file = service().downloads.find(request.path_params["name"])
        headers = {"Content-Disposition": disposition(file.name), "Content-Security-Policy": "sandbox"}
        return Response(file.content, media_type="application/octet-stream", headers=headers)

    @web.post("/suggest")
    async def suggest(request: Request) -> Response:
        raise Refusal(403, "Suggestions are disabled on this server.")

    @web.post("/inspect")
    async def inspected(request: Request) -> Response:
        page = await service().inspect(await parameters(request))
        headers = {"Content-Disposition": 'attachment; filename="attention.html"', "Content-Security-Policy": "sandbox"}
        return Response(page, media_type="text/html; charset=utf-8", headers=headers)

    @web.get("/")
    async def index() -> Response:
        return _page_file("index.html")

    @web.get("/page/{name}")
    async def page_part(request: Request) -> Response:
        return _page_file(request.path_params["name"])

    @web.get("/docs")
    async def docs() -> Response:
        return HTMLResponse(documentation(_spec(service(), policy)["paths"]), headers=POLICY)

    @web.get("/spec")
    async def description() -> Response:
        return JSONResponse(_spec(service(), policy))

    @web.get("/health")
    async def health() -> Response:
        return JSONResponse({"status": "ok"})

    @web.get("/metrics")
    async def read_metrics() -> Response:
        return Response(metrics.text(), media_type=CONTENT_TYPE)

    @web.get("/frontend/settings")
    async def settings() -> Response:
        return JSONResponse(_settings(service(), policy))


async def _event_stream(first: dict[str, Any], events: AsyncIterator[dict[str, Any]]) -> AsyncIterator[str]:
    """Yields server-sent events; the last one is named done, or error."""
    event: dict[str, Any] = first
    try:
        while True:
            name = "" if "text" in event else "event: done\n"
            yield f"{name}data: {json.dumps(event, ensure_ascii=False)}\n\n"
            event = await anext(events)
    except StopAsyncIteration:
        return
    except (Refusal, UserError) as error:
        yield f"event: error\ndata: {json.dumps({'error': str(error)}, ensure_ascii=False)}\n\n"


def _page_file(name: str) -> Response:
    text, kind = page_file(name)
    return Response(text, media_type=f"{kind}; charset=utf-8", headers=POLICY)


def _admit(policy: Policy, rates: Rates, address: str, api_key: str) -> None:
    """Counts a request of a client, who may have a key. Raises Refusal if the client may not send it."""
    key = policy.keys.find(api_key) if policy.keys and api_key else None
    rates.check(f"key {key.name}" if key else address, key.per_minute if key else None)
    if policy.keys and api_key and key is None:
        raise Refusal(403, "Invalid API key")
    if policy.requires_key and key is None:
        raise Refusal(400, "Please contact the server operator to get an API key")


def _spec(service: Service, policy: Policy) -> dict[str, Any]:
    attention = dict.fromkeys(
        f"{kind}.{layer}.{head}"
        for model in service.directory.pairs.values()
        for kind, (layers, heads) in model.translator.reader.traits.attention.items()
        for layer, head in product(range(layers), range(heads))
    )
    return spec(policy.limits, service.directory.sources, service.directory.codes, list(attention))


def _settings(service: Service, policy: Policy) -> dict[str, Any]:
    """Returns what LibreTranslate reports to its own page."""
    source, target = next(iter(service.directory.pairs))
    names = service.directory.names
    return {
        "charLimit": policy.limits.text,
        "frontendTimeout": 500,
        "apiKeys": policy.keys is not None,
        "keyRequired": policy.requires_key,
        "suggestions": False,
        "filesTranslation": True,
        "supportedFilesFormat": [".txt", ".html", ".srt"],
        "models": [
            {
                "source": model.source.code,
                "target": model.target.code,
                "aligns": can_align(model),
                "attention": dict(model.translator.reader.traits.attention),
            }
            for model in service.directory.pairs.values()
        ],
        "language": {
            "source": {"code": source, "name": names[source]},
            "target": {"code": target, "name": names[target]},
        },
    }
