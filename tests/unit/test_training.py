import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from table import SOURCE_VOCAB, TARGET_VOCAB, make_model

from regard.core import losses, masks
from regard.core.losses import sequence_loss
from regard.data.batch import Example, endless_batches
from regard.data.corpus import Pair
from regard.errors import UserError
from regard.models.build import build, num_parameters
from regard.models.rnn_seq2seq import RnnSettings
from regard.models.transformer import TransformerSettings
from regard.training.loop import Update, learning_rate, train
from regard.training.record import progress
from regard.training.settings import RunSettings, TrainSettings, override, suggest


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


def test_learning_rate_rises_and_falls_to_nothing() -> None:
    settings = TrainSettings(steps=100, learning_rate=2.0, warmup=0.1)
    rates = [learning_rate(number, settings) for number in range(100)]
    assert rates[0] == pytest.approx(0.2)
    assert max(rates) == rates[9] == rates[10] == 2.0
    assert rates[-1] == pytest.approx(2.0 / 90)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert learning_rate(0, TrainSettings(steps=1, learning_rate=2.0)) == 2.0


def run_once(name: str, seed: int, steps: int = 6) -> tuple[list[Update], list[torch.Tensor]]:
    examples = [Example([4 + n % 13, 5, 6 + n % 11], [4 + n % 15, 7 + n % 12]) for n in range(40)]
    model, updates = make_model(name, torch.float32), []
    settings = TrainSettings(steps=steps, batch_tokens=40, label_smoothing=0.1)
    train(model, endless_batches(examples, batch_tokens=40, seed=seed), settings, seed=seed, record=updates.append)
    assert not model.training
    return updates, [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize("name", ["rnn additive", "transformer scaled_dot"])
def test_the_same_seed_gives_the_same_weights(name: str) -> None:
    """Bit for bit, with dropout on, whatever was drawn before."""
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
    updates: list[Update] = []
    train(ours, endless_batches(examples, batch_tokens=40, seed=3), settings, seed=3, record=updates.append)

    theirs.train()
    optimiser = torch.optim.AdamW(theirs.parameters(), lr=1.0, betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    batches = endless_batches(examples, batch_tokens=40, seed=3)
    for number, rate in enumerate((0.005, 0.01, 0.01, 0.005)):
        batch = next(batches)
        torch.manual_seed(3 * 2**32 + number)
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
            gradient.mul_(min(1.0, 0.5 / (norm.item() + 1e-6)))  # as torch has it
        optimiser.param_groups[0]["lr"] = rate
        optimiser.step()
        optimiser.zero_grad()
    assert any(update.norm > 0.5 for update in updates)
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def test_a_run_that_diverges_is_stopped() -> None:
    examples = [Example([4, 5, 6], [4, 7])] * 4
    settings = TrainSettings(steps=50, learning_rate=1e30)
    model, batches = make_model("rnn additive", torch.float32), endless_batches(examples, batch_tokens=40, seed=1)
    words = r"update \d+: the loss is .*diverged and nothing was saved. Try a smaller train.learning_rate"
    with pytest.raises(UserError, match=words):
        train(model, batches, settings, seed=1, record=lambda update: None)


@pytest.mark.parametrize("settings", [RnnSettings(), TransformerSettings()])
def test_a_fresh_model_knows_nothing(settings: RnnSettings | TransformerSettings) -> None:
    """The loss at the start is about ln V: no token is preferred."""
    torch.manual_seed(1)
    model = build(settings, SOURCE_VOCAB, TARGET_VOCAB)
    updates: list[Update] = []
    examples = [Example([4 + n % 13, 5, 6 + n % 11], [4 + n % 15, 7 + n % 12]) for n in range(40)]
    batches = endless_batches(examples, batch_tokens=400, seed=1)
    train(model, batches, TrainSettings(steps=1), seed=1, record=updates.append)
    assert math.log(TARGET_VOCAB) - 0.1 < updates[0].loss < math.log(TARGET_VOCAB) + 0.6
    assert num_parameters(model) == sum(parameter.numel() for parameter in model.parameters())


# --- settings ----------------------------------------------------------------------------------------------------------------


def test_settings_are_changed_by_name() -> None:
    changed = override(RunSettings(), ["train.steps=300", "seed=7", "train.learning_rate=1e-4", "data.target=symbols"])
    assert (changed.train.steps, changed.seed, changed.train.learning_rate, changed.data.target) == (300, 7, 1e-4, "symbols")
    other = override(RunSettings(), ["model.width=64", "model.kind=transformer"])
    assert other.model == TransformerSettings(width=64)
    assert override(other, ["model.heads=2"]).model == TransformerSettings(width=64, heads=2)
    assert override(RunSettings(), []) == RunSettings()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["train.stepz=3"], r"no setting 'train.stepz'; did you mean \"train.steps\"\?$"),
        (["train.steps"], r"--set train.steps: expected key=value"),
        (["qqq=3"], r"no setting 'qqq'; expected one of seed, data.source, data.target, .*train.clip, train.entropy_bonus$"),
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
            r"--set model: width 128 does not split into 3 heads; try width=132",
        ),
        (["model.kind=transformer", "model.heads=0"], r"--set model: heads is 0, expected 1 or more"),
        (["model.encoder_layers=0"], r"--set model: encoder_layers is 0, expected 1 or more"),
        (["model.dropout=1.5"], r"--set model: dropout is 1.5, expected a share from 0 up to, but not, 1"),
        (["model.width=31"], r"--set model: width 31 does not split into two directions; make it even"),
        (["seed=x", "train.clip=0"], r"--set seed: .*got 'x'; --set train.clip: .*got '0'"),
        (["a=1", "b=2"], r"no setting 'a'.*no setting 'b'"),
    ],
)
def test_wrong_settings_are_explained_all_at_once(changes: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        override(RunSettings(), changes)


def test_settings_are_chosen_from_the_data() -> None:
    phonemes = [Pair("cat", "K AE T"), Pair("thought", "TH AO T")] * 50
    sentences = [Pair("where is it", "wo ist der Bahnhof bitte"), Pair("thank you", "vielen herzlichen Dank")] * 50
    assert suggest(phonemes).data.target == "symbols"
    assert suggest(phonemes).data.source == "characters"
    assert suggest(sentences).data.source == suggest(sentences).data.target == "characters"
    assert suggest(phonemes).train.steps == 300
    assert suggest(sentences * 50).train.steps > 300


# --- progress ----------------------------------------------------------------------------------------------------------------


def test_a_log_gets_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(Console(force_terminal=False), 100) as record:
        for number in range(100):
            record(Update(number, loss=2.0, norm=1.0, learning_rate=1e-3, num_targets=50))
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 20
    assert lines[-1].startswith("update 100/100  loss 2.000  ")
    assert lines[-1].endswith("0 s left")
    assert "\x1b" not in "".join(lines)


def test_a_terminal_gets_a_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with progress(Console(force_terminal=True, width=100), 10) as record:
        for number in range(10):
            record(Update(number, loss=2.0, norm=1.0, learning_rate=1e-3, num_targets=50))
    out = capsys.readouterr().out
    assert "10/10" in out
    assert "loss 2.000" in out
    assert "━" in out


# --- the loss without all logits at once -----------------------------------------------------------------------------------


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("room", [2**22, 3 * 23, 1])
def test_projected_loss_is_the_loss_of_the_logits(smoothing: float, room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "ROOM", room)
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(*sizes, generator=generator, dtype=torch.float64) for sizes in ((5, 7, 11), (23, 11), (23,))]
    targets_BT = torch.randint(1, 23, (5, 7), generator=generator) * masks.first(torch.tensor([7, 1, 0, 3, 5]), 7)

    def value_and_gradients(loss: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        given = [part.clone().requires_grad_() for part in parts]
        value = loss(*given)
        (3 * value).backward()
        return [value, *(one.grad for one in given if one.grad is not None)]

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
