"""The description of the routes in OpenAPI."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from regard import __version__
from regard.look import Kind
from regard.serving.extras import MOST_EDITS, MOST_WORDS
from regard.serving.limits import Limits
from regard.serving.parameters import NO, YES

FILE, PAGE = "application/octet-stream", "text/html"
MOST_LISTED = 100
"""Numbers up to this one are also listed as texts."""

_TEXT = {"type": "string"}
_FLAG = {"enum": [True, False, None, 0, 1, *YES, *NO]}
_KIND = {"enum": [*get_args(Kind)]}
_WHOLE = {"type": "integer"}
_HEAD = {"type": "array", "prefixItems": [_KIND, _WHOLE, _WHOLE], "minItems": 3, "maxItems": 3}
_TAP = {"type": "object", "properties": {"kind": _KIND, "layer": _WHOLE, "head": {"type": ["integer", "null"]}}}
_ERRORS = {
    "400": "A parameter is missing or wrong.",
    "408": "The request did not arrive in time.",
    "403": "The key is not valid, or the website may not use the server.",
    "409": "A parameter does not fit the model or the text: a prefix of several sentences, a layer that there is not.",
    "413": "The request, or the memory that it would need, is too large.",
    "421": "The server does not answer for this host.",
    "429": "The client sends too many requests.",
    "500": "The server failed.",
    "501": "The server cannot detect languages.",
    "503": "The server is busy, or the request took too long.",
}


def _number(most: int, least: int = 0) -> dict[str, Any]:
    """Describes a whole number, which may also come as a text; null and "" are as good as none."""
    whole = {**_WHOLE, "minimum": least, "maximum": most}
    return {"anyOf": [whole, {"enum": ["", None, *map(str, range(least, min(most, MOST_LISTED) + 1))]}]}


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
        "format": {"enum": ["text", "html", "", None]},
        "alternatives": _number(limits.alternatives),
        "api_key": key,
        "beam": _number(limits.beam),
        "prefix": {**key, "description": "What the output of a sentence starts with."},
        "alignment": _FLAG,
        "tokens": _FLAG,
        "attention": {"anyOf": [{"enum": [*attention, *_FLAG["enum"]]}, _TAP], "description": "A kind, layer and head."},
        "alternatives_at": {**_number(MOST_WORDS), "description": "A word of the output of a sentence, from 0."},
        "repetition": _FLAG,
        "coverage": _FLAG,
        "heads_off": {"anyOf": [{"type": "array", "maxItems": MOST_EDITS, "items": _HEAD}, {"enum": ["", None]}]},
    }
    ask = ["q", "source", "target"]
    file = {"file": {**text, "contentMediaType": "text/plain"}, "source": source, "target": target, "api_key": _TEXT}
    encoding = {"file": {"contentType": "text/plain, text/html"}}
    paths = {
        "/translate": {"post": _route("Translates one text or several.", question, ask)},
        "/languages": {
            "get": _route("Lists the languages, and into which others each of them is translated."),
            "post": _route("The same, for clients that ask so."),
        },
        "/detect": {"post": _route("Detects the language of a text.", {"q": text, "api_key": key}, ["q"])},
        "/translate_file": {
            "post": _route("Translates a file: text, HTML or subtitles.", file, ["file", "source", "target"], encoding=encoding)
        },
        "/download_file/{name}": {"get": _route("Returns a translated file.", path_parameter="name", answer=FILE)},
        "/inspect": {"post": _route("Returns the live page of the attention of a sentence.", question, ask, answer=PAGE)},
        "/suggest": {"post": _route("Refuses suggestions.")},
        "/health": {"get": _route("Says that the server answers.")},
        "/frontend/settings": {"get": _route("Says what a page needs to know.")},
        "/metrics": {"get": _route("Returns counters for Prometheus.", answer="text/plain")},
        "/": {"get": _route("Returns a page to translate with.", answer=PAGE)},
        "/docs": {"get": _route("Returns a list of the routes.", answer=PAGE)},
        "/spec": {"get": _route("Returns this description.")},
    }
    return {"openapi": "3.1.0", "info": {"title": "Regard", "version": __version__}, "paths": paths}


def _route(
    about: str,
    properties: dict[str, Any] | None = None,
    required: list[str] | None = None,
    *,
    encoding: dict[str, Any] | None = None,
    path_parameter: str = "",
    answer: str = "application/json",
) -> dict[str, Any]:
    """Describes a route. encoding: of the parts of its body, which is a form then; otherwise it is JSON.  answer: the type of
    its answer."""
    error = {"schema": {"type": "object", "properties": {"error": _TEXT}, "required": ["error"]}}
    errors = {**_ERRORS, **({"404": "There is no such file."} if path_parameter else {})}
    responses: dict[str, Any] = {"200": {"description": "The answer.", "content": {answer: {}}}}
    responses |= {status: {"description": text, "content": {"application/json": error}} for status, text in errors.items()}
    route: dict[str, Any] = {"summary": about, "description": about, "responses": responses}
    if properties:
        schema = {"type": "object", "properties": properties, "required": required}
        json, form = {"application/json": {"schema": schema}}, {"multipart/form-data": {"schema": schema, "encoding": encoding}}
        route["requestBody"] = {"required": True, "content": form if encoding else json}
    if path_parameter:
        route["parameters"] = [{"name": path_parameter, "in": "path", "required": True, "schema": _TEXT}]
    return route
