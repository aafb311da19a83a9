import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, get_args
from weakref import WeakSet, ref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_folder import make_saved
from test_inspection import make_translator
from test_pipeline import limited, make_listener
from typer.testing import CliRunner

import regard
from regard.checkpoint import alignment, folder
from regard.checkpoint.alignment import read_alignment_head, write_alignment_head
from regard.cli.main import app
from regard.contracts import AlignmentHead, Array, Forced
from regard.data.tokenizers.codec import Codec, TokenUnit
from regard.decoding.torch_engine import TorchEngine
from regard.errors import UserError
from regard.inspection import align, capture
from regard.inspection.align import align_pairs, alignment_heads, best_agreement, best_alignment_head
from regard.links import Units, links_of, pharaoh, strongest, symmetrised, turned
from regard.look import What
from regard.models.build import build
from regard.models.transformer import TransformerSettings

SMALL = TransformerSettings(width=8, heads=2)
WHATS: tuple[What, ...] = ("weights", "norms")
PAIRS = [("abcab", "X Y Z"), ("ba", "Y Y X Z"), ("cabb", "Z X"), ("abcacb", "X X Y Z Y")]


def cross_attention(translator: regard.Translator, source: str, target: str, what: What = "weights") -> list[Array]:
    """The weights, or the norms, of every layer, with the target as the output of the model."""
    seen = capture.inspect(translator, source, output=translator.target.encode(target), what=(what,))
    return [layer.numbers[what].numpy() for layer in seen.layers if layer.kind == "cross"]


def test_every_head_is_read_shifted_and_unshifted_by_weights_and_by_norms() -> None:
    translator = make_translator("transformer scaled_dot")
    cross = cross_attention(translator, *PAIRS[0])
    norms = cross_attention(translator, *PAIRS[0], "norms")
    # 2 layers, 2 heads, 4 steps, 6 positions
    assert cross[0].shape == norms[0].shape == (2, 4, 6)
    candidates = alignment_heads(translator)
    assert len(candidates) == len(set(candidates)) == 2 * 2 * (1 + 2 * 3)
    for head, expected in (
        (AlignmentHead(1, 0, shifted=False), cross[1][0, :3, :5]),
        (AlignmentHead(1, 0, shifted=True), cross[1][0, 1:, :5]),
        (AlignmentHead(0), cross[0].mean(0)[:3, :5]),
        (AlignmentHead(None), np.concatenate(cross).mean(0)[:3, :5]),
    ):
        np.testing.assert_allclose(head.weights_TS(cross, 3, 5), expected, rtol=1e-6)
    (pair,) = align_pairs(translator, PAIRS[:1])
    assert (pair.text, pair.num_sources, pair.num_targets) == ("abcab", 5, 3)
    assert list(pair.heads) == candidates
    for head in candidates:
        best = head.weights_TS(norms if head.norms else cross, 3, 5).argmax(-1).tolist()
        assert pair.links(head) == {(best[target], target) for target in range(3)}
    assert any(pair.links(head) != pair.links(replace(head, norms=True)) for head in candidates)
    for head in (AlignmentHead(1, 1, shifted=True), AlignmentHead(1, 1, norms=True)):
        (one,) = align_pairs(translator, PAIRS[:1], [replace(head, layer=-1)])  # captures the last layer only
        assert one.links(replace(head, layer=-1)) == pair.links(head)


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
    assert len(aligned) == len(weights) // 4 == 100  # two layers, weights and norms
    assert 8 <= most <= 5 * 8  # those of one chunk, and of the chunk before while it is replaced
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
    with pytest.raises(UserError, match="align links words, but this model reads sounds; use regard inspect instead"):
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
    saved = make_saved(SMALL)
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
    saved = make_saved(SMALL)
    folder.save(saved, tmp_path / "model")
    assert read_alignment_head(tmp_path / "model") == AlignmentHead(-1, None, shifted=False)
    write_alignment_head(tmp_path / "model", AlignmentHead(0, 1, shifted=True), error_rate=0.25)
    assert read_alignment_head(tmp_path / "model") == AlignmentHead(0, 1, shifted=True)
    assert json.loads((tmp_path / "model" / "config.json").read_text())["alignment"]["error_rate"] == 0.25
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    del config["alignment"]["norms"]  # as older versions wrote it
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    assert read_alignment_head(tmp_path / "model") == AlignmentHead(0, 1, shifted=True)
    write_alignment_head(tmp_path / "model", AlignmentHead(0, 1, shifted=True, norms=True))
    translator = regard.load(tmp_path / "model")  # the folder can still be loaded
    assert translator.alignment_head.norms
    result = translator("abba", max_length=5)
    heads = AlignmentHead(0, 1, shifted=True, norms=True), AlignmentHead()
    (pair,) = align_pairs(translator, [("abba", result.text)], heads)
    assert set(result.alignment()) == pair.links(heads[0])
    by_default = replace(translator, alignment_head=AlignmentHead())("abba", max_length=5)
    assert set(by_default.alignment()) == pair.links(heads[1]) != set(result.alignment())
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == sorted(
        folder.FILES - {folder.FILE_SOURCE, folder.CURVES, "source.spm", "target.spm"}
    )
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps({**config, "alignment": {"layer": 1}}))
    with pytest.raises(UserError, match=r"config.json: alignment lacks head, shifted; choose the head again with"):
        read_alignment_head(tmp_path / "model")


