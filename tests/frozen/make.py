"""How the frozen folders were made: `python tests/frozen/make.py`, once, with the code of format 1 (commit 52059fb).

They are never made again: a later version must load what this one wrote. Only a new format gets a folder of its own.

    models/NAME/         a model folder, as `regard train` wrote it
    models/NAME.json     what that model answered: greedy and beam outputs, scores, attention
    files/               the pictures, sounds and features that some of the models read
    run/                 words.tsv and the run folder of a training that was killed after update 16 of 40;
    run/finished.json    what became of the run when the same code finished it
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import wave
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

import regard
from regard.data.dictionary import pronunciations

HERE = Path(__file__).parent
FILES = HERE / "files"

RNN = ["model.kind=rnn", "model.width=8", "model.embedding=6", "model.score_width=5"]
TRANSFORMER = ["model.kind=transformer", "model.width=8", "model.heads=2", "model.feed_forward=12"]
SHALLOW = ["model.encoder_layers=1", "model.decoder_layers=1"]
CHARACTERS = ["data.source_unit=characters", "data.target_unit=symbols"]
WORDS = ["data.source_unit=words", "data.target_unit=words", "data.shared=false", "data.subword_dropout=0"]
BPE = ["data.source_unit=bpe", "data.target_unit=bpe", "data.vocabulary=300"]

MODELS: dict[str, tuple[str, list[str], list[str]]] = {  # name -> (data, options, settings)
    "rnn-luong": ("spelling.tsv", [], [*RNN, *CHARACTERS]),
    "rnn-input-feeding": (
        "spelling.tsv",
        [],
        [*RNN, *CHARACTERS, "model.input_feeding=true", "model.cell=lstm", "model.score=general"],
    ),
    "rnn-bahdanau": ("commands.tsv", [], [*RNN, *WORDS, "model.decoder=bahdanau", "model.decoder_layers=2"]),
    "rnn-fixed": ("spelling.tsv", [], [*RNN, *CHARACTERS, "model.decoder=fixed", "model.every_step=true"]),
    "rnn-hard": ("spelling.tsv", [], [*RNN, *CHARACTERS, "model.choice=one"]),
    "rnn-gates": ("spelling.tsv", [], [*RNN, *CHARACTERS, "model.choice=gates", "model.score=cosine"]),
    "rnn-sum": ("spelling.tsv", [], [*RNN, *CHARACTERS, "model.choice=sum", "model.score=scaled_dot"]),
    "rnn-location": (
        "spelling.tsv",
        [],
        [*RNN, *CHARACTERS, "model.score=location", "model.max_places=40", "model.readout=plain", "model.cell=rnn_tanh"],
    ),
    "rnn-features": ("inflection.tsv", ["--from", "1,3", "--to", "2"], [*RNN, "data.target_unit=characters"]),
    "rnn-language-model": ("commands.tsv", [], ["model.kind=rnn_lm", "model.width=8", "model.embedding=6", *WORDS]),
    "transformer": ("commands.tsv", [], [*TRANSFORMER, *WORDS]),
    "transformer-shared": (
        "commands.tsv",
        [],
        [*TRANSFORMER, *SHALLOW, *BPE, "data.shared=true", "model.tie=all", "model.positions=rotary", "model.norm=rms"],
    ),
    "transformer-grouped": (
        "spelling.tsv",
        [],
        [*TRANSFORMER, *SHALLOW, *CHARACTERS, "model.heads=4", "model.kv_heads=2", "model.activation=gelu"],
    ),
    "transformer-unigram": (
        "commands.tsv",
        [],
        [
            *TRANSFORMER,
            *SHALLOW,
            "data.source_unit=unigram",
            "data.target_unit=unigram",
            "data.vocabulary=300",
            "model.positions=learned",
            "model.max_places=200",
            "model.order=post",
        ],
    ),
    "transformer-alibi": (
        "spelling.tsv",
        [],
        [*TRANSFORMER, *CHARACTERS, "model.positions=alibi", "model.window=3", "model.activation=swiglu"],
    ),
    "transformer-appended": (
        "spelling.tsv",
        [],
        [
            *TRANSFORMER,
            *SHALLOW,
            *CHARACTERS,
            "model.positions=fourier",
            "model.join=appended",
            "model.position_width=4",
            "model.score=additive",
            "model.score_width=5",
            "model.tie=output",
        ],
    ),
    "transformer-distance": (
        "spelling.tsv",
        [],
        [*TRANSFORMER, *SHALLOW, *CHARACTERS, "model.score=distance", "model.embedding_norm=true"],
    ),
    "decoder-only": (
        "commands.tsv",
        [],
        ["model.kind=decoder_only", "model.width=8", "model.heads=2", "model.feed_forward=12", "model.layers=1", *WORDS],
    ),
    "picture": ("pictures.jsonl", [], [*RNN, "model.channels=4", "data.picture_size=32"]),
    "picture-with-text": (
        "asked.jsonl",
        ["--from", "image,question", "--to", "text"],
        [*RNN, "model.channels=4", "data.picture_size=32"],
    ),
    "patches": (
        "pictures.jsonl",
        [],
        [*TRANSFORMER, *SHALLOW, "model.front=patches", "data.picture_size=32"],
    ),
    "grid": ("grids.jsonl", [], [*RNN]),
    "frames": ("frames.jsonl", [], [*TRANSFORMER, *SHALLOW, "model.front=frames"]),
    "sound": ("sounds.jsonl", [], [*RNN, "model.channels=2"]),
    "sound-with-text": ("instructed.jsonl", ["--from", "audio,instruction", "--to", "text"], [*RNN, "model.channels=2"]),
}
SOURCES: dict[str, list[str]] = {
    "spelling.tsv": ["abroad", "catalog", "serendipity"],
    "commands.tsv": ["walk twice and jump left", "look and run", "jump right thrice and walk"],
    "inflection.tsv": ["walk\tV;PST", "jump\tV;PRS;3;SG"],
    "pictures.jsonl": ["files/0.png", "files/1.png"],
    "asked.jsonl": ["files/0.png\twhat colour", "files/1.png\twhat shape", "\twhat colour"],
    "grids.jsonl": ["files/0-grid.npy", "files/1-grid.npy"],
    "frames.jsonl": ["files/0-frames.npy", "files/1-frames.npy"],
    "sounds.jsonl": ["files/0.wav", "files/1.wav"],
    "instructed.jsonl": ["files/0.wav\tas it is", "files/1.wav\treverse", "\treverse"],
}
COLOURS = {"red": (200, 40, 40), "blue": (40, 60, 200), "green": (30, 160, 60)}


# --- data --------------------------------------------------------------------------------------------------------------------


def write_data(folder: Path) -> None:
    chance = random.Random(1)
    (folder / "files").mkdir()
    write_table(folder / "spelling.tsv", [tuple(pair) for pair in pronunciations("dev")[:150]])
    write_table(folder / "commands.tsv", [command(chance) for _ in range(150)])
    write_table(folder / "inflection.tsv", [inflection(chance) for _ in range(80)])
    pictures, asked, grids, frames, sounds, instructed = [], [], [], [], [], []
    for number in range(24):
        name = f"files/{number}"
        colour, shape = chance.choice(list(COLOURS)), chance.choice(["circle", "square"])
        draw_picture(folder / f"{name}.png", colour, shape, chance)
        pictures.append({"image": f"{name}.png", "text": f"a {colour} {shape}"})
        question = chance.choice(["what colour", "what shape"])
        asked.append({"image": f"{name}.png", "question": question, "text": colour if "colour" in question else shape})
        letters = [chance.choice("abc") for _ in range(chance.randint(1, 3))]
        text = " ".join(letters)
        write_features(folder, number, letters, chance)
        grids.append({"file": f"{name}-grid.npy", "text": text})
        frames.append({"file": f"{name}-frames.npy", "text": text})
        write_tones(folder / f"{name}.wav", letters)
        sounds.append({"audio": f"{name}.wav", "text": text})
        order = chance.choice(["as it is", "reverse"])
        told = " ".join(reversed(letters)) if order == "reverse" else text
        instructed.append({"audio": f"{name}.wav", "instruction": order, "text": told})
    for file, rows in {
        "pictures": pictures,
        "asked": asked,
        "grids": grids,
        "frames": frames,
        "sounds": sounds,
        "instructed": instructed,
    }.items():
        (folder / f"{file}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_table(path: Path, rows: list[tuple[str, ...]]) -> None:
    path.write_text("".join("\t".join(row) + "\n" for row in rows))


def command(chance: random.Random) -> tuple[str, str]:
    said, done = [], []
    for _ in range(chance.randint(1, 2)):
        verb, way = chance.choice(["walk", "look", "run", "jump"]), chance.choice(["", "left", "right"])
        times = chance.choice(["", "twice", "thrice"])
        said.append(" ".join(filter(None, (verb, way, times))))
        done += [*([way.upper()] if way else []), verb.upper()] * {"": 1, "twice": 2, "thrice": 3}[times]
    return " and ".join(said), " ".join(done)


def inflection(chance: random.Random) -> tuple[str, str, str]:
    verb = chance.choice(["walk", "look", "jump", "talk", "kick", "milk"])
    features, end = chance.choice([("V;PST", "ed"), ("V;PRS;3;SG", "s"), ("V;NFIN", "")])
    return verb, verb + end, features


def draw_picture(path: Path, colour: str, shape: str, chance: random.Random) -> None:
    picture = Image.new("RGB", (32, 24), (240, 240, 240))
    x, y = chance.randint(2, 16), chance.randint(2, 10)
    pen = ImageDraw.Draw(picture)
    (pen.ellipse if shape == "circle" else pen.rectangle)((x, y, x + 11, y + 11), fill=COLOURS[colour])
    picture.save(path)


def write_features(folder: Path, number: int, letters: list[str], chance: random.Random) -> None:
    rows = np.array([[float(letter == one) for one in "abc"] for letter in letters for _ in range(2)], dtype=np.float32)
    noise = np.random.default_rng(number).normal(0, 0.1, (len(rows), 3)).astype(np.float32)
    np.save(folder / f"files/{number}-frames.npy", rows + noise)
    np.save(folder / f"files/{number}-grid.npy", (rows + noise).reshape(len(letters), 2, 3))


def write_tones(path: Path, letters: list[str]) -> None:
    rate, samples = 8000, []
    for letter in letters:
        hertz = 400 * 1.5 ** "abc".index(letter)
        samples += [int(9000 * np.sin(2 * np.pi * hertz * t / rate)) for t in range(720)] + [0] * 240
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(struct.pack(f"<{len(samples)}h", *samples))


# --- models ------------------------------------------------------------------------------------------------------------------


def train_command(data: str, out: str, options: list[str], settings: list[str]) -> list[str]:
    changes = [part for setting in settings for part in ("--set", setting)]
    return [sys.executable, "-m", "regard", "train", data, "--out", out, *options, *changes, "--threads", "1"]


def make_model(name: str, folder: Path) -> None:
    data, options, settings = MODELS[name]
    steps = 120 if data.endswith(".tsv") else 80
    settings = [*settings, f"train.steps={steps}", "train.validate_every=0", "model.dropout=0.1", "seed=3"]
    subprocess.run(train_command(data, name, options, settings), cwd=folder, check=True, stdout=subprocess.DEVNULL)
    if name == "transformer":  # one of them knows where to read its alignments
        pairs = [command(random.Random(9)) for _ in range(3)]
        write_table(folder / "align.tsv", pairs)
        (folder / "gold.txt").write_text("0-0\n0-0 1-1\n0-0\n")
        align = [sys.executable, "-m", "regard", "align", name, "align.tsv", "--gold", "gold.txt"]
        subprocess.run(align, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    shutil.copytree(folder / name, HERE / "models" / name)
    (HERE / "models" / f"{name}.json").write_text(
        json.dumps(answers(name, SOURCES[data]), ensure_ascii=False, separators=(",", ":")) + "\n"
    )


def answers(name: str, sources: list[str]) -> dict[str, Any]:
    """What the model says of these sources, whose files are relative to this folder."""
    model = regard.load(HERE / "models" / name, device="cpu")
    greedy = model.batch(sources, max_length=20)
    beams = model.batch(sources, beam=4, n_best=3, length_penalty=0.6, max_length=20)
    outputs = [one.text for one in beams]
    continues = model.reader.traits.continues_text  # the version that made these models ignored the source of a language model
    scored = model.score([""] * len(sources) if continues else sources, outputs)
    return {
        "sources": sources,
        "greedy": [vars_of(one) for one in greedy],
        "beam": [{**vars_of(one), "n_best": [vars_of(other) for other in one.n_best]} for one in beams],
        "score": [{"output": text, "log_prob": round(one.log_prob, 6)} for text, one in zip(outputs, scored, strict=True)],
        "attention": {
            kind: found for kind in ("cross", "encoder", "decoder", "fusion") if (found := attention(greedy[0], kind))
        },
        "alignment": aligned(greedy[0]),
    }


def vars_of(one: Any) -> dict[str, Any]:
    return {
        "text": one.text,
        "tokens": list(one.tokens),
        "log_prob": round(one.log_prob, 6),
        "rank_score": round(one.rank_score, 6),
        "finished": one.finished,
    }


def attention(result: Any, kind: str) -> dict[str, Any] | None:
    """The last layer's weights for the first source; None where the model has none of this kind."""
    try:
        seen = result.attention(kind=kind)
    except regard.UserError:
        return None
    weights = [[[round(number, 6) for number in row] for row in head] for head in seen.weights_HTS.tolist()]
    return {"source": list(seen.source), "target": list(seen.target), "weights": weights}


