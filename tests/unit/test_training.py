import io
import math
import random
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from table import EOS, PAD, SOURCE_VOCAB, TARGET_VOCAB, make_model

import regard
from regard.checkpoint.runs import Checkpoint, Checkpoints, Damaged
from regard.core import losses, masks
from regard.core.losses import Baseline, sequence_loss
from regard.core.source import Source
from regard.data.batch import Batch, Batches, BatchOrder, Example, collate, encode_pairs, lengths
from regard.data.corpus import Pair
from regard.data.seeds import derived_seed
from regard.errors import UserError
from regard.layers.dropout import Dropout
from regard.look import Look
from regard.models.build import build, num_parameters
from regard.models.contract import Decoded, Memory, Model, Projected
from regard.models.rnn_seq2seq import RnnSettings
from regard.models.transformer import PRESETS, TransformerSettings
from regard.training import progress
from regard.training.callbacks import averaged
from regard.training.data import in_memory
from regard.training.learner import Learner
from regard.training.loop import Update, learning_rate, same_rates, train
from regard.training.monotone import order_correlation
from regard.training.objective import batch_loss, hard_attention_loss, most_probable, repeated
from regard.training.overrides import override
from regard.training.progress import progress_bar, with_progress
from regard.training.run import Trained, run
from regard.training.settings import DataSettings, RunSettings, TrainSettings
from regard.training.suggest import expectation, suggest


def test_loss_by_hand_ignores_padding() -> None:
    logits, targets = torch.randn(2, 3, 5), torch.tensor([[1, 4, 0], [2, 0, 0]])
    log_probs = logits.log_softmax(-1)
    real = [(0, 0, 1), (0, 1, 4), (1, 0, 2)]
    plain = -sum(log_probs[b, t, target] for b, t, target in real)
    torch.testing.assert_close(sequence_loss(logits, targets, pad=0), plain)
    smooth = -sum(0.9 * log_probs[b, t, target] + 0.1 * log_probs[b, t].mean() for b, t, target in real)
    torch.testing.assert_close(sequence_loss(logits, targets, pad=0, smoothing=0.1), smooth)
    logits[0, 2], logits[1, 1:] = 100 * torch.randn(5), 100 * torch.randn(2, 5)
    torch.testing.assert_close(sequence_loss(logits, targets, pad=0, smoothing=0.1), smooth)


@pytest.mark.parametrize("affects_later_steps", [True, False])
def test_decisions_are_rewarded_relative_to_the_baseline(affects_later_steps: bool) -> None:  # SPEC A3.2
    """Σ_t (R_t − b n_t) log π(a_t): the baseline is b for each of the n_t tokens that a decision affects."""
    batch = collate([Example([5], [1, 4]), Example([5], [])])
    logits, log_pi = torch.randn(2, 3, 5), -torch.rand(2, 3)
    decoded = Projected(
        logits,
        torch.eye(5),
        torch.zeros(5),
        attention_log_prob_BT=log_pi,
        attention_entropy_BT=torch.rand(2, 3),
        affects_later_steps=affects_later_steps,
    )
    log_probs = logits.log_softmax(-1)
    one, four, end, short = (log_probs[b, t, token].item() for b, t, token in ((0, 0, 1), (0, 1, 4), (0, 2, EOS), (1, 0, EOS)))
    gains = [one + four + end + 6, four + end + 4, end + 2] if affects_later_steps else [one + 2, four + 2, end + 2]
    expected = -sum(gain * log_pi[0, t].item() for t, gain in enumerate(gains)) - (short + 2) * log_pi[1, 0].item()
    loss, after = hard_attention_loss(decoded, batch, Baseline(-2.0, 1), TrainSettings())
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert after.value == pytest.approx((-2.0 + (one + four + end + short) / 4) / 2, rel=1e-5)


