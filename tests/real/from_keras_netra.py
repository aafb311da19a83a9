"""Converts netra's Keras layers to our RnnSeq2Seq."""

from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from regard.core.attention import additive_scores
from regard.core.score import Score
from regard.models.build import build
from regard.models.rnn_seq2seq import RnnSeq2Seq, RnnSettings


class Projected(nn.Module, Score):
    """vᵀ tanh(s + K h + b): additive, without a projection of the query, with a bias for the key."""

    name = "netra"

    def __init__(self, query_width: int, key_width: int) -> None:
        super().__init__()
        self.numbers_per_pair = query_width
        self.key = nn.Linear(key_width, query_width)
        self.v = nn.Parameter(torch.empty(query_width))

    def prepare(self, key: Tensor, positions: Tensor | None = None) -> Tensor:
        prepared: Tensor = self.key(key)
        return prepared

    def scores(self, query: Tensor, prepared: Tensor) -> Tensor:
        return additive_scores(query, prepared, self.v)


def gru(kernel: Tensor, recurrent_kernel: Tensor, bias: Tensor) -> dict[str, Tensor]:
    """Returns torch's weights of a Keras GRU. Keras orders the gates z, r, h, torch r, z, n. The bias of Keras, (2, 3 units),
    has one row for the input and one for the state."""

    def rzn(gates: Tensor) -> Tensor:
        z, r, n = gates.chunk(3, dim=-1)
        return torch.cat((r, z, n), dim=-1)

    bias_ih, bias_hh = rzn(bias)
    return {
        "weight_ih_l0": rzn(kernel).T,
        "weight_hh_l0": rzn(recurrent_kernel).T,
        "bias_ih_l0": bias_ih,
        "bias_hh_l0": bias_hh,
    }


def load(path: Path) -> RnnSeq2Seq:
    """Returns the model. netra mixes k_i = K h_i + b, our model h_i itself. Weights sum to 1, so netra's context is K c + b,
    and K and b are folded into the output layer: W_o [s; K c + b] + b_o = [W_s, W_c K] [s; c] + (b_o + W_c b)."""
    theirs: dict[str, Tensor] = load_file(path)
    cells = {"encoder.forwards.0": "forward_gru_6", "encoder.backwards.0": "backward_gru_6", "decoder": "gru_7"}
    ours: dict[str, Tensor] = {}
    for name, layer in cells.items():
        parts = {part: theirs.pop(f"{layer}/gru_cell/{part}") for part in ("kernel", "recurrent_kernel", "bias")}
        ours |= {f"{name}.{kind}": value for kind, value in gru(**parts).items()}
    ours["source_embedding.weight"] = theirs.pop("embedding_8/embeddings")
    ours["target_embedding.weight"] = theirs.pop("embedding_9/embeddings")
    K, b = theirs.pop("dense_12/kernel").T, theirs.pop("dense_12/bias")
    ours |= {"score.key.weight": K, "score.key.bias": b, "score.v": theirs.pop("additive_attention_5/scale")}
    width, memory_width = K.shape
    W_s, W_c = theirs.pop("dense_13/kernel").T.split(width, dim=1)
    ours["output.weight"] = torch.cat((W_s, W_c @ K), dim=1)
    ours["output.bias"] = theirs.pop("dense_13/bias") + W_c @ b
    ours |= {"bridge.weight": torch.zeros(width, memory_width), "bridge.bias": torch.zeros(width)}  # s_0 = 0
    assert not theirs, f"unknown tensors: {', '.join(theirs)}"
    (source_vocab, embedding), target_vocab = ours["source_embedding.weight"].shape, len(ours["target_embedding.weight"])
    settings = RnnSettings(
        cell="gru",
        width=width,
        encoder_width=memory_width,
        embedding=embedding,
        decoder="luong",
        readout="plain",
        score=Projected.name,
    )
    model = build(settings, source_vocab, target_vocab, scores={Projected.name: Projected})
    assert isinstance(model, RnnSeq2Seq)
    model.load_state_dict(ours)
    return model.eval()