def make_with_units(source_unit: TokenUnit, target_unit: TokenUnit, texts: list[str]) -> regard.Translator:
    """An untrained model with these units, trained on texts of both sides."""
    torch.manual_seed(5)
    source, target = Codec.train(texts, source_unit, 290), Codec.train(texts, target_unit, 290)
    return regard.Translator.of_model(build(SMALL, len(source), len(target)).eval(), source, target)


@pytest.mark.parametrize("unit", ["bpe", "unigram", "words", "symbols", "characters"])
def test_the_weights_of_the_pieces_of_a_word_are_added_up(unit: TokenUnit) -> None:
    """Compared with loops over tokens and words, for every head; words are those of `str.split`."""
    texts = ["the cat sat, on  the mat.", "café é", "a cat"]
    translator = make_with_units(unit, unit, texts)
    source, target = texts[0], "the café sat. on"
    (pair,) = align_pairs(translator, [(source, target)], pieces=False)
    words, target_words = source.split(), target.split()
    assert (pair.num_sources, pair.num_targets) == (len(words), len(target_words))
    homes = [owners(text, translator.target.pieces(text)) for text in (source, target)]
    assert sum(home is not None for home in homes[0]) >= len(words)
    layers = {what: cross_attention(translator, source, target, what) for what in WHATS}
    for head in pair.heads:
        weights_TS = head.weights_TS(layers["norms" if head.norms else "weights"], len(homes[1]), len(homes[0]))
        expected = set()
        for word in range(len(target_words)):
            totals = [0.0] * len(words)
            for token, home in enumerate(homes[1]):
                for position, source_home in enumerate(homes[0]):
                    if home == word and source_home is not None:
                        totals[source_home] += float(weights_TS[token, position])
            expected.add((int(np.argmax(totals)), word))
        assert pair.links(head) == expected
    by_default, tokens = (align_pairs(translator, [(source, target)], pieces=pieces)[0] for pieces in (None, True))
    assert by_default == (tokens if unit == "characters" else pair)
    assert tokens.num_sources == len(homes[0])


def owners(text: str, tokens: tuple[str, ...]) -> list[int | None]:
    """The word of each token, found character by character."""
    word_of_character, word = [], -1
    for before, character in zip(" " + text, text, strict=False):
        word += before.isspace() and not character.isspace()
        word_of_character.append(None if character.isspace() else word)
    found: list[int | None] = []
    position = 0
    for token in tokens:
        while token and text[position : position + len(token)] != token:
            position += 1  # white space between words and symbols
        inside = [word_of_character[position + offset] for offset in range(len(token))]
        found.append(next((word for word in inside if word is not None), None) if token else found[-1])
        position += len(token)
    return found


@settings(max_examples=150)
@given(text=st.text(st.sampled_from("ab é€.,\u3000\x1c\t😀\n"), max_size=12), unit=st.sampled_from(get_args(TokenUnit)))
def test_every_token_belongs_to_its_word(text: str, unit: TokenUnit) -> None:
    codec = codecs()[unit]
    ids, tokens = codec.encode(text), codec.pieces(text)
    words = text.split()
    units = codec.units(text, tokens, pieces=False)
    assert units.number == len(words)
    assert units.of_tokens == tuple(owners(text, tokens))
    for token, word in zip(tokens, units.of_tokens, strict=True):
        assert (word is None) == (not token.strip()) or not token
        assert word is None or not token or token.split()[0] in words[word]
    assert codec.units(text, tokens, pieces=True).of_tokens == tuple(range(len(ids)))
    written = codec.decode(ids)  # an output: its tokens occur in its text, whatever the white space between them
    assert codec.units(written, codec.tokens(ids), pieces=False).number == len(written.split())


