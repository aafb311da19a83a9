"""Explains one output token with its actual numbers, from the query to the token: each line is computed from those above it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Unpack, cast

import torch
from torch import Tensor, nn

from regard.core.attention import ScaledDot
from regard.core.score import Score
from regard.data.reader import Given
from regard.data.source_text import flat
from regard.data.sources import FileCodec
from regard.decoding.search import NOT_FINITE
from regard.equality import ByValue
from regard.errors import UserError, shown
from regard.inspection.capture import read_ids, translate_whole
from regard.layers.blocks import ResidualConnection, TransformerDecoderLayer
from regard.layers.fixed import FixedMixing
from regard.look import Kind, Look, Seen, Tap, pick
from regard.models.contract import Memory, State, Step
from regard.models.decoder import CacheState, TargetDecoder
from regard.models.decoder_only import DecoderOnly
from regard.models.ensemble import Ensemble
from regard.models.rnn_lm import RnnLm
from regard.models.rnn_seq2seq import RnnSeq2Seq, RnnState
from regard.models.transformer import Transformer
from regard.options import SearchKeywords
from regard.pipeline import Translator

# S keys  D width  d, v width of a head's keys, of its values  H heads  G key-value heads  V vocabulary

FORMULAS = {
    "dot": "e_j = s · k_j",
    "scaled_dot": "e_j = s · k_j / √d",
    "general": "e_j = s · k_j, k_j = W h_j",
    "basic": "e_j = s · k_j, k_j = Qᵀ K h_j / d",
    "additive": "e_j = vᵀ tanh(W_b s + k_j), k_j = W_c h_j",
    "concat": "e_j = vᵀ tanh(W [s; h_j]) = vᵀ tanh(W_b s + k_j), k_j = W_c h_j, W = [W_b W_c]",
    "location": "e_j = s · k_j, k_j = W_j",
    "cosine": "e_j = cos(s, h_j) / temperature, k_j = h_j / ‖h_j‖",
    "distance": "e_j = −‖s − k_j‖² / 2d",
}
WEIGHTS = {
    "soft": "α = softmax(e) over the allowed keys",
    "unnormalised": "α = e, 0 for keys that are not allowed",
    "hard": "α = 1 for the best allowed key, else 0",
    "gated": "α = g / max(1, Σ g), g_j = 1 where e_j > 0",
    "marginal": "α = softmax(e) over the allowed keys",
    "monotone": "α_j = p(a_t = j | y_<t), from e, the jumps and the alignments of the tokens so far",
}


@dataclass(frozen=True, eq=False)
class ExplanationLine(ByValue):
    """A number, a vector or a matrix, with the formula that it comes from.

    given: whether it is taken from the model, not computed from the lines above. rows: the tokens of its first axis, if any.

    >>> line = regard.explain(regard.load("model"), "cab").lines[-2]
    >>> line.name, line.formula, line.rows[:4]
    ('probabilities', 'p = softmax(logits)', ('<pad>', '<unk>', '<sos>', '<eos>'))
    >>> list(line.as_dict())
    ['name', 'formula', 'given', 'values', 'rows']
    """

    name: str
    formula: str
    values: Tensor
    given: bool = False
    rows: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Returns the line for JSON, which has no −∞: it becomes null."""

        def plain(value: Any) -> Any:
            if isinstance(value, list):
                return [plain(item) for item in value]
            return value if not isinstance(value, float) or abs(value) != float("inf") else None

        facts = {"name": self.name, "formula": self.formula, "given": self.given, "values": plain(self.values.tolist())}
        return {**facts, "rows": list(self.rows)} if self.rows else facts


@dataclass(frozen=True)
class Explanation:
    """How one output token was computed. `explanation["weights"]` returns the values of the line with that name.

    text, output: the source and the whole output. position, token: the token that is explained, and its index in the output.
    about: the part of the model that is explained, e.g. "cross-attention, layer 1, head 0".

    >>> explanation = regard.explain(regard.load("model"), "cab")
    >>> [line.name for line in explanation.lines]
    ['query', 'states', 'keys', 'scores', 'allowed', 'weights', 'context', 'mixed', 'logits', 'probabilities', 'token']
    >>> explanation["logits"].shape == explanation["probabilities"].shape
    True
    >>> list(explanation.as_dict())
    ['text', 'output', 'position', 'token', 'about', 'lines']
    """

    text: str
    output: str
    position: int
    token: str
    about: str
    lines: tuple[ExplanationLine, ...]

    def __getitem__(self, name: str) -> Tensor:
        return next(line.values for line in self.lines if line.name == name)

    def as_dict(self) -> dict[str, Any]:
        """Returns the explanation for JSON."""
        facts = {"text": self.text, "output": self.output, "position": self.position, "token": self.token, "about": self.about}
        return {**facts, "lines": [line.as_dict() for line in self.lines]}


