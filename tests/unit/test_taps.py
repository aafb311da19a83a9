"""Taps of scores, norms and summaries, compared with the weights, for every model of tests/table.py."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from table import MODELS, has_cross, make_model, make_source, make_targets, sums_to_one
from test_attention import Largest

from regard.core import masks
from regard.core.attention import ScaledDot
from regard.core.mechanism import Mechanism
from regard.core.taps import attend_with_look
from regard.layers.attention import MultiHeadAttention
from regard.look import Kind, Look, Seen, Summary, Tap, What
from regard.models.contract import Model
from regard.models.transformer import Transformer

KINDS: tuple[Kind, ...] = ("encoder", "decoder", "cross")
every_model = pytest.mark.parametrize("name", MODELS)


def look_for(what: What, **others: object) -> Look:
    return Look(tuple(Tap(kind, what=what, **others) for kind in KINDS))  # type: ignore[arg-type]


def seen_by(model: Model, look: Look) -> list[Seen]:
    """Taps of whole sequences: B3 S7 T6."""
    source, targets = make_source(7, 3, 5), make_targets(3, 6)
    memory = model.encode(source, look)
    return [*memory.seen, *model.decode(targets, memory, look).seen]


def in_steps(model: Model, look: Look) -> list[list[Seen]]:
    """Taps of decoding step by step, with two hypotheses from the second step on."""
    targets = make_targets(3, 6)
    state = model.start(model.encode(make_source(7, 3, 5)))
    steps = [model.step(targets[:, :1], state, look)]
    state = steps[0].state.select(torch.zeros(3, 2, dtype=torch.long))
    for position in (1, 3):
        steps.append(model.step(targets[:, position : position + 2], state, look))
        state = steps[-1].state
    return [list(step.seen) for step in steps[1:]]


def weights_from_scores(model: Model) -> Callable[[torch.Tensor], torch.Tensor]:
    """The function from scores to weights for this model's type of attention."""
    attention = getattr(getattr(model, "settings", None), "attention", "soft")
    if attention == "unnormalised":
        return lambda scores: scores.masked_fill(scores.isinf(), 0.0)
    if attention == "hard":
        return lambda scores: torch.nn.functional.one_hot(scores.argmax(-1), scores.shape[-1]).double()
    if attention == "gated":
        return lambda scores: (scores > 0).double() / (scores > 0).sum(-1, keepdim=True).clamp(min=1)
    return lambda scores: scores.softmax(-1).nan_to_num(0.0)  # padding that may attend to nothing


def test_every_model_is_tapped_where_it_attends() -> None:
    for name in MODELS:
        expected = {"transformer": {*KINDS}, "decoder_only": {"decoder"}}.get(MODELS[name].kind, {"cross"})
        kinds = {seen.kind for seen in seen_by(make_model(name), look_for("weights"))}
        assert kinds == (expected if has_cross(name) or "decoder" in expected else set())


@every_model
def test_scores_lead_to_weights(name: str) -> None:  # SPEC A9.2
    model = make_model(name)
    weights, scores = seen_by(model, look_for("weights")), seen_by(model, look_for("scores"))
    if has_cross(name) or MODELS[name].kind == "decoder_only":
        assert weights
    for one, other in zip(weights, scores, strict=True):
        assert (one.what, other.what) == ("weights", "scores")
        if getattr(MODELS[name], "attention", "soft") == "monotone":
            continue  # the weights also depend on the jumps, see tests/parity/test_latent.py
        if one.kind != "cross" and not sums_to_one(name, one.kind):  # fixed by position: the weights are the scores
            torch.testing.assert_close(other.weights_BHTS.masked_fill(other.weights_BHTS == -torch.inf, 0.0), one.weights_BHTS)
            continue
        torch.testing.assert_close(weights_from_scores(model)(other.weights_BHTS), one.weights_BHTS)
        if one.kind == "cross":
            assert (other.weights_BHTS[1, :, :, 3:] == -torch.inf).all()


