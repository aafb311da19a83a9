"""Several processes, `regard plan`, bulk translation: measured.

    python benchmarks/scale.py throughput     2 processes x 1 thread against 1 process x 2 threads, taking turns
    python benchmarks/scale.py plan [MODEL]   what `regard plan` predicts and what `regard train` takes; MODEL: 1 to 5
    python benchmarks/scale.py speed-up       what `regard plan --processes 2` predicts and what two processes reach
    python benchmarks/scale.py kills [N]      processes are killed N times at random moments; the weights stay the same
    python benchmarks/scale.py ray [LINES]    two Ray actors against `regard translate` with two workers
    python benchmarks/scale.py bulk-kills [N]  drivers and workers of a translation are killed N times each; nothing changes
    python benchmarks/scale.py ray-kills [N]  the same on Ray

Everything runs on the embedded dictionary. Each result is written to a dated file in the folder of this script.
"""

from __future__ import annotations

import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from dated import write_result

from regard.data.dictionary import pronunciations

TRANSFORMER = ["model.kind=transformer", "model.width=128", "model.heads=4", "model.feed_forward=512", "model.encoder_layers=3"]
TRANSFORMER += ["model.decoder_layers=3", "train.learning_rate=1e-3"]
MODELS = {
    "strings in order, chosen": [],
    "recurrent, any order": ["model.decoder=bahdanau"],
    "Transformer of width 128, long lines": TRANSFORMER,
    "Transformer of width 256": [*TRANSFORMER, "model.width=256", "model.feed_forward=1024"],
    "Transformer of width 512": [*TRANSFORMER, "model.width=512", "model.feed_forward=2048"],
}
ROUNDS = 3
SHARDS = 100


def regard(*arguments: str, folder: Path) -> str:
    """Runs a command, which must succeed, and returns its output."""
    done = subprocess.run([sys.executable, "-m", "regard", *arguments], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    return done.stdout


def sets(*changes: str) -> list[str]:
    return [part for change in changes for part in ("--set", change)]


def pace(folder: Path, out: str) -> float:
    """Returns the target tokens per second of a run, from its log, without the first quarter of its updates."""
    lines = [json.loads(line) for line in (folder / f"{out}.run" / "log.jsonl").read_text().splitlines()]
    updates = [line for line in lines if "loss" in line]
    first, rest = updates[len(updates) // 4], updates[len(updates) // 4 + 1 :]
    return sum(line["targets"] for line in rest) / (rest[-1]["time"] - first["time"])


def throughput(folder: Path) -> list[str]:
    lines = ["target tokens per second, 2 processes x 1 thread and 1 process x 2 threads; accumulate=2, taking turns"]
    for name in ("strings in order, chosen", "Transformer of width 256"):
        changes = sets(*MODELS[name], "train.steps=40", "train.accumulate=2", "train.batch_tokens=1024")
        both: dict[str, list[float]] = {"2 x 1": [], "1 x 2": []}
        for number in range(ROUNDS):
            for processes, threads in ((2, 1), (1, 2)):
                out = f"{processes}-{number}"
                options = ["--processes", str(processes), "--threads", str(threads), "--overwrite"]
                regard("train", "words.tsv", "--out", out, *options, *changes, folder=folder)
                both[f"{processes} x {threads}"].append(pace(folder, out))
                print(name, out, f"{pace(folder, out):,.0f}", flush=True)
        ratios = [two / one for two, one in zip(both["2 x 1"], both["1 x 2"], strict=True)]
        medians = {key: statistics.median(values) for key, values in both.items()}
        lines.append(
            f"{name}: {medians['2 x 1']:,.0f} and {medians['1 x 2']:,.0f}; ratio by round: median "
            f"{statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}"
        )
    return lines


def speed_up(folder: Path) -> list[str]:
    """Compares the speed-up that `regard plan` predicts with that of runs."""
    lines = ["speed-up of 2 processes x 1 thread over 1 process x 2 threads: predicted by `regard plan`, measured"]
    for name in ("strings in order, chosen", "Transformer of width 256"):
        changes = sets(*MODELS[name], "train.steps=40", "train.accumulate=2", "train.batch_tokens=1024")
        text = regard("plan", "words.tsv", "--processes", "2", "--threads", "2", *changes, folder=folder)
        paces, peaks = [], []
        for processes, threads in ((2, 1), (1, 2)):
            options = ["--processes", str(processes), "--threads", str(threads)]
            peaks.append(peak_of_training("words.tsv", *options, *changes, folder=folder))
            paces.append(pace(folder, "measured"))
        predicted, memory = float(re.search(r"speed-up +([\d.]+)", text)[1]), predicted_memory(text)
        lines.append(
            f"{name}: {predicted:.2f}, {paces[0] / paces[1]:.2f}; peak memory of one of them: predicted {memory:,.0f} MB, "
            f"measured {peaks[0]:,.0f} MB"
        )
        print(lines[-1], flush=True)
    return lines


def predicted_memory(plan: str) -> float:
    return float(re.search(r"peak memory +([\d,]+) MB", plan)[1].replace(",", ""))


def peak_of_training(data: str, *options: str, folder: Path) -> float:
    """Trains the model `measured`, and returns the peak memory of the (first) process in megabytes."""
    command = [sys.executable, "-m", "regard", "train", data, "--out", "measured", "--overwrite", *options]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert status == 0
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024) / 1e6


def planned(folder: Path, number: int) -> list[str]:
    """number: that of the model, from 1; 0 for all."""
    lines = [
        "predicted by `regard plan` / measured by `regard train` (30 updates), 1 thread: peak memory, seconds of an update"
    ]
    pairs = pronunciations("train")
    with open(folder / "long.tsv", "w") as file:
        for start in range(0, 30_000, 30):
            sides = ([pair[side] for pair in pairs[start : start + 30]] for side in (0, 1))
            file.write("\t".join(map(" ".join, sides)) + "\n")
    for name, changes in list(MODELS.items())[number - 1 : number] if number else MODELS.items():
        options, data = [*sets(*changes, "train.steps=30"), "--threads", "1"], "long.tsv" if "long" in name else "words.tsv"
        text = regard("plan", data, *options, folder=folder)
        memory = predicted_memory(text)
        seconds, updates = re.search(r"time of a pass +(.*?): ([\d,]+) update", text).groups()
        real = peak_of_training(data, *options, folder=folder)
        log = [json.loads(line) for line in (folder / "measured.run" / "log.jsonl").read_text().splitlines()]
        times = [line["time"] for line in log if "loss" in line]
        update = (times[-1] - times[5]) / (len(times) - 6)
        predicted = in_seconds(seconds) / int(updates.replace(",", ""))
        lines.append(
            f"{name}: {memory:,.0f} / {real:,.0f} MB = {memory / real:.2f}; "
            f"{predicted:.4f} / {update:.4f} s = {predicted / update:.2f}"
        )
        print(lines[-1], flush=True)
    return lines


def in_seconds(text: str) -> float:
    units = {"h": 3600, "min": 60, "s": 1}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"([\d.]+) (h|min|s)", text))


