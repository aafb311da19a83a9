"""Several models that write one output together."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from searching import assert_same_hypotheses, make_engine, outputs, rows_of
from table import MODELS, SOURCE_VOCAB, TARGET_VOCAB, make_source, make_targets
from typer.testing import CliRunner

import regard
from regard.cli.main import app
from regard.errors import UserError
from regard.look import Edit, Look, Tap
from regard.models.build import build
from regard.models.contract import Model
from regard.models.ensemble import Ensemble, joint_traits

PAIR = ("rnn additive", "transformer scaled_dot")


def member(name: str, seed: int = 5, dtype: torch.dtype = torch.float64) -> Model:
    torch.manual_seed(seed)
    return build(MODELS[name], SOURCE_VOCAB, TARGET_VOCAB).to(dtype).eval()


def test_a_token_has_the_mean_of_the_probabilities_that_the_members_give_it() -> None:
    models = [member("rnn additive", seed) for seed in (1, 2, 3)]
    source, targets = make_source(7, 3, 5), make_targets(3, 6)
    decoded = Ensemble(models).decode(targets, Ensemble(models).encode(source))
    apart = [model.decode(targets, model.encode(source)).distribution().exp() for model in models]
    mean_BTV = (apart[0] + apart[1] + apart[2]) / 3
    torch.testing.assert_close(decoded.distribution().exp(), mean_BTV, rtol=1e-12, atol=1e-14)
    chosen = mean_BTV.gather(-1, targets[..., None]).squeeze(-1).log()
    torch.testing.assert_close(decoded.log_probs(targets), chosen, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(decoded.loss(targets, pad=0), -chosen[targets != 0].sum())


@pytest.mark.parametrize("name", ["rnn additive", "transformer alibi, grouped", "decoder only", "rnn hard"])
@pytest.mark.parametrize("options", [{}, {"beam": 4, "n_best": 4}, {"sample": True, "n_best": 3}])
def test_three_times_the_same_model_is_that_model(name: str, options: dict[str, object]) -> None:
    model = member(name)
    rows = rows_of(make_source(7, 3, 5))
    alone, together = (outputs(make_engine(one), rows, max_length=9, **options) for one in (model, Ensemble([model] * 3)))
    for number, expected in alone.items():
        assert_same_hypotheses(together[number], expected)


def test_step_by_step_equals_the_whole_sequence() -> None:
    model = Ensemble([member(name) for name in PAIR])
    source, targets = make_source(7, 3, 5), make_targets(3, 6)
    memory = model.encode(source)
    whole_BTV, state = model.decode(targets, memory).distribution(), model.start(memory, targets[:, :2])
    for position in range(2, 6):
        step = model.step(targets[:, position : position + 1], state)
        torch.testing.assert_close(step.logits_BKV[:, 0], whole_BTV[:, position], rtol=1e-10, atol=1e-12)
        state = step.state


def test_states_are_selected_kept_joined_and_copied_in_every_member() -> None:
    model = Ensemble([member(name) for name in PAIR])
    memory = model.encode(make_source(7, 3, 5))
    targets = make_targets(3, 4)

    def logits(state: object, rows: list[int]) -> torch.Tensor:
        return model.step(targets[rows, 3:4], state).logits_BKV  # type: ignore[arg-type]

    def start(rows: list[int]) -> object:
        return model.start(memory, targets[:, :3]).keep(torch.tensor(rows))

    whole = logits(model.start(memory, targets[:, :3]), [0, 1, 2])
    assert torch.allclose(logits(start([2, 0]), [2, 0]), whole[[2, 0]])
    assert torch.allclose(logits(start([1]).join(start([0])), [1, 0]), whole[[1, 0]])  # type: ignore[attr-defined]
    first = model.start(memory, targets[:, :3])
    second = first.copy()
    assert torch.equal(logits(first, [0, 1, 2]), logits(second, [0, 1, 2]))
    with pytest.raises(RuntimeError, match="already used"):
        logits(first, [0, 1, 2])
    forked = model.start(memory, targets[:, :3]).select(torch.zeros(3, 2, dtype=torch.long))
    twice = model.step(targets[:, 3:4].expand(-1, 2), forked).logits_BKV
    assert torch.allclose(twice, whole.expand(-1, 2, -1))
    assert second.nbytes == sum(one.start(one.encode(make_source(7, 3, 5)), targets[:, :3]).nbytes for one in model.members)


def test_a_layer_has_the_heads_of_all_members() -> None:
    models = [member("transformer scaled_dot"), member("transformer alibi"), member("transformer scaled_dot", 9)]
    model, source, targets = Ensemble(models), make_source(7, 3), make_targets(2, 5)
    assert model.traits.attention["cross"] == (2, 2 + 5 + 2)
    look = Look((Tap("cross", what="weights"), Tap("encoder", layer=-1, head=-1), Tap("cross", layer=1, head=3)))
    memory = model.encode(source, look)
    (encoder,) = memory.seen
    by_layer = {(seen.layer, len(seen.heads)): seen for seen in model.decode(targets, memory, look).seen}

    def of_member(number: int, tap: Tap) -> torch.Tensor:
        one, own = models[number], Look((tap,))
        before = one.encode(source, own)
        (seen,) = before.seen if tap.kind == "encoder" else one.decode(targets, before, own).seen
        return seen.weights_BHTS

    assert encoder.heads == (8,)
    assert torch.equal(encoder.weights_BHTS, of_member(2, Tap("encoder", layer=-1, head=1)))
    all_heads = torch.cat([of_member(number, Tap("cross", layer=0)) for number in range(3)], dim=1)
    assert by_layer[0, 9].heads == tuple(range(9))
    assert torch.equal(by_layer[0, 9].weights_BHTS, all_heads)
    assert by_layer[1, 1].heads == (3,)
    assert torch.equal(by_layer[1, 1].weights_BHTS, of_member(1, Tap("cross", layer=1, head=1)))


def test_an_edit_reaches_the_member_that_has_the_head() -> None:
    models = [member("transformer scaled_dot"), member("transformer scaled_dot", 9)]
    model, source, targets = Ensemble(models), make_source(7, 3), make_targets(2, 5)
    look = Look(edits=(Edit("cross", layer=0, head=2),))
    edited = model.decode(targets, model.encode(source, look), look).distribution()
    own = Look(edits=(Edit("cross", layer=0, head=0),))
    first = models[0].decode(targets, models[0].encode(source)).distribution()
    second = models[1].decode(targets, models[1].encode(source, own), own).distribution()
    torch.testing.assert_close(edited.exp(), (first.exp() + second.exp()) / 2)


def test_attention_that_the_members_do_not_share_is_not_shown_and_not_edited() -> None:
    model, source = Ensemble([member("transformer scaled_dot"), member("rnn additive")]), make_source(7, 3)
    assert "encoder" not in model.traits.attention
    assert model.encode(source, Look((Tap("encoder"),))).seen == ()
    with pytest.raises(UserError, match="no encoder attention that all its models share"):
        model.encode(source, Look(edits=(Edit("encoder"),)))


def test_members_must_write_the_same_kind_of_output() -> None:
    with pytest.raises(UserError, match="only one of them is a language model"):
        Ensemble([member("rnn additive"), member("decoder only")])
    with pytest.raises(UserError, match="at least one model"):
        joint_traits([])


def test_traits_are_those_that_all_members_have() -> None:
    counts, free = member("transformer learned"), member("transformer scaled_dot")
    assert joint_traits([free.traits, counts.traits]).max_positions == counts.traits.max_positions == 401
    fewer = replace(counts.traits, max_positions=11)
    assert joint_traits([fewer, counts.traits]).max_positions == 11
    soft, hard = member("rnn additive").traits, member("rnn hard").traits
    assert joint_traits([soft, soft]).soft_cross_attention
    assert not joint_traits([soft, hard]).soft_cross_attention


# --- folders ------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three small models with the same vocabularies and different weights."""
    folder = tmp_path_factory.mktemp("members")
    pairs = [("abc", "A B C"), ("cab", "C A B"), ("bca", "B C A")]
    for seed, name in enumerate(("a", "b", "c"), start=1):
        regard.build("rnn", pairs, seed=seed, width=8, embedding=5, device="cpu").save(folder / name)
    return [folder / name for name in ("a", "b", "c")]


