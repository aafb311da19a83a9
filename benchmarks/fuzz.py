"""Hostile input, by the thousand: whatever is wrong with it, the outcome is the right result or one clear line.

    python benchmarks/fuzz.py [--area folder] [--cases 2000] [--seed 1] [--workers 2] [--only 17]

A case is a function of (area, seed, number), so that any of them can be run again alone with --only. Cases run in a few
long-lived child processes with a limit on memory, and another on the time of each case; a child that crashes or hangs is
replaced. To add an area, subclass `Area` and enter it in AREAS.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Empty, Queue
from random import Random
from typing import Any

SECONDS = 20.0
"""What one case may take; a busy machine needs some of it for itself."""
MEMORY = 1 << 30
"""Bytes that a case may take on top of what a child has after its imports."""
LONGEST_LINE = 300
"""Characters of an error, paths not counted."""

FINE = ("ok", "clear line")
"""Outcomes that are allowed. The others: "unclear line" (several lines, too long, or not printable), "traceback", "memory",
"crash", "hang"."""


@dataclass(frozen=True)
class Outcome:
    area: str
    number: int
    kind: str
    change: str
    """What was done to the valid input."""
    said: str
    """The error, or the end of the traceback."""


class Area(ABC):
    """One door through which input comes."""

    @abstractmethod
    def prepare(self, root: Path) -> None:
        """Writes valid input; done once."""

    @abstractmethod
    def change(self, chance: Random, root: Path, place: Path) -> str:
        """Writes a changed copy of valid input into the empty folder `place`; says what was changed."""

    @abstractmethod
    def use(self, place: Path) -> None:
        """What a user does with it. Raises whatever comes."""


# --- changes -----------------------------------------------------------------------------------------------------------------


def _nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 3, 7, 255, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 10**7, 10**12, 10**30, 10**400),
    *(-0.0, 0.5, -0.5, 1.0, 1e-320, 1e-12, 1e308, -1e308, float("nan"), float("inf"), float("-inf")),
    *("", " ", "0", "1", "x", "é", "\x00", "\x1b[31mred", "\n\n", "\ud800", "a" * 5000, "../../etc/passwd", "<unk>", "rnn"),
    *("additive", "tokens", "mine", [], {}, [[]], [None], {"": 0}, [0] * 500, ["a", "b"], [1, 2, 3], {"type": "NFKD"}),
    *(_nested(10), _nested(40), _nested(400)),
)


def hostile(chance: Random) -> Any:
    return json.loads(json.dumps(chance.choice(HOSTILE)))  # its own, to be changed further


def paths_in(value: Any, path: tuple[Any, ...] = (), most: int = 12) -> Iterator[tuple[Any, ...]]:
    """Where values stand in a document; of long lists and mappings only the first few and the last, and not too deep."""
    yield path
    if isinstance(value, dict | list) and len(path) < most:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        for key in keys if len(keys) <= most else [*keys[: most - 1], keys[-1]]:
            yield from paths_in(value[key], (*path, key), most)


def change_document(document: Any, chance: Random) -> tuple[Any, str]:
    """One or a few values of a JSON document replaced, removed, added, exchanged."""
    changes = []
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        document, change = _change_value(document, chance)
        changes.append(change)
    return document, "; ".join(changes)


def _change_value(document: Any, chance: Random) -> tuple[Any, str]:
    paths = list(paths_in(document))
    path = chance.choice(paths[1:] or paths)
    way = chance.choice(("replace", "replace", "replace", "remove", "add", "copy", "nudge"))
    if not path:
        return (value := hostile(chance)), f"all = {value!r:.40}"
    *above, last = path
    parent = document
    for key in above:
        parent = parent[key]
    where = ".".join(map(str, path))
    if way == "remove":
        del parent[last]
        return document, f"{where} removed"
    if way == "add":
        value = hostile(chance)
        if isinstance(parent, dict):
            parent[chance.choice(("extra", "", "type", "unit", "\x1b"))] = value
        else:
            parent.insert(chance.randrange(len(parent) + 1), value)
        return document, f"{value!r:.40} added beside {where}"
    if way == "copy":
        other = document
        for key in chance.choice(paths[1:]):
            other = other[key]
        parent[last] = json.loads(json.dumps(other))
    elif way == "nudge" and isinstance(parent[last], int | float) and not isinstance(parent[last], bool):
        parent[last] = chance.choice((parent[last] + 1, parent[last] - 1, -parent[last], parent[last] * 2, parent[last] * 1000))
    else:
        parent[last] = hostile(chance)
    return document, f"{where} = {parent[last]!r:.40}"


def change_bytes(content: bytes, chance: Random) -> tuple[bytes, str]:
    """Bits flipped, bytes cut out, put in, repeated."""
    held = bytearray(content)
    way = chance.choice(("flip", "flip", "cut", "insert", "truncate", "zero", "repeat", "empty", "head"))
    at = chance.randrange(len(held) + 1) if way != "head" else chance.randrange(min(64, len(held)) + 1)
    size = chance.choice((1, 2, 8, 100))
    if way in ("flip", "head"):
        for place in [at, *(chance.randrange(len(held) + 1) for _ in range(chance.choice((0, 0, 3, 20))))]:
            if place < len(held):
                held[place] ^= 1 << chance.randrange(8) if way == "flip" else chance.randrange(1, 256)
    elif way == "cut":
        del held[at : at + size]
    elif way == "insert":
        held[at:at] = chance.randbytes(size)
    elif way == "truncate":
        del held[at:]
    elif way == "zero":
        held[at : at + size] = chance.choice((b"\x00", b"\xff")) * len(held[at : at + size])
    elif way == "repeat":
        held += held[at : at + 1000]
    else:
        held.clear()
    return bytes(held), f"{way} at {at}"


def dumped(document: Any) -> bytes:
    """JSON as Python writes it: NaN and half surrogate pairs among it."""
    return json.dumps(document).encode()


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
"""Of a tokenizer.json: parts that the library knows and that we never write."""

TYPES = ("F4", "F6_E2M3", "F6_E3M2", "F8_E8M0", "F8_E5M2", "F8_E4M3", "C64", "I64", "U8", "BOOL", "F16", "BF16", "F64")


class Folders(Area):
    """Every file of model folders of every kind, most with the sha256 that belongs to what was changed."""

    def prepare(self, root: Path) -> None:
        for name, saved in _models().items():
            from regard.checkpoint import folder

            folder.save(saved, root / name)
        write_samples(root)

    def change(self, chance: Random, root: Path, place: Path) -> str:
        name = chance.choice(sorted(path.parent.name for path in root.glob("*/config.json")))
        shutil.copytree(root / name, place / "model")
        (place / "kind").write_text(name)
        path = chance.choice(sorted((place / "model").iterdir()))
        return f"{name}: {path.name}: {self._changed(path, chance)}"

    def use(self, place: Path) -> None:
        import regard

        kind = (place / "kind").read_text()
        result = regard.load(place / "model")(source_of(kind, place.parent / "valid"), max_length=4)
        if kind not in ("rnn_lm", "decoder_only"):  # these attend to no source
            result.alignment()

    def _changed(self, path: Path, chance: Random) -> str:
        way = chance.random()
        if way < 0.04:
            return _replaced(path, chance)
        if way < 0.2:
            content, change = change_bytes(path.read_bytes(), chance)
        elif path.suffix == ".safetensors":
            content, change = change_tensors(path.read_bytes(), chance)
        elif path.suffix == ".json":
            content, change = _changed_json(path, chance)
        else:
            content, change = chance.choice(((b"\xff\xfe", "not UTF-8"), (b"", "empty"), (b"\x00" * 9, "zeros")))
        path.write_bytes(content)
        if path.name != "config.json" and chance.random() < 0.97:
            _correct_digest(path)
        return change


def _changed_json(path: Path, chance: Random) -> tuple[bytes, str]:
    document = json.loads(path.read_bytes())
    way = chance.random()
    if path.name == "config.json" and way < 0.4:
        part = "model" if way < 0.3 else "alignment"
        document.setdefault("alignment", {"layer": 0, "head": 0, "shifted": False})
        document[part], change = change_document(document[part], chance)
        return dumped(document), f"{part}: {change}"
    if "tokenizer" in path.name and way < 0.4:
        part = chance.choice(sorted(PARTS))
        document[part] = chance.choice(PARTS[part])
        return dumped(document), f"{part} = {document[part]!r:.60}"
    if "tokenizer" in path.name and way < 0.5:
        change = _rotate(document["model"], chance)
        return dumped(document), change
    if way < 0.55:
        text, change = chance.choice(((b"[" * 100_000, "deep"), (b'{"a":' * 5000, "deep mapping"), (b"9" * 5000, "digits")))
        return text, change
    if way < 0.6:
        return json.dumps(document).encode(chance.choice(("utf-16", "utf-8-sig", "utf-32"))), "another encoding"
    document, change = change_document(document, chance)
    return dumped(document), change


def _rotate(model: dict[str, Any], chance: Random) -> str:
    """The ids of a vocabulary exchanged."""
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        ids = list(vocabulary.values())
        by = chance.choice((1, 2, 5))
        model["vocab"] = dict(zip(vocabulary, ids[by:] + ids[:by], strict=True))
        return f"ids rotated by {by}"
    vocabulary.insert(0, vocabulary.pop())
    return "tokens rotated"


def change_tensors(content: bytes, chance: Random) -> tuple[bytes, str]:
    """The header of a safetensors file, or its numbers."""
    size = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + size]), bytearray(content[8 + size :])
    names = [name for name in header if name != "__metadata__"]
    name, way = chance.choice(names), chance.random()
    if way < 0.2:
        header[name]["dtype"] = chance.choice(TYPES)
        change = f"{name} is {header[name]['dtype']}"
    elif way < 0.35:
        kind, width = chance.choice((("I32", 4), ("F32", 4), ("U8", 1), ("F16", 2)))
        for one in names:
            header[one]["dtype"] = kind
        if width != 4:
            for one in names:
                header[one]["data_offsets"] = [at * width // 4 for at in header[one]["data_offsets"]]
            data = data[: len(data) * width // 4]
        change = f"all are {kind}"
    elif way < 0.5:
        start = header[name]["data_offsets"][0]
        number = chance.choice((b"\x00\x00\xc0\x7f", b"\x00\x00\x80\x7f", b"\xff\xff\x7f\x7f", b"\x01\x00\x00\x00"))
        data[start : start + 4] = number
        change = f"{name}[0] = {number.hex()}"
    elif way < 0.6:
        size = chance.choice((2**63, 2**40, 100_000_001, size + 1, size - 1, 0))
        return size.to_bytes(8, "little") + content[8:], f"size of the header = {size}"
    else:
        header, change = change_document(header, chance)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + bytes(data), change


def _replaced(path: Path, chance: Random) -> str:
    """Something else than a file."""
    way = chance.choice(("nothing", "folder", "pipe", "device", "link to itself"))
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
    """One small model of every kind, with every unit of text and every kind of file among their sources."""
    import torch

    from regard.checkpoint.folder import Saved
    from regard.data.features import Frames, Grids
    from regard.data.pictures import Pictures
    from regard.data.sounds import Sounds
    from regard.data.sources import beside_size
    from regard.data.tokenizers.codec import Codec
    from regard.models.build import build
    from regard.models.decoder_only import DecoderOnlySettings
    from regard.models.rnn_lm import RnnLmSettings
    from regard.models.rnn_seq2seq import RnnSettings
    from regard.models.transformer import TransformerSettings

    texts = ["abc cab\tV\tPST", "a bad cab!\tN"]
    characters, symbols, words = (Codec.learn(texts, unit) for unit in ("characters", "symbols", "words"))
    bpe, unigram = (Codec.learn(["a bad cab, a bad cab"] * 3, unit, 270) for unit in ("bpe", "unigram"))
    two = {"width": 8, "heads": 2, "feed_forward": 8, "encoder_layers": 1, "decoder_layers": 2}
    kinds: dict[str, tuple[Any, Any, Any]] = {
        "rnn": (RnnSettings(width=8, embedding=3, score_width=3), characters, symbols),
        "rnn-lstm": (RnnSettings(width=8, embedding=3, cell="lstm", decoder="bahdanau", score="location"), words, bpe),
        "transformer": (TransformerSettings(**two, positions="learned", max_places=16), bpe, words),
        "transformer-alibi": (TransformerSettings(**two, positions="alibi", tie="all", norm="rms", window=2), unigram, unigram),
        "rnn_lm": (RnnLmSettings(width=8, embedding=3), characters, characters),
        "decoder_only": (DecoderOnlySettings(width=8, heads=2, feed_forward=8, layers=1), bpe, bpe),
        "picture": (RnnSettings(width=8, embedding=4, front="picture", channels=4), Pictures(3, 16, beside=words), symbols),
        "sound": (TransformerSettings(**two, front="sound", channels=2), Sounds(8000), symbols),
        "frames": (RnnSettings(width=8, embedding=3, front="frames"), Frames((0.5, 1.0), (1.0, 2.0)), symbols),
        "grid": (TransformerSettings(**two, front="grid"), Grids((0.5, 1.0), (1.0, 2.0), beside=bpe), symbols),
    }
    torch.manual_seed(5)
    models = {}
    for name, (settings, source, target) in kinds.items():
        model = build(settings, len(source), len(target), beside=beside_size(source)).eval()
        models[name] = Saved(model, settings, source, target, {"signature": "data:made up"}, "# A card\n")
    return models


# --- files that are sources --------------------------------------------------------------------------------------------------


def write_samples(root: Path) -> None:
    """A small file of every kind that a model reads."""
    import wave

    import torch
    from PIL import Image
    from safetensors.torch import save_file

    from regard.data.arrays import npy

    numbers = torch.arange(48.0)
    (root / "frames.npy").write_bytes(npy(numbers.view(24, 2)))
    (root / "grid.npy").write_bytes(npy(numbers.view(4, 6, 2)))
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
    """What a model of this kind is given."""
    files = {"picture": "picture.png\tcab", "sound": "sound.wav", "frames": "frames.npy", "grid": "grid.npy\ta cab"}
    return str(root / files[kind]) if kind in files else "a cab"


class Sources(Area):
    """Arrays, pictures and sounds."""

    def prepare(self, root: Path) -> None:
        write_samples(root)

    def change(self, chance: Random, root: Path, place: Path) -> str:
        path = chance.choice(sorted(root.iterdir()))
        content = path.read_bytes()
        way = chance.random()
        if way < 0.03:
            changed, change = content, "nothing"
        elif path.suffix == ".safetensors" and way < 0.7:
            changed, change = change_tensors(content, chance)
        elif path.suffix == ".npy" and way < 0.7:
            changed, change = self._changed_npy(content, chance)
        else:
            changed, change = change_bytes(content, chance)
        (place / path.name).write_bytes(changed)
        return f"{path.name}: {change}"

    def use(self, place: Path) -> None:
        from regard.data.codecs import FILE_CODECS
        from regard.data.sources import tensor_batch

        (path,) = place.iterdir()
        made = {"picture": (3, 16), "sound": (8000,), "frames": ((0.5, 1.0), (1.0, 2.0)), "grid": ((0.5, 1.0), (1.0, 2.0))}
        for unit, codec in FILE_CODECS.items():
            if path.suffix in codec.suffixes and (unit == path.stem or unit not in ("frames", "grid")):
                row = codec(*made[unit], root=place).encode(path.name)
                assert tensor_batch([row]).values.isfinite().all(), "the numbers are not finite"

    def _changed_npy(self, content: bytes, chance: Random) -> tuple[bytes, str]:
        start = 10 + int.from_bytes(content[8:10], "little")
        types = ("<f4", "<f8", "|O", ">f4", "<i8", "|u1", [("a", "<f4")], ["<f4"], None, 4, "<c8", "|S4", "<M8[s]")
        shapes = ((24, 2), (2, 24), (48,), (0, 2**40), (2**32, 2**32), (0, 2**62, 2**62), (-1, 2), [24, 2], (1,) * 40, "ab", 48)
        header = {
            "descr": chance.choice((*types, "<f4", "<f4")),
            "fortran_order": chance.choice((False, False, False, True, 0, "x")),
            "shape": chance.choice(shapes),
        }
        if chance.random() < 0.2:
            header[chance.choice(("extra", *header))] = hostile(chance)
        text = repr(header) + chance.choice(("\n", "", " " * 70_000, "#" * 300, "(" * 300))
        wide = 2 if len(text) < 65_536 else 4
        before = content[:6] + bytes((1 if wide == 2 else 2, 0)) + len(text).to_bytes(wide, "little")
        return before + text.encode("latin-1", "replace") + content[start:], f"{header!r:.100}"


AREAS: dict[str, Area] = {"folder": Folders(), "source": Sources()}


# --- would it notice? --------------------------------------------------------------------------------------------------------


def _refuse(text: str) -> None:
    from regard.errors import UserError

    raise UserError(text)


class Probe(Area):
    """No door: every case has a known outcome. For the test of this file."""

    uses: tuple[tuple[str, Callable[[], object]], ...] = (
        ("ok", lambda: None),
        ("clear line", lambda: _refuse("a/very/long/path" * 99 + ": wrong, make it right")),
        ("unclear line", lambda: _refuse("two\nlines")),
        ("unclear line", lambda: _refuse("a long line " * 99)),
        ("traceback", lambda: [][1]),
        ("memory", lambda: bytearray(8 << 30)),
        ("hang", lambda: time.sleep(99)),
        ("ok", lambda: None),
        ("crash", lambda: os.kill(os.getpid(), signal.SIGSEGV)),
        ("ok", lambda: None),
    )

    def __init__(self, number: int) -> None:
        self.number = number

    def prepare(self, root: Path) -> None:
        pass

    def change(self, chance: Random, root: Path, place: Path) -> str:
        return "nothing"

    def use(self, place: Path) -> None:
        self.uses[self.number][1]()


# --- one case, in a child ----------------------------------------------------------------------------------------------------


def run_case(area: str, seed: int, number: int, root: Path) -> Outcome:
    place = root / f"case-{os.getpid()}"
    place.mkdir()
    change, door = "?", Probe(number) if area == "probe" else AREAS[area]
    try:
        change = door.change(Random(f"{area} {seed} {number}"), root / "valid", place)
        door.use(place)
        kind, said = "ok", ""
    except Exception as error:
        kind, said = classified(error)
    except BaseException as error:  # a panic of Rust is no Exception
        kind, said = "traceback", f"{type(error).__name__}: {error}"
    finally:
        shutil.rmtree(place)
    return Outcome(area, number, kind, change, said)


def classified(error: Exception) -> tuple[str, str]:
    from regard.errors import UserError

    text = str(error)
    if isinstance(error, UserError):
        bare = " ".join(word for word in text.split(" ") if "/" not in word)
        clear = text.isprintable() and 0 < len(bare) <= LONGEST_LINE
        return "clear line" if clear else "unclear line", text
    if isinstance(error, MemoryError) or "allocate memory" in text:
        return "memory", text
    return "traceback", "".join(traceback.format_exception(error)[-3:])


def child(area: str, seed: int, root: Path) -> None:
    """Reads numbers of cases, writes outcomes, a line each."""
    import warnings

    import torch

    import regard.checkpoint.folder
    import regard.inspection.align  # noqa: F401 imported before memory is limited

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    for line in sys.stdin:
        print(json.dumps(asdict(run_case(area, seed, int(line), root))), file=answers, flush=True)


# --- all cases ---------------------------------------------------------------------------------------------------------------


class Child:
    """A process that runs cases one after another, and is started again when it dies."""

    def __init__(self, area: str, seed: int, root: Path, seconds: float) -> None:
        self.area, self.seed, self.root, self.seconds = area, seed, root, seconds
        self.process: subprocess.Popen[str] | None = None

    def run(self, number: int) -> Outcome:
        first = self.process is None  # the imports are still to come
        if self.process is None:
            command = [sys.executable, __file__, "--child", str(self.root), "--area", self.area, "--seed", str(self.seed)]
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
        process = self.process
        assert process.stdin
        assert process.stdout
        try:
            print(number, file=process.stdin, flush=True)
        except BrokenPipeError:
            return self._gone(number, "crash", f"before the case; exit code {process.wait()}")
        if not select.select([process.stdout], [], [], self.seconds + 60 * first)[0]:
            return self._gone(number, "hang", f"no answer in {self.seconds:g} seconds")
        if not (line := process.stdout.readline()):
            return self._gone(number, "crash", f"exit code {process.wait()}")
        return Outcome(**json.loads(line))

    def _gone(self, number: int, kind: str, said: str) -> Outcome:
        self.close()
        return Outcome(self.area, number, kind, "run it alone with --only to see", said)

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for stream in (self.process.stdin, self.process.stdout):
                if stream:
                    stream.close()
        self.process = None


def fuzz(area: str, cases: Sequence[int], seed: int, workers: int = 2, seconds: float = SECONDS) -> list[Outcome]:
    """Runs these cases; the outcome of each."""
    waiting: Queue[int] = Queue()
    for number in cases:
        waiting.put(number)

    def work(root: Path) -> list[Outcome]:
        found, one = [], Child(area, seed, root, seconds)
        try:
            while True:
                found.append(one.run(waiting.get_nowait()))
        except Empty:
            return found
        finally:
            one.close()

    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        root = Path(name)
        (root / "valid").mkdir()
        if area in AREAS:
            AREAS[area].prepare(root / "valid")
        with ThreadPoolExecutor(workers) as pool:
            outcomes = [one for found in pool.map(work, [root] * workers) for one in found]
    return sorted(outcomes, key=lambda one: one.number)


def report(outcomes: Sequence[Outcome]) -> str:
    """How many of each kind, and every one that is not allowed."""
    counts = Counter(one.kind for one in outcomes)
    lines = [", ".join(f"{kind}: {number:,}" for kind, number in counts.most_common())]
    for one in outcomes:
        if one.kind not in FINE:
            lines += [f"\n{one.area} {one.number}: {one.kind}: {one.change}", f"    {one.said}"]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--area", default=None, help=f"one of {', '.join(AREAS)}; by default all")
    parser.add_argument("--cases", type=int, default=2000, help="for each area")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--only", type=int, default=None, help="the number of one case")
    parser.add_argument("--child", type=Path, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.area, options.seed, options.child)
        return
    bad = False
    for area in [options.area] if options.area else AREAS:
        numbers = range(options.cases) if options.only is None else [options.only]
        outcomes = fuzz(area, numbers, options.seed, options.workers if options.only is None else 1)
        print(f"{area}, seed {options.seed}: {report(outcomes)}")
        bad = bad or any(one.kind not in FINE for one in outcomes)
    sys.exit(bad)


if __name__ == "__main__":
    main()
