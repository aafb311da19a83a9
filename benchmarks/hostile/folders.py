"""Damaged files of model folders, and damaged source files: arrays, pictures, sounds."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from math import isfinite
from pathlib import Path
from random import Random
from typing import Any

from hostile.area import Area, require
from hostile.changes import change_bytes, change_document, dumped, hostile

# --- model folders -----------------------------------------------------------------------------------------------------------

PARTS: dict[str, tuple[Any, ...]] = {
    "padding": (
        {"strategy": {"Fixed": 10**9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0},
        {"strategy": "BatchLongest", "direction": "Left", "pad_to_multiple_of": 10**9, "pad_id": 9**9, "pad_type_id": 0},
    ),
    "truncation": ({"direction": "Right", "max_length": 0, "strategy": "LongestFirst", "stride": 0},),
    "normalizer": (
        {"type": "NFC"},
        {"type": "NFKD"},
        {"type": "Prepend", "prepend": "a" * 1000},
        {"type": "Replace", "pattern": {"String": ""}, "content": "aaaa"},
        {"type": "Replace", "pattern": {"Regex": "(a|a)*b"}, "content": "x"},
        {"type": "Sequence", "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}] * 40},
        {"type": "Precompiled", "precompiled_charsmap": "AAAA"},
    ),
    "pre_tokenizer": (
        {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Removed", "invert": True},
        {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Removed", "invert": True},
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True},
        None,
    ),
    "decoder": (
        {"type": "Replace", "pattern": {"String": ""}, "content": "a" * 1000},
        {"type": "Strip", "content": "a", "start": 10**18, "stop": 10**18},
        {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}] * 40},
        {"type": "CTC", "pad_token": "", "word_delimiter_token": "", "cleanup": True},
        None,
    ),
    "post_processor": (
        {
            "type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}}] * 9,
            "pair": [],
            "special_tokens": {},
        },
        {
            "type": "RobertaProcessing",
            "sep": ["</s>", 2**31],
            "cls": ["<s>", 0],
            "trim_offsets": True,
            "add_prefix_space": True,
        },
    ),
    "added_tokens": ([{"id": 0, "content": "a", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}],),
}
"""Parts of a tokenizer.json that the library supports but regard never writes."""

TYPES = ("F4", "F6_E2M3", "F6_E3M2", "F8_E8M0", "F8_E5M2", "F8_E4M3", "C64", "I64", "U8", "BOOL", "F16", "BF16", "F64")


class Folders(Area):
    """A changed file in a folder of any kind of model; in most cases config.json gets the sha256 of the changed file."""

    def load_modules(self) -> None:
        import regard.checkpoint.folder
        import regard.inspection.align  # noqa: F401

    def prepare(self, root: Path) -> None:
        for name, saved in _models().items():
            from regard.checkpoint import folder

            folder.save(saved, root / name)
        write_samples(root)

    def change(self, rng: Random, root: Path, folder: Path) -> str:
        name = rng.choice(sorted(path.parent.name for path in root.glob("*/config.json")))
        shutil.copytree(root / name, folder / "model")
        (folder / "kind").write_text(name)
        path = rng.choice(sorted((folder / "model").iterdir()))
        return f"{name}: {path.name}: {self._changed(path, rng)}"

    def use(self, folder: Path) -> None:
        import regard

        kind = (folder / "kind").read_text()
        result = regard.load(folder / "model")(source_of(kind, folder.parent / "folder"), max_length=4)
        require(all(isfinite(one) for one in result.n_best[0].token_log_probs), "a log-probability is not finite")
        require(result.log_prob <= 1e-4, f"log_prob is {result.log_prob}")
        if kind not in ("rnn_lm", "decoder_only"):  # these do not attend to a source
            result.alignment()

    def _changed(self, path: Path, rng: Random) -> str:
        way = rng.random()
        if way < 0.04:
            return _replaced(path, rng)
        if way < 0.2:
            content, change = change_bytes(path.read_bytes(), rng)
        elif path.suffix == ".safetensors":
            content, change = change_tensors(path.read_bytes(), rng)
        elif path.suffix == ".json":
            content, change = _changed_json(path, rng)
        else:
            content, change = rng.choice(((b"\xff\xfe", "not UTF-8"), (b"", "empty"), (b"\x00" * 9, "zeros")))
        path.write_bytes(content)
        if path.name != "config.json" and rng.random() < 0.97:
            _correct_digest(path)
        return change


def _changed_json(path: Path, rng: Random) -> tuple[bytes, str]:
    document = json.loads(path.read_bytes())
    way = rng.random()
    if path.name == "config.json" and way < 0.4:
        part = "model" if way < 0.3 else "alignment"
        document.setdefault("alignment", {"layer": 0, "head": 0, "shifted": False})
        document[part], change = change_document(document[part], rng)
        return dumped(document), f"{part}: {change}"
    if "tokenizer" in path.name and way < 0.4:
        part = rng.choice(sorted(PARTS))
        document[part] = rng.choice(PARTS[part])
        return dumped(document), f"{part} = {document[part]!r:.60}"
    if "tokenizer" in path.name and way < 0.5:
        change = _rotate(document["model"], rng)
        return dumped(document), change
    if way < 0.55:
        text, change = rng.choice(((b"[" * 100_000, "deep"), (b'{"a":' * 5000, "deep mapping"), (b"9" * 5000, "digits")))
        return text, change
    if way < 0.6:
        return json.dumps(document).encode(rng.choice(("utf-16", "utf-8-sig", "utf-32"))), "another encoding"
    document, change = change_document(document, rng)
    return dumped(document), change


def _rotate(model: dict[str, Any], rng: Random) -> str:
    """Rotates the ids of a vocabulary."""
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        ids = list(vocabulary.values())
        by = rng.choice((1, 2, 5))
        model["vocab"] = dict(zip(vocabulary, ids[by:] + ids[:by], strict=True))
        return f"ids rotated by {by}"
    vocabulary.insert(0, vocabulary.pop())
    return "tokens rotated"


def change_tensors(content: bytes, rng: Random) -> tuple[bytes, str]:
    """Changes the header or the numbers of a safetensors file."""
    size = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + size]), bytearray(content[8 + size :])
    names = [name for name in header if name != "__metadata__"]
    name, way = rng.choice(names), rng.random()
    if way < 0.2:
        header[name]["dtype"] = rng.choice(TYPES)
        change = f"{name} is {header[name]['dtype']}"
    elif way < 0.35:
        kind, width = rng.choice((("I32", 4), ("F32", 4), ("U8", 1), ("F16", 2)))
        for one in names:
            header[one]["dtype"] = kind
        if width != 4:
            for one in names:
                header[one]["data_offsets"] = [at * width // 4 for at in header[one]["data_offsets"]]
            data = data[: len(data) * width // 4]
        change = f"all are {kind}"
    elif way < 0.5:
        start = header[name]["data_offsets"][0]
        number = rng.choice((b"\x00\x00\xc0\x7f", b"\x00\x00\x80\x7f", b"\xff\xff\x7f\x7f", b"\x01\x00\x00\x00"))
        data[start : start + 4] = number
        change = f"{name}[0] = {number.hex()}"
    elif way < 0.6:
        size = rng.choice((2**63, 2**40, 100_000_001, size + 1, size - 1, 0))
        return size.to_bytes(8, "little") + content[8:], f"size of the header = {size}"
    else:
        header, change = change_document(header, rng)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + bytes(data), change


def _replaced(path: Path, rng: Random) -> str:
    """Replaces a file with something that is not a regular file, or removes it."""
    way = rng.choice(("nothing", "folder", "pipe", "device", "link to itself"))
    path.unlink()
    if way == "folder":
        path.mkdir()
    elif way == "pipe":
        os.mkfifo(path)
    elif way == "device":
        path.symlink_to("/dev/zero")
    elif way == "link to itself":
        path.symlink_to(path.name)
    return way


def _correct_digest(path: Path) -> None:
    config = path.parent / "config.json"
    content = json.loads(config.read_bytes())
    if path.name in content["sha256"]:
        content["sha256"][path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
        config.write_bytes(dumped(content))


def _models() -> dict[str, Any]:
    """Returns one small model of every kind; their sources cover every token unit and every kind of file."""
    import torch

    from regard.checkpoint.folder import Saved
    from regard.data.features import Frames, Grids
    from regard.data.pictures import Pictures
    from regard.data.sounds import Sounds
    from regard.data.sources import auxiliary_vocabulary_size
    from regard.data.tokenizers.codec import Codec
    from regard.models.build import build
    from regard.models.decoder_only import DecoderOnlySettings
    from regard.models.rnn_lm import RnnLmSettings
    from regard.models.rnn_seq2seq import RnnSettings
    from regard.models.transformer import TransformerSettings

    texts = ["abc cab\tV\tPST", "a bad cab!\tN"]
    characters, symbols, words = (Codec.train(texts, unit) for unit in ("characters", "symbols", "words"))
    bpe, unigram = (Codec.train(["a bad cab, a bad cab"] * 3, unit, 270) for unit in ("bpe", "unigram"))
    two = {"width": 8, "heads": 2, "feed_forward": 8, "encoder_layers": 1, "decoder_layers": 2}
    kinds: dict[str, tuple[Any, Any, Any]] = {
        "rnn": (RnnSettings(width=8, embedding=3, score_width=3), characters, symbols),
        "rnn-lstm": (RnnSettings(width=8, embedding=3, cell="lstm", decoder="bahdanau", score="location"), words, bpe),
        "transformer": (TransformerSettings(**two, positions="learned", max_positions=16), bpe, words),
        "transformer-alibi": (TransformerSettings(**two, positions="alibi", tie="all", norm="rms", window=2), unigram, unigram),
        "rnn_lm": (RnnLmSettings(width=8, embedding=3), characters, characters),
        "decoder_only": (DecoderOnlySettings(width=8, heads=2, feed_forward=8, layers=1), bpe, bpe),
        "picture": (
            RnnSettings(width=8, embedding=4, frontend="picture", channels=4),
            Pictures(3, 16, auxiliary=words),
            symbols,
        ),
        "sound": (TransformerSettings(**two, frontend="sound", channels=2), Sounds(8000), symbols),
        "frames": (RnnSettings(width=8, embedding=3, frontend="frames"), Frames((0.5, 1.0), (1.0, 2.0)), symbols),
        "grid": (TransformerSettings(**two, frontend="grid"), Grids((0.5, 1.0), (1.0, 2.0), auxiliary=bpe), symbols),
    }
    torch.manual_seed(5)
    models = {}
    for name, (settings, source, target) in kinds.items():
        model = build(settings, len(source), len(target), auxiliary=auxiliary_vocabulary_size(source)).eval()
        models[name] = Saved(model, settings, source, target, {"signature": "data:made up"}, "# A card\n")
    return models


# --- files that are sources --------------------------------------------------------------------------------------------------


def write_samples(root: Path) -> None:
    """Writes a small file of every type that a model reads."""
    import wave

    import numpy as np
    import torch
    from PIL import Image
    from safetensors.torch import save_file

    numbers = torch.arange(48.0)
    np.save(root / "frames.npy", numbers.view(24, 2))
    np.save(root / "grid.npy", numbers.view(4, 6, 2))
    save_file({"features": numbers.view(24, 2).half()}, root / "frames.safetensors")
    picture = Image.new("RGB", (20, 12), "red")
    picture.putpixel((3, 4), (0, 200, 0))
    for ending in ("png", "jpg", "gif", "bmp", "webp", "tiff", "ppm"):
        picture.save(root / f"picture.{ending}")
    Image.new("F", (9, 9), -5.0).save(root / "constant.tiff")
    Image.new("I", (9, 9), 70_000).save(root / "wide.tiff")
    with wave.open(str(root / "sound.wav"), "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", ""))
        sound.writeframes(bytes(range(256)) * 8)
    try:
        import soundfile
    except (ImportError, OSError):
        return
    with soundfile.SoundFile(root / "sound.flac", "w", samplerate=8000, channels=1, subtype="PCM_16") as flac:
        flac.buffer_write(bytes(range(256)) * 8, dtype="int16")


def source_of(kind: str, root: Path) -> str:
    """Returns a valid source for a model of this kind."""
    files = {"picture": "picture.png\tcab", "sound": "sound.wav", "frames": "frames.npy", "grid": "grid.npy\ta cab"}
    return str(root / files[kind]) if kind in files else "a cab"


class Sources(Area):
    """Source files: arrays, pictures and sounds."""

    def prepare(self, root: Path) -> None:
        write_samples(root)

    def change(self, rng: Random, root: Path, folder: Path) -> str:
        path = rng.choice(sorted(root.iterdir()))
        content = path.read_bytes()
        way = rng.random()
        if way < 0.03:
            changed, change = content, "nothing"
        elif path.suffix == ".safetensors" and way < 0.7:
            changed, change = change_tensors(content, rng)
        elif path.suffix == ".npy" and way < 0.7:
            changed, change = self._changed_npy(content, rng)
        else:
            changed, change = change_bytes(content, rng)
        (folder / path.name).write_bytes(changed)
        return f"{path.name}: {change}"

    def use(self, folder: Path) -> None:
        from regard.data.codecs import FILE_CODECS
        from regard.data.sources import file_batch

        (path,) = folder.iterdir()
        numbers = (0.5, 1.0), (1.0, 2.0)
        made = {
            "picture": (3, 16),
            "video": (3, 16, 4),
            "sound": (8000,),
            "whisper": (80, 2),
            "frames": numbers,
            "grid": numbers,
            "video_grid": numbers,
        }
        for unit, codec in FILE_CODECS.items():
            if path.suffix in codec.suffixes and (unit == path.stem or unit not in ("frames", "grid", "video_grid")):
                row = codec(*made[unit], root=folder).encode(path.name)
                require(file_batch([row]).values.isfinite().all(), "the numbers are not finite")

    def _changed_npy(self, content: bytes, rng: Random) -> tuple[bytes, str]:
        start = 10 + int.from_bytes(content[8:10], "little")
        types = ("<f4", "<f8", "|O", ">f4", "<i8", "|u1", [("a", "<f4")], ["<f4"], None, 4, "<c8", "|S4", "<M8[s]")
        types += (
            "<f16",
            ">u2",
            "|b1",
            "|V9",
            "i8,f4",
            "(2,)f4",
            "(9999999,9999999)f4",
            "",
            (),
            ("<f4", (2**40, 2**40)),
            ("|O", {}),
        )
        shapes = ((24, 2), (2, 24), (48,), (0, 2**40), (2**32, 2**32), (0, 2**62, 2**62), (-1, 2), [24, 2], (1,) * 40, "ab", 48)
        header = {
            "descr": rng.choice((*types, "<f4", "<f4")),
            "fortran_order": rng.choice((False, False, False, True, 0, "x")),
            "shape": rng.choice(shapes),
        }
        if rng.random() < 0.2:
            header[rng.choice(("extra", *header))] = hostile(rng)
        text = repr(header) + rng.choice(("\n", "", " " * 70_000, "#" * 300, "(" * 300))
        wide = 2 if len(text) < 65_536 else 4
        before = content[:6] + bytes((1 if wide == 2 else 2, 0)) + len(text).to_bytes(wide, "little")
        return before + text.encode("latin-1", "replace") + content[start:], f"{header!r:.100}"
