"""Reading videos of every kind, and drawing maps over their frames."""

import base64
import io
import math
import random
import re
import struct
import sys
import warnings
import zlib
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from films import draw_films
from PIL import Image
from test_sources import quiet

import regard
from regard.cli.main import main
from regard.data import frames
from regard.data.codecs import read_source, recognise
from regard.data.features import Grids
from regard.data.frames import frame_files, is_video, num_frames, spaced
from regard.data.pictures import Pictures
from regard.data.source_text import file_and_text
from regard.data.sources import file_batch, num_positions
from regard.data.tokenizers.codec import Codec
from regard.data.videos import VideoGrids, Videos, sheet_columns
from regard.errors import UserError
from regard.inspection import report
from regard.inspection.capture import LONGEST, inspect
from regard.inspection.render import in_words
from regard.layers.frontends import TimeBlock
from regard.models.build import build
from regard.models.rnn_seq2seq import RnnSettings
from regard.models.transformer import TransformerSettings
from regard.results import AttentionMap
from regard.training.settings import DataSettings
from regard.training.suggest import suggest
from regard.training.survey import survey
from regard.training.tokenise import from_files

COLOURS = ("red", "green", "blue", "white", "black", "yellow", "gray")


def make_frames(number: int, size: tuple[int, int] = (40, 24)) -> list[Image.Image]:
    """Frames of one colour each, with a mark that moves to the right."""
    pictures = []
    for index in range(number):
        frame = Image.new("RGB", size, COLOURS[index % len(COLOURS)])
        frame.paste((1, 2, 250), (index, 0, index + 1, 1))
        pictures.append(frame)
    return pictures