@cache
def codecs() -> dict[TokenUnit, Codec]:
    texts = ["ab é€. a,b", "abab é, 😀 a."]
    return {unit: Codec.train(texts, unit, 270) for unit in get_args(TokenUnit)}


@settings(max_examples=100)
@given(ids=st.lists(st.integers(4, 259), max_size=8))
def test_outputs_that_are_not_utf8_have_words(ids: list[int]) -> None:
    """Any bytes: a model may write the first byte of a character without the others."""
    codec = codecs()["bpe"]
    text = codec.decode(ids)
    units = codec.units(text, codec.tokens(ids))
    assert units.number == len(text.split())
    assert {unit for unit in units.of_tokens if unit is not None} == set(range(units.number))


@pytest.mark.parametrize("unit", get_args(TokenUnit))
def test_features_follow_the_words_of_their_text(unit: TokenUnit) -> None:
    reader = make_with_units(unit, "symbols", ["walk on\tV\tPST", "talk\tN"]).reader
    source = ("walk on", "V;PST")
    units = reader.units(source, reader.pieces(source), pieces=False)
    assert units is not None
    assert (units.number, units.of_tokens[0], *units.of_tokens[-2:]) == (4, 0, 2, 3)


def test_split_texts_count_words_through_all_parts() -> None:
    texts = ["ab cd. Ef gh! ij", "你好。再见。"]
    translator = limited(make_with_units("bpe", "symbols", ["ab X", "Y Z"]), 9)
    whole = translator(texts[0], max_length=4)
    assert len(whole.parts) == 2
    first, second = whole.parts
    words, targets = len(first.source.split()), len(first.text.split())
    assert whole.alignment() == (*first.alignment(), *((i + words, j + targets) for i, j in second.alignment()))
    tokens = len(first.source_tokens), len(first.tokens)
    assert whole.alignment(pieces=True) == (
        *first.alignment(pieces=True),
        *((i + tokens[0], j + tokens[1]) for i, j in second.alignment(pieces=True)),
    )
    chinese = translator(texts[1], max_length=4)
    assert len(chinese.parts) == 2  # of one word: there is no white space between them
    assert {i for i, _ in chinese.alignment()} == {0}


def test_a_token_without_weights_has_no_link() -> None:
    source, target = Units.tokens(2), Units.words("x y", ("x", " y"))
    weights_TS = np.array([[0.0, 0.0], [0.2, 0.7]])
    assert links_of(strongest(weights_TS, source, target)) == {(1, 1)}
    assert links_of(strongest(weights_TS[:1], source, Units.words("xy", ("xy",)))) == frozenset()
    negative = Units(3, (1, 2))  # unnormalised weights may be negative, and one of three words may have no tokens here
    assert links_of(strongest(-weights_TS[1:], negative, Units.tokens(1))) == {(1, 0)}


