"""A Transformer that writes Arabic names in Latin letters (pre-norm, 6+6 layers): our outputs equal those of CTranslate2."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from searching import batched, last_outputs, make_engine, make_requests, run, token_batch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

import regard
from regard.core.source import Source
from regard.interop.ctranslate2 import open_folder
from regard.look import Look
from regard.models.contract import Model, State, Step

START, STOP = 1, 2
BETTER = [  # (our output, reference): all that differ with a beam of 5; ours have the higher scores
    ("gannett", "gannet"),
    ("schmolick", "schmolke"),
    ("bellethin", "blithen"),
    ("bouzuba", "bozuba"),
    ("zillowan", "zilowan"),
    ("brightener", "breitener"),
    ("tredwell", "tredwel"),
    ("titelabam", "titelab"),
    ("grimelmaier", "gremmlaier"),
]


class NotEmpty:
    """A model in which <eos> cannot be the first token, as in CTranslate2; the other tokens share its probability."""

    def __init__(self, model: Model) -> None:
        self.model, self.encode, self.start, self.decode = model, model.encode, model.start, model.decode
        self.traits = model.traits

    def step(self, ids_BK: Tensor, state: State, look: Look | None = None) -> Step:
        first_B = state.lengths_B == 0
        step = self.model.step(ids_BK, state, look)
        step.logits_BKV[first_B, :, STOP] = -torch.inf
        return step


@dataclass(frozen=True)
class Reference:
    """The converted model and CTranslate2's outputs.

    words: for every source the best output and its score, the mean log-probability.
    token_log_probs: the log-probabilities of the tokens of the first outputs.
    """

    model: Model
    source_ids: dict[str, int]
    letters: list[str]
    words: list[dict[str, str | float]]
    beams: list[tuple[list[str], list[float]]]
    token_log_probs: list[list[float]]

    def rows(self) -> list[list[int]]:
        """The ids of every source."""
        unknown = len(self.source_ids)  # the last row of their embedding
        return [[self.source_ids.get(letter, unknown) for letter in str(word["source"])] for word in self.words]


@pytest.fixture(scope="module")
def reference(data: Callable[[str], Path]) -> Reference:
    root = data("ctranslate2-aren-transliteration")
    folder = root / "aren-transliteration"
    source, target = ((folder / f"{side}_vocabulary.txt").read_text().split("\n")[:-1] for side in ("source", "target"))
    expected = json.loads((root / "expected_ctranslate2.json").read_text())
    words = [{"source": one["src"], "target": one["hyps"][0], "score": one["scores"][0]} for one in expected["beam1"]]
    source_ids = {letter: number for number, letter in enumerate(source)}
    model = open_folder(folder).model()
    beams = [(one["hyps"], one["scores"]) for one in expected["beam5"]]
    return Reference(model, source_ids, target, words, beams, expected["greedy_token_logprobs_first200"])


def test_greedy_search_finds_the_same_words_and_scores(reference: Reference) -> None:
    """Decodes all sources step by step, in batches of mixed lengths. One source has a letter that is not in the vocabulary."""
    assert len(reference.words) == 1590
    rows = reference.rows()
    assert any(len(reference.source_ids) in row for row in rows)
    engine = make_engine(reference.model, sos=START, eos=STOP, never=())
    hypotheses = {}
    for batch in batched(make_requests(rows, max_length=24), 199):
        hypotheses |= last_outputs(run(engine, batch))
    best = [hypotheses[number][0] for number in range(1590)]
    assert all(hypothesis.finished for hypothesis in best)
    assert ["".join(reference.letters[i] for i in one.ids) for one in best] == [word["target"] for word in reference.words]
    log_probs = torch.tensor([one.log_prob for one in best]) - torch.cat(
        [log_prob_not_empty(reference.model, token_batch(batch)) for batch in batched(rows, 199)]
    )
    scores = log_probs / torch.tensor([len(one.ids) + 1 for one in best])
    torch.testing.assert_close(scores, torch.tensor([word["score"] for word in reference.words]), atol=5e-6, rtol=0)


def test_a_beam_of_five_finds_the_same_or_better(reference: Reference) -> None:
    """The score is the mean log-probability. CTranslate2 stops once five hypotheses have ended, we once none can improve."""
    requests = make_requests(reference.rows(), beam=5, n_best=3, length_penalty="mean", max_length=24)
    requests.sort(key=lambda request: request.num_positions)
    engine = make_engine(NotEmpty(reference.model), sos=START, eos=STOP, never=())
    differences, events = [], [event for batch in batched(requests, 64) for event in run(engine, batch)]
    assert len(events) == 1590
    for event in events:
        ours = ["".join(reference.letters[i] for i in one.ids) for one in event.hypotheses]
        (words, scores), best = reference.beams[event.id], event.hypotheses[0]
        for one, word in zip(event.hypotheses, ours, strict=True):
            if word in words:
                assert one.rank_score == pytest.approx(scores[words.index(word)], abs=5e-6)
        assert best.rank_score > scores[0] - 5e-6
        if ours[0] != words[0]:
            differences.append((ours[0], words[0]))
            assert best.rank_score > scores[0] + 1e-3
    assert sorted(differences) == sorted(BETTER)


@torch.inference_mode()
def log_prob_not_empty(model: Model, source: Source) -> Tensor:
    """Returns log(1 − p(empty output)): with min_decoding_length=1, CTranslate2 gives that probability to the other outputs."""
    state = model.start(model.encode(source))
    log_probs_BKV = model.step(torch.full((source.num_sentences, 1), START), state).logits_BKV.log_softmax(-1)
    return (-log_probs_BKV[:, 0, STOP].exp()).log1p()


def test_every_token_has_the_same_log_probability(reference: Reference) -> None:
    """Scores whole outputs at once, as in training. The expected numbers have six decimals."""
    words = reference.words[: len(reference.token_log_probs)]
    outputs = [torch.tensor([reference.letters.index(letter) for letter in str(word["target"])] + [STOP]) for word in words]
    ids_BT = pad_sequence(outputs, batch_first=True, padding_value=STOP)
    read_BT = torch.cat((torch.full((len(words), 1), START), ids_BT[:, :-1]), dim=1)
    with torch.inference_mode():
        memory = reference.model.encode(token_batch(reference.rows()[: len(words)]))
        log_probs_BTV = reference.model.decode(read_BT, memory).logits_BTV.log_softmax(-1)
    log_probs_BT: Tensor = log_probs_BTV.gather(-1, ids_BT[..., None]).squeeze(-1)
    ours = torch.cat([row[: len(output)] for row, output in zip(log_probs_BT, outputs, strict=True)])
    expected = torch.tensor([value for row in reference.token_log_probs for value in row])
    torch.testing.assert_close(ours, expected, atol=5e-6, rtol=0)


@pytest.mark.parametrize("kind", ["", "-i16", "-i8"])
def test_every_type_of_numbers_gives_what_ctranslate2_gives(
    kind: str, data: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """CTranslate2 runs the same files in float32; both translate the same words, as a user types them."""
    library = pytest.importorskip("ctranslate2")
    monkeypatch.setenv("REGARD_CACHE", str(tmp_path))
    root = data("ctranslate2-aren-transliteration")
    words = [one["src"] for one in json.loads((root / "expected_ctranslate2.json").read_text())["beam1"][::53]]
    folder = root / f"aren-transliteration{kind}"
    model = regard.load(folder)
    theirs = library.Translator(str(folder), compute_type="float32", intra_threads=1)
    expected = theirs.translate_batch([list(word) for word in words], beam_size=1, min_decoding_length=0)
    assert [result.text for result in model.batch(words)] == ["".join(one.hypotheses[0]) for one in expected]
    proof = model.training["converted"]["proof"]
    assert proof["peer"].startswith("ctranslate2")
    assert 0 < proof["max_difference"] < 1e-4
