"""HTML of results for notebooks: small tables that need no script, translucent, for light and dark pages."""

from __future__ import annotations

from html import escape

from regard.errors import UserError
from regard.results import AttentionMap, Result

MOST_POSITIONS = 64
"""The largest number of rows and of columns in a table."""


def attention_html(attention: AttentionMap) -> str:
    """Returns the mean over the heads as a table of at most 64 x 64 cells."""
    weights = attention.mean_TS[:MOST_POSITIONS, :MOST_POSITIONS].tolist()
    source, target = attention.source[:MOST_POSITIONS], attention.target[:MOST_POSITIONS]
    header = "".join(f'<th style="font-weight:normal">{escape(token)}</th>' for token in source)
    rows = "".join(
        f'<tr><th style="font-weight:normal;text-align:right">{escape(token)}</th>'
        + "".join(
            f'<td title="{escape(token)} ← {escape(key)}: {weight:.4f}" '
            f'style="background:rgba(43,111,143,{min(1.0, abs(weight)):.3f});min-width:1.6em">&nbsp;</td>'
            for key, weight in zip(source, row, strict=True)
        )
        + "</tr>"
        for token, row in zip(target, weights, strict=True)
    )
    is_whole = max(attention.weights_HTS.shape[1:]) <= MOST_POSITIONS
    note = "" if is_whole else f"<p>The first {MOST_POSITIONS} positions; regard inspect shows all.</p>"
    title = f"{attention.kind} attention, layer {attention.layer}, average of {len(attention.weights_HTS)} heads"
    return f'<table style="border-collapse:collapse" title="{title}"><tr><th></th>{header}</tr>{rows}</table>{note}'


def result_html(result: Result) -> str:
    """Returns the text and, if the model has attention, its weights."""
    try:
        picture = attention_html(result.attention())
    except UserError:
        picture = ""
    return f"<p>{escape(' '.join(result.source_tokens))} → <b>{escape(result.text)}</b></p>{picture}"
