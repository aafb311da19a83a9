"""What models say about themselves is what they do."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from table import FRONTENDS, MODELS, TARGET_VOCAB, make_frontend_model, make_model, make_rows, make_source, make_targets

from regard.checkpoint import folder
from regard.checkpoint.folder import Saved
from regard.contracts import Traits
from regard.core.source import Source
from regard.data.batch import source_batch
from regard.data.tokenizers.codec import Codec
from regard.errors import UserError
from regard.look import Kind, Look, Seen, Tap
from regard.models.build import FAMILIES, build
from regard.models.contract import Model, ModelSettings
from regard.models.decoder_only import DecoderOnlySettings
from regard.models.encoder_only import EncoderOnly, EncoderOnlySettings
from regard.models.rnn_lm import RnnLmSettings
from regard.models.rnn_seq2seq import RnnSettings
from regard.models.transformer import TransformerSettings

EVERYTHING = Look(tuple(Tap(kind) for kind in ("encoder", "decoder", "cross", "fusion")))
STACK = {"width": 20, "heads": 2, "feed_forward": 29}


def seen_by(model: Model, source: Source) -> tuple[Seen[torch.Tensor], ...]:
    memory = model.encode(source, EVERYTHING)
    return memory.seen + model.decode(make_targets(source.num_sentences, 6), memory, EVERYTHING).seen


def sizes(seen: tuple[Seen[torch.Tensor], ...]) -> dict[Kind, tuple[int, int]]:
    """Returns kind -> (number of layers, number of heads), as `Traits.attention`."""
    layers: dict[Kind, list[int]] = {}
    for one in seen:
        layers.setdefault(one.kind, []).append(one.weights_BHTS.shape[1])
    return {kind: (len(heads), *set(heads)) for kind, heads in layers.items()}  # type: ignore[misc]


def every_model() -> Iterator[tuple[str, Model, Source]]:
    for name in MODELS:
        yield name, make_model(name), make_source(7, 3, 5)
    for name in FRONTENDS:
        yield name, make_frontend_model(name, torch.float32), source_batch(make_rows(name, 3))


def test_a_model_names_the_attention_that_it_has() -> None:
    for name, model, source in every_model():
        seen = seen_by(model, source)
        assert model.traits.attention == sizes(seen), name
        cross = [one.weights_BHTS for one in seen if one.kind == "cross"]
        soft = [w.sum(-1).allclose(torch.ones(())) and bool((w[0] < 1).all()) for w in map(torch.Tensor.float, cross)]
        assert model.traits.soft_cross_attention == (bool(soft) and all(soft)), name


def test_only_a_model_knows_whether_it_reads_an_auxiliary_text() -> None:
    for name, model, _ in every_model():
        fuses = "with text" in name
        assert ("fusion" in model.traits.attention) == fuses
        assert fuses or model.traits == model.settings.traits
    assert not any("fusion" in settings.traits.attention for settings in FRONTENDS.values())


def test_a_model_that_continues_a_text_has_no_source() -> None:
    for name, model, source in every_model():
        assert model.traits.continues_text == (model.encode(source).values_BSE.shape[1] == 0), name


def test_an_encoder_names_the_attention_that_it_has() -> None:
    settings = EncoderOnlySettings(**STACK, layers=3, positions="learned", max_positions=11)
    seen = EncoderOnly(settings, 17, 5).encode(make_source(7, 3), EVERYTHING).seen
    assert settings.traits == Traits(max_positions=11, attention=sizes(seen), score="scaled_dot")


LIMITED: list[tuple[ModelSettings, int | None]] = [
    (TransformerSettings(**STACK, positions="learned", max_positions=11), 11),
    (TransformerSettings(**STACK, positions="one_hot", max_positions=11), 20),
    (TransformerSettings(**STACK, positions="one_hot", position_join="appended", position_width=8, max_positions=11), 8),
    (TransformerSettings(**STACK, positions="one_hot", score="location", max_positions=11), 11),
    (TransformerSettings(**STACK, score="location", max_positions=11, beyond="ignore"), None),
    (TransformerSettings(**STACK, max_positions=11), None),
    (DecoderOnlySettings(**STACK, layers=1, positions="learned", max_positions=11), 11),
    (RnnSettings(width=8, score="location", max_positions=11), 11),
    (RnnSettings(width=8, score="location", max_positions=11, beyond="ignore"), None),
    (RnnSettings(width=8, decoder="fixed", score="location", max_positions=11), None),
    (RnnLmSettings(width=8), None),
]


@pytest.mark.filterwarnings("ignore:.*positions")
@pytest.mark.parametrize(("settings", "limit"), LIMITED)
def test_a_model_counts_as_many_positions_as_it_says(settings: ModelSettings, limit: int | None) -> None:
    assert settings.traits.max_positions == limit
    model = build(settings, 17, TARGET_VOCAB).eval()

    def run(length: int) -> None:
        model.decode(make_targets(1, length), model.encode(make_source(length)))

    run(limit or 50)
    if limit:
        with pytest.raises(ValueError, match="position"):
            run(limit + 1)


def test_a_model_that_shares_its_embedding_requires_one_vocabulary() -> None:
    for settings in (TransformerSettings(**STACK, tie="all"), TransformerSettings(**STACK, tie="output"), RnnSettings()):
        try:
            build(settings, 17, 19)
        except UserError:
            assert settings.traits.shares_vocabulary
        else:
            assert not settings.traits.shares_vocabulary


def test_settings_name_the_frontend_and_the_score() -> None:
    for name, settings in FRONTENDS.items():
        assert settings.traits.frontend == name.split(",")[0].split(" ")[0]
    assert {MODELS[name].traits.frontend for name in MODELS} == {"tokens"}
    assert RnnSettings(score="general").traits.score == "general"
    assert TransformerSettings(score="cosine").traits.score == "cosine"
    assert DecoderOnlySettings(score="cosine").traits.score == "cosine"
    assert RnnLmSettings().traits.score is None


def test_every_family_names_its_numbers_of_layers() -> None:
    assert {kind: set(family.settings().num_layers) for kind, family in FAMILIES.items()} == {
        "rnn": {"encoder_layers", "decoder_layers"},
        "rnn_lm": {"layers"},
        "transformer": {"encoder_layers", "decoder_layers"},
        "decoder_only": {"layers"},
        "classifier": {"layers"},
        "tagger": {"layers"},
        "masked": {"layers"},
    }
    assert TransformerSettings(encoder_layers=3, decoder_layers=5).num_layers == {"encoder_layers": 3, "decoder_layers": 5}


def test_a_model_without_attention_needs_no_score_to_load(tmp_path: Path) -> None:
    codec, settings = Codec.train(["abc"], "characters"), RnnSettings(width=8, decoder="fixed", score="mine")
    folder.save(Saved(build(settings, len(codec), len(codec)), settings, codec, codec, {}, ""), tmp_path / "model")
    assert folder.load(tmp_path / "model").settings == settings