@torch.no_grad()
def explain(
    translator: Translator,
    text: Given,
    token: int = 0,
    *,
    output: Sequence[int] | None = None,
    layer: int = -1,
    head: int = 0,
    **options: Unpack[SearchKeywords],
) -> Explanation:
    """Explains how the model computed one token of its output, number by number.

    token: index in the output, whose last token is <eos>; -1 is the last.
    layer, head: Transformers are explained by one head of one layer of their cross-attention or, without a source, of their
    self-attention; recurrent models have only layer 0 and head 0.
    output: ids of another output to explain instead of the model's own. options: options of the search.

    Raises UserError if the text is empty, the model reads files, or there is no such token, layer or head.

    >>> explanation = regard.explain(regard.load("model"), "cab", token=1)
    >>> explanation.token, explanation.about
    ('A', 'recurrent decoder')
    >>> explanation["weights"].argmax()  # it attends to the letter "a"
    tensor(1)
    """
    if isinstance(translator.source, FileCodec):
        raise UserError(f"explain follows tokens, but this model reads {translator.source.nouns}; use regard inspect instead")
    reader = translator.reader
    segment = reader.segment(reader.accept(text, "explain"))
    if not segment.request.num_positions:
        raise UserError("the text is empty, so there is nothing to explain")
    finished = True
    if output is None:
        result = translate_whole(translator, segment.source, options)
        output, finished = result.ids, result.finished
    written = read_ids(translator, output, finished=finished)
    if not isinstance(token, int) or not -len(written) <= token < len(written):
        raise UserError(f"there is no token {shown(token)}: the output has tokens 0 to {len(written) - 1}, <eos> included")
    position = token % len(written)
    engine = translator.torch_engine.evaluating()
    model = engine.model
    words = translator.target.tokens(range(len(translator.target)))
    memory = model.encode(engine.collate([segment.request.source]))
    read = torch.tensor([[engine.specials.start, *written[:-1]]], device=memory.allow_BS.device)
    source = reader.labels(segment.source, memory.axes)
    before = model.start(memory, read[:, :position] if position else None)
    inputs = StepInputs(
        model, memory, before.copy(), read[:, position : position + 1], source, translator.target.tokens(read[0].tolist())
    )
    if isinstance(model, RnnSeq2Seq | RnnLm):
        pick("layer", (layer,), 1)
        pick("head", (head,), 1)
        about, lines = "recurrent decoder", list(_recurrent(model, inputs))
    elif isinstance(model, Transformer | DecoderOnly):
        about, lines = _transformer(model.decoder, inputs, layer, head)
    elif isinstance(model, Ensemble):
        raise UserError(f"this is an ensemble of {len(model.members)} models, and explain shows one; load one of them")
    else:
        raise UserError(f"explain knows recurrent models and Transformers, but this model is a {type(model).__name__}")
    logits, probabilities = inputs.step.logits_BKV[0, 0], inputs.step.logits_BKV[0, 0].softmax(-1)
    if bool(logits.isnan().any()):
        raise UserError(NOT_FINITE.format("nan"))
    lines += [
        ExplanationLine("probabilities", "p = softmax(logits)", probabilities, rows=words),
        ExplanationLine(
            "token",
            "the most probable word" if _is_best(logits, written[position]) else "the word written",
            torch.tensor(written[position]),
        ),
    ]
    name = words[written[position]]
    lines = [
        ExplanationLine(line.name, line.formula, line.values, line.given, words) if line.name == "logits" else line
        for line in lines
    ]
    return Explanation(flat(segment.source), translator.target.decode(output), position, name, about, tuple(lines))


def _is_best(logits_V: Tensor, token: int) -> bool:
    return int(logits_V.argmax()) == token


@dataclass
class StepInputs:
    """The inputs of one decoder step. read: (1, 1), the token that it reads. source, target: the tokens of both sides.

    step: the result of the last `take`.
    """

    model: Any
    memory: Memory
    before: State
    read: Tensor
    source: tuple[str, ...]
    target: tuple[str, ...]
    step: Step = None  # type: ignore[assignment]

    def take(self, *taps: Tap) -> tuple[Seen[Tensor], ...]:
        """Runs the step and returns what the taps requested. `before` can be used again."""
        kept = self.before.copy()
        self.step = self.model.step(self.read, self.before, Look(taps) if taps else None)
        self.before = kept
        return self.step.seen


# --- recurrent models --------------------------------------------------------------------------------------------------------


