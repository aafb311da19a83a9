"""Conversions: tables that are total both ways, round trips, refusals with all reasons, proofs, names on Hugging Face."""

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import foreign
import numpy as np
import pytest
import torch
from foreign import saved

import regard
from regard.checkpoint.folder import Saved, save
from regard.contracts import Array, Specials
from regard.errors import UserError
from regard.interop import ctranslate2, fairseq, marian, proof
from regard.interop.convert import convert, open_model, write_model
from regard.interop.exports import obstacles
from regard.interop.formats import FORMATS
from regard.interop.names import Names, check_complete
from regard.interop.proof import Ours, Proof, prove
from regard.interop.vocabularies import read_merges, text_codec
from regard.models.build import build
from regard.models.rnn_seq2seq import RnnSettings
from regard.pipeline import Translator

EXPORTS = [name for name, one in FORMATS.items() if one.write]
SHAPES: list[dict[str, Any]] = [
    {"norm_order": "post", "tie": "all", "activation": "silu"},
    {"norm_order": "post", "tie": "output"},
    {"norm_order": "pre", "tie": "all", "activation": "gelu"},
]


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize(
    ("names", "tie"),
    [(marian.SHARED, "all"), (marian.SEPARATE, "output"), (ctranslate2.NAMES, "none"), (fairseq.NAMES, "output")],
)
@pytest.mark.parametrize("norm_order", ["pre", "post"])
def test_tables_forget_and_invent_no_weight(names: Names, tie: str, norm_order: str) -> None:
    weights = dict(saved(words=True, tie=tie, norm_order=norm_order).model.state_dict())
    bias = weights.pop("decoder.output.bias")
    if tie == "none":
        weights["decoder.output.bias"] = bias
    theirs = names.to_theirs(weights)
    back = names.to_ours(theirs)
    assert back.keys() == weights.keys()
    assert all(torch.equal(back[name], value) for name, value in weights.items())
    with pytest.raises(UserError, match=r"1 unknown weight: else\.where"):
        names.to_ours(theirs | {"else.where": torch.zeros(2)})
    with pytest.raises(UserError, match=r"1 weight: decoder\.layers\.0\.extra"):
        names.to_theirs(weights | {"decoder.layers.0.extra": torch.zeros(2)})


def test_copies_of_a_weight_agree_and_shapes_fit() -> None:
    names, weight = Names({"first": "one", "second": "one"}), torch.randn(2, 3)
    assert torch.equal(names.to_ours({"first.weight": weight, "second.weight": weight.clone()})["one.weight"], weight)
    with pytest.raises(UserError, match=r"second\.weight and first\.weight differ, expected two copies of one tensor"):
        names.to_ours({"first.weight": weight, "second.weight": weight + 1})
    check_complete({"a": (2, 3)}, {"a": weight})
    with pytest.raises(
        UserError, match=r"1 missing weight: b; 1 unknown weight: c; a has the shape \(2, 3\), expected \(3, 2\)$"
    ):
        check_complete({"a": (3, 2), "b": (1,)}, {"a": weight, "c": weight})


