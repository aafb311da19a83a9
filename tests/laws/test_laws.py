"""The laws that always hold, tested for every score function and every model of tests/table.py."""

import ast
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from searching import (
    alone_outputs,
    assert_same_hypotheses,
    batched,
    last_outputs,
    make_engine,
    make_requests,
    outputs,
    rows_of,
    run,
    run_joining,
    token_batch,
)
from table import (
    EOS,
    MODELS,
    PAD,
    SCORES,
    SOS,
    TIES,
    has_cross,
    make_model,
    make_source,
    make_targets,
    reads_source,
    sums_to_one,
)
from torch._subclasses.fake_tensor import FakeTensorMode

import regard
from regard.core import attention, masks
from regard.core.attention import attend, attention_weights
from regard.core.source import Source
from regard.core.weights import masked_softmax
from regard.data.batch import Example, collate
from regard.look import Edit, Kind, Look, Tap, What

EVERYTHING = Look(taps=(Tap("encoder"), Tap("decoder"), Tap("cross")))
KINDS: tuple[Kind, ...] = ("encoder", "decoder", "cross")
EVERY_WHAT = Look(tuple(Tap(kind, what=what) for kind in KINDS for what in get_args(What)))
every_model = pytest.mark.parametrize("name", MODELS)
every_decided = pytest.mark.parametrize("name", [name for name in MODELS if name not in TIES])
every_cross = pytest.mark.parametrize("name", list(filter(has_cross, MODELS)))
LOOK_AHEAD = ("transformer without look-ahead mask",)
"""Models whose whole pass sees later tokens: step by step they compute something else, so law 4 cannot hold."""
every_causal = pytest.mark.parametrize("name", [name for name in MODELS if name not in LOOK_AHEAD])
every_causal_cross = pytest.mark.parametrize("name", [name for name in filter(has_cross, MODELS) if name not in LOOK_AHEAD])
every_score = pytest.mark.parametrize("score_name", SCORES)