def test_a_list_of_folders_is_loaded_as_an_ensemble(folders: list[Path]) -> None:
    together, apart = regard.load(folders, device="cpu"), [regard.load(folder, device="cpu") for folder in folders]
    (scored,) = together.score(["abc"], ["A B C"])
    each = [model.score(["abc"], ["A B C"])[0] for model in apart]
    for token, log_prob in enumerate(scored.token_log_probs):
        mean = sum(math.exp(one.token_log_probs[token]) for one in each) / 3
        assert log_prob == pytest.approx(math.log(mean), abs=1e-5)
    result = together("abc", beam=3, max_length=5)
    assert result.log_prob == pytest.approx(sum(result.n_best[0].token_log_probs), abs=1e-5)
    *_, last = together.stream("abc", beam=3, max_length=5)
    assert last.result == result
    attention = together.attention(result)
    shown = [regard.inspect(model, "abc", output=result.ids, finished=result.finished) for model in apart]
    for head, one in enumerate(shown):
        torch.testing.assert_close(torch.from_numpy(attention.weights_HTS[head]), one.layer("cross", 0).numbers["weights"][0])
    assert regard.inspect(together, "abc", max_length=5).gates == ()


def test_an_ensemble_splits_texts_as_its_first_model_does(folders: list[Path]) -> None:
    model = regard.load(folders[0], device="cpu")
    short = replace(model, reader=replace(model.reader, max_source=5))
    assert regard.Translator.ensemble([short, model]).reader.max_source == 5


