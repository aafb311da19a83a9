"""g2p_en, which pronounces English words (GRU, no attention, GRU): our outputs equal those of its NumPy code."""

import json
from collections.abc import Callable
from pathlib import Path

import from_g2p
from searching import batched, last_outputs, make_engine, make_requests, run, token_batch

# The two vocabularies, which are not in the file.
LETTERS = ["<pad>", "<unk>", "</s>", *"abcdefghijklmnopqrstuvwxyz"]
PHONEMES = """<pad> <unk> <s> </s>
    AA0 AA1 AA2 AE0 AE1 AE2 AH0 AH1 AH2 AO0 AO1 AO2 AW0 AW1 AW2 AY0 AY1 AY2 B CH D DH EH0 EH1 EH2 ER0 ER1 ER2 EY0 EY1 EY2 F G HH
    IH0 IH1 IH2 IY0 IY1 IY2 JH K L M N NG OW0 OW1 OW2 OY0 OY1 OY2 P R S SH T TH UH0 UH1 UH2 UW UW0 UW1 UW2 V W Y Z ZH""".split()


def test_greedy_search_finds_the_same_phonemes(data: Callable[[str], Path]) -> None:
    """Decodes all words step by step, in batches of mixed lengths. The decoder gets only the state at the real end of a word,
    which padding must not change."""
    folder = data("g2p-en-gru")
    expected: dict[str, list[str]] = json.loads((folder / "expected_predict.json").read_text())
    assert len(expected) == 125
    rows = [[LETTERS.index(letter) for letter in (*word, "</s>")] for word in expected]
    model = from_g2p.load(folder / "checkpoint20.npz")
    engine = make_engine(model, sos=PHONEMES.index("<s>"), eos=PHONEMES.index("</s>"), never=())
    hypotheses = {}
    for batch in batched(make_requests(rows, max_length=20), 47):
        assert not token_batch([request.source for request in batch]).allow.all()
        hypotheses |= last_outputs(run(engine, batch))
    assert all(hypothesis.finished for (hypothesis,) in hypotheses.values())
    outputs = {word: [PHONEMES[i] for i in hypotheses[number][0].ids] for number, word in enumerate(expected)}
    assert outputs == expected
