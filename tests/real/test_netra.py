"""netra, which writes English names in Khmer letters (bidirectional GRU, additive attention, GRU): our outputs are Keras's."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import from_keras_netra
import pytest
import torch
from searching import make_engine, outputs
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from regard.contracts import SourceRow
from regard.core.source import Source
from regard.models.rnn_seq2seq import RnnSeq2Seq


@dataclass(frozen=True)
class Reference:
    """The converted model and the outputs of Keras.

    outputs, log_probs: the tokens of each name and their log-probabilities; the last token is the stop token.
    """

    model: RnnSeq2Seq
    start: int
    stop: int
    letters: dict[int, str]
    source: Source
    texts: list[str]
    outputs: list[Tensor]
    log_probs: Tensor


@pytest.fixture(scope="module")
def reference(data: Callable[[str], Path]) -> Reference:
    """netra does not mask padding: zeros up to position 25 are read and attended to like letters."""
    folder = data("netra-bigru-attention")
    config = json.loads((folder / "config.json").read_text())
    names = json.loads((folder / "expected_greedy_keras.json").read_text())
    source_ids, target_ids = config["src_index"], config["tgt_index"]
    start, stop = target_ids["\t"], target_ids["\n"]
    ids_BS = torch.zeros(len(names), config["max_src_len"], dtype=torch.long)
    for row_S, name in zip(ids_BS, names, strict=True):
        row_S[: len(name["src"])] = torch.tensor([source_ids[letter] for letter in name["src"]])
        assert name["hyp_ids"][0] == start
    assert ids_BS.tolist() == [name["src_ids_padded"] for name in names]
    return Reference(
        from_keras_netra.load(folder / "model.safetensors"),
        start,
        stop,
        {number: letter for letter, number in target_ids.items()},
        without_mask(ids_BS.tolist()),
        [name["hyp"] for name in names],
        [torch.tensor([*name["hyp_ids"][1:], stop]) for name in names],
        torch.tensor([value for name in names for value in name["logprobs"]]),
    )


def without_mask(rows: Sequence[SourceRow]) -> Source:
    ids_BS = torch.tensor(rows)
    return Source(ids_BS, torch.ones_like(ids_BS, dtype=torch.bool))


def test_greedy_search_finds_the_same_words(reference: Reference) -> None:
    """Decodes all names step by step in one batch; the log-probabilities are equal, too."""
    engine = make_engine(reference.model, sos=reference.start, eos=reference.stop, never=(), collate=without_mask)
    hypotheses = outputs(engine, reference.source.values.tolist(), max_length=24)
    best = [hypotheses[number][0] for number in range(len(reference.texts))]
    assert len(best) == 10
    assert all(hypothesis.finished for hypothesis in best)
    assert ["".join(reference.letters[i] for i in one.ids) for one in best] == reference.texts
    sums = torch.stack([part.sum() for part in reference.log_probs.split([len(output) for output in reference.outputs])])
    torch.testing.assert_close(torch.tensor([one.log_prob for one in best]), sums, atol=1e-4, rtol=0)


def test_every_token_has_the_same_log_probability(reference: Reference) -> None:
    """Scores whole outputs at once, as in training. The expected numbers have five decimals."""
    ids_BT = pad_sequence(reference.outputs, batch_first=True, padding_value=reference.stop)
    read_BT = torch.cat((torch.full((len(ids_BT), 1), reference.start), ids_BT[:, :-1]), dim=1)
    with torch.inference_mode():
        log_probs_BTV = reference.model.decode(read_BT, reference.model.encode(reference.source)).logits_BTV.log_softmax(-1)
    log_probs_BT: Tensor = log_probs_BTV.gather(-1, ids_BT[..., None]).squeeze(-1)
    ours = torch.cat([row[: len(output)] for row, output in zip(log_probs_BT, reference.outputs, strict=True)])
    torch.testing.assert_close(ours, reference.log_probs, atol=1e-5, rtol=0)