def random_inputs(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """B2 H3 Lq5 Lk7 d11, and a mask in which query 1 may attend to nothing."""
    query, key, value = torch.randn(2, 3, 5, 11), torch.randn(2, 3, 7, 11), torch.randn(2, 3, 7, 11)
    allow = torch.rand(2, 1, 5, 7) < 0.6
    allow[:, :, 1] = False
    allow[:, :, 2] = True
    return query.to(dtype), key.to(dtype), value.to(dtype), allow


def gradients(loss: torch.Tensor, inputs: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Returns zeros for inputs that the loss does not depend on: keys of a location score, the score of hard attention."""
    return torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)


# --- law 1: True means "may attend" ------------------------------------------------------------------------------------------


@every_score
def test_law_1_only_allowed_keys_are_seen(score_name: str) -> None:  # SPEC A4.3 A0.4
    query, key, value, allow = random_inputs()
    score = SCORES[score_name](11)
    score = score.double() if isinstance(score, torch.nn.Module) else score
    weights = attention_weights(query, key, score=score, allow=allow)
    assert (weights[(~allow).expand_as(weights)] == 0.0).all()
    assert (weights[allow.expand_as(weights)] > 0.0).all()
    left = allow[0, 0, 0]  # the keys that query 0 may attend to; the others might as well not exist
    without = attention_weights(query[:1, :, :1], key[:1, :, left], score=score)
    torch.testing.assert_close(weights[:1, :, :1, left], without)
    both = masks.both(allow, masks.causal(5, 7))
    seen = attention_weights(query, key, score=score, allow=both) > 0
    assert torch.equal(seen, both.expand_as(seen))
    changed = value.masked_fill(~both[:, :, 3, :, None], 1e6)  # the values that query 3 may not attend to
    before, after = (attend(query, key, v, score=score, allow=both)[:, :, 3] for v in (value, changed))
    assert torch.equal(before, after)


def test_law_1_masks_are_made_in_one_file() -> None:
    def makes_a_mask(node: ast.AST) -> bool:
        return (isinstance(node, ast.Attribute) and node.attr in ("tril", "triu", "logical_not")) or (
            isinstance(node, ast.keyword) and node.arg == "dtype" and ast.unparse(node.value) == "torch.bool"
        )

    source = Path(regard.__file__).parent
    makers = {path.name for path in source.rglob("*.py") if any(map(makes_a_mask, ast.walk(ast.parse(path.read_text()))))}
    assert makers == {"masks.py"}


# --- law 2: taps change nothing ----------------------------------------------------------------------------------------------


@every_model
@pytest.mark.parametrize("training", [False, True])
def test_law_2_taps_do_not_change_the_output(name: str, training: bool) -> None:  # SPEC A1.2
    model = make_model(name, torch.float32).train(training)  # with dropout on, a tap that drew random numbers would show
    source, targets = make_source(7, 3, 5), make_targets(3, 6)

    def run(look: Look | None) -> list[torch.Tensor]:
        torch.manual_seed(11)
        memory = model.encode(source, look)
        decoded = model.decode(targets, memory, look)
        step = model.step(targets[:, :1], model.start(memory), look)
        of_parameters = gradients(decoded.logits_BTV.square().sum(), list(model.parameters()))
        return [memory.values_BSE, decoded.logits_BTV, step.logits_BKV, *of_parameters]

    few = Look(tuple(replace(tap, head=0, rows=(-1,)) for tap in EVERY_WHAT.taps))
    usual = run(None)
    for look in (EVERYTHING, EVERY_WHAT, few):
        for plain, tapped in zip(usual, run(look), strict=True):
            assert torch.equal(plain, tapped)


@every_model
def test_law_2_taps_show_the_weights_that_were_used(name: str) -> None:  # SPEC A1.2 A4.1
    model, source, targets = make_model(name), make_source(7, 3, 5), make_targets(3, 6)
    memory = model.encode(source, EVERYTHING)
    shown = memory.seen + model.decode(targets, memory, EVERYTHING).seen
    plain = Look(EVERYTHING.taps, grad=True)  # these are the weights that the plain formula used
    memory = model.encode(source, plain)
    used = memory.seen + model.decode(targets, memory, plain).seen
    assert any(seen.kind == "cross" for seen in shown) == has_cross(name)
    for seen, expected in zip(shown, used, strict=True):
        assert (seen.kind, seen.layer) == (expected.kind, expected.layer)
        torch.testing.assert_close(seen.weights_BHTS, expected.weights_BHTS)
        assert not seen.weights_BHTS.requires_grad
        if sums_to_one(name, seen.kind):
            sums = seen.weights_BHTS.sum(-1)
            if seen.kind == "encoder":  # the rows of padding queries are undefined
                sums = sums[source.allow[:, None].expand_as(sums)]
            torch.testing.assert_close(sums, torch.ones_like(sums))
            assert (seen.weights_BHTS >= 0).all()
        if seen.kind == "cross":
            assert (seen.weights_BHTS[1, :, :, 3:] == 0).all()  # padding of the sentence of length 3


@every_cross
def test_a_tap_gets_the_heads_and_rows_it_asks_for(name: str) -> None:
    model, source, targets = make_model(name), make_source(7, 3, 5), make_targets(3, 6)
    memory = model.encode(source)
    kind = "cross" if has_cross(name) else "decoder"
    (whole,) = model.decode(targets, memory, Look((Tap(kind, layer=-1),))).seen
    (part,) = model.decode(targets, memory, Look((Tap(kind, layer=-1, head=-1, rows=(4, -2, 0)),))).seen
    last = len(whole.heads) - 1
    assert (part.heads, part.rows, whole.rows) == ((last,), (4, 4, 0), tuple(range(6)))
    torch.testing.assert_close(part.weights_BHTS, whole.weights_BHTS[:, [last]][:, :, [4, 4, 0]])
    with pytest.raises(regard.UserError, match=f"there is no {kind} attention in layer 9: this model has layers 0 to"):
        model.decode(targets, memory, Look((Tap(kind, layer=9),)))
    with pytest.raises(regard.UserError, match=rf"there is no head {last + 1}: heads are numbered 0 to {last} here"):
        model.decode(targets, memory, Look((Tap(kind, head=last + 1),)))
    with pytest.raises(regard.UserError, match="there is no row -7: rows are numbered 0 to 5 here"):
        model.decode(targets, memory, Look((Tap(kind, rows=(0, -7)),)))


@every_causal
def test_law_2_a_step_shows_the_weights_of_the_whole_pass(name: str) -> None:
    model, source, targets = make_model(name), make_source(7, 3, 5), make_targets(3, 6)
    memory = model.encode(source)
    whole = {(seen.kind, seen.layer): seen.weights_BHTS for seen in model.decode(targets, memory, EVERYTHING).seen}
    state = model.start(memory)
    for position in range(6):
        step = model.step(targets[:, position : position + 1], state, EVERYTHING)
        state = step.state
        for seen in step.seen:
            expected = whole[seen.kind, seen.layer][:, :, position : position + 1, : seen.weights_BHTS.shape[-1]]
            torch.testing.assert_close(seen.weights_BHTS, expected)


@every_cross
def test_edits_take_effect_and_gradients_reach_the_weights(name: str) -> None:
    model, source, targets = make_model(name), make_source(7, 3, 5), make_targets(3, 6)
    memory = model.encode(source)
    forced = model.decode(targets, memory, Look(taps=(Tap("cross"),), edits=(Edit("cross", key=2),), grad=True))
    off = model.decode(targets, memory, Look(edits=(Edit("cross", layer=0, head=0),)))
    usual = model.decode(targets, memory)
    assert not torch.allclose(forced.logits_BTV, usual.logits_BTV)
    assert not torch.allclose(off.logits_BTV, usual.logits_BTV, rtol=0, atol=1e-12)  # little is left of it without residuals
    for seen in forced.seen:
        assert (seen.weights_BHTS[..., 2] == 1).all()
        assert (seen.weights_BHTS.sum(-1) == 1).all()
    (before,) = model.decode(targets, memory, Look((Tap("cross", 0),))).seen
    (after,) = model.decode(targets, memory, Look((Tap("cross", 0),), (Edit("cross", 0, head=0, key=1),))).seen
    assert (after.weights_BHTS[:, 0, :, 1] == 1).all()
    assert torch.equal(after.weights_BHTS[:, 1:], before.weights_BHTS[:, 1:])  # the other heads do not change
    if forced.attention_log_prob_BT is not None:
        return  # no gradient flows through a sampled decision
    decoded = model.decode(targets, memory, Look(taps=(Tap("cross", layer=-1),), grad=True))
    (weights,) = (seen.weights_BHTS for seen in decoded.seen)
    (gradient,) = torch.autograd.grad(decoded.logits_BTV.sum(), weights)
    assert gradient.abs().max() > 0


@every_causal
@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
def test_edits_obey_masks(name: str, kind: str) -> None:
    """An edit cannot force attention to a key that is padding, in the future, or not written yet: the weights stay as they
    are."""
    model, source, targets = make_model(name), make_source(7, 3), make_targets(2, 6)
    look = Look(edits=(Edit(kind, key=4),))
    logits = model.decode(targets, model.encode(source, look), look).logits_BTV
    usual = model.decode(targets, model.encode(source)).logits_BTV
    if kind == "decoder":
        torch.testing.assert_close(logits[:, :4], usual[:, :4])  # these steps come before key 4
    else:
        torch.testing.assert_close(logits[1], usual[1])  # key 4 is padding
    alone = Source(source.values[1:, :5], source.allow[1:, :5])
    torch.testing.assert_close(model.decode(targets[1:], model.encode(alone, look), look).logits_BTV, logits[1:])
    state = model.start(model.encode(source, look))
    for position in range(6):
        step = model.step(targets[:, position : position + 1], state, look)
        state = step.state
        torch.testing.assert_close(step.logits_BKV[:, 0], logits[:, position])


def test_invalid_taps_and_edits_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown kind of attention 'self'; expected one of encoder, decoder, cross"):
        Tap("self")
    with pytest.raises(ValueError, match="a tap cannot ask for 'logits'; expected one of weights, scores, norms, summary"):
        Tap("cross", what="logits")
    with pytest.raises(ValueError, match="unknown kind of attention 'Cross'"):
        Edit("Cross")
    with pytest.raises(ValueError, match="key is -1; sentences differ in length, so keys are counted from the first, 0"):
        Edit("cross", key=-1)


@every_causal
def test_search_reports_the_weights_of_each_token(name: str) -> None:
    """The weights of every written token equal those of a forced pass over the output."""
    model, rows = make_model(name), rows_of(make_source(7, 3, 5))
    look = Look((Tap("cross"),))
    events = run(make_engine(model), make_requests(rows, max_length=6, stream=True, look=look))
    for sentence, row in enumerate(rows):
        mine = [event for event in events if event.id == sentence]
        best = mine[-1].hypotheses[0]
        whole = model.decode(torch.tensor([[SOS, *best.ids[:-1]]]), model.encode(token_batch([row])), look).seen
        for position, event in enumerate(mine[:-1]):
            assert event.ids == (best.ids[position],)
            for seen, expected in zip(event.seen, whole, strict=True):
                weights = torch.from_numpy(seen.weights_BHTS)
                torch.testing.assert_close(weights, expected.weights_BHTS[:, :, position : position + 1])


# --- law 3: neighbours, padding and batch size do not matter -----------------------------------------------------------------


@every_model
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_law_3_neighbours_and_padding_do_not_matter(name: str, dtype: torch.dtype) -> None:  # SPEC A4.1
    model, targets = make_model(name, dtype), make_targets(4, 6)
    together = make_source(7, 3, 5, 1, room=11)
    logits = model.decode(targets, model.encode(together)).logits_BTV
    for row, length in enumerate((7, 3, 5, 1)):
        alone = Source(together.values[row : row + 1, :length], together.allow[row : row + 1, :length])
        memory = model.encode(alone)
        expected = model.decode(targets[row : row + 1], memory).logits_BTV[0]
        tolerance = 1e-12 if dtype == torch.float64 else 1e-5
        assert ((logits[row] - expected).abs() <= tolerance * expected.abs().clamp(min=1)).all()
        torch.testing.assert_close(model.encode(together).summary_BE[row], memory.summary_BE[0])


@every_model
def test_law_3_search_gives_the_same_words_in_any_batch(name: str) -> None:  # SPEC A7.5
    engine = make_engine(make_model(name), collate=partial(token_batch, room=9))
    rows = rows_of(make_source(7, 3, 5, 1, 2))
    together = outputs(engine, rows, max_length=9)
    assert sorted(together) == [0, 1, 2, 3, 4]
    for sentence, row in enumerate(rows):
        ((alone,),) = outputs(engine, [row], max_length=9).values()
        (hypothesis,) = together[sentence]
        assert hypothesis.ids == alone.ids
        assert hypothesis.log_prob == pytest.approx(alone.log_prob, abs=1e-9)


@pytest.mark.slow
@every_decided
def test_law_3_a_beam_finds_the_same_in_batches_of_any_size(name: str) -> None:  # SPEC A7.5
    """64 sentences end at different steps and leave the batch; in the last way, three more join it at every step."""
    engine = make_engine(make_model(name))
    rows = rows_of(make_source(*(1 + number * number % 11 for number in range(64))))
    requests = make_requests(rows, beam=3, n_best=2, max_length=6, min_length=1)
    alone = alone_outputs(engine, requests)
    ways = [[event for batch in batched(requests, size) for event in run(engine, batch)] for size in (2, 7, 64)]
    for found in map(last_outputs, (*ways, run_joining(engine, batched(requests, 3)))):
        assert sorted(found) == list(range(64))
        for sentence, expected in alone.items():
            assert_same_hypotheses(found[sentence], expected)


@pytest.mark.slow
@every_decided
@pytest.mark.parametrize(
    "options",
    [
        {"no_repeat": 2, "repetition_penalty": 1.5, "min_length": 3},
        {"beam": 3, "n_best": 3, "no_repeat": 3, "min_length": 11, "banned": ((9, 11), (7,))},
        {"sample": True, "n_best": 2, "top_k": 9, "prefix": (7, 11)},
    ],
    ids=["greedy", "beam", "sample"],
)
def test_law_3_sentences_that_join_a_running_batch_find_the_same(name: str, options: dict[str, Any]) -> None:  # SPEC A7.5
    """Tests all options that depend on the written tokens. Outputs end after 10 to 15 tokens, so a step holds many lengths."""
    engine = make_engine(make_model(name))
    rows = rows_of(make_source(7, 1, 5, 11, 2, 9, 1, 3, 10, 4, 8, 6))
    requests = make_requests(rows, max_ratio=0.5, max_length=30, **options)
    joined = last_outputs(run_joining(engine, batched(requests, 2), every=3))
    assert sorted(joined) == list(range(12))
    for sentence, expected in alone_outputs(engine, requests).items():
        assert_same_hypotheses(joined[sentence], expected)


# --- law 4: cached = uncached ------------------------------------------------------------------------------------------------


@every_causal
def test_law_4_step_by_step_equals_the_whole_sequence(name: str) -> None:  # SPEC A5.8
    model, source, targets = (
        make_model(name),
        make_source(7, 3, 5),
        make_targets(3, 41),
    )  # longer than the cache's first allocation
    memory = model.encode(source)
    expected = model.decode(targets, memory).logits_BTV
    for prefix in (0, 1, 17):
        state = model.start(memory, targets[:, :prefix] if prefix else None)
        for position in range(prefix, 41):
            step = model.step(targets[:, position : position + 1], state)
            state = step.state
            torch.testing.assert_close(step.logits_BKV[:, 0], expected[:, position])
        assert state.lengths_B.tolist() == [41] * 3


@every_causal
def test_law_4_targets_are_shifted_right(name: str) -> None:  # SPEC A5.8
    """The loss is −Σ_t log p(y_t | y_<t, x): a model that has read <sos> predicts y_1, one that has read all predicts <eos>."""
    model, rows = make_model(name), rows_of(make_source(7, 3))
    examples = [Example(row, target) for row, target in zip(rows, ([11, 5, 17, 8], [9, 5]), strict=True)]
    batch = collate(examples)
    assert batch.target_in_BT.tolist() == [[SOS, 11, 5, 17, 8], [SOS, 9, 5, PAD, PAD]]
    assert batch.target_out_BT.tolist() == [[11, 5, 17, 8, EOS], [9, 5, EOS, PAD, PAD]]
    decoded = model.decode(batch.target_in_BT, model.encode(batch.source))
    total = 0.0
    for row, example in enumerate(examples):
        state, read = model.start(model.encode(collate([example]).source)), SOS
        for position, token in enumerate([*example.target, EOS]):
            step = model.step(torch.tensor([[read]]), state)
            log_prob = step.logits_BKV[0, 0].log_softmax(-1)[token].item()
            assert decoded.log_probs(batch.target_out_BT)[row, position].item() == pytest.approx(log_prob, abs=1e-9)
            total, state, read = total + log_prob, step.state, token
    assert decoded.loss(batch.target_out_BT, pad=PAD).item() == pytest.approx(-total, abs=1e-9)


@every_causal
def test_law_4_no_token_depends_on_itself_or_later_ones(name: str) -> None:  # SPEC A5.8
    model, targets = make_model(name), make_targets(2, 6)
    memory = model.encode(make_source(7, 3))
    before = model.decode(targets, memory).logits_BTV
    for position in range(1, 6):
        changed = targets.clone()
        changed[:, position] = targets[:, position] % 15 + 4
        after = model.decode(changed, memory).logits_BTV
        torch.testing.assert_close(after[:, :position], before[:, :position], rtol=0, atol=1e-12)
        assert not torch.equal(after[:, position], before[:, position])


def test_law_4_leaves_out_the_models_that_say_so() -> None:  # SPEC A7.13
    """Each model without a look-ahead mask says that it looks ahead, and does: what it writes depends on later tokens."""
    assert tuple(name for name in MODELS if MODELS[name].traits.looks_ahead) == LOOK_AHEAD
    for name in LOOK_AHEAD:
        model, targets = make_model(name), make_targets(2, 6)
        memory = model.encode(make_source(7, 3))
        changed = targets.clone()
        changed[:, 5] = targets[:, 5] % 15 + 4
        before, after = (model.decode(ids, memory).logits_BTV for ids in (targets, changed))
        assert ((before - after).abs().amax(-1) > 1e-6).all()  # at every position
        padded = torch.nn.functional.pad(targets, (0, 2), value=PAD)
        torch.testing.assert_close(model.decode(padded, memory).logits_BTV[:, :6], before)  # but not on padding


@every_causal
def test_law_4_gradients_step_by_step_equal_the_whole_sequence(name: str) -> None:
    model, source, targets = make_model(name), make_source(7, 3, 5), make_targets(3, 5)
    weights = torch.randn(3, 5, 19, dtype=torch.float64)

    def of_parameters(logits: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return gradients((logits * weights).sum(), list(model.parameters()))

    state, logits = model.start(model.encode(source)), []
    for position in range(5):
        step = model.step(targets[:, position : position + 1], state)
        logits.append(step.logits_BKV)
        state = step.state
    whole = model.decode(targets, model.encode(source)).logits_BTV
    for gradient, expected in zip(of_parameters(torch.cat(logits, 1)), of_parameters(whole), strict=True):
        torch.testing.assert_close(gradient, expected)


@every_causal
def test_law_4_rows_move_between_batches_and_beams(name: str) -> None:
    """Sentences join a running batch, hypotheses are reordered, sentences leave: each row gives the same logits as alone."""
    model = make_model(name)
    first, second = make_source(7, 3), make_source(5, 11)
    early = make_targets(2, 5)

    state = model.start(model.encode(first))
    for position in range(5):
        state = model.step(early[:, position : position + 1], state).state
    state = state.join(model.start(model.encode(second)))
    assert state.lengths_B.tolist() == [5, 5, 0, 0]
    nbytes = state.nbytes
    state = state.select(torch.zeros(4, 3, dtype=torch.long))  # three hypotheses each
    assert nbytes < state.nbytes < 3 * nbytes  # the source is not repeated
    histories = [[early[row, :5].tolist() for _ in range(3)] for row in range(2)] + [[[] for _ in range(3)] for _ in range(2)]
    generator = torch.Generator().manual_seed(1)
    for _ in range(3):
        ids = torch.randint(4, 19, (len(histories), 3), generator=generator)
        logits, state = (step := model.step(ids, state)).logits_BKV, step.state
        histories = [
            [[*past, token] for past, token in zip(row, new, strict=True)]
            for row, new in zip(histories, ids.tolist(), strict=True)
        ]
        parents = torch.randint(0, 3, (len(histories), 3), generator=generator)
        state = state.select(parents)
        logits = logits[torch.arange(len(histories))[:, None], parents]
        histories = [[row[parent] for parent in order] for row, order in zip(histories, parents.tolist(), strict=True)]
    rows = torch.tensor([3, 0])
    state, logits, histories = state.keep(rows), logits[rows], [histories[3], histories[0]]
    sources = [Source(second.values[1:], second.allow[1:]), Source(first.values[:1], first.allow[:1])]
    step = model.step(torch.full((2, 3), 5), state)
    for row, source in enumerate(sources):
        for beam in range(3):
            ids = torch.tensor([[*histories[row][beam], 5]])
            expected = model.decode(ids, model.encode(source)).logits_BTV[0]
            torch.testing.assert_close(logits[row, beam], expected[-2])
            torch.testing.assert_close(step.logits_BKV[row, beam], expected[-1])


@every_causal
def test_short_and_long_rows_join_in_either_order(name: str) -> None:
    model, targets = make_model(name), make_targets(1, 30)
    expected = model.decode(targets, model.encode(make_source(5))).logits_BTV[0]

    def after(positions: int):  # type: ignore[no-untyped-def]
        return model.start(model.encode(make_source(5)), targets[:, :positions])

    for first, second in ((2, 23), (23, 2)):
        state = after(first).join(after(second))
        for further in range(3):
            ids = targets[0, [first + further, second + further]][:, None]
            step = model.step(ids, state)
            state = step.state
            torch.testing.assert_close(step.logits_BKV[:, 0], expected[[first + further, second + further]])


@every_causal
@pytest.mark.parametrize("grad", [False, True])
def test_new_rows_replace_others(name: str, grad: bool) -> None:
    """Again and again, with shorter and longer sources, prefixes and outputs; what others share does not change."""
    model, targets = make_model(name), make_targets(1, 40)

    def logits_of(length: int, position: int) -> torch.Tensor:
        return model.decode(targets[:, : position + 1], model.encode(make_source(length))).logits_BTV[0, -1]

    with torch.set_grad_enabled(grad):
        shared, first = model.encode(make_source(5, 11, 3)), targets[:, :1].repeat(3, 1)
        expected = model.step(first, model.start(shared)).logits_BKV
        state, rows = model.start(shared), [(length, 0) for length in (5, 11, 3)]
        for number, length, prefix in ((1, 10, 0), (0, 2, 9), (2, 5, 1), (1, 3, 0), (0, 11, 0)):
            for _ in range(3):
                step = model.step(targets[0, [position for _, position in rows]][:, None], state)
                state = step.state
                rows = [(source, position + 1) for source, position in rows]
            new = model.start(model.encode(make_source(length)), targets[:, :prefix] if prefix else None)
            if length == 11:  # the last one; without a copy, the rows are written in place
                twin, twin_rows = state.copy(), list(rows)
            state, rows[number] = state.put(torch.tensor([number]), new), (length, prefix)
            assert state.lengths_B.tolist() == [position for _, position in rows]
        for after, expected_rows in ((twin, twin_rows), (state, rows)):
            step = model.step(targets[0, [position for _, position in expected_rows]][:, None], after)
            for row, (length, position) in enumerate(expected_rows):
                torch.testing.assert_close(step.logits_BKV[row, 0], logits_of(length, position))
        torch.testing.assert_close(model.step(first, model.start(shared)).logits_BKV, expected)


@every_causal
def test_rows_that_leave_free_their_memory(name: str) -> None:
    """The memory of a batch does not grow without limit while sentences join and leave."""
    model, targets = make_model(name), make_targets(1, 400)
    with torch.no_grad():
        fresh = model.start(model.encode(make_source(5)))
        long = model.start(model.encode(make_source(5)), targets[:, :200])
        alone = model.step(targets[:, :1], fresh).state
        both = model.step(targets[:, :1], long).state.join(alone)
        left = both.copy().keep(torch.tensor([1]))
        assert left.nbytes == alone.nbytes
        replaced = both.put(torch.tensor([0]), model.step(targets[:, :1], model.start(model.encode(make_source(5)))).state)
        assert replaced.nbytes <= 2 * alone.nbytes
        again = model.step(targets[:, 1:2], left).logits_BKV
        torch.testing.assert_close(again[0, 0], model.decode(targets[:, :2], model.encode(make_source(5))).logits_BTV[0, 1])


@pytest.mark.parametrize("name", ["rnn additive", "rnn monotone", "transformer scaled_dot"])
def test_the_positions_of_long_sources_leave_with_them(name: str) -> None:
    model, targets = make_model(name), make_targets(1, 3)
    expected = model.decode(targets, model.encode(make_source(5))).logits_BTV[0]
    with torch.no_grad():
        fresh, wide = model.start(model.encode(make_source(5))), model.start(model.encode(make_source(200, 5)))
        wide = model.step(targets[:, :1].repeat(2, 1), wide).state
        replaced = wide.copy().put(torch.tensor([0]), fresh)
        for state, rows in ((wide.keep(torch.tensor([1])), 1), (replaced, 2)):
            assert state.nbytes < 5 * rows * fresh.nbytes
        logits = model.step(targets[:, :2].T, replaced).logits_BKV
        torch.testing.assert_close(logits[0, 0], expected[0])


@every_model
def test_wrong_numbers_of_rows_are_refused(name: str) -> None:
    model = make_model(name)
    state = model.start(model.encode(make_source(5, 3)))
    with pytest.raises(ValueError, match=r"ids have shape \(1, 1\), expected \(sentences, hypotheses\) = \(2, 1\)"):
        model.step(torch.tensor([[4]]), state)
    with pytest.raises(ValueError, match="parents has 1 rows, expected 2, one per sentence"):
        state.select(torch.zeros(1, 3, dtype=torch.long))
    single, double = state.copy(), state.copy().select(torch.zeros(2, 2, dtype=torch.long))
    with pytest.raises(ValueError, match=r"cannot join.*the same number of hypotheses"):
        single.join(double)


@every_model
def test_a_state_is_used_once_and_copies_are_independent(name: str) -> None:
    model, targets = make_model(name), make_targets(2, 3)
    state = model.step(targets[:, :1], model.start(model.encode(make_source(7, 3)))).state
    with torch.no_grad():
        fork = state.copy()
        logits = model.step(targets[:, 1:2], state).logits_BKV
        model.step(targets[:, 2:3], fork.copy())
        assert torch.equal(logits, model.step(targets[:, 1:2], fork).logits_BKV)
    for misuse in (lambda: model.step(targets[:, :1], state), lambda: state.keep(torch.tensor([0])), state.copy):
        with pytest.raises(RuntimeError, match=r"used by an earlier step.*copy\(\)"):
            misuse()


@every_causal
def test_law_4_log_prob_is_what_a_forced_pass_gives(name: str) -> None:  # SPEC A7.5
    model, rows = make_model(name), rows_of(make_source(7, 3, 5))
    found = outputs(make_engine(model), rows, max_length=13)
    assert sorted(found) == [0, 1, 2]
    for sentence, (best,) in found.items():
        written = [*best.ids, EOS] if best.finished else list(best.ids)
        logits = model.decode(torch.tensor([[SOS, *written[:-1]]]), model.encode(token_batch([rows[sentence]]))).logits_BTV[0]
        forced = logits.log_softmax(-1)[range(len(written)), written]
        assert best.log_prob == pytest.approx(forced.sum().item(), abs=1e-9)
        allowed = logits.clone()
        allowed[:, [PAD, SOS]] = -torch.inf
        assert allowed.argmax(-1).tolist() == written


@every_causal
def test_law_4_a_beams_log_prob_is_what_score_gives(name: str) -> None:
    engine, rows = make_engine(make_model(name)), rows_of(make_source(7, 3, 5))
    requests = make_requests(rows, beam=5, n_best=4, max_length=9, prefix=(7, 11))
    found = last_outputs(run(engine, requests))
    assert sorted(found) == [0, 1, 2]
    for request in requests:
        for hypothesis in found[request.id]:
            written = [*hypothesis.ids, EOS] if hypothesis.finished else hypothesis.ids
            (forced,) = engine.force([request], [written])
            expected = forced.token_log_probs
            assert hypothesis.ids[:2] == (7, 11)
            assert hypothesis.token_log_probs == pytest.approx(expected, abs=1e-9)
            assert hypothesis.log_prob == pytest.approx(sum(expected), abs=1e-9)
            norm = request.options.norm(len(expected))
            assert hypothesis.rank_score == pytest.approx(hypothesis.log_prob / norm, abs=1e-9)
        ranks = [(hypothesis.finished, hypothesis.rank_score) for hypothesis in found[request.id]]
        assert len(ranks) == 4
        assert ranks == sorted(ranks, reverse=True)


@every_causal_cross
@pytest.mark.parametrize("size", [5, 2])
def test_a_beam_streams_the_weights_of_each_token(name: str, size: int) -> None:
    """Rows are reordered at every step, leave and join; a token still comes with the weights of its own hypothesis."""
    model, rows = make_model(name), rows_of(make_source(7, 3, 5, 2, 9))
    look = Look((Tap("cross", layer=-1), Tap("decoder", layer=-1)))
    requests = make_requests(rows, beam=5, max_length=20, max_ratio=0.5, stream=True, look=look)
    events = run_joining(make_engine(model), batched(requests, size))
    for sentence, row in enumerate(rows):
        mine = [event for event in events if event.id == sentence]
        best = mine[-1].hypotheses[0]
        assert tuple(token for event in mine for token in event.ids) == best.ids
        for whole in model.decode(torch.tensor([[SOS, *best.ids]]), model.encode(token_batch([row])), look).seen:
            streamed = [torch.from_numpy(seen.weights_BHTS) for event in mine for seen in event.seen if seen.kind == whole.kind]
            assert len(streamed) == len(best.token_log_probs)  # with <eos>
            for position, weights in enumerate(streamed):
                keys = len(row) if whole.kind == "cross" else position + 1
                torch.testing.assert_close(weights, whole.weights_BHTS[:, :, position : position + 1, :keys])


# --- law 5: fused = plain ----------------------------------------------------------------------------------------------------


@every_score
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_law_5_fused_tiled_and_plain_agree(score_name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    # SPEC A1.1 A4.4
    query, key, value, allow = random_inputs(dtype)
    score = SCORES[score_name](11)
    parameters = []
    if isinstance(score, torch.nn.Module):
        score = score.to(dtype)
        parameters = list(score.parameters())
    inputs = [tensor.requires_grad_() for tensor in (query, key, value)] + parameters
    weights = masked_softmax(score.scores(query, score.prepare(key)), allow)
    plain = weights @ value
    torch.testing.assert_close(weights, attention_weights(query, key, score=score, allow=allow))
    assert (plain[:, :, 1] == 0).all()
    target = torch.randn_like(plain)
    expected = gradients((plain * target).sum(), inputs)
    assert all(gradient.isfinite().all() for gradient in expected)
    for tile in (attention.TILE, 1, 2 * 3 * 7 * 13 * 2):  # all at once, row by row, two rows at a time
        monkeypatch.setattr(attention, "TILE", tile)
        context = attend(query, key, value, score=score, allow=allow)
        torch.testing.assert_close(context, plain)
        for gradient, plain_gradient in zip(gradients((context * target).sum(), inputs), expected, strict=True):
            torch.testing.assert_close(gradient, plain_gradient)


@every_model
def test_law_5_whole_models_agree_on_both_paths(name: str) -> None:
    model, source, targets = make_model(name), make_source(7, 3, 5), make_targets(3, 6)
    plain = Look(taps=EVERYTHING.taps, grad=True)
    results = []
    for look in (None, plain):
        logits = model.decode(targets, model.encode(source, look), look).logits_BTV
        results.append((logits, *gradients(logits.square().sum(), list(model.parameters()))))
    for fused, expected in zip(*results, strict=True):
        torch.testing.assert_close(fused, expected)


# --- law 10: device-clean ----------------------------------------------------------------------------------------------------


def move_to_fake(model: torch.nn.Module, device: str) -> None:
    for module in model.modules():
        for key, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[key] = torch.empty(buffer.shape, device=device)
        for key, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[key] = torch.nn.Parameter(torch.empty(parameter.shape, device=device))
        if isinstance(module, torch.nn.RNNBase):
            module._flat_weights = [getattr(module, key) for key in module._flat_weights_names]


@every_model
def test_law_10_nothing_is_left_on_the_cpu(name: str) -> None:
    """Fake tensors compute shapes and devices only, and refuse to mix devices. The foreign device is "meta": a CPU build of
    torch aborts the whole process when autograd gets a fake "cuda" tensor (docs/LOG.md)."""
    model, device = make_model(name, torch.float32), "meta"
    with FakeTensorMode():
        move_to_fake(model, device)
        ids = torch.ones(3, 7, dtype=torch.long, device=device)
        targets = torch.ones(3, 5, dtype=torch.long, device=device)
        memory = model.encode(Source(ids, masks.not_padding(ids, PAD)), EVERY_WHAT)
        if reads_source(name):
            on_cpu = Source(ids.cpu(), masks.not_padding(ids.cpu(), PAD))
            with pytest.raises((RuntimeError, ValueError), match="device"):  # torch refuses, or our check of the mask does
                model.decode(targets, model.encode(on_cpu))
        decoded = model.decode(targets, memory, EVERY_WHAT)
        decoded.logits_BTV.sum().backward()
        received = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        assert all(gradient.device.type == device for gradient in received)
        assert decoded.attention_log_prob_BT is not None or len(received) == len(list(model.parameters()))
        step = model.step(targets[:, :1], model.start(memory, targets[:, :2]), EVERY_WHAT)
        state = step.state.join(model.start(memory, targets)).select(torch.zeros(6, 2, dtype=torch.long, device=device))
        last = model.step(torch.ones(6, 2, dtype=torch.long, device=device), state)
        assert last.logits_BKV.device.type == device
        assert last.logits_BKV.shape == (6, 2, 19)
        assert all(seen.weights_BHTS.device.type == device for seen in memory.seen + decoded.seen + step.seen)
