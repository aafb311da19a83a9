"""Exercises on attention for pen and paper, with solutions, as one HTML page that works offline.

The numbers are drawn with a seed and chosen so that they can be computed by hand: small integers, widths whose roots are whole,
scores that are whole. The solutions are computed by regard/reference.py. The same seed gives the same page.
"""

from __future__ import annotations

import html
import math
import random
import re
from collections.abc import Callable, Iterable, Sequence
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np

from regard import reference
from regard.checking.formulas import Array

SENTENCES = (
    ("the", "cat", "sleeps"),
    ("she", "reads", "letters"),
    ("rain", "falls", "softly"),
    ("birds", "sing", "early"),
    ("we", "drink", "tea"),
)
ROUNDED = "Carry three digits after the point, and round results to two; a last digit that differs is fine."


class Exercise(NamedTuple):
    """title: its name.  question, solution: HTML."""

    title: str
    question: str
    solution: str


def page(seed: int) -> str:
    """Returns the worksheet with this seed."""
    exercises = [make(random.Random(f"{seed} {number}")) for number, make in enumerate(EXERCISES)]
    template = files("regard.checking").joinpath("worksheet.html").read_text(encoding="utf-8")
    title = f"Attention by hand: worksheet {seed}"
    head = f"<h1>{text(title)}</h1>\n" + paragraph(
        f"{ROUNDED} The solutions are at the end. You need: e = 2.718, e² = 7.389, e³ = 20.086, e⁴ = 54.598.", "faint"
    )
    questions = [
        f"<section>\n<h2>{number}. {text(one.title)}</h2>\n{one.question}\n<div class='space'></div>\n</section>"
        for number, one in enumerate(exercises, start=1)
    ]
    solutions = [
        f"<section>\n<h2>{number}. {text(one.title)}</h2>\n{one.solution}\n</section>"
        for number, one in enumerate(exercises, start=1)
    ]
    again = paragraph(f"Computed by regard.reference. The same page again: regard check --worksheet --seed {seed}", "faint")
    contents = {
        "<!--TITLE-->": text(title),
        "<!--EXERCISES-->": "\n".join([head, *questions]),
        "<!--SOLUTIONS-->": "\n".join([f"<h1>{text(f'Solutions of worksheet {seed}')}</h1>\n{again}", *solutions]),
    }
    for mark, content in contents.items():
        template = template.replace(mark, content)
    return template


# --- the exercises -----------------------------------------------------------------------------------------------------------


def by_softmax(draw: random.Random) -> Exercise:
    scores = np.array(draw.sample([0, 1, 2, 3, 4], 3), dtype=np.float64)
    shift = draw.choice([10, 100, 1000])
    e, weights = np.exp(scores), reference.softmax(scores)
    best = int(scores.argmax())
    question = paragraph(f"The scores of one query are {listed(scores)}.") + parts(
        "Compute the weights: the softmax of the scores. Check that they sum to 1.",
        f"Add {shift} to every score. How do the weights change?",
        "Why do programs subtract the largest score of a row before they compute the exponentials?",
    )
    solution = (
        step("Exponentials", f"{'; '.join(f'exp({whole(s)}) = {rounded(x, 3)}' for s, x in zip(scores, e, strict=True))}")
        + step("Sum", f"{' + '.join(rounded(x, 3) for x in e)} = {rounded(e.sum(), 3)}")
        + step("Weights", " ".join(f"{rounded(x, 3)} / {rounded(e.sum(), 3)} = {rounded(x / e.sum())};" for x in e)[:-1])
        + answer(f"weights {listed(weights, 2)}; the largest score, {whole(scores[best])}, has the largest weight")
        + paragraph(f"b) They do not change: exp(s + {shift}) = exp(s) · exp({shift}), and the factor cancels.")
        + paragraph("c) For the same reason it changes nothing, and the largest exponential is exp(0) = 1: nothing overflows.")
    )
    return Exercise("A softmax", question, solution)


