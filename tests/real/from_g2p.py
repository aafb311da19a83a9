"""Converts the arrays of g2p_en to our RnnSeq2Seq."""

from pathlib import Path

import numpy as np
import torch

from regard.models.rnn_seq2seq import RnnSeq2Seq, RnnSettings

NAMES = {
    "enc_emb": "source_embedding.weight",
    "enc_w_ih": "encoder.forwards.0.weight_ih_l0",
    "enc_w_hh": "encoder.forwards.0.weight_hh_l0",
    "enc_b_ih": "encoder.forwards.0.bias_ih_l0",
    "enc_b_hh": "encoder.forwards.0.bias_hh_l0",
    "dec_emb": "target_embedding.weight",
    "dec_w_ih": "decoder.weight_ih_l0",
    "dec_w_hh": "decoder.weight_hh_l0",
    "dec_b_ih": "decoder.bias_ih_l0",
    "dec_b_hh": "decoder.bias_hh_l0",
    "fc_w": "output.weight",
    "fc_b": "output.bias",
}


def load(path: Path) -> RnnSeq2Seq:
    """Returns the model. The gates are in torch's order: r, z, n. Raises KeyError for an unknown name."""
    with np.load(path) as file:
        ours = {NAMES[name]: torch.from_numpy(file[name]) for name in file.files}
    source_vocab, embedding = ours["source_embedding.weight"].shape
    target_vocab, width = ours["output.weight"].shape
    settings = RnnSettings(cell="gru", width=width, embedding=embedding, bidirectional=False, decoder="fixed", bridge="none")
    model = RnnSeq2Seq(settings, source_vocab, target_vocab)
    model.load_state_dict(ours)
    return model.eval()
