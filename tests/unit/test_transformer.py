"""The family of Transformers: sizes by name, initialisation, tying, windows, heads of encoder-only models."""

import math

import pytest
import torch
from table import MODELS, TARGET_VOCAB, make_source, make_targets
from torch import Tensor

from regard.core import masks
from regard.core.losses import sequence_loss
from regard.core.source import Source
from regard.errors import UserError
from regard.look import Look, Tap
from regard.models.build import FAMILIES, build, num_parameters
from regard.models.contract import Memory
from regard.models.encoder import masked_mean
from regard.models.encoder_only import EncoderOnly, EncoderOnlySettings, Pooling, pool
from regard.models.transformer import PRESETS, Transformer, TransformerSettings
from regard.training.overrides import override
from regard.training.settings import RunSettings


def test_the_papers_base_model() -> None:  # SPEC A7.3
    with torch.device("meta"):
        model = Transformer(PRESETS["base"], 37_000, 37_000)
    embeddings = sum(half.embedding.tokens.weight.numel() for half in (model.encoder, model.decoder))
    bias = 37_000  # of the output, which shares the matrix of the embedding
    assert num_parameters(model) - embeddings - bias == 44_138_496
    settings = PRESETS["base"]
    assert (settings.norm_order, settings.encoder_layers, settings.decoder_layers) == ("post", 6, 6)
    assert (settings.heads, settings.width, settings.feed_forward) == (8, 512, 2048)


def test_presets_by_name() -> None:  # SPEC A7.3
    sizes = {name: (one.encoder_layers, one.decoder_layers, one.width, one.feed_forward) for name, one in PRESETS.items()}
    assert sizes == {
        "tiny": (4, 4, 128, 256),
        "small": (3, 3, 256, 1024),
        "base": (6, 6, 512, 2048),
        "deep-shallow": (12, 1, 256, 1024),
        "marian": (6, 6, 512, 2048),
        "pegasus": (6, 6, 512, 2048),
    }
    for name, settings in PRESETS.items():
        shared = f"data.shared={str(settings.traits.shares_vocabulary).lower()}"
        assert override(RunSettings(), [f"model.kind={name}", shared]).model == settings
    changed = override(RunSettings(), ["model.kind=tiny", "model.width=64"]).model
    assert (changed.width, changed.encoder_layers) == (64, 4)


@pytest.mark.parametrize("vocab", [19, 1000])
@pytest.mark.parametrize("name", [name for name in MODELS if "without norms" not in name])
def test_a_fresh_model_prefers_no_token(name: str, vocab: int) -> None:
    """The first loss is that of a uniform guess: ln V − 0.05 to ln V + 0.6. Half of what a pointer writes are copies. Without
    norms, nothing makes the first logits small."""
    torch.manual_seed(3)
    model = build(MODELS[name], vocab, vocab).eval()
    source = make_source(7, 5, 9, 11, 3, 8, 7, 10)
    targets = torch.randint(4, vocab, (8, 13))
    with torch.no_grad():
        logits = model.decode(targets[:, :-1], model.encode(source)).logits_BTV
    loss = sequence_loss(logits, targets[:, 1:], pad=0).item() / targets[:, 1:].numel()
    copied = math.log(2) if getattr(MODELS[name], "copy", False) else 0.0
    assert math.log(vocab) - 0.05 <= loss <= math.log(vocab) + 0.6 + copied


@pytest.mark.parametrize("kind", ["tiny", "small", "base", "deep-shallow"])
def test_a_fresh_preset_prefers_no_token(kind: str) -> None:
    torch.manual_seed(3)
    model, targets = build(PRESETS[kind], 1000, 1000).eval(), torch.randint(4, 1000, (4, 13))
    with torch.no_grad():
        logits = model.decode(targets[:, :-1], model.encode(make_source(7, 5, 9, 11))).logits_BTV
    loss = sequence_loss(logits, targets[:, 1:], pad=0).item() / targets[:, 1:].numel()
    assert math.log(1000) - 0.05 <= loss <= math.log(1000) + 0.6