def _recurrent(model: RnnSeq2Seq | RnnLm, inputs: StepInputs) -> Iterator[ExplanationLine]:
    attends = isinstance(model, RnnSeq2Seq) and model.settings.decoder != "fixed"
    seen = inputs.take(*(Tap("cross"), Tap("cross", what="scores")) if attends else ())
    before, after = cast(RnnState, inputs.before), cast(RnnState, inputs.step.state)
    width = model.output.in_features if isinstance(model, RnnLm) else model.settings.width
    old, new = (state.hidden_BKLX[0, 0, -1, :width] for state in (before, after))
    logits = inputs.step.logits_BKV[0, 0]
    if not isinstance(model, RnnSeq2Seq) or not attends:
        yield ExplanationLine("state", "s_t = RNN(s_{t−1}, y_{t−1}), the last layer's h", new, given=True)
        yield ExplanationLine("logits", "W_o s_t + b_o", logits)
        return
    weights, scores = (result.weights_BHTS[0, 0, 0] for result in seen)
    attends_first = model.settings.decoder == "bahdanau"
    query = old if attends_first else model.with_features(new[None, None], before)[0, 0]
    yield ExplanationLine(
        "query",
        "s = s_{t−1}, the state before this step"
        if attends_first
        else f"s = s_t, the state of this step{', with its features' if model.settings.features == 'set' else ''}",
        query,
        given=True,
    )
    yield ExplanationLine("states", "h_j, the encoder's states", before.values_BSE[0], given=True, rows=inputs.source)
    yield from _attention(model.score, before.prepared_BSA[0], scores, weights, inputs.source, model.settings.attention)
    if model.settings.sums_choices:
        last = "; p_j(<eos>) = 0 except for the last key" if model.settings.attention == "monotone" else ""
        formula = "log Σ_j α_j p_j"
        if model.settings.copy:
            query_part = model.gate(torch.cat((query, torch.zeros_like(before.values_BSE[0, 0]))))
            gates = (query_part + before.gates_BS[0]).sigmoid()
            yield ExplanationLine("gates", "g_j = σ(W_g [s; h_j] + b_g), 0 for special tokens", gates, rows=inputs.source)
            formula = "log Σ_j α_j (g_j [x_j] + (1 − g_j) p_j)"
        yield ExplanationLine("logits", f"{formula}, p_j = softmax(W_o [s; h_j] + b_o){last}", logits)
        return
    context = weights @ before.values_BSE[0]
    yield ExplanationLine("context", "c = Σ_j α_j h_j", context)
    if attends_first:
        yield ExplanationLine("state", "s_t = RNN(s_{t−1}, [c; y_{t−1}])", new, given=True)
        activation = model.settings.readout_activation
        readout = "[s_t; c]" if activation == "none" else f"{activation}([s_t; c])"
        yield ExplanationLine("logits", f"W_o {readout} + b_o", logits)
    elif model.settings.readout == "plain":
        yield ExplanationLine("logits", "W_o [s; c] + b_o", logits)
    else:
        yield ExplanationLine("mixed", "s̃ = tanh(W [c; s] + b)", model.combine(torch.cat((context, query))).tanh())
        yield ExplanationLine("logits", "W_o s̃ + b_o", logits)


def _attention(
    score: Score, keys_Sd: Tensor, scores_S: Tensor, weights_S: Tensor, rows: tuple[str, ...], attention: str, added: str = ""
) -> Iterator[ExplanationLine]:
    formula = FORMULAS.get(score.name, f"e_j = {score.name}(s, k_j)")
    if isinstance(score, ScaledDot) and score.name == "scaled_dot" and score.divide_by != "√d":
        formula = f"e_j = s · k_j / {score.divide_by}"
    yield ExplanationLine("keys", "k_j, the keys that the score compares with s", keys_Sd, given=True, rows=rows)
    yield ExplanationLine("scores", formula + added, scores_S, rows=rows)
    yield ExplanationLine("allowed", "1 where the query may attend", torch.isfinite(scores_S).long(), given=True, rows=rows)
    yield ExplanationLine("weights", WEIGHTS[attention], weights_S, given=attention == "monotone", rows=rows)


# --- Transformers ------------------------------------------------------------------------------------------------------------


@contextmanager
def _recording(**modules: nn.Module) -> Iterator[dict[str, tuple[Tensor, Tensor]]]:
    """Records (first input, output) of the last call of each module."""
    recorded: dict[str, tuple[Tensor, Tensor]] = {}

    def keep(name: str, arguments: tuple[Tensor, ...], output: Tensor) -> None:
        recorded[name] = (arguments[0], output)

    hooks = [
        module.register_forward_hook(lambda _, arguments, output, name=name: keep(name, arguments, output))
        for name, module in modules.items()
    ]
    try:
        yield recorded
    finally:
        for hook in hooks:
            hook.remove()


