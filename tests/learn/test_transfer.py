"""A pretrained encoder helps when there is little data."""

import random

import pytest
import torch
from rich.console import Console

from regard.data.corpus import Pair
from regard.data.dictionary import pronunciations
from regard.errors import UserError
from regard.models.build import build
from regard.models.contract import ModelSettings
from regard.models.rnn_seq2seq import RnnSettings
from regard.models.transformer import TransformerSettings
from regard.training.data import StartCodecs, in_memory
from regard.training.run import Trained, run
from regard.training.settings import DataSettings, RunSettings, TrainSettings
from regard.training.transfer import ENCODER, Transfer, start_encoder

MODEL = RnnSettings(width=64, embedding=32, score_width=32, encoder_layers=2, dropout=0.0)
CLASSES = {
    "stop": "P B T D K G",
    "fricative": "F V TH DH S Z SH ZH HH",
    "affricate": "CH JH",
    "nasal": "M N NG",
    "approximant": "L R W Y",
}


def train(pairs: list[Pair], held_out: list[Pair], settings: TrainSettings, transfer: Transfer | None = None) -> Trained:
    run_settings = RunSettings(seed=1, data=DataSettings(target_unit="symbols"), model=MODEL, train=settings)
    codecs = StartCodecs(source=transfer.saved.source) if transfer else None
    training_data = in_memory("words", pairs, held_out, run_settings.data, codecs)
    return run(training_data, run_settings, Console(quiet=True), torch.device("cpu"), transfer=transfer)


def broad_classes(pairs: list[Pair]) -> list[Pair]:
    """Returns pairs of a spelling and the manner of articulation of every phoneme: another task, with other targets."""
    manner = {phoneme: name for name, phonemes in CLASSES.items() for phoneme in phonemes.split()}
    first = {pair.source: pair for pair in reversed(pairs)}.values()
    return [Pair(pair.source, " ".join(manner.get(phoneme, "vowel") for phoneme in pair.target.split())) for pair in first]


@pytest.mark.slow
def test_a_pretrained_encoder_helps_with_little_data() -> None:  # SPEC A7.7
    """The encoder is trained to pronounce 20,000 English words, then used for another task: 200 words, tested on 500 others."""
    known = pronunciations("train")
    random.Random(1).shuffle(known)
    pretrained = train(known[:20_000], known[:50], TrainSettings(steps=400, batch_tokens=512, learning_rate=8e-3))
    few = broad_classes(pronunciations("dev"))[:700]
    little = TrainSettings(steps=150, batch_tokens=256, learning_rate=4e-3)
    alone, tuned, frozen = (
        train(few[:200], few[200:], little, transfer)
        for transfer in (None, Transfer(pretrained.saved), Transfer(pretrained.saved, freeze=True))
    )
    assert tuned.rates.symbol < alone.rates.symbol - 0.05
    assert frozen.rates.symbol < alone.rates.symbol - 0.05
    before = pretrained.saved.model.state_dict()
    for trained, same in ((tuned, False), (frozen, True)):
        after = trained.saved.model.state_dict()
        encoder = [name for name in after if name.startswith(ENCODER)]
        assert all(torch.equal(after[name], before[name]) for name in encoder) == same
        assert any(not torch.equal(after[name], before[name]) for name in after if name in before and name not in encoder)
    assert frozen.saved.source.to_json() == pretrained.saved.source.to_json()


@pytest.mark.parametrize(
    "settings", [RnnSettings(width=8, embedding=5), TransformerSettings(width=8, heads=2, feed_forward=11, tie="output")]
)
def test_exactly_the_encoder_is_copied(settings: ModelSettings) -> None:  # SPEC A7.7
    """The same sources give the same memory, even if the target vocabularies differ."""
    from table import make_source

    saved = type("Saved", (), {"model": build(settings, 17, 19).eval()})()
    model = build(settings, 17, 23).eval()
    source = make_source(7, 3)
    assert not torch.allclose(model.encode(source).values_BSE, saved.model.encode(source).values_BSE)
    number = start_encoder(model, Transfer(saved, freeze=True))
    torch.testing.assert_close(model.encode(source).values_BSE, saved.model.encode(source).values_BSE)
    frozen = [parameter for parameter in model.parameters() if not parameter.requires_grad]
    assert number == sum(parameter.numel() for parameter in frozen)
    assert len(frozen) < len(list(model.parameters()))


def test_encoders_that_do_not_fit_are_refused() -> None:
    def saved(settings: ModelSettings) -> Transfer:
        return Transfer(type("Saved", (), {"model": build(settings, 17, 17)})())

    model = build(RnnSettings(width=8, embedding=5), 17, 19)
    with pytest.raises(
        UserError, match=r"the encoders do not match: \d+ weights with another name or shape, such as .*; use the"
    ):
        start_encoder(model, saved(RnnSettings(width=10, embedding=5)))
    with pytest.raises(UserError, match="shares its embedding with its decoder"):
        start_encoder(model, saved(TransformerSettings(width=8, heads=2, tie="all")))