def by_attention(draw: random.Random) -> Exercise:
    words, Q, K, V = _three_words(draw)
    return Exercise(
        "Attention of three words",
        paragraph(
            f"The words of “{' '.join(words)}” attend to one another. Queries, keys and values have these rows, and "
            "d = 4 is the width of a query:"
        )
        + row(matrix("Q", Q, words), matrix("K", K, words), matrix("V", V, words))
        + parts(
            "Compute the scores Q Kᵀ / √d.",
            f"Compute the weights of the word “{words[1]}”, and its output.",
            "Compute the other two rows.",
        ),
        _attention_solution(words, Q, K, V, None)
        + answer(f"output of “{words[1]}”: {listed(reference.attention(reference.scaled_dot(Q, K), V)[1], 2)}"),
    )


def by_mask(draw: random.Random) -> Exercise:
    words, Q, K, V = _three_words(draw)
    allow = reference.causal(3, 3)
    leak = reference.softmax(reference.scaled_dot(Q, K))[1] * allow[1]
    return Exercise(
        "A look-ahead mask",
        paragraph("No word may attend to a word after it. The scores Q Kᵀ / √d are already computed:")
        + row(matrix("scores", reference.scaled_dot(Q, K), words, words), matrix("V", V, words))
        + parts(
            "Write down the mask: which word may attend to which?",
            "Compute the weights and the outputs of all three words.",
            "Somebody computes the softmax first and sets the hidden weights to 0 afterwards. What is the sum of the weights "
            f"of “{words[1]}” then?",
        ),
        step("Mask", row(grid([["yes" if cell else "no" for cell in line] for line in allow.tolist()], words, words)), raw=True)
        + _attention_solution(words, Q, K, V, allow)
        + answer(
            f"c) {' + '.join(rounded(w, 3) for w in leak)} = {rounded(leak.sum(), 3)}, not 1: a mask belongs before the softmax"
        ),
    )


def by_additive(draw: random.Random) -> Exercise:
    while True:
        s, H = _integers(draw, 1, 2, low=-1, high=2), _integers(draw, 2, 2, low=-1, high=2)
        W, U = _integers(draw, 2, 2, low=-1, high=1), _integers(draw, 2, 2, low=-1, high=1)
        v = np.array(draw.sample([-1, 1, 2, 3], 2), dtype=np.float64)
        scores = reference.additive(s, H, W, U, v)
        sums = s @ W.T + H @ U.T
        small = np.abs(sums).max() <= 2
        if small and H.any(-1).all() and W.any(-1).all() and U.any(-1).all() and abs(scores[0, 0] - scores[0, 1]) > 0.3:
            break
    lines = "".join(
        step(
            f"h_{number}",
            f"W s + U h = {listed(total)}; tanh: {listed(np.tanh(total), 3)}",
            f"vᵀ tanh(…) = {' + '.join(f'({whole(a)}) · ({rounded(b, 3)})' for a, b in zip(v, np.tanh(total), strict=True))} "
            f"= {rounded(score)}",
        )
        for number, total, score in zip((1, 2), sums, scores[0], strict=True)
    )
    weights = reference.softmax(scores)[0]
    return Exercise(
        "Bahdanau’s score",
        paragraph(
            "The decoder state s and the encoder states h_1 and h_2 are compared by vᵀ tanh(W s + U h) (Bahdanau et al. 2015). "
            "You need: tanh(1) = 0.762, tanh(2) = 0.964."
        )
        + row(vector("s", s[0]), vector("h_1", H[0]), vector("h_2", H[1]), matrix("W", W), matrix("U", U), vector("v", v))
        + parts(
            "Compute the score of h_1 and of h_2.", "Compute the two weights. To which state does the decoder attend more?"
        ),
        lines
        + step("Weights", f"softmax of {listed(scores[0], 2)} = {listed(weights, 2)}")
        + answer(f"scores {listed(scores[0], 2)}; more weight on h_{int(weights.argmax()) + 1}"),
    )


