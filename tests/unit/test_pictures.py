"""Reading pictures of every kind, and drawing maps over them."""

import base64
import io
import struct
import zlib
from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from PIL import Image

import regard
from regard.data import pictures
from regard.data.pictures import Pictures, open_picture
from regard.data.tokenizers.codec import Codec
from regard.errors import UserError
from regard.inspection import report
from regard.inspection.capture import inspect
from regard.inspection.render import draw_over, in_words
from regard.models.build import build
from regard.models.rnn_seq2seq import RnnSettings
from regard.models.transformer import TransformerSettings
from regard.results import AttentionMap

RED, GREY = (255, 0, 0), 128


def pixels(path: Path) -> np.ndarray:
    return np.asarray(open_picture(path))


def test_every_mode_becomes_the_visible_colours(tmp_path: Path) -> None:  # SPEC A8.1
    """Transparency becomes white, 16 bits become 8, colours stay colours and grey stays grey."""
    half = Image.new("RGBA", (16, 8), (255, 0, 0, 128))
    half.putpixel((0, 0), (0, 0, 0, 0))
    half.save(tmp_path / "alpha.png")
    array = pixels(tmp_path / "alpha.png")
    assert array.shape == (8, 16, 3)
    assert array[0, 0].tolist() == [255, 255, 255]
    assert np.abs(array[1, 1].astype(int) - [255, 127, 127]).max() <= 1

    palette = Image.new("RGB", (16, 8), RED).quantize(4)
    palette.save(tmp_path / "palette.png")
    assert (pixels(tmp_path / "palette.png") == RED).all()
    palette.save(tmp_path / "clear.png", transparency=palette.getpixel((0, 0)))
    assert (pixels(tmp_path / "clear.png") == 255).all()
    palette.save(tmp_path / "palette.gif")
    assert (pixels(tmp_path / "palette.gif") == RED).all()

    Image.new("CMYK", (16, 8), (0, 255, 255, 0)).save(tmp_path / "cmyk.jpg", quality=100)
    assert np.abs(pixels(tmp_path / "cmyk.jpg").astype(int) - RED).max() <= 3
    Image.new("RGB", (16, 8), RED).save(tmp_path / "plain.jpg", quality=100)
    assert np.abs(pixels(tmp_path / "plain.jpg").astype(int) - RED).max() <= 3

    ramp = (np.arange(256, dtype=np.uint16) * 257).reshape(8, 32)  # the 16-bit values that are exact in 8 bits
    Image.fromarray(ramp).save(tmp_path / "deep.png")
    Image.fromarray(ramp).save(tmp_path / "deep.tiff")
    for name in ("deep.png", "deep.tiff"):
        np.testing.assert_array_equal(pixels(tmp_path / name), ramp // 257)
    Image.fromarray(ramp.astype(np.int32)).save(tmp_path / "int.tiff")
    np.testing.assert_array_equal(pixels(tmp_path / "int.tiff"), ramp // 257)
    Image.fromarray((ramp / 65535).astype(np.float32)).save(tmp_path / "float.tiff")
    assert np.abs(pixels(tmp_path / "float.tiff").astype(int) - ramp // 257).max() <= 1

    Image.new("L", (16, 8), GREY).save(tmp_path / "grey.png")
    Image.new("LA", (16, 8), (GREY, 0)).save(tmp_path / "grey alpha.png")
    Image.new("1", (16, 8), 1).save(tmp_path / "one bit.png")
    for name, value in (("grey.png", GREY), ("grey alpha.png", 255), ("one bit.png", 255)):
        assert pixels(tmp_path / name).shape == (8, 16)
        assert (pixels(tmp_path / name) == value).all()

    rotated = Image.new("RGB", (16, 8), (0, 0, 255))
    rotated.paste(RED, (0, 0, 8, 8))  # red on the left; the EXIF orientation turns it to the top
    exif = Image.Exif()
    exif[0x0112] = 6
    rotated.save(tmp_path / "turned.png", exif=exif)
    assert pixels(tmp_path / "turned.png").shape == (16, 8, 3)
    assert pixels(tmp_path / "turned.png")[0, 0].tolist() == list(RED)
    frames = [Image.new("RGB", (16, 8), colour) for colour in (RED, (0, 255, 0))]
    frames[0].save(tmp_path / "film.gif", save_all=True, append_images=frames[1:])
    assert (pixels(tmp_path / "film.gif") == RED).all()


@pytest.mark.parametrize(
    ("size", "longest", "expected"),
    [
        ((64, 32), 128, (32, 64)),
        ((640, 320), 128, (64, 128)),
        ((300, 100), 128, (40, 128)),
        ((1, 1), 128, (8, 8)),
        ((1000, 3), 64, (8, 64)),
        ((13, 21), 128, (24, 16)),
    ],
)
def test_sizes_become_multiples_of_a_cell(
    tmp_path: Path, size: tuple[int, int], longest: int, expected: tuple[int, int]
) -> None:
    Image.new("RGB", size, RED).save(tmp_path / "a.png")
    for channels in (1, 3):
        row = Pictures(channels, longest, root=tmp_path).encode("a.png")
        assert row.shape == (channels, *expected)
        assert row.dtype == np.uint8
    assert row[:, 3, 5].tolist() == list(RED)


def test_pixels_keep_their_positions(tmp_path: Path) -> None:
    array = np.random.default_rng(1).integers(0, 256, (16, 24, 3), dtype=np.uint8)
    Image.fromarray(array).save(tmp_path / "a.png")
    row = Pictures(3, 128, root=tmp_path).encode("a.png")
    np.testing.assert_array_equal(row.transpose(1, 2, 0), array)


def test_photographs_are_decoded_no_larger_than_needed(tmp_path: Path) -> None:
    rows, columns = np.mgrid[0:1200, 0:1600]
    waves = np.stack([127 + 120 * np.sin(rows / 90), 127 + 120 * np.cos(columns / 130), 127 + 0 * rows], axis=-1)
    Image.fromarray(waves.astype(np.uint8)).save(tmp_path / "photo.jpg", quality=95)
    assert open_picture(tmp_path / "photo.jpg", 128).size == (400, 300)
    assert open_picture(tmp_path / "photo.jpg").size == (1600, 1200)
    row = Pictures(3, 128, root=tmp_path).encode("photo.jpg")
    whole = open_picture(tmp_path / "photo.jpg").resize((128, 96))
    assert np.abs(row.transpose(1, 2, 0).astype(int) - np.asarray(whole)).max() <= 6


def test_grey_pictures_have_one_channel_unless_one_has_colours(tmp_path: Path) -> None:
    Image.new("L", (8, 8), 3).save(tmp_path / "grey.png")
    Image.new("RGB", (8, 8), RED).save(tmp_path / "red.png")
    assert Pictures.fit(["grey.png", "missing.png"], tmp_path, picture_size=64) == Pictures(1, 64)
    assert Pictures.fit(["grey.png", "red.png"], tmp_path, picture_size=64) == Pictures(3, 64)


def test_32_bit_pictures_of_one_colour(tmp_path: Path) -> None:
    for mode, value in (("F", -5.0), ("I", -70_000), ("F", 0.0), ("F", 7.0), ("I", 70_000)):
        Image.new(mode, (9, 9), value).save(tmp_path / "a.tiff")
        assert len(np.unique(pixels(tmp_path / "a.tiff"))) == 1
    for number in (np.nan, np.inf, -np.inf):
        Image.fromarray(np.array([[1.0, number], [2.0, 3.0]], dtype=np.float32)).save(tmp_path / "a.tiff")
        with pytest.raises(UserError, match=r"a.tiff cannot be read as a picture: it contains numbers that are not finite"):
            open_picture(tmp_path / "a.tiff")


def huge(side: int) -> bytes:
    """A few bytes that claim to be a very large picture."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def test_unreadable_files_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (40, 40, 3), dtype=np.uint8)
    content = {}
    for kind in ("PNG", "JPEG", "GIF"):
        file = io.BytesIO()
        Image.fromarray(noise).save(file, kind)
        content[kind] = file.getvalue()
    damaged = bytearray(content["PNG"])
    damaged[len(damaged) // 2] ^= 0xFF
    files = {
        "truncated.png": (content["PNG"][: len(content["PNG"]) // 2], "cannot be read as a picture"),
        "truncated.jpg": (content["JPEG"][: len(content["JPEG"]) // 2], "cannot be read as a picture"),
        "damaged.png": (bytes(damaged), "cannot be read as a picture"),
        "text.png": (b"hello", "is not a picture, or is in a format that pillow does not support"),
        "empty.png": (b"", "is not a picture"),
        "large.png": (huge(10_000), "the picture is too large"),
        "bomb.png": (huge(30_000), "the picture is too large"),
    }
    for name, (raw, why) in files.items():
        (tmp_path / name).write_bytes(raw)
        with pytest.raises(UserError, match=why) as caught:
            open_picture(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)
    (tmp_path / "folder.png").mkdir()
    for name, why in (("folder.png", "cannot be read as a picture: Is a directory"), ("missing.png", "no such file")):
        with pytest.raises(UserError, match=rf"{name}.*{why}"):
            open_picture(tmp_path / name)
    monkeypatch.setattr(pictures.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r'reading pictures needs pillow; type: pip install "regard\[plot\]"'):
        open_picture(tmp_path / "text.png")


# --- maps --------------------------------------------------------------------------------------------------------------------


def make_translator(tmp_path: Path, settings: RnnSettings | TransformerSettings | None = None) -> regard.Translator:
    """An untrained model that reads pictures; p.png, with 5 x 3 cells, is written to tmp_path."""
    torch.manual_seed(3)
    settings = settings or RnnSettings(width=20, embedding=7, frontend="picture", channels=8)
    array = np.random.default_rng(1).integers(0, 256, (24, 40, 3), dtype=np.uint8)
    Image.fromarray(array).save(tmp_path / "p.png")
    target = Codec.train(["X Y Z"], "symbols")
    model = build(settings, 3, len(target)).eval()
    return regard.Translator.of_model(model, Pictures(3, 64, root=tmp_path), target)


@pytest.mark.parametrize(
    "settings",
    [
        RnnSettings(width=20, embedding=7, frontend="picture", channels=8),
        RnnSettings(width=20, embedding=7, frontend="picture", channels=8, attention="hard"),
        TransformerSettings(width=20, heads=2, feed_forward=29, frontend="patches"),
    ],
    ids=["soft", "hard", "patches"],
)
def test_the_map_of_every_word(tmp_path: Path, settings: RnnSettings | TransformerSettings) -> None:  # SPEC A8.3 A8.2
    """Rows and columns are those of the picture: cell (r, c) is position r · columns + c of the memory."""
    translator = make_translator(tmp_path, settings)
    seen = inspect(translator, "p.png", output=(4, 5, 6))
    assert seen.axes == (3, 5)
    weights = seen.layer("cross", -1).numbers["weights"].mean(0)
    result = translator("p.png", max_length=4)
    attention = result.attention()
    assert attention.axes == (3, 5)
    maps = attention.maps_TRC
    assert maps.shape == (len(attention.target), 3, 5)
    np.testing.assert_allclose(maps.sum((1, 2)), np.ones(len(attention.target)), rtol=1e-5)
    for row in range(3):
        for column in range(5):
            position = attention.source.index(f"{row},{column}")
            np.testing.assert_array_equal(maps[:, row, column], attention.mean_TS[:, position])
    if getattr(settings, "attention", "soft") == "hard":
        assert set(weights.flatten().tolist()) == {0.0, 1.0}
    data = report.page_data(seen)
    assert data["axes"] == (3, 5)
    picture = Image.open(io.BytesIO(base64.b64decode(str(data["picture"]).removeprefix("data:image/png;base64,"))))
    np.testing.assert_array_equal(np.asarray(picture), np.asarray(Image.open(tmp_path / "p.png")))
    assert str(data["picture"]) in report.page(seen)
    lines = str(in_words(attention)).splitlines()
    best = int(attention.mean_TS[0].argmax())
    assert f"row {best // 5}, column {best % 5}: {attention.mean_TS[0].max():.2f}" in lines[1]


def test_a_map_is_drawn_over_the_picture(tmp_path: Path) -> None:  # SPEC A8.3
    """One word attends to row 0, column 2 of 2 x 4 cells: the picture keeps its brightness there and is dimmed elsewhere."""
    Image.new("RGB", (64, 32), (255, 255, 255)).save(tmp_path / "white.png")
    weights = torch.zeros(1, 1, 8)
    weights[0, 0, 2] = 1.0
    labels = tuple(f"{row},{column}" for row in range(2) for column in range(4))
    attention = AttentionMap(weights, labels, ("$x_",), "cross", 0, (2, 4))
    drawing = regard.draw(attention, tmp_path / "o.png", over=tmp_path / "white.png")
    assert drawing.path is not None
    drawn = np.asarray(Image.open(drawing.path).convert("L")).astype(int)
    dimmed = drawn < 200
    rows = np.flatnonzero(dimmed.mean(1) > 0.2)  # not the rows of the title
    assert len(rows)
    borders = np.flatnonzero(np.diff(rows) > 1)
    assert len(borders) == 1  # two panels: smooth above, cells below
    lower = drawn[rows[borders[0] + 1] : rows[-1] + 1]
    columns = np.flatnonzero((lower < 200).any(0))
    lower = lower[:, columns[0] : columns[-1] + 1]
    height, width = lower.shape[0] / 2, lower.shape[1] / 4
    means = [[lower[int((r + 0.3) * height) : int((r + 0.7) * height), int((c + 0.3) * width) : int((c + 0.7) * width)].mean()
              for c in range(4)] for r in range(2)]  # fmt: skip
    assert means[0][2] > 250
    assert all(mean < 170 for r, row in enumerate(means) for c, mean in enumerate(row) if (r, c) != (0, 2))
    with pytest.raises(UserError, match="cross attention of this model has no maps: its source is not a picture or a grid"):
        draw_over(AttentionMap(weights, labels, ("x",), "cross", 0), tmp_path / "white.png", tmp_path / "o.png")


def test_more_than_8_bits_are_rounded(tmp_path: Path) -> None:
    """255 · value / 65,535, to the nearest number; so are numbers from 0 to 1."""
    values = np.array([[0, 100, 200, 300, 65_278, 65_279, 65_407, 65_535]], dtype=np.uint16)
    Image.fromarray(values).save(tmp_path / "deep.png")
    assert pixels(tmp_path / "deep.png")[0].tolist() == np.round(values[0] / 257).astype(int).tolist()
    shares = np.array([[0.0, 0.002, 0.0059, 0.5, 0.9979, 1.0]], dtype=np.float32)
    Image.fromarray(shares).save(tmp_path / "shares.tiff")
    assert pixels(tmp_path / "shares.tiff")[0].tolist() == np.round(shares[0] * 255).astype(int).tolist()


class Given(Random):
    """Random numbers that are not random."""

    def __init__(self, *numbers: float) -> None:
        super().__init__()
        self.numbers = list(numbers)

    def uniform(self, low: float, high: float) -> float:
        return self.numbers.pop(0)


def test_pictures_move_by_the_given_share_of_their_size() -> None:
    """A quarter of 8 columns is 2 columns, a sixteenth of 8 rows half a row; edges are repeated, and values rounded."""
    codec = Pictures(1, 64)
    columns = torch.arange(0, 80, 10, dtype=torch.uint8).expand(1, 8, 8).contiguous()
    moved = codec.varied(columns, 0.3, Given(0.25, 0.0, 0.0, 0.0))
    assert moved[0, 0].tolist() == [20, 30, 40, 50, 60, 70, 70, 70]
    rows = torch.arange(8, dtype=torch.uint8).view(1, 8, 1).expand(1, 8, 8).contiguous()
    moved = codec.varied(rows, 0.3, Given(0.0, 0.75 / 8, 0.0, 0.0))
    assert moved[0, :, 0].tolist() == [1, 2, 3, 4, 5, 6, 7, 7]  # 0.75, 1.75, …
    wider = codec.varied(columns, 0.5, Given(0.0, 0.0, -0.5, 0.0))  # half the width fills the whole
    assert wider[0, 0].tolist() == [18, 22, 28, 32, 38, 42, 48, 52]
