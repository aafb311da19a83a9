import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from weakref import WeakSet, ref

import numpy as np
import pytest
import torch
from test_folder import make_saved
from test_inspection import make_translator
from test_pipeline import limited, make_listener
from typer.testing import CliRunner

import regard
from regard.checkpoint import alignment, folder
from regard.checkpoint.alignment import read_alignment_head, write_alignment_head
from regard.cli.main import app
from regard.contracts import AlignmentHead, Array, Forced
from regard.data.tokenizers.codec import Codec
from regard.decoding.torch_engine import TorchEngine
from regard.errors import UserError
from regard.inspection import align, capture
from regard.inspection.align import (
    align_pairs,
    alignment_error_rate,
    alignment_heads,
    best_agreement,
    best_alignment_head,
    cut_differently,
    parse_pharaoh,
    pharaoh,
    turned,
)
from regard.models.build import build
from regard.models.transformer import TransformerSettings

PAIRS = [("abcab", "X Y Z"), ("ba", "Y Y X Z"), ("cabb", "Z X"), ("abcacb", "X X Y Z Y")]


def test_error_rate_by_hand() -> None:
    sure, possible = frozenset({(0, 0), (1, 2)}), frozenset({(0, 0), (1, 2), (1, 1)})
    found = frozenset({(0, 0), (1, 1), (2, 2)})
    assert alignment_error_rate([found], [sure], [possible]) == pytest.approx(1 - (1 + 2) / (3 + 2))
    assert alignment_error_rate([sure], [sure], [possible]) == 0.0
    assert alignment_error_rate([found, sure], [sure, sure]) == pytest.approx(1 - (1 + 1 + 2 + 2) / (3 + 2 + 2 + 2))
    assert alignment_error_rate([frozenset()], [frozenset()]) == 0.0


def test_pharaoh() -> None:
    links = frozenset({(10, 0), (0, 3), (0, 2)})
    assert pharaoh(links) == "0-2 0-3 10-0"
    assert parse_pharaoh(pharaoh(links)) == (links, links)
    assert parse_pharaoh("0-0 1p2 3?4") == (frozenset({(0, 0)}), frozenset({(0, 0), (1, 2), (3, 4)}))
    assert turned(links) == frozenset({(0, 10), (3, 0), (2, 0)})
    for wrong in ("0-", "a-1", "12"):
        with pytest.raises(UserError, match=rf"'{wrong}' is not a link; expected source-target such as 3-4"):
            parse_pharaoh(f"0-0 {wrong}")


def cross_attention(translator: regard.Translator, source: str, target: str) -> list[Array]:
    """The weights of every layer, with the target as the output of the model."""
    seen = capture.inspect(translator, source, output=translator.target.encode(target))
    return [layer.numbers["weights"].numpy() for layer in seen.layers if layer.kind == "cross"]


def test_every_head_is_read_shifted_and_unshifted() -> None:
    translator = make_translator("transformer scaled_dot")
    cross = cross_attention(translator, *PAIRS[0])
    # 2 layers, 2 heads, 4 steps, 6 positions
    assert cross[0].shape == (2, 4, 6)
    candidates = alignment_heads(translator)
    assert len(candidates) == len(set(candidates)) == 2 * (1 + 2 * 3)
    for head, expected in (
        (AlignmentHead(1, 0, shifted=False), cross[1][0, :3, :5]),
        (AlignmentHead(1, 0, shifted=True), cross[1][0, 1:, :5]),
        (AlignmentHead(0), cross[0].mean(0)[:3, :5]),
        (AlignmentHead(None), np.concatenate(cross).mean(0)[:3, :5]),
    ):
        np.testing.assert_allclose(head.weights_TS(cross, 3, 5), expected, rtol=1e-6)
    (pair,) = align_pairs(translator, PAIRS[:1])
    assert (pair.text, pair.num_sources, pair.num_targets) == ("abcab", 5, 3)
    assert list(pair.best) == candidates
    for head in candidates:
        best = head.weights_TS(cross, 3, 5).argmax(-1).tolist()
        assert pair.links(head) == {(best[target], target) for target in range(3)}
    (one,) = align_pairs(translator, PAIRS[:1], [AlignmentHead(-1, 1, shifted=True)])  # captures the last layer only
    assert list(one.best.values()) == [pair.best[AlignmentHead(1, 1, shifted=True)]]


@pytest.mark.parametrize("name", ["transformer scaled_dot", "rnn additive"])
def test_batches_of_pairs_have_the_links_of_single_pairs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    translator = make_translator(name)
    pairs = [*PAIRS, ("c", "Z"), ("abcabcabcabc", "X Y"), ("b", "X Y Z X Y Z X Y")]
    alone = [align_pairs(translator, [pair])[0] for pair in pairs]
    assert align_pairs(translator, pairs) == alone
    monkeypatch.setattr(align, "PAIRS_AT_A_TIME", 3)
    assert align_pairs(translator, iter(pairs)) == alone
    assert align_pairs(translator, []) == []


