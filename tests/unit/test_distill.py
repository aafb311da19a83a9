"""Distillation: the loss against a teacher, and runs that learn from others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from table import PAD

import regard
from regard.errors import UserError
from regard.training.objective import batch_loss, taught_by
from regard.training.settings import StartSettings, TrainSettings

PAIRS = [(f"{a}{b}", f"{b} {a}") for a in "abcde" for b in "fghij"]
TINY: dict[str, Any] = {"width": 4, "embedding": 3, "score_width": 3, "batch_tokens": 40, "steps": 6, "checkpoint_every": 4}
QUIET: dict[str, Any] = {"threads": 1, "quiet": True}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the untrained models a and b, and other, which has another vocabulary."""
    path = tmp_path_factory.mktemp("teachers")
    for seed, name in ((1, "a"), (2, "b")):
        regard.build("rnn", PAIRS, width=6, embedding=3, score_width=2, seed=seed).save(path / name)
    regard.build("rnn", PAIRS[:5], width=6, embedding=3, score_width=2).save(path / "other")
    return path


@pytest.fixture(autouse=True)
def inside(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "other"):
        (tmp_path / name).symlink_to(folder / name)
    return tmp_path


def test_the_loss_is_the_cross_entropy_with_the_teacher() -> None:
    """Value and gradient against NumPy: dL/dlogits = p − q at each target that is not padding."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(2, 3, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(2, 3, 5, generator=generator, dtype=torch.float64).log_softmax(-1).requires_grad_()
    targets = torch.tensor([[1, 2, PAD], [4, PAD, PAD]])
    loss = regard.losses.distillation_loss(logits.log_softmax(-1), teacher, targets, pad=PAD)
    loss.backward()
    z, q, real = logits.detach().numpy(), np.exp(teacher.detach().numpy()), (targets.numpy() != PAD)[..., None]
    p = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
    assert loss.item() == pytest.approx(-(real * q * np.log(p)).sum(), abs=1e-12)
    assert logits.grad is not None
    np.testing.assert_allclose(logits.grad.numpy(), real * (p - q), atol=1e-12)
    assert teacher.grad is None


def test_tokens_that_neither_expects_cost_nothing() -> None:
    log_probs, teacher = torch.tensor([[[0.0, -torch.inf]]]), torch.tensor([[[0.0, -torch.inf]]])
    assert regard.losses.distillation_loss(log_probs, teacher, torch.tensor([[1]]), pad=0) == 0


@pytest.mark.parametrize("attention", ["soft", "monotone"])
def test_targets_and_teachers_share_the_loss(attention: str) -> None:
    given = {"attention": attention, "readout": "plain", "width": 6, "embedding": 3, "score_width": 2}
    student, teacher = (regard.build("rnn", PAIRS, seed=seed, dropout=0.0, **given) for seed in (1, 2))
    batch = next(regard.batches(student, PAIRS))
    q = taught_by(teacher.model, batch)
    assert torch.allclose(q.exp().sum(-1), torch.tensor(1.0), atol=1e-5)
    assert not q.requires_grad

    def loss(weight: float, of: regard.Model | None) -> torch.Tensor:
        return batch_loss(student.model, batch, TrainSettings(teacher_weight=weight), teacher=of)[0]

    p = student.model.decode(batch.target_in_BT, student.model.encode(batch.source)).distribution()
    taught = regard.losses.distillation_loss(p, q, batch.target_out_BT, pad=PAD)
    assert torch.allclose(loss(0.25, teacher.model), 0.75 * loss(0.25, None) + 0.25 * taught, rtol=1e-4)
    assert loss(1.0, teacher.model).item() == pytest.approx(taught.item(), rel=1e-4)


@pytest.mark.slow
def test_a_model_learns_what_its_teachers_say() -> None:
    """Teachers that learned another task than the pairs teach it, if they have all of the weight."""
    swapped = [(source, " ".join(reversed(target.split()))) for source, target in PAIRS]
    options: dict[str, Any] = {"width": 24, "embedding": 16, "score_width": 8, "steps": 150, "learning_rate": 0.02}
    for seed in (1, 2):
        regard.train(swapped, f"t{seed}", seed=seed, dropout=0.0, attention="soft", **options, **QUIET)
    student = regard.distill(["t1", "t2"], PAIRS, teacher_weight=1.0, **QUIET)
    teachers = regard.load(["t1", "t2"])
    known = [teachers.score([source], [target])[0].log_prob for source, target in swapped]
    learned = [student.score([source], [target])[0].log_prob for source, target in swapped]
    against = [student.score([source], [target])[0].log_prob for source, target in PAIRS]
    assert sum(known) / len(known) > -0.5
    assert sum(learned) > 0.5 * sum(against), "it writes what the teachers write, not what the pairs say"


@pytest.mark.slow
def test_an_interrupted_run_ends_with_the_same_weights(inside: Path) -> None:
    """Law 6 for distillation; and the run file of the run repeats it."""
    whole = regard.distill(["a", "b"], PAIRS, "whole", **TINY, **QUIET)
    regard.train(PAIRS, "stopped", settings="whole.run/run.yaml", on_update=lambda update: update.number < 2, **QUIET)
    again = regard.distill(["a", "b"], PAIRS, "stopped", **TINY, **QUIET)
    for ours, theirs in zip(whole.model.state_dict().values(), again.model.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)
    alone = regard.train(PAIRS, **TINY, **QUIET)
    assert any(
        not torch.equal(*both)
        for both in zip(whole.model.state_dict().values(), alone.model.state_dict().values(), strict=True)
    )
    assert whole.training["settings"]["start"]["teachers"] == ["a", "b"]
    assert "learned from 2 other models" in whole.card


def test_other_weights_of_a_teacher_end_a_run(inside: Path) -> None:
    regard.distill(["a", "b"], PAIRS, "m", **TINY, **QUIET)
    (inside / "b").unlink()
    regard.build("rnn", PAIRS, width=6, embedding=3, score_width=2, seed=9).save("b")
    with pytest.raises(UserError, match=r"the weights of a, b changed since this run started; the run was not modified"):
        regard.distill(["a", "b"], PAIRS, "m", **TINY, **QUIET)


def test_the_settings_are_those_of_the_first_teacher() -> None:
    taught = regard.distill("a", PAIRS, steps=1, **QUIET)
    assert (taught.settings.width, taught.training["settings"]["train"]["steps"]) == (6, 1)
    assert taught.source.to_json() == regard.load("a").source.to_json()


@pytest.mark.parametrize(
    ("teachers", "words"),
    [
        ([], "got no teachers, expected at least one model folder to learn from"),
        (["a", "other"], "model 2 and model 1 have different source vocabularies"),
        ("missing", "missing is not a model folder"),
    ],
)
def test_teachers_that_cannot_teach_are_refused(teachers: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        regard.distill(teachers, PAIRS, **TINY, **QUIET)


def test_a_model_that_is_taught_starts_from_nothing_else() -> None:
    with pytest.raises(UserError, match="a model that learns from teachers starts with random weights"):
        StartSettings(model="a", teachers=("b",))
