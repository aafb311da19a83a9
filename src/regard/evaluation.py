"""How good outputs are, with what reproduces the figures. The only home of sacrebleu, which is optional."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path

import torch
from rapidfuzz.distance import Levenshtein
from torch import Tensor

from regard.data.corpus import NO_NORMALISATION, Columns, CorpusCounts, Normalisation, normalise_line, shorten, stream_pairs
from regard.data.files import TWO_COLUMNS, BadLine, NumberedRow, good_rows, open_table
from regard.errors import UserError, plural

Tokens = tuple[str, ...]

SAMPLES = 1000
"""How often a test set is drawn anew, with replacement, for an interval or a test (Koehn 2004)."""
SEED = 12345
"""sacrebleu's."""


@dataclass(frozen=True)
class ErrorRates:
    """Against several references the nearest one counts.

    sequence: share of outputs that equal no reference.  symbol: edits needed, as a share of the reference symbols.
    """

    sequence: float
    symbol: float
    num_sentences: int

    def __str__(self) -> str:
        outputs = f"{plural(self.num_sentences, 'output')} {'is' if self.num_sentences == 1 else 'are'}"
        symbol = f"symbol error rate {self.symbol:.2%}{above_all(self.symbol)}"
        return f"{symbol}; {self.sequence:.2%} of {outputs} not quite right"


def error_rates(outputs: Sequence[Tokens], references: Sequence[Sequence[Tokens]]) -> ErrorRates:
    edits = symbols = wrong = 0
    for output, choices in zip(outputs, references, strict=True):
        distance, length = nearest(output, choices)
        edits, symbols, wrong = edits + distance, symbols + length, wrong + (distance > 0)
    return ErrorRates(wrong / len(outputs), edits / symbols, len(outputs))


def above_all(rate: float) -> str:
    """Explains an error rate of more than 100 %."""
    return " (more errors than the references are long: outputs are much too long)" if rate > 1 else ""


