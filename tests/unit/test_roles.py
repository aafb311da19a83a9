"""What heads do: equal to sums written out, and named rightly where the role is known by construction."""

import json
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from test_pictures import make_translator as make_captioner

import regard
from regard.cli.main import main
from regard.contracts import Array
from regard.data.tokenizers.codec import Codec
from regard.errors import UserError
from regard.inspection import roles as module
from regard.inspection.roles import EXPLAINED, ROLES, HeadRoles, Side, Totals, role_masks, roles, uniform_TS
from regard.look import Kind
from regard.models.build import build
from regard.models.decoder_only import DecoderOnlySettings
from regard.models.rnn_seq2seq import RnnSettings
from regard.models.transformer import TransformerSettings

PAIRS = [
    ("the cat sat , the cat ran .", "le chat cat , le chien !"),
    ("a dog", "un chien ."),
    ("the dog ran .", "the chien"),
    ("cat", "chat chat chat chat"),
    ("a cat , a dog , a cat .", "un chat , un chien ."),
]


def make_translator(
    unit: str = "words", settings: TransformerSettings | DecoderOnlySettings | None = None
) -> regard.Translator:
    torch.manual_seed(3)
    settings = settings or TransformerSettings(width=20, heads=2, feed_forward=29, encoder_layers=2, decoder_layers=3)
    codecs = [Codec.train([pair[side] for pair in PAIRS], unit, vocabulary=300) for side in (0, 1)]  # type: ignore[arg-type]
    model = build(settings, *map(len, codecs)).eval()
    for parameter in model.parameters():  # weights that are far from uniform
        parameter.data *= 3
    return regard.Translator.of_model(model, *codecs)


def attention_of(model: regard.Translator, source: str, target: str, kind: Kind, layer: int) -> regard.AttentionMap:
    """The attention of a given output, from `model.attention`."""
    result = model(source, max_length=2)
    ids = tuple(model.target.encode(target))
    best = replace(result.n_best[0], ids=ids, finished=True)
    return model.attention(replace(result, ids=ids, n_best=(best,)).made_by(model), kind, layer)


def words_of(tokens: tuple[str, ...]) -> list[int]:
    """The word of each token: a space, or a token that starts with one, starts a word; a space alone is no piece of a word."""
    words, number = [], 0
    for index, token in enumerate(tokens):
        number += bool(index) and token.startswith(" ")
        words.append(-100 - index if token.isspace() else number)
    return words


def plainly(maps: list[regard.AttentionMap], head: int, *, is_bpe: bool) -> dict[str, float]:
    """Shares of one head over maps, by loops over queries and keys; with "explained" and "distance"."""
    sums, num_queries = dict.fromkeys((*ROLES, "explained", "distance"), 0.0), 0
    for attention in maps:
        weights, keys = attention.weights_HTS[head].astype(float), attention.source
        queries = attention.target if attention.kind == "cross" else keys
        num_queries += len(weights)
        received = weights.sum(0)
        sink = int(np.flatnonzero(received == received.max())[0])
        specials = {"<eos>", "<sos>"}
        words = words_of(tuple(token for token in keys if token not in specials)) if is_bpe else []
        if is_bpe:
            words = [-9, *words] if keys[0] == "<sos>" else [*words, -8]
        for i, query in enumerate(queries):
            for j, key in enumerate(keys):
                weight = float(weights[i, j])
                at = i * (len(keys) - 1) / max(1, len(queries) - 1) if attention.kind == "cross" else i
                same = query == key
                if attention.kind != "cross":
                    same = (same or (is_bpe and words[i] == words[j])) and i != j
                has = {
                    "first": j == 0,
                    "last": j == len(keys) - 1,
                    "same word": same,
                    "punctuation": key.strip() in {",", ".", "!"},
                    "near": abs(at - j) <= 1,
                    "far": abs(at - j) > 1,
                    "sink": j == sink,
                }
                for role in ROLES:
                    sums[role] += weight * has[role]
                sums["explained"] += weight * any(has[role] for role in EXPLAINED)
                sums["distance"] += weight * abs(at - j)
    return {name: total / num_queries for name, total in sums.items()}


def assert_equal(head: HeadRoles, expected: dict[str, float]) -> None:
    found = {**head.shares, "explained": head.explained, "distance": head.distance}
    assert found == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("unit", ["words", "bpe"])
