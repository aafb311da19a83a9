"""Sources that are files: reading and storing them, and training on them, with damaged files among them."""

import io
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from safetensors.torch import save_file
from table import make_frontend_model, make_rows

import regard
from regard.checkpoint import folder
from regard.contracts import SourceText
from regard.core.arrays import as_array
from regard.core.losses import Baseline
from regard.data.arrays import read_array
from regard.data.batch import Batches, BatchOrder, Example, collate, lengths, source_batch
from regard.data.codecs import FILE_CODECS, read_source, recognise
from regard.data.corpus import Pair
from regard.data.features import Frames, Grids
from regard.data.pictures import Pictures
from regard.data.sources import num_positions
from regard.data.store import Store, write_store
from regard.errors import UserError
from regard.look import Look, Tap
from regard.models.build import build
from regard.models.rnn_seq2seq import RnnSeq2Seq, RnnSettings
from regard.models.transformer import TransformerSettings
from regard.training.objective import batch_loss
from regard.training.overrides import override
from regard.training.run import run
from regard.training.settings import DataSettings, RunSettings, TrainSettings
from regard.training.suggest import suggest
from regard.training.survey import survey
from regard.training.tokenise import from_files

COLOURS = {"red": (230, 20, 30), "green": (10, 200, 40), "blue": (20, 40, 220)}


def draw_squares(pictures_folder: Path, number: int) -> list[dict[str, str]]:
    """Draws pictures of one coloured square each; returns their paths and descriptions."""
    chance, rows = random.Random(7), []
    pictures_folder.mkdir(parents=True, exist_ok=True)
    for index in range(number):
        colour, side = chance.choice(list(COLOURS)), chance.choice(["left", "right"])
        picture = Image.new("RGB", (32, 16), (chance.randrange(200, 256),) * 3)
        picture.paste(COLOURS[colour], (x := 2 if side == "left" else 18, 4, x + 10, 12))
        picture.save(pictures_folder / f"{index}.png")
        rows.append({"image": f"{pictures_folder.name}/{index}.png", "text": f"{colour} on the {side}"})
    return rows


def write_rows(path: Path, rows: list[dict[str, str]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def quiet() -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=200, highlight=False, markup=False, soft_wrap=True), out


# --- arrays ------------------------------------------------------------------------------------------------------------------


FLOATS, INTEGERS = ["<f2", "<f4", "<f8", ">f2", ">f4", ">f8"], ["|i1", "<i2", ">i4", "<i8", "|u1", ">u2", "<u4", "<u8", "|b1"]


@pytest.mark.parametrize("dtype", FLOATS + INTEGERS)
@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 7), (0, 4), (1,), ()])
def test_arrays_of_numpy_are_read(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    array = np.asarray(np.random.default_rng(3).random(shape) * 120, dtype=dtype)
    np.save(tmp_path / "c.npy", array)
    np.save(tmp_path / "fortran.npy", np.asfortranarray(array))
    with open(tmp_path / "two.npy", "wb") as file:
        np.lib.format.write_array(file, array, version=(2, 0))
    for name in ("c.npy", "fortran.npy", "two.npy"):
        found = read_array(tmp_path / name)
        np.testing.assert_array_equal(found.numpy(), array)
        assert found.dtype == torch.from_numpy(array.astype(array.dtype.newbyteorder("="))).dtype
        assert found.is_contiguous()
        np.testing.assert_array_equal(found.float().numpy(), array.astype(np.float32))  # what features are made of


def test_tensors_of_safetensors_are_read(tmp_path: Path) -> None:
    tensor = torch.randn(3, 5)
    save_file({"features": tensor}, tmp_path / "c.safetensors")
    assert torch.equal(read_array(tmp_path / "c.safetensors"), tensor)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint16, torch.bool])
def test_tensors_become_arrays(dtype: torch.dtype) -> None:
    tensor = (torch.rand(3, 5) * 9).to(dtype)
    array = as_array(tensor.T)
    assert array.tolist() == tensor.T.tolist()
    assert array.dtype == (np.float32 if dtype == torch.bfloat16 else tensor.numpy().dtype)
    assert as_array(torch.ones(2, requires_grad=True)).tolist() == [1, 1]