@pytest.mark.parametrize("norm_order", ["pre", "post"])
def test_tied_embeddings_and_output_share_one_matrix(norm_order: str) -> None:
    settings = TransformerSettings(width=20, heads=2, feed_forward=29, tie="all", norm_order=norm_order)
    model = Transformer(settings, 17, 17)
    untied = Transformer(TransformerSettings(width=20, heads=2, feed_forward=29, norm_order=norm_order), 17, 17)
    assert num_parameters(untied) - num_parameters(model) == 2 * 17 * 20
    assert sum("tokens.weight" in name for name in model.state_dict()) == 1  # saved once
    memory = model.encode(make_source(7, 3))
    logits = model.decode(make_targets(2, 5) % 17, memory).logits_BTV
    (gradient,) = torch.autograd.grad(logits.sum(), model.decoder.embedding.tokens.weight)
    assert (gradient.abs().sum(-1) > 0).all()  # as output, every row has a gradient
    with pytest.raises(
        UserError, match="tie=all requires one vocabulary for both sides, but there are 17 source and 19 target"
    ):
        Transformer(settings, 17, 19)


def test_windows_hide_distant_positions() -> None:  # SPEC A3.3
    """Two layers with windows of 2 reach 4 positions."""
    torch.manual_seed(0)
    model = Transformer(
        TransformerSettings(width=20, heads=2, feed_forward=29, window=2, dropout=0.0), 17, TARGET_VOCAB
    ).double()
    ids = torch.randint(4, 17, (1, 13))
    changed = ids.clone()
    changed[0, 12] = 4 + (ids[0, 12] - 3) % 13

    def encode(ids: Tensor) -> Tensor:
        return model.encode(Source(ids, masks.not_padding(ids, 0))).values_BSE

    moved = (encode(ids) - encode(changed)).abs().amax(-1)[0] > 1e-12
    assert moved.tolist() == [False] * 8 + [True] * 5
    memory = model.encode(Source(ids, masks.not_padding(ids, 0)))
    (seen,) = model.decode(make_targets(1, 9), memory, Look((Tap("decoder", layer=0),))).seen
    attended = (seen.weights_BHTS[0, 0] > 0).tolist()
    assert attended == [[t - 2 <= s <= t for s in range(9)] for t in range(9)]


# --- encoder-only ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pooling", ["mean", "max", "first"])
def test_pooling_ignores_padding(pooling: str) -> None:
    settings = EncoderOnlySettings(width=20, heads=2, feed_forward=29, layers=2, pooling=pooling, dropout=0.0)
    model = EncoderOnly(settings, 17, 5).double()
    together = model.encode(make_source(7, 3, 5, room=9))
    assert model.classify(together).shape == (3, 5)
    assert model.tag(together).shape == (3, 9, 5)
    for row, length in enumerate((7, 3, 5)):
        source = make_source(7, 3, 5)
        alone = model.encode(Source(source.values[row : row + 1, :length], source.allow[row : row + 1, :length]))
        torch.testing.assert_close(model.classify(alone)[0], model.classify(together)[row])
        torch.testing.assert_close(model.tag(alone)[0], model.tag(together)[row, :length])
        values = alone.values_BSE[0]
        expected = {"mean": values.mean(0), "max": values.amax(0), "first": values[0]}[pooling]
        torch.testing.assert_close(alone.summary_BE[0], expected)


def test_pooling_with_padding_before_a_text_and_without_any_text() -> None:
    values, allow = torch.randn(2, 3, 5), torch.tensor([[False, True, True], [False, False, False]])
    memory = Memory(values, allow, masked_mean(values, allow), axes=(3,))
    real = values[0, 1:]
    expected: dict[Pooling, Tensor] = {"mean": real.mean(0), "max": real.amax(0), "first": real[0]}
    for how, vector in expected.items():
        torch.testing.assert_close(pool(memory, how), torch.stack((vector, torch.zeros(5))))


def test_every_family_has_a_name() -> None:
    assert set(FAMILIES) >= {"rnn", "transformer", "decoder_only"}
    assert all(family.settings().kind == kind for kind, family in FAMILIES.items())