def test_several_samples_share_one_pass_of_the_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The choices differ, the memory does not; the loss is the mean of the samples' losses."""
    model = make_model("rnn gru, bahdanau, hard", torch.float32).train()
    batch = collate([Example([5, 6, 7, 8], [4, 5, 6]), Example([9, 4], [7])])
    memories, decoded = [], []
    real_encode, real_decode = model.encode, model.decode

    def encode(source: Source) -> Memory:
        memories.append(real_encode(source))
        return memories[-1]

    def decode(ids_BT: torch.Tensor, memory: Memory, look: Look | None = None) -> Decoded:
        assert all(torch.equal(memory.values_BSE[number], memories[0].values_BSE[number // 3]) for number in range(6))
        decoded.append(real_decode(ids_BT, memory, look))
        return decoded[-1]

    monkeypatch.setattr(model, "encode", encode)
    monkeypatch.setattr(model, "decode", decode)
    total, _ = batch_loss(model, batch, TrainSettings(samples=3, baseline="leave_one_out", entropy_bonus=0.1))
    assert len(memories) == len(decoded) == 1
    (result,) = decoded
    targets, real = (tensor.repeat_interleave(3, 0) for tensor in (batch.target_out_BT, batch.target_out_BT != PAD))
    assert result.attention_log_prob_BT is not None
    assert result.attention_entropy_BT is not None
    assert len({tuple(row.tolist()) for row in result.attention_log_prob_BT[:3]}) > 1
    log_prob = result.log_probs(targets).masked_fill(~real, 0.0)
    expected = 0.0
    for n, t in real.nonzero().tolist():
        others = [m for m in range(n // 3 * 3, n // 3 * 3 + 3) if m != n]
        gain = log_prob[n, t:].sum() - sum(log_prob[m, t:].sum() for m in others) / 2
        choice = gain * result.attention_log_prob_BT[n, t] + 0.1 * result.attention_entropy_BT[n, t]
        expected -= (log_prob[n, t] + choice).item() / 3
    assert total.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "settings",
    [{"attention": "hard", "features": "set"}, {"attention": "marginal", "readout": "plain", "copy": True, "shared": True}],
)
def test_a_repeated_memory_is_that_of_repeated_sources(settings: dict[str, Any]) -> None:
    """All of it: vectors, mask, summary, the tokens to copy, and features."""
    pairs = [(("walk", "PST;1"), "walked"), (("go", "PST"), "went")]
    model = regard.build("rnn", pairs, width=8, embedding=6, decoder="luong", device="cpu", **settings)
    examples = encode_pairs([Pair(*pair) for pair in pairs], model.reader)
    batch = collate(examples)
    targets, memory = repeated(batch, model.model.encode(batch.source), 3)
    expected = collate([example for example in examples for _ in range(3)])
    assert torch.equal(targets.target_in_BT, expected.target_in_BT)
    assert torch.equal(targets.target_out_BT, expected.target_out_BT)
    assert targets.num_targets == expected.num_targets
    fields = vars(model.model.encode(expected.source))
    theirs = {name: value for name, value in fields.items() if isinstance(value, torch.Tensor)}
    assert len(theirs) == 4
    torch.testing.assert_close({name: vars(memory)[name] for name in theirs}, theirs)


def test_the_most_probable_choices_are_a_baseline() -> None:
    """Without dropout, and the model is in training mode afterwards."""
    model = make_model("rnn hard", torch.float32).train()
    batch = collate([Example([5, 6, 7, 8], [4, 5, 6])])
    memory = model.encode(batch.source)
    one, other = (most_probable(model, batch, memory).log_probs(batch.target_out_BT) for _ in range(2))
    assert torch.equal(one, other)
    assert all(part.training for part in model.modules())
    torch.testing.assert_close(one, model.eval().decode(batch.target_in_BT, memory).log_probs(batch.target_out_BT))


def test_only_sampled_choices_have_samples() -> None:
    with pytest.raises(UserError, match=r"baseline=leave_one_out compares several samples .* set train.samples=4"):
        TrainSettings(baseline="leave_one_out")
    for changes in (["train.samples=2"], ["train.baseline=self_critical"]):
        with pytest.raises(UserError, match=r"this model samples no choices; set model.attention=hard"):
            override(RunSettings(), changes)
        assert override(RunSettings(), [*changes, "model.attention=gated"]).model.traits.sampled_attention


def test_learning_rate_rises_and_falls_towards_zero() -> None:
    settings = TrainSettings(steps=100, learning_rate=2.0, warmup=0.1)
    rates = [learning_rate(number, settings) for number in range(100)]
    assert rates[0] == pytest.approx(0.2)
    assert max(rates) == rates[9] == rates[10] == 2.0
    assert rates[-1] == pytest.approx(2.0 / 90)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert learning_rate(0, TrainSettings(steps=1, learning_rate=2.0)) == 2.0


class Recorder:
    """Callbacks that record their calls. values: the results of the validations, in order."""

    interrupted = False

    def __init__(self, values: Sequence[float] = ()) -> None:
        self.values = iter(values)
        self.updates: list[Update] = []
        self.saved: list[int] = []
        self.checkpoints: list[int] = []

    def on_update(self, update: Update) -> None:
        self.updates.append(update)

    def validate(self) -> float:
        return next(self.values)

    def save_best(self) -> None:
        self.saved.append(len(self.updates))

    def checkpoint(self) -> None:
        self.checkpoints.append(len(self.updates))


def batches_of(examples: Sequence[Example], settings: TrainSettings, seed: int) -> Batches:
    tokens, accumulate = settings.batch_tokens, settings.accumulate
    return Batches(examples, BatchOrder(lengths(examples), batch_tokens=tokens, accumulate=accumulate, seed=seed))


def train_model(model: Model, examples: Sequence[Example], settings: TrainSettings, seed: int) -> list[Update]:
    recorder = Recorder()
    batches = batches_of(examples, settings, seed)
    train(Learner(model, settings), batches, settings, seed=seed, callbacks=recorder)
    return recorder.updates


def run_once(name: str, seed: int, steps: int = 6) -> tuple[list[Update], list[torch.Tensor]]:
    examples = [Example([4 + n % 13, 5, 6 + n % 11], [4 + n % 15, 7 + n % 12]) for n in range(40)]
    model = make_model(name, torch.float32)
    settings = TrainSettings(steps=steps, batch_tokens=40, label_smoothing=0.1)
    updates = train_model(model, examples, settings, seed)
    assert not model.training
    return updates, [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("name", ["rnn additive", "transformer scaled_dot"])
def test_the_same_seed_gives_the_same_weights(name: str) -> None:
    """Bit for bit, with dropout, whatever random numbers were drawn before."""
    first = run_once(name, seed=7)
    torch.manual_seed(12345)
    again, other = run_once(name, seed=7), run_once(name, seed=8)
    assert first[0] == again[0] != other[0]
    assert all(map(torch.equal, first[1], again[1]))
    assert not all(map(torch.equal, first[1], other[1]))
    assert [update.number for update in first[0]] == list(range(6))


@pytest.mark.parametrize("name", ["rnn additive", "transformer scaled_dot"])
def test_the_loop_equals_one_written_by_hand(name: str) -> None:
    """Dropout drawn from (seed, update), smoothing, loss per real token, clipping, the schedule, AdamW."""
    examples = [Example([4 + n % 13, 5, 6 + n % 11], [4 + n % 15, 7 + n % 12][: 1 + n % 2]) for n in range(40)]
    settings = TrainSettings(steps=4, batch_tokens=40, label_smoothing=0.1, clip=0.5, learning_rate=0.01, warmup=0.5)
    ours, theirs = (make_model(name) for _ in range(2))
    updates = train_model(ours, examples, settings, seed=3)

    theirs.train()
    optimiser = torch.optim.AdamW(theirs.parameters(), lr=1.0, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    batches = batches_of(examples, settings, seed=3)
    for number, rate in enumerate((0.005, 0.01, 0.01, 0.005)):
        (batch,) = batches(number)
        torch.manual_seed(derived_seed(3, "update", number, 0))
        logits = theirs.decode(batch.target_in_BT, theirs.encode(batch.source)).logits_BTV
        real = batch.target_out_BT != 0
        loss = torch.nn.functional.cross_entropy(logits[real], batch.target_out_BT[real], label_smoothing=0.1)
        loss.backward()
        gradients = [parameter.grad for parameter in theirs.parameters()]
        norm = torch.sqrt(sum(gradient.square().sum() for gradient in gradients))
        assert updates[number].loss == pytest.approx(loss.item(), rel=1e-9)
        assert updates[number].norm == pytest.approx(norm.item(), rel=1e-9)
        assert updates[number].learning_rate == pytest.approx(rate)
        for gradient in gradients:
            gradient.mul_(min(1.0, 0.5 / (norm.item() + 1e-6)))  # as torch does
        optimiser.param_groups[0]["lr"] = rate
        optimiser.step()
        optimiser.zero_grad()
    assert any(update.norm > 0.5 for update in updates)
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_a_run_that_diverges_is_stopped() -> None:
    examples = [Example([4, 5, 6], [4, 7])] * 4
    settings = TrainSettings(steps=50, learning_rate=1e30)
    words = r"update \d+: training diverged: the loss is .*; try a train.learning_rate below"
    with pytest.raises(UserError, match=words):
        train_model(make_model("rnn additive", torch.float32), examples, settings, seed=1)


@pytest.mark.parametrize("settings", [RnnSettings(), TransformerSettings()])
def test_a_fresh_model_prefers_no_token(settings: RnnSettings | TransformerSettings) -> None:
    """The loss at the start is about ln V."""
    torch.manual_seed(1)
    model = build(settings, SOURCE_VOCAB, TARGET_VOCAB)
    examples = [Example([4 + n % 13, 5, 6 + n % 11], [4 + n % 15, 7 + n % 12]) for n in range(40)]
    updates = train_model(model, examples, TrainSettings(steps=1, batch_tokens=400), seed=1)
    assert math.log(TARGET_VOCAB) - 0.1 < updates[0].loss < math.log(TARGET_VOCAB) + 0.6
    assert num_parameters(model) == sum(parameter.numel() for parameter in model.parameters())


# --- settings ----------------------------------------------------------------------------------------------------------------


def test_settings_are_changed_by_name() -> None:
    changed = override(RunSettings(), ["train.steps=300", "seed=7", "train.learning_rate=1e-4", "data.target_unit=symbols"])
    assert (changed.train.steps, changed.seed, changed.train.learning_rate, changed.data.target_unit) == (
        300,
        7,
        1e-4,
        "symbols",
    )
    other = override(RunSettings(), ["model.width=64", "model.kind=transformer"])
    assert other.model == TransformerSettings(width=64)
    assert override(other, ["model.heads=2"]).model == TransformerSettings(width=64, heads=2)
    assert override(RunSettings(), []) == RunSettings()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["train.stepz=3"], r"no setting 'train.stepz'; did you mean \"train.steps\"\?$"),
        (["train.steps"], r"--set train.steps: expected key=value"),
        (
            ["qqq=3"],
            r"no setting 'qqq'; expected one of seed, data.files, .*data.source_unit, .*train.metric, .*start.model, .*$",
        ),
        (["train.steps=many"], r"--set train.steps: input should be a valid integer.*got 'many'"),
        (["train.steps=0"], r"--set train.steps: input should be greater than or equal to 1, got '0'"),
        (
            ["model.kind=transfomer"],
            r"--set model.kind=transfomer: expected one of rnn, rnn_lm, .*; did you mean \"transformer\"",
        ),
        (
            ["model.score=aditive"],
            r"--set model.*score 'aditive'.*expected one of dot, scaled_dot, .*; did you mean \"additive\"",
        ),
        (
            ["model.kind=transformer", "model.heads=3"],
            r"--set model: width 128 is not divisible by 3 heads; try width=132",
        ),
        (["model.kind=transformer", "model.heads=0"], r"--set model: heads is 0, expected 1 or more"),
        (["model.encoder_layers=0"], r"--set model: encoder_layers is 0, expected 1 or more"),
        (["model.dropout=1.5"], r"--set model: dropout is 1.5, expected a probability from 0 up to, but not including, 1"),
        (["model.width=31"], r"--set model: width 31 cannot be split evenly between two directions; make it even"),
        (["seed=x", "train.clip=0"], r"--set seed: .*got 'x'; --set train.clip: .*got '0'"),
        (["a=1", "b=2"], r"no setting 'a'.*no setting 'b'"),
    ],
)
def test_wrong_settings_are_reported_together(changes: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        override(RunSettings(), changes)


def test_settings_are_chosen_from_the_data() -> None:
    phonemes = [Pair("cat", "K AE T"), Pair("thought", "TH AO T")] * 50
    sentences = [
        Pair("where is the train to it", "wo ist der Bahnhof bitte"),
        Pair("thank you so very much", "vielen herzlichen Dank"),
    ]
    order = {"model.attention"}  # whoever chooses it gets a model for any order
    strings, texts, letters = (suggest(pairs * 50, given=order) for pairs in (phonemes, sentences, [Pair("мир", "mir")]))
    assert (strings.settings.data.source_unit, strings.settings.data.target_unit) == ("characters", "symbols")
    assert (letters.settings.data.source_unit, letters.settings.data.target_unit) == ("characters", "characters")
    assert strings.settings.model.kind == letters.settings.model.kind == "rnn"
    assert (texts.settings.data.source_unit, texts.settings.data.target_unit) == ("bpe", "bpe")
    assert texts.settings.data.shared
    assert texts.settings.model == replace(PRESETS["tiny"], tie="all", dropout=0.3)
    apart = suggest([Pair("пусть всегда будет солнце", "may there always be sunshine")]).settings
    assert (apart.data.shared, apart.model.tie) == (False, "output")  # type: ignore[union-attr]
    assert suggest(sentences, 300_000).settings.model == replace(PRESETS["small"], tie="all", dropout=0.1)
    assert suggest(phonemes, 61_000).settings.model.dropout == 0.1 < strings.settings.model.dropout
    few, many = (suggest(phonemes, number, given=order).settings.train.steps for number in (100, 50_000))
    assert few == 600 < many < 8000
    assert strings.reasons["data.target_unit"] == "3.0 symbols of 1.5 characters per line, on average"
    assert strings.reasons["train.steps"] == "20.0 passes over 5,000 pairs; the aim is 20 passes, in 600 to 8,000 updates"


def spelled(order: int) -> list[Pair]:
    """Returns words and their letters as symbols, in order (1) or reversed (-1)."""
    rng = random.Random(1)
    words = ["".join(rng.choices("abcdefghij", k=rng.randint(3, 9))) for _ in range(300)]
    return [Pair(word, " ".join(word.upper()[::order])) for word in words]


def test_strings_in_the_order_of_their_sources_get_monotone_attention() -> None:
    pairs, reversed_pairs = spelled(1), spelled(-1)
    found = suggest(pairs)
    assert found.settings.model == RnnSettings(
        cell="lstm",
        width=96,
        encoder_width=320,
        attention="monotone",
        score="general",
        readout="plain",
        bridge="zero",
        dropout=0.3,
    )
    assert (found.settings.train.steps, found.settings.train.schedule) == (600, "cosine")
    assert found.settings.train.weights == "last"
    assert found.reasons["model.attention"].startswith(
        "targets have the order of their sources (correlation 1.00): each symbol"
    )
    assert suggest(pairs, 3000).settings.train.steps == 1300
    many = suggest(pairs, 50_000).settings
    assert (many.model.width, many.model.dropout) == (128, 0.3)  # type: ignore[union-attr]
    assert many.train.steps == 11_000
    assert suggest(pairs, 61_000).settings.model.dropout == 0.1  # type: ignore[union-attr]
    with_features = [Pair((pair.source, "V"), pair.target) for pair in pairs]
    long = [Pair(pair.source * 9, " ".join(pair.target.split() * 9)) for pair in pairs]
    for others in (reversed_pairs, with_features, long, pairs[:1]):
        assert suggest(others).settings.model.attention == "soft", others[0]  # type: ignore[union-attr]
    for name in ("model.decoder", "model.score", "model.kind"):
        assert suggest(pairs, given={name}).settings.model.attention == "soft"  # type: ignore[union-attr]
    assert suggest(pairs, given={"model.width"}).settings.model.attention == "monotone"  # type: ignore[union-attr]


def test_few_different_words_are_symbols() -> None:
    """Commands of a small language; the same sentence many times is no such language."""
    rng = random.Random(1)
    commands = [" ".join(rng.choices(["walk", "jump", "turn left", "turn right", "twice"], k=4)) for _ in range(400)]
    pairs = [Pair(command, " ".join(f"I_{word.upper()}" for word in reversed(command.split()))) for command in commands]
    found = suggest(pairs).settings
    assert (found.data.source_unit, found.data.target_unit) == ("symbols", "symbols")
    assert found.model.decoder == "bahdanau"  # type: ignore[union-attr]
    assert suggest(pairs[:1] * 400).settings.data.source_unit == "bpe"


def test_the_unit_of_a_text_with_short_features_is_that_of_the_text() -> None:
    pairs = [Pair((word, "N SG 3"), f"{word}s") for word in ("walker", "runner", "baker") * 50]
    assert suggest(pairs).settings.data.source_unit == "characters"


def test_the_order_of_pairs() -> None:
    def symbols(pairs: list[Pair]) -> list[tuple[list[str], list[str]]]:
        return [(list(pair.source), pair.target.split()) for pair in pairs]  # type: ignore[arg-type]

    rng = random.Random(2)
    same, reverse = symbols(spelled(1)), symbols(spelled(-1))
    shuffled = [(source, rng.sample(target, len(target))) for source, target in same]
    inserted = [(source, [part for symbol in target for part in (symbol, "-")]) for source, target in same]
    assert order_correlation(same) == pytest.approx(1)
    assert order_correlation(reverse) == pytest.approx(-1)
    assert abs(order_correlation(shuffled)) < 0.1
    assert order_correlation(inserted) > 0.95
    assert order_correlation([]) == order_correlation(same[:1]) == order_correlation([(["a"], ["A"])] * 9) == 0


def test_few_pairs_give_a_warning() -> None:
    assert "800 pairs is little training data" in str(expectation(800))
    assert expectation(5000) is None


# --- progress ----------------------------------------------------------------------------------------------------------------


def test_a_log_gets_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar(Console(force_terminal=False), 100) as on_update:
        for number in range(100):
            on_update(Update(number, loss=2.0, norm=1.0, learning_rate=1e-3, num_targets=50))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 20
    assert lines[-1].startswith("update 100/100  loss 2.000  ")
    assert lines[-1].endswith("0 s left")
    assert "\x1b" not in "".join(lines)


def test_a_terminal_gets_a_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar(Console(force_terminal=True, width=100), 10) as on_update:
        for number in range(10):
            on_update(Update(number, loss=2.0, norm=1.0, learning_rate=1e-3, num_targets=50))
    out = capsys.readouterr().out
    assert "10/10" in out
    assert "loss 2.000" in out
    assert "━" in out


def test_reading_shows_progress(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(with_progress(range(7), 7, "tokenising", Console(force_terminal=True, width=100))) == list(range(7))
    assert "7/7" in capsys.readouterr().out
    assert list(with_progress(range(7), 7, "tokenising", Console(force_terminal=False))) == list(range(7))
    assert capsys.readouterr().out == ""  # too quick to need progress
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    assert list(with_progress(range(2), 7, "tokenising", Console(force_terminal=False))) == [0, 1]
    assert capsys.readouterr().out.splitlines() == ["tokenising: 1 of 7", "tokenising: 2 of 7"]


def test_a_bar_is_drawn_without_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is forked while another thread holds a lock may wait for it for ever."""
    seen, before = io.StringIO(), threading.active_count()
    console = Console(file=seen, force_terminal=True, width=100)
    for number in with_progress(range(7), 7, "tokenising", console):
        assert threading.active_count() == before
        assert ("3/7" in seen.getvalue()) == (number > 2)
        monkeypatch.setattr(progress, "REFRESH", 0.0 if number == 2 else 3600.0)
    assert list(dict.fromkeys(re.findall(r"\d/7", seen.getvalue()))) == ["0/7", "1/7", "3/7", "7/7"]
    with progress_bar(console, 10, done=2) as on_update:
        on_update(Update(2, loss=2.0, norm=1.0, learning_rate=1e-3, num_targets=50))
        assert threading.active_count() == before
    assert re.search("training.*━.* 3/10.*loss 2.000", seen.getvalue())


# --- the loss without all logits at once -----------------------------------------------------------------------------------


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("max_logits", [2**22, 3 * 23, 1])
def test_projected_loss_is_the_loss_of_the_logits(smoothing: float, max_logits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "MAX_LOGITS", max_logits)
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(*sizes, generator=generator, dtype=torch.float64) for sizes in ((5, 7, 11), (23, 11), (23,))]
    targets_BT = torch.randint(1, 23, (5, 7), generator=generator) * masks.first(torch.tensor([7, 1, 0, 3, 5]), 7)

    def value_and_gradients(loss: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        given = [part.clone().requires_grad_() for part in parts]
        value = loss(*given)
        (3 * value).backward()
        return [value, *(part.grad for part in given if part.grad is not None)]

    def plain(states: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return losses.sequence_loss(F.linear(states, weight, bias), targets_BT, pad=0, smoothing=smoothing)

    def projected(*given: torch.Tensor) -> torch.Tensor:
        return losses.projected_loss(*given, targets_BT, pad=0, smoothing=smoothing)

    torch.testing.assert_close(value_and_gradients(projected), value_and_gradients(plain))
    with torch.no_grad():
        torch.testing.assert_close(projected(*parts), plain(*parts))


def test_projected_loss_of_wide_logits_does_not_overflow() -> None:
    states, weight, targets = torch.tensor([[[300.0]]]), torch.tensor([[1.0], [-1.0], [2.0]]), torch.tensor([[1]])
    loss = losses.projected_loss(states, weight, torch.zeros(3), targets, pad=0)
    assert loss.item() == pytest.approx(900.0)


# --- the training loop -------------------------------------------------------------------------------------------------------

EXAMPLES = [Example([4 + n % 13, 5, 6 + n % 11], [4 + n % 15, 7 + n % 12]) for n in range(40)]


def test_four_accumulated_batches_equal_one_of_four_times_the_size() -> None:
    """In float64 and without dropout, which depends on the batches."""
    results = []
    for tokens, accumulate in ((40, 4), (160, 1)):
        settings = TrainSettings(steps=3, batch_tokens=tokens, accumulate=accumulate, label_smoothing=0.1)
        model = make_model("transformer scaled_dot").double()
        for module in model.modules():
            if isinstance(module, Dropout):
                module.p = 0.0
        order = BatchOrder(lengths(EXAMPLES), batch_tokens=40, accumulate=4, seed=1)
        batches = Batches(EXAMPLES, order)
        if accumulate == 1:

            def batches(number: int, *share: int, order: BatchOrder = order) -> tuple[Batch, ...]:
                return (collate([EXAMPLES[index] for part in order.update(number) for index in part]),)

        recorder = Recorder()
        train(Learner(model, settings), batches, settings, seed=1, callbacks=recorder)
        results.append((recorder.updates, [parameter.detach() for parameter in model.parameters()]))
    (accumulated, weights), (whole, other) = results
    assert [update.num_targets for update in accumulated] == [update.num_targets for update in whole]
    assert [update.loss for update in accumulated] == pytest.approx([update.loss for update in whole], rel=1e-12)
    torch.testing.assert_close(weights, other, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize(
    ("schedule", "half_way", "at_the_end"),
    [
        ("linear", 50 / 90, 1 / 90),
        ("cosine", 0.5 - 0.5 * math.cos(math.pi * 50 / 90), 0.0003),
        ("constant", 1, 1),
        ("inverse_sqrt", math.sqrt(10 / 51), math.sqrt(10 / 100)),
    ],
)
def test_schedules(schedule: Any, half_way: float, at_the_end: float) -> None:
    settings = TrainSettings(steps=100, learning_rate=2.0, warmup=0.1, schedule=schedule)
    rates = [learning_rate(number, settings) / 2 for number in range(100)]
    assert rates[:10] == pytest.approx([(number + 1) / 10 for number in range(10)])
    assert rates[50] == pytest.approx(half_way)
    assert rates[99] == pytest.approx(at_the_end, abs=1e-4)


def test_validations_keep_the_best_and_patience_ends_the_run() -> None:
    settings = TrainSettings(steps=100, batch_tokens=40, validate_every=2, patience=2, checkpoint_every=5)
    learner, recorder = Learner(make_model("rnn additive"), settings), Recorder([3.0, 1.0, 2.0, 1.0, 0.0])
    train(learner, batches_of(EXAMPLES, settings, 1), settings, seed=1, callbacks=recorder)
    assert recorder.saved == [2, 4]
    assert recorder.checkpoints == [5, 8]  # the last one is at the end of the run
    assert (learner.state.best, learner.state.best_at, learner.state.stale, learner.state.update) == (1.0, 4, 2, 8)
    train(learner, batches_of(EXAMPLES, settings, 1), settings, seed=1, callbacks=recorder)
    assert len(recorder.updates) == 8, "a run that has ended does not continue"


def test_a_moving_average_is_used_but_not_trained_on() -> None:
    settings = TrainSettings(steps=30, batch_tokens=40, ema=0.5)
    plain, averaged = (make_model("rnn additive") for _ in range(2))
    train_model(plain, EXAMPLES, TrainSettings(steps=30, batch_tokens=40), seed=1)
    learner = Learner(averaged, settings)
    before, by_hand = [p.detach().clone() for p in averaged.parameters()], None

    class Averaging(Recorder):
        def on_update(self, update: Update) -> None:
            nonlocal by_hand
            current = [parameter.detach().clone() for parameter in averaged.parameters()]
            decay = min(0.5, (1 + update.number) / (10 + update.number))
            by_hand = [decay * one + (1 - decay) * other for one, other in zip(by_hand or before, current, strict=True)]

    train(learner, batches_of(EXAMPLES, settings, 1), settings, seed=1, callbacks=Averaging())
    assert all(map(torch.equal, plain.parameters(), averaged.parameters()))
    with learner.evaluation_weights() as model:
        assert not model.training
        torch.testing.assert_close([p.detach() for p in model.parameters()], by_hand)
    assert all(map(torch.equal, plain.parameters(), averaged.parameters()))


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("rnn additive", {}),
        ("transformer scaled_dot", {}),
        ("rnn hard", {}),
        ("rnn gru, bahdanau, hard", {"samples": 3, "baseline": "leave_one_out"}),
        ("rnn gates", {"samples": 2, "baseline": "self_critical"}),
    ],
)
def test_a_resumed_run_equals_an_uninterrupted_one(name: str, others: dict[str, Any], tmp_path: Path) -> None:
    """The run is resumed from files by another model, in the middle of an epoch."""
    settings = TrainSettings(steps=9, batch_tokens=40, accumulate=2, ema=0.9, checkpoint_every=4, validate_every=3, **others)
    values = [5.0, 4.0, 6.0]
    whole = Learner(make_model(name, torch.float32), settings)
    batches = batches_of(EXAMPLES, settings, 1)
    train(whole, batches, settings, seed=1, callbacks=Recorder(values))

    saved = Checkpoints(tmp_path, keep=2)
    first = Learner(make_model(name, torch.float32), settings)

    class Stopping(Recorder):
        def checkpoint(self) -> None:
            saved.write(first.checkpoint())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(first, batches, settings, seed=1, callbacks=Stopping(values))
    torch.manual_seed(99)
    second = Learner(make_model(name, torch.float32), settings)
    for parameter in second.model.parameters():
        parameter.data.add_(1.0)
    newest = saved.newest(print, second.check)
    assert newest is not None
    assert newest.update == 4
    second.restore(newest)
    train(second, batches, settings, seed=1, callbacks=Recorder(values[1:]))
    assert second.state == whole.state
    assert all(map(torch.equal, second.model.parameters(), whole.model.parameters()))
    assert all(map(torch.equal, second.average, whole.average))
    one, other = second.checkpoint(), whole.checkpoint()
    assert one.training.keys() == other.training.keys()
    assert all(torch.equal(one.training[key], other.training[key]) for key in one.training)


# --- a whole run, in memory ------------------------------------------------------------------------------------------------


def small_run(unit: Any = "characters", **train: Any) -> tuple[str, Trained]:
    """Returns the console output and the result of the run."""
    chance = random.Random(1)
    words = dict.fromkeys("".join(chance.choices("abcd", k=chance.randint(2, 5))) for _ in range(200))
    pairs = [Pair(word, " ".join(word.upper())) for word in words]
    settings = RunSettings(
        data=DataSettings(source_unit=unit, target_unit="symbols", vocabulary=300),
        model=RnnSettings(width=16, embedding=8, score_width=8, dropout=0.0),
        train=TrainSettings(batch_tokens=256, **{"learning_rate": 2e-2, **train}),
    )
    console = Console(file=io.StringIO(), width=200)
    trained = run(in_memory("words", pairs[20:], pairs[:20], settings.data), settings, console, torch.device("cpu"))
    return console.file.getvalue(), trained  # type: ignore[attr-defined]


@pytest.mark.parametrize("metric", ["loss", "symbol_error_rate", "sequence_error_rate", "bleu"])
def test_the_weights_of_the_best_validation_are_kept(metric: Any) -> None:
    printed, trained = small_run(steps=60, validate_every=20, metric=metric)
    name, scale = {"loss": ("loss", 1), "bleu": ("BLEU", 1)}.get(metric, (metric.replace("_", " "), 100))
    found = [float(value) / scale for value in re.findall(rf"validation after update \d+: .*?{name} ([\d.]+)", printed)]
    assert len(found) == 3
    assert printed.count(" -> ") == 15, "five examples each time"
    best = max(found) if metric == "bleu" else min(found)
    again = {"symbol_error_rate": trained.rates.symbol, "sequence_error_rate": trained.rates.sequence}
    if metric in again:
        assert again[metric] == pytest.approx(best, abs=1e-4)
    assert trained.rates.symbol < 0.7


def test_weights_of_an_earlier_validation_are_restored() -> None:
    """The learning rate ruins the model at the end."""
    printed, trained = small_run(
        steps=80, validate_every=20, metric="symbol_error_rate", warmup=1.0, learning_rate=1.0, clip=1e9
    )
    found = [float(value) / 100 for value in re.findall(r"after update \d+: .*?symbol error rate ([\d.]+)%", printed)]
    assert found[-1] > min(found)
    assert trained.rates.symbol == pytest.approx(min(found), abs=1e-4)


def test_units_that_are_not_reproducible_are_reported() -> None:
    assert "not reproducible" in small_run("unigram", steps=1)[0]
    assert "not reproducible" not in small_run(steps=1)[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda saved: replace(saved, numbers={**saved.numbers, "update": 3}), "its counters are those of update 3"),
        (
            lambda saved: replace(saved, numbers={**saved.numbers, "best_at": "2"}),
            r"best_at is '2' \(Input should be a valid integer",
        ),
        (lambda saved: replace(saved, numbers={**saved.numbers, "baseline": 7}), "its counters cannot be read: baseline is 7"),
        (
            lambda saved: replace(saved, model=dict(list(saved.model.items())[1:])),
            "its weights do not fit .* has the shape None",
        ),
        (
            lambda saved: replace(
                saved, training={name: tensor[:1] for name, tensor in saved.training.items() if tensor.dim()}
            ),
            "its moments do not fit this model: average",
        ),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(change: Callable[[Checkpoint], Checkpoint], words: str) -> None:
    settings = TrainSettings(steps=2, batch_tokens=40, ema=0.9)
    learner = Learner(make_model("rnn additive", torch.float32), settings)
    train(learner, batches_of(EXAMPLES, settings, 1), settings, seed=1, callbacks=Recorder())
    learner.check(learner.checkpoint())
    with pytest.raises(Damaged, match=words):
        learner.check(change(learner.checkpoint()))


def test_averaged_checkpoints_follow_from_settings_and_update() -> None:
    every_eight = TrainSettings(average=3, checkpoint_every=8)
    assert [averaged(every_eight, update) for update in (7, 8, 23, 60)] == [[], [8], [8, 16], [40, 48, 56]]
    assert averaged(replace(every_eight, average=1), 60) == averaged(replace(every_eight, average=0), 60) == []


def test_a_run_can_become_longer_if_past_learning_rates_stay_the_same() -> None:
    linear, constant = (TrainSettings(steps=100, schedule=name, warmup=0.1) for name in ("linear", "constant"))
    for settings in (linear, constant):
        assert same_rates(settings, replace(settings, steps=200), 0)
        assert not same_rates(settings, replace(settings, steps=200), 1)
        assert same_rates(settings, replace(settings, steps=200, warmup=0.05), 10)
    assert same_rates(constant, replace(constant, steps=200, warmup=0.05), 100)
    assert not same_rates(linear, replace(linear, steps=200, warmup=0.05), 100)