@pytest.mark.parametrize("name", EXPORTS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_ours_to_theirs_and_back_is_the_same_bit_by_bit(name: str, shape: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip(FORMATS[name].library)
    given, out = saved(**shape), tmp_path / "out"
    if FORMATS[name].refused(given):  # type: ignore[misc]
        pytest.skip("the format cannot represent it")
    out = out.with_suffix(".argosmodel") if name == "argos" else out
    shown = write_model(given, out, name)
    assert shown.peer.startswith(FORMATS[name].library)
    assert shown.same_outputs + shown.ties == proof.SENTENCES
    assert 0 < shown.max_difference < 1e-4
    if FORMATS[name].open is None:
        return
    back = open_model(out, name)
    assert (back.settings, back.alignment) == (given.settings, given.alignment)
    for key, value in given.model.state_dict().items():
        assert torch.equal(back.model.state_dict()[key], value), key
    assert back.target.to_json() == given.target.to_json()
    assert back.languages == given.languages or name != "argos"


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_without_our_record_the_numbers_are_still_the_same(shape: dict[str, Any], tmp_path: Path) -> None:
    """Another head comes first, but the model computes the same; the head that aligns is known."""
    pytest.importorskip("ctranslate2")
    given, out = saved(**shape), tmp_path / "out"
    write_model(given, out, "ctranslate2")
    (out / "regard.json").unlink()
    back = open_model(out, "ctranslate2")
    assert back.alignment == {"layer": 1, "head": 0, "shifted": False, "norms": False}
    assert back.settings.tie == given.settings.tie
    assert prove(given, Ours(back)).same_outputs == proof.SENTENCES
    ours, theirs = (Translator.of_saved(one).model for one in (given, back))
    name = "decoder.layers.1.cross.query.weight"
    assert not torch.equal(ours.state_dict()[name], theirs.state_dict()[name])


def test_a_recurrent_model_is_refused_with_all_reasons(tmp_path: Path) -> None:
    settings, codec = RnnSettings(width=12, embedding=5, attention="monotone", readout="plain"), foreign.listed()
    model = build(settings, 43, 43, specials=foreign.MARIAN)
    given = Saved(model, settings, codec, codec, {}, "")
    for name in EXPORTS:
        with pytest.raises(UserError) as caught:
            write_model(given, tmp_path / "out", name)
        for reason in ("family rnn", "recurrent", "monotone", "no heads"):
            assert reason in str(caught.value)
        assert not (tmp_path / "out").exists()


def test_all_obstacles_of_a_transformer_are_listed() -> None:
    reasons = obstacles(
        saved(score="cosine", norm="rms", window=5, kv_heads=1, activation="swiglu", positions="rotary", mixing="attention")
    )
    assert [reason.split(" ")[0] for reason in reasons] == ["score", "norm", "window", "3", "its", "its"]


@pytest.mark.parametrize("damage", ["numbers", "heads"])
def test_a_conversion_that_is_wrong_writes_nothing(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ctranslate2")
    given, honest = saved(), ctranslate2.NAMES.to_theirs

    def wrong(self: Names, ours: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        theirs = honest(ours)
        if damage == "numbers":
            theirs["decoder/layer_1/ffn/linear_0/bias"] = theirs["decoder/layer_1/ffn/linear_0/bias"] + 0.1
        else:
            name = "encoder/layer_0/self_attention/linear_0/weight"
            theirs[name] = theirs[name].roll(4, 0)
        return theirs

    monkeypatch.setattr(Names, "to_theirs", wrong)
    with pytest.raises(UserError, match=r"the conversion is wrong: source 1 of the probe set, position [12]: the log-prob"):
        write_model(given, tmp_path / "out", "ctranslate2")
    assert list(tmp_path.iterdir()) == []


def test_weights_that_changed_after_the_export_are_read_without_the_record(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    given, out = saved(), tmp_path / "out"
    write_model(given, out, "marian")
    content = (out / marian.WEIGHTS).read_bytes()
    (out / marian.WEIGHTS).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    back = open_model(out, "marian")
    assert not back.alignment
    assert back.target.to_json() == given.target.to_json()
    assert [Translator.of_saved(one).batch(foreign.TEXTS)[0].ids for one in (back, given)]


@pytest.mark.slow
def test_opening_does_not_import_the_compiler_of_torch(tmp_path: Path) -> None:
    """Random numbers on the meta device would; it takes longer than all the rest of opening."""
    pytest.importorskip("transformers")
    write_model(saved(), tmp_path / "out", "marian")
    program = """
import sys, pathlib
from regard.interop.marian import open_folder
open_folder(pathlib.Path(sys.argv[1])).model()
sys.exit("torch._dynamo" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", program, tmp_path / "out"], check=False).returncode == 0


def test_the_proof_runs_once_and_is_kept_by_the_contents(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ctranslate2")
    write_model(saved(), tmp_path / "out", "ctranslate2")
    first = regard.load(tmp_path / "out")
    (kept,) = (cache / "proofs").iterdir()
    assert json.loads(kept.read_bytes()) == first.training["converted"]["proof"]
    monkeypatch.setattr(ctranslate2, "CTranslate2Peer", None)  # a second proof would fail
    assert regard.load(tmp_path / "out")("a cat sat").ids == first("a cat sat").ids
    (tmp_path / "out" / "config.json").write_bytes((tmp_path / "out" / "config.json").read_bytes() + b" ")
    with pytest.raises(TypeError):
        regard.load(tmp_path / "out")


def test_a_proof_refuses_other_outputs_and_numbers_that_are_none() -> None:
    given = saved()

    class Other(Ours):
        """A peer that writes another first token for one source."""

        def greedy(self, sources: Sequence[Sequence[int]], most: int) -> list[list[int]]:
            first, *others = super().greedy(sources, most)
            return [[first[0] + 1 if first[0] + 1 < len(given.target) else first[0] - 1, *first[1:]], *others]

    class Broken(Ours):
        """A peer one of whose numbers is NaN."""

        def forced(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[Array]:
            arrays = [array.copy() for array in super().forced(sources, targets)]
            arrays[2][1] = np.nan
            return arrays

    assert prove(given, Ours(given)).ties == 0
    with pytest.raises(UserError, match="the greedy output of source 1 of the probe set differs at token 1"):
        prove(given, Other(given))
    with pytest.raises(UserError, match=r"the conversion is wrong: source 3 of the probe set, position 2: .* nan with"):
        prove(given, Broken(given))


def test_a_proof_of_another_version_does_not_count() -> None:
    made = Proof("peer", 1, 2, 0.0, 1)
    proof.keep("a" * 8, made)
    assert proof.kept("a" * 8) == made
    proof.keep("a" * 8, replace(made, regard="0.0.0"))
    assert proof.kept("a" * 8) is None


def test_vocabularies_without_pieces(tmp_path: Path) -> None:
    specials, names = Specials(pad=1, unk=3, start=2, eos=2, never=(1,)), ["a", "<pad>", "</s>", "<unk>"]
    assert text_codec(tmp_path, "target", [*names, "b"], specials).pieces("ab") == ("a", "b")
    assert text_codec(tmp_path, "target", [*names, "bc"], specials).pieces("a bc") == ("a", "bc")
    (tmp_path / "bpe.codes").write_text("#version: 0.2\na b\n\nab c</w>\n")
    assert read_merges(tmp_path / "bpe.codes") == [("a", "b"), ("ab", "c</w>")]
    (tmp_path / "bpe.codes").write_text("#version: 0.2\na b\na b c\n")
    with pytest.raises(UserError, match=r"bpe\.codes, line 3: expected two symbols"):
        read_merges(tmp_path / "bpe.codes")


def test_a_converted_model_becomes_a_folder_of_ours(tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    write_model(saved(), tmp_path / "theirs", "ctranslate2")
    shown = convert(tmp_path / "theirs", tmp_path / "ours")
    assert str(shown) in (tmp_path / "ours" / "card.md").read_text()
    one, other = regard.load(tmp_path / "theirs"), regard.load(tmp_path / "ours")
    texts = foreign.TEXTS
    assert [result.ids for result in one.batch(texts)] == [result.ids for result in other.batch(texts)]
    assert other.alignment_head == one.alignment_head
    assert other.alignment_head.head == 2


@pytest.mark.parametrize(
    ("out", "to", "message"),
    [
        ("out", None, "does not say which format to write; add --to marian"),
        ("out", "marin", "there is no format 'marin' to write; .*did you mean \"marian\""),
    ],
)
def test_the_format_to_write_must_be_known(out: str, to: str | None, message: str, tmp_path: Path) -> None:
    save(saved(), tmp_path / "ours")
    with pytest.raises(UserError, match=message):
        convert(tmp_path / "ours", tmp_path / out, to)


def test_a_name_on_hugging_face_is_found_in_the_cache_or_said_to_be_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(UserError, match="download it with: hf download Some-One/opus-mt-a-b"):
        regard.load("Some-One/opus-mt-a-b")
    pytest.importorskip("transformers")
    folder = tmp_path / "hub" / "models--Some-One--opus-mt-a-b"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("0123\n")
    given = saved()
    write_model(given, folder / "snapshots" / "0123", "marian")
    found = regard.load("Some-One/opus-mt-a-b")
    assert found("a cat sat").ids == Translator.of_saved(given)("a cat sat").ids