def by_heads(draw: random.Random) -> Exercise:
    while True:
        X = _integers(draw, 2, 8, high=2)
        halves = [X[:, :4], X[:, 4:]]
        scores = [reference.scaled_dot(half, half) for half in halves]
        if all((np.abs(S) <= 4).all() and (S.round() == S).all() for S in scores) and len({S.tobytes() for S in scores}) == 2:
            break
    weights = [reference.softmax(S) for S in scores]
    outputs = reference.concatenate(*(W @ half for W, half in zip(weights, halves, strict=True)))
    lines = "".join(
        step(
            f"Head {number}",
            row(
                matrix(f"X_{number}", half, ("1", "2")),
                matrix("scores / √4", S, ("1", "2")),
                matrix("weights", W, ("1", "2"), digits=2),
            ),
            raw=True,
        )
        for number, half, S, W in zip((1, 2), halves, scores, weights, strict=True)
    )
    return Exercise(
        "Two heads",
        paragraph(
            "Two positions have vectors of width 8, the rows of X. Q = K = V = X (no matrices), with h = 2 heads of width 4:"
        )
        + row(matrix("X", X, ("1", "2")))
        + parts(
            "Write down the part of X that each head sees.",
            "Compute the scores (divided by √4) and the weights of each head.",
            "Join the outputs of the heads: what is the output at position 1?",
            "Somebody splits with X.reshape(2, 2, 4) alone, without a transpose. Which numbers does “head 1” see then?",
        ),
        lines
        + answer(f"c) output at position 1: {listed(outputs[0], 2)}")
        + paragraph(
            f"d) The first row of X, cut into two halves: {listed(X.reshape(2, 2, 4)[0, 0])} and "
            f"{listed(X.reshape(2, 2, 4)[0, 1])}. It sees one position in place of two; transpose after the reshape."
        ),
    )


def by_positions(draw: random.Random) -> Exercise:
    first, distance = draw.choice([1, 2]), draw.choice([1, 2])
    second = first + distance
    table = reference.sinusoidal(np.array([0, first, second]), 4)
    known = "; ".join(f"sin({i}) = {rounded(math.sin(i), 3)}, cos({i}) = {rounded(math.cos(i), 3)}" for i in (1, 2, 3, 4))
    product = float(table[1] @ table[2])
    return Exercise(
        "Sinusoidal positions",
        paragraph(
            "φ(i) = (sin(ω_0 i), cos(ω_0 i), sin(ω_1 i), cos(ω_1 i)) with ω_k = 10000^(−2k/d) and d = 4. Angles are in "
            f"radians. You need: {known}; for small x, sin(x) ≈ x and cos(x) ≈ 1."
        )
        + parts(
            "Compute ω_0 and ω_1.",
            f"Write down φ(0), φ({first}) and φ({second}).",
            f"Compute φ({first}) · φ({second}), and cos(ω_0 · {distance}) + cos(ω_1 · {distance}). What do you notice?",
        ),
        step("Frequencies", "ω_0 = 10000⁰ = 1; ω_1 = 10000^(−1/2) = 1/100")
        + step("Vectors", row(matrix("", table, [f"φ({i})" for i in (0, first, second)], digits=3)), raw=True)
        + answer(
            f"φ({first}) · φ({second}) = {rounded(product, 3)} = cos({distance}) + cos({distance / 100:g}) = "
            f"{rounded(math.cos(distance), 3)} + {rounded(math.cos(distance / 100), 3)}"
        )
        + paragraph("The product depends only on the distance of the two positions: cos a cos b + sin a sin b = cos(a − b)."),
    )


EXERCISES: tuple[Callable[[random.Random], Exercise], ...] = (
    by_softmax,
    by_attention,
    by_mask,
    by_additive,
    by_heads,
    by_positions,
)


def _integers(draw: random.Random, rows: int, columns: int, *, low: int = 0, high: int) -> Array:
    return np.array([[draw.randint(low, high) for _ in range(columns)] for _ in range(rows)], dtype=np.float64)


def _three_words(draw: random.Random) -> tuple[Sequence[str], Array, Array, Array]:
    """Returns three words, and queries, keys and values whose scores / √4 are whole numbers from 0 to 4."""
    words = draw.choice(SENTENCES)
    while True:
        Q, K, V = _integers(draw, 3, 4, high=2), _integers(draw, 3, 4, high=2), _integers(draw, 3, 2, high=6)
        S = reference.scaled_dot(Q, K)
        is_whole = (S.round() == S).all() and S.max() <= 4
        if is_whole and all(len(set(line)) > 1 for line in (*S.tolist(), *V.T.tolist())):
            return words, Q, K, V


