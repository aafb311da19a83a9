"""Writes an inspection to a file: an interactive page that works offline (.html), or plain arrays for other tools (.npz)."""

from __future__ import annotations

import base64
import html
import io
import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.checkpoint.files import new_file, write
from regard.core.arrays import as_array
from regard.core.spectrum import HOP, STRIDE, extremes, log_mel
from regard.core.summary import block_size
from regard.data.labels import label, readable
from regard.data.sound import LOUDEST
from regard.data.videos import sheet_columns
from regard.errors import shorten
from regard.inspection.capture import CapturedGates, CapturedLayer, Inspection
from regard.look import Kind, check_kind

EXACT, HALF = 1 << 20, 12 << 20
"""Up to EXACT numbers in total, a page stores them exactly; up to HALF, in 2 bytes each; beyond that, in 1 byte each."""

WORDS_SHOWN = 5
WAVEFORM_BINS = 1000
"""Number of sections of a waveform: more than fit into the width of a page."""


def write_page(seen: Inspection, path: str | Path, *, model: str = "", kind: Kind = "cross", layer: int = -1) -> Path:
    """Writes an inspection as a single .html file that needs no network, and returns its path.

    seen: the result of `regard.inspect`. model: a line that describes the model. kind, layer: the attention that the page shows
    first, as the mean of its heads, like the terminal and pictures do. Raises UserError if there is no such layer.

    >>> inspection = regard.inspect(regard.load("model"), "cab")
    >>> regard.write_page(inspection, "cab.html", model="spelling").name
    'cab.html'
    """
    if not isinstance(seen, Inspection):
        raise TypeError(f"write_page expects the result of regard.inspect(model, text), but got a {type(seen).__name__}")
    path, content = Path(path), page(seen, model=model, kind=kind, layer=layer).encode()
    with new_file(path) as fresh:
        write(fresh, content)
    return path


