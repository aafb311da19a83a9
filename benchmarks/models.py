"""Training speed of the preset `small` in one run: regard, torch.nn.Transformer and the MarianMTModel of transformers.

    python benchmarks/models.py [rounds [threads]]      default: 15 2

Forward and backward pass of one batch of about 4,096 target tokens and about as many source tokens, 8,000 words on either
side, dropout 0.1, label smoothing 0.1, float32; the optimiser is not included. Sentences have 25 to 32 tokens, so there is
some padding, as in a batch of sentences of similar length; ours does not project it to the vocabulary, and projects a few rows
at a time. Medians of interleaved rounds with their spread (first to third quartile). The share of GEMM is the rate of matrix
products (ours, for all: counted once by torch's FlopCounterMode on the path without fused attention, forward and backward)
over the rate of torch.mm on 1024 x 1024 matrices in the same rounds. The result is written to a dated file in the folder of
this script; if rounds or threads are given it is only printed.

All models have the same matrices. They differ in where dropout is applied: Marian and ours do not apply it to attention
weights; nn.Transformer does by default, and torch then does not use fused attention. Marian is post-norm, the others are
pre-norm.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable

import torch
from dated import write_result
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from regard.contracts import OWN
from regard.core import masks
from regard.core.losses import sequence_loss
from regard.core.positions import sinusoidal
from regard.core.source import Source
from regard.data.batch import Batch, Example, collate
from regard.models.build import num_parameters
from regard.models.transformer import PRESETS, Transformer

SMALL, VOCAB, SMOOTHING, ROUNDS = PRESETS["small"], 8000, 0.1, 15
SENTENCES, SHORTEST, LONGEST = 144, 24, 31  # <eos> comes on top

Model = nn.Module
Loss = Callable[[Batch], Tensor]

EOS, PAD, SOS = OWN.eos, OWN.pad, OWN.start


def make_batch() -> Batch:
    torch.manual_seed(1)

    def sentence() -> list[int]:
        return torch.randint(4, VOCAB, (int(torch.randint(SHORTEST, LONGEST + 1, ())),)).tolist()

    return collate([Example(sentence(), sentence()) for _ in range(SENTENCES)])


def smoothed(logits_BTV: Tensor, batch: Batch) -> Tensor:
    """Returns the loss of models that return logits, as torch computes it."""
    return sequence_loss(logits_BTV, batch.target_out_BT, pad=PAD, smoothing=SMOOTHING)


def ours() -> tuple[Model, Loss]:
    model = Transformer(SMALL, VOCAB, VOCAB)

    def loss(batch: Batch) -> Tensor:
        decoded = model.decode(batch.target_in_BT, model.encode(batch.source))
        return decoded.loss(batch.target_out_BT, pad=PAD, smoothing=SMOOTHING)

    return model, loss


class TorchTransformer(nn.Module):
    """A typical model around torch.nn.Transformer."""

    def __init__(self, *, attention_dropout: bool) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(VOCAB, SMALL.width), nn.Embedding(VOCAB, SMALL.width)
        self.register_buffer("positions", sinusoidal(torch.arange(64), SMALL.width))
        self.dropout = nn.Dropout(SMALL.dropout)
        self.transformer = nn.Transformer(
            SMALL.width,
            SMALL.heads,
            SMALL.encoder_layers,
            SMALL.decoder_layers,
            SMALL.feed_forward,
            SMALL.dropout,
            batch_first=True,
            norm_first=True,
        )
        self.output = nn.Linear(SMALL.width, VOCAB)
        if not attention_dropout:
            for module in self.modules():
                if isinstance(module, nn.MultiheadAttention):
                    module.dropout = 0.0

    def embed(self, embedding: nn.Embedding, ids_BT: Tensor) -> Tensor:
        embedded: Tensor = self.dropout(embedding(ids_BT) * math.sqrt(SMALL.width) + self.positions[: ids_BT.shape[1]])
        return embedded

    def forward(self, source: Source, target_BT: Tensor) -> Tensor:
        padding_BS = ~source.allow
        states_BTD = self.transformer(
            self.embed(self.source, source.values),
            self.embed(self.target, target_BT),
            tgt_mask=~masks.causal(target_BT.shape[1]),
            src_key_padding_mask=padding_BS,
            tgt_key_padding_mask=~masks.not_padding(target_BT, PAD),
            memory_key_padding_mask=padding_BS,
            tgt_is_causal=True,
        )
        logits_BTV: Tensor = self.output(states_BTD)
        return logits_BTV


def torch_transformer(*, attention_dropout: bool) -> tuple[Model, Loss]:
    model = TorchTransformer(attention_dropout=attention_dropout)
    return model, lambda batch: smoothed(model(batch.source, batch.target_in_BT), batch)


def marian() -> tuple[Model, Loss]:
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=VOCAB,
        decoder_vocab_size=VOCAB,
        d_model=SMALL.width,
        encoder_layers=SMALL.encoder_layers,
        decoder_layers=SMALL.decoder_layers,
        encoder_attention_heads=SMALL.heads,
        decoder_attention_heads=SMALL.heads,
        encoder_ffn_dim=SMALL.feed_forward,
        decoder_ffn_dim=SMALL.feed_forward,
        activation_function=SMALL.activation,
        dropout=SMALL.dropout,
        activation_dropout=SMALL.dropout,
        attention_dropout=0.0,
        max_position_embeddings=64,
        pad_token_id=PAD,
        bos_token_id=SOS,
        eos_token_id=EOS,
        decoder_start_token_id=SOS,
        forced_eos_token_id=EOS,
        scale_embedding=True,
        share_encoder_decoder_embeddings=False,
        tie_word_embeddings=False,
        use_cache=False,
    )
    model = MarianMTModel(config)

    def loss(batch: Batch) -> Tensor:
        out = model(
            input_ids=batch.source.values,
            attention_mask=batch.source.allow.long(),
            decoder_input_ids=batch.target_in_BT,
            decoder_attention_mask=masks.not_padding(batch.target_in_BT, PAD).long(),
            use_cache=False,
        )
        return smoothed(out.logits, batch)

    return model, loss


def forward_and_backward(loss: Loss, batch: Batch) -> None:
    (loss(batch) / batch.num_targets).backward()


def timed(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def count_products(model: Model, loss: Loss, batch: Batch) -> int:
    """Returns the floating-point operations of the matrix products in one forward and backward pass."""
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        forward_and_backward(loss, batch)
    model.zero_grad()
    return int(counter.get_total_flops())


def main(rounds: int = ROUNDS, threads: int = 2, *, write: bool = False) -> None:
    torch.set_num_threads(threads)
    makers: dict[str, Callable[[], tuple[Model, Loss]]] = {
        "regard small": ours,
        "nn.Transformer": lambda: torch_transformer(attention_dropout=True),
        "nn.Transformer, no attention dropout": lambda: torch_transformer(attention_dropout=False),
        "MarianMTModel": marian,
    }
    batch = make_batch()
    lines = [
        f"torch {torch.__version__}, {torch.get_num_threads()} threads; {batch.num_targets} target tokens, "
        f"{int(batch.source.allow.sum())} source tokens, {SENTENCES} sentences; {SMALL}"
    ]
    made: dict[str, tuple[Model, Loss]] = {}
    for name, make in makers.items():
        try:
            torch.manual_seed(1)
            made[name] = make()
        except ImportError as error:
            lines.append(f"skipped: {name} ({error})")
    print(*lines, sep="\n", flush=True)
    for model, loss in made.values():
        model.train()
        forward_and_backward(loss, batch)  # warm-up
        model.zero_grad()
    products = count_products(*made["regard small"], batch)
    one, other = torch.randn(1024, 1024), torch.randn(1024, 1024)
    seconds: dict[str, list[float]] = {name: [] for name in made}
    gemm: list[float] = []
    for _ in range(rounds):
        gemm += [timed(lambda: torch.mm(one, other)) for _ in range(5)]
        for name, (model, loss) in made.items():
            torch.manual_seed(1)
            seconds[name].append(timed(lambda loss=loss: forward_and_backward(loss, batch)))
            model.zero_grad()
    rate = 2 * 1024**3 / statistics.median(gemm)
    lines.append(f"{products / 1e9:.1f} GFLOP of matrix products in a batch; GEMM rate {rate / 1e9:.0f} GFLOP/s")
    for name, (model, _) in made.items():
        low, middle, high = statistics.quantiles(seconds[name], n=4)
        ratio = statistics.median(mine / theirs for mine, theirs in zip(seconds["regard small"], seconds[name], strict=True))
        lines.append(
            f"{name:<38} {batch.num_targets / middle:7,.0f} target tokens/s  {middle:.3f} s ({low:.3f}-{high:.3f})  "
            f"{products / middle / rate:4.0%} of GEMM  regard takes {ratio:.2f} x its time  "
            f"{num_parameters(model) / 1e6:.2f} M parameters"
        )
    print(*lines[1:], sep="\n")
    if write:
        write_result(__file__, lines)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]), write=not sys.argv[1:])
