"""Calls the Python API with strange arguments: each must raise a deliberate error or return what the plain formula gives."""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from hostile.area import Area, require
from hostile.changes import hostile
from hostile.commands import FROZEN, MODELS

KINDS = ("cross", "encoder", "decoder", "fusion")
WHAT = ("weights", "scores", "norms", "summary")


def deliberate(error: BaseException) -> bool:
    """Whether the error comes from a `raise` in the package, or from Python because arguments do not match a signature."""
    *_, last = traceback.extract_tb(error.__traceback__)
    if last.filename == __file__:
        return isinstance(error, TypeError) and "argument" in str(error)  # the arguments do not match a signature
    return "/regard/" in last.filename and "raise" in linecache.getline(last.filename, last.lineno or 0)


@cache
def translator(name: str) -> Any:
    import regard

    return regard.load(FROZEN / name, device="cpu")


class Calls(Area):
    longest_line = 600

    def load_modules(self) -> None:
        import regard.inspection.capture
        import regard.inspection.explain
        import regard.layers.attention
        import regard.layers.scores  # noqa: F401

    def prepare(self, root: Path) -> None:
        pass

    def change(self, rng: Random, root: Path, folder: Path) -> str:
        self.call, said = rng.choice(CALLS)(rng)
        return said

    def use(self, folder: Path) -> None:
        from regard.errors import UserError

        try:
            self.call()
        except UserError:
            raise
        except (ValueError, TypeError) as error:
            if not deliberate(error):
                raise
            raise UserError(str(error)) from None


Call = tuple[Callable[[], object], str]


def value(rng: Random, *usual: Any) -> Any:
    """Returns one of the usual values, or a strange one."""
    import torch

    if rng.random() < 0.6:
        return rng.choice(usual)
    strange: list[Any] = [torch.tensor(1), torch.randn(2, 3), torch.tensor(float("nan")), b"x", object, {1}, range(3), 1j]
    return rng.choice((hostile(rng), rng.choice(strange)))


def search_options(rng: Random) -> Call:
    from regard import SearchOptions

    usual: dict[str, tuple[Any, ...]] = {
        "beam": (1, 2, 4),
        "n_best": (1, 2),
        "length_penalty": (0.6, "mean", 0),
        "min_length": (0, 3),
        "max_length": (1, 4),
        "max_ratio": (None, 1.5),
        "no_repeat": (0, 1, 2),
        "repetition_penalty": (1.0, 2.0),
        "banned": ((), ((5,),), [[6, 7]]),
        "prefix": ((), (5,), [6]),
        "sample": (False, True),
        "temperature": (1.0, 0.5),
        "top_k": (0, 3),
        "top_p": (1.0, 0.5),
        "seed": (0, 7),
    }
    names = rng.sample(sorted(usual), rng.choice((1, 2, 3)))
    given: dict[str, Any] = {"max_length": 4} | {name: value(rng, *usual[name]) for name in names}
    model = rng.choice(MODELS)

    def call() -> None:
        options = SearchOptions(**given)
        text = {name: one for name, one in given.items() if name not in ("banned", "prefix")}
        if options.max_length > 50 or options.num_hypotheses > 50:
            return
        reader = translator(model)
        for one in reader("walk twice", **text).n_best:
            size = len(one.tokens)
            continues = reader.reader.traits.continues_text  # its output contains the text
            require(continues or options.min_length <= size <= options.max_length, f"{size} tokens")
            require(abs(sum(one.token_log_probs) - one.log_prob) < 1e-3, f"{one.token_log_probs} do not sum to {one.log_prob}")

    return call, f"{model}: {given!r:.300}"


def look(rng: Random) -> Call:
    import torch

    from regard import Edit, Look, Tap

    taps = [
        {
            "kind": value(rng, *KINDS),
            "layer": value(rng, None, 0, -1),
            "head": value(rng, None, 0, 1),
            "rows": value(rng, None, (0,), [0, 1]),
            "what": value(rng, *WHAT),
        }
        for _ in range(rng.choice((0, 1, 1, 2)))
    ]
    edits = [
        {
            "kind": value(rng, *KINDS),
            "layer": value(rng, None, 0),
            "head": value(rng, None, 0),
            "key": value(rng, None, 0, 1),
        }
        for _ in range(rng.choice((0, 0, 1)))
    ]
    taps = [dict(rng.sample(sorted(tap.items()), rng.choice((1, 2, 5)))) for tap in taps]
    grad, model = value(rng, False, False, True), rng.choice(MODELS)

    def call() -> None:
        reader = translator(model)
        wanted = Look(tuple(Tap(**tap) for tap in taps), tuple(Edit(**edit) for edit in edits), grad)
        batch = reader.torch_engine.collate(reader.reader.rows(["walk twice and", "run"]))
        read = torch.tensor([[1, 5, 6], [1, 6, 5]])
        plain = reader.model.decode(read, reader.model.encode(batch))
        seen = reader.model.decode(read, reader.model.encode(batch, wanted), wanted)
        require(seen.logits_BTV.isfinite().all(), "the logits are not finite")
        if not edits and grad is False:
            require(torch.equal(plain.logits_BTV, seen.logits_BTV), "a tap changed the output")

    return call, f"{model}: taps {taps!r:.200} edits {edits!r:.100} grad {grad!r:.30}"


