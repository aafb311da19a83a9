"""Descriptions of models: every parameter is counted once, every shape is that of a real pass, and the diagram shows them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any
from xml.dom import minidom

import pytest
import table
import torch
from table import FRONTENDS, MODELS, make_frontend_model, make_model, make_rows, make_source, make_targets
from torch import Tensor, nn

import regard
from regard.core.source import Source
from regard.data.batch import source_batch
from regard.errors import UserError
from regard.layers.blocks import make_norm
from regard.models.build import FAMILIES, build, presets
from regard.models.encoder_only import EncoderOnly, EncoderOnlySettings
from regard.models.ensemble import Ensemble
from regard.models.rnn_seq2seq import RnnSettings
from regard.models.tagger import RnnTagger, RnnTaggerSettings
from regard.models.transformer import TransformerSettings


def walk(part: regard.ModelPart) -> Iterator[regard.ModelPart]:
    yield part
    for inner in part.parts:
        yield from walk(inner)


def all_parts(description: regard.Description) -> list[regard.ModelPart]:
    return [inner for part in description.parts for inner in walk(part)]


def check_sums(description: regard.Description, model: nn.Module) -> None:
    """All levels add up to the number of parameters of the model."""
    total = sum(parameter.numel() for parameter in model.parameters())
    assert description.parameters == total
    assert sum(part.copies * part.parameters for part in description.parts) == total
    for part in all_parts(description):
        if part.parts and part.name != "Mystery":
            assert part.parameters == sum(inner.copies * inner.parameters for inner in part.parts), part.name


@pytest.mark.parametrize("name", [*MODELS, *FRONTENDS])
def test_parameters_add_up(name: str) -> None:
    model = make_model(name) if name in MODELS else make_frontend_model(name)
    description = regard.describe(model)
    check_sums(description, model)
    names = [part.name for part in all_parts(description)]
    assert "other parameters" not in names
    assert not [name for name in names if name in {type(module).__name__ for module in model.modules()}]  # all are described
    assert all(part.shape or part.role == "stack" for part in all_parts(description))


def sizes(shape: str, **letters: int) -> list[int]:
    """Returns a shape as numbers."""
    products = re.sub(r"(\d)([A-Z])", r"\1*\2", shape.strip("()"))  # 2S
    return [int(eval(size, {}, letters)) for size in products.split(", ")]


def shapes_of_a_pass(model: Any, source: Source, target_BT: Tensor) -> dict[str, set[torch.Size]]:
    """Returns the shapes of the outputs of each module, by name."""
    seen: dict[str, set[torch.Size]] = {}

    def watch(name: str) -> Any:
        def hook(module: nn.Module, inputs: object, output: Any) -> None:
            output = output[0] if isinstance(output, tuple) else getattr(output, "x_BSD", output)
            seen.setdefault(name, set()).add(output.shape)

        return hook

    hooks = [module.register_forward_hook(watch(name)) for name, module in model.named_modules() if name]
    with torch.no_grad():
        model(source, target_BT)
    for hook in hooks:
        hook.remove()
    return seen


@pytest.mark.parametrize("name", [name for name in MODELS if table.reads_source(name)])
def test_shapes_are_those_of_a_real_pass(name: str) -> None:
    model = make_model(name)
    seen = shapes_of_a_pass(model, make_source(11, 5), make_targets(2, 7))
    compared = 0
    for part in all_parts(regard.describe(model)):
        if part.module in seen and "cells" not in part.name:
            described = sizes(part.shape, B=2, S=11, T=7, features=0)
            if len(described) == 4:  # (B, heads, length, width): a projection computes all heads at once
                described = [described[0], described[2], described[1] * described[3]]
            real = [[size for size in shape if size != 1] for shape in seen[part.module]]  # K = 1 hypothesis
            if part.name != "bridge":  # computed for all layers at once
                assert {shape[-1] for shape in real} == {described[-1]}, part
                if any(len(shape) == len(described) for shape in real):  # not steps of a loop, and not vectors of positions
                    assert described in real, part
                    compared += 1
    assert compared >= (2 if "rnn" in name else 12)


@pytest.mark.parametrize("name", [name for name in MODELS if name.startswith("rnn") and table.reads_source(name)])
def test_shapes_of_recurrent_models_are_those_of_a_real_pass(name: str) -> None:
    model = make_model(name)
    source, target = make_source(11, 5), make_targets(2, 7)
    parts = {part.gives or part.name: part for part in all_parts(regard.describe(model))}
    memory = model.encode(source)
    state: Any = model.start(memory)
    real = {
        "memory": memory.values_BSE,
        "C": memory.summary_BE,
        "s_0": state.hidden_BKLX[:, 0],
        "softmax": model(source, target),
    }
    if table.has_cross(name):
        seen = model.decode(target, memory, regard.Look(taps=(regard.Tap("cross"),))).seen[0]
        real["weights"] = seen.weights_BHTS[:, 0]
    for key, tensor in real.items():
        if key in parts:
            assert list(tensor.shape) == sizes(parts[key].shape, B=2, S=11, T=7), key
    assert {"memory", "softmax"} <= parts.keys()


@pytest.mark.parametrize(
    "name",
    [
        "picture, luong",
        "patches, transformer",
        "frames, luong",
        "sound, transformer",
        "video, luong",
        "video_grid, transformer",
    ],
)
def test_shapes_of_frontends_are_those_of_a_real_pass(name: str) -> None:
    model = make_frontend_model(name)
    source = source_batch(make_rows(name, 1))
    seen = shapes_of_a_pass(model, source, make_targets(1, 7))
    memory = model.encode(source).values_BSE
    letters = {"B": 1, "S": memory.shape[1], "T": 7, "bands": 40}
    letters |= {"H": source.values.shape[-2], "W": source.values.shape[-1], "frames": source.values.shape[2]}
    letters |= {"rows": source.values.shape[-2], "columns": source.values.shape[-1]}
    parts = all_parts(regard.describe(model))
    if name.startswith(("picture", "patches", "video")):
        assert sizes(parts[1].shape, **letters) == list(source.values.shape)
    compared = 0
    for part in parts:
        if (part.module.startswith("source_embedding") or part.role == "embedding") and part.module in seen:
            assert {math.prod(shape) for shape in seen[part.module]} == {math.prod(sizes(part.shape, **letters))}, part
            compared += 1
    assert compared


# --- what a description says -------------------------------------------------------------------------------------------------


def stack(description: regard.Description, name: str) -> list[regard.ModelPart]:
    (found,) = [part for part in description.parts if part.name == name]
    return list(found.parts)


def test_the_base_model_of_the_paper() -> None:  # SPEC A7.3
    description = regard.describe("base", num_tokens=(101, 103))
    encoder, decoder = stack(description, "encoder"), stack(description, "decoder")
    assert [part.name for part in encoder] == ["source tokens", "embedding", "positions", "encoder layer"]
    layers = encoder[3], decoder[3]
    assert [part.copies for part in layers] == [6, 6]
    assert sum(part.copies * part.parameters for part in layers) == 44_138_496  # the figure of the notes
    assert description.parameters == 44_138_496 + 512 * (101 + 103) + 103
    blocks = ["self-attention", "Add & Norm", "cross-attention", "Add & Norm", "feed-forward", "Add & Norm"]
    assert [part.name for part in layers[1].parts] == blocks
    assert [part.skips for part in layers[1].parts] == [0, 1, 0, 1, 0, 1]
    assert decoder[-2].formula == "x Eᵀ + b, E of the embedding"
    assert decoder[-2].parameters == 103


def test_queries_keys_and_values_say_where_they_come_from() -> None:
    decoder = stack(regard.describe("tiny"), "decoder")[3]
    attentions = {part.name: part for part in decoder.parts if part.role == "attention"}
    within, across = attentions["self-attention"], attentions["cross-attention"]
    assert [part.name for part in within.parts][:3] == ["Q = x W_Q + b", "K = x W_K + b", "V = x W_V + b"]
    assert [part.name for part in across.parts][:3] == ["Q = x W_Q + b", "K = memory W_K + b", "V = memory W_V + b"]
    assert across.parts[1].shape == "(B, 4, S, 32)"
    assert across.parts[3].shape == "(B, 4, T, S)"
    assert within.parts[3].formula == "softmax(scaled_dot(Q, K)) of positions up to t"
    assert across.parts[3].formula == "softmax(scaled_dot(Q, K))"
    windows = stack(regard.describe(TransformerSettings(window=3)), "decoder")[3].parts
    assert windows[1].parts[3].formula == "softmax(scaled_dot(Q, K)) of positions from t − 3 to t"
    assert (within.reads, across.reads) == ((), ("memory",))
    encoder = stack(regard.describe("tiny"), "encoder")
    assert encoder[-1].gives == "memory"


def test_the_order_of_norms_is_that_of_the_model() -> None:
    pre = stack(regard.describe(TransformerSettings(norm_order="pre", norm="rms")), "encoder")
    assert [part.name for part in pre[3].parts] == ["Norm", "self-attention", "Add", "Norm", "feed-forward", "Add"]
    assert [part.skips for part in pre[3].parts] == [0, 0, 2, 0, 0, 2]
    assert pre[3].parts[0].formula == "RMSNorm(x)"
    assert pre[4].name == "Norm"
    post = stack(regard.describe(TransformerSettings(norm_order="post")), "encoder")
    assert post[3].parts[1].formula == "LayerNorm(x + f(x))"
    assert len(post) == 4


def test_recurrent_models_say_when_they_attend() -> None:
    def names(**settings: Any) -> list[str]:
        return [part.name for part in stack(regard.describe(RnnSettings(**settings)), "decoder")[2:]]

    assert names() == ["cells", "cross-attention", "attentional state s̃", "output layer", "softmax"]
    assert names(readout="plain") == ["cells", "cross-attention", "output layer", "softmax"]
    assert names(decoder="bahdanau") == ["cross-attention", "joined input", "cells", "output layer", "softmax"]
    assert names(decoder="fixed") == ["cells", "output layer", "softmax"]
    assert names(input_feeding=True)[:2] == ["joined input", "cells"]
    bahdanau = stack(regard.describe(RnnSettings(decoder="bahdanau", width=6, embedding=5)), "decoder")
    assert bahdanau[2].parts[0].formula == "s_(t−1)"
    assert bahdanau[2].reads == ("memory", "s_(t−1)")
    assert not bahdanau[2].follows
    assert bahdanau[3].shape == "(B, T, 11)"
    assert bahdanau[4].reads == ("s_0",)
    encoder = stack(regard.describe(RnnSettings(bridge="zero")), "encoder")
    assert [part.name for part in encoder] == ["source tokens", "embedding", "encoder layer"]


def test_layers_that_replace_attention_say_how_they_weigh_positions() -> None:
    def mixing(**settings: Any) -> regard.ModelPart:
        return stack(regard.describe(TransformerSettings(width=16, heads=4, **settings)), "decoder")[3].parts[1]

    convolution = mixing(mixing="convolution", reach=3)
    assert (convolution.name, convolution.formula, convolution.role) == ("convolution", "4 heads", "dense")
    assert [part.name for part in convolution.parts] == ["V = x W_V + b", "weights", "context", "output"]
    weights = convolution.parts[1]
    assert weights.formula == "w_(j−i) for |j − i| ≤ 3, of positions from t − 3 to t"
    assert (weights.shape, weights.parameters) == ("(4, T, T)", 4 * 7)
    dense = mixing(mixing="dense", max_positions=9, kv_heads=2)
    assert (dense.name, dense.formula) == ("dense mixing", "4 heads, 2 of values")
    assert dense.parts[1].formula == "w_ij for at most 9 positions, of positions up to t"
    assert dense.parts[1].parameters == 4 * 9 * 9


@pytest.mark.parametrize("name", ["picture, luong", "picture, marginal, rows", "grid, luong", "frames, luong"])
def test_the_summary_of_a_source_is_what_the_model_computes(name: str) -> None:
    model = make_frontend_model(name)
    memory = model.encode(source_batch(make_rows(name, 1)))
    is_mean = torch.allclose(memory.summary_BE[0], memory.values_BSE[0][memory.allow_BS[0]].mean(0))
    (summary,) = [part for part in stack(regard.describe(model), "encoder") if part.name == "summary C"]
    assert summary.formula == ("the mean over all positions" if is_mean else "the last states")


def test_videos_have_frames() -> None:
    description = regard.describe(RnnSettings(width=24, frontend="video", channels=8))
    assert "3 numbers per position (video)" in description.title
    video, first, *_ = encoder = stack(description, "encoder")
    assert (video.name, video.shape) == ("video", "(B, 3, frames, H, W)")
    assert [part.name for part in first.parts] == ["convolution", "residual block", "convolution over time"]
    assert first.parts[2].parameters == 2 * 2 + (2 * 2 * 3 + 2)  # the norm, and a kernel of three frames
    assert encoder[4].formula == "A x + W₂ relu(W₁ x + φ(time, row, column)) + b, S cells"
    picture = stack(regard.describe(RnnSettings(width=24, frontend="picture", channels=8)), "encoder")
    assert [part.name for part in picture[1].parts] == ["convolution", "residual block"]
    assert picture[4].formula == "A x + W₂ relu(W₁ x + φ(row, column)) + b, S cells"
    member = make_frontend_model("video_grid, luong")
    grid = regard.describe(Ensemble([member, member])).parts[0].parts[0].parts[0]
    assert grid.shape == "(B, 3, frames, rows, columns)"


def test_features_as_a_set_are_read_apart_from_the_text() -> None:
    settings = MODELS["rnn monotone, copies, features as a set"]
    model: Any = build(settings, 17, 19, auxiliary=3).eval()
    ids = torch.tensor([[9, 10, 11, 12, 4, 5], [13, 14, 15, 16, 6, 4]])  # four tokens and two features
    memory = model.encode(Source(ids, ids > 0))
    description = regard.describe(model)
    encoder, decoder = stack(description, "encoder"), stack(description, "decoder")
    parts = {part.gives or part.name: part for part in (*encoder, *decoder)}
    letters = {"B": 2, "S": 4, "T": 7, "features": 2}
    assert sizes(parts["features"].shape, **letters) == list(memory.features_BFI.shape)
    assert sizes(parts["memory"].shape, **letters) == list(memory.values_BSE.shape)
    assert [part.name for part in encoder][:3] == ["features, in no order", "feature embedding", "source tokens"]
    assert not encoder[2].follows
    names = ["cells", "feature gates", "Add", "cross-attention", "output layer", "softmax", "copying"]
    assert [part.name for part in decoder][2:] == names
    gates = parts["feature gates"]
    assert gates.reads == ("features",)
    assert [part.parameters for part in gates.parts] == [22 * 7 + 7, 0, 7 * 22, 0, 0]
    assert gates.parts[3].formula == "σ(Q Kᵀ / √7)"
    assert parts["copying"].parts[0].parameters == 22 + 26 + 1


def test_text_columns_are_aligned() -> None:
    lines = str(regard.describe("base", num_tokens=100)).splitlines()
    assert lines[0].startswith("Transformer, 100 source tokens, 100 target tokens: 44,240,996 parameters (B sentences,")
    shapes = [match.start() for line in lines[2:] if (match := re.search(r" \(B, [^)]*\)", line))]
    assert len(set(shapes)) == 1
    assert len({len(line) for line in lines[2:] if line[-1] != ")"}) == 1
    assert "      K = memory W_K + b" in str(regard.describe("base"))
    assert any(line.startswith("  6 × decoder layer") and line.endswith("6 × 4,204,032") for line in lines)


def test_matrices_that_are_shared_count_once() -> None:
    settings = TransformerSettings(tie="all")
    description = regard.describe(settings, num_tokens=50)
    encoder, decoder = stack(description, "encoder"), stack(description, "decoder")
    assert encoder[1].parameters == 50 * 128
    assert (decoder[1].name, decoder[1].parameters) == ("embedding (shared)", 0)


def test_every_family_and_preset_by_name() -> None:
    for name in (*FAMILIES, *presets()):
        description = regard.describe(name)
        assert description.parameters == sum(part.copies * part.parameters for part in description.parts)
        settings = presets().get(name) or FAMILIES[name].settings()
        assert str(description) == str(regard.describe(settings))


def test_sizes_of_sources_that_are_no_text() -> None:
    assert "3 numbers per position (picture)" in regard.describe(RnnSettings(frontend="picture")).title
    assert "7 numbers per position (frames)" in regard.describe(RnnSettings(frontend="frames"), num_tokens=(7, 9)).title


def test_other_models_and_layers() -> None:
    tagger = RnnTagger(RnnTaggerSettings(width=6, embedding=5), 11, 3)
    classifier = EncoderOnly(EncoderOnlySettings(width=8, heads=2, feed_forward=5, layers=3), 11, 3)
    layer = regard.TransformerDecoderLayer(8, 2, memory_width=6)
    both = Ensemble([make_model("rnn additive"), make_model("transformer alibi")])
    stacked = regard.TransformerEncoder(8, 2, 2)
    for model in (tagger, classifier, layer, both, stacked, nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))):
        check_sums(regard.describe(model), model)
    assert [part.name for part in regard.describe(both).parts] == ["member 0", "member 1"]
    assert regard.describe(classifier).parts[0].parts[-1].shape == "(B, S, 3)"
    assert regard.describe(layer).parts[0].name == "Norm"


class Mystery(nn.Module):
    """A block that no description knows."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(8))
        self.inner = nn.Linear(8, 8)


