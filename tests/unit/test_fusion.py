"""Sources with an auxiliary text: data with two source fields, either of which may be missing, and attention between them."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from table import FRONTENDS, SOURCE_VOCAB, make_frontend_model, make_rows, make_targets
from tones import write_words

from regard.contracts import FileAndText
from regard.core import masks
from regard.core.attention import attention_weights
from regard.core.source import Source
from regard.core.spectrum import BANDS
from regard.data.batch import source_batch
from regard.data.codecs import read_source, recognise
from regard.data.columns import Columns
from regard.data.corpus import Pair, read_pairs
from regard.data.pictures import Pictures
from regard.data.sounds import Sounds
from regard.data.source_text import file_and_text
from regard.data.sources import auxiliary_vocabulary_size, num_positions
from regard.data.store import Store, write_store
from regard.data.tokenizers.codec import Codec
from regard.errors import UserError
from regard.inspection.capture import inspect
from regard.inspection.report import page, write_npz
from regard.layers.frontends import FrameFrontend, FusionFrontend
from regard.layers.scores import SCORES
from regard.look import Look, Tap
from regard.models.build import build
from regard.models.contract import ModelSettings
from regard.models.rnn_seq2seq import RnnSettings
from regard.models.transformer import TransformerSettings
from regard.pipeline import Translator
from regard.training.data import in_memory
from regard.training.settings import DataSettings, TrainSettings
from regard.training.suggest import suggest

TRAIN = TrainSettings(batch_tokens=4096)


def make_fused() -> tuple[FusionFrontend, Source]:
    torch.manual_seed(0)
    frontend = FusionFrontend(FrameFrontend(5, 8, positions=True), 8, SOURCE_VOCAB).double()
    frames, ids = torch.randn(2, 11, 5).double(), torch.tensor([[4, 5, 6, 3], [7, 3, 0, 0]])
    return frontend, Source(frames, masks.first(torch.tensor([11, 6]), 11), Source(ids, masks.not_padding(ids, 0)))


def test_every_position_of_the_source_attends_to_the_words() -> None:  # SPEC A6.4
    """x + W_o [softmax(q kᵀ/√d) v of each head] with q from LN(x), k and v from the text: 11 positions, and 4 or 2 words."""
    frontend, source = make_fused()
    output = frontend(source, Look((Tap("fusion"),)))
    (seen,) = output.seen
    assert seen.weights_BHTS.shape == (2, 4, 11, 4)
    assert output.axes == (11,)
    for row, (length, number) in enumerate(((11, 4), (6, 2))):
        x = frontend.frontend(Source(source.values[row : row + 1, :length], source.allow[row : row + 1, :length])).x_BSD[0]
        words = frontend.words(source.auxiliary.values[row : row + 1, :number])
        text = frontend.reader(words, masks.first(torch.tensor([number]), number))[0][0]
        attention, normal = frontend.attention, frontend.norm(x)
        q, k, v = attention.query(normal), attention.key(text), attention.value(text)
        heads, weights = [], []
        for head in range(4):
            part = slice(2 * head, 2 * head + 2)
            scores = (q[:, part] @ k[:, part].T / math.sqrt(2)).exp()
            weights.append(scores / scores.sum(-1, keepdim=True))
            heads.append(weights[-1] @ v[:, part])
        expected = x + torch.cat(heads, -1) @ attention.output.weight.T + attention.output.bias
        torch.testing.assert_close(output.x_BSD[row, :length], expected)
        torch.testing.assert_close(seen.weights_BHTS[row, :, :length, :number], torch.stack(weights))
        assert (seen.weights_BHTS[row, ..., number:] == 0).all()


@pytest.mark.parametrize(
    ("settings", "decoder"), [(RnnSettings, "luong"), (RnnSettings, "fixed"), (TransformerSettings, "transformer")]
)
@pytest.mark.parametrize("score_name", list(SCORES))
def test_the_score_of_a_model_reaches_fusion(score_name: str, decoder: str, settings: type[ModelSettings]) -> None:
    # SPEC A5.5
    """Its weights are the softmax of that score, head by head; so they are for a score of its own."""
    chosen: dict[str, object] = {"score": score_name, "frontend": "sound", "channels": 3, "max_positions": 9, "width": 12}
    chosen |= {"embedding": 12, "decoder": decoder} if settings is RnnSettings else {"heads": 2}
    own = {**chosen, "score": "dot" if score_name == "location" else "location", "fusion_score": score_name}
    for given in (chosen, own):
        torch.manual_seed(3)
        model = build(settings(**given), BANDS, 19, auxiliary=SOURCE_VOCAB).double().eval()
        (frontend,) = (module for module in model.modules() if isinstance(module, FusionFrontend))
        source = source_batch(make_rows("sound with text, luong"))
        source = replace(source, values=source.values.double())
        (seen,) = model.encode(source, Look((Tap("fusion"),))).seen
        assert frontend.attention.score.name == score_name
        x_BSD = frontend.frontend(source).x_BSD
        has_sound_B = source.allow.any(1)
        text_BUD, _ = frontend.reader(frontend.words(source.auxiliary.values), source.auxiliary.allow)
        attention = frontend.attention
        query = attention.query(frontend.norm(x_BSD)).unflatten(-1, (4, 3)).transpose(1, 2)
        key = text_BUD if attention.key is None else attention.key(text_BUD)
        key = key.unflatten(-1, (4, 3)).transpose(1, 2)
        expected = attention_weights(query, key, score=attention.score, allow=source.auxiliary.allow[:, None, None])
        torch.testing.assert_close(seen.weights_BHTS[has_sound_B], expected[has_sound_B])


def test_fusion_by_location_counts_its_positions() -> None:
    """Also in a model whose decoder does not attend, and whose settings therefore have no limit."""
    settings = RnnSettings(frontend="sound", channels=3, decoder="fixed", score="location", max_positions=9)
    assert settings.traits.max_positions is None
    assert build(settings, BANDS, 19).traits.max_positions is None
    assert build(settings, BANDS, 19, auxiliary=SOURCE_VOCAB).traits.max_positions == 9
    ignores = replace(settings, beyond="ignore")
    assert build(ignores, BANDS, 19, auxiliary=SOURCE_VOCAB).traits.max_positions is None
    lower = replace(settings, decoder="luong", score="additive", fusion_score="location")
    assert build(lower, BANDS, 19, auxiliary=SOURCE_VOCAB).traits.max_positions == 9


def test_the_text_affects_the_output_and_a_learned_vector_replaces_a_missing_source() -> None:  # SPEC A6.4
    model = make_frontend_model("sound with text, luong")
    first, without_sound, without_text, _ = make_rows("sound with text, luong")
    targets = make_targets(1, 6)

    def logits(*rows: FileAndText) -> torch.Tensor:
        return model.decode(targets.repeat(len(rows), 1), model.encode(source_batch(rows))).logits_BTV

    assert isinstance(first, FileAndText)
    assert (logits(first) - logits(first._replace(text=[4, 6, 5]))).abs().max() > 1e-6
    assert (logits(first) - logits(first._replace(text=[]))).abs().max() > 1e-6
    assert (logits(first) - logits(first._replace(file=first.file[:0]))).abs().max() > 1e-6
    memory = model.encode(source_batch([without_sound, first, without_text]))
    assert memory.allow_BS[0].tolist() == [True] + [False] * (memory.allow_BS.shape[1] - 1)
    before = logits(without_sound)
    assert before.isfinite().all()
    frontend = model.source_embedding
    assert isinstance(frontend, FusionFrontend)
    (gradient,) = torch.autograd.grad(before.sum(), [frontend.nothing])
    assert gradient.abs().max() > 0
    (gradient,) = torch.autograd.grad(logits(first).sum(), [frontend.nothing])
    assert (gradient == 0).all()
    with pytest.raises(ValueError, match=r"reads an auxiliary text with every source, but Source\.auxiliary is None"):
        model.encode(source_batch([first.file]))


def make_translator(folder: Path, name: str = "sound with text, luong") -> Translator:
    """An untrained model that reads sounds or pictures with auxiliary texts; writes 0-1.wav to the folder."""
    write_words(folder, ["abc"])
    words, target = Codec.train(["all digits", "say nine"], "words"), Codec.train(["X Y Z"], "symbols")
    codec = (
        Sounds(8000, root=folder, auxiliary=words)
        if name.startswith("sound")
        else Pictures(3, 64, root=folder, auxiliary=words)
    )
    torch.manual_seed(5)
    model = build(FRONTENDS[name], len(codec), len(target), auxiliary=len(words)).eval()
    return Translator.of_model(model, codec, target)


def test_a_missing_source_has_a_label(tmp_path: Path) -> None:  # SPEC A6.4
    """Its only position has no time, and is not a grid cell of a picture."""
    for name, label in (("sound with text, luong", "no sound"), ("picture with text, luong", "no picture")):
        translator = make_translator(tmp_path, name)
        shown = translator("\tsay nine", max_length=3).attention()
        assert (shown.source, shown.axes, shown.seconds) == ((label,), (), 0.0)
        seen = inspect(translator, "\tsay nine", output=(4,))
        assert (seen.source, seen.axes, seen.sound) == ((label,), (), None)
        assert seen.title == f"{label} + say nine"
        assert f"<title>{label} + say nine → X</title>" in page(seen)
    sounds = make_translator(tmp_path)
    assert inspect(sounds, "0-1.wav\tall  digits", output=(4,)).title == "0-1.wav + all digits"
    assert inspect(sounds, "0-1.wav", output=(4,)).title == "0-1.wav"


def test_maps_have_the_duration_of_a_position(tmp_path: Path) -> None:
    result = make_translator(tmp_path, "sound with text, transformer")("0-1.wav\tall digits", max_length=3)
    assert {kind: result.attention(kind).seconds for kind in ("cross", "encoder", "fusion", "decoder")} == {
        **dict.fromkeys(("cross", "encoder", "fusion"), 0.04),
        "decoder": 0.0,
    }


def test_arrays_contain_the_auxiliary_words_and_the_times(tmp_path: Path) -> None:
    translator = make_translator(tmp_path)
    with np.load(write_npz(inspect(translator, "0-1.wav\tall digits", output=(4,)), tmp_path / "seen.npz")) as arrays:
        words = json.loads(bytes(arrays["tokens.json"]))
        _, positions, keys = arrays["fusion.0.weights"].shape
    assert words["auxiliary"] == ["all", "digits", "<eos>"]
    assert keys == 3
    assert words["seconds"][:3] == [0, 0.04, 0.08]
    assert len(words["seconds"]) == len(words["source"]) == positions
    with np.load(write_npz(inspect(translator, "\tall digits", output=(4,)), tmp_path / "none.npz")) as arrays:
        assert "seconds" not in json.loads(bytes(arrays["tokens.json"]))


# --- data --------------------------------------------------------------------------------------------------------------------


def write_rows(folder: Path) -> Path:
    write_words(folder, ["abc", "h"])
    rows = [
        {"audio": "0-1.wav", "how": "every second; one", "text": "a c"},
        {"audio": "1-1.wav", "how": None, "text": "h"},
        {"audio": "1-1.wav", "text": "h h"},
        {"audio": "", "how": "reverse", "text": "b"},
        {"how": "reverse", "text": "c"},
        {"audio": None, "how": "", "text": "d"},
    ]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "rows.jsonl"


def test_rows_with_two_sources_either_of_which_may_be_missing(tmp_path: Path) -> None:
    corpus = read_pairs(write_rows(tmp_path), Columns(("audio", "how"), "text"))
    assert corpus.pairs == (
        Pair(("0-1.wav", "every second; one"), "a c"),
        Pair(("1-1.wav", ""), "h"),
        Pair(("1-1.wav", ""), "h h"),
        Pair(("", "reverse"), "b"),
        Pair(("", "reverse"), "c"),
    )
    assert corpus.num_empty == 1
    assert corpus.counts.without == {"audio": 2, "how": 2}
    missing = "2 rows without column 'how', 2 rows without column 'audio'"  # in the order of their first rows
    assert missing in corpus.counts.describe()
    assert file_and_text(corpus.pairs[0].source) == ("0-1.wav", "every second; one")
    assert file_and_text(("", "reverse")) == ("", "reverse")
    assert recognise([pair.source for pair in corpus.pairs], tmp_path) is Sounds
    found = suggest(corpus.pairs, root=tmp_path)
    assert "its auxiliary text" in found.reasons["data.source_columns"]
    with pytest.raises(UserError, match=r"rows\.jsonl:5: expected a text for the key 'audio' as in the first object"):
        read_pairs(tmp_path / "rows.jsonl", Columns(("audio",), "text"))


def test_both_sources_are_encoded_and_stored(tmp_path: Path) -> None:
    pairs = read_pairs(write_rows(tmp_path), Columns(("audio", "how"), "text")).pairs
    data = DataSettings(source_columns=("audio", "how"), source_unit="sound", target_unit="symbols")
    training_data = in_memory("rows", pairs, [], data, root=tmp_path)
    sounds = training_data.codecs.source
    assert isinstance(sounds, Sounds)
    assert auxiliary_vocabulary_size(sounds) == 4 + 5
    rows = [example.source for example in training_data.examples]
    assert [len(row.text) for row in rows] == [4, 0, 0, 1, 1]
    assert [row.file.shape for row in rows[3:]] == [(0, 80)] * 2
    np.testing.assert_array_equal(rows[0].file, Sounds(8000, root=tmp_path).encode("0-1.wav"))
    assert training_data.lengths.tensors[0].tolist() == [num_positions(row.file) + len(row.text) for row in rows]
    assert sounds.auxiliary_labels(pairs[0].source) == ("every", "second", ";", "one", "<eos>")
    assert sounds.unknown(("0-1.wav", "every third")) == ("third",)
    again = read_source(sounds.to_json()).at(tmp_path)
    assert again.encode(pairs[0].source).text == rows[0].text
    write_store(tmp_path / "store", training_data.examples, len(sounds), 9)
    store = Store.open(tmp_path / "store")
    for stored, example in zip(store, training_data.examples, strict=True):
        np.testing.assert_array_equal(stored.source.file, example.source.file)
        assert (stored.source.text, stored.target) == (example.source.text, example.target)
    assert store.lengths().tensors[0].tolist() == training_data.lengths.tensors[0].tolist()
    varied = training_data.batches(TRAIN, 0.0, 1, augment=0.1)(0)
    assert varied[0].source.auxiliary is not None
    assert varied[0].source.values.shape[2] == 40


def test_an_instruction_is_read_alike_in_training_and_in_every_use(tmp_path: Path) -> None:
    """A ; in the instruction was dropped in training, where columns were joined as features, and was <unk> in translation."""
    pairs = read_pairs(write_rows(tmp_path), Columns(("audio", "how"), "text")).pairs
    data = DataSettings(source_columns=("audio", "how"), source_unit="sound", target_unit="symbols")
    training_data = in_memory("rows", pairs, [], data, root=tmp_path)
    reader = training_data.codecs.reader
    row = training_data.examples[0].source
    for given in (("0-1.wav", "every second; one"), "0-1.wav\tevery second; one", (Path("0-1.wav"), "every second; one")):
        source = reader.accept(given, "a call of the model")
        assert reader.segment(source).request.source.text == row.text
        assert reader.unknown(source) == ()
    assert reader.line("0-1.wav\t every second; one \n") == ("0-1.wav", "every second; one")


def test_a_damaged_auxiliary_tokenizer_is_refused(tmp_path: Path) -> None:
    sounds = Sounds(8000, auxiliary=Codec.train(["a b"], "words"))
    broken = json.loads(sounds.to_json())
    broken["auxiliary"] = {"model": {}}
    with pytest.raises(UserError, match="the tokenizer of the auxiliary texts cannot be read"):
        read_source(json.dumps(broken))
