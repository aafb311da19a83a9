"""The attention of many results or texts, in batches; looks and edits through the Translator."""

import json
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from test_pipeline import limited, make_listener, make_translator

import regard
from regard import Edit, Look, Tap
from regard.cli.lines import Lines
from regard.cli.translate import with_links
from regard.contracts import AlignmentHead, Forced, Request
from regard.data.tokenizers.codec import Codec
from regard.decoding.torch_engine import TorchEngine
from regard.errors import UserError
from regard.models.contract import ModelSettings
from regard.models.decoder_only import DecoderOnlySettings
from regard.models.rnn_seq2seq import RnnSettings
from regard.models.transformer import TransformerSettings
from regard.pipeline import Translator, forced
from regard.results import AttentionMap, Refused, Result

TRANSFORMER = TransformerSettings(width=8, heads=2)
RNN = RnnSettings(width=8, embedding=3)
BAHDANAU = RnnSettings(width=8, embedding=3, decoder="bahdanau")
TEXTS = ["abc", "a", "cab?", "bb", "abcabcabc", "ca"]
every_family = pytest.mark.parametrize("settings", [TRANSFORMER, RNN, BAHDANAU], ids=["transformer", "luong", "bahdanau"])


class Recording(TorchEngine):
    """Remembers the number of requests in each pass of `force`."""

    passes: ClassVar[list[int]] = []

    def _force(self, requests: Sequence[Request], *others: Any) -> list[Forced]:
        self.passes.append(len(requests))
        return super()._force(requests, *others)

    def last_passes(self) -> list[int]:
        """Returns the passes since the last call."""
        last = [*self.passes]
        self.passes.clear()
        return last


def recording(translator: Translator) -> tuple[Translator, Recording]:
    engine = Recording(**vars(translator.torch_engine))
    engine.passes.clear()
    return replace(translator, engine=engine), engine


def assert_same(found: AttentionMap, expected: AttentionMap) -> None:
    np.testing.assert_allclose(found.weights_HTS, expected.weights_HTS, atol=1e-6)
    for name in ("source", "target", "kind", "layer", "axes", "seconds", "heads"):
        assert getattr(found, name) == getattr(expected, name), name


# --- many at once ------------------------------------------------------------------------------------------------------------


@every_family
def test_many_results_give_what_each_gives_alone(settings: ModelSettings) -> None:
    translator, engine = recording(make_translator(settings))
    results = translator.batch(TEXTS * 20, max_length=6)
    assert engine.last_passes() == []
    maps = translator.attention(results)
    assert engine.last_passes() == [len(results)]  # one pass
    assert len(maps) == len(results)
    for result, found in list(zip(results, maps, strict=True))[:7]:
        assert_same(found, result.attention())
    assert [one.source[:-1] for one in maps] == [result.source_tokens for result in results]
    for given in (iter(results), tuple(results), (result for result in results)):
        assert translator.attention(given) == maps
    assert translator.attention([]) == []
    assert translator.attention(results[:1]) == [results[0].attention()]


@every_family
def test_texts_are_translated_first(settings: ModelSettings) -> None:
    translator = make_translator(settings)
    options: dict[str, Any] = {"beam": 3, "n_best": 3, "max_length": 5, "min_length": 2}
    results = translator.batch(TEXTS, **options)
    for number in (0, 2):
        found = translator.attention(TEXTS, alternative=number, **options)
        for one, result in zip(found, results, strict=True):
            assert one.target[: len(result.n_best[number].tokens)] == result.n_best[number].tokens
            assert_same(one, result.attention(alternative=number))
    assert_same(translator.attention("abc", alternative=-1, **options), results[0].attention(alternative=2))
    with pytest.raises(UserError, match="there is no alternative 3: alternatives are numbered 0 to 2 here"):
        results[0].attention(alternative=3)


def test_one_head_is_a_part_of_all() -> None:
    translator = make_translator(TRANSFORMER)
    results = translator.batch(TEXTS, max_length=5)
    for kind in ("cross", "encoder", "decoder"):
        every, last, first = (translator.attention(results, kind, 0, head) for head in (None, -1, 0))
        for all_heads, one, other in zip(every, last, first, strict=True):
            assert (all_heads.heads, one.heads, other.heads) == ((0, 1), (1,), (0,))
            np.testing.assert_allclose(np.concatenate((other.weights_HTS, one.weights_HTS)), all_heads.weights_HTS, atol=1e-7)
    with pytest.raises(UserError, match="text 1: there is no head 2: heads are numbered 0 to 1 here"):
        translator.attention(results, head=2)
    with pytest.raises(ValueError, match=r"layer is None, but a map shows one layer; regard.inspect\(model, text\) captures"):
        translator.attention(results, layer=None)  # type: ignore[call-overload]


