"""One output token with its real numbers: from the query to the word, each line computed from those before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from regard.contracts import ByValue, Kind, Look, Memory, Score, Seen, State, Step, Tap, pick
from regard.core.attention import ScaledDot
from regard.data.sources import FileCodec
from regard.data.tokenizers.codec import SOS
from regard.errors import UserError, shown
from regard.inspection.capture import check_numbers, read_ids
from regard.layers.blocks import DecoderLayer, ResidualConnection
from regard.models.decoder import CacheState, TransformerDecoder
from regard.models.rnn_lm import RnnLm
from regard.models.rnn_seq2seq import RnnSeq2Seq, RnnState
from regard.pipeline import Translator

# S keys  D width  d, v width of a head's keys, of its values  H heads  V vocabulary

FORMULAS = {
    "dot": "e_j = s · k_j",
    "scaled_dot": "e_j = s · k_j / √d",
    "general": "e_j = s · k_j, k_j = W h_j",
    "additive": "e_j = vᵀ tanh(W_b s + k_j), k_j = W_c h_j",
    "location": "e_j = s · k_j, k_j = W_j",
    "cosine": "e_j = cos(s, h_j) / temperature, k_j = h_j / ‖h_j‖",
    "distance": "e_j = −‖s − k_j‖² / 2d",
}
WEIGHTS = {
    "soft": "α = softmax(e) over the allowed keys",
    "unnormalised": "α = e, 0 for keys that are not allowed",
    "hard": "α = 1 for the best allowed key, else 0",
    "gated": "α = g / max(1, Σ g), g_j = 1 where e_j > 0",
}


@dataclass(frozen=True, eq=False)
class Line(ByValue):
    """A number, a vector or a matrix, and where it comes from. `given`: it follows from nothing above.

    rows: what stands on its first axis, where these are tokens.
    """

    name: str
    formula: str
    values: Tensor
    given: bool = False
    rows: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """As JSON wants it: −∞ is not a number there, so it becomes null."""

        def plain(value: Any) -> Any:
            if isinstance(value, list):
                return [plain(one) for one in value]
            return value if not isinstance(value, float) or abs(value) != float("inf") else None

        facts = {"name": self.name, "formula": self.formula, "given": self.given, "values": plain(self.values.tolist())}
        return {**facts, "rows": list(self.rows)} if self.rows else facts


@dataclass(frozen=True)
class Explanation:
    text: str
    output: str
    position: int
    token: str
    about: str
    lines: tuple[Line, ...]

    def __getitem__(self, name: str) -> Tensor:
        return next(line.values for line in self.lines if line.name == name)

    def as_dict(self) -> dict[str, Any]:
        facts = {"text": self.text, "output": self.output, "position": self.position, "token": self.token, "about": self.about}
        return {**facts, "lines": [line.as_dict() for line in self.lines]}


@torch.no_grad()
def explain(
    translator: Translator,
    text: str,
    token: int = 0,
    *,
    output: Sequence[int] | None = None,
    layer: int = -1,
    head: int = 0,
    **options: Any,
) -> Explanation:
    """Why the model wrote this token: number `token` of the output, <eos> being the last one; -1 counts from there.

    Transformers are explained by one head of one layer: of the attention to the source, or, where there is none, to what is
    written. Recurrent models have one layer and one head, 0. output: ids to be explained instead of the model's own.
    options: those of the search.
    """
    if isinstance(translator.source, FileCodec):
        raise UserError(
            f"explain follows tokens, and this model reads {translator.source.nouns}; look at it with regard inspect"
        )
    segment = translator.read(text)
    if not segment.ids:
        raise UserError("the text is empty, so there is nothing to explain")
    finished = True
    if output is None:
        result = translator.whole(text, **options)
        output, finished = result.ids, result.finished
    written = read_ids(translator, output, finished=finished)
    if not isinstance(token, int) or not -len(written) <= token < len(written):
        raise UserError(f"there is no token {shown(token)}: the output has tokens 0 to {len(written) - 1}, <eos> included")
    position = token % len(written)
    model, device = translator.model, translator.device
    words = translator.target.tokens(range(len(translator.target)))
    read = torch.tensor([[SOS, *written[:-1]]], device=device)
    memory = model.encode(translator.encoder_batch([segment]))
    source = translator.labels(segment, memory.axes)
    before = model.start(memory, read[:, :position] if position else None)
    now = StepInputs(
        model, memory, before.copy(), read[:, position : position + 1], source, translator.target.tokens(read[0].tolist())
    )
    if isinstance(model, RnnSeq2Seq | RnnLm):
        pick("layer", (layer,), 1)
        pick("head", (head,), 1)
        about, lines = "recurrent decoder", list(_recurrent(model, now))
    else:
        decoder = cast(TransformerDecoder, cast(nn.Module, model).decoder)
        about, lines = _transformer(decoder, now, layer, head)
    logits, probabilities = now.step.logits_BKV[0, 0], now.step.logits_BKV[0, 0].softmax(-1)
    check_numbers(logits)
    lines += [
        Line("probabilities", "p = softmax(logits)", probabilities, rows=words),
        Line(
            "token",
            "the likeliest word" if _is_best(logits, written[position]) else "the word written",
            torch.tensor(written[position]),
        ),
    ]
    name = words[written[position]]
    lines = [Line(one.name, one.formula, one.values, one.given, words) if one.name == "logits" else one for one in lines]
    return Explanation(segment.text, translator.target.decode(output), position, name, about, tuple(lines))


def _is_best(logits_V: Tensor, token: int) -> bool:
    return int(logits_V.argmax()) == token


@dataclass
class StepInputs:
    """One step, ready to be taken: `read` (1, 1) is what it reads. `source`, `target`: the tokens of both sides so far."""

    model: Any
    memory: Memory
    before: State
    read: Tensor
    source: tuple[str, ...]
    target: tuple[str, ...]
    step: Step = None  # type: ignore[assignment]

    def take(self, *taps: Tap) -> tuple[Seen, ...]:
        kept = self.before.copy()
        self.step = self.model.step(self.read, self.before, Look(taps) if taps else None)
        self.before = kept
        return self.step.seen


# --- recurrent models --------------------------------------------------------------------------------------------------------


def _recurrent(model: RnnSeq2Seq | RnnLm, now: StepInputs) -> Iterator[Line]:
    attends = isinstance(model, RnnSeq2Seq) and model.settings.decoder != "fixed"
    seen = now.take(*(Tap("cross"), Tap("cross", what="scores")) if attends else ())
    before, after = cast(RnnState, now.before), cast(RnnState, now.step.state)
    width = model.output.in_features if isinstance(model, RnnLm) else model.settings.width
    old, new = (one.hidden_BKLX[0, 0, -1, :width] for one in (before, after))
    logits = now.step.logits_BKV[0, 0]
    if not isinstance(model, RnnSeq2Seq) or not attends:
        yield Line("state", "s_t = RNN(s_{t−1}, y_{t−1}), the last layer's h", new, given=True)
        yield Line("logits", "W_o s_t + b_o", logits)
        return
    weights, scores = (one.weights_BHTS[0, 0, 0] for one in seen)
    waits = model.settings.decoder == "bahdanau"
    query = old if waits else new
    yield Line("query", "s = s_{t−1}, the state before" if waits else "s = s_t, the state after reading", query, given=True)
    yield Line("states", "h_j, the encoder's states", before.values_BSE[0], given=True, rows=now.source)
    yield from _attention(model.score, before.prepared_BSA[0], scores, weights, now.source, model.settings.attention)
    context = weights @ before.values_BSE[0]
    yield Line("context", "c = Σ_j α_j h_j", context)
    if waits:
        yield Line("state", "s_t = RNN(s_{t−1}, [c; y_{t−1}])", new, given=True)
        yield Line("logits", "W_o [s_t; c] + b_o", logits)
    elif model.settings.readout == "plain":
        yield Line("logits", "W_o [s; c] + b_o", logits)
    else:
        yield Line("mixed", "s̃ = tanh(W [c; s] + b)", model.combine(torch.cat((context, query))).tanh())
        yield Line("logits", "W_o s̃ + b_o", logits)


def _attention(
    score: Score, keys_Sd: Tensor, scores_S: Tensor, weights_S: Tensor, rows: tuple[str, ...], attention: str, added: str = ""
) -> Iterator[Line]:
    formula = FORMULAS.get(score.name, f"e_j = {score.name}(s, k_j)")
    if isinstance(score, ScaledDot) and score.name == "scaled_dot" and score.divide_by != "√d":
        formula = f"e_j = s · k_j / {score.divide_by}"
    yield Line("keys", "k_j, what the score compares with", keys_Sd, given=True, rows=rows)
    yield Line("scores", formula + added, scores_S, rows=rows)
    yield Line("allowed", "1 where the query may look", torch.isfinite(scores_S).long(), given=True, rows=rows)
    yield Line("weights", WEIGHTS[attention], weights_S, rows=rows)


# --- Transformers ------------------------------------------------------------------------------------------------------------


@contextmanager
def _watching(**modules: nn.Module) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
    """(first input, output) of each of these modules, the last time that they ran."""
    found: dict[str, tuple[Tensor, Tensor]] = {}

    def keep(name: str, given: tuple[Tensor, ...], output: Tensor) -> None:
        found[name] = (given[0], output)

    hooks = [
        module.register_forward_hook(lambda _, given, output, name=name: keep(name, given, output))
        for name, module in modules.items()
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _transformer(decoder: TransformerDecoder, now: StepInputs, layer: int, head: int) -> tuple[str, list[Line]]:
    blocks = [cast(DecoderLayer, one) for one in decoder.layers]
    kind: Kind = "decoder" if blocks[0].cross is None else "cross"
    number = pick("layer", (layer,), len(blocks))[0]
    block, rows = blocks[number], now.source if kind == "cross" else now.target[: int(now.before.lengths_B) + 1]
    attention = block.attention if block.cross is None else block.cross
    head = pick("head", (head,), attention.heads)[0]
    around = cast(ResidualConnection, block.around_attention if block.cross is None else block.around_cross)
    last = number == len(blocks) - 1
    with _watching(
        query=attention.query,
        into=around.norm,
        output=cast(nn.Module, attention.output),
        feed=block.feed_forward,
        between=block.around_feed_forward.norm,
        norm=decoder.norm,
        logits=decoder.output,
    ) as found:
        taps = (Tap(kind, number, head), Tap(kind, number, head, what="scores"))
        weights, scores = (one.weights_BHTS[0, 0, 0] for one in now.take(*taps))
    here = {
        name: (given.reshape(-1, given.shape[-1])[-1], output.reshape(-1, output.shape[-1])[-1])
        for name, (given, output) in found.items()
    }
    state = cast(CacheState, now.step.state)
    if kind == "cross":
        keys_GSd, values_GSv = state.source_keys[number][0], state.source_values[number][0]
    else:
        keys_GSd, values_GSv = (cache[number][0, :, : len(rows)] for cache in (state.keys, state.values))
    group = head // (attention.heads // attention.kv_heads)
    pre = around.norm_order == "pre"
    x, inner = here["into"] if pre else (here["query"][0], here["query"][0])
    query = here["query"][1].unflatten(-1, (attention.heads, -1))[head]
    if attention.rotary:
        query = attention.queries(here["query"][0][None, None], now.before.lengths_B[:, None])[0, head, 0]
    context = weights @ values_GSv[group]
    joined, output = here["output"]
    lines = [Line("x", "the token's vector before this attention", x, given=True)]
    if pre:
        lines.append(Line("normed", "x' = norm(x)", inner))
    name = "x'" if pre else "x"
    turned = ", turned by its place" if attention.rotary else ""
    added = " − m·|i − j|" if attention.slopes_H is not None else ""
    lines += [
        Line("query", f"s = W_Q {name} + b_Q, head {head}{turned}", query),
        *_attention(attention.score, keys_GSd[group], scores, weights, rows, "soft", added),
        Line("values", "v_j = W_V h_j + b_V", values_GSv[group], given=True, rows=rows),
        Line("context", "c = Σ_j α_j v_j", context),
        Line("contexts", f"the contexts of all heads side by side; this one is number {head}", joined, given=True),
        Line("output", "o = W_O contexts + b_O", output),
    ]
    fed = here["feed"][1]
    if pre:
        between = here["between"][0]
        lines += [
            Line("residual", "y = x + o", between),
            Line("fed", "f = FFN(norm(y))", fed),
            Line("after", "z = y + f", between + fed),
        ]
    else:
        lines += [
            Line("residual", "y = norm(x + o)", here["into"][1]),
            Line("fed", "f = FFN(y)", fed),
            Line("after", "z = norm(y + f)", here["between"][1]),
        ]
    hidden, logits = here["logits"]
    how = ("h = norm(z)" if pre else "h = z") if last else "h, after the layers behind this one"
    lines += [Line("hidden", how, hidden, given=not last), Line("logits", "W_o h + b_o", logits)]
    return f"{'cross-attention' if kind == 'cross' else 'self-attention'}, layer {number}, head {head}", lines