def test_files_that_are_not_plain_arrays_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "good.npy", np.zeros((3, 5), np.float32))
    good = (tmp_path / "good.npy").read_bytes()
    np.save(tmp_path / "objects.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    np.save(tmp_path / "complex.npy", np.zeros((2, 3), dtype="c8"))
    np.save(tmp_path / "texts.npy", np.array(["a", "b"]))
    np.save(tmp_path / "times.npy", np.zeros(3, dtype="M8[s]"))
    with open(tmp_path / "three.npy", "wb") as file:
        np.lib.format.write_array(file, np.zeros(2), version=(3, 0))
    (tmp_path / "short.npy").write_bytes(good[:-1])
    (tmp_path / "long.npy").write_bytes(good + b"\0")
    (tmp_path / "text.npy").write_text("no array")
    (tmp_path / "empty.npy").write_bytes(b"")
    (tmp_path / "magic.npy").write_bytes(good[:7])
    (tmp_path / "header.npy").write_bytes(good[:12] + b"{" + good[13:])
    (tmp_path / "size.npy").write_bytes(good.replace(b"(3, 5)", b"(9**9,"))
    save_file({"a": torch.zeros(2), "b": torch.zeros(2)}, tmp_path / "two.safetensors")
    (tmp_path / "bad.safetensors").write_bytes(b"12345678901234")
    for name, text in {
        "objects.npy": r"contains numbers of type '\|O', expected floating-point numbers, integers or booleans of at most",
        "complex.npy": "contains numbers of type '<c8'",
        "texts.npy": "contains numbers of type '<U1'",
        "times.npy": r"contains numbers of type '<M8\[s\]'",
        "three.npy": r"has version '3\.0' of the .npy format, expected 1\.0 or 2\.0",
        "magic.npy": "has version '1' of the .npy format",
        "short.npy": r"damaged: its header declares the shape \(3, 5\), which takes 60 bytes, but 59 follow",
        "long.npy": "but 61 follow",
        "text.npy": "is not a .npy file: it starts with b'no arr'",
        "empty.npy": "is not a .npy file",
        "header.npy": "its header cannot be read",
        "size.npy": "its header cannot be read",
        "two.safetensors": r"contains 2 tensors \(a, b\), expected one",
        "bad.safetensors": "is damaged or not a safetensors file",
        "none.npy": "no such file",
        "none.safetensors": "no such file",
    }.items():
        with pytest.raises(UserError, match=text) as caught:
            read_array(tmp_path / name)
        assert name in str(caught.value)


def header(descr: object = "<f4", shape: object = (3, 5), fortran: object = False, text: str = "\n") -> bytes:
    """A .npy file of zeros, with this header."""
    words = repr({"descr": descr, "fortran_order": fortran, "shape": shape}) + text
    return b"\x93NUMPY\x02\x00" + len(words).to_bytes(4, "little") + words.encode("latin-1") + bytes(60)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (header([("a", "<f4"), ("b", "<f4")]), r"numbers of type \[\('a', '<f4'\), \('b', '<f4'\)\], expected"),
        (header("<f16"), "numbers of type '<f16'"),
        (header("(2,)<f4"), "numbers of type"),
        (header(["<f4"]), "its header cannot be read"),
        (header({"a": ()}), "its header cannot be read"),
        (header(()), "its header cannot be read"),
        (header(None), "its header cannot be read"),
        (header("nonsense"), "its header cannot be read"),
        (header(shape=[3, 5]), "its header cannot be read"),
        (header(shape=(3, 5.0)), "its header cannot be read"),
        (header(shape=(True, 15)), "its header cannot be read"),
        (header(shape=(-3, -5)), "its header cannot be read"),
        (header(shape="ab"), "its header cannot be read"),
        (header(fortran=0), "its header cannot be read"),
        (header(shape=(0, 2**62, 2**62)), "expected two to four axes of moderate size"),
        (header(shape=(2**62, 2**62)), "expected two to four axes of moderate size"),
        (header(shape=(1,) * 40), "has 40 axes of sizes"),
        (header(text=" " * 100_000), "its header cannot be read"),
        (header(text="(" * 5_000), "its header cannot be read"),
        (header(text="#" + "x" * 20_000_000), "its header cannot be read"),
    ],
)
def test_headers_of_numpy_are_read_strictly(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "a.npy").write_bytes(header())
    assert read_array(tmp_path / "a.npy").shape == (3, 5)
    (tmp_path / "a.npy").write_bytes(content)
    with pytest.raises(UserError, match=words) as caught:
        read_array(tmp_path / "a.npy")
    assert len(str(caught.value)) - len(str(tmp_path)) < 300