def tensor(rng: Random, shape: tuple[int, ...]) -> Any:
    import torch

    torch.manual_seed(rng.randrange(1000))
    made = torch.randn(shape)
    if rng.random() < 0.08:
        return value(rng, made.long(), made.double(), made.half(), made.bool(), made[..., :0], made.to_sparse(), made.tolist())
    return made


def sizes(rng: Random, *shape: int) -> tuple[int, ...]:
    """Returns a shape: most often the given one, sometimes a changed one."""
    if rng.random() < 0.75:
        return shape
    changed = list(shape)
    for _ in range(rng.choice((1, 1, 2))):
        if changed and rng.random() < 0.7:
            changed[rng.randrange(len(changed))] = rng.choice((0, 1, 2, 5))
        elif rng.random() < 0.5:
            changed.insert(0, rng.choice((1, 2)))
        elif changed:
            changed.pop(0)
    return tuple(changed)


def mask(rng: Random, *shape: int) -> Any:
    import torch

    made = torch.rand(sizes(rng, *shape[rng.randrange(len(shape) - 1) :])) > 0.4
    way = rng.random()
    return None if way < 0.3 else made if way < 0.85 else value(rng, made.float(), made.int(), made.tolist(), "causal")


def plain_attention(query: Any, key: Any, given: Any, allow: Any) -> Any:
    """Returns softmax(q kᵀ / √d) v in float64; rows without an allowed key are zero."""
    import torch

    scores = query.double() @ key.double().transpose(-1, -2) / max(query.shape[-1], 1) ** 0.5
    if allow is not None:
        lead = torch.broadcast_shapes(scores.shape, allow.shape)
        scores, allow = scores.expand(lead), allow.expand(lead)
        scores = scores.masked_fill(~allow, -torch.inf)
    return scores.softmax(-1).nan_to_num(0.0) @ given.double()


def attend(rng: Random) -> Call:
    import regard

    queries, keys, width = rng.choice((1, 3, 5)), rng.choice((1, 4, 7)), rng.choice((1, 4, 8))
    lead = rng.choice(((), (2,), (2, 3)))
    query, key = tensor(rng, sizes(rng, *lead, queries, width)), tensor(rng, sizes(rng, *lead, keys, width))
    given, allow = tensor(rng, sizes(rng, *lead, keys, 6)), mask(rng, *lead, queries, keys)
    options: dict[str, Any] = {}
    if rng.random() < 0.15:
        options = {rng.choice(("score", "attention", "dropout", "generator")): value(rng, "soft", "unnormalised", 0.0, None)}

    def call() -> None:
        import torch

        found = regard.attend(query, key, given, allow=allow, **options)
        weights = regard.attention_weights(query, key, allow=allow, **{k: v for k, v in options.items() if k != "dropout"})
        if not options or set(options.values()) <= {"soft", None}:
            wanted = plain_attention(query, key, given, allow)
            require(found.shape == wanted.shape, f"shape {tuple(found.shape)}, expected {tuple(wanted.shape)}")
            tolerance = 1e-4 if query.dtype in (torch.float32, torch.float64) else 2e-2
            require(
                torch.allclose(found.double(), wanted, atol=tolerance), "the context differs from that of the plain formula"
            )
            require(
                ((weights.sum(-1) - 1).abs() < 1e-2).logical_or(weights.sum(-1) == 0).all(), "the weights do not sum to 1 or 0"
            )

    shapes = [tuple(one.shape) if hasattr(one, "shape") else repr(one)[:60] for one in (query, key, given, allow)]
    return call, f"attend: {shapes} {options!r:.100}"


