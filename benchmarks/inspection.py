"""Inspecting a whole model in one run: regard with summaries, compared with transformers with all weights.

    python benchmarks/inspection.py [lengths ...]      default: 2048 8192

A language model (width 512, 8 heads, 12 layers, 1,000 words) reads one text of L tokens, and every head of every layer is
inspected. Ours taps summaries: the 8 strongest links of every query, entropy, mass, distances and block means. Theirs is GPT-2
of the same sizes from transformers with attn_implementation="eager" and output_attentions=True, which returns all weights, L x
L per head; from these the same strongest links, entropy and mass are computed. Both are also measured without inspection.

2 threads; medians of rounds, each in a fresh process. Memory is the growth of the RSS over the model at the peak of the whole
pass; the memory of the inspection alone (all weights, or the summaries) is printed as well. A case that would hold more than
12 GB is not run; its weights alone are layers x heads x L² x 4 bytes. The result is written to a dated file in the folder of
this script; if lengths are given it is only printed.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

from dated import write_result

LENGTHS, THREADS = (2048, 8192), 2
ROUNDS, LONG_ROUNDS = 3, 1
"""LONG_ROUNDS is for long texts, which take minutes."""
WIDTH, HEADS, LAYERS, VOCAB, MOST_BYTES = 512, 8, 12, 1000, 12e9
PAGE = 4096


def ours(length: int, *, inspected: bool) -> Callable[[], object]:
    import torch

    from regard.core import masks
    from regard.core.source import Source
    from regard.look import Look, Tap
    from regard.models.decoder_only import DecoderOnly, DecoderOnlySettings

    settings = DecoderOnlySettings(
        width=WIDTH, heads=HEADS, layers=LAYERS, feed_forward=4 * WIDTH, positions="learned", max_positions=length
    )
    model = DecoderOnly(settings, VOCAB, VOCAB).eval()
    ids = torch.randint(4, VOCAB, (1, length))
    memory = model.encode(Source(ids, masks.not_padding(ids, 0)))
    look = Look((Tap("decoder", what="summary"),)) if inspected else None
    return lambda: model.decode(ids, memory, look)


def theirs(length: int, *, inspected: bool) -> Callable[[], object]:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=VOCAB, n_positions=length, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS)
    config._attn_implementation = "eager" if inspected else "sdpa"
    model = GPT2LMHeadModel(config).eval()
    ids = torch.randint(4, VOCAB, (1, length))

    def run() -> object:
        out = model(ids, output_attentions=inspected, use_cache=False)
        if not inspected:
            return out
        return [(one.topk(8), torch.special.entr(one).sum(-1), one.sum(-2)) for one in out.attentions]

    return run


CASES = {
    "ours": (ours, False),
    "ours, summaries": (ours, True),
    "transformers, sdpa": (theirs, False),
    "transformers, eager, all weights": (theirs, True),
}


def resident() -> int:
    """Returns the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def measure(name: str, length: int) -> dict[str, float]:
    """Runs one pass in this process; returns seconds and the largest growth of the RSS, sampled every half millisecond."""
    import torch

    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    make, inspected = CASES[name]
    with torch.inference_mode():
        make(128, inspected=inspected)()  # starts the threads
        run = make(length, inspected=inspected)
        before, peak, done = resident(), 0, threading.Event()

        def sample_memory() -> None:
            nonlocal peak
            while not done.is_set():
                peak = max(peak, resident())
                time.sleep(0.0005)

        sampler = threading.Thread(target=sample_memory)
        sampler.start()
        start = time.perf_counter()
        result = run()
        seconds = time.perf_counter() - start
        done.set()
        sampler.join()
        summaries = [one.summary for one in getattr(result, "seen", ())]
        kept = sum(part.nbytes for one in summaries for part in vars(one).values() if part is not None)
    return {"seconds": seconds, "bytes": max(peak, resident()) - before, "kept": kept}


def rounds(length: int) -> list[str]:
    weights = LAYERS * HEADS * length**2 * 4
    names = [name for name in CASES if "all weights" not in name or 2 * weights <= MOST_BYTES]
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for _ in range(num_rounds := ROUNDS if length <= 4096 else LONG_ROUNDS):
        for name in names:  # in turns, so that a slow minute affects all
            command = [sys.executable, __file__, "--one", name, str(length)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found[name].append(json.loads(done.stdout))
    lines = [f"L = {length:,}: {LAYERS} layers of {HEADS} heads; {num_rounds} round{'s' * (num_rounds > 1)}"]
    for name in CASES:
        if name not in found:
            lines.append(f"  {name:<34} not run; its weights alone take {weights / 1e6:,.0f} MB")
            continue
        seconds = [one["seconds"] for one in found[name]]
        low, middle, high = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else seconds * 3
        memory = statistics.median(one["bytes"] for one in found[name])
        lines.append(f"  {name:<34} {1000 * middle:9,.0f} ms ({1000 * low:,.0f}–{1000 * high:,.0f})   {memory / 1e6:9,.1f} MB")
    full = "transformers, eager, all weights"

    def median(name: str, what: str) -> float:
        return statistics.median(one[what] for one in found[name])

    mine, theirs_bytes = median("ours, summaries", "bytes"), median(full, "bytes") if full in found else weights
    kept = median("ours, summaries", "kept")
    lines.append(f"  memory of the whole pass: 1/{theirs_bytes / mine:.0f} of theirs (claim: at most 1/20)")
    lines.append(f"  memory of the inspection: {kept / 1e6:,.1f} of {weights / 1e6:,.0f} MB, 1/{weights / kept:.0f}")
    if full in found:
        ratio = median("ours, summaries", "seconds") / median(full, "seconds")
        lines.append(f"  time: {ratio:.2f} of theirs (claim: at most 1)")
    return lines


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--one"]:
        print(json.dumps(measure(arguments[1], int(arguments[2]))))
        return
    from importlib.metadata import version

    lengths = [int(one) for one in arguments] or list(LENGTHS)
    versions = " | ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))
    head = f"{date.today()} | {versions} | {THREADS} threads"
    report = "\n".join([head, *(line for length in lengths for line in ["", *rounds(length)])])
    print(report)
    if not arguments:
        write_result(__file__, [report])


if __name__ == "__main__":
    main(sys.argv[1:])
