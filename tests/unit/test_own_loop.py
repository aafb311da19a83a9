"""A training loop of one's own: models, batches, losses; and models that are saved, moved and opened from a run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from table import EOS, PAD, SOS

import regard
from regard.checkpoint.alignment import write_alignment_head
from regard.contracts import AlignmentHead
from regard.core.losses import policy_gradient, reward_to_go
from regard.errors import UserError
from regard.models.decoder_only import DecoderOnlySettings
from regard.models.transformer import PRESETS
from regard.training.loop import learning_rate
from regard.training.settings import TrainSettings

PAIRS = [(f"{a}{b}" * (1 + ord(a) % 2), f"{b}{a}") for a in "abcde" for b in "fghij"]
TEXTS = [target for _, target in PAIRS]
SMALL: dict[str, Any] = {"width": 8, "embedding": 5, "score_width": 5}
FROZEN = Path(__file__).parents[1] / "frozen"


# --- build -------------------------------------------------------------------------------------------------------------------


def test_a_model_is_built_by_the_name_of_its_family_or_preset() -> None:
    model = regard.build("rnn", PAIRS, **SMALL)
    assert (model.settings.kind, model.settings.width, len(model.source)) == ("rnn", 8, 4 + 10)
    assert not model.model.training
    tiny = regard.build("tiny", PAIRS, dropout=0.0, source_unit="words", device="cpu").settings
    assert tiny == type(PRESETS["tiny"])(**{**vars(PRESETS["tiny"]), "dropout": 0.0})
    assert isinstance(regard.build("decoder_only", TEXTS, width=8, heads=2).settings, DecoderOnlySettings)
    with pytest.raises(UserError, match=r'kind="tinny": expected one of rnn, .*did you mean "tiny"'):
        regard.build("tinny", PAIRS)
    with pytest.raises(UserError, match=r"^data:2: a lone surrogate"):
        regard.build("rnn", [("a", "b"), ("a\ud800", "b")])
    with pytest.raises(TypeError, match=r"build\(\) got the setting 'train.steps', but it does not train"):
        regard.build("rnn", PAIRS, steps=3)
    with pytest.raises(TypeError, match=r"build\(\) got an unknown argument 'widht'.*did you mean \"width\""):
        regard.build("rnn", PAIRS, widht=3)


def test_a_model_without_data_is_a_module() -> None:
    for kind in ("rnn", "rnn_lm", "transformer", "decoder_only"):
        model = regard.build(kind, num_tokens=(11, 13), width=8, **({} if "rnn" in kind else {"heads": 2}))
        assert isinstance(model, regard.Model)
        assert not model.training
        source = None if model.traits.continues_text else torch.tensor([[4, 5, 10]])
        assert model(source, torch.tensor([[2, 12]])).shape == (1, 2, 13)
    assert regard.build("tiny", num_tokens=9).settings == PRESETS["tiny"]
    assert regard.build("transformer", num_tokens=9, tie="all").traits.shares_vocabulary
    assert regard.build("rnn", num_tokens=(3, 9), frontend="picture").traits.frontend == "picture"
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one, different = (regard.build("rnn", num_tokens=9, seed=seed, **SMALL) for seed in (3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    same = regard.build("rnn", num_tokens=9, seed=3, **SMALL)
    assert all(map(torch.equal, one.parameters(), same.parameters()))
    assert not all(map(torch.equal, one.parameters(), different.parameters()))


def test_mistakes_without_data() -> None:
    with pytest.raises(TypeError, match=r"build\(\) got no data; give pairs, or num_tokens"):
        regard.build("base")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"build\(\) got num_tokens, but the vocabularies follow from the data"):
        regard.build("base", PAIRS, num_tokens=3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"build\(\) got source, data.source_unit, but no data"):
        regard.build("base", num_tokens=3, source="en", source_unit="bpe")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="num_tokens is 0, expected a whole number, 1 or more"):
        regard.build("base", num_tokens=(3, 0))
    with pytest.raises(UserError, match=r'kind="bse": expected one of rnn, .*did you mean "base"'):
        regard.build("bse", num_tokens=3)
    with pytest.raises(UserError, match="width 10 is not divisible by 8 heads"):
        regard.build("base", num_tokens=3, width=10)


def test_the_weights_depend_on_the_seed_alone_and_random_numbers_stay() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = regard.build("rnn", PAIRS, seed=3, **SMALL)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    again, other = regard.build("rnn", iter(PAIRS), seed=3, **SMALL), regard.build("rnn", PAIRS, seed=4, **SMALL)
    assert all(map(torch.equal, one.parameters(), again.parameters()))
    assert not all(map(torch.equal, one.parameters(), other.parameters()))


def test_vocabularies_of_another_model(tmp_path: Path) -> None:
    first = regard.build("rnn", PAIRS, **SMALL)
    second = regard.build("transformer", PAIRS[:3], vocabularies=(first.source, first.target), width=8, heads=2)
    assert second.target.to_json() == first.target.to_json()
    (tmp_path / "pairs.csv").write_text("en,de\n" + "".join(f"{a},{b}\n" for a, b in PAIRS))
    from_file = regard.build("rnn", tmp_path / "pairs.csv", source="en", target="de", **SMALL)
    assert from_file.source.to_json() == first.source.to_json()
    assert from_file.training["header"] == ["en", "de"]
    assert first.training["settings"]["data"]["files"] == []


# --- batches -----------------------------------------------------------------------------------------------------------------


def pairs_of(model: regard.Translator, batch: regard.Batch) -> list[tuple[str, str]]:
    """Returns the pairs of a batch, decoded from its tensors."""
    pairs = []
    for source, allow, read, written in zip(
        batch.source.values, batch.source.allow, batch.target_in_BT, batch.target_out_BT, strict=True
    ):
        ids = source[allow].tolist()
        assert ids.pop() == EOS
        output = written[written != PAD].tolist()
        assert read[: len(output)].tolist() == [SOS, *output[:-1]]
        assert output.pop() == EOS
        pairs.append((model.source.decode(ids), model.target.decode(output)))
    return pairs


def test_batches_hold_every_pair_once_per_epoch() -> None:
    model = regard.build("rnn", PAIRS, **SMALL)
    epochs = list(regard.batches(model, PAIRS, batch_tokens=20, epochs=2, seed=5))
    half = len(epochs) // 2
    seen = [[pair for batch in part for pair in pairs_of(model, batch)] for part in (epochs[:half], epochs[half:])]
    assert sorted(seen[0]) == sorted(seen[1]) == sorted(PAIRS)
    assert seen[0] != seen[1]
    for batch in epochs:
        assert batch.source.values.numel() <= 20
        assert batch.num_targets == int((batch.target_out_BT != PAD).sum())
    again, other = (list(regard.batches(model, PAIRS, batch_tokens=20, seed=seed)) for seed in (5, 6))
    assert [pairs_of(model, batch) for batch in again] == [pairs_of(model, batch) for batch in epochs[:half]]
    assert [pairs_of(model, batch) for batch in other] != [pairs_of(model, batch) for batch in again]
    endless = regard.batches(model, PAIRS, epochs=None)
    assert [next(endless).num_targets for _ in range(50)]


def test_batches_refuse_what_they_cannot_read() -> None:
    model = regard.build("rnn", PAIRS, **SMALL)
    with pytest.raises(ValueError, match="epochs is 0"):
        next(regard.batches(model, PAIRS, epochs=0))
    with pytest.raises(UserError, match=r"nowhere.tsv: no such file"):
        next(regard.batches(model, "nowhere.tsv"))


# --- loss --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["rnn", "transformer", "rnn_lm", "decoder_only"])
def test_the_loss_is_that_of_torch(kind: str) -> None:
    """Value and gradient, by torch's own cross-entropy over the logits of the forward pass."""
    sizes = {"width": 8, "dropout": 0.0} | ({"heads": 2} if kind in ("transformer", "decoder_only") else {})
    data = TEXTS if kind in ("rnn_lm", "decoder_only") else PAIRS
    model = regard.build(kind, data, **sizes).train()
    batch = next(regard.batches(model, data))
    logits = model.model(batch.source, batch.target_in_BT)
    expected = F.cross_entropy(logits.flatten(0, 1), batch.target_out_BT.flatten(), ignore_index=PAD, label_smoothing=0.1)
    ours = regard.loss(model, batch, label_smoothing=0.1)
    torch.testing.assert_close(ours, expected)
    gradients = [torch.autograd.grad(loss, list(model.parameters()), allow_unused=True) for loss in (ours, expected)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_the_loss_of_hard_attention_rewards_choices_that_are_better_than_the_mean() -> None:
    model = regard.build("rnn", PAIRS, attention="hard", dropout=0.0, **SMALL).train()
    batch = next(regard.batches(model, PAIRS))
    torch.manual_seed(3)
    ours = regard.loss(model, batch, entropy_bonus=0.2)
    torch.manual_seed(3)
    decoded = model.model.decode(batch.target_in_BT, model.model.encode(batch.source))
    real = batch.target_out_BT != PAD
    rewards = torch.where(real, decoded.log_probs(batch.target_out_BT), 0.0)
    mean = (rewards.sum() / batch.num_targets).item()
    assert not decoded.affects_later_steps
    assert decoded.attention_log_prob_BT is not None
    assert decoded.attention_entropy_BT is not None
    policy = -((rewards.detach() - mean) * decoded.attention_log_prob_BT * real).sum()
    bonus = 0.2 * (decoded.attention_entropy_BT * real).sum()
    torch.testing.assert_close(ours, (-rewards.sum() + policy - bonus) / batch.num_targets)
    assert reward_to_go(rewards).shape == rewards.shape
    assert policy_gradient(rewards, rewards).dim() == 0
    model.eval()
    assert torch.equal(regard.loss(model, batch), regard.loss(model, batch)), "choices are not sampled in evaluation mode"


@pytest.mark.parametrize("decoder", ["luong", "bahdanau"])
@pytest.mark.parametrize("attention", ["hard", "gated"])
def test_without_the_policy_gradient_the_choices_learn_nothing(attention: str, decoder: str) -> None:  # SPEC A3.2
    """They are still sampled, and the loss is that of the tokens alone: the score gets no gradient, all the rest gets one."""
    settings = {"width": 8, "embedding": 5, "score": "additive", "attention": attention, "decoder": decoder, "dropout": 0.0}
    model = regard.build("rnn", PAIRS, **settings).train()
    batch = next(regard.batches(model, PAIRS))

    def loss_and_gradients(policy_gradient: bool) -> tuple[torch.Tensor, dict[str, float]]:
        torch.manual_seed(7)
        loss = regard.loss(model, batch, policy_gradient=policy_gradient)
        names, parameters = zip(*model.model.named_parameters(), strict=True)
        gradients = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
        return loss, {name: gradient.abs().sum().item() for name, gradient in zip(names, gradients, strict=True)}

    (_, trained), (loss, without) = loss_and_gradients(True), loss_and_gradients(False)
    of_score = {name for name in without if name.startswith("score.")}
    assert of_score
    assert {name for name, gradient in without.items() if gradient == 0} == of_score
    assert all(trained[name] > 0 for name in of_score)
    torch.manual_seed(7)
    decoded = model.model.decode(batch.target_in_BT, model.model.encode(batch.source))
    real = batch.target_out_BT != PAD
    torch.testing.assert_close(loss, -(decoded.log_probs(batch.target_out_BT) * real).sum() / batch.num_targets)
    again = model.model.decode(batch.target_in_BT, model.model.encode(batch.source))
    assert not torch.equal(decoded.attention_log_prob_BT, again.attention_log_prob_BT)  # sampled
    with pytest.raises(UserError, match=r"entropy_bonus is 0\.1, but it is part of the policy gradient, which is off"):
        regard.loss(model, batch, policy_gradient=False, entropy_bonus=0.1)


@pytest.mark.slow
def test_a_loop_of_ones_own_gives_the_weights_of_train() -> None:
    """The same vocabularies, batches, losses and optimiser, written by hand, are `regard.train` without its held-out pairs."""
    settings = {**SMALL, "dropout": 0.0, "source_unit": "characters", "target_unit": "characters"}
    steps = TrainSettings(steps=9, batch_tokens=40, learning_rate=0.01)
    others = {"held_out": PAIRS[:2], "steps": 9, "batch_tokens": 40, "learning_rate": 0.01, "quiet": True, "threads": 1}
    expected = regard.train(PAIRS, kind="rnn", ema=0, validate_every=0, **settings, **others)
    model = regard.build("rnn", PAIRS, **settings).train()
    optimiser = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.01, fused=True)
    for number, batch in enumerate(regard.batches(model, PAIRS, batch_tokens=40, epochs=None)):
        if number == 9:
            break
        regard.loss(model, batch).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(number, steps)
        optimiser.step()
        optimiser.zero_grad()
    for one, other in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


