"""Exact hard attention against the enumeration of all alignments: values, gradients, posteriors, the best alignment."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from table import EOS, PAD, SOURCE_VOCAB, TARGET_VOCAB, make_model, make_source, make_targets
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from regard.core import latent
from regard.core.source import Source
from regard.look import Edit, Look, Tap
from regard.models.contract import Memory
from regard.models.rnn_seq2seq import RnnSeq2Seq

COPIES = "rnn monotone, copies, features as a set"
SUMMED = ["rnn marginal", "rnn monotone", "rnn monotone location, one direction, 2+2 layers", COPIES]
every_summed = pytest.mark.parametrize("name", SUMMED)


def alignments(name: str, num_tokens: int, num_positions: int) -> list[tuple[int, ...]]:
    if "marginal" in name:
        return list(itertools.product(range(num_positions), repeat=num_tokens))
    return list(itertools.combinations_with_replacement(range(num_positions), num_tokens))


def first_state(model: RnnSeq2Seq, summary_BE: Tensor) -> Tensor | tuple[Tensor, ...]:
    settings = model.settings
    if settings.bridge == "zero":
        return torch.zeros(settings.decoder_layers, len(summary_BE), settings.width, dtype=summary_BE.dtype)
    first = model.bridge(summary_BE).tanh().unflatten(-1, (settings.decoder_layers, -1)).transpose(0, 1)
    return tuple(part.contiguous() for part in first.chunk(2, -1)) if settings.cell == "lstm" else first.contiguous()


def decoder_states(model: RnnSeq2Seq, read: Tensor, memory: Memory) -> Tensor:
    states: Tensor = model.decoder(model.target_embedding(read), first_state(model, memory.summary_BE))[0]
    if memory.features_BFI is None:
        return states
    rows = []
    for row, features in zip(states, memory.features_BFI, strict=True):
        gates = [(row @ model.feature_query.weight.T + model.feature_query.bias) @ f / math.sqrt(len(f)) for f in features]
        added = [torch.outer(gate.sigmoid(), model.feature_value(f)) for gate, f in zip(gates, features, strict=True)]
        rows.append(row + sum(added, torch.zeros_like(row)))
    return torch.stack(rows)


def copy_or_not(model: RnnSeq2Seq, log_probs: Tensor, s: Tensor, h: Tensor, own: int) -> Tensor:
    """Returns log(g [v = own] + (1 − g) p(v)), g = σ(W_g [s; h] + b_g); special tokens are not copied."""
    if not model.settings.copy or own <= EOS:
        return log_probs
    g = model.gate(torch.cat((s, h))).sigmoid()
    probs = (1 - g) * log_probs.exp() + g * (torch.arange(len(log_probs)) == own)
    return probs.clamp_min(1e-300).log()  # log 0 has no gradient


def enumerate_alignments(model: RnnSeq2Seq, source: Source, ids: list[int]) -> dict[tuple[int, ...], Tensor]:
    """Returns log p(a, y) of every alignment of one sentence, from the formulas: softmax over rows of scores, no sharing.

    ids: the tokens of the output, without <sos>.
    """
    settings, memory = model.settings, model.encode(source)
    h = memory.values_BSE[0]
    read = torch.tensor([[2, *ids[:-1]]])
    s = decoder_states(model, read, memory)[0]
    tokens = [0] * len(h) if memory.tokens_BS is None else memory.tokens_BS[0].tolist()
    content = model.score.scores(s, model.score.prepare(h))
    size = len(h)
    totals = {}
    for alignment in alignments(settings.attention, len(ids), size):
        total, before = torch.zeros((), dtype=h.dtype), 0
        for step, (position, token) in enumerate(zip(alignment, ids, strict=True)):
            logits = model.output(torch.cat((s[step], h[position])))
            if settings.attention == "marginal":
                total = total + content[step].log_softmax(0)[position]
            else:
                jump = model.jump(torch.cat((s[step], h[before])))
                to = torch.stack([content[step, j] + jump[min(j - before, settings.jumps)] for j in range(before, size)])
                total = total + to.log_softmax(0)[position - before]
                if position < size - 1:
                    logits = torch.cat((logits[:EOS], logits[EOS : EOS + 1] - math.inf, logits[EOS + 1 :]))
            log_probs = copy_or_not(model, logits.log_softmax(0), s[step], h[position], tokens[position])
            total, before = total + log_probs[token], position
        totals[alignment] = total
    return totals


def gradients(loss: Tensor, model: torch.nn.Module) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, materialize_grads=True)


def make_variant(name: str) -> RnnSeq2Seq:
    """Returns a model of the table, or one that also copies, or whose first five ids are features."""
    base, _, variant = name.partition(" + ")
    model = make_model(base, features=5 if variant == "features" else 0)
    assert isinstance(model, RnnSeq2Seq)
    if variant == "copies":
        model = RnnSeq2Seq(replace(model.settings, copy=True), SOURCE_VOCAB, TARGET_VOCAB).double().eval()
    return model


@pytest.mark.parametrize("name", [*SUMMED, "rnn marginal + copies", f"{COPIES} + features"])
def test_the_sum_over_all_alignments_is_exact(name: str) -> None:  # SPEC A0.12 A3.2
    """Sentences of different lengths in one batch, so there is padding on both sides."""
    model, lengths = make_variant(name), (5, 2, 4)
    source = make_source(*lengths)
    outputs = [[7, 4, 11, EOS], [9, 9, 5, EOS], [6, EOS]]
    targets = torch.tensor([[*ids, *[PAD] * (4 - len(ids))] for ids in outputs])
    read = torch.cat((torch.full((3, 1), 2), targets[:, :-1]), dim=1)
    decoded = model.decode(read, model.encode(source))
    loss = decoded.loss(targets, pad=PAD)
    expected = []
    for row, (length, ids) in enumerate(zip(lengths, outputs, strict=True)):
        alone = Source(source.values[row : row + 1, :length], source.allow[row : row + 1, :length])
        joint = enumerate_alignments(model, alone, ids)
        expected.append(-torch.stack(list(joint.values())).logsumexp(0))
        log_probs = decoded.log_probs(targets)[row, : len(ids)]
        torch.testing.assert_close(-log_probs.sum(), expected[-1])
        torch.testing.assert_close(decoded.distribution()[row, range(len(ids)), ids], log_probs)
    torch.testing.assert_close(loss, torch.stack(expected).sum())
    for gradient, by_hand in zip(gradients(loss, model), gradients(torch.stack(expected).sum(), model), strict=True):
        torch.testing.assert_close(gradient, by_hand)
    torch.testing.assert_close(decoded.distribution().exp().sum(-1), torch.ones(3, 4, dtype=torch.float64))


@every_summed
def test_the_posterior_is_that_of_all_alignments(name: str) -> None:  # SPEC A0.12 A3.2
    model, source = make_model(name), make_source(5)
    ids = [7, 4, 11, 6]
    joint = enumerate_alignments(model, source, ids)
    paths, log_probs = list(joint), torch.stack(list(joint.values()))
    expected = torch.zeros(4, 5, dtype=torch.float64)
    for path, share in zip(paths, log_probs.softmax(0), strict=True):
        expected[range(4), list(path)] += share
    look = Look((Tap("cross", what="posterior"), Tap("cross")))
    read = torch.tensor([[2, *ids]])  # one more step, whose token is not known
    posterior, prior = model.decode(read, model.encode(source), look).seen
    torch.testing.assert_close(posterior.weights_BHTS[0, 0, :4], expected)
    assert (posterior.weights_BHTS[0, 0, :4] - prior.weights_BHTS[0, 0, :4]).abs().max() > 0.01
    step = model.step(read[:, :1], model.start(model.encode(source)), look)
    torch.testing.assert_close(step.seen[0].weights_BHTS[0, 0, 0], prior.weights_BHTS[0, 0, 0])  # it knows no more


def random_chain() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """B2 T3 S5 J4: scores of positions, scores of jumps, emissions; the second sentence has 3 positions."""
    generator = torch.Generator().manual_seed(4)
    sizes = [(2, 3, 5), (2, 3, 5, 4), (2, 3, 5)]
    content, jumps, emissions = (torch.randn(size, generator=generator, dtype=torch.float64) * 2 for size in sizes)
    return content, jumps, emissions, torch.tensor([[True] * 5, [True] * 3 + [False] * 2])[:, None]


def log_joint(content: Tensor, jumps: Tensor, emissions: Tensor, path: tuple[int, ...], size: int) -> Tensor:
    total, before = torch.zeros((), dtype=torch.float64), 0
    for step, position in enumerate(path):
        to = torch.stack([content[step, j] + jumps[step, before, min(j - before, 3)] for j in range(before, size)])
        total = total + to.log_softmax(0)[position - before] + emissions[step, position]
        before = position
    return total


def test_the_best_alignment_is_the_best_of_all() -> None:  # SPEC A3.2
    content, jumps, emissions, allow = random_chain()
    steps = latent.moves(content, jumps, allow).unbind(1)
    found = latent.viterbi(latent.first_position(content[:, 0]), steps, emissions.unbind(1))
    for row, size in enumerate((5, 3)):
        paths = alignments("monotone", 3, size)
        best = max(paths, key=lambda path: log_joint(content[row], jumps[row], emissions[row], path, size).item())
        assert tuple(found[row].tolist()) == best
    assert len({tuple(path) for path in found.tolist()}) == 2


def test_the_forward_algorithm_has_the_right_gradient() -> None:  # SPEC A3.2
    content, jumps, emissions, allow = random_chain()

    def total(content: Tensor, jumps: Tensor, emissions: Tensor) -> Tensor:
        steps = latent.moves(content, jumps, allow).unbind(1)
        start, nothing = latent.first_position(content[:, 0]), torch.zeros_like(content[:, 0])
        priors = latent.filter_chain(start, steps, [nothing] * 3, emissions.unbind(1))
        return (torch.stack(priors, dim=1) + emissions).logsumexp(-1)

    inputs = [tensor.requires_grad_() for tensor in (content, jumps, emissions)]
    summed = total(*inputs).sum(1)
    for row, size in enumerate((5, 3)):
        joint = [log_joint(content[row], jumps[row], emissions[row], path, size) for path in alignments("monotone", 3, size)]
        torch.testing.assert_close(summed[row], torch.stack(joint).logsumexp(0))
    assert torch.autograd.gradcheck(total, inputs)


def test_jumps_longer_than_the_source_are_impossible() -> None:
    content = random_chain()[0]
    jumps = torch.randn(2, 3, 5, 9, dtype=torch.float64)
    step = latent.moves(content, jumps, torch.ones_like(content) > 0).unbind(1)[0]
    ahead = step.forwards(latent.first_position(content[:, 0])).exp()
    expected = (content[:, 0] + jumps[:, 0, 0, :5]).softmax(-1)
    torch.testing.assert_close(ahead, expected)
    torch.testing.assert_close(step.backwards(torch.zeros_like(content[:, 0])).exp(), torch.ones(2, 5, dtype=torch.float64))


class LargestTensor(TorchDispatchMode):
    """Records the number of elements of the largest tensor that any operation returns."""

    numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = function(*args, **(kwargs or {}))
        results = result if isinstance(result, tuple | list) else [result]
        self.numel = max(self.numel, *(part.numel() for part in results if isinstance(part, Tensor)), 0)
        return result


@every_summed
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_no_tensor_holds_all_tokens_of_all_choices(name: str, smoothing: float) -> None:  # SPEC A3.2
    torch.manual_seed(1)
    B, T, S, V = 3, 37, 11, 1009
    settings = replace(make_model(name).settings, score="general")
    model = RnnSeq2Seq(settings, 17, V).train()
    targets = torch.randint(4, V, (B, T))
    with LargestTensor() as largest:
        decoded = model.decode(make_targets(B, T), model.encode(make_source(S, 7, 5)))
        decoded.loss(targets, pad=PAD, smoothing=smoothing).backward()
        model.step(targets[:, :1], model.start(model.encode(make_source(S, 7, 5))))
    assert largest.numel >= B * T * V or not smoothing
    assert largest.numel < B * T * S * V / 5


@every_summed
def test_label_smoothing_is_that_of_the_distribution(name: str) -> None:
    model, source, targets = make_model(name), make_source(7, 3, 5), make_targets(3, 6)
    targets[1, 4:] = PAD
    decoded = model.decode(make_targets(3, 6), model.encode(source))
    log_probs, real = decoded.logits_BTV, targets != PAD
    picked = log_probs.gather(-1, targets[..., None])[..., 0]
    expected = -(0.9 * picked + 0.1 * log_probs.mean(-1))[real].sum()
    torch.testing.assert_close(decoded.loss(targets, pad=PAD, smoothing=0.1), expected)


@every_summed
def test_the_largest_weight_alone_is_hard_attention(name: str) -> None:  # SPEC A3.2
    """With the edit key="largest" every token is written from one position: the arg-max of the weights."""
    model, source, targets = make_model(name), make_source(7, 3, 5), make_targets(3, 6)
    memory = model.encode(source)
    look = Look((Tap("cross"),), (Edit("cross", key="largest"),))
    hard, (prior,) = model.decode(targets, memory, look), model.decode(targets, memory, Look((Tap("cross"),))).seen
    chosen = prior.weights_BHTS[:, 0].argmax(-1)
    assert torch.equal(hard.seen[0].weights_BHTS[:, 0].argmax(-1), chosen)
    assert (hard.seen[0].weights_BHTS.sum(-1) == 1).all()
    state = model.start(memory)
    for position in range(6):
        step = model.step(targets[:, position : position + 1], state, look)
        state = step.state
        torch.testing.assert_close(step.logits_BKV[:, 0], hard.logits_BTV[:, position])
    s = decoder_states(model, targets, memory)
    h = memory.values_BSE.gather(1, chosen[..., None].expand(-1, -1, memory.values_BSE.shape[-1]))
    logits = model.output(torch.cat((s, h), dim=-1))
    if "monotone" in name:
        last = chosen == source.allow.sum(1, keepdim=True) - 1
        logits[..., EOS] = logits[..., EOS].masked_fill(~last, -1e9)
    expected = logits.log_softmax(-1)
    if model.settings.copy:
        own = source.values.gather(1, chosen)
        for row, step in itertools.product(range(3), range(6)):
            expected[row, step] = copy_or_not(model, expected[row, step], s[row, step], h[row, step], int(own[row, step]))
    assert ((hard.logits_BTV - expected).abs() < 1e-9)[expected > -600].all()


@pytest.mark.parametrize("name", SUMMED[1:])
def test_a_monotone_output_ends_at_the_last_position(name: str) -> None:
    model, source, targets = make_model(name), make_source(7, 3), make_targets(2, 4)
    decoded = model.decode(targets, model.encode(source), Look((Tap("cross"), Tap("cross", what="posterior"))))
    prior = decoded.seen[0].weights_BHTS[:, 0]
    for row, length in enumerate((7, 3)):
        ended = decoded.distribution()[row, :, EOS].exp()
        assert (ended <= prior[row, :, length - 1]).all()
        assert (ended > 0).all()
    state = model.step(targets[:, :1], model.start(model.encode(source))).state
    after = model.step(torch.full((2, 1), EOS), state, Look((Tap("cross"),))).seen[0].weights_BHTS[:, 0, 0]
    torch.testing.assert_close(after[[0, 1], [6, 2]], torch.ones(2, dtype=torch.float64))


def test_features_are_a_set_without_positions() -> None:
    """The encoder reads the other tokens only. What is unknown after a feature is an unknown feature."""
    model = make_model(COPIES, features=5)  # the ids 4 to 8
    assert isinstance(model, RnnSeq2Seq)
    rows = torch.tensor([[9, 12, 10, 5, 7, 3], [5, 9, 7, 12, 10, 3], [11, 1, 8, 1, 3, 0]])
    memory = model.encode(Source(rows, rows > 0))
    assert memory.tokens_BS is not None
    assert memory.tokens_BS.tolist() == [[9, 12, 10, 3], [9, 12, 10, 3], [11, 1, 3, int(memory.tokens_BS[2, 3])]]
    assert memory.allow_BS.sum(1).tolist() == [4, 4, 3]
    torch.testing.assert_close(memory.values_BSE[0], memory.values_BSE[1])
    without = model.encode(Source(rows[:1, [0, 1, 2, 5]], torch.ones(1, 4, dtype=torch.bool)))
    torch.testing.assert_close(memory.values_BSE[0], without.values_BSE[0])
    vectors = model.source_embedding(torch.tensor([5, 7, 8]))
    expected = torch.stack((vectors[:2], vectors[:2], torch.stack((vectors[2], torch.zeros_like(vectors[2])))))
    torch.testing.assert_close(memory.features_BFI, expected)
    read = torch.tensor([[2, 9, 14]] * 3)
    log_probs, plain = model.decode(read, memory).distribution(), model.decode(read[:1], without).distribution()
    torch.testing.assert_close(log_probs[0], log_probs[1])
    assert (log_probs[0] - plain[0]).abs().max() > 0.01, "features matter"


def test_a_copied_token_tells_where_the_alignment_is() -> None:
    """After a token that only its own position can write, steps and whole passes agree on the next weights."""
    model, source, targets = make_model(COPIES), make_source(7, 3, 5), make_targets(3, 6)
    targets[0, 2] = source.values[0, 4]
    whole = model.decode(targets, model.encode(source), Look((Tap("cross"),)))
    state = model.start(model.encode(source))
    for position in range(6):
        step = model.step(targets[:, position : position + 1], state, Look((Tap("cross"),)))
        state = step.state
        torch.testing.assert_close(step.logits_BKV[:, 0], whole.distribution()[:, position])
        torch.testing.assert_close(step.seen[0].weights_BHTS[:, :, 0], whole.seen[0].weights_BHTS[:, :, position])
    assert isinstance(model, RnnSeq2Seq)
    model.gate.bias.data += 20  # now positions write their own token only
    sure = model.decode(targets[:1], model.encode(make_source(7)), Look((Tap("cross", what="posterior"),)))
    assert sure.seen[0].weights_BHTS[0, 0, 1, 4] > 0.99  # targets[0, 2] is written in step 1