def _attention_solution(words: Sequence[str], Q: Array, K: Array, V: Array, allow: Array | None) -> str:
    """Writes scores, exponentials, sums, weights and outputs."""
    S = reference.scaled_dot(Q, K)
    hidden = np.zeros_like(S, dtype=bool) if allow is None else ~allow
    e = np.where(hidden, 0.0, np.exp(S))
    weights = reference.softmax(S, allow)
    outputs = reference.attention(S, V, allow)
    shown = np.where(hidden, -np.inf, S)
    sums = [f"“{word}”: {' + '.join(map(rounded, line))} = {rounded(line.sum())}" for word, line in zip(words, e, strict=True)]
    mixed = [
        f"“{word}”: {' + '.join(f'{rounded(w)} · {listed(v)}' for w, v in zip(line, V, strict=True) if w)} = {listed(out, 2)}"
        for word, line, out in zip(words, weights, outputs, strict=True)
    ]
    return (
        step("Q Kᵀ / √4", row(matrix("", shown, words, words)), raw=True)
        + step("Sums of exp(score)", *sums)
        + step("Weights", row(matrix("", weights, words, words, digits=2)), raw=True)
        + step("Outputs", *mixed)
    )


# --- HTML --------------------------------------------------------------------------------------------------------------------


def text(value: object) -> str:
    """Escapes a text. h_1 and 10^(−2) become a subscript and a superscript."""
    escaped = re.sub(r"_([0-9k])", r"<sub>\1</sub>", html.escape(str(value)))
    return re.sub(r"\^\(([^)]*)\)", r"<sup>\1</sup>", escaped)


def whole(number: float) -> str:
    return f"{number:.0f}".replace("-", "−")


def rounded(number: float, digits: int = 2) -> str:
    if math.isinf(number):
        return "−∞"
    return f"{number + 0.0:.{digits}f}".replace("-", "−")


def listed(numbers: Iterable[float], digits: int | None = None) -> str:
    """Writes a vector: (1, 0, 2)."""
    return f"({', '.join(whole(x) if digits is None else rounded(x, digits) for x in numbers)})"


def paragraph(content: str, kind: str = "") -> str:
    return f"<p{f' class={kind!r}' if kind else ''}>{text(content)}</p>\n"


def parts(*questions: str) -> str:
    return "<ol class='parts' type='a'>" + "".join(f"<li>{text(question)}</li>" for question in questions) + "</ol>\n"


def step(name: str, *lines: str, raw: bool = False) -> str:
    """raw: whether the lines are HTML already."""
    content = "<br>".join(line if raw else text(line) for line in lines)
    return f"<div class='step'><strong>{text(name)}</strong>{'<br>' if len(lines) > 1 else ' '}{content}</div>\n"


def answer(content: str) -> str:
    return f"<p class='answer'>{text(content)}</p>\n"


def row(*figures: str) -> str:
    return f"<div class='row'>{''.join(figures)}</div>"


def vector(name: str, numbers: Array) -> str:
    return matrix(name, numbers[:, None])


def matrix(name: str, numbers: Array, rows: Sequence[str] = (), columns: Sequence[str] = (), digits: int | None = None) -> str:
    """Draws a matrix, with labels of its rows and columns if they are given."""

    def cell(number: Any) -> str:
        return "−∞" if np.isinf(number) else whole(number) if digits is None else rounded(number, digits)

    return _table("matrix", name, [[cell(number) for number in line] for line in numbers], rows, columns)


def grid(cells: Sequence[Sequence[str]], rows: Sequence[str], columns: Sequence[str]) -> str:
    return _table("grid", "", cells, rows, columns)


def _table(kind: str, name: str, cells: Sequence[Sequence[str]], rows: Sequence[str], columns: Sequence[str]) -> str:
    corner = "<th></th>" if rows else ""
    head = f"<thead><tr>{corner}{''.join(f'<th>{text(label)}</th>' for label in columns)}</tr></thead>" if columns else ""
    body = "".join(
        f"<tr>{f'<th>{text(rows[number])}</th>' if rows else ''}{''.join(f'<td>{text(cell)}</td>' for cell in line)}</tr>"
        for number, line in enumerate(cells)
    )
    caption = f"<figcaption>{text(name)}</figcaption>" if name else ""
    return f"<figure>{caption}<table class='{kind}'>{head}<tbody>{body}</tbody></table></figure>"