def test_blocks_that_nobody_knows_are_listed_by_their_class() -> None:
    layer = regard.TransformerEncoderLayer(8, 2)
    layer.attention = Mystery()  # type: ignore[assignment]
    description = regard.describe(layer)
    check_sums(description, layer)
    names = [part.name for part in description.parts]
    assert names == ["Norm", "Mystery", "Add", "Norm", "feed-forward", "Add"]
    mixed = regard.TransformerEncoderLayer(8, 2)
    mixed.attention = regard.Convolution(8, 8, reach=2)  # type: ignore[assignment]
    described = regard.describe(mixed).parts[1]
    assert (described.formula, described.parameters) == ("Σ_o W_o x_(i+o), o = −2 … 2", 8 * 8 * 5 + 8)
    bare = regard.TransformerEncoderLayer(8, 2)
    bare.around_attention.norm = nn.Identity()
    assert [part.name for part in regard.describe(bare).parts][:3] == ["self-attention", "Add", "Norm"]
    for order, names in {"pre": ["Norm", "self-attention", "Norm"], "post": ["self-attention", "Norm", "feed-forward"]}.items():
        plain = regard.TransformerEncoderLayer(8, 2, norm_order=order)  # type: ignore[arg-type]
        for around in (plain.around_attention, plain.around_feed_forward):
            around.adds = False  # type: ignore[assignment]
        assert [part.name for part in regard.describe(plain).parts][:3] == names