def test_only_links_are_kept_of_many_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    """`align` once kept T × V log-probabilities and all weights of every pair: 5 GB for 10,000 pairs."""
    monkeypatch.setattr(align, "PAIRS_AT_A_TIME", 8)
    alive: WeakSet[Forced] = WeakSet()
    weights: list[ref[Array]] = []
    most = 0
    force = TorchEngine.force

    def watched_force(*given: Any, **options: Any) -> Iterator[Forced]:
        nonlocal most
        for forced in force(*given, **options):
            assert forced.log_probs_TV is None
            alive.add(forced)
            weights.extend(ref(layer.weights_BHTS) for layer in forced.seen)
            most = max(most, len(alive), sum(array() is not None for array in weights))
            yield forced

    monkeypatch.setattr(TorchEngine, "force", watched_force)
    aligned = align_pairs(make_translator("transformer scaled_dot"), PAIRS * 25)
    assert len(aligned) == len(weights) // 2 == 100  # two layers
    assert 8 <= most <= 3 * 8  # those of one chunk, and of the chunk before while it is replaced
    assert not [array for array in weights if array() is not None]


def test_pairs_that_cannot_be_aligned_are_refused(tmp_path: Path) -> None:
    translator = limited(make_translator("transformer scaled_dot"), 4)
    assert len(align_pairs(translator, [PAIRS[1]])) == 1
    for pair, sizes in ((PAIRS[0], "5 source and 3 target"), (("a", "X Y X Y X"), "1 source and 5 target")):
        with pytest.raises(UserError, match=f"pair 2: it has {sizes} tokens, the maximum is 4 each; shorten it"):
            align_pairs(translator, [PAIRS[1], pair])
    for model in ("decoder only", "rnn language model"):
        with pytest.raises(UserError, match="this model has no attention to its source, so there is nothing to align"):
            align_pairs(make_translator(model), PAIRS[:1])
    with pytest.raises(UserError, match="align links tokens, but this model reads sounds; use regard inspect instead"):
        align_pairs(make_listener(tmp_path), [("0-1.wav", "a b")])
    broken = make_translator("transformer scaled_dot")
    with torch.no_grad():
        next(iter(broken.model.parameters())).fill_(torch.nan)  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="pair 1: this model computed a log-probability of nan; its weights are damaged"):
        align_pairs(broken, PAIRS[:1])
    with pytest.raises(UserError, match="pair 1: the source is empty, so there is nothing to align"):
        align_pairs(translator, [("", "X")])


def test_the_head_that_matches_the_gold_alignments_is_found() -> None:
    aligned = align_pairs(make_translator("transformer rotary, general"), PAIRS)
    for head in (AlignmentHead(0, 3, shifted=True), AlignmentHead(1, 1, shifted=False)):
        gold = [pair.links(head) for pair in aligned]
        found, error = best_alignment_head(aligned, gold)
        assert error == 0.0
        assert [pair.links(found) for pair in aligned] == gold


def test_the_two_heads_that_agree_best_are_found() -> None:
    """Compared with a loop over all pairs of heads that uses sets."""
    translator = make_translator("transformer scaled_dot")
    forward = align_pairs(translator, PAIRS)
    torch.manual_seed(9)
    saved = make_saved(TransformerSettings(width=8, heads=2))
    reverse = regard.Translator.of_model(saved.model, saved.target, saved.source)  # from target to source
    backward = align_pairs(reverse, [(target, source) for source, target in PAIRS])
    forward_head, backward_head, error = best_agreement(forward, backward)

    def disagreement(a: AlignmentHead, b: AlignmentHead) -> float:
        same = total = 0
        for ahead, back in zip(forward, backward, strict=True):
            mine = ahead.links(a)
            theirs = {(source, target) for target, source in back.links(b)}
            same, total = same + 2 * len(mine & theirs), total + len(mine) + len(theirs)
        return 1 - same / total

    everything = [disagreement(a, b) for a in alignment_heads(translator) for b in alignment_heads(reverse)]
    assert error == pytest.approx(min(everything)) == pytest.approx(disagreement(forward_head, backward_head))
    assert min(everything) < max(everything)


def test_the_alignment_head_is_saved_in_the_model_folder(tmp_path: Path) -> None:
    saved = make_saved(TransformerSettings(width=8, heads=2))
    folder.save(saved, tmp_path / "model")
    assert read_alignment_head(tmp_path / "model") == AlignmentHead(-1, None, shifted=False)
    write_alignment_head(tmp_path / "model", AlignmentHead(0, 1, shifted=True), error_rate=0.25)
    assert read_alignment_head(tmp_path / "model") == AlignmentHead(0, 1, shifted=True)
    assert json.loads((tmp_path / "model" / "config.json").read_text())["alignment"]["error_rate"] == 0.25
    translator = regard.load(tmp_path / "model")  # the folder can still be loaded
    result = translator("abba", max_length=5)
    heads = AlignmentHead(0, 1, shifted=True), AlignmentHead()
    (pair,) = align_pairs(translator, [("abba", result.text)], heads)
    assert set(result.alignment()) == pair.links(heads[0])
    by_default = replace(translator, alignment_head=AlignmentHead())("abba", max_length=5)
    assert set(by_default.alignment()) == pair.links(heads[1]) != set(result.alignment())
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == sorted(folder.FILES - {folder.FILE_SOURCE})
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps({**config, "alignment": {"layer": 1}}))
    with pytest.raises(UserError, match=r"config.json: alignment lacks head, shifted; choose the head again with"):
        read_alignment_head(tmp_path / "model")