def write_video(path: Path, pictures: list[Image.Image]) -> Path:
    """Writes frames as a file, by its suffix, or as a folder if it has none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npy":
        np.save(path, np.stack([np.asarray(picture) for picture in pictures]))
    elif path.suffix:
        kind = {"save_all": True, "append_images": pictures[1:], "duration": 100} if len(pictures) > 1 else {}
        pictures[0].save(path, **kind, **({"lossless": True} if path.suffix == ".webp" else {}))
    else:
        path.mkdir()
        for number, picture in enumerate(pictures):
            picture.save(path / f"frame {number}.png")
    return path


NAMES = ["a.gif", "a.webp", "a.png", "a.apng", "folder", "a.npy"]


@pytest.mark.parametrize("name", NAMES)
def test_frames_of_every_kind_of_video(tmp_path: Path, name: str) -> None:  # SPEC A8.5
    """Each frame has its own pixels, in the order of time; twelve frames of a folder are in natural order."""
    pictures = make_frames(12)
    path = write_video(tmp_path / name, pictures)
    assert num_frames(path) == 12
    assert is_video(path)
    row = Videos(3, 64, 20, root=tmp_path).encode(name)
    assert row.dtype == np.uint8
    assert row.shape == (3, 12, 24, 40)
    expected = np.stack([np.asarray(picture) for picture in pictures])
    assert np.abs(row.transpose(1, 2, 3, 0).astype(int) - expected).max() == 0
    assert num_positions(row) == 12 * 3 * 5
    grey = Videos(1, 24, 20, root=tmp_path).encode(name)
    assert grey.shape == (1, 12, 16, 24)  # the longer side has 24 pixels, both are multiples of 8
    grey_picture = pictures[3].convert("L").resize((24, 16))
    np.testing.assert_array_equal(grey[0, 3], np.asarray(grey_picture))


def test_long_videos_are_read_evenly_and_this_is_said(tmp_path: Path) -> None:  # SPEC A8.5
    assert spaced(5, 9) == [0, 1, 2, 3, 4]
    assert spaced(10, 4) == [0, 3, 6, 9]
    assert spaced(100, 1) == [0]
    assert spaced(100, 2) == [0, 99]
    for number in range(2, 60):
        for most in range(2, number):
            chosen = spaced(number, most)
            assert (len(set(chosen)), chosen[0], chosen[-1]) == (most, 0, number - 1)
            assert max(abs(index - at * (number - 1) / (most - 1)) for at, index in enumerate(chosen)) <= 0.5
    for name in NAMES:
        write_video(tmp_path / name, make_frames(10))
        row = Videos(3, 64, 4, root=tmp_path).encode(name)
        whole = Videos(3, 64, 10, root=tmp_path).encode(name)
        np.testing.assert_array_equal(row, whole[:, [0, 3, 6, 9]])
        note = Videos(3, 64, 4, root=tmp_path).left_out(name)
        assert note == f"{name} has 10 frames, of which 4 are read, evenly spaced (data.max_frames)"
        assert not Videos(3, 64, 10, root=tmp_path).left_out(name)
    translator = make_translator(tmp_path, most_frames=3)
    with pytest.warns(UserWarning, match=r"v\.gif has 4 frames, of which 3 are read, evenly spaced"):
        result = translator("v.gif", max_length=3)
    assert result.attention().axes == (3, 3, 5)


def test_numbers_in_the_names_of_frames_count(tmp_path: Path) -> None:
    names = ["10.png", "9.png", "f2b.png", "f10b.png", "f2a.png", "1.png", ".hidden", "09.png"]
    for name in names:
        Image.new("L", (8, 8)).save(tmp_path / name, "PNG")
    assert [path.name for path in frame_files(tmp_path)] == [
        "1.png", "09.png", "9.png", "10.png", "f2a.png", "f2b.png", "f10b.png",
    ]  # fmt: skip
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(UserError, match=r"contains files that are no pictures \(notes.txt\), expected only the frames of one"):
        frame_files(tmp_path)


def test_a_file_with_one_frame_is_a_picture(tmp_path: Path) -> None:  # SPEC A8.5
    """The number of frames in the header decides, not the suffix; a minority of animated files changes nothing."""
    for suffix in (".gif", ".webp", ".png"):
        for number in range(3):
            write_video(tmp_path / f"still{number}{suffix}", make_frames(1))
            write_video(tmp_path / f"film{number}{suffix}", make_frames(2 + number))
        still, films = ([f"{kind}{number}{suffix}" for number in range(3)] for kind in ("still", "film"))
        assert [is_video(tmp_path / name) for name in (*still, *films)] == [False] * 3 + [True] * 3
        assert recognise(still, tmp_path) is Pictures
        assert recognise(films, tmp_path) is Videos
        assert recognise([*films[:1], *still], tmp_path) is Pictures
        assert recognise([*films[:2], *still[:1], "gone.gif"], tmp_path) is Videos
    for number in range(3):
        write_video(tmp_path / f"folder{number}", make_frames(1 + number))
        np.save(tmp_path / f"{number}.npy", np.zeros((2, 8, 8, 3), np.uint8))
        np.save(tmp_path / f"features{number}.npy", np.zeros((2, 8, 8, 3), np.float32))
    assert recognise([f"folder{number}" for number in range(3)], tmp_path) is Videos
    assert recognise(["folder0", *["a text"] * 5], tmp_path) is None
    (tmp_path / "words").mkdir()
    assert recognise(["words"], tmp_path) is None  # a folder without pictures
    assert recognise([("folder0", "what is it")], tmp_path) is Videos
    assert recognise([f"{number}.npy" for number in range(3)], tmp_path) is Videos
    assert recognise([f"features{number}.npy" for number in range(3)], tmp_path) is VideoGrids
    np.save(tmp_path / "grid.npy", np.zeros((8, 8, 3), np.uint8))
    assert recognise(["grid.npy"], tmp_path) is Grids
    with pytest.raises(UserError, match=r"such as a\.mp4; .* ffmpeg -i a\.mp4 -vf fps=4,scale=64:-2 a\.gif"):
        recognise(["a.mp4"], tmp_path)


def apng_with(frames_declared: int, content: bytes) -> bytes:
    """An animated PNG whose header declares another number of frames."""
    at = content.index(b"acTL")
    chunk = b"acTL" + struct.pack(">I", frames_declared) + content[at + 8 : at + 12]
    return content[:at] + chunk + struct.pack(">I", zlib.crc32(chunk)) + content[at + 16 :]


def test_unreadable_videos_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # SPEC A8.5
    rng = np.random.default_rng(1)
    noise = [Image.fromarray(rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)) for _ in range(4)]
    content = {name: write_video(tmp_path / name, noise).read_bytes() for name in ("a.gif", "a.webp", "a.png")}
    write_video(tmp_path / "sizes", [Image.new("L", (8, 8)), Image.new("L", (16, 8))])
    (tmp_path / "empty").mkdir()
    np.save(tmp_path / "floats.npy", np.zeros((2, 8, 8, 3)))
    np.save(tmp_path / "five.npy", np.zeros((2, 8, 8, 5), np.uint8))
    np.save(tmp_path / "three.npy", np.zeros((2, 8, 8), np.uint8))
    np.save(tmp_path / "none.npy", np.zeros((0, 8, 8, 3), np.uint8))
    np.save(tmp_path / "objects.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    files = {
        "cut.gif": (content["a.gif"][: len(content["a.gif"]) // 2], "cut.gif cannot be read as a picture"),
        "cut.webp": (content["a.webp"][: len(content["a.webp"]) // 2], "cut.webp cannot be read as a picture"),
        "cut.png": (content["a.png"][: len(content["a.png"]) // 2], "cut.png cannot be read as a picture"),
        "lies.png": (apng_with(9, content["a.png"]), "lies.png cannot be read as a picture"),
        "many.png": (apng_with(2_000_000, content["a.png"]), r"many.png has more than 100,000 frames"),
        "text.gif": (b"no video", "text.gif is not a picture"),
        "cut.npy": ((tmp_path / "five.npy").read_bytes()[:-1], "cut.npy is damaged: its header declares"),
        "floats.npy": (None, r"floats.npy has shape \(2, 8, 8, 3\) and numbers of type float64, expected \(time, rows"),
        "five.npy": (None, r"five.npy has shape \(2, 8, 8, 5\) and numbers of type uint8"),
        "three.npy": (None, r"three.npy has shape \(2, 8, 8\)"),
        "none.npy": (None, r"none.npy has shape \(0, 8, 8, 3\), which holds no numbers"),
        "objects.npy": (None, r"objects.npy contains numbers of type '\|O'"),
        "sizes": (None, r"frame 1 of .*sizes has 16 x 8 pixels, but the first has 8 x 8; scale all frames to one size"),
        "empty": (None, "empty is a folder without pictures"),
        "gone.gif": (None, "gone.gif: no such file"),
    }
    codec = Videos(3, 64, 20, root=tmp_path)
    for name, (raw, why) in files.items():
        if raw is not None:
            (tmp_path / name).write_bytes(raw)
        with pytest.raises(UserError, match=why) as caught:
            codec.encode(name)
        assert str(tmp_path / name) in str(caught.value)
    monkeypatch.setattr(frames, "MOST_PIXELS", 3 * 1600)
    for name in ("a.gif", "a.webp", "a.png"):
        with pytest.raises(
            UserError, match=rf"{name} has 4 or more frames of 40 x 40 pixels, expected at most 4,800 pixels in"
        ):
            codec.encode(name)
    monkeypatch.setattr(frames, "MOST_FRAMES", 3)
    for name in ("a.gif", "a.webp", "a.png"):
        with pytest.raises(UserError, match=rf"{name} has more than 3 frames; split it into shorter videos"):
            codec.encode(name)


def test_only_the_chosen_frames_of_an_array_are_read(tmp_path: Path) -> None:
    """A file of 12 GB, which is mapped into memory; it has holes, so that it takes no room on the disk."""
    with open(tmp_path / "large.npy", "wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (60_000, 256, 256, 3)})
        file.truncate(file.tell() + 60_000 * 256 * 256 * 3)
    row = Videos(3, 16, 3, root=tmp_path).encode("large.npy")
    assert row.shape == (3, 3, 16, 16)
    array = np.random.default_rng(1).random((7, 2, 3, 5)).astype(">f4")
    np.save(tmp_path / "big endian.npy", np.asfortranarray(array))
    codec = VideoGrids.fit(["big endian.npy"], tmp_path, picture_size=8, max_frames=3)
    found = codec.encode("big endian.npy")
    flat = array.astype(np.float64).reshape(-1, 5)
    expected = (array[[0, 3, 6]] - flat.mean(0)) / flat.std(0)
    np.testing.assert_allclose(found, expected.transpose(3, 0, 1, 2), atol=1e-5)
    assert codec.left_out("big endian.npy").startswith("big endian.npy has 7 frames, of which 3 are read")
    assert read_source(codec.to_json()) == codec
    np.save(tmp_path / "grid.npy", array[0])
    with pytest.raises(UserError, match=r"expected \(time, rows, columns, features\), none of them 0"):
        codec.encode("grid.npy")


def test_videos_are_padded_at_the_ends_of_their_axes() -> None:
    rows = [np.full((3, *axes), 255, np.uint8) for axes in ((2, 8, 16), (5, 16, 8))]
    batch = file_batch(rows)
    assert batch.values.shape == (2, 3, 5, 16, 16)
    assert batch.allow.shape == (2, 5, 16, 16)
    for number, row in enumerate(rows):
        time, height, width = row.shape[1:]
        assert batch.allow[number].sum() == time * height * width
        assert batch.allow[number, :time, :height, :width].all()
        assert (batch.values[number].sum(0) == 3.0 * batch.allow[number]).all()  # white is 1, padding 0


def test_all_frames_move_alike() -> None:
    frame = torch.randint(0, 256, (3, 16, 24), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    video = frame[:, None].expand(3, 5, 16, 24).contiguous()
    moved = Videos(3, 64, 20).varied(video, 0.2, random.Random(3))
    assert moved.shape == video.shape
    for time in range(5):
        assert torch.equal(moved[:, time], Pictures(3, 64).varied(frame, 0.2, random.Random(3)))


def test_codecs_of_videos(tmp_path: Path) -> None:
    write_video(tmp_path / "grey", [Image.new("L", (8, 8), 7)] * 2)
    write_video(tmp_path / "colour.png", make_frames(3))
    grey = Videos.fit(["gone.gif", "grey"], tmp_path, picture_size=16, max_frames=5)
    assert grey == Videos(1, 16, 5)
    assert Videos.fit(["grey", "colour.png"], tmp_path, picture_size=16, max_frames=5) == Videos(3, 16, 5)
    assert read_source(grey.to_json()) == grey
    assert grey.about() == "grey videos of at most 5 frames and 16 pixels"
    for wrong in ({"channels": 2}, {"longest": 4}, {"most_frames": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Videos(**{"channels": 3, "longest": 16, "most_frames": 5} | wrong)


def test_settings_are_chosen_and_shortened_videos_are_counted(tmp_path: Path) -> None:  # SPEC A8.5
    films = draw_films(tmp_path / "clips", 25, seed=1)
    (tmp_path / "clips" / "3.gif").write_bytes(b"no video")
    (tmp_path / "a.tsv").write_text("".join(f"{film.name}\t{film.text}\n" for film in films))
    pairs = [film.pair for film in films]
    suggestion = suggest(pairs, root=tmp_path)
    chosen = suggestion.settings
    assert (chosen.data.source_unit, chosen.model.frontend, chosen.data.picture_size) == ("video", "video", 64)  # type: ignore[union-attr]
    assert suggestion.reasons["data.source_unit"] == "sources are names of videos, such as clips/0.gif"
    assert "evenly spaced frames" in suggestion.reasons["data.max_frames"]
    data = DataSettings(files=(str(tmp_path / "a.tsv"),), source_unit="video", target_unit="words", max_frames=7, held_out=0.1)
    console, out = quiet()
    made = from_files(data, survey(data), tmp_path / "m.run", console)
    held_out = {pair.source for pair in made.held_out.pairs}
    longer = [film for film in films if len(range(film.spans[-1].stop)) > 7 and film.name not in held_out | {"clips/3.gif"}]
    first = longer[0]
    note = f"{first.name} has {first.spans[-1].stop} frames, of which 7 are read, evenly spaced (data.max_frames)"
    assert f"videos that are not read as a whole: {len(longer)}; {note}" in out.getvalue()
    assert "3.gif is not a picture" in out.getvalue()
    assert max(example.source.shape[1] for example in made.examples) == 7
    assert file_and_text(pairs[0].source)[0] == "clips/0.gif"


def test_a_changed_frame_in_a_folder_changes_the_data(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("one\tx\n")
    write_video(tmp_path / "one", make_frames(3))
    data = DataSettings(files=(str(tmp_path / "a.tsv"),), source_unit="video")
    before = survey(data).file_sizes
    assert survey(data).file_sizes == before
    Image.new("L", (99, 99)).save(tmp_path / "one" / "frame 3.png")
    assert survey(data).file_sizes != before


# --- maps --------------------------------------------------------------------------------------------------------------------


def make_translator(
    tmp_path: Path, settings: RnnSettings | TransformerSettings | None = None, most_frames: int = 8
) -> regard.Translator:
    """An untrained model that reads videos; v.gif, with 4 frames of 3 x 5 cells, is written to tmp_path."""
    torch.manual_seed(3)
    settings = settings or RnnSettings(width=24, embedding=7, frontend="video", channels=8)
    write_video(tmp_path / "v.gif", make_frames(4))
    target = Codec.train(["X Y Z"], "symbols")
    model = build(settings, 3, len(target)).eval()
    return regard.Translator.of_model(model, Videos(3, 64, most_frames, root=tmp_path), target)


def test_a_video_is_encoded_without_padding(tmp_path: Path) -> None:
    translator = make_translator(tmp_path)
    write_video(tmp_path / "short.gif", make_frames(2, (16, 8)))
    whole, short = translator.encode(["v.gif", "short.gif"])
    for encoded, name, axes in ((whole, "v.gif", (4, 3, 5)), (short, "short.gif", (2, 1, 2))):
        assert encoded.axes == axes == translator(name, max_length=2).attention().axes
        assert encoded.states.shape == (math.prod(axes), 24)
        assert encoded.tokens == tuple(",".join(map(str, cell)) for cell in np.ndindex(axes))
        np.testing.assert_allclose(encoded.states, translator.encode(name).states, atol=1e-4)


@pytest.mark.parametrize(
    "settings",
    [
        RnnSettings(width=24, embedding=7, frontend="video", channels=8),
        TransformerSettings(width=24, heads=2, feed_forward=29, frontend="video", channels=8),
    ],
    ids=["rnn", "transformer"],
)
def test_the_map_of_every_word_over_every_frame(tmp_path: Path, settings: RnnSettings | TransformerSettings) -> None:
    """Cell (t, r, c) is position (t · rows + r) · columns + c of the memory."""  # SPEC A8.5
    translator = make_translator(tmp_path, settings)
    attention = translator("v.gif", max_length=4).attention()
    assert attention.axes == (4, 3, 5)
    maps = attention.maps_TFRC
    np.testing.assert_allclose(maps.sum((1, 2, 3)), np.ones(len(attention.target)), rtol=1e-5)
    for time, row, column in ((0, 0, 0), (0, 2, 4), (1, 0, 3), (3, 2, 1)):
        position = attention.source.index(f"{time},{row},{column}")
        np.testing.assert_array_equal(maps[:, time, row, column], attention.mean_TS[:, position])
    seen = inspect(translator, "v.gif", output=(4, 5, 6))
    data = report.page_data(seen)
    assert (data["axes"], data["across"]) == ((4, 3, 5), 2)
    sheet = Image.open(io.BytesIO(base64.b64decode(str(data["picture"]).removeprefix("data:image/png;base64,"))))
    assert sheet.size == (80, 48)  # two frames of 40 x 24 pixels side by side
    for number, frame in enumerate(make_frames(4)):
        left, top = number % 2 * 40, number // 2 * 24
        np.testing.assert_array_equal(np.asarray(sheet.crop((left, top, left + 40, top + 24))), np.asarray(frame))
    lines = str(in_words(attention)).splitlines()
    assert lines[0].startswith("4 frames, each with a grid of 3 rows and 5 columns")
    time, cell = divmod(int(attention.mean_TS[0].argmax()), 15)
    assert f"frame {time}, row {cell // 5}, column {cell % 5}: {attention.mean_TS[0].max():.2f}; of all weight," in lines[1]
    with pytest.raises(UserError, match="has no maps over frames: its source is not a video"):
        _ = AttentionMap(np.ones((1, 1, 6)), tuple("abcdef"), ("x",), "cross", 0, (2, 3)).maps_TFRC
    assert [sheet_columns(number) for number in (1, 2, 4, 5, 9, 10, 32)] == [1, 2, 2, 3, 3, 4, 6]


def test_long_videos_keep_their_maps(tmp_path: Path) -> None:
    """More than 1,024 positions: encoder attention becomes a summary, cross-attention is still drawn over the frames."""
    translator = make_translator(
        tmp_path, TransformerSettings(width=24, heads=2, feed_forward=29, encoder_layers=1, frontend="video", channels=8)
    )
    write_video(tmp_path / "long.npy", make_frames(8, (112, 80)))
    codec = Videos(3, 112, 8, root=tmp_path)
    longer = regard.Translator.of_model(translator.model, codec, translator.target)
    seen = inspect(longer, "long.npy", output=(4, 5))
    assert LONGEST < 8 * 10 * 14
    assert seen.layer("encoder", 0).summary is not None
    assert seen.layer("cross", -1).numbers["weights"].shape == (2, 3, 1120)
    assert seen.layer("cross", -1).summary is None
    assert report.page_data(seen)["axes"] == (8, 10, 14)


def test_maps_are_drawn_over_the_frames(tmp_path: Path) -> None:  # SPEC A8.5
    """Most weight is on cell (0, 1) of frame 2: only there the film keeps its brightness, as all frames have one scale."""
    write_video(tmp_path / "white", [Image.new("RGB", (32, 32), "white")] * 3)
    weights = np.zeros((1, 1, 3 * 2 * 2))
    weights[0, 0, 2 * 4 + 1], weights[0, 0, 2] = 0.8, 0.2
    labels = tuple(f"{time},{row},{column}" for time in range(3) for row in range(2) for column in range(2))
    attention = AttentionMap(weights, labels, ("x",), "cross", 0, (3, 2, 2))
    for name in ("o.png", "o.svg"):
        regard.draw(attention, tmp_path / name, over=tmp_path / "white")
    assert re.findall(r">(\d\.\d\d)<", (tmp_path / "o.svg").read_text()) == ["0.20", "0.00", "0.80"]
    drawn = np.asarray(Image.open(tmp_path / "o.png").convert("L")).astype(int)
    dimmed = drawn < 200
    rows = np.flatnonzero(dimmed.mean(1) > 0.3)
    columns = np.flatnonzero(dimmed[rows[0] : rows[-1]].mean(0) > 0.3)
    borders = [0, *(np.flatnonzero(np.diff(columns) > 1) + 1), len(columns)]
    panels = [columns[a:b] for a, b in pairwise(borders)]
    assert len(panels) == 3
    middle, side = (rows[0] + rows[-1]) // 2, panels[0][-1] - panels[0][0]
    above, below = middle - side // 4, middle + side // 4
    for number, panel in enumerate(panels):
        left, right = panel[0] + side // 4, panel[0] + 3 * side // 4
        cells = [[drawn[above, left], drawn[above, right]], [drawn[below, left], drawn[below, right]]]
        expected = [[True, number != 2], [True, True]]
        assert [[bool(value < 200) for value in line] for line in cells] == expected


@pytest.mark.slow
def test_commands_for_videos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is configured; the same commands work for all kinds of videos, and say what they leave out."""
    monkeypatch.chdir(tmp_path)
    films = draw_films(tmp_path / "clips", 30, seed=1)
    (tmp_path / "videos.tsv").write_text("".join(f"{film.name}\t{film.text}\n" for film in films))

    def type_in(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["regard", *arguments])
        with warnings.catch_warnings(action="default"), pytest.raises(SystemExit) as done:
            main()
        assert done.value.code in (0, None), capsys.readouterr().err
        return "".join(capsys.readouterr())

    printed = type_in("train", "videos.tsv", "--out", "m", "--set", "train.steps=3", "--set", "data.max_frames=7")
    assert "sources are names of videos, such as clips/0.gif" in printed
    assert "videos that are not read as a whole" in printed
    write_video(tmp_path / "folder", make_frames(3, (24, 24)))
    (tmp_path / "names.txt").write_text("clips/0.gif\nfolder\n")
    assert len(type_in("translate", "m", "names.txt").splitlines()) >= 2
    printed = type_in("evaluate", "m", "videos.tsv")
    assert printed.count("evenly spaced (data.max_frames)") == 5
    longer = sum(film.spans[-1].stop > 7 for film in films)
    assert f"regard: and {longer - 5} more such warnings" in printed
    assert len(type_in("score", "m", "videos.tsv").splitlines()) >= 30
    for ending in ("png", "svg", "html", "npz"):
        assert "written to" in type_in("inspect", "m", "folder", "--out", f"o.{ending}")
        assert (tmp_path / f"o.{ending}").stat().st_size > 1000


def test_frames_of_padding_do_not_reach_real_ones() -> None:
    """The norm has learned a bias, so that padding would not be 0 after it."""
    torch.manual_seed(1)
    block = TimeBlock(4).double()
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter)
    frames = torch.randn(2, 4, 3, 3, dtype=torch.float64)
    alone = block(frames, torch.ones(1, 2, 3, 3) > 0)
    padded = torch.cat((frames, torch.zeros(1, 4, 3, 3, dtype=torch.float64)))
    allow = torch.ones(1, 3, 3, 3) > 0
    allow[:, 2] = False
    torch.testing.assert_close(block(padded, allow)[:2], alone)
