"""One entry in FAMILIES is all that a new model family needs outside its own file."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pytest
import torch
from table import make_source, make_targets
from torch import Tensor, nn

from regard.checkpoint import folder
from regard.checkpoint.folder import Saved
from regard.contracts import Traits
from regard.core.source import Source
from regard.data.tokenizers.codec import Codec
from regard.errors import UserError
from regard.look import Look
from regard.models.build import FAMILIES, Family, build
from regard.models.contract import Memory, Model, ModelSettings, Projected, State, Step
from regard.models.stack import Scores
from regard.models.state import BatchState
from regard.training.config import parse_config, write_config
from regard.training.overrides import override
from regard.training.settings import DataSettings, RunSettings


@dataclass(frozen=True, kw_only=True)
class BigramSettings(ModelSettings):
    kind: Literal["bigram"] = "bigram"
    rank: int = 5
    """Width of the vectors between the previous token and the next."""
    frontend: Literal["tokens", "frames"] = "tokens"

    @property
    def traits(self) -> Traits:
        return Traits(continues_text=True, frontend=self.frontend)


class Bigram(Model):
    """Predicts the next token from the previous one."""

    def __init__(
        self, settings: BigramSettings, source_vocab: int, target_vocab: int, scores: Scores = None, auxiliary: int = 0
    ) -> None:
        super().__init__(settings)
        self.embedding = nn.Embedding(target_vocab, settings.rank)
        self.output = nn.Linear(settings.rank, target_vocab)

    def encode(self, source: Source, look: Look | None = None) -> Memory:
        nothing = self.output.weight.new_zeros(source.num_sentences, 0)
        return Memory(nothing[:, :, None], nothing.bool(), nothing, axes=(0,))

    def start(self, memory: Memory, prefix_BP: Tensor | None = None) -> BatchState:
        return BatchState(lengths_B=torch.zeros(len(memory.allow_BS), dtype=torch.long))

    def step(self, ids_BK: Tensor, state: State, look: Look | None = None) -> Step:
        return Step(self.output(self.embedding(ids_BK)), state)

    def decode(self, ids_BT: Tensor, memory: Memory, look: Look | None = None) -> Projected:
        return Projected(self.embedding(ids_BT), self.output.weight, self.output.bias)


@pytest.fixture
def bigram(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adds the family to a process that has already read the settings of another one."""
    assert override(RunSettings(), ["model.width=8"]).model.kind == "rnn"
    monkeypatch.setitem(FAMILIES, "bigram", Family(BigramSettings, Bigram, {"tiny-bigram": BigramSettings(rank=2)}))


@pytest.mark.usefixtures("bigram")
def test_settings_of_a_new_family_are_parsed() -> None:
    settings = override(RunSettings(), ["model.kind=bigram", "model.rank=7"])
    assert settings.model == BigramSettings(rank=7)
    assert override(RunSettings(), ["model.kind=tiny-bigram"]).model == BigramSettings(rank=2)
    text = write_config(settings, {})
    assert "# Width of the vectors between the previous token and the next." in text
    assert parse_config(text, "run.yaml") == settings


@pytest.mark.usefixtures("bigram")
def test_wrong_settings_of_a_new_family_are_explained() -> None:
    with pytest.raises(UserError, match=r"^--set model: rank is 0, expected 1 or more$"):
        override(RunSettings(), ["model.kind=bigram", "model.rank=0"])
    with pytest.raises(UserError, match=r"^run.yaml:3: model.rank: got 'many', expected a whole number$"):
        parse_config("model:\n  kind: bigram\n  rank: many\n", "run.yaml")
    with pytest.raises(
        UserError,
        match=r"expected one of rnn, rnn_lm, transformer, decoder_only, classifier, .*, bigram, tiny, .*, tiny-bigram",
    ):
        override(RunSettings(), ["model.kind=lattice"])
    with pytest.raises(UserError, match=r"in a model of kind rnn or transformer or classifier or bigram$"):
        RunSettings(data=DataSettings(source_unit="sound"), model=BigramSettings())


@pytest.mark.usefixtures("bigram")
def test_a_model_of_a_new_family_is_built_saved_and_loaded(tmp_path: Path) -> None:
    codec, settings = Codec.train(["abcdefghijklmnopq"], "characters"), BigramSettings(rank=7)
    model = build(settings, len(codec), len(codec)).eval()
    assert isinstance(model, Bigram)
    assert model.traits == settings.traits
    folder.save(Saved(model, settings, codec, codec, {}, ""), tmp_path / "model")
    loaded = folder.load(tmp_path / "model")
    assert loaded.settings == settings
    targets = make_targets(2, 5)
    expected, found = (one.decode(targets, one.encode(make_source(3, 2))) for one in (model, loaded.model))
    assert expected == found


def test_a_family_that_was_removed_is_unknown_again(bigram: None, monkeypatch: pytest.MonkeyPatch) -> None:
    text = write_config(replace(RunSettings(), model=BigramSettings()), {})
    assert parse_config(text, "run.yaml").model == BigramSettings()
    monkeypatch.delitem(FAMILIES, "bigram")
    with pytest.raises(
        UserError,
        match=r"model.kind: got 'bigram', expected one of rnn, rnn_lm, transformer, decoder_only, classifier, tagger, masked",
    ):
        parse_config(text, "run.yaml")


def test_every_entry_is_named_after_its_kind() -> None:
    assert all(family.settings().kind == kind for kind, family in FAMILIES.items())
    assert all(preset.kind == kind for kind, family in FAMILIES.items() for preset in family.presets.values())