def test_shares_equal_sums_over_the_attention_of_each_pair(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:  # SPEC A9.4
    """Every layer and head, from the weights that `model.attention` returns; batches of two pairs."""
    monkeypatch.setattr(module, "PAIRS_AT_A_TIME", 2)
    model = make_translator(unit)
    found = roles(model, iter(PAIRS))
    assert found.num_pairs == 5
    assert len(found.heads) == 2 * (2 + 3 + 3)
    for head in found.heads:
        maps = [attention_of(model, *pair, head.kind, head.layer) for pair in PAIRS]
        assert found.num_queries[head.kind] == sum(attention.weights_HTS.shape[1] for attention in maps)
        assert_equal(head, plainly(maps, head.head, is_bpe=unit == "bpe"))
        assert head.shares["near"] + head.shares["far"] == pytest.approx(1)
        uniform = [
            replace(one, weights_HTS=uniform_TS(head.kind, *one.weights_HTS.shape[1:])[None].astype(float)) for one in maps
        ]
        expected = plainly(uniform, 0, is_bpe=unit == "bpe")
        found_uniform = {**head.uniform, "explained": head.explained_uniform, "distance": head.distance_uniform}
        assert found_uniform == pytest.approx(expected, abs=1e-9)
    for kind in ("encoder", "decoder", "cross"):
        per_layer = found.distances(kind)
        assert len(per_layer) == (2 if kind == "encoder" else 3)
        assert per_layer[1] == pytest.approx(np.mean([h.distance for h in found.heads if (h.kind, h.layer) == (kind, 1)]))


def test_uniform_attention_follows_its_formula() -> None:
    np.testing.assert_allclose(uniform_TS("decoder", 3, 3), [[1, 0, 0], [0.5, 0.5, 0], [1 / 3] * 3])
    np.testing.assert_allclose(uniform_TS("cross", 2, 4), np.full((2, 4), 0.25))
    side = Side(tuple("abcdefg"), np.full(7, -1))
    totals = Totals()
    totals.add("encoder", 0, uniform_TS("encoder", 7, 7)[None], side, side)
    (head,) = totals.heads()
    assert head.shares == pytest.approx(head.uniform)
    assert head.uniform["near"] == pytest.approx((5 * 3 + 2 * 2) / 49)
    assert (head.role, head.uniform["first"], head.uniform["sink"]) == ("mixed", pytest.approx(1 / 7), pytest.approx(1 / 7))
    assert head.distance_uniform == pytest.approx(np.mean([[abs(i - j) for j in range(7)] for i in range(7)]))


TOKENS = (*"the cat , the dog in the big green house . <eos>".split(),)
WORDS = np.array([0, 1, 2, 3, 4, 5, 6, 6, 6, 7, 8, -1])  # "the", "big" and "green" are pieces of one word


def matrix(*, at: dict[int, int] | None = None, shift: int | None = None, column: int | None = None) -> Array:
    """A head with all weight on one key for each query."""
    number, weights = len(TOKENS), np.zeros((len(TOKENS), len(TOKENS)))
    for query in range(number):
        key = column if column is not None else query + shift if shift is not None else (at or {}).get(query, query)
        weights[query, min(max(key, 0), number - 1)] = 1
    return weights


CONSTRUCTED = {
    "near": [matrix(shift=0), matrix(shift=1), matrix(shift=-1)],
    "far": [np.roll(np.eye(len(TOKENS)), 5, axis=1), np.roll(np.eye(len(TOKENS)), 4, axis=0)],
    "first": [matrix(column=0)],
    "last": [matrix(column=11)],
    "punctuation": [matrix(at={query: 2 if query % 2 else 10 for query in range(12)})],
    "same word": [matrix(at={0: 3, 1: 1, 3: 6, 6: 8, 7: 3 + 3, 8: 6})],
    "sink": [matrix(column=5)],
    "mixed": [np.full((12, 12), 1 / 12)],
}


@pytest.mark.parametrize(("role", "weights"), [(role, weights) for role, many in CONSTRUCTED.items() for weights in many])
def test_heads_of_known_roles_are_named(role: str, weights: Array) -> None:  # SPEC A9.4
    """In the head of "same word", five queries attend to another piece or the same token elsewhere; the others are left out."""
    side = Side(TOKENS, WORDS)
    if role == "same word":
        weights = weights * (weights.argmax(1) != np.arange(12))[:, None]  # a query without weight does not count
    totals = Totals()
    totals.add("encoder", 0, weights[None], side, side)
    (head,) = totals.heads()
    assert head.role == role
    if role in ("first", "last", "same word", "sink", "punctuation"):
        assert head.shares[role] == pytest.approx(1)
        assert head.explained == pytest.approx(1)
    assert head.shares["near"] + head.shares["far"] == pytest.approx(1)


def test_a_model_whose_head_is_the_identity_shifted_by_one() -> None:  # SPEC A9.4
    """Forced attention to the token before: the decoder of a real model gets the role by construction."""
    model = make_translator(settings=DecoderOnlySettings(width=20, heads=2, feed_forward=29, layers=2))
    edits = [regard.Edit.force(0, 0, "decoder"), *(regard.Edit.force(step, step - 1, "decoder") for step in range(1, 7))]
    result = model("", edits=edits, max_length=6, min_length=6)
    seen = [model.attention(result, "decoder", layer, edits=edits) for layer in (0, 1)]
    totals = Totals()
    for layer, attention in enumerate(seen):
        side = Side(attention.source, np.full(len(attention.source), -1))
        totals.add("decoder", layer, attention.weights_HTS, side, side)
    for head in totals.heads():
        assert head.shares["near"] == pytest.approx(1)
        assert head.distance == pytest.approx(np.mean([0, *[1] * (len(seen[0].target) - 1)]))
    found = roles(model, [("", "le chat , un chien"), ("", "un chat")])
    assert {head.kind for head in found.heads} == {"decoder"}


def test_weights_of_any_scale_and_queries_without_weight() -> None:
    """Weights may be negative (unnormalised attention) or all 0 (gated attention)."""
    side = Side(tuple("abc"), np.full(3, -1))
    totals = Totals()
    totals.add("encoder", 0, np.array([[[2.0, -2.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 7.0]]]), side, side)
    (head,) = totals.heads()
    assert head.shares["near"] == 1
    assert head.shares["first"] == pytest.approx(0.25)
    assert head.distance == pytest.approx(0.25)
    assert totals.num_queries() == {"encoder": 3}


def test_punctuation_and_words_of_tokens() -> None:
    side = Side((".", "a.", " …", "<eos>", "", " ", "«", "3", "▁,", "+"), np.full(10, -1))
    assert side.is_punctuation.tolist() == [True, False, True, False, False, False, True, False, True, False]
    masks = role_masks("cross", Side(("a", "b"), np.array([0, 0])), Side(("b", "a", "b"), np.array([0, 0, 1])))
    assert masks["same word"].tolist() == [[False, True, False], [True, False, True]]


def test_memory_does_not_grow_with_the_corpus() -> None:
    model = make_translator()
    roles(model, PAIRS)  # fills caches
    peaks = []
    for number in (128, 640):
        tracemalloc.start()
        roles(model, (PAIRS[index % 5] for index in range(number)))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


def test_errors(tmp_path: Path) -> None:
    model = make_translator()
    with pytest.raises(UserError, match="there are no pairs"):
        roles(model, [])
    with pytest.raises(UserError, match=r"pair 2: it has"):
        roles(model, [PAIRS[0], ("cat", "chat " * 5000)])
    with pytest.raises(UserError, match="roles are about words, but this model reads pictures; use regard inspect"):
        roles(make_captioner(tmp_path), [("p.png", "X")])
    torch.manual_seed(1)
    fixed = build(RnnSettings(width=8, embedding=6, decoder="fixed"), len(model.source), len(model.target)).eval()  # type: ignore[arg-type]
    with pytest.raises(UserError, match="this model has no attention"):
        roles(regard.Translator.of_model(fixed, model.source, model.target), PAIRS)


def test_tables_pictures_and_pages(tmp_path: Path) -> None:
    found = roles(make_translator(), PAIRS)
    lines = found.table().splitlines()
    assert len(lines) == 1 + len(found.heads)
    for head, line in zip(found.heads, lines[1:], strict=True):
        assert line.split()[:3] == [head.kind, str(head.layer), str(head.head)]
        assert f"{head.shares['near']:.2f} ({head.uniform['near']:.2f})" in line
    for ending in ("png", "svg", "html"):
        assert found.draw(tmp_path / f"roles.{ending}").stat().st_size > 3000
    with Image.open(tmp_path / "roles.png") as picture:
        assert min(picture.size) > 400
    svg, page = (tmp_path / "roles.svg").read_text(), (tmp_path / "roles.html").read_text()
    for head in found.heads:
        assert f"layer {head.layer} head {head.head}: {head.role}" in svg
        assert f"<small>{head.distance_uniform:.2f}</small>" in page
    assert page.count("<polyline") == 2 * 3
    assert found._repr_html_() in page
    assert json.loads(json.dumps(found.as_dict()))["heads"][0]["shares"] == found.heads[0].shares
    with pytest.raises(UserError, match="the file extension selects the format"):
        found.draw(tmp_path / "roles.txt")


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    model = make_translator()
    regard.save(model, "m")
    Path("pairs.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS))

    def type_in(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["regard", *arguments])
        with pytest.raises(SystemExit) as done:
            main()
        assert done.value.code in (0, None), done.value.code
        return capsys.readouterr().out

    found = roles(model, PAIRS)
    printed = type_in("roles", "m", "pairs.tsv", "--out", "roles.html")
    assert found.table() in printed
    assert f"5 pairs; queries: {found.num_queries['encoder']} encoder, {found.num_queries['decoder']} decoder" in printed
    assert f"mean distance by layer, cross: {' '.join(f'{one:.2f}' for one in found.distances('cross'))}" in printed
    assert Path("roles.html").exists()
    read = json.loads(type_in("roles", "m", "pairs.tsv", "--json"))
    assert read["heads"][3]["shares"] == pytest.approx(found.heads[3].shares, abs=1e-6)
