import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from test_folder import make_saved
from test_inspection import make_translator
from typer.testing import CliRunner

import regard
from regard.checkpoint import alignment, folder
from regard.checkpoint.alignment import read_alignment_head, write_alignment_head
from regard.cli.main import app
from regard.contracts import AlignmentHead
from regard.data.tokenizers.codec import Codec
from regard.errors import UserError
from regard.inspection import capture
from regard.inspection.align import (
    alignment_error_rate,
    alignment_heads,
    best_agreement,
    best_alignment_head,
    cut_differently,
    inspect_pairs,
    links,
    parse_pharaoh,
    pharaoh,
    turned,
    weights_TS,
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


def test_every_head_is_read_shifted_and_unshifted(monkeypatch: pytest.MonkeyPatch) -> None:
    (seen,) = inspect_pairs(make_translator("transformer scaled_dot"), PAIRS[:1])
    # 2 layers, 2 heads, 4 steps, 6 positions
    cross = [layer.numbers["weights"] for layer in seen.layers if layer.kind == "cross"]
    assert cross[0].shape == (2, 4, 6)
    assert len(alignment_heads(seen)) == len(set(alignment_heads(seen))) == 2 * (1 + 2 * 3)
    torch.testing.assert_close(weights_TS(AlignmentHead(1, 0, shifted=False), seen), cross[1][0, :3, :5])
    torch.testing.assert_close(weights_TS(AlignmentHead(1, 0, shifted=True), seen), cross[1][0, 1:, :5])
    torch.testing.assert_close(weights_TS(AlignmentHead(0), seen), cross[0].mean(0)[:3, :5])
    torch.testing.assert_close(weights_TS(AlignmentHead(None), seen), torch.cat(cross).mean(0)[:3, :5])
    best = cross[1][1, 1:, :5].argmax(-1).tolist()
    assert links(AlignmentHead(-1, 1, shifted=True), seen) == {(best[target], target) for target in range(3)}
    monkeypatch.setattr(capture, "LONGEST", 4)
    with pytest.raises(UserError, match="texts of more than 1024 tokens are only summarised, so they cannot be aligned; split"):
        links(AlignmentHead(), inspect_pairs(make_translator("transformer scaled_dot"), PAIRS[:1])[0])
    with pytest.raises(UserError, match="this model has no attention to its source, so there is nothing to align"):
        links(AlignmentHead(), inspect_pairs(make_translator("decoder only"), PAIRS[:1])[0])


def test_a_text_that_is_too_long_is_refused_before_it_is_read() -> None:
    translator = replace(make_translator("transformer scaled_dot"), max_source=4)
    assert len(inspect_pairs(translator, [PAIRS[1]])) == 1
    for pair in (PAIRS[0], ("a", "X Y X Y X")):
        with pytest.raises(UserError, match="pair 2: a text of 5 tokens is longer than the limit of 4; split"):
            inspect_pairs(translator, [PAIRS[1], pair])


def test_the_head_that_matches_the_gold_alignments_is_found() -> None:
    seen = inspect_pairs(make_translator("transformer rotary, general"), PAIRS)
    for head in (AlignmentHead(0, 3, shifted=True), AlignmentHead(1, 1, shifted=False)):
        gold = [links(head, pair) for pair in seen]
        found, error = best_alignment_head(seen, gold)
        assert error == 0.0
        assert [links(found, pair) for pair in seen] == gold


def test_the_two_heads_that_agree_best_are_found() -> None:
    """Compared with a loop over all pairs of heads that uses sets."""
    forward = inspect_pairs(make_translator("transformer scaled_dot"), PAIRS)
    torch.manual_seed(9)
    saved = make_saved(TransformerSettings(width=8, heads=2))
    reverse = regard.Translator.of_model(saved.model, saved.target, saved.source)  # from target to source
    backward = inspect_pairs(reverse, [(target, source) for source, target in PAIRS])
    forward_head, backward_head, error = best_agreement(forward, backward)

    def disagreement(a: AlignmentHead, b: AlignmentHead) -> float:
        same = total = 0
        for ahead, back in zip(forward, backward, strict=True):
            mine = links(a, ahead)
            theirs = {(source, target) for target, source in links(b, back)}
            same, total = same + 2 * len(mine & theirs), total + len(mine) + len(theirs)
        return 1 - same / total

    everything = [disagreement(a, b) for a in alignment_heads(forward[0]) for b in alignment_heads(backward[0])]
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
    seen = capture.inspect(translator, "abba", output=list(result.ids))
    assert set(result.alignment()) == links(AlignmentHead(0, 1, shifted=True), seen)
    by_default = replace(translator, alignment_head=AlignmentHead())("abba", max_length=5)
    assert set(by_default.alignment()) == links(AlignmentHead(), seen) != set(result.alignment())
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
    seen = inspect_pairs(make_translator("transformer scaled_dot"), PAIRS)
    gold = [links(AlignmentHead(), pair) for pair in seen]
    for pairs, alignments, expected in (
        ([], [], "there are no pairs, so no head can be chosen"),
        (seen, gold[:-1], "there are 4 pairs but 3 lines of alignments; expected one line per pair"),
        (
            seen,
            [*gold[:-1], frozenset({(0, 0), (6, 1)})],
            "alignment 4 holds 6-1, but this pair has 6 source tokens and 5 target",
        ),
        (
            seen,
            [frozenset({(0, 3)}), *gold[1:]],
            "alignment 1 holds 0-3, but this pair has 5 source tokens and 3 target tokens",
        ),
    ):
        with pytest.raises(UserError, match=expected):
            best_alignment_head(pairs, alignments)
    with pytest.raises(UserError, match="this model has no attention to its source, so there is nothing to align"):
        best_alignment_head(inspect_pairs(make_translator("decoder only"), PAIRS), gold)
    with pytest.raises(UserError, match="there are no pairs"):
        best_agreement([], [])
    with pytest.raises(
        UserError, match="the two models split 'abcab' into 5 and 3 tokens, and its translation into 3 and 5, so"
    ):
        best_agreement(seen, seen)


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.save(make_saved(TransformerSettings(width=8, heads=2)), tmp_path / "model")

    def full(path: Path, content: bytes) -> None:
        raise OSError(30, "Read-only file system", str(path.with_name(".config.json-new-1234")))

    monkeypatch.setattr(alignment, "replace_file", full)
    with pytest.raises(
        UserError, match=r"model/config\.json cannot be written: Read-only file system; copy the model to a fol"
    ):
        write_alignment_head(tmp_path / "model", AlignmentHead())