# --- save --------------------------------------------------------------------------------------------------------------------


def test_a_model_is_saved_and_loaded_as_it_is(tmp_path: Path) -> None:
    model = regard.build("rnn", PAIRS, **SMALL)
    regard.save(model, tmp_path / "m", card="# Mine\n")
    write_alignment_head(tmp_path / "m", AlignmentHead(0, 0, True), error_rate=0.25, by="gold")
    loaded = regard.load(tmp_path / "m", device=torch.device("cpu"))
    loaded.save(tmp_path / "again")
    again = regard.load(str(tmp_path / "again"), device="cpu")
    for one in (loaded, again):
        assert all(map(torch.equal, one.parameters(), model.parameters()))
        assert one.alignment_head == AlignmentHead(0, 0, True)
        assert one.card == "# Mine\n"
        assert one.training == model.training
        assert one.settings == model.settings
    configs = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("m", "again")]
    assert configs[0] == configs[1]
    assert configs[1]["alignment"]["by"] == "gold"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again", "m"]


def test_saving_never_overwrites_by_accident(tmp_path: Path) -> None:
    model = regard.build("rnn", PAIRS, **SMALL)
    model.save(tmp_path / "m")
    before = (tmp_path / "m" / "model.safetensors").read_bytes()
    with torch.no_grad():
        next(model.parameters()).add_(1)
    with pytest.raises(UserError, match="m already exists; choose another name with out, or replace it with overwrite=True"):
        model.save(tmp_path / "m")
    assert (tmp_path / "m" / "model.safetensors").read_bytes() == before
    model.save(tmp_path / "m", overwrite=True)
    assert (tmp_path / "m" / "model.safetensors").read_bytes() != before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    with pytest.raises(UserError, match=r"not part of a model \(thesis.tex\)"):
        model.save(tmp_path / "other", overwrite=True)
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    with pytest.raises(UserError, match="contains numbers that are not finite"):
        model.save(tmp_path / "m", overwrite=True)