@pytest.mark.parametrize(
    ("kind", "shape", "size", "words"),
    [
        ("F4", [8], 4, "numbers of type F4, expected one of BF16, BOOL, F16, F32"),
        ("F6_E2M3", [8], 6, "numbers of type F6_E2M3"),
        ("F8_E8M0", [8], 8, "numbers of type F8_E8M0"),
        ("C64", [1], 8, "numbers of type C64"),
        ("U64", [1], 8, "numbers of type U64"),
        ("F32", [0, 2**62, 2**62], 0, "expected two to four axes of moderate size"),
        ("F32", [1] * 5000, 4, "has 5000 axes"),
        ("F32", [2**62, 2**62], 4, "is damaged or not a safetensors file"),
        ("X", [1], 4, "is damaged or not a safetensors file"),
    ],
)
def test_headers_of_safetensors_are_read_strictly(tmp_path: Path, kind: str, shape: list[int], size: int, words: str) -> None:
    text = json.dumps({"a": {"dtype": kind, "shape": shape, "data_offsets": [0, size]}}).encode()
    (tmp_path / "a.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + bytes(size))
    with pytest.raises(UserError, match=words) as caught:
        read_array(tmp_path / "a.safetensors")
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) - len(str(tmp_path)) < 300


# --- features ----------------------------------------------------------------------------------------------------------------


def test_features_are_normalised_by_the_training_data(tmp_path: Path) -> None:
    torch.manual_seed(3)
    grids = [torch.randn(rows, columns, 3) * torch.tensor([1.0, 5.0, 0.0]) + 2 for rows, columns in ((2, 3), (4, 1), (3, 3))]
    for number, grid in enumerate(grids):
        np.save(tmp_path / f"{number}.npy", grid)
    names = [f"{number}.npy" for number in range(3)]
    codec = Grids.fit(["missing.npy", *names], tmp_path, picture_size=8)
    flat = torch.cat([grid.flatten(0, 1) for grid in grids])
    torch.testing.assert_close(torch.tensor(codec.mean), flat.mean(0))
    torch.testing.assert_close(torch.tensor(codec.deviation)[:2], flat.std(0, unbiased=False)[:2])
    assert codec.deviation[2] == 1.0  # constant: it is not scaled
    np.save(tmp_path / "steady.npy", np.array([[[1.0, 1.0], [1.0 + 2e-7, 1.0 + 2e-5]]], dtype=np.float32))
    steady = Grids.fit(["steady.npy"], tmp_path, picture_size=8)
    assert steady.deviation[0] == 1.0  # a rounding error is no signal
    assert steady.deviation[1] == pytest.approx(1e-5, rel=0.02)
    row = codec.encode("0.npy")
    assert row.shape == (3, 2, 3)  # (features, rows, columns), as for pictures
    expected = (grids[0][1, 2, 1] - flat.mean(0)[1]) / flat.std(0, unbiased=False)[1]
    assert isinstance(row, np.ndarray)
    assert row[1, 1, 2] == pytest.approx(expected.item())
    again = read_source(codec.to_json())
    assert again == codec
    assert again.root == Path()
    np.testing.assert_array_equal(again.at(tmp_path).encode("1.npy"), codec.encode("1.npy"), strict=True)
    assert codec.labels("0.npy", (2, 3)) == ("0,0", "0,1", "0,2", "1,0", "1,1", "1,2")
    with pytest.raises(UserError, match=r"0.npy has shape \(2, 3, 3\), expected \(frames, features\)"):
        Frames.fit(names, tmp_path, picture_size=8)
    np.save(tmp_path / "nan.npy", torch.full((2, 2, 3), torch.nan))
    with pytest.raises(UserError, match=r"nan.npy contains NaN or infinite numbers"):
        codec.encode("nan.npy")
    np.save(tmp_path / "wide.npy", torch.zeros(2, 2, 4))
    with pytest.raises(UserError, match=r"wide.npy has 4 features, but this model reads 3"):
        codec.encode("wide.npy")


def test_a_description_of_a_source_is_read_strictly() -> None:
    good = json.loads(Pictures(3, 64).to_json())
    assert read_source(json.dumps(good)) == Pictures(3, 64)
    for change, text in {
        '{"unit": "smell"}': "unknown unit 'smell'; expected one of picture, sound, whisper, grid, frames",
        "[]": r"the description of a source is \[\], expected a mapping",
        json.dumps({**good, "extra": 1}): "missing or unknown: extra",
        json.dumps({"unit": "picture", "channels": 3}): "missing or unknown: longest",
        json.dumps({**good, "channels": "3"}): "channels",
        json.dumps({**good, "root": "/"}): "missing or unknown: root",
    }.items():
        with pytest.raises(UserError, match=text):
            read_source(change)


