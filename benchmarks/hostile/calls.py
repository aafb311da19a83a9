"""Calls of the Python API with strange arguments: an error that was raised on purpose, or what the plain formula gives."""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from hostile.area import Area, right
from hostile.changes import hostile
from hostile.commands import FROZEN, MODELS

KINDS = ("cross", "encoder", "decoder", "fusion")
WHAT = ("weights", "scores", "norms", "summary")


def deliberate(error: BaseException) -> bool:
    """Whether it was raised by a `raise` of the package, or by Python because of how a function was called here."""
    *_, last = traceback.extract_tb(error.__traceback__)
    if last.filename == __file__:
        return isinstance(error, TypeError) and "argument" in str(error)  # of a signature
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

    def change(self, chance: Random, root: Path, place: Path) -> str:
        self.call, said = chance.choice(CALLS)(chance)
        return said

    def use(self, place: Path) -> None:
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


def value(chance: Random, *usual: Any) -> Any:
    """One of the usual ones, or something strange."""
    import torch

    if chance.random() < 0.6:
        return chance.choice(usual)
    strange: list[Any] = [torch.tensor(1), torch.randn(2, 3), torch.tensor(float("nan")), b"x", object, {1}, range(3), 1j]
    return chance.choice((hostile(chance), chance.choice(strange)))


def search_options(chance: Random) -> Call:
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
    names = chance.sample(sorted(usual), chance.choice((1, 2, 3)))
    given: dict[str, Any] = {"max_length": 4} | {name: value(chance, *usual[name]) for name in names}
    model = chance.choice(MODELS)

    def call() -> None:
        options = SearchOptions(**given)
        text = {name: one for name, one in given.items() if name not in ("banned", "prefix")}
        if options.max_length > 50 or options.num_hypotheses > 50:
            return
        reader = translator(model)
        for one in reader("walk twice", **text).n_best:
            size = len(one.tokens)
            right(reader.continues or options.min_length <= size <= options.max_length, f"{size} tokens")
            right(abs(sum(one.token_log_probs) - one.log_prob) < 1e-3, f"{one.token_log_probs} do not sum to {one.log_prob}")

    return call, f"{model}: {given!r:.300}"


def look(chance: Random) -> Call:
    import torch

    from regard import Edit, Look, Tap

    taps = [
        {
            "kind": value(chance, *KINDS),
            "layer": value(chance, None, 0, -1),
            "head": value(chance, None, 0, 1),
            "rows": value(chance, None, (0,), [0, 1]),
            "what": value(chance, *WHAT),
        }
        for _ in range(chance.choice((0, 1, 1, 2)))
    ]
    edits = [
        {
            "kind": value(chance, *KINDS),
            "layer": value(chance, None, 0),
            "head": value(chance, None, 0),
            "place": value(chance, None, 0, 1),
        }
        for _ in range(chance.choice((0, 0, 1)))
    ]
    taps = [dict(chance.sample(sorted(tap.items()), chance.choice((1, 2, 5)))) for tap in taps]
    grad, model = value(chance, False, False, True), chance.choice(MODELS)

    def call() -> None:
        reader = translator(model)
        wanted = Look(tuple(Tap(**tap) for tap in taps), tuple(Edit(**edit) for edit in edits), grad)
        batch = reader.encoder_batch([reader.read("walk twice and"), reader.read("run")])
        read = torch.tensor([[1, 5, 6], [1, 6, 5]])
        plain = reader.model.decode(read, reader.model.encode(batch))
        seen = reader.model.decode(read, reader.model.encode(batch, wanted), wanted)
        right(seen.logits_BTV.isfinite().all(), "the logits are not finite")
        if not edits and grad is False:
            right(torch.equal(plain.logits_BTV, seen.logits_BTV), "a tap changed the output")

    return call, f"{model}: taps {taps!r:.200} edits {edits!r:.100} grad {grad!r:.30}"


def tensor(chance: Random, shape: tuple[int, ...]) -> Any:
    import torch

    torch.manual_seed(chance.randrange(1000))
    made = torch.randn(shape)
    if chance.random() < 0.08:
        return value(
            chance, made.long(), made.double(), made.half(), made.bool(), made[..., :0], made.to_sparse(), made.tolist()
        )
    return made


