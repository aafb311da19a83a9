"""Location scores and custom scores."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from table import SOS
from torch import Tensor, nn

import regard
from regard.checkpoint import folder
from regard.checkpoint.folder import Saved
from regard.core import masks
from regard.core.source import Source
from regard.data.tokenizers.codec import Codec
from regard.errors import UserError
from regard.layers.scores import Additive, Location, make_score
from regard.look import Look, Tap
from regard.models.build import build
from regard.models.contract import ModelSettings
from regard.models.decoder_only import DecoderOnlySettings
from regard.models.encoder_only import EncoderOnly, EncoderOnlySettings
from regard.models.rnn_seq2seq import RnnSettings
from regard.models.transformer import TransformerSettings

# --- location ----------------------------------------------------------------------------------------------------------------


def location_by_hand(query: np.ndarray, w: np.ndarray, real: np.ndarray) -> np.ndarray:
    """Row j of W belongs to the j-th real position; the softmax is over as many rows as there are real positions."""
    weights = np.zeros((len(query), len(real)))
    positions = np.flatnonzero(real)
    for i, s in enumerate(query):
        e = np.exp(w[: len(positions)] @ s)
        weights[i, positions] = e / e.sum()
    return weights


@pytest.mark.parametrize("real", ["1111111", "1111000", "0011111", "0101101"])
def test_location_counts_real_positions(real: str) -> None:  # SPEC A2.5
    score, query = Location(11, 13).double(), torch.randn(5, 11).double()
    key, value = torch.randn(7, 3).double(), torch.randn(7, 2).double()
    allow = torch.tensor([letter == "1" for letter in real])
    expected = torch.from_numpy(location_by_hand(query.numpy(), score.weight.detach().numpy(), allow.numpy()))
    for one in (key, torch.randn_like(key)):  # the weights depend on the query only
        torch.testing.assert_close(regard.attention_weights(query, one, score=score, allow=allow[None]), expected)
        torch.testing.assert_close(regard.attend(query, one, value, score=score, allow=allow[None]), expected @ value)


@pytest.mark.parametrize("settings", [RnnSettings, TransformerSettings])
@pytest.mark.parametrize("left", [False, True])
def test_location_in_a_model_counts_real_positions(settings: type[ModelSettings], left: bool) -> None:  # SPEC A2.5
    """Cross-attention weights are softmax(W s) over the real positions, with padding on either side."""
    model = build(settings(score="location", max_positions=11, dropout=0.0), 17, 19).double().eval()
    ids = torch.tensor([[5, 6, 7, 8, 9], [5, 6, 7, 0, 0]])
    if left:
        ids[1] = torch.tensor([0, 0, 5, 6, 7])
    allow = masks.not_padding(ids, 0)
    memory = model.encode(Source(ids, allow))
    look = Look((Tap("cross", layer=0),))
    (seen,) = model.decode(torch.tensor([[SOS, 4], [SOS, 4]]), memory, look).seen
    real = seen.weights_BHTS[1][..., allow[1]]
    torch.testing.assert_close(real.sum(-1), torch.ones_like(real[..., 0]))
    if isinstance(model, nn.Module) and settings is RnnSettings:
        w = model.score.weight[:3]
        written, _ = model._recur(torch.tensor([[[SOS, 4]]]), model.start(memory).keep(torch.tensor([1])), None)
        torch.testing.assert_close(real[0], (written.states_BRD[0] @ w.T).softmax(-1))


def test_more_positions_than_location_supports() -> None:  # SPEC A2.5
    query, key, value = torch.randn(2, 5, 11), torch.randn(2, 7, 3), torch.randn(2, 7, 2)
    with pytest.raises(UserError, match=r"there are 7 positions, but this location score supports 4; .*max_source=7"):
        regard.attend(query, key, value, score=Location(11, 4))
    short = masks.first(torch.tensor([4, 3]), 7)[:, None]  # padding is not counted
    assert regard.attend(query, key, value, score=Location(11, 4), allow=short).shape == (2, 5, 2)

    score = Location(11, 4, beyond="ignore")
    with pytest.warns(UserWarning, match="6 keys are ignored, because this location score supports only the first 4 positions"):
        weights = regard.attention_weights(query, key, score=score)
    assert (weights[..., 4:] == 0).all()
    torch.testing.assert_close(weights[..., :4], (query @ score.weight.T).softmax(-1))
    with pytest.warns(UserWarning, match="6 keys"):
        torch.testing.assert_close(regard.attend(query, key, value, score=score), weights @ value)
    with pytest.warns(UserWarning, match="6 keys"):
        torch.testing.assert_close(regard.summarise(query, key, score=score, top=2).mass, weights.sum(-2))
    with pytest.raises(ValueError, match="beyond is 'drop', expected error or ignore"):
        Location(11, 4, beyond="drop")
    with pytest.raises(ValueError, match="queries have width 5, but this location score expects width 11"):
        regard.attend(query[..., :5], key, value, score=Location(11, 7))


def test_a_row_that_may_attend_to_ignored_keys_only_gives_zeros() -> None:  # SPEC A2.5
    query, key, value = torch.randn(2, 11), torch.randn(3, 3), torch.randn(3, 2)
    allow = torch.tensor([[True, True, True], [False, False, True]])
    with pytest.warns(UserWarning, match="1 keys"):
        context = regard.attend(query, key, value, score=Location(11, 2, beyond="ignore"), allow=allow)
    assert (context[1] == 0).all()
    assert (context[0] != 0).all()


# --- custom scores -----------------------------------------------------------------------------------------------------------

CUSTOM = '''
import torch
from torch import nn
import regard

class Manhattan(nn.Module, regard.Score):
    """−w·|s − h|: only `scores` is written, the rest has defaults."""

    name = "manhattan"

    def __init__(self, key_width):
        super().__init__()
        self.w = nn.Parameter(torch.ones(key_width))
        self.numbers_per_pair = key_width

    def scores(self, query, prepared):
        return -((query.unsqueeze(-2) - prepared.unsqueeze(-3)).abs() * self.w).sum(-1)
'''


def custom_score() -> type[nn.Module]:
    names: dict[str, type[nn.Module]] = {}
    exec(CUSTOM, names)
    return names["Manhattan"]


@pytest.mark.parametrize(
    "settings", [RnnSettings(width=8, score="manhattan"), TransformerSettings(width=8, heads=2, score="manhattan")]
)
def test_a_custom_score_works_in_every_model_and_in_its_folder(settings: ModelSettings, tmp_path: Path) -> None:  # SPEC A2.6
    mine = {"manhattan": custom_score()}
    source, target = Codec.train(["abc"], "characters"), Codec.train(["X Y Z"], "symbols")
    model = build(settings, len(source), len(target), mine).eval()
    folder.save(Saved(model, settings, source, target, {}, ""), tmp_path / "m")
    (before,) = regard.Translator.of_model(model, source, target).batch(["cab"], max_length=5)
    after = regard.load(tmp_path / "m", scores=mine)("cab", max_length=5)
    assert (after.text, after.log_prob) == (before.text, before.log_prob)
    assert any("w" in name.split(".")[-1:] for name, _ in model.named_parameters())  # its parameter is trained and saved
    with pytest.raises(
        UserError, match=r"uses the custom score 'manhattan', which is not part of regard: load it with .*scores="
    ):
        regard.load(tmp_path / "m")


class Sizes(regard.Score):
    """A dot product that knows what it was made with."""

    name = "sizes"

    def __init__(self, query_width: int, key_width: int, width: int, max_source: int, beyond: str) -> None:
        self.sizes = (query_width, key_width, width, max_source, beyond)

    def scores(self, query: Tensor, prepared: Tensor) -> Tensor:
        return query[..., :3] @ prepared[..., :3].transpose(-1, -2)


@pytest.mark.parametrize(
    ("settings", "width", "number"),
    [
        (RnnSettings(width=20, encoder_width=12, frontend="sound", channels=3, embedding=12), (20, 12), 1),
        (TransformerSettings(width=20, heads=2, key_dim=6, encoder_layers=1, frontend="sound", channels=3), (6, 6), 5),
        (DecoderOnlySettings(width=20, heads=4, layers=3), (5, 5), 3),
        (EncoderOnlySettings(width=20, heads=4, layers=3), (5, 5), 3),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
def test_settings_reach_every_score(settings: ModelSettings, width: tuple[int, int], number: int) -> None:  # SPEC A2.6
    """In self-attention, cross-attention and fusion; its widths there are those of a head."""
    made: list[Sizes] = []

    def make(query_width: int, key_width: int, width: int, max_source: int, beyond: str) -> Sizes:
        made.append(Sizes(query_width, key_width, width, max_source, beyond))
        return made[-1]

    settings = replace(settings, score="sizes", score_width=7, max_positions=11, beyond="ignore")
    if isinstance(settings, EncoderOnlySettings):
        EncoderOnly(settings, 17, 5, {"sizes": make})
    else:
        build(settings, 40, 19, {"sizes": make}, auxiliary=17)
    reads_file = settings.traits.frontend == "sound"
    fused = [score.sizes for score in made if score.sizes[:2] != width]
    assert [score.sizes for score in made if score.sizes[:2] == width] == [(*width, 7, 11, "ignore")] * number
    fused_width = (settings.embedding if isinstance(settings, RnnSettings) else settings.width) // 4
    assert fused == ([(fused_width, fused_width, 7, 11, "ignore")] if reads_file else [])


def test_additive_by_its_other_form_keeps_the_dtype() -> None:
    for dtype in (torch.float64, torch.bfloat16):
        score = Additive.concat(torch.randn(13, 7, dtype=dtype), torch.randn(13, dtype=dtype), query_width=3)
        assert {parameter.dtype for parameter in score.parameters()} == {dtype}


def test_scores_are_created_from_the_sizes_that_they_require() -> None:
    sizes = {"query_width": 3, "key_width": 5, "width": 7, "max_source": 11}
    assert make_score("general", **sizes).weight.weight.shape == (3, 5)
    assert make_score("location", **sizes).weight.shape == (11, 3)
    assert make_score("cosine", **sizes).temperature == 0.1
    ignoring = make_score("mine", {"mine": partial(Location, beyond="ignore")}, **sizes)
    assert ignoring.beyond == "ignore"

    class Needy(regard.Score):
        def __init__(self, secret: int) -> None:
            self.secret = secret

    with pytest.raises(
        UserError, match="the score 'needy' cannot be created: it requires secret, but a model only provides query_width"
    ):
        make_score("needy", {"needy": Needy}, **sizes)
    with pytest.raises(UserError, match=r"the score 'linear' is an instance of Identity, expected a subclass of regard.Score"):
        make_score("linear", {"linear": nn.Identity}, **sizes)
    with pytest.raises(UserError, match=r"there is no score 'genral'.*did you mean \"general\""):
        make_score("genral", **sizes)


def test_a_custom_score_needs_only_the_method_scores() -> None:
    class Bilinear(regard.Score):
        name = "bilinear"

        def scores(self, query: Tensor, prepared: Tensor) -> Tensor:
            return 3 * query @ prepared.mT

    query, key, value = torch.randn(2, 5, 11), torch.randn(2, 7, 11), torch.randn(2, 7, 3)
    context = regard.attend(query, key, value, score=Bilinear())
    torch.testing.assert_close(context, regard.attend(query, key, value, score=regard.scores.ScaledDot(1 / 3)))


@pytest.mark.parametrize("name", ["Additive", "Concat"])
def test_the_additive_scores_start_with_a_gradient_for_every_weight(name: str) -> None:
    score: nn.Module = getattr(regard.scores, name)(7, 5, 13)
    weights = regard.attention_weights(torch.randn(3, 7), torch.randn(11, 5), score=score)  # type: ignore[arg-type]
    (weights * torch.randn(3, 11)).sum().backward()
    assert all(parameter.grad is not None and (parameter.grad != 0).all() for parameter in score.parameters())