def nearest(output: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[int, int]:
    """(edits, length) of the reference that needs the fewest edits."""
    return min((Levenshtein.distance(output, reference), len(reference)) for reference in references)


def text_fingerprint(lines: Iterable[str]) -> str:
    """Six letters that change when the data does, for a signature."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:6]


def signature(facts: Mapping[str, object]) -> str:
    """One line that says what reproduces a number: `data:… | search:greedy | seed:7 | regard:0.1.0 | torch:…`."""
    versions = {"regard": version("regard"), "torch": version("torch"), "python": platform.python_version()}
    return " | ".join(f"{name}:{value}" for name, value in {**facts, **versions}.items())


# --- test sets ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TestSet:
    """Sources, each once, with all their references.

    num_empty: lines that were left out because a side was empty. notes: what was guessed about the file.
    lines: the numbers of those that each source stands in.
    """

    __test__ = False  # pytest takes it for a test otherwise

    name: str
    sources: tuple[str, ...]
    references: tuple[tuple[str, ...], ...]
    num_empty: int
    notes: tuple[str, ...] = ()
    lines: tuple[tuple[int, ...], ...] = ()

    @property
    def num_repeats(self) -> int:
        """Lines whose source stood in an earlier one."""
        return sum(len(one) - 1 for one in self.lines)

    def only(self, indices: Sequence[int]) -> TestSet:
        """Some of the sources, by their places."""
        return replace(
            self,
            sources=tuple(self.sources[index] for index in indices),
            references=tuple(self.references[index] for index in indices),
            lines=tuple(self.lines[index] for index in indices),
        )

    @property
    def fingerprint(self) -> str:
        return text_fingerprint(
            "\t".join((source, *known)) for source, known in zip(self.sources, self.references, strict=True)
        )


def read_test_set(
    files: Sequence[Path],
    columns: Sequence[Columns] = (TWO_COLUMNS,),
    *,
    normalisation: Normalisation = NO_NORMALISATION,
    one_reference: bool = False,
) -> TestSet:
    """From all that can be trained on. More references stand in more lines with the same source, or in more columns.

    columns: one for each column of references. A table of source<TAB>reference needs no choice: all columns but the first are,
    unless it is known that there is one_reference. spelling: that of the model.
    """
    first = columns[0]
    if len(files) == 1 and not (first.source or first.target or one_reference) and ".tsv" in files[0].suffixes:
        return _read_table(files[0], first, normalisation)
    known: Known = {}
    num_empty = 0
    notes: list[str] = []
    for one in columns:
        counts = CorpusCounts()
        for pair in stream_pairs(files, one, counts=counts, normalisation=normalisation):
            known.setdefault(pair.source, []).append((counts.lines, pair.target))
        num_empty += counts.empty
        notes += counts.describe_reading()
    return _test_set(counts.name, known, num_empty, notes)


Known = dict[str, list[tuple[int, str]]]
"""Of each source the numbers of its lines and the references in them."""


def _test_set(name: str, known: Known, num_empty: int, notes: Sequence[str]) -> TestSet:
    if not known:
        raise UserError(f"{name}: expected sources with references, found none in {plural(num_empty, 'line')}")
    references = tuple(tuple(dict.fromkeys(text for _, text in one)) for one in known.values())
    lines = tuple(tuple(sorted({number for number, _ in one})) for one in known.values())
    return TestSet(name, tuple(known), references, num_empty, tuple(dict.fromkeys(notes)), lines)


def _read_table(path: Path, columns: Columns, normalisation: Normalisation) -> TestSet:
    known: Known = {}
    num_empty = 0
    counts = CorpusCounts()
    rows = (_with_reference(row) for row in open_table(path, columns, counts).rows)
    for number, cells in good_rows(path, rows, columns, counts):
        source, *references = [cell.strip() for cell in cells] or [""]
        source, line = normalise_line([source, "\t".join(references)], normalisation, counts)
        references = line.split("\t")
        references = [reference for reference in references if reference]
        if source and references:
            known.setdefault(source, []).extend((number, reference) for reference in references)
        else:
            num_empty += 1
    return _test_set(path.name, known, num_empty, counts.describe_reading())


def _with_reference(row: NumberedRow | BadLine) -> NumberedRow | BadLine:
    """A line with a text but no tab is bad."""
    if isinstance(row, BadLine) or len(row[1]) != 1:
        return row
    (cell,) = row[1]
    return (
        BadLine(row[0], f"expected source<TAB>reference, found no tab in {shorten(cell)!r}") if cell.strip() else (row[0], [])
    )


# --- measures ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measure:
    """A figure with its 95 % interval. p_value: how probable a difference from the other system of at least this size is if
    there is none, by a paired bootstrap test."""

    name: str
    value: float
    low: float
    high: float
    how: str
    percent: bool = False
    p_value: float | None = None

    def __str__(self) -> str:
        sign, scale = ("%", 100) if self.percent else ("", 1)
        interval = f"[{self.low * scale:.2f}, {self.high * scale:.2f}]"
        test = "" if self.p_value is None else f"  p = {self.p_value:.3f}"
        return f"{self.name:<18} {self.value * scale:6.2f}{sign} {interval}{test}  {self.how}"


def can_use_sacrebleu() -> bool:
    return find_spec("sacrebleu") is not None


NEEDS_SACREBLEU = 'BLEU and chrF need sacrebleu; type: pip install "regard[metrics]"'


def bleu(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """sacrebleu's, from 0 to 100."""
    if not can_use_sacrebleu():
        raise UserError(NEEDS_SACREBLEU)
    return _with_sacrebleu(outputs, references, None, ("BLEU",), intervals=False)[0].value


def chrf(outputs: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """sacrebleu's, from 0 to 100."""
    return _with_sacrebleu(outputs, references, None, ("chrF",), intervals=False)[0].value


NO_BLEU = "BLEU is left out where no reference has 4 tokens: it counts matches of 4 in a row, so it would be 0"


def can_use_bleu(references: Iterable[Sequence[str]]) -> bool:
    """Whether there are 4 tokens in a row to match, as sacrebleu counts them."""
    from sacrebleu.metrics.bleu import BLEU

    metric = BLEU()
    return any(len(metric.tokenizer(one).split()) >= metric.max_ngram_order for known in references for one in known)


def measures(
    outputs: Sequence[str],
    references: Sequence[Sequence[str]],
    symbols: Callable[[str], Sequence[str]],
    against: Sequence[str] | None = None,
    *,
    intervals: bool = True,
) -> list[Measure]:
    """All figures of a system; with `against`, the outputs of another one on the same sources, each with a test of the two.
    BLEU is left out where all references are too short for it.

    symbols: what an error is counted in, besides words.
    """
    if not outputs:
        raise UserError("there is nothing to measure: no outputs")
    found = []
    if can_use_sacrebleu():
        names = ("BLEU", "chrF") if can_use_bleu(references) else ("chrF",)
        found = _with_sacrebleu(outputs, references, against, names, intervals=intervals)
    ours = _errors(outputs, references, symbols)
    theirs = None if against is None else _errors(against, references, symbols)
    for number, name in enumerate(("word error rate", "symbol error rate", "exact match")):
        found.append(_measure(name, ours[number], None if theirs is None else theirs[number], intervals=intervals))
    return found


def _errors(
    outputs: Sequence[str], references: Sequence[Sequence[str]], symbols: Callable[[str], Sequence[str]]
) -> list[Tensor]:
    """Of each measure (counted, out of) per sentence: word edits, symbol edits, exact matches."""
    rows: list[tuple[tuple[int, int], ...]] = []
    for output, known in zip(outputs, references, strict=True):
        words = nearest(output.split(), [one.split() for one in known])
        signs = nearest(symbols(output), [symbols(one) for one in known])
        rows.append((words, signs, (int(output in known), 1)))
    return list(torch.tensor(rows, dtype=torch.float64).unbind(1))


def _measure(name: str, ours_N2: Tensor, theirs_N2: Tensor | None, *, intervals: bool) -> Measure:
    value = _rates(ours_N2.sum(0)).item()
    if not intervals:
        return Measure(name, value, value, value, "", percent=True)
    drawn_R = _rates(_drawn(ours_N2))
    low, high = drawn_R.quantile(0.025).item(), drawn_R.quantile(0.975).item()
    measure = Measure(name, value, low, high, f"bs:{SAMPLES}|seed:{SEED}", percent=True)
    if theirs_N2 is None:
        return measure
    difference = value - _rates(theirs_N2.sum(0)).item()
    differences_R = drawn_R - _rates(_drawn(theirs_N2))
    further = (differences_R - differences_R.mean()).abs() >= abs(difference)
    return replace(measure, p_value=(further.sum().item() + 1) / (SAMPLES + 1))


def _drawn(counts_N2: Tensor) -> Tensor:
    """(R, 2): the sums over sets of as many sentences, drawn with replacement; the same for every system."""
    generator, size = torch.Generator().manual_seed(SEED), len(counts_N2)
    return torch.stack([counts_N2[torch.randint(size, (size,), generator=generator)].sum(0) for _ in range(SAMPLES)])


def _rates(counts: Tensor) -> Tensor:
    return counts[..., 0] / counts[..., 1].clamp(min=1)


def _with_sacrebleu(
    outputs: Sequence[str],
    references: Sequence[Sequence[str]],
    against: Sequence[str] | None,
    names: Sequence[str],
    *,
    intervals: bool,
) -> list[Measure]:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF
    from sacrebleu.significance import PairedTest, Result

    columns = [list(column) for column in zip_longest(*references)]  # missing ones are None
    known = {"BLEU": BLEU, "chrF": CHRF}
    metrics = {name: known[name](references=columns) for name in names}
    found = []
    if not intervals or len(outputs) == 1:
        for name, metric in metrics.items():
            score = metric.corpus_score(list(outputs), None).score
            found.append(Measure(name, score, score, score, str(metric.get_signature())))
        return found
    systems: list[tuple[str, Sequence[str]]] = [] if against is None else [("theirs", against)]
    systems.append(("ours", outputs))
    signatures, scores = PairedTest(systems, metrics, None, test_type="bs", n_samples=SAMPLES)()
    for name in metrics:
        (key,) = (one for one in scores if one.startswith(name))
        result = scores[key][-1]
        assert isinstance(result, Result)
        assert result.mean is not None
        assert result.ci is not None
        low, high = result.mean - result.ci, result.mean + result.ci
        first = scores[key][0]
        same = against is not None and isinstance(first, Result) and first.score == result.score
        p_value = 1.0 if same else result.p_value  # sacrebleu gives 1/1001 where there is no difference at all
        found.append(Measure(name, result.score, low, high, str(signatures[key]), p_value=p_value))
    return found


def by_length(sizes: Sequence[int]) -> list[tuple[str, list[int]]]:
    """Sources in four groups of about the same number: (lengths, which ones)."""
    order = sorted(range(len(sizes)), key=lambda index: sizes[index])
    borders = sorted({sizes[order[len(order) * part // 4]] for part in range(4)})
    groups = []
    for start, end in zip(borders, [*borders[1:], sizes[order[-1]] + 1], strict=True):
        inside = [index for index in range(len(sizes)) if start <= sizes[index] < end]
        groups.append((str(start) if end == start + 1 else f"{start}-{end - 1}", inside))
    return groups