def page(seen: Inspection, *, model: str = "", kind: Kind = "cross", layer: int = -1) -> str:
    """Returns the page as a string; parameters as for `write_page`."""
    template = part("page.html").replace("/*BASE.CSS*/", part("base.css")).replace("/*BASE.JS*/", part("base.js"))
    first = first_layer(seen, kind, layer)
    facts = page_data(seen, model) | {"first": first and {"kind": first.kind, "layer": first.layer}}
    data = json.dumps(facts, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":  # so that no text can end the script element
        data = data.replace(sign, f"\\u{ord(sign):04x}")
    title = html.escape(" → ".join(shorten(readable(text)) for text in (seen.title or seen.text, seen.output)))
    before, _, rest = template.partition("<!--TITLE-->")
    between, _, after = rest.partition("/*DATA*/")
    return "".join((before, title, between, data, after))


def part(name: str) -> str:
    """Returns a file of the page. Its base.css and base.js are also those of the server's page."""
    return files("regard.inspection").joinpath("page", name).read_text(encoding="utf-8")


def first_layer(seen: Inspection, kind: Kind, layer: int) -> CapturedLayer | None:
    """Returns the layer that a page shows first: this one or, if the model has none of this kind, one of another kind; None if
    the model has no attention. Raises UserError if there is no such layer."""
    check_kind(kind)
    kinds = [each.kind for each in seen.layers]
    return seen.layer(kind if kind in kinds else kinds[0], layer) if kinds else None


def page_data(seen: Inspection, model: str = "") -> dict[str, Any]:
    """Returns the data of the page, ready for JSON."""
    num_numbers = sum(numbers.numel() for layer in seen.layers for numbers in layer.numbers.values())
    steps = _steps(seen)
    tokens = {*seen.source, *seen.target, *seen.read, *seen.auxiliary, *(other for step in steps for other, _ in step["top"])}
    return {
        "text": seen.title or seen.text,
        "output": seen.output,
        "finished": seen.finished,
        "model": model,
        "source": seen.source,
        "target": seen.target,
        "read": seen.read,
        "auxiliary": seen.auxiliary,
        "labels": {token: label(token) for token in sorted(tokens) if label(token) != token},
        "heading": [readable(seen.title or seen.text), readable(seen.output)],
        "steps": steps,
        "layers": [_layer(seen, layer, num_numbers) for layer in seen.layers],
        "gates": [_gates(gates) for gates in seen.gates],
        "axes": seen.axes,
        "picture": seen.picture,
        "across": sheet_columns(seen.axes[0]) if len(seen.axes) == 3 else 1,
        "sound": None if seen.sound is None else _sound(seen.sound, len(seen.source)),
    }


def _steps(seen: Inspection) -> list[dict[str, Any]]:
    """Returns for each step the probability of the token in the output, and the most probable tokens."""
    probs_TV = seen.log_probs_TV.exp()
    top = probs_TV.topk(min(WORDS_SHOWN, probs_TV.shape[-1]), dim=-1)
    return [
        {
            "p": round(probs_TV[position, token].item(), 6),
            "top": [[seen.vocabulary[other], round(p, 6)] for other, p in zip(others, ps, strict=True)],
        }
        for position, (token, others, ps) in enumerate(
            zip(seen.target_ids, top.indices.tolist(), top.values.tolist(), strict=True)
        )
    ]


def _layer(seen: Inspection, layer: CapturedLayer, num_numbers: int) -> dict[str, Any]:
    distance = layer.distance_H()
    rows, columns = len(seen.rows(layer.kind)), len(seen.columns(layer.kind))
    facts: dict[str, Any] = {
        "kind": layer.kind,
        "layer": layer.layer,
        "heads": layer.num_heads,
        "rows": rows,
        "columns": columns,
        "entropy": packed(layer.entropy_HT()),
        "mass": packed(layer.mass_HS()),
        "distance": None if distance is None else [round(number, 5) for number in distance.tolist()],
        "numbers": {what: packed(numbers, num_numbers) for what, numbers in layer.numbers.items()},
    }
    if layer.summary is not None and layer.summary.blocks is not None:
        summary, blocks = layer.summary, layer.summary.blocks
        facts["summary"] = {
            "blocks": packed(blocks, HALF),
            "high": block_size(rows),
            "wide": block_size(columns),
            "down": blocks.shape[-2],
            "across": blocks.shape[-1],
            "top": summary.top_keys.shape[-1],
            "keys": _coded(summary.top_keys.to(torch.float32)),
            "weights": packed(summary.top_weights, HALF),
        }
    return facts


def packed(numbers: Tensor, num_numbers: int = 0) -> dict[str, Any]:
    """Encodes numbers for the page: exactly, or as integers times `by` if there are many."""
    numbers = numbers.detach().to(torch.float32)
    if num_numbers <= EXACT or not numbers.numel() or bool((numbers < 0).any()):
        return _coded(numbers)
    steps = 65535 if num_numbers <= HALF else 255
    by = max(numbers.max().item(), 1e-30) / steps
    return {**_coded((numbers / by).round().to(torch.int32).to(torch.uint16 if steps > 255 else torch.uint8)), "by": by}


def _coded(numbers: Tensor) -> dict[str, Any]:
    array = as_array(numbers)
    return {"type": array.dtype.str, "data": base64.b64encode(array.tobytes()).decode()}


def _gates(gates: CapturedGates) -> dict[str, Any]:
    """Returns for each gate and step the mean over the units, and the 10th and 90th percentiles."""
    shares = torch.tensor([0.1, 0.9])
    facts = {}
    for name, opened_TW in gates.opened.items():
        low, high = opened_TW.float().quantile(shares, dim=-1)
        lists = {"mean": opened_TW.mean(-1), "low": low, "high": high}
        facts[name] = {kind: [round(number, 5) for number in numbers.tolist()] for kind, numbers in lists.items()}
    return {"where": gates.where, "along": gates.along, "gates": facts}


def _sound(row: Tensor, num_positions: int) -> dict[str, Any]:
    """Returns the waveform as the lowest and highest sample of each section, and the log-mel spectrogram in 256 shades.

    seconds: duration of the sound. shown: duration of the memory positions, which may be a little longer.
    """
    samples_N, rate = row.flatten() / LOUDEST, round(row.shape[1] / HOP)
    low, high = extremes(samples_N, WAVEFORM_BINS)
    logs_SF = log_mel(samples_N, rate)
    shades_SF = 255 * (logs_SF - logs_SF.min()) / (logs_SF.max() - logs_SF.min()).clamp(min=1e-6)
    return {
        "seconds": len(samples_N) / rate,
        "shown": num_positions * STRIDE * HOP,
        "low": packed(low),
        "high": packed(high),
        "frames": len(logs_SF),
        "bands": logs_SF.shape[1],
        "power": _coded(shades_SF.round().to(torch.uint8)),
    }


# --- arrays ------------------------------------------------------------------------------------------------------------------


def write_npz(seen: Inspection, path: str | Path) -> Path:
    """Writes all numbers for `numpy.load`, and returns the path.

    The arrays are cross.0.weights (H, T, S) and so on, log_probs (T, V), the gates and states of recurrent cells, and
    tokens.json: the tokens as JSON bytes, with `auxiliary`, the tokens of the auxiliary text (the keys of fusion), and
    `seconds`, the start time of each position of a sound, if there are any.
    """
    tensors: dict[str, Tensor] = {"log_probs": seen.log_probs_TV}
    for layer in seen.layers:
        name = f"{layer.kind}.{layer.layer}"
        tensors |= {f"{name}.{what}": numbers for what, numbers in layer.numbers.items()}
        if layer.summary is not None:
            parts = vars(layer.summary)
            tensors |= {f"{name}.summary.{part}": numbers for part, numbers in parts.items() if numbers is not None}
    for gates in seen.gates:
        name = gates.where.replace(", ", ".").replace(" ", "_")
        tensors |= {f"gates.{name}.{gate}": opened for gate, opened in (gates.opened | gates.states).items()}
    words: dict[str, Any] = {"text": seen.text, "output": seen.output}
    words |= {"source": seen.source, "target": seen.target, "read": seen.read}
    if seen.auxiliary:
        words["auxiliary"] = seen.auxiliary
    if seen.sound is not None:
        words["seconds"] = [round(position * STRIDE * HOP, 2) for position in range(len(seen.source))]
    arrays = {name: as_array(numbers) for name, numbers in tensors.items()}
    arrays["tokens.json"] = np.frombuffer(json.dumps(words).encode(), np.uint8)
    path, content = Path(path), io.BytesIO()
    np.savez_compressed(content, allow_pickle=False, **arrays)
    with new_file(path) as fresh:
        write(fresh, content.getvalue())
    return path