@pytest.mark.parametrize("name", sorted(path.stem for path in (FROZEN / "models").glob("*.json")))
def test_a_frozen_model_survives_saving(name: str, tmp_path: Path) -> None:
    """A folder of an earlier version, saved by this one, has the same weights and facts."""
    model = regard.load(FROZEN / "models" / name, device="cpu")
    model.save(tmp_path / "m")
    again = regard.load(tmp_path / "m", device="cpu")
    assert all(map(torch.equal, model.model.state_dict().values(), again.model.state_dict().values()))
    assert (again.training, again.card, again.settings, again.alignment_head) == (
        model.training,
        model.card,
        model.settings,
        model.alignment_head,
    )


# --- checkpoints -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_checkpoint_is_opened_with_the_averaged_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights of update 4 of a run are those of a run that was stopped there; both use the moving average."""
    monkeypatch.chdir(tmp_path)
    given: dict[str, Any] = {**SMALL, "batch_tokens": 40, "steps": 6, "checkpoint_every": 2, "schedule": "constant"}
    given |= {"quiet": True, "threads": 1, "validate_every": 0, "ema": 0.9}
    last = regard.train(PAIRS, "m", **given)
    stopped = regard.train(PAIRS, on_update=lambda update: update.number < 3, **given)
    opened = {update: regard.load("m.run", update=update) for update in (2, 4, 6)}
    for one, other in ((opened[4], stopped), (opened[6], last), (regard.load("m.run"), last)):
        assert all(map(torch.equal, one.model.state_dict().values(), other.model.state_dict().values()))
        assert one("af", max_length=4).text == other("af", max_length=4).text
        assert not one.model.training
    assert not torch.equal(next(opened[2].parameters()), next(opened[4].parameters()))
    assert opened[4].training["update"] == 4
    assert opened[4].training["settings"]["train"]["steps"] == 6
    assert "After 4 updates of 6" in opened[4].card
    opened[4].save("four")
    assert all(map(torch.equal, regard.load("four").parameters(), opened[4].parameters()))
    before = {path: path.read_bytes() for path in Path("m.run").rglob("*") if path.is_file()}
    with pytest.raises(
        UserError, match=r"m.run has no checkpoint of update 3; it has those of the updates 2, 4, 6 \(train.keep"
    ):
        regard.load("m.run", update=3)
    with pytest.raises(UserError, match=r"m is a model folder, but update=4 chooses a checkpoint of a run; .*such as m.run"):
        regard.load("m", update=4)
    with pytest.raises(UserError, match="nowhere is not a run folder, so it has no checkpoint of update 4"):
        regard.load("nowhere", update=4)
    (Path("m.run") / "checkpoints" / "update-00000006" / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"the checkpoint of update 6 is damaged: .*; there are also those of the updates 2, 4"):
        regard.load("m.run")
    changed = {path for path in Path("m.run").rglob("*") if path.is_file() and before.get(path) != path.read_bytes()}
    assert {path.name for path in changed} == {"model.safetensors"}, "loading changed the run"
    (Path("m.run") / "target.tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"target.tokenizer.json differs from the one that this run was trained with"):
        regard.load("m.run", update=4)


def test_a_checkpoint_of_an_earlier_version_is_opened(tmp_path: Path) -> None:
    shutil.copytree(FROZEN / "run" / "m.run", tmp_path / "m.run")
    model = regard.load(tmp_path / "m.run", device="cpu")
    assert model.training["update"] > 0
    assert model.batch(["banana"], max_length=3)[0].unknown == ()