def kills(folder: Path, number: int) -> list[str]:
    """Kills one of two processes at random moments; the same command goes on."""
    settings = ["train.steps=200", "train.accumulate=3", "train.batch_tokens=200", "train.checkpoint_every=9", "train.ema=0.9"]
    changes = [*sets(*settings, "model.width=16", "model.dropout=0.2"), "--processes", "2", "--threads", "1"]
    regard("train", "words.tsv", "--out", "unbroken", *changes, folder=folder)
    rng, log, killed = random.Random(1), folder / "broken.run" / "log.jsonl", {"first": 0, "other": 0}
    command = [sys.executable, "-m", "regard", "train", "words.tsv", "--out", "broken", *changes]
    while sum(killed.values()) < number:
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        before, updates = num_lines(log), rng.randint(1, 40)
        while process.poll() is None and num_lines(log) < before + updates:
            time.sleep(0.005)
        if process.poll() is not None:
            break
        which = rng.choice(list(killed))
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        if which == "other" and not children:
            continue
        os.kill(process.pid if which == "first" else int(children[0]), signal.SIGKILL)
        process.wait()
        killed[which] += 1
    regard("train", "words.tsv", "--out", "broken", *changes, folder=folder)
    same = [(folder / name / "model.safetensors").read_bytes() for name in ("unbroken", "broken")]
    verdict = "identical" if same[0] == same[1] else "DIFFERENT"
    return [f"2 processes; the first was killed {killed['first']} times, the other {killed['other']} times: weights {verdict}"]


def num_lines(log: Path) -> int:
    return log.read_bytes().count(b"\n") if log.exists() else 0