def sizes(chance: Random, *shape: int) -> tuple[int, ...]:
    """A shape, most often this one."""
    if chance.random() < 0.75:
        return shape
    changed = list(shape)
    for _ in range(chance.choice((1, 1, 2))):
        if changed and chance.random() < 0.7:
            changed[chance.randrange(len(changed))] = chance.choice((0, 1, 2, 5))
        elif chance.random() < 0.5:
            changed.insert(0, chance.choice((1, 2)))
        elif changed:
            changed.pop(0)
    return tuple(changed)


def mask(chance: Random, *shape: int) -> Any:
    import torch

    made = torch.rand(sizes(chance, *shape[chance.randrange(len(shape) - 1) :])) > 0.4
    way = chance.random()
    return None if way < 0.3 else made if way < 0.85 else value(chance, made.float(), made.int(), made.tolist(), "causal")


def plain_attention(query: Any, key: Any, given: Any, allow: Any) -> Any:
    """softmax(q kᵀ / √d) v with zeros where nothing is allowed, in float64."""
    import torch

    scores = query.double() @ key.double().transpose(-1, -2) / max(query.shape[-1], 1) ** 0.5
    if allow is not None:
        lead = torch.broadcast_shapes(scores.shape, allow.shape)
        scores, allow = scores.expand(lead), allow.expand(lead)
        scores = scores.masked_fill(~allow, -torch.inf)
    return scores.softmax(-1).nan_to_num(0.0) @ given.double()


def attend(chance: Random) -> Call:
    import regard

    queries, keys, width = chance.choice((1, 3, 5)), chance.choice((1, 4, 7)), chance.choice((1, 4, 8))
    lead = chance.choice(((), (2,), (2, 3)))
    query, key = tensor(chance, sizes(chance, *lead, queries, width)), tensor(chance, sizes(chance, *lead, keys, width))
    given, allow = tensor(chance, sizes(chance, *lead, keys, 6)), mask(chance, *lead, queries, keys)
    options: dict[str, Any] = {}
    if chance.random() < 0.15:
        options = {
            chance.choice(("score", "attention", "dropout", "generator")): value(chance, "soft", "unnormalised", 0.0, None)
        }

    def call() -> None:
        import torch

        found = regard.attend(query, key, given, allow=allow, **options)
        weights = regard.attention_weights(query, key, allow=allow, **{k: v for k, v in options.items() if k != "dropout"})
        if not options or set(options.values()) <= {"soft", None}:
            wanted = plain_attention(query, key, given, allow)
            right(found.shape == wanted.shape, f"shape {tuple(found.shape)}, expected {tuple(wanted.shape)}")
            tolerance = 1e-4 if query.dtype in (torch.float32, torch.float64) else 2e-2
            right(torch.allclose(found.double(), wanted, atol=tolerance), "another context than by the plain formula")
            right(
                ((weights.sum(-1) - 1).abs() < 1e-2).logical_or(weights.sum(-1) == 0).all(), "the weights do not sum to 1 or 0"
            )

    shapes = [tuple(one.shape) if hasattr(one, "shape") else repr(one)[:60] for one in (query, key, given, allow)]
    return call, f"attend: {shapes} {options!r:.100}"


def multi_head(chance: Random) -> Call:
    import torch

    import regard

    width, heads = value(chance, 8, 12, 16), value(chance, 1, 2, 4)
    options: dict[str, Any] = {
        name: value(chance, *usual)
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
        if chance.random() < 0.2
    }
    small = all(isinstance(one, bool) or not isinstance(one, int) or one < 10_000 for one in (width, heads, *options.values()))
    batch, queries, keys = chance.choice((1, 2, 4)), 3, chance.choice((3, 5))
    x = tensor(chance, sizes(chance, batch, queries, width if type(width) is int and 0 < width < 100 else 8))
    memory_width = options.get("memory_width")
    memory_width = (
        memory_width
        if type(memory_width) is int and 0 < memory_width < 100
        else x.shape[-1]
        if hasattr(x, "shape") and x.dim()
        else 8
    )
    memory = None if chance.random() < 0.5 else tensor(chance, sizes(chance, batch, keys, memory_width))
    allow = mask(
        chance, batch, heads if type(heads) is int and 0 < heads < 10 else 2, queries, queries if memory is None else keys
    )

    def call() -> None:
        if not small:  # that so much memory is asked for is what was asked for
            return
        layer = regard.MultiHeadAttention(width, heads, **options)
        with torch.no_grad():
            found = layer(x, memory, allow)
        right(found.shape[-2] == x.shape[-2], f"shape {tuple(found.shape)} of x {tuple(x.shape)}")
        right(found.isfinite().all(), "the output is not finite")
        if isinstance(layer.output, torch.nn.Linear):
            right(found.shape[-1] == x.shape[-1], f"shape {tuple(found.shape)} of x {tuple(x.shape)}")

    shapes = [tuple(one.shape) if hasattr(one, "shape") else repr(one)[:60] for one in (x, memory, allow)]
    return call, f"MultiHeadAttention({width!r:.30}, {heads!r:.30}, {options!r:.200}){shapes}"