def multi_head(rng: Random) -> Call:
    import torch

    import regard

    width, heads = value(rng, 8, 12, 16), value(rng, 1, 2, 4)
    options: dict[str, Any] = {
        name: value(rng, *usual)
        for name, usual in (
            ("kv_heads", (None, 1, 2)),
            ("memory_width", (None, 6)),
            ("key_dim", (None, 3)),
            ("value_dim", (None, 5)),
            ("bias", (True, False)),
            ("project_values", (True, False)),
            ("project_output", (True, False)),
            ("rotary", (None, "halves", "interleaved")),
            ("alibi", (False, True)),
            ("score", (None,)),
        )
        if rng.random() < 0.2
    }
    small = all(isinstance(one, bool) or not isinstance(one, int) or one < 10_000 for one in (width, heads, *options.values()))
    batch, queries, keys = rng.choice((1, 2, 4)), 3, rng.choice((3, 5))
    x = tensor(rng, sizes(rng, batch, queries, width if type(width) is int and 0 < width < 100 else 8))
    memory_width = options.get("memory_width")
    memory_width = (
        memory_width
        if type(memory_width) is int and 0 < memory_width < 100
        else x.shape[-1]
        if hasattr(x, "shape") and x.dim()
        else 8
    )
    memory = None if rng.random() < 0.5 else tensor(rng, sizes(rng, batch, keys, memory_width))
    allow = mask(
        rng, batch, heads if type(heads) is int and 0 < heads < 10 else 2, queries, queries if memory is None else keys
    )

    def call() -> None:
        if not small:  # huge sizes rightly need huge memory
            return
        layer = regard.MultiHeadAttention(width, heads, **options)
        with torch.no_grad():
            found = layer(x, memory, allow=allow)
        require(found.shape[-2] == x.shape[-2], f"shape {tuple(found.shape)} of x {tuple(x.shape)}")
        require(found.isfinite().all(), "the output is not finite")
        if isinstance(layer.output, torch.nn.Linear):
            require(found.shape[-1] == x.shape[-1], f"shape {tuple(found.shape)} of x {tuple(x.shape)}")

    shapes = [tuple(one.shape) if hasattr(one, "shape") else repr(one)[:60] for one in (x, memory, allow)]
    return call, f"MultiHeadAttention({width!r:.30}, {heads!r:.30}, {options!r:.200}){shapes}"


def smaller(rng: Random) -> Call:
    """Calls one of the small functions that take a few numbers."""
    import torch

    import regard
    from regard import masks, positions

    indices = value(rng, torch.arange(5), torch.zeros(0), torch.randn(2, 3), torch.arange(5).float())
    size, width, other = value(rng, 0, 1, 4, 8), value(rng, 2, 8, 3), value(rng, None, 4)
    functions: dict[str, Callable[[], Any]] = {
        "masks.causal": lambda: masks.causal(size, other),
        "masks.window": lambda: masks.window(size, width=width),
        "masks.first": lambda: masks.first(indices, size),
        "masks.starting_at": lambda: masks.starting_at(indices, size),
        "masks.not_padding": lambda: masks.not_padding(indices, size),
        "positions.sinusoidal": lambda: positions.sinusoidal(indices, width),
        "positions.fourier": lambda: positions.fourier(indices, width),
        "positions.one_hot": lambda: positions.one_hot(indices, width),
        "positions.rotate": lambda: positions.rotate(value(rng, torch.randn(2, 5, 8)), indices, base=value(rng, 10000.0)),
        "positions.alibi_slopes": lambda: positions.alibi_slopes(width),
        "cost": lambda: regard.cost(value(rng, "attention", "recurrent"), size, width, value(rng, 3)),
        "summarise": lambda: regard.summarise(torch.randn(3, 4), torch.randn(5, 4), top=size, blocks=width),
        "ScaledDot": lambda: regard.scores.ScaledDot(value(rng, 1.0, "√d")),
    }
    name = rng.choice(sorted(functions))
    huge = any(isinstance(one, int) and 10_000 < abs(one) < 2**31 for one in (size, width, other))

    def call() -> None:
        if not huge:
            functions[name]()

    return call, f"{name}: positions {indices!r:.60} size {size!r:.60} width {width!r:.60}"


def inside(rng: Random) -> Call:
    """Calls, explains or inspects a model."""
    import regard

    model, text = rng.choice(MODELS), value(rng, "walk twice", "run", "")
    token, layer, head = (value(rng, 0, 1, -1) for _ in range(3))
    name = rng.choice(("explain", "inspect", "batch", "score", "attention", "call", "stream"))
    what, output = value(rng, ("weights",), ("scores", "norms")), value(rng, None, None, (5, 6), ())

    def call() -> None:
        reader = translator(model)
        if name == "explain":
            regard.explain(reader, text, token, layer=layer, head=head, output=output, max_length=4)
        elif name == "inspect":
            regard.inspect(reader, text, what=what, output=output, max_length=4)
        elif name == "batch":
            reader.batch(value(rng, [text], text), max_length=4)
        elif name == "score":
            reader.score([text], [value(rng, "WALK", "LEFT")])
        elif name == "attention":
            reader("walk twice", max_length=4).attention(value(rng, *KINDS), layer)
        elif name == "stream":
            list(reader.stream(text, max_length=4))
        else:
            reader(text, max_length=4, **{value(rng, "beam"): 2} if isinstance(head, str) else {})

    return (
        call,
        f"{model}: {name} {text!r:.60} token {token!r:.30} layer {layer!r:.30} head {head!r:.30} {what!r:.40} {output!r:.40}",
    )


CALLS: tuple[Callable[[Random], Call], ...] = (search_options, look, attend, attend, multi_head, multi_head, smaller, inside)
