"""Time of the recurrent decoders that run step by step, compared with the same decoder written as a plain loop.

    python benchmarks/recurrent.py [rounds [threads]]      default: 20 2

Forward and backward pass of one decoder with its loss: batch 64, 30 target and 30 source positions, no padding in every other
row, width and embedding 256, additive scores of width 64, a vocabulary of 1,000. The plain loop computes everything in every
step: the keys, one of torch's cells, attention and the output. The second one prepares the keys once. Medians of interleaved
rounds with their spread (first to third quartile). The share of GEMM is the rate of all matrix products that torch counts in
our decoder over the rate of torch.mm on 1024 x 1024 matrices in the same rounds. With 20 rounds and 2 threads the result is
written to a dated file in the folder of this script.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from dated import write_result
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from regard.core import masks
from regard.models.contract import Memory
from regard.models.rnn_seq2seq import RnnSeq2Seq, RnnSettings
from regard.native.flops import COUNTED_KERNELS

BATCH, TARGET, SOURCE, WIDTH, VOCAB = 64, 30, 30, 256, 1000
CASES = {
    f"{decoder}, {cell}": RnnSettings(
        width=WIDTH,
        embedding=WIDTH,
        cell=cell,
        decoder="bahdanau" if decoder == "bahdanau" else "luong",
        input_feeding=decoder == "input feeding",
        dropout=0.0,
    )
    for decoder in ("bahdanau", "input feeding")
    for cell in ("gru", "lstm", "rnn_tanh")
}
TORCH_CELLS = {"gru": nn.GRUCell, "lstm": nn.LSTMCell, "rnn_tanh": nn.RNNCell}


def torch_cell(model: RnnSeq2Seq) -> nn.RNNCellBase:
    """Returns torch's cell with the parameters of the model."""
    cell = TORCH_CELLS[model.settings.cell](model.decoder.input_size, WIDTH)
    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        setattr(cell, name, getattr(model.decoder, f"{name}_l0"))
    return cell


def plain(model: RnnSeq2Seq, memory: Memory, ids_BT: Tensor, *, keys_once: bool) -> Tensor:
    """Returns the logits of the decoder, written as a plain loop."""
    cell, score, H, lstm = torch_cell(model), model.score, memory.values_BSE, model.settings.cell == "lstm"
    state = model.bridge(memory.summary_BE).tanh()
    state = state.chunk(2, dim=-1) if lstm else state
    keys = score.key(H) if keys_once else None
    mixed, logits = torch.zeros(BATCH, WIDTH), []

    def attend(s_BD: Tensor) -> Tensor:
        prepared = score.key(H) if keys is None else keys
        scores_BS = torch.tanh(score.query(s_BD)[:, None] + prepared) @ score.v
        weights_BS = scores_BS.masked_fill(~memory.allow_BS, -torch.inf).softmax(-1)
        return (weights_BS[:, None] @ H)[:, 0]

    for y_BI in model.target_embedding(ids_BT).unbind(1):
        if model.settings.decoder == "bahdanau":
            context_BE = attend(state[0] if lstm else state)
            state = cell(torch.cat((context_BE, y_BI), dim=-1), state)
            logits.append(model.output(torch.cat((state[0] if lstm else state, context_BE), dim=-1)))
        else:
            state = cell(torch.cat((mixed, y_BI), dim=-1), state)
            top_BD = state[0] if lstm else state
            mixed = model.combine(torch.cat((attend(top_BD), top_BD), dim=-1)).tanh()
            logits.append(model.output(mixed))
    return torch.stack(logits, dim=1)


def make_runs(settings: RnnSettings) -> dict[str, Callable[[], list[Tensor]]]:
    """Returns functions that compute the loss and all its gradients."""
    torch.manual_seed(0)
    model = RnnSeq2Seq(settings, 10, VOCAB)
    allow_BS = masks.first(torch.tensor([SOURCE, SOURCE * 2 // 3] * (BATCH // 2)), SOURCE)
    values_BSE, summary_BE = torch.randn(BATCH, SOURCE, WIDTH).requires_grad_(), torch.randn(BATCH, WIDTH).requires_grad_()
    memory = Memory(values_BSE, allow_BS, summary_BE, axes=(SOURCE,))
    ids_BT, targets_BT = torch.randint(VOCAB, (BATCH, TARGET)), torch.randint(VOCAB, (BATCH, TARGET))
    unused = {"source_embedding", "encoder"}
    parameters = [parameter for name, parameter in model.named_parameters() if name.split(".")[0] not in unused]
    inputs = [values_BSE, summary_BE, *parameters]

    def run(logits: Callable[[], Tensor]) -> list[Tensor]:
        loss = F.cross_entropy(logits().flatten(0, 1), targets_BT.flatten())
        for one in inputs:
            one.grad = None
        loss.backward()
        return [loss, *(one.grad for one in inputs)]

    return {
        "plain loop": partial(run, partial(plain, model, memory, ids_BT, keys_once=False)),
        "plain loop, keys once": partial(run, partial(plain, model, memory, ids_BT, keys_once=True)),
        "ours": partial(run, lambda: model.decode(ids_BT, memory).logits_BTV),
    }


def timed(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def table(name: str, rounds: int) -> list[str]:
    runs = make_runs(CASES[name])
    expected = runs["plain loop"]()
    for run in runs.values():  # which warms them up, too
        for one, other in zip(run(), expected, strict=True):
            torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-3)
    with FlopCounterMode(display=False, custom_mapping=COUNTED_KERNELS) as counter:
        runs["ours"]()
    square = torch.randn(1024, 1024)
    gemm, found = [], {how: [] for how in runs}
    for _ in range(rounds):
        gemm += [timed(lambda: torch.mm(square, square)) for _ in range(3)]
        for how, run in runs.items():
            found[how].append(timed(run))
    rate = 2 * 1024**3 / statistics.median(gemm)
    rows = [f"\n{name} (GEMM rate {rate / 1e9:.0f} GFLOP/s)"]
    for how, seconds in found.items():
        low, middle, high = (1e3 * one for one in statistics.quantiles(seconds, n=4))
        ratio = statistics.median(one / other for one, other in zip(seconds, found["plain loop"], strict=True))
        share = f"{counter.get_total_flops() / (middle / 1e3) / rate:.0%} of GEMM" if how == "ours" else ""
        rows.append(f"  {how:<24} {middle:8.1f} ms ({low:.1f}-{high:.1f})".ljust(58) + f"{ratio:.2f} x plain loop  {share}")
    print(*rows, sep="\n", flush=True)
    return rows


def main(rounds: int = 20, threads: int = 2) -> None:
    torch.set_num_threads(threads)
    lines = [f"torch {torch.__version__}, {threads} threads, {rounds} interleaved rounds, forward and backward"]
    print(*lines, flush=True)
    for name in CASES:
        lines += table(name, rounds)
    if (rounds, threads) == (20, 2):
        write_result(__file__, lines)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