def smaller(chance: Random) -> Call:
    """Functions that take a few numbers."""
    import torch

    import regard
    from regard import masks, positions

    indices = value(chance, torch.arange(5), torch.zeros(0), torch.randn(2, 3), torch.arange(5).float())
    size, width, other = value(chance, 0, 1, 4, 8), value(chance, 2, 8, 3), value(chance, None, 4)
    functions: dict[str, Callable[[], Any]] = {
        "masks.causal": lambda: masks.causal(size, other),
        "masks.window": lambda: masks.window(size, width=width),
        "masks.first": lambda: masks.first(indices, size),
        "masks.behind": lambda: masks.behind(indices, size),
        "masks.not_padding": lambda: masks.not_padding(indices, size),
        "positions.sinusoidal": lambda: positions.sinusoidal(indices, width),
        "positions.fourier": lambda: positions.fourier(indices, width),
        "positions.one_hot": lambda: positions.one_hot(indices, width),
        "positions.rotate": lambda: positions.rotate(value(chance, torch.randn(2, 5, 8)), indices, base=value(chance, 10000.0)),
        "positions.alibi_slopes": lambda: positions.alibi_slopes(width),
        "cost": lambda: regard.cost(value(chance, "attention", "recurrent"), size, width, value(chance, 3)),
        "summarise": lambda: regard.summarise(torch.randn(3, 4), torch.randn(5, 4), top=size, blocks=width),
        "ScaledDot": lambda: regard.scores.ScaledDot(value(chance, 1.0, "√d")),
    }
    name = chance.choice(sorted(functions))
    huge = any(isinstance(one, int) and 10_000 < abs(one) < 2**31 for one in (size, width, other))

    def call() -> None:
        if not huge:
            functions[name]()

    return call, f"{name}: positions {indices!r:.60} size {size!r:.60} width {width!r:.60}"


def inside(chance: Random) -> Call:
    """A model that is called, explained and looked at."""
    import regard

    model, text = chance.choice(MODELS), value(chance, "walk twice", "run", "")
    token, layer, head = (value(chance, 0, 1, -1) for _ in range(3))
    name = chance.choice(("explain", "inspect", "batch", "score", "attention", "call", "stream"))
    what, output = value(chance, ("weights",), ("scores", "norms")), value(chance, None, None, (5, 6), ())

    def call() -> None:
        reader = translator(model)
        if name == "explain":
            regard.explain(reader, text, token, layer=layer, head=head, output=output, max_length=4)
        elif name == "inspect":
            regard.inspect(reader, text, what=what, output=output, max_length=4)
        elif name == "batch":
            reader.batch(value(chance, [text], text), max_length=4)
        elif name == "score":
            reader.score([text], [value(chance, "WALK", "LEFT")])
        elif name == "attention":
            reader("walk twice", max_length=4).attention(value(chance, *KINDS), layer)
        elif name == "stream":
            list(reader.stream(text, max_length=4))
        else:
            reader(text, max_length=4, **{value(chance, "beam"): 2} if isinstance(head, str) else {})

    return (
        call,
        f"{model}: {name} {text!r:.60} token {token!r:.30} layer {layer!r:.30} head {head!r:.30} {what!r:.40} {output!r:.40}",
    )


CALLS: tuple[Callable[[Random], Call], ...] = (search_options, look, attend, attend, multi_head, multi_head, smaller, inside)