def aligned(result: Any) -> list[list[int]] | None:
    """The links between tokens, in the order of the target, as the version that made these models gave them."""
    try:
        return [list(link) for link in sorted(result.alignment(pieces=True), key=lambda link: link[1])]
    except regard.UserError:
        return None


# --- a run that was killed ---------------------------------------------------------------------------------------------------

RUN = [*RNN, *CHARACTERS, "train.steps=40", "train.checkpoint_every=8", "train.validate_every=16", "train.average=2"]
RUN += ["train.ema=0.9", "train.accumulate=2", "model.dropout=0.1", "seed=3"]


def make_run(folder: Path) -> None:
    write_table(folder / "words.tsv", [tuple(pair) for pair in pronunciations("dev")[:60]])
    log = folder / "m.run" / "log.jsonl"
    process = subprocess.Popen(train_command("words.tsv", "m", [], RUN), cwd=folder)
    while not (folder / "m.run" / "checkpoints" / "update-00000016").exists():
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (folder / "m.run" / "checkpoints" / "update-00000032").exists(), "too late; try again"
    (HERE / "run").mkdir()
    shutil.copytree(folder / "m.run", HERE / "run" / "m.run")
    shutil.copy(folder / "words.tsv", HERE / "run")
    subprocess.run(train_command("words.tsv", "m", [], RUN), cwd=folder, check=True)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    finished = {
        "settings": RUN,
        "losses": [round(line["loss"], 5) for line in lines if "loss" in line],
        "validations": [line for line in lines if "validation" in line],
        "answers": [
            vars_of(one) for one in regard.load(folder / "m", device="cpu").batch(SOURCES["spelling.tsv"], max_length=20)
        ],
    }
    (HERE / "run" / "finished.json").write_text(json.dumps(finished, ensure_ascii=False, separators=(",", ":")) + "\n")


def main() -> None:
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write_data(folder)
        FILES.mkdir()
        for name in {
            Path(source.partition("\t")[0]).name for sources in SOURCES.values() for source in sources if "/" in source
        }:
            shutil.copy(folder / "files" / name, FILES / name)
        os.chdir(HERE)
        for name in MODELS:
            print(name, flush=True)
            make_model(name, folder)
        make_run(folder)


if __name__ == "__main__":
    main()