@pytest.mark.parametrize(
    ("description", "words"),
    [
        ('{"unit": []}', r"unknown unit \[\]"),
        ('{"unit": "sound", "rate": 0}', "rate is 0, expected 8,000 to 48,000 samples per second"),
        ('{"unit": "sound", "rate": -8000}', "rate is -8000"),
        ('{"unit": "sound", "rate": 1e4}', "rate: Input should be a valid integer"),
        ('{"unit": "sound", "rate": 1000000000}', "rate is 1000000000"),
        ('{"unit": "picture", "channels": 2, "longest": 64}', r"channels is 2, expected 1 \(grey\) or 3"),
        ('{"unit": "picture", "channels": true, "longest": 64}', "channels: Input should be a valid integer"),
        ('{"unit": "picture", "channels": 3, "longest": 0}', "longest is 0, expected 8 to 4,096 pixels"),
        ('{"unit": "picture", "channels": 3, "longest": 1000000000}', "longest is 1000000000"),
        ('{"unit": "frames", "mean": [NaN], "deviation": [1]}', "NaN is not a JSON number"),
        ('{"unit": "frames", "mean": [1e999], "deviation": [1]}', "1e999 is too large for a 64-bit number"),
        ('{"unit": "frames", "mean": [1e300], "deviation": [1]}', "mean is 1e[+]300, expected a finite 32-bit number"),
        (
            '{"unit": "frames", "mean": [0], "deviation": [0]}',
            "deviation is 0.0, expected a finite 32-bit number, at least 1e-06",
        ),
        ('{"unit": "grid", "mean": [0], "deviation": [-1]}', "deviation is -1.0"),
        ('{"unit": "grid", "mean": [], "deviation": []}', "0 means and 0 deviations, expected one of each per feature"),
        ('{"unit": "grid", "mean": [0, 1], "deviation": [1]}', "2 means and 1 deviations"),
        ('{"unit": "frames", "mean": "x", "deviation": {}}', "mean: Input should be a valid"),
        ('{"unit": "sound", "rate": 8000, "auxiliary": []}', r"tokenizer of the auxiliary texts cannot be read: it is \[\]"),
        (
            '{"unit": "sound", "rate": 8000, "auxiliary": {"model": {"type": "BPE"}}}',
            "tokenizer of the auxiliary texts cannot be read",
        ),
    ],
)
def test_numbers_of_a_source_are_in_their_ranges(description: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        read_source(description)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


# --- batches and the store ---------------------------------------------------------------------------------------------------


def test_pictures_and_frames_are_padded_at_their_ends() -> None:
    pictures = [np.full((3, 8, 16), 255, np.uint8), np.zeros((3, 16, 8), np.uint8)]
    source = source_batch(pictures)
    assert source.values.shape == (2, 3, 16, 16)
    assert source.allow.shape == (2, 16, 16)
    assert (source.values[0, :, :8] == 1).all()
    assert (source.values[0, :, 8:] == 0).all()
    assert (source.values[1, :, :, :8] == -1).all()
    assert source.allow[0, :8].all()
    assert not source.allow[0, 8:].any()
    assert source.allow.sum((1, 2)).tolist() == [128, 128]
    frames = source_batch([np.ones((5, 3), np.float32), np.ones((2, 3), np.float32)])
    assert frames.values.shape == (2, 5, 3)
    assert frames.allow.sum(1).tolist() == [5, 2]
    assert [num_positions(row) for row in (pictures[0], np.ones((3, 4, 5)), np.ones((5, 3)), [4, 5])] == [2, 20, 5, 2]


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_the_store_keeps_arrays(tmp_path: Path, dtype: type[np.generic]) -> None:
    rng = np.random.default_rng(1)
    shapes = [(3, 16, 8), (3, 8, 24), (3, 8, 8)]
    examples = [
        Example((rng.random(shape) * 255).astype(dtype), [4 + number] * (number + 1)) for number, shape in enumerate(shapes)
    ]
    assert write_store(tmp_path / "s", iter(examples), 3, 300, {"why": "test"}) == 3
    store = Store.open(tmp_path / "s")
    for one, other in zip(store, examples, strict=True):
        np.testing.assert_array_equal(one.source, other.source, strict=True)
        assert one.target == other.target
    assert torch.equal(store.lengths().tensors[0], lengths(examples).tensors[0])
    assert store.metadata == {"why": "test"}
    with pytest.raises(ValueError, match=r"a source has type float64, unlike those before it"):
        write_store(tmp_path / "t", [*examples, Example(np.zeros((1, 1, 1)), [4])], 3, 300)
    assert not (tmp_path / "t").exists()


def test_augmentation_depends_on_seed_and_update_only() -> None:
    torch.manual_seed(1)
    codec = Pictures(1, 32)
    examples = [Example((torch.rand(1, 16, 32) * 255).to(torch.uint8).numpy(), [4]) for _ in range(6)]
    order = BatchOrder(lengths(examples), batch_tokens=30, seed=5)

    def batches(amount: float) -> Batches:
        def varied(example: Example, chance: random.Random) -> Example:
            assert isinstance(example.source, np.ndarray)
            return Example(codec.varied(torch.from_numpy(example.source), amount, chance).numpy(), example.target)

        return Batches(examples, order, varied)

    (one,), (again,) = batches(0.1)(3), batches(0.1)(3)
    assert torch.equal(one.source.values, again.source.values)
    (plain,), (still,) = Batches(examples, order)(3), batches(0.0)(3)
    assert torch.equal(plain.source.values, still.source.values)
    assert not torch.equal(plain.source.values, one.source.values)
    later = batches(0.1)(3 + order.epoch_length)
    assert one.source.values.shape == later[0].source.values.shape
    variants = [batches(0.1)._example(2, update).source for update in (3, 3, 4)]
    assert np.array_equal(variants[0], variants[1])
    assert not np.array_equal(variants[0], variants[2])  # the next update sees another variant
    blank = torch.full((1, 16, 32), 200, dtype=torch.uint8)
    assert torch.equal(codec.varied(blank, 0.3, random.Random(1)), blank)  # beyond the edge, pixels of the edge are repeated
    marked = torch.zeros(1, 16, 32, dtype=torch.uint8)
    marked[:, 4:8, 4:8] = 255  # left stays left
    for seed in range(20):
        moved = codec.varied(marked, 0.1, random.Random(seed)).float()
        assert moved[:, :, :16].sum() > 10 * moved[:, :, 16:].sum()


# --- from files to a trained model -------------------------------------------------------------------------------------------

SMALL = RunSettings(
    data=DataSettings(source_unit="picture", target_unit="words", picture_size=32, held_out=0.2),
    model=RnnSettings(width=32, embedding=16, score_width=16, frontend="picture", channels=16, dropout=0.0),
    train=TrainSettings(steps=250, batch_tokens=200, learning_rate=5e-3),
)


def test_files_are_recognised_and_settings_chosen(tmp_path: Path) -> None:
    rows = draw_squares(tmp_path / "p", 12)
    data = DataSettings(files=(str(write_rows(tmp_path / "a.jsonl", rows)),))
    found = survey(data)
    assert found.sample[0].source == "p/0.png"
    suggestion = suggest(found.sample, 12, tmp_path)
    chosen = suggestion.settings
    assert (chosen.data.source_unit, chosen.data.target_unit, chosen.model.frontend) == ("picture", "words", "picture")  # type: ignore[union-attr]
    assert "names of pictures, such as p/0.png" in suggestion.reasons["data.source_unit"]
    np.save(tmp_path / "f.npy", torch.zeros(4, 3))
    np.save(tmp_path / "g.npy", torch.zeros(4, 2, 3))
    assert recognise(["gone.npy", "f.npy"], tmp_path) is Frames
    assert recognise(["g.npy"], tmp_path) is Grids
    assert recognise(["a.PNG", "b.jpeg"], tmp_path) is Pictures
    assert recognise(["a.png", "a sentence"], tmp_path) is None
    assert recognise([f"a long line of a log {'x' * 300}.png", "a sentence"], tmp_path) is None
    assert recognise([("a.png", "V")], tmp_path) is Pictures  # with an auxiliary text
    assert set(FILE_CODECS) >= {"picture", "grid", "frames"}


@pytest.mark.parametrize(
    ("sources", "words"),
    [
        (
            ["a.mp3", "b.MP3", "c.ogg"],
            r"3 of 3 sources .* unsupported kind, such as a\.mp3; expected \.apng, \.bmp.*\.wav.* ffmpeg -i a\.mp3 a\.wav",
        ),
        (["p/0.png", "there.mp3", *["some text"] * 18], r"1 of 20 sources .* such as there\.mp3"),  # because the file exists
        (
            ["p/0.png", "some text", "other text"],
            r"1 of 3 sources .* names of pictures, such as p/0\.png, but the others are not",
        ),
        ([("all", "a.wav"), ("first", "b.wav")], r"'a\.wav', after the first source column; .* --from audio,instruction"),
        ([("a.wav", "b.wav"), ("c.wav", "d.wav")], r"'b\.wav', after the first source column"),
    ],
)
def test_file_names_are_not_trained_on_as_texts(tmp_path: Path, sources: list[SourceText], words: str) -> None:
    draw_squares(tmp_path / "p", 1)
    (tmp_path / "there.mp3").write_bytes(b"ID3")
    pairs = [Pair(source, "x") for source in sources]
    with pytest.raises(UserError, match=words + ".*; to train on the names themselves .* data.source_unit=characters"):
        suggest(pairs, root=tmp_path)
    assert suggest(pairs, root=tmp_path, of_text=True).settings.data.source_unit == "characters"


def test_unreadable_rows_are_counted_and_the_first_is_reported_with_its_line(tmp_path: Path) -> None:
    rows = [*draw_squares(tmp_path / "p", 20), *({"image": "p/gone.png", "text": "a"} for _ in range(30))]
    data = DataSettings(files=(str(write_rows(tmp_path / "a.jsonl", rows)),), source_unit="picture")
    console, out = quiet()
    training_data = from_files(data, survey(data), tmp_path / "m.run", console)
    assert len(training_data.examples) + len(training_data.held_out.pairs) == 20
    assert "makes this an error): 30 (1 file)\n  line 21: " in out.getvalue()
    with pytest.raises(UserError, match=r"^a\.jsonl:21: .*gone\.png: no such file; set data.bad_files=skip to skip"):
        from_files(replace(data, bad_files="stop"), survey(data), tmp_path / "n.run", console)
    (tmp_path / "sub").mkdir()
    data = replace(data, files=(str(write_rows(tmp_path / "sub" / "a.jsonl", rows)),))
    with pytest.raises(
        UserError,
        match=r"none of the first \d+ pictures can be read; the first error: .*no such file\. Are the file names relative",
    ):
        from_files(data, survey(data), tmp_path / "o.run", console)


@pytest.mark.slow
def test_a_model_of_pictures_is_trained_saved_and_used(tmp_path: Path) -> None:  # SPEC A8.1
    """Damaged files among the pictures are counted, reported and left out."""
    rows = draw_squares(tmp_path / "p", 150)
    (tmp_path / "p" / "3.png").write_bytes(b"this is no picture")
    (tmp_path / "p" / "5.png").write_bytes((tmp_path / "p" / "5.png").read_bytes()[:60])
    (tmp_path / "p" / "7.png").unlink()
    settings = replace(SMALL, data=replace(SMALL.data, files=(str(write_rows(tmp_path / "a.jsonl", rows)),), augment=0.05))
    console, out = quiet()
    run_folder = tmp_path / "m.run"
    training_data = from_files(settings.data, survey(settings.data), run_folder, console)
    assert len(training_data.examples) + len(training_data.held_out.pairs) == 147
    printed = out.getvalue()
    assert "skipped because their file cannot be read (data.bad_files=stop makes this an error): 3\n" in printed
    for line, name, why in ((4, "3", "is not a picture"), (6, "5", "cannot be read as a picture"), (8, "7", "no such file")):
        assert any(f"line {line}: " in row and f"{name}.png" in row and why in row for row in printed.splitlines()), printed
    trained = run(training_data, settings, console, torch.device("cpu"))
    assert "colour pictures of at most 32 pixels" in out.getvalue()
    assert trained.rates.sequence < 0.1
    folder.save(trained.saved, tmp_path / "m")
    assert {path.name for path in (tmp_path / "m").iterdir()} >= {"source.json", "target.tokenizer.json"}

    translator = regard.load(tmp_path / "m")
    name = str(tmp_path / "p" / "0.png")
    result = translator(name)
    assert result.text == rows[0]["text"]
    assert result.source_tokens == ()
    one, other = translator.batch([name, str(tmp_path / "p" / "1.png")], beam=3)
    assert (one.text, other.text) == (rows[0]["text"], rows[1]["text"])
    attention = result.attention()
    assert attention.source == tuple(f"{row},{column}" for row in range(2) for column in range(4))
    assert attention.weights_HTS.shape == (1, 5, 8)
    assert sorted(j for _, j in result.alignment()) == [0, 1, 2, 3]
    (scored,) = translator.score([name], [rows[0]["text"]])
    assert scored.log_prob == pytest.approx(result.log_prob, abs=1e-4)
    with pytest.raises(UserError, match=r"7.png: no such file"):
        translator(str(tmp_path / "p" / "7.png"))
    with pytest.raises(UserError, match="explain follows tokens, but this model reads pictures"):
        regard.explain(translator, name)

    console, out = quiet()
    later = from_files(settings.data, survey(settings.data), run_folder, console, resuming=True)
    assert later.digest == training_data.digest
    assert "cannot be read" in out.getvalue()  # reported again, without reading the files again
    Image.new("RGB", (33, 47)).save(tmp_path / "p" / "9.png")
    with pytest.raises(UserError, match="the training data changed since this run started"):
        from_files(settings.data, survey(settings.data), run_folder, console, resuming=True)
    with pytest.raises(UserError, match=r"3.png is not a picture.*data.bad_files=skip"):
        from_files(replace(settings.data, bad_files="stop"), survey(settings.data), tmp_path / "o", console)


def test_held_out_pictures_may_be_in_another_folder(tmp_path: Path) -> None:
    rows, others = draw_squares(tmp_path / "one" / "p", 20), draw_squares(tmp_path / "two" / "q", 5)
    data = replace(
        SMALL.data,
        files=(str(write_rows(tmp_path / "one" / "a.jsonl", rows)),),
        held_out_files=(str(write_rows(tmp_path / "two" / "b.jsonl", others)),),
    )
    training_data = from_files(data, survey(data), tmp_path / "run", quiet()[0])
    assert (len(training_data.examples), len(training_data.held_out.pairs)) == (20, 5)
    assert training_data.codecs.source.encode(training_data.held_out.pairs[0].source).shape == (3, 16, 32)  # type: ignore[union-attr]


def test_when_no_file_can_be_read_the_first_reason_is_reported(tmp_path: Path) -> None:
    rows = [{"image": f"{number}.png", "text": "a"} for number in range(9)]
    data = replace(SMALL.data, files=(str(write_rows(tmp_path / "a.jsonl", rows)),))
    with pytest.raises(UserError, match=r"\d.png: no such file"):
        from_files(data, survey(data), tmp_path / "run", quiet()[0])


@pytest.mark.slow
def test_a_model_of_frames_is_trained(tmp_path: Path) -> None:
    chance, rows = random.Random(5), []
    for number in range(150):
        word = [chance.randrange(4) for _ in range(chance.randrange(1, 4))]
        frames = torch.cat([F * torch.ones(chance.randrange(2, 4), 1) for F in torch.eye(4)[word].unsqueeze(1)])
        np.save(tmp_path / f"{number}.npy", frames)
        rows.append({"features": f"{number}.npy", "text": " ".join("abcd"[letter] for letter in word)})
    settings = RunSettings(
        data=replace(
            SMALL.data,
            files=(str(write_rows(tmp_path / "a.jsonl", rows)),),
            source_unit="frames",
            target_unit="symbols",
        ),
        model=RnnSettings(width=32, embedding=16, score_width=16, frontend="frames", dropout=0.0),
        train=TrainSettings(steps=200, batch_tokens=200, learning_rate=8e-3),
    )
    training_data = from_files(settings.data, survey(settings.data), tmp_path / "run", quiet()[0])
    trained = run(training_data, settings, quiet()[0], torch.device("cpu"))
    assert trained.rates.symbol < 0.25
    result = trained.translator(rows[0]["features"])
    assert result.attention().source == tuple(map(str, range(len(read_array(tmp_path / "0.npy")))))


@pytest.mark.parametrize("name", ["picture, luong", "picture, bahdanau lstm", "picture, transformer"])
def test_the_doubly_stochastic_loss_is_its_formula(name: str) -> None:  # SPEC A8.1
    """Σ_i (1 − Σ_t α_ti)² over the real positions and words of every picture, and it changes the gradient."""
    model, rows = make_frontend_model(name), make_rows(name)
    batch = collate([Example(row, [4 + number] * (number + 1)) for number, row in enumerate(rows)])
    plain, _ = batch_loss(model, batch, TrainSettings(), Baseline())
    model.zero_grad()
    total, _ = batch_loss(model, batch, TrainSettings(doubly_stochastic=0.7), Baseline())
    total.backward()
    gradient = sum(weight.grad.abs().sum().item() for weight in model.parameters() if weight.grad is not None)
    expected = 0.0
    for number, row in enumerate(rows):
        memory = model.encode(source_batch([row]))
        ids = batch.target_in_BT[number : number + 1, : number + 2]
        (seen,) = model.decode(ids, memory, Look((Tap("cross", layer=-1),))).seen
        expected += (1 - seen.weights_BHTS[0].mean(0).sum(0)).square().sum().item()
    assert total.item() - plain.item() == pytest.approx(0.7 * expected, rel=1e-9)
    model.zero_grad()
    batch_loss(model, batch, TrainSettings(), Baseline())[0].backward()
    assert (
        abs(sum(weight.grad.abs().sum().item() for weight in model.parameters() if weight.grad is not None) - gradient) > 1e-3
    )


def test_hard_attention_to_pictures_learns_by_the_policy_gradient() -> None:  # SPEC A8.2
    """No gradient flows through a decision; the score and the network before it learn from the reward of the sample."""
    model = make_frontend_model("picture, hard").train()
    batch = collate([Example(row, [4, 5, 6]) for row in make_rows("picture")])
    torch.manual_seed(3)
    total, baseline = batch_loss(model, batch, TrainSettings(), Baseline())
    total.backward()
    gradients = {name: one.grad.abs().sum().item() for name, one in model.named_parameters() if one.grad is not None}
    assert all(gradients[name] > 0 for name in gradients if name.startswith(("score.", "source_embedding.halve.")))
    assert any(name.startswith("score.") for name in gradients)
    assert baseline != Baseline()
    torch.manual_seed(3)
    decoded = model.decode(batch.target_in_BT, model.encode(batch.source))
    assert decoded.attention_log_prob_BT is not None
    model.zero_grad()
    decoded.logits_BTV.sum().backward()  # the logits alone give the score no gradient
    assert all(one.grad is None or not one.grad.any() for name, one in model.named_parameters() if name.startswith("score."))


@pytest.mark.parametrize(("frontend", "size", "smaller"), [("grid", (4, 5), (2, 3)), ("video_grid", (3, 4, 5), (2, 2, 3))])
def test_a_recurrent_encoder_reads_each_row_of_a_grid(
    frontend: Literal["grid", "video_grid"], size: tuple[int, ...], smaller: tuple[int, ...]
) -> None:
    """x + [forwards; backwards], each row by itself, with torch's GRU; the second grid has fewer rows and columns."""
    torch.manual_seed(1)
    settings = RnnSettings(width=20, encoder_width=16, embedding=7, frontend=frontend, row_encoder=True, dropout=0.0)
    model = build(settings, 3, 9)
    assert isinstance(model, RnnSeq2Seq)
    whole, small = (torch.randn(3, *axes).numpy() for axes in (size, smaller))
    memory = model.encode(source_batch([whole, small]))
    summaries = []
    for number, grid in enumerate((whole, small)):
        cells_RCE = model.source_embedding(source_batch([grid])).x_BSD.unflatten(1, (-1, grid.shape[-1]))[0]
        real = tuple(slice(length) for length in grid.shape[1:])
        expected_RCE = memory.values_BSE[number].unflatten(0, size)[real].flatten(0, -3)
        for cells_CE, expected_CE in zip(cells_RCE, expected_RCE, strict=True):
            ahead = model.encoder.forwards[0](cells_CE[None])[0][0]
            back = model.encoder.backwards[0](cells_CE.flip(0)[None])[0][0].flip(0)
            torch.testing.assert_close(expected_CE, cells_CE + torch.cat((ahead, back), dim=-1))
        summaries.append(expected_RCE.mean((0, 1)))
    torch.testing.assert_close(memory.summary_BE, torch.stack(summaries))
    with pytest.raises(ValueError, match=r"frontend=tokens has none; set row_encoder=false"):
        RnnSettings(row_encoder=True)


def test_another_kind_of_model_still_reads_pictures() -> None:
    changed = override(SMALL, ["model.kind=transformer"])
    assert changed.model.frontend == "picture"  # type: ignore[union-attr]
    assert override(SMALL, ["model.kind=tiny", "model.frontend=patches"]).model.frontend == "patches"  # type: ignore[union-attr]
    with pytest.raises(UserError, match=r"the model reads tokens"):
        override(SMALL, ["model.kind=decoder_only"])


def test_settings_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UserError, match=r"the model reads tokens .*unit picture; set model.frontend=picture or patches"):
        override(RunSettings(), ["data.source_unit=picture"])
    with pytest.raises(UserError, match=r"the model reads picture .*unit characters; set model.frontend=tokens"):
        override(RunSettings(), ["model.frontend=picture"])
    with pytest.raises(UserError, match=r"this model has no soft attention to its source; set train.doubly_stochastic=0"):
        override(RunSettings(), ["train.doubly_stochastic=1", "model.attention=hard"])
    with pytest.raises(UserError, match="this model has no soft attention"):
        override(RunSettings(), ["train.doubly_stochastic=1", "model.decoder=fixed"])
    with pytest.raises(ValueError, match="frontend=patches requires an encoder with self-attention"):
        RnnSettings(frontend="patches")
    with pytest.raises(ValueError, match="width 22 cannot hold sines and cosines of both rows and columns"):
        RnnSettings(width=22, frontend="picture")
    with pytest.raises(ValueError, match="channels is 10, but the first stage"):
        RnnSettings(frontend="picture", channels=10)
    with pytest.raises(ValueError, match="tie=all shares the embedding of source tokens, but this model reads patches"):
        TransformerSettings(frontend="patches", tie="all")
    assert collate([Example([4], [5])]).source.values.tolist() == [[4, 3]]
