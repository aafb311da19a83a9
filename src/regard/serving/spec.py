"""The description of the routes in OpenAPI."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from regard import __version__
from regard.serving.limits import Limits

_TEXT = {"type": "string"}
_FLAG = {"type": "boolean"}
_ERRORS = {
    "400": "A parameter is missing or wrong.",
    "403": "The key is not valid, or the website may not use the server.",
    "413": "The request, or the memory that it would need, is too large.",
    "421": "The server does not answer for this host.",
    "429": "The client sends too many requests.",
    "500": "The server failed.",
    "503": "The server is busy, or the request took too long.",
}


def spec(limits: Limits, sources: Sequence[str], targets: Sequence[str], attention: Sequence[str]) -> dict[str, Any]:
    """Returns the description. sources, targets: the codes that are served.  attention: what the models can show, such as
    cross.1.0."""
    text = {**_TEXT, "minLength": 1, "maxLength": limits.text}
    source = {**_TEXT, "enum": [*sources, "auto"], "description": "The code of a language, or auto."}
    target = {**_TEXT, "enum": [*targets], "description": "The code of a language."}
    key = {"type": ["string", "null"]}
    question = {
        "q": {
            "oneOf": [text, {"type": "array", "items": _TEXT, "minItems": 1, "maxItems": limits.batch}],
            "description": f"One text, or several; at most {limits.text:,} characters together.",
        },
        "source": source,
        "target": target,
        "format": {**_TEXT, "enum": ["text", "html"]},
        "alternatives": {"type": "integer", "minimum": 0, "maximum": limits.alternatives},
        "api_key": key,
        "beam": {"type": "integer", "minimum": 1, "maximum": limits.beam},
        "prefix": {**_TEXT, "description": "What the output of a sentence starts with."},
        "alignment": _FLAG,
        "tokens": _FLAG,
        "attention": {**_TEXT, "enum": [*attention], "description": "A kind, layer and head."},
        "alternatives_at": {"type": "integer", "minimum": 0, "description": "A word of the output of a sentence, from 0."},
        "repetition": _FLAG,
        "coverage": _FLAG,
        "heads_off": {
            "type": "array",
            "items": {"type": "array", "prefixItems": [_TEXT, {"type": "integer"}, {"type": "integer"}]},
        },
    }
    ask = ["q", "source", "target"]
    file = {"file": {"type": "string", "format": "binary"}, "source": source, "target": target, "api_key": _TEXT}
    paths = {
        "/translate": {"post": _route("Translates one text or several.", question, ask)},
        "/languages": {
            "get": _route("Lists the languages, and into which others each of them is translated."),
            "post": _route("The same, for clients that ask so."),
        },
        "/detect": {"post": _route("Detects the language of a text.", {"q": text, "api_key": key}, ["q"])},
        "/translate_file": {
            "post": _route(
                "Translates a file: text, HTML or subtitles.", file, ["file", "source", "target"], kind="multipart/form-data"
            )
        },
        "/download_file/{name}": {"get": _route("Returns a translated file.", path_parameter="name")},
        "/inspect": {"post": _route("Returns the live page of the attention of a sentence.", question, ask)},
        "/suggest": {"post": _route("Refuses suggestions.")},
        "/health": {"get": _route("Says that the server answers.")},
        "/frontend/settings": {"get": _route("Says what a page needs to know.")},
        "/metrics": {"get": _route("Returns counters for Prometheus.")},
    }
    return {"openapi": "3.1.0", "info": {"title": "Regard", "version": __version__}, "paths": paths}


def _route(
    about: str,
    properties: dict[str, Any] | None = None,
    required: list[str] | None = None,
    *,
    kind: str = "application/json",
    path_parameter: str = "",
) -> dict[str, Any]:
    error = {"schema": {"type": "object", "properties": {"error": _TEXT}, "required": ["error"]}}
    responses: dict[str, Any] = {"200": {"description": "The answer."}}
    responses |= {
        status: {"description": text, "content": {"application/json": error}}
        for status, text in {**_ERRORS, **({"404": "There is no such file."} if path_parameter else {})}.items()
    }
    route: dict[str, Any] = {"summary": about, "description": about, "responses": responses}
    if properties:
        schema = {"type": "object", "properties": properties, "required": required}
        route["requestBody"] = {"required": True, "content": {kind: {"schema": schema}}}
    if path_parameter:
        route["parameters"] = [{"name": path_parameter, "in": "path", "required": True, "schema": _TEXT}]
    return route