def test_what_cannot_be_shown_is_named() -> None:
    translator = limited(make_translator(TRANSFORMER), 5)
    with pytest.raises(UserError, match="text 2: this text was translated in 2 parts; each part has its own attention, see `p"):
        translator.attention(["ab", "ab a. Ba?"], max_length=3)
    parts = translator("ab a. Ba?", max_length=3).parts
    assert [one.source for one in translator.attention(parts)] == [(*part.source_tokens, "<eos>") for part in parts]
    with pytest.raises(UserError, match="text 2: the text is empty, so there is no attention to show"):
        translator.attention(["ab", ""])
    with pytest.raises(UserError, match="text 1: this model has no cross attention; models that attend to their source"):
        make_translator(DecoderOnlySettings(width=8, heads=2)).attention(["X"], max_length=3)
    with pytest.raises(TypeError, match="attention takes results or texts, got a list of both; translate the texts first"):
        translator.attention([translator("ab"), "ab"])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="beam given, but these results are translated already; give texts, or no options"):
        translator.attention([translator("ab")], beam=3)
    with pytest.raises(TypeError, match="attention takes a list of texts, got 3"):
        translator.attention(3)  # type: ignore[call-overload]
    result = translator("abc", beam=2, n_best=2, min_length=2, max_length=3)
    old = replace(result, n_best=tuple(replace(output, ids=()) for output in result.n_best))
    assert old.made_by(translator).attention() == result.attention()
    with pytest.raises(UserError, match="this result was stored by an older version, without the ids of its alternatives"):
        old.attention(alternative=1)


def test_damaged_models_are_reported() -> None:
    translator = make_translator(TRANSFORMER)
    result = translator("abc", max_length=3)
    with torch.no_grad():
        next(translator.model.parameters()).fill_(torch.nan)  # type: ignore[attr-defined]
    with pytest.raises(
        UserError, match="this model computed attention weights of nan; its parameters are damaged or too large"
    ):
        result.attention()


def test_memory_is_bounded_by_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    translator, engine = recording(make_translator(RNN))
    results = translator.batch(TEXTS, max_length=4)
    expected = translator.attention(results)
    monkeypatch.setattr(forced, "FORCED_WINDOW", 4)
    assert engine.last_passes() == [6]
    for one, other in zip(translator.attention(results), expected, strict=True):
        assert_same(one, other)
    assert engine.last_passes() == [4, 2]


def test_sounds_and_their_auxiliary_texts(tmp_path: Path) -> None:
    listener = make_listener(tmp_path, Codec.train(["say it"], "words"))
    results = listener.batch([("0-1.wav", "say it"), ("1-1.wav", "say")], max_length=3)
    for kind in ("cross", "fusion"):
        for one, result in zip(listener.attention(results, kind), results, strict=True):
            assert_same(one, result.attention(kind))
            assert one.weights_HTS.shape[1:] == (len(one.target), len(one.source))
    seen = listener.batch(["0-1.wav\tsay it", "1-1.wav\tsay"], max_length=3, look=Look((Tap("cross"), Tap("fusion"))))
    for result in seen:
        by_kind = {one.kind: one.weights_BHTS[0] for one in result.seen}
        for kind in ("cross", "fusion"):
            np.testing.assert_allclose(by_kind[kind], result.attention(kind).weights_HTS, atol=1e-5)


# --- alignments --------------------------------------------------------------------------------------------------------------


def test_alignments_of_many_are_those_of_each() -> None:
    translator, engine = recording(limited(make_translator(TRANSFORMER), 9))
    translator = replace(translator, alignment_head=AlignmentHead(0, 1, shifted=True))
    texts = [*TEXTS, "", "ab a. Ba? Cab."]
    results = translator.batch(texts, max_length=4, min_length=2)
    assert len(results[-1].parts) == 3
    links = translator.alignments(results)
    assert engine.last_passes() == [len(TEXTS) + 3]
    assert links == [result.alignment() for result in results]
    assert links[-2] == ()
    assert all(len(found) == len(result.tokens) for found, result in zip(links, results, strict=True))


def test_the_command_aligns_many_together_and_lets_nobody_wait() -> None:
    """A pipe pauses after the third line: what was read before is answered before more is read."""
    translator, engine = recording(make_translator(RNN))
    printed: list[tuple[tuple[int, int], ...]] = []

    def lines() -> Iterator[str | None]:
        yield from ("abc", "a" * 2000, "")
        yield None
        assert len(printed) == 3
        yield from TEXTS

    sources = Lines(translator.reader, lines())
    for result, links in with_links(translator, translator.translate(sources, max_length=3), sources, None):
        sources.unanswered.popleft()
        printed.append(links)
        assert links == (() if isinstance(result, Refused) else result.alignment())
    assert len(printed) == 9
    engine.last_passes()
    sources = Lines(translator.reader, iter(TEXTS * 3))
    for _ in with_links(translator, translator.translate(sources, max_length=3), sources, None):
        sources.unanswered.popleft()
    assert engine.last_passes() == [18]  # one pass


# --- looks and edits ---------------------------------------------------------------------------------------------------------