@every_model
def test_summaries_equal_the_matrix(name: str) -> None:  # SPEC A9.2
    model = make_model(name)
    for one, other in zip(seen_by(model, look_for("weights")), seen_by(model, look_for("summary")), strict=True):
        weights, found = one.weights_BHTS, other.summary
        assert found is not None
        torch.testing.assert_close(found.top_weights, weights.topk(min(8, weights.shape[-1])).values)
        assert torch.equal(other.weights_BHTS, found.top_weights)
        torch.testing.assert_close(weights.gather(-1, found.top_keys), found.top_weights)
        torch.testing.assert_close(found.mass, weights.sum(-2))
        torch.testing.assert_close(found.blocks, weights)  # short texts have a block for every pair
        shares = weights.abs() / weights.abs().sum(-1, keepdim=True).clamp(min=1e-30)
        torch.testing.assert_close(found.entropy, torch.special.entr(shares).sum(-1))
        if one.kind == "cross":
            assert found.distance is None
            continue
        positions = torch.arange(weights.shape[-1])
        away = (positions[:, None] - positions).abs()
        torch.testing.assert_close(found.distance, (weights * away).sum(-1))


@pytest.mark.parametrize("name", ["rnn additive", "transformer scaled_dot"])
def test_distances_are_those_within_one_sequence(name: str) -> None:
    """A source and a target that happen to be equally long have no distances between them."""
    model, look = make_model(name), look_for("summary")
    memory = model.encode(make_source(6, 6), look)
    for seen in (*memory.seen, *model.decode(make_targets(2, 6), memory, look).seen):
        assert seen.summary is not None
        assert (seen.summary.distance is None) == (seen.kind == "cross")


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize("tile", [1, 7 * 3, 1 << 19])
def test_summaries_with_alibi_equal_the_matrix(tile: int, kv_heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each head has a slope of its own, also where a tile holds fewer rows than all heads have."""
    monkeypatch.setattr("regard.core.summary.TILE", tile)
    layer = MultiHeadAttention(12, 4, kv_heads=kv_heads, alibi=True).double()
    layer.slopes_H = torch.tensor([3.0, 1.0, 0.3, 0.1])
    x, allow = torch.randn(2, 7, 12).double(), masks.first(torch.tensor([7, 4]), 7)[:, None, None]
    look = Look((Tap("encoder"), Tap("encoder", what="summary"), Tap("encoder", head=2, rows=(5, 1), what="summary")))
    weights, summary, part = layer.attend(layer.queries(x), *layer.keys_values(x), allow, look).seen
    positions = torch.arange(7)
    away = (positions[:, None] - positions).abs()
    for found, expected, rows in (
        (summary.summary, weights.weights_BHTS, away),
        (part.summary, weights.weights_BHTS[:, 2:3, [5, 1]], away[[5, 1]]),
    ):
        torch.testing.assert_close(found.top_weights, expected.topk(7).values)
        torch.testing.assert_close(found.mass, expected.sum(-2))
        torch.testing.assert_close(found.entropy, torch.special.entr(expected).sum(-1))
        if found.distance is not None:
            torch.testing.assert_close(found.distance, (expected * rows).sum(-1))
    assert summary.summary.distance is not None
    means = summary.summary.distance[0].mean(-1)
    assert (means.diff() > 0).all()  # the gentler the slope, the further a head attends


def test_equal_weights_have_unequal_effects() -> None:  # SPEC A0.11
    """Equal keys get equal weights. What the output loses without a value is α v W_o: its norm is another for every value, and
    0 for a value that the output projection does not read."""
    layer = MultiHeadAttention(6, 1, bias=False).double()
    x, memory = torch.randn(1, 1, 6).double(), torch.randn(1, 4, 6).double()
    with torch.no_grad():
        layer.key.weight.zero_()  # all keys are equal
        layer.value.weight.copy_(torch.eye(6))
        layer.output.weight[:, 0] = 0.0
        memory[0, 2] = torch.eye(6)[0]  # only in the direction that is not read
    query, (keys, values) = layer.queries(x), layer.keys_values(memory)
    attended = layer.attend(query, keys, values, None, Look((Tap("cross"), Tap("cross", what="norms"))))
    weights, norms = (seen.weights_BHTS[0, 0, 0] for seen in attended.seen)
    torch.testing.assert_close(weights, torch.full((4,), 0.25).double())
    effects = []
    for key in range(4):
        without = values.clone()
        without[:, :, key] = 0
        effects.append((attended.context - layer.attend(query, keys, without, None, None).context).norm())
    torch.testing.assert_close(norms, torch.stack(effects))
    assert norms[2] < 1e-9
    assert norms[[0, 1, 3]].min() > 0.01
    assert norms[[0, 1, 3]].max() > 1.2 * norms[[0, 1, 3]].min()


def output_weights(model: Model, one: Seen) -> torch.Tensor | None:
    """(H, v, D), by hand."""
    if not isinstance(model, Transformer):
        return None
    layer = (model.encoder if one.kind == "encoder" else model.decoder).layers[one.layer]
    attention = layer.cross if one.kind == "cross" else layer.attention
    if isinstance(attention.output, torch.nn.Identity):
        return torch.eye(attention.value_dim, dtype=torch.float64).expand(attention.heads, -1, -1)
    return attention.output.weight.T.reshape(attention.heads, -1, attention.output.weight.shape[0])


@every_model
def test_norms_by_hand(name: str) -> None:  # SPEC A9.2
    """‖α_ij v_j W_o‖, with the products written out: every query, key and head has its own vector."""
    model = make_model(name)
    source = make_source(7, 3, 5)
    memory = model.encode(source)
    for one, other in zip(seen_by(model, look_for("weights")), seen_by(model, look_for("norms")), strict=True):
        if one.kind != "cross":
            continue
        output = output_weights(model, one)
        if output is None:
            vectors = one.weights_BHTS[..., None] * memory.values_BSE[:, None, None]
        else:
            attention = model.decoder.layers[one.layer].cross
            if attention.value is None:
                values = memory.values_BSE[:, None].repeat(1, attention.heads, 1, 1)
            else:
                values = attention.value(memory.values_BSE).unflatten(-1, (attention.kv_heads, -1)).transpose(1, 2)
                values = values.repeat_interleave(attention.heads // attention.kv_heads, dim=1)
            vectors = torch.einsum("bhts,bhsv,hvd->bhtsd", one.weights_BHTS, values, output)
        torch.testing.assert_close(other.weights_BHTS, vectors.norm(dim=-1))


@every_model
@pytest.mark.parametrize("what", ["weights", "scores", "norms", "summary"])
def test_some_heads_and_rows_are_those_of_all(name: str, what: What) -> None:
    model, rows = make_model(name), (5, 0, -2, 0)
    part = look_for(what, head=-1, rows=rows)
    for all_, some in zip(seen_by(model, look_for(what)), seen_by(model, part), strict=True):
        length = len(all_.rows)
        numbers = [row % length for row in rows]
        assert (some.heads, some.rows) == (all_.heads[-1:], tuple(numbers))
        torch.testing.assert_close(some.weights_BHTS, all_.weights_BHTS[:, -1:, numbers])
        if all_.summary is not None:
            assert some.summary is not None
            torch.testing.assert_close(some.summary.entropy, all_.summary.entropy[:, -1:, numbers])
            if all_.summary.distance is not None:
                torch.testing.assert_close(some.summary.distance, all_.summary.distance[:, -1:, numbers])
    for all_step, some_step in zip(in_steps(model, look_for(what)), in_steps(model, look_for(what, rows=(-1,))), strict=True):
        for all_, some in zip(all_step, some_step, strict=True):
            assert (all_.rows, some.rows) == ((0, 1), (1,))
            torch.testing.assert_close(some.weights_BHTS, all_.weights_BHTS[:, :, 1:])


@every_model
def test_summaries_of_steps_equal_the_weights(name: str) -> None:
    """In a step, every hypothesis has its own keys."""
    model = make_model(name)
    for weights, summaries in zip(in_steps(model, look_for("weights")), in_steps(model, look_for("summary")), strict=True):
        for one, other in zip(weights, summaries, strict=True):
            assert other.summary is not None
            torch.testing.assert_close(other.summary.mass, one.weights_BHTS.sum(2))
            torch.testing.assert_close(other.summary.blocks, one.weights_BHTS)
            assert other.summary.top_keys.shape == other.summary.top_weights.shape == other.weights_BHTS.shape


def test_a_tap_of_a_few_rows_computes_a_few_rows() -> None:
    attention = MultiHeadAttention(8, 2)
    x = torch.randn(1, 257, 8)
    query, (key, value) = attention.queries(x), attention.keys_values(x)
    mechanism = Mechanism(ScaledDot())  # without a mask, which would have a number for every pair
    for what in ("weights", "scores", "norms"):
        look = Look((Tap("encoder", 0, rows=(7, 200), what=what),))  # type: ignore[arg-type]
        with Largest() as largest:
            attend_with_look(query, key, value, mechanism, look)
        assert largest.numel <= 2 * 257 * 8  # all pairs would be 2 x 257 x 257


@every_model
@pytest.mark.parametrize("what", ["weights", "scores", "norms", "summary"])
def test_a_single_row_may_be_requested_twice(name: str, what: What) -> None:
    """Of an output of one token, and of one hypothesis, the rows (-1, 0) are both row 0."""
    model, look = make_model(name), look_for(what, rows=(-1, 0))
    source, targets = make_source(1, 1), make_targets(2, 1)
    memory = model.encode(source, look)
    for seen in (
        *memory.seen,
        *model.decode(targets, memory, look).seen,
        *model.decode(targets, memory, replace(look, grad=what == "summary")).seen,
        *model.step(targets, model.start(memory), look).seen,
    ):
        assert seen.rows == (0, 0)
        assert seen.weights_BHTS.shape[2] == 2
        assert torch.equal(seen.weights_BHTS[:, :, 0], seen.weights_BHTS[:, :, 1])
        if seen.summary is not None:
            assert seen.summary.entropy.shape[2] == 2


def test_block_means_of_long_texts() -> None:
    """Blocks have 3 x 6 positions; the last ones have fewer."""
    import regard

    query, key = torch.randn(2, 257, 3).double(), torch.randn(2, 641, 3).double()
    found: Summary = regard.summarise(query, key, blocks=True)
    weights = regard.attention_weights(query, key)
    rows = [part.mean(-2, keepdim=True) for part in weights.split(3, dim=-2)]
    expected = torch.cat(rows, dim=-2)
    expected = torch.cat([part.mean(-1, keepdim=True) for part in expected.split(6, dim=-1)], dim=-1)
    torch.testing.assert_close(found.blocks, expected)
    assert found.distance is None


def test_a_look_under_grad_gives_the_whole_tensor_once() -> None:
    model = make_model("rnn lstm, bahdanau, 2+2 layers")
    look = Look((Tap("cross", rows=(1,)), Tap("cross", rows=(2,)), Tap("cross", what="scores", rows=(2,))), grad=True)
    weights, scores = seen_by(model, look)
    assert weights.weights_BHTS.shape == (3, 1, 6, 7)
    assert weights.weights_BHTS.requires_grad
    assert scores.weights_BHTS.shape == (3, 1, 1, 7)
    assert not scores.weights_BHTS.requires_grad
    assert replace(look, grad=False).at_row(0, 6) is None