def test_layers_that_differ_are_not_joined() -> None:
    model = make_model("transformer scaled_dot")
    layers = stack(regard.describe(model), "encoder")[3:-1]
    assert [(part.name, part.copies) for part in layers] == [("encoder layer", 2)]
    model.encoder.layers[1].around_feed_forward.norm = make_norm("rms", 20)
    different = stack(regard.describe(model), "encoder")[3:-1]
    assert [(part.name, part.copies) for part in different] == [("encoder layer", 1), ("encoder layer", 1)]
    check_sums(regard.describe(model), model)


def test_mistakes_of_describe() -> None:
    with pytest.raises(UserError, match=r"no preset or family 'bse'.*did you mean \"base\".*regard.load opens a model folder"):
        regard.describe("bse")
    with pytest.raises(TypeError, match=r"describe expects a model, its settings, or the name .* but got a int"):
        regard.describe(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a model has its vocabularies already"):
        regard.describe(nn.Linear(1, 1), num_tokens=3)


# --- diagrams ----------------------------------------------------------------------------------------------------------------


def test_the_diagram_shows_parts_shapes_and_where_keys_come_from() -> None:
    pytest.importorskip("matplotlib")
    description = regard.describe("base", num_tokens=100)
    document = minidom.parseString(description._repr_svg_())
    texts = [node.firstChild.data.strip() for node in document.getElementsByTagName("text") if node.firstChild]
    ids = [node.getAttribute("id") for node in document.getElementsByTagName("g")]
    assert len([gid for gid in ids if gid.startswith("part ")]) == 3 + 4 + 3 + 6 + 2
    assert len([gid for gid in ids if gid.startswith("layer ")]) == 2
    assert "part decoder.layers.0.cross" in ids
    assert texts.count("6 ×") == 2
    assert texts.count("Add & Norm") == 5
    assert texts.count("K, V") == 1
    assert [texts.count(letter) for letter in "QKV"] == [3, 2, 2]
    assert texts.count("(B, S, 512)") == 2 + 3 + 1  # an arrow after each part
    assert texts.count("(B, T, 512)") == 2 + 6
    assert "8 heads   6 × 1,050,624" in texts
    assert "44,240,996 parameters" in " ".join(texts)


@pytest.mark.parametrize(
    "name",
    [
        "rnn basic, bahdanau, wider encoder",
        "rnn fixed at every step",
        "sound with text, luong",
        "rnn monotone, copies, features as a set",
    ],
)
def test_boxes_do_not_overlap(name: str) -> None:
    from regard.inspection.diagram import _stack, _stacks

    model = make_model(name) if name in MODELS else make_frontend_model(name)
    description = regard.describe(model)
    for part in _stacks(description.parts):
        boxes = _stack(part, 0.0).boxes
        for one, other in pairwise(boxes):
            assert one.top < other.label < other.bottom
            assert one.top < other.branch < other.bottom
    pytest.importorskip("matplotlib")
    assert "<svg" in description._repr_svg_()
