"""The server's own page, its documentation, and the description of its routes: files that are served as they are."""

from __future__ import annotations

import html
from collections.abc import Mapping
from importlib.resources import files

from regard.inspection.report import part
from regard.serving.refusal import Refusal

POLICY = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "Cache-Control": "no-cache",
}
"""Headers of the page: it runs its own scripts only."""

_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
_SHARED, _OWN = ("base.css", "base.js"), ("index.html", "page.css", "page.js")


def page_file(name: str) -> tuple[str, str]:
    """Returns the content of a file of the page, and its type. Raises Refusal if there is no such file."""
    if name not in (*_SHARED, *_OWN):
        raise Refusal(404, "Not Found")
    own = name in _OWN
    text = files("regard.serving").joinpath("page", name).read_text(encoding="utf-8") if own else part(name)
    return text, _TYPES[name.rpartition(".")[2]]


def documentation(routes: Mapping[str, Mapping[str, object]]) -> str:
    """Returns the page that lists all routes. routes: path -> method -> its description, as in OpenAPI."""
    rows = [
        f"<tr><th>{html.escape(f'{method.upper()} {path}')}</th><td>{html.escape(str(about['description']))}</td></tr>"
        for path, methods in routes.items()
        for method, about in methods.items()
        if isinstance(about, Mapping)
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Routes · Regard</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="stylesheet" href="page/base.css"></head><body><h1>Routes</h1>'
        "<p>Parameters come as a JSON object, a form or a query string; errors are <code>{&quot;error&quot;: …}</code>. "
        f'The same for machines: <a href="spec">/spec</a>.</p><table>{"".join(rows)}</table></body></html>'
    )