def test_gold_counts_words_whatever_the_unit(tmp_path: Path) -> None:
    translator = make_with_units("bpe", "bpe", ["the cat sat", "X Y"])
    saved = folder.Saved(translator.model, SMALL, translator.source, translator.target, {}, "")
    folder.save(saved, tmp_path / "model")
    texts = [("concatenate the dog", "Y X Z"), ("a cat", "XY Z")]
    aligned = align_pairs(translator, texts)
    chosen = AlignmentHead(0, 1, shifted=True, norms=True)
    (tmp_path / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in texts))
    gold = [pharaoh(pair.links(chosen)) for pair in aligned]
    (tmp_path / "gold").write_text("\n".join(gold) + "\n")
    command = ["align", str(tmp_path / "model"), str(tmp_path / "pairs.tsv")]
    done = CliRunner().invoke(app, [*command, "--gold", str(tmp_path / "gold")])
    assert done.stdout.splitlines() == gold, done.stderr
    assert "alignment error rate 0.000" in done.stderr
    from_one = [" ".join(f"{i + 1}-{j + 1}" for i, j in sorted(pair.links(chosen))) for pair in aligned]
    (tmp_path / "gold").write_text("\n".join(from_one) + "\n")
    again = CliRunner().invoke(app, [*command, "--gold", str(tmp_path / "gold"), "--one-based"])
    assert again.stdout == done.stdout
    (tmp_path / "gold").write_text("1-1\n2-3\n")
    refused = CliRunner().invoke(app, [*command, "--gold", str(tmp_path / "gold")])
    assert str(refused.exception) == (
        "alignment 2 holds 2-3, but this pair counts from 0-0 to 1-1; if the alignments count from 1, add --one-based"
    )
    pieces = CliRunner().invoke(app, [*command, "--pieces"])
    assert len(pieces.stdout.splitlines()[0].split()) == len(translator.target.encode("Y X Z")) > 3
    for options, message in (
        (["--one-based"], "--one-based says how --gold counts words; give --gold, too"),
        (["--symmetrise", "union"], "--symmetrise joins the links of two models; give the model of the opposite direction"),
    ):
        assert str(CliRunner().invoke(app, [*command, *options]).exception).startswith(message)


def test_models_that_split_texts_differently_are_compared_by_words(tmp_path: Path) -> None:
    texts = [("concatenate the dog", "Y X Z"), ("a cat", "XY Z"), ("the", "Z X")]
    forward, reverse = make_with_units("bpe", "words", ["the cat sat", "X Y"]), make_with_units("symbols", "bpe", ["X Y Z"])
    for name, translator in (("forward", forward), ("reverse", reverse)):
        saved = folder.Saved(translator.model, SMALL, translator.source, translator.target, {}, "")
        folder.save(saved, tmp_path / name)
    there, back = align_pairs(forward, texts), align_pairs(reverse, [(target, source) for source, target in texts])
    head, other, error = best_agreement(there, back)
    (tmp_path / "pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in texts))
    command = ["align", str(tmp_path / "forward"), str(tmp_path / "pairs.tsv"), "--backward", str(tmp_path / "reverse")]
    for how in ("", "intersection", "union", "grow-diag-final-and"):
        done = CliRunner().invoke(app, [*command, *(["--symmetrise", how] if how else [])])
        assert f"alignment error rate {error:.3f}" in done.stderr
        for line, one, two in zip(done.stdout.splitlines(), there, back, strict=True):
            mine, theirs = one.links(head), turned(two.links(other))
            assert line == pharaoh(symmetrised(mine, theirs, how) if how else mine)  # type: ignore[arg-type]
    assert (read_alignment_head(tmp_path / "forward"), read_alignment_head(tmp_path / "reverse")) == (head, other)


def test_alignments_that_do_not_fit_the_pairs_are_refused() -> None:
    aligned = align_pairs(make_translator("transformer scaled_dot"), PAIRS)
    gold = [pair.links(AlignmentHead(1)) for pair in aligned]
    for pairs, alignments, expected in (
        ([], [], "there are no pairs, so no head can be chosen"),
        (aligned, gold[:-1], "there are 4 pairs but 3 lines of alignments; expected one line per pair"),
        (
            aligned,
            [*gold[:-1], frozenset({(0, 0), (6, 1)})],
            "alignment 4 holds 6-1, but this pair counts from 0-0 to 5-4; if the alignments count from 1, add --one-b",
        ),
        (
            aligned,
            [frozenset({(0, 3)}), *gold[1:]],
            "alignment 1 holds 0-3, but this pair counts from 0-0 to 4-2; if",
        ),
    ):
        with pytest.raises(UserError, match=expected):
            best_alignment_head(pairs, alignments)
    with pytest.raises(UserError, match="there are no pairs"):
        best_agreement([], [])
    with pytest.raises(UserError, match="the two models count 5 and 3 units in 'abcab', and 3 and 5 in its translation, so"):
        best_agreement(aligned, aligned)


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.save(make_saved(SMALL), tmp_path / "model")

    def full(path: Path, content: bytes) -> None:
        raise OSError(30, "Read-only file system", str(path.with_name(".config.json-new-1234")))

    monkeypatch.setattr(alignment, "replace_file", full)
    with pytest.raises(
        UserError, match=r"model/config\.json cannot be written: Read-only file system; copy the model to a fol"
    ):
        write_alignment_head(tmp_path / "model", AlignmentHead())