@every_family
@pytest.mark.parametrize(
    "options", [{}, {"beam": 3, "n_best": 2}, {"sample": True, "n_best": 2}], ids=["greedy", "beam", "sample"]
)
def test_edits_change_the_translation_and_are_kept(settings: ModelSettings, options: dict[str, Any]) -> None:
    translator = make_translator(settings)
    edits = (Edit.force(1, 0), Edit.cut(None, 1))
    options = {"max_length": 6, "min_length": 3, **options}
    plain, results = translator.batch(TEXTS[:1] * 3, **options), translator.batch(["abc", "cab?", "ab"], edits=edits, **options)
    assert results[0].log_prob != pytest.approx(plain[0].log_prob, abs=1e-6)
    for result in results:
        assert result.edits == edits
        shown = result.attention()
        assert shown.weights_HTS[:, 1].tolist() == [[1.0] + [0.0] * len(result.source_tokens)] * len(shown.heads)
        assert not shown.weights_HTS[..., 1].any()
        assert result.attention(edits=()).weights_HTS[..., 1].all()  # as the model would attend without them
        assert_same(pickle.loads(pickle.dumps(result)).made_by(translator).attention(), shown)
        assert Result.from_dict(json.loads(json.dumps(result.as_dict()))) == result
    assert [one.target for one in translator.attention(["abc"], edits=edits, **options)] == [results[0].attention().target]
    *_, last = translator.stream("abc", edits=edits, **{**options, "seed": 0})
    assert last.result is not None
    assert last.result.log_prob == pytest.approx(results[0].log_prob, abs=1e-5)
    (scored,) = translator.score(["abc"], [results[0].text], edits=edits)
    assert scored.log_prob != pytest.approx(translator.score(["abc"], [results[0].text])[0].log_prob, abs=1e-6)
    if results[0].finished:
        assert scored.log_prob == pytest.approx(results[0].log_prob, abs=1e-5)


def test_an_edit_of_a_position_that_a_text_does_not_have() -> None:
    translator = make_translator(TRANSFORMER)
    with pytest.raises(UserError, match=r"^key 9 does not exist: this source has 4 positions$"):
        translator("abc", edits=Edit.force(0, 9))
    with pytest.raises(UserError, match="text 2: key 3 does not exist: this source has 2 positions"):
        translator.batch(["abc", "a"], edits=Edit.remove(3))
    refused = [isinstance(one, Refused) for one in translator.translate(["abc", "a", "cab"], edits=Edit.remove(3))]
    assert refused == [False, True, False]
    (scored,) = translator.score_each(["a"], ["X"], edits=Edit.remove(3))
    assert scored == Refused("key 3 does not exist: this source has 2 positions")
    for wrong, message in (
        ({"look": Tap()}, r"look is Tap\(.*, expected a Look, as in Look\(taps=Tap\('cross'\)\)"),
        ({"edits": "cross"}, r"edits is 'cross', expected Edits, as in Look\(edits=\(Edit\(\),\)\)"),
    ):
        with pytest.raises(TypeError, match=message):
            translator("abc", **wrong)


def test_a_look_shows_what_the_search_saw() -> None:
    translator = make_translator(TRANSFORMER)
    options: dict[str, Any] = {"beam": 3, "max_length": 5, "min_length": 2, "prefix": [5]}
    look = Look((Tap("cross", 1), Tap("encoder", 0, 1), Tap("decoder")), (Edit.off("cross", 0, 0),))
    plain = translator.batch(TEXTS, edits=look.edits, **options)
    seen = translator.batch(TEXTS, look=look, **options)
    assert seen == plain
    for result, other in zip(seen, plain, strict=True):
        assert other.seen == ()
        assert [(one.kind, one.layer, one.heads) for one in result.seen] == [
            ("encoder", 0, (1,)),
            ("decoder", 0, (0, 1)),
            ("decoder", 1, (0, 1)),
            ("cross", 1, (0, 1)),
        ]
        for one in result.seen:
            head = one.heads[0] if len(one.heads) == 1 else None
            expected = result.attention(one.kind, one.layer, head)
            np.testing.assert_allclose(one.weights_BHTS[0], expected.weights_HTS, atol=1e-6)
            assert one.rows == tuple(range(len(expected.target)))
        assert pickle.loads(pickle.dumps(result)).seen == ()
    items = list(translator.stream(TEXTS[0], look=look, **options))
    assert items[-1].result is not None
    assert items[-1].result.ids == seen[0].ids
    streamed = [one for item in items for one in item.seen if one.kind == "cross"]
    np.testing.assert_allclose(
        np.concatenate([one.weights_BHTS for one in streamed], axis=2), seen[0].seen[-1].weights_BHTS, atol=1e-6
    )
    with pytest.raises(UserError, match="a search captures whole rows, one per token; for a summary or for chosen rows"):
        translator("abc", look=Look((Tap("cross", rows=(0,)),)))


def test_an_inspection_takes_edits() -> None:
    for settings in (TRANSFORMER, BAHDANAU):
        translator = make_translator(settings)
        edited = regard.inspect(translator, "abc", edits=Edit.force(None, 2), max_length=4)
        result = translator("abc", edits=Edit.force(None, 2), max_length=4)
        assert edited.output == result.text
        weights = edited.layer("cross", -1).numbers["weights"]
        assert (weights[..., 2] == 1).all()
        log_probs = edited.log_probs_TV[range(len(edited.target_ids)), edited.target_ids]
        assert log_probs.tolist() == pytest.approx(result.n_best[0].token_log_probs, abs=1e-5)