def test_an_ensemble_has_no_folder_of_its_own(folders: list[Path], tmp_path: Path) -> None:
    together = regard.load(folders, device="cpu")
    with pytest.raises(UserError, match="no settings and no folder of its own"):
        together.save(tmp_path / "all")
    assert not (tmp_path / "all").exists()
    with pytest.raises(UserError, match="at least one model, got none"):
        regard.load([])


def test_models_with_other_vocabularies_are_refused(folders: list[Path], tmp_path: Path) -> None:
    regard.build("rnn", [("abc", "A B D")], width=8, device="cpu").save(tmp_path / "other")
    with pytest.raises(UserError, match="model 2 and model 1 have different target vocabularies"):
        regard.load([folders[0], tmp_path / "other"])


def test_commands_take_the_other_models_of_an_ensemble(folders: list[Path], tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("abc\tA B C\n")
    (tmp_path / "in.txt").write_text("abc\n")
    options = ["--with", str(folders[1]), "--with", str(folders[2]), "--device", "cpu"]
    together = regard.load(folders, device="cpu")

    def run(command: str, *words: str) -> str:
        done = CliRunner().invoke(app, [command, str(folders[0]), *words, *options])
        assert done.exit_code == 0, done.output
        return done.stdout

    assert run("translate", str(tmp_path / "in.txt"), "--max-length", "5") == together("abc", max_length=5).text + "\n"
    (scored,) = together.score(["abc"], ["A B C"])
    assert run("score", str(tmp_path / "pairs.tsv")).startswith(f"{scored.log_prob:.6f}\t")
    assert "1 source" in run("evaluate", str(tmp_path / "pairs.tsv"), "--max-length", "5")
    assert run("inspect", "abc")
