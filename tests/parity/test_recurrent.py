"""Recurrent cells, encoders and decoders compared with torch's packed sequences and the formulas in regard.reference."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import get_args

import numpy as np
import pytest
import torch
from table import SOURCE_VOCAB, TARGET_VOCAB, make_source, make_targets
from torch import Tensor, nn

from regard import reference
from regard.core import masks
from regard.core.source import Source
from regard.core.weights import AttentionType
from regard.layers.reach import gradient_reach
from regard.layers.recurrent import CELLS, RecurrentEncoder, StepwiseStack, layer_weights, make_stack, run, state_width
from regard.layers.scores import SCORES
from regard.look import Edit, Look, Tap
from regard.models.build import build
from regard.models.contract import Memory, Model
from regard.models.rnn_lm import RnnLmSettings
from regard.models.rnn_seq2seq import RnnSeq2Seq, RnnSettings
from regard.models.tagger import RnnTagger, RnnTaggerSettings

every_cell = pytest.mark.parametrize("cell", CELLS)
TORCH = {
    "rnn_tanh": partial(nn.RNN, nonlinearity="tanh"),
    "rnn_relu": partial(nn.RNN, nonlinearity="relu"),
    "lstm": nn.LSTM,
    "gru": nn.GRU,
}
FUNCTIONS = {"rnn_tanh": np.tanh, "rnn_relu": reference.relu, "rnn_sigmoid": reference.sigmoid}


def array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().double().numpy()


def assert_equals(ours: Tensor, theirs: np.ndarray) -> None:
    torch.testing.assert_close(ours, torch.from_numpy(np.array(theirs)))


def formula(cell: str, stack: nn.RNNBase, layer: int = 0) -> reference.Cell:
    """Returns the formula of one of our layers, with its weights."""
    W, U, b_W, b_U = map(array, layer_weights(stack, layer))
    if cell == "gru":
        return lambda x, h: reference.gru_cell(x, h, W, U, b_W, b_U)
    if cell == "lstm":
        return lambda x, h, c: reference.lstm_cell(x, h, c, W, U, b_W + b_U)
    return lambda x, h: reference.rnn_cell(x, h, W, U, b_W + b_U, FUNCTIONS[cell])


def parts(cell: str, state: np.ndarray) -> reference.State:
    return tuple(np.split(state, 2, axis=-1)) if cell == "lstm" else (state,)


# --- cells -------------------------------------------------------------------------------------------------------------------


@every_cell
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("layers", [1, 2])
def test_encoders_equal_torch_packed(cell: str, bidirectional: bool, layers: int) -> None:  # SPEC A5.1
    """Compares values and all gradients; padding is never read. torch has no sigmoid cell: it is compared with its formula."""
    ours = RecurrentEncoder(cell, 5, 22, layers, bidirectional=bidirectional).double()
    x, lengths = torch.randn(3, 7, 5).double().requires_grad_(), torch.tensor([7, 2, 5])
    allow = masks.first(lengths, 7)
    states, ends = ours(x, allow)
    states = states * allow[..., None]
    directions = [(ours.forwards, ""), (ours.backwards, "_reverse")][: 2 if bidirectional else 1]
    if cell == "rnn_sigmoid":
        for row, length in enumerate(lengths.tolist()):
            h = array(x)[row, :length]
            for layer in range(layers):
                ahead, *back = (formula(cell, stacks[layer]) for stacks, _ in directions)
                zeros = (np.zeros(11 if bidirectional else 22),)
                if back:
                    h, end = reference.bidirectional(ahead, back[0], h, zeros)
                else:
                    h, (end,) = reference.unroll(ahead, h, zeros)
            assert_equals(states[row, :length], h)
            assert_equals(ends[row], end)
        return
    width = 11 if bidirectional else 22
    theirs = TORCH[cell](5, width, num_layers=layers, bidirectional=bidirectional, batch_first=True).double()
    pairs = [(x, x)]
    for layer in range(layers):
        for stacks, suffix in directions:
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                pairs.append((getattr(stacks[layer], f"{name}_l0"), getattr(theirs, f"{name}_l{layer}{suffix}")))
                pairs[-1][1].data.copy_(pairs[-1][0])
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    outputs, last = theirs(packed)
    last = last[0] if cell == "lstm" else last
    expected, _ = nn.utils.rnn.pad_packed_sequence(outputs, batch_first=True)
    for mine, other in ((states, expected), (ends, torch.cat(tuple(last[-len(directions) :]), dim=-1))):
        torch.testing.assert_close(mine, other)
        weights = torch.randn_like(mine)
        our_gradients = torch.autograd.grad((mine * weights).sum(), [tensor for tensor, _ in pairs], retain_graph=True)
        their_gradients = torch.autograd.grad((other * weights).sum(), [tensor for _, tensor in pairs], retain_graph=True)
        for gradient, their_gradient in zip(our_gradients, their_gradients, strict=True):
            torch.testing.assert_close(gradient, their_gradient)


@every_cell
def test_single_steps_equal_the_whole_sequence(cell: str) -> None:  # SPEC A5.1
    """Two layers from any state; values and gradients. The first 3 of 8 input columns are only passed at each step."""
    stack = make_stack(cell, 8, 11, layers=2).double()
    x = torch.randn(3, 5, 8).double().requires_grad_()
    first = torch.randn(2, 3, state_width(stack)).double().requires_grad_()
    whole = run(stack, x, first)
    steps = StepwiseStack(stack, x[..., 3:])
    states, outputs = steps.split(first), []
    for step in range(5):
        states = steps(step, x[:, step, :3], states)
        outputs.append(states[-1][0])
    single = torch.stack(outputs, dim=1), steps.join(states)
    weights, inputs = [torch.randn_like(tensor) for tensor in whole], [x, first, *stack.parameters()]
    gradients = [
        torch.autograd.grad(sum((tensor * weight).sum() for tensor, weight in zip(result, weights, strict=True)), inputs)
        for result in (whole, single)
    ]
    for expected, stepwise in zip((*whole, *gradients[0]), (*single, *gradients[1]), strict=True):
        torch.testing.assert_close(expected, stepwise)


def test_the_gradient_of_the_sigmoid_network() -> None:
    stack = make_stack("rnn_sigmoid", 2, 3, layers=2).double()
    x, state = torch.randn(2, 4, 2).double().requires_grad_(), torch.randn(2, 2, 3).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda x, state, *_: run(stack, x, state), (x, state, *stack.parameters()))


@every_cell
def test_dropout_between_layers_is_the_same_in_a_loop(cell: str) -> None:
    """Drops units of the lower layer and scales up the others; the input of the stack and its output are not dropped."""
    stack = make_stack(cell, 2, 400, layers=2, dropout=0.25).double()
    steps = StepwiseStack(stack, torch.randn(3, 5, 2).double())
    assert steps.dropout_masks[0] is None
    kept = torch.stack(tuple(steps.dropout_masks[1]))
    assert kept.shape == (5, 3, 400)
    assert set(kept.unique().tolist()) == {0.0, 1 / 0.75}
    assert (kept == 0).double().mean().item() == pytest.approx(0.25, abs=0.03)
    assert StepwiseStack(stack.eval(), torch.randn(3, 5, 2).double()).dropout_masks == [None, None]


@every_cell
def test_weights_in_a_loop_may_be_frozen(cell: str) -> None:
    """Then only the other weights get gradients, and gradients still flow through the frozen ones."""
    stack = make_stack(cell, 8, 11).double()
    stack.weight_hh_l0.requires_grad_(False)
    x = torch.randn(3, 5, 8).double().requires_grad_()
    inputs = [x, stack.weight_ih_l0, stack.bias_hh_l0]
    steps = StepwiseStack(stack, x[..., 3:])
    states = steps.split(torch.zeros(1, 3, state_width(stack)).double())
    for step in range(5):
        states = steps(step, x[:, step, :3], states)
    results = [torch.autograd.grad(last.square().sum(), inputs) for last in (run(stack, x)[1], steps.join(states))]
    for expected, stepwise in zip(*results, strict=True):
        torch.testing.assert_close(expected, stepwise)


def test_unknown_cells_are_refused() -> None:
    with pytest.raises(ValueError, match=r"there is no cell 'gur'; expected one of rnn_tanh, .* did you mean .gru.\?"):
        make_stack("gur", 2, 3)
    with pytest.raises(ValueError, match="width 7 cannot be split evenly between two directions; make it even"):
        RecurrentEncoder("gru", 2, 7)


# --- decoders ----------------------------------------------------------------------------------------------------------------

NORMALISERS: dict[AttentionType, reference.Weighting] = {
    "soft": reference.softmax,
    "unnormalised": lambda scores, allow: reference.masked(scores, allow, 0.0),
    "hard": reference.hard,
    "gated": reference.hard_gates,
}


DIVISORS: dict[object, Callable[[int], tuple[float, ...]]] = {None: lambda d: (), "d": lambda d: (d,), 1: lambda d: (1,)}
ACTIVATIONS: dict[str, reference.Map | None] = {
    "none": None,
    "tanh": np.tanh,
    "relu": reference.relu,
    "sigmoid": reference.sigmoid,
}


def score_formula(model: RnnSeq2Seq, real: np.ndarray) -> reference.Score:
    name, score = model.settings.score, model.score
    if name == "general":
        return lambda Q, K: reference.general(Q, K, array(score.weight.weight))
    if name == "basic":
        return lambda Q, K: reference.basic(Q, K, array(score.key.weight), array(score.query.weight))
    if name == "additive":
        return lambda Q, K: reference.additive(Q, K, *map(array, (score.query.weight, score.key.weight, score.v)))
    if name == "concat":
        return lambda Q, K: reference.concat(Q, K, array(score.weight.weight), array(score.v))
    if name == "location":
        return lambda Q, K: reference.location(Q, array(score.weight), real)
    if name == "cosine":
        return lambda Q, K: reference.cosine(Q, K, score.temperature)
    plain: dict[str, reference.Score] = {
        "dot": reference.dot,
        "scaled_dot": lambda Q, K: reference.scaled_dot(Q, K, *DIVISORS[model.settings.score_divisor](Q.shape[-1])),
        "distance": reference.distance,
    }
    return plain[name]


def by_formula(model: RnnSeq2Seq, memory: Memory, targets: Tensor) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns (logits (B, T, V), weights (B, T, S)) computed from the formulas step by step. The decoder has one layer."""
    settings, real = model.settings, memory.allow_BS.numpy()
    H, C = array(memory.values_BSE), array(memory.summary_BE)
    bridge = array(model.bridge.weight), array(model.bridge.bias)
    state = parts(settings.cell, np.tanh(C @ bridge[0].T + bridge[1]))
    cell = formula(settings.cell, model.decoder)
    W_o, b_o = array(model.output.weight), array(model.output.bias)
    Y = array(model.target_embedding.weight)[targets.numpy()]
    score = score_formula(model, real) if settings.decoder != "fixed" else None
    logits, weights, fed = [], [], np.zeros_like(C) if settings.input_feeding else None

    def look(s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return reference.context(s, H, score, real, NORMALISERS[settings.attention])

    for t in range(targets.shape[1]):
        y = Y[:, t]
        if settings.decoder == "fixed":
            state, out = reference.fixed_step(state, y, cell, W_o, b_o, C if settings.every_step else None)
            logits.append(out)
            continue
        if settings.decoder == "bahdanau":
            f = ACTIVATIONS[settings.readout_activation]
            step = reference.bahdanau_step(state, y, cell, look, W_o, b_o, f)
        else:
            W, b = array(model.combine.weight), array(model.combine.bias)
            step = reference.luong_step(state, y, cell, look, W, b, W_o, b_o, fed)
            fed = step.readout if settings.input_feeding else None
        state = step.state
        logits.append(step.logits)
        weights.append(step.weights)
    return np.stack(logits, 1), np.stack(weights, 1) if weights else None


def assert_equals_formula(settings: RnnSettings, dtype: torch.dtype = torch.float64) -> None:
    model = build(settings, SOURCE_VOCAB, TARGET_VOCAB).to(dtype).eval()
    assert isinstance(model, RnnSeq2Seq)
    memory, targets = model.encode(make_source(7, 3, 5)), make_targets(3, 6)
    decoded = model.decode(targets, memory, Look((Tap("cross"),)))
    logits, weights = by_formula(model, memory, targets)
    assert_equals(decoded.logits_BTV, logits)
    if weights is None:
        assert decoded.seen == ()
    else:
        (seen,) = decoded.seen
        assert_equals(seen.weights_BHTS[:, 0], weights)


@every_cell
@pytest.mark.parametrize("attention", ["soft", "hard"])
@pytest.mark.parametrize("score", ["additive", "general"])
@pytest.mark.parametrize("input_feeding", [False, True])
def test_luong(cell: str, attention: AttentionType, score: str, input_feeding: bool) -> None:  # SPEC A5.3
    assert_equals_formula(
        RnnSettings(
            width=22, embedding=7, cell=cell, score=score, score_width=13, attention=attention, input_feeding=input_feeding
        )
    )


@every_cell
@pytest.mark.parametrize("attention", ["soft", "hard"])
@pytest.mark.parametrize("score", ["additive", "general"])
def test_bahdanau(cell: str, attention: AttentionType, score: str) -> None:  # SPEC A5.4
    assert_equals_formula(
        RnnSettings(width=22, embedding=7, cell=cell, decoder="bahdanau", score=score, score_width=13, attention=attention)
    )


@pytest.mark.parametrize("activation", ["tanh", "relu", "sigmoid"])
def test_bahdanau_with_an_activation_before_the_output(activation: str) -> None:  # SPEC A5.4
    """logits = W_o f([s_t; c_t]) + b_o: by the formula, and with the gradients of f applied by hand."""
    settings = RnnSettings(
        width=22, embedding=7, decoder="bahdanau", readout_activation=activation, score_width=13, dropout=0.0
    )
    assert_equals_formula(settings)
    model, plain = (
        build(one, SOURCE_VOCAB, TARGET_VOCAB).double()
        for one in (settings, RnnSettings(**vars(settings) | {"readout_activation": "none"}))
    )
    plain.load_state_dict(model.state_dict())
    source, targets = make_source(7, 3), make_targets(2, 5)
    states = plain.decode(targets, plain.encode(source)).states_BTD  # [s_t; c_t]
    by_hand = getattr(torch, activation)(states) @ plain.output.weight.t() + plain.output.bias
    logits = model.decode(targets, model.encode(source)).logits_BTV
    weights = torch.randn_like(logits)
    gradients = [
        torch.autograd.grad((result * weights).sum(), list(one.parameters()))
        for result, one in ((logits, model), (by_hand, plain))
    ]
    for mine, theirs in zip((logits, *gradients[0]), (by_hand, *gradients[1]), strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("divisor", ["d", 1])
@pytest.mark.parametrize("decoder", ["luong", "bahdanau"])
def test_what_the_scaled_dot_product_divides_by_is_a_setting(divisor: float | str, decoder: str) -> None:  # SPEC A2.2
    """d, as one of the notes does, or 1: no scale."""
    settings = RnnSettings(width=22, embedding=7, decoder=decoder, score="scaled_dot", score_divisor=divisor)
    assert_equals_formula(settings)
    assert build(settings, SOURCE_VOCAB, TARGET_VOCAB).score.divide_by == divisor


@pytest.mark.parametrize("decoder", ["luong", "bahdanau"])
def test_the_temperature_of_the_cosine_is_a_setting(decoder: str) -> None:  # SPEC A2.7
    settings = RnnSettings(width=22, embedding=7, decoder=decoder, score="cosine", score_temperature=0.7)
    assert_equals_formula(settings)
    assert build(settings, SOURCE_VOCAB, TARGET_VOCAB).score.temperature == 0.7


@every_cell
@pytest.mark.parametrize("every_step", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_fixed(cell: str, every_step: bool, bidirectional: bool) -> None:  # SPEC A5.2
    """C is the last state of the encoder (of each direction); the decoder gets nothing else of the source."""
    settings = RnnSettings(
        width=22, embedding=7, cell=cell, decoder="fixed", every_step=every_step, bidirectional=bidirectional
    )
    assert_equals_formula(settings)
    model, targets = build(settings, SOURCE_VOCAB, TARGET_VOCAB).double().eval(), make_targets(2, 5)
    memory = model.encode(make_source(7, 3))
    last = memory.values_BSE[[0, 1], [6, 2]]
    ends = torch.cat((last[:, :11], memory.values_BSE[:, 0, 11:]), dim=-1) if bidirectional else last
    torch.testing.assert_close(memory.summary_BE, ends)
    same_summary = Memory(torch.randn_like(memory.values_BSE), memory.allow_BS, memory.summary_BE, memory.axes)
    look = Look((Tap("cross"),), (Edit("cross", key=0),))
    expected = model.decode(targets, memory)
    assert torch.equal(model.decode(targets, same_summary, look).logits_BTV, expected.logits_BTV)
    assert (expected.attention_log_prob_BT, model.start(memory).values_BSE.numel()) == (None, 0)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("attention", get_args(AttentionType))
@pytest.mark.parametrize("decoder", ["luong", "luong fed", "bahdanau"])
def test_every_score_and_attention_type_in_every_decoder(
    score: str, attention: AttentionType, decoder: str
) -> None:  # SPEC A5.5
    assert_equals_formula(
        RnnSettings(
            width=22,
            embedding=7,
            decoder=decoder.removesuffix(" fed"),
            input_feeding=decoder == "luong fed",
            score=score,
            score_width=13,
            attention=attention,
            max_positions=11,
        )
    )


@pytest.mark.parametrize("decoder", ["luong", "bahdanau"])
def test_basic_attention_mixes_the_states_themselves(decoder: str) -> None:  # SPEC A2.9
    """c_t = Σ_j softmax((K h_j)·(Q s)/d) h_j, so a model with W = Qᵀ K/d gives the same logits."""
    settings = RnnSettings(width=22, encoder_width=26, embedding=7, decoder=decoder, score="basic", dropout=0.0)
    basic = build(settings, SOURCE_VOCAB, TARGET_VOCAB).double()
    general = build(replace(settings, score="general"), SOURCE_VOCAB, TARGET_VOCAB).double()
    K, Q = basic.score.key.weight, basic.score.query.weight
    same = {name: weight for name, weight in basic.state_dict().items() if not name.startswith("score.")}
    general.load_state_dict({**same, "score.weight.weight": Q.T @ K / 26})
    source, targets = make_source(7, 5), make_targets(2, 6)
    logits, expected = (model.decode(targets, model.encode(source)).logits_BTV for model in (basic, general))
    torch.testing.assert_close(logits, expected)


@pytest.mark.parametrize("decoder", ["luong", "bahdanau"])
@pytest.mark.parametrize("attention", ["hard", "gated"])
def test_hard_attention_is_sampled_in_training(attention: AttentionType, decoder: str) -> None:
    """A decision only affects later tokens if c_t is an input of the recurrence."""
    torch.manual_seed(1)
    settings = RnnSettings(width=22, embedding=7, decoder=decoder, attention=attention, score="dot", dropout=0.0)
    model, source, targets = build(settings, SOURCE_VOCAB, TARGET_VOCAB).train(), make_source(7, 5), make_targets(2, 6)
    first, second = (model.decode(targets, model.encode(source), Look((Tap("cross"),))) for _ in range(2))
    assert not torch.equal(first.seen[0].weights_BHTS, second.seen[0].weights_BHTS)
    assert first.attention_log_prob_BT.shape == first.attention_entropy_BT.shape == (2, 6)
    assert first.attention_log_prob_BT.requires_grad
    assert first.affects_later_steps == (decoder == "bahdanau")


@pytest.mark.parametrize("decoder", ["luong", "luong fed", "bahdanau"])
@pytest.mark.parametrize("attention", ["hard", "gated"])
def test_entropy_and_log_probability_of_every_step(attention: AttentionType, decoder: str) -> None:  # SPEC A3.2
    """Of the choices that were sampled in training, from the scores of each step, step by step or all at once."""
    settings = RnnSettings(
        width=22,
        embedding=7,
        decoder=decoder.removesuffix(" fed"),
        input_feeding=decoder == "luong fed",
        attention=attention,
        score="dot",
        dropout=0.0,
    )
    model, targets = build(settings, SOURCE_VOCAB, TARGET_VOCAB).double().train(), make_targets(2, 6)
    memory = model.encode(make_source(7, 5))
    decoded = model.decode(targets, memory, Look((Tap("cross"), Tap("cross", what="scores"))))
    weights, scores = (array(seen.weights_BHTS[:, 0]) for seen in decoded.seen)
    allow = np.isfinite(scores)
    assert np.array_equal(allow, np.broadcast_to(memory.allow_BS.numpy()[:, None], allow.shape))
    scores = np.where(allow, scores, 0.0)
    if attention == "hard":
        log_prob = reference.hard_log_prob(scores, weights.argmax(-1), allow)
        entropy = reference.entropy(reference.softmax(scores, allow))
    else:
        log_prob, entropy = reference.log_gates(scores, weights > 0, allow), reference.gates_entropy(scores, allow)
    np.testing.assert_allclose(array(decoded.attention_log_prob_BT), log_prob)
    np.testing.assert_allclose(array(decoded.attention_entropy_BT), entropy)
    for part in (decoded.attention_log_prob_BT, decoded.attention_entropy_BT):
        gradients = torch.autograd.grad(part.sum(), model.decoder.parameters(), retain_graph=True)
        assert all(gradient.abs().max() > 0 for gradient in gradients)


def test_gradients_of_weights_in_a_loop() -> None:
    """∂ logits_t / ∂ weights_u is 0 for u > t, and not 0 for u ≤ t."""
    settings = RnnSettings(width=22, embedding=7, decoder="bahdanau", score="general", dropout=0.0)
    model, targets = build(settings, SOURCE_VOCAB, TARGET_VOCAB).double(), make_targets(2, 5)
    memory = model.encode(make_source(7, 5))
    decoded = model.decode(targets, memory, Look((Tap("cross"),), grad=True))
    (weights,) = (seen.weights_BHTS for seen in decoded.seen)
    (gradient,) = torch.autograd.grad(decoded.logits_BTV[0, 2, 4], weights, retain_graph=True)
    assert (gradient[0, 0, :3] != 0).all(-1).tolist() == [True] * 3
    assert (gradient[0, 0, 3:] == 0).all()
    assert (gradient[1] == 0).all()
    gradients = torch.autograd.grad(weights.square().sum(), list(model.score.parameters()))  # of a loss on the weights
    assert all(gradient.abs().max() > 0 for gradient in gradients)
    forced = [model.decode(targets, memory, Look(edits=(Edit("cross", key=key),))).logits_BTV for key in (0, 3)]
    assert not torch.allclose(*forced)


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"only decoder=luong computes, but the decoder is fixed; set decoder=luong, or input_f"
    ):
        RnnSettings(decoder="fixed", input_feeding=True)
    with pytest.raises(ValueError, match="every_step requires decoder=fixed, but the decoder is luong; set decoder=fixed, or"):
        RnnSettings(every_step=True)
    with pytest.raises(ValueError, match="there is no decoder 'loung'; expected luong, bahdanau or fixed"):
        RnnSettings(decoder="loung")
    with pytest.raises(ValueError, match="width 7 cannot be split evenly between two directions"):
        RnnSettings(width=7)
    assert RnnSettings(width=7, bidirectional=False).width == 7


# --- an output at every step -------------------------------------------------------------------------------------------------


@every_cell
def test_language_model(cell: str) -> None:  # SPEC A5.6
    """Two layers that start from zero states. The source has no effect, and the memory stores nothing of it."""
    model = build(RnnLmSettings(cell=cell, width=11, embedding=7, layers=2), SOURCE_VOCAB, TARGET_VOCAB).double().eval()
    memory, targets = model.encode(make_source(7, 3, 5)), make_targets(3, 6)
    x, zeros = array(model.embedding.weight)[targets.numpy()], np.zeros((3, state_width(model.stack)))
    for layer in range(2):
        x, _ = reference.unroll(formula(cell, model.stack, layer), x, parts(cell, zeros))
    logits = model.decode(targets, memory).logits_BTV
    assert_equals(logits.softmax(-1), reference.tagger(x, array(model.output.weight), array(model.output.bias)))
    assert (memory.values_BSE.shape, memory.allow_BS.shape) == ((3, 0, 11), (3, 0))
    assert torch.equal(logits, model.decode(targets, model.encode(make_source(2, 11, 4))).logits_BTV)


@every_cell
@pytest.mark.parametrize("bidirectional", [False, True])
def test_tagger(cell: str, bidirectional: bool) -> None:  # SPEC A5.6
    """Equals the formula at every real position of every row; padding and other rows do not matter."""
    settings = RnnTaggerSettings(cell=cell, width=22, embedding=7, bidirectional=bidirectional)
    model, source = RnnTagger(settings, SOURCE_VOCAB, 5).double().eval(), make_source(7, 3, 5, room=11)
    tags = model.tag(model.encode(source)).softmax(-1)
    assert tags.shape == (3, 11, 5)
    ahead = formula(cell, model.encoder.forwards[0])
    for row, length in enumerate((7, 3, 5)):
        x = array(model.embedding.weight)[source.values[row, :length].numpy()]
        zeros = parts(cell, np.zeros(state_width(model.encoder.forwards[0])))
        if bidirectional:
            h, _ = reference.bidirectional(ahead, formula(cell, model.encoder.backwards[0]), x, zeros)
        else:
            h, _ = reference.unroll(ahead, x, zeros)
        assert_equals(tags[row, :length], reference.tagger(h, array(model.output.weight), array(model.output.bias)))
        alone = Source(source.values[row : row + 1, :length], source.allow[row : row + 1, :length])
        torch.testing.assert_close(model.tag(model.encode(alone)).softmax(-1)[0], tags[row, :length])


def test_a_tagger_with_an_odd_width_is_refused() -> None:
    with pytest.raises(ValueError, match="width 7 cannot be split evenly between two directions; make it even"):
        RnnTaggerSettings(width=7)


# --- at the start of training ------------------------------------------------------------------------------------------------

FRESH: dict[str, Callable[[str, int], Model | RnnTagger]] = {
    "luong": lambda cell, vocab: build(RnnSettings(cell=cell), vocab, vocab),
    "luong fed": lambda cell, vocab: build(RnnSettings(cell=cell, input_feeding=True), vocab, vocab),
    "bahdanau": lambda cell, vocab: build(RnnSettings(cell=cell, decoder="bahdanau"), vocab, vocab),
    "fixed": lambda cell, vocab: build(RnnSettings(cell=cell, decoder="fixed", decoder_layers=2), vocab, vocab),
    "fixed at every step": lambda cell, vocab: build(RnnSettings(cell=cell, decoder="fixed", every_step=True), vocab, vocab),
    "language model": lambda cell, vocab: build(RnnLmSettings(cell=cell), vocab, vocab),
    "tagger": lambda cell, vocab: RnnTagger(RnnTaggerSettings(cell=cell), vocab, vocab),
}


@every_cell
@pytest.mark.parametrize("name", FRESH)
@pytest.mark.parametrize("vocab", [19, 1000])
def test_a_fresh_model_has_the_loss_of_a_uniform_guess(cell: str, name: str, vocab: int) -> None:
    model = FRESH[name](cell, vocab)
    ids, targets = torch.randint(vocab, (17, 13)), torch.randint(vocab, (17, 13))
    memory = model.encode(Source(ids, masks.first(torch.full((17,), 13), 13)))
    logits = model.tag(memory) if isinstance(model, RnnTagger) else model.decode(ids, memory).logits_BTV
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).item()
    assert math.log(vocab) - 0.05 <= loss <= math.log(vocab) + 0.6


# --- what the notes mistake --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decoder", ["luong", "bahdanau"])
def test_the_query_is_made_without_the_context_that_it_gives(decoder: str) -> None:  # SPEC A0.8
    """Luong's query s_t has read y_{t−1} and no context; Bahdanau's s_{t−1} the contexts before c_t, but not y_{t−1}."""
    settings = RnnSettings(width=22, embedding=7, decoder=decoder, dropout=0.0)
    model, targets = build(settings, SOURCE_VOCAB, TARGET_VOCAB).double().eval(), make_targets(1, 5)
    memory = model.encode(make_source(7))

    def weights(ids: Tensor, values_BSE: Tensor) -> Tensor:
        """The weights (T, S) with these values in place of the states; keys and the first state stay as they are."""
        state, rows = replace(model.start(memory), values_BSE=values_BSE), []
        for token in ids.unbind(1):
            step = model.step(token[:, None], state, Look((Tap("cross"),)))
            state = step.state
            rows.append(step.seen[0].weights_BHTS[0, 0, 0])
        return torch.stack(rows)

    usual = weights(targets, memory.values_BSE)
    changed = targets.clone()
    changed[0, 2] = 4 + targets[0, 2] % 15
    moved = (weights(changed, memory.values_BSE) != usual).any(-1).tolist()
    assert moved == [False, False, decoder == "luong", True, True]
    moved = (weights(targets, torch.randn_like(memory.values_BSE)) != usual).any(-1).tolist()
    assert moved == ([False] * 5 if decoder == "luong" else [False, True, True, True, True])


@pytest.mark.parametrize("decoder", ["fixed", "luong", "bahdanau"])
def test_only_a_decoder_without_attention_reads_one_vector(decoder: str) -> None:  # SPEC A0.9
    """Given the summary C, nothing else of the source reaches a fixed decoder; with attention every position does."""
    settings = RnnSettings(width=22, embedding=7, decoder=decoder, dropout=0.0)
    model, targets = build(settings, SOURCE_VOCAB, TARGET_VOCAB).double().eval(), make_targets(2, 5)
    memory = model.encode(make_source(7, 5))
    values, summary = memory.values_BSE.detach().requires_grad_(), memory.summary_BE.detach().requires_grad_()
    logits = model.decode(targets, replace(memory, values_BSE=values, summary_BE=summary)).logits_BTV
    of_values, of_summary = torch.autograd.grad(
        logits.square().sum(), (values, summary), allow_unused=True, materialize_grads=True
    )
    assert (of_summary.abs().sum(-1) > 0).all()
    reached = of_values.abs().sum(-1) > 1e-6  # rounding errors are smaller
    assert torch.equal(reached, memory.allow_BS & (decoder != "fixed"))


# --- how far gradients reach -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_gradient_reach(seed: int) -> None:  # SPEC A5.7
    """At T = 80 the gradient of the plain network has vanished and that of the LSTM nearly so (both fall by a factor per
    position); that of attention only falls with its weights, as 1/T."""
    near, far = zip(*gradient_reach(("rnn_tanh", "lstm", "attention"), (20, 80), seed=seed).values(), strict=True)
    plain, lstm, attention = far
    assert plain < 1e-5 * lstm < 1e-10 * attention
    ratios = [after / before for before, after in zip(near, far, strict=True)]
    assert ratios[0] < 1e-5 * ratios[1]
    assert ratios[1] < 1e-5 < 0.05 < ratios[2]