def make_with_unit(unit: str, texts: list[str]) -> regard.Translator:
    """An untrained model whose source unit is `unit`; its target unit is symbols."""
    torch.manual_seed(5)
    settings = TransformerSettings(width=8, heads=2)
    source, target = Codec.train(texts, unit, 270), Codec.train(["X Y Z"], "symbols")  # type: ignore[arg-type]
    return regard.Translator.of_model(build(settings, len(source), len(target)).eval(), source, target)


@pytest.mark.parametrize(
    ("unit", "text", "expected"),
    [
        ("symbols", "the cat sat", ""),
        ("symbols", "cat\tV;PST", ""),  # a feature is a symbol
        ("words", "the cat sat", ""),
        ("words", "the cat.", "'the cat.' has 2 words but 3 tokens (the cat .)"),
        ("characters", "cat", ""),  # a single word: its letters can be counted
        ("characters", "a cat", "'a cat' has 2 words but 5 tokens (a ␣ c a t)"),
        ("bpe", "concatenate", "'concatenate' has 1 word but 8 tokens (c o n cat e n at e)"),
        ("unigram", "concatenate", "'concatenate' has 1 word but"),
    ],
)
def test_texts_whose_tokens_are_not_words_are_reported(unit: str, text: str, expected: str) -> None:
    translator = make_with_unit(unit, ["the cat sat", "a cat.", "cat\tV\tPST"])
    found = cut_differently(translator, [(text, "X Y"), (text, "X")])
    assert found.startswith(expected)
    assert bool(found) == bool(expected)


def test_gold_is_refused_where_tokens_are_not_words(tmp_path: Path) -> None:
    translator = make_with_unit("bpe", ["the cat sat"])
    saved = folder.Saved(translator.model, TransformerSettings(width=8, heads=2), translator.source, translator.target, {}, "")
    folder.save(saved, tmp_path / "model")
    before = (tmp_path / "model" / "config.json").read_bytes()
    (tmp_path / "pairs.tsv").write_text("a dog\tX Y\n")
    (tmp_path / "gold").write_text("0-0 1-1\n")
    command = ["align", str(tmp_path / "model"), str(tmp_path / "pairs.tsv")]
    refused = CliRunner().invoke(app, [*command, "--gold", str(tmp_path / "gold")])
    assert str(refused.exception).startswith(
        "--gold counts words, but the tokens of this model are not words: 'a dog' has 2 words but 5 tokens (a ␣ d o g); use"
    )
    assert (tmp_path / "model" / "config.json").read_bytes() == before
    result = CliRunner().invoke(app, command)
    assert (result.exit_code, len(result.stdout.split())) == (0, 2)
    assert result.stderr == "regard: the numbers count tokens, not words: 'a dog' has 2 words but 5 tokens (a ␣ d o g)\n"


def test_alignments_that_do_not_fit_the_pairs_are_refused() -> None:
    aligned = align_pairs(make_translator("transformer scaled_dot"), PAIRS)
    gold = [pair.links(AlignmentHead(1)) for pair in aligned]
    for pairs, alignments, expected in (
        ([], [], "there are no pairs, so no head can be chosen"),
        (aligned, gold[:-1], "there are 4 pairs but 3 lines of alignments; expected one line per pair"),
        (
            aligned,
            [*gold[:-1], frozenset({(0, 0), (6, 1)})],
            "alignment 4 holds 6-1, but this pair has 6 source tokens and 5 target",
        ),
        (
            aligned,
            [frozenset({(0, 3)}), *gold[1:]],
            "alignment 1 holds 0-3, but this pair has 5 source tokens and 3 target tokens",
        ),
    ):
        with pytest.raises(UserError, match=expected):
            best_alignment_head(pairs, alignments)
    with pytest.raises(UserError, match="there are no pairs"):
        best_agreement([], [])
    with pytest.raises(
        UserError, match="the two models split 'abcab' into 5 and 3 tokens, and its translation into 3 and 5, so"
    ):
        best_agreement(aligned, aligned)


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.save(make_saved(TransformerSettings(width=8, heads=2)), tmp_path / "model")

    def full(path: Path, content: bytes) -> None:
        raise OSError(30, "Read-only file system", str(path.with_name(".config.json-new-1234")))

    monkeypatch.setattr(alignment, "replace_file", full)
    with pytest.raises(
        UserError, match=r"model/config\.json cannot be written: Read-only file system; copy the model to a fol"
    ):
        write_alignment_head(tmp_path / "model", AlignmentHead())