def _transformer(decoder: TargetDecoder, inputs: StepInputs, layer: int, head: int) -> tuple[str, list[ExplanationLine]]:
    blocks = [cast(TransformerDecoderLayer, block) for block in decoder.layers]
    kind: Kind = "decoder" if blocks[0].cross is None else "cross"
    number = pick("layer", (layer,), len(blocks))[0]
    block = blocks[number]
    rows = inputs.source if kind == "cross" else inputs.target[: int(inputs.before.lengths_B) + 1]
    attention = block.attention if block.cross is None else block.cross
    if isinstance(attention, FixedMixing):
        raise UserError(f"explain shows attention, but this model has none: it mixes positions by {attention.score.name}")
    head = pick("head", (head,), attention.heads)[0]
    around = cast(ResidualConnection, block.around_attention if block.cross is None else block.around_cross)
    last = number == len(blocks) - 1
    with _recording(
        query=attention.query,
        into=around.norm,
        output=cast(nn.Module, attention.output),
        feed=block.feed_forward,
        between=block.around_feed_forward.norm,
        norm=decoder.norm,
        logits=decoder.output,
    ) as recorded:
        taps = (Tap(kind, number, head), Tap(kind, number, head, what="scores"))
        weights, scores = (result.weights_BHTS[0, 0, 0] for result in inputs.take(*taps))
    vectors = {  # (input, output) of each module for the token that this step reads
        name: (x.reshape(-1, x.shape[-1])[-1], output.reshape(-1, output.shape[-1])[-1])
        for name, (x, output) in recorded.items()
    }
    state = cast(CacheState, inputs.step.state)
    if kind == "cross":
        keys_GSd, values_GSv = state.source_keys[number][0], state.source_values[number][0]
    else:
        keys_GSd, values_GSv = (cache[number][0, :, : len(rows)] for cache in (state.keys, state.values))
    group = head // (attention.heads // attention.kv_heads)
    pre = around.norm_order == "pre"
    x, inner = vectors["into"] if pre else (vectors["query"][0], vectors["query"][0])
    query = vectors["query"][1].unflatten(-1, (attention.heads, -1))[head]
    if attention.rotary:
        query = attention.queries(vectors["query"][0][None, None], inputs.before.lengths_B[:, None])[0, head, 0]
    context = weights @ values_GSv[group]
    joined, output = vectors["output"]
    lines = [ExplanationLine("x", "the token's vector before this attention", x, given=True)]
    if pre:
        lines.append(ExplanationLine("normed", "x' = norm(x)", inner))
    name = "x'" if pre else "x"
    rotated = ", rotated by its position" if attention.rotary else ""
    added = " − m·|i − j|" if attention.slopes_H is not None else ""
    lines += [
        ExplanationLine("query", f"s = W_Q {name} + b_Q, head {head}{rotated}", query),
        *_attention(attention.score, keys_GSd[group], scores, weights, rows, "soft", added),
        ExplanationLine(
            "values",
            "v_j = h_j" if attention.value is None else "v_j = W_V h_j + b_V",
            values_GSv[group],
            given=True,
            rows=rows,
        ),
        ExplanationLine("context", "c = Σ_j α_j v_j", context),
        ExplanationLine(
            "contexts", f"the contexts of all heads, concatenated; that of this head has index {head}", joined, given=True
        ),
        ExplanationLine(
            "output", "o = contexts" if isinstance(attention.output, nn.Identity) else "o = W_O contexts + b_O", output
        ),
    ]
    fed, (x_and, y_and) = vectors["feed"][1], ("x + ", "y + ") if around.adds else ("", "")
    if pre:
        between = vectors["between"][0]
        lines += [
            ExplanationLine("residual", f"y = {x_and}o", between),
            ExplanationLine("fed", "f = FFN(norm(y))", fed),
            ExplanationLine("after", f"z = {y_and}f", between + fed if around.adds else fed),
        ]
    else:
        lines += [
            ExplanationLine("residual", f"y = norm({x_and}o)", vectors["into"][1]),
            ExplanationLine("fed", "f = FFN(y)", fed),
            ExplanationLine("after", f"z = norm({y_and}f)", vectors["between"][1]),
        ]
    hidden, logits = vectors["logits"]
    formula = ("h = norm(z)" if pre else "h = z") if last else "h, after the layers that follow this one"
    lines += [ExplanationLine("hidden", formula, hidden, given=not last), ExplanationLine("logits", "W_o h + b_o", logits)]
    return f"{'cross-attention' if kind == 'cross' else 'self-attention'}, layer {number}, head {head}", lines