def ray(folder: Path, number: int) -> list[str]:
    """Beam 5 and outputs of 20 tokens and more, so that starting a cluster takes little of the time."""
    regard("train", "words.tsv", "--out", "model", *sets("train.steps=5", "model.width=192"), folder=folder)
    words = [pair.source for pair in pronunciations("train")]
    words = (words * (number // len(words) + 1))[:number]
    (folder / "in").mkdir()
    for shard in range(SHARDS):
        (folder / "in" / f"{shard:03}.txt").write_text("".join(f"{word}\n" for word in words[shard::SHARDS]))
    seconds, rates = {}, {}
    for name, options in {
        "2 workers": ["in", "--out", "by-workers", "--threads", "2"],
        "2 Ray actors": ["in", "--out", "by-ray", "--threads", "1", "--ray", "local"],
    }.items():
        began = time.perf_counter()
        regard("translate", "model", *options, "--beam", "5", "--min-length", "20", "--max-length", "30", folder=folder)
        seconds[name] = time.perf_counter() - began
        finished = sorted(path.stat().st_mtime for path in (folder / options[2]).glob("*.txt"))
        rates[name] = number * (len(finished) - 3) / SHARDS / (finished[-1] - finished[2])  # the first come together
        print(f"{name}: {seconds[name]:.1f} s, {rates[name]:,.0f} lines per second", flush=True)
    for path in (folder / "by-workers").glob("*.txt"):
        assert path.read_bytes() == (folder / "by-ray" / path.name).read_bytes(), path.name
    return [
        f"{number:,} words in {SHARDS} files, beam 5, from start to end: "
        + ", ".join(f"{name} {value:.1f} s" for name, value in seconds.items())
        + f"; Ray has {seconds['2 workers'] / seconds['2 Ray actors']:.2f} of the throughput; outputs equal",
        "without the start, lines per second: "
        + ", ".join(f"{name} {value:,.0f}" for name, value in rates.items())
        + f"; Ray has {rates['2 Ray actors'] / rates['2 workers']:.2f} of the throughput",
    ]


def bulk_kills(folder: Path, number: int, *options: str) -> list[str]:
    """Kills the driver and the workers of a bulk translation, this many times each; the same command goes on."""
    regard("train", "words.tsv", "--out", "model", *sets("train.steps=30", "model.width=32"), folder=folder)
    words = [pair.source for pair in pronunciations("train")[: 1000 * number]]
    (folder / "in").mkdir()
    for shard in range(8 * number):
        (folder / "in" / f"{shard:03}.txt").write_text("".join(f"{word}\n" for word in words[shard :: 8 * number]))
    translate = ["translate", "model", "in", "--max-length", "30", *options]
    regard(*translate, "--out", "unbroken", folder=folder)
    rng, killed, out = random.Random(1), {"driver": 0, "worker": 0}, folder / "broken"
    command, rewritten = [sys.executable, "-m", "regard", *translate, "--out", "broken"], 0
    process: subprocess.Popen[bytes] | None = None
    while sum(killed.values()) < 2 * number:
        before = {path.name: path.stat().st_mtime_ns for path in out.glob("*.txt")}
        if process is None or process.poll() is not None:
            process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        which = min(killed, key=killed.__getitem__)
        if not (victim := chosen_victim(process, which, out, len(before) + 1)):
            break
        time.sleep(rng.random() / 2)
        os.kill(victim, signal.SIGKILL)
        killed[which] += 1
        with suppress(subprocess.TimeoutExpired):
            process.wait(None if which == "driver" else 5)  # Ray starts a worker again, and goes on
        rewritten += sum((out / name).stat().st_mtime_ns != changed for name, changed in before.items())
    if process and process.wait():
        print("the last of these runs was ended by a kill")
    regard(*translate, "--out", "broken", folder=folder)
    outputs = [{path.name: path.read_bytes() for path in (folder / name).glob("*.txt")} for name in ("unbroken", "broken")]
    verdict = "identical" if outputs[0] == outputs[1] and len(outputs[0]) == 8 * number else "DIFFERENT"
    counts = " and ".join(f"{which}s were killed {times} times" for which, times in killed.items())
    return [f"{8 * number} files, {len(words):,} lines: {counts}; outputs {verdict}, finished files rewritten: {rewritten}"]


def chosen_victim(process: subprocess.Popen[bytes], which: str, out: Path, number: int) -> int:
    """Returns the process to kill, as soon as this number of files is finished; 0 if the command has ended before."""
    while process.poll() is None and len(list(out.glob("*.txt"))) < number:
        time.sleep(0.01)
    if process.poll() is not None:
        return 0
    if which == "driver":
        return process.pid
    descendants, waiting = [], [process.pid]
    while waiting:
        parent = waiting.pop()
        for path in Path(f"/proc/{parent}/task").glob("*/children"):
            children = list(map(int, path.read_text().split()))
            waiting += children
            descendants += children
    titles = {child: Path(f"/proc/{child}/cmdline").read_text() for child in descendants}
    actors = [child for child, title in titles.items() if title.startswith("ray::Map")]
    return (actors or [child for child, title in titles.items() if "translate" in title])[-1]


def main(part: str, number: int = 0) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pairs = pronunciations("train")[:2000]
        (folder / "words.tsv").write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in pairs))
        parts = {
            "throughput": lambda: throughput(folder),
            "speed-up": lambda: speed_up(folder),
            "plan": lambda: planned(folder, number),
            "kills": lambda: kills(folder, number or 20),
            "ray": lambda: ray(folder, number or 150_000),
            "bulk-kills": lambda: bulk_kills(folder, number or 20, "--threads", "2"),
            "ray-kills": lambda: bulk_kills(folder, number or 20, "--threads", "1", "--ray", "local"),
        }
        lines = parts[part]()
    print("\n".join(lines))
    write_result(__file__, lines, f"{part}-{number}" if part == "plan" and number else part)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
