"""Texts with strange characters to translate: alone and in a batch, with and without options, printed as JSON and drawn."""

from __future__ import annotations

import json
from math import isfinite
from pathlib import Path
from random import Random
from typing import Any

from hostile.area import Area, require
from hostile.calls import translator
from hostile.changes import strange_text
from hostile.commands import FROZEN, check_written

MODELS = (
    *("transformer", "rnn-bahdanau", "rnn-features", "decoder-only", "transformer-unigram", "rnn-language-model", "rnn-luong"),
    *("transformer-alibi", "transformer-shared", "rnn-gates", "rnn-hard", "transformer-grouped", "rnn-location"),
)
OPTIONS: dict[str, tuple[Any, ...]] = {
    "beam": (2, 5),
    "length_penalty": (0, "mean", 10),
    "min_length": (1, 3),
    "max_ratio": (0.5, 3.0),
    "no_repeat": (1, 2),
    "repetition_penalty": (1.5, 1000.0),
    "banned": (["WALK"], ["LEFT", "x"]),
    "prefix": ("WALK", "JUMP LEFT"),
}


class Texts(Area):
    longest_line = 600

    def load_modules(self) -> None:
        import matplotlib.backends.backend_svg
        import matplotlib.pyplot  # noqa: F401

    def prepare(self, root: Path) -> None:
        pass

    def change(self, rng: Random, root: Path, folder: Path) -> str:
        names = rng.sample(sorted(OPTIONS), rng.choice((0, 0, 1, 2)))
        options: dict[str, Any] = {
            "max_length": rng.choice((4, 8)),
            **{name: rng.choice(OPTIONS[name]) for name in names},
        }
        if rng.random() < 0.2:
            options = {
                "max_length": 6,
                "sample": True,
                "n_best": 3,
                "temperature": rng.choice((1.0, 1e-6, 100.0)),
                "top_p": 0.9,
            }
        elif "beam" in options:
            options["n_best"] = rng.choice((1, options["beam"]))
        case = {
            "model": rng.choice([name for name in MODELS if (FROZEN / name).is_dir()]),
            "text": strange_text(rng, halves=True),
            "others": [strange_text(rng) for _ in range(rng.choice((1, 2, 4)))],
            "options": options,
            "way": rng.choices(("", "page", "npz", "svg", "explain", "stream"), (70, 10, 4, 4, 6, 10))[0],
        }
        (folder / "case.json").write_text(json.dumps(case))
        return f"{case!r:.400}"

    def use(self, folder: Path) -> None:
        case = json.loads((folder / "case.json").read_text())
        reader = translator(case["model"])
        text, options = case["text"], case["options"]
        alone = reader(text, **options)
        self._check(alone, options, reader)
        if not options.get("sample"):  # a sample depends on the index of its text
            others = case["others"]
            together = list(reader.translate([*others, text], **options))[-1]
            require(together.text == alone.text, f"alone {alone.text!a:.100}, in a batch {together.text!a:.100}")
            require(abs(together.log_prob - alone.log_prob) < 1e-3, f"alone {alone.log_prob}, in a batch {together.log_prob}")
        self._look(case, reader, alone, folder)

    def _check(self, result: Any, options: dict[str, Any], reader: Any) -> None:
        from regard.cli.translate import as_json, moses

        record = json.loads(as_json(0, "x", result, None))
        require(record["text"] == result.text, "the JSON contains a different text")
        require(moses(0, result).count("\n") == len(result.n_best) - 1, "not one line per output")
        require(1 <= len(result.n_best) <= options.get("n_best", 1), f"{len(result.n_best)} outputs")
        scores = [(one.finished, one.rank_score) for one in result.n_best]  # finished outputs come first
        require(options.get("sample") or scores == sorted(scores, reverse=True), f"not in order: {scores}")
        for one in result.n_best:
            require(all(isfinite(number) and number <= 1e-4 for number in one.token_log_probs), f"{one.token_log_probs}")
            require(abs(sum(one.token_log_probs) - one.log_prob) < 1e-3, f"{one.log_prob} is not {sum(one.token_log_probs)}")
            if result.parts or not result.tokens or reader.reader.traits.continues_text:  # such an output contains the text
                continue
            require(len(one.tokens) <= options["max_length"] + len(options.get("prefix", "")), f"{len(one.tokens)} tokens")
            require(len(one.tokens) >= options.get("min_length", 0), f"{len(one.tokens)} tokens")
            for word in options.get("banned", ()):
                require(word not in one.text.split() or "prefix" in options, f"{word} in {one.text!r:.100}")
            if "prefix" in options:
                require(one.text.startswith(options["prefix"]), f"{one.text!r:.100} does not start with {options['prefix']!r}")

    def _look(self, case: dict[str, Any], reader: Any, alone: Any, folder: Path) -> None:
        import regard
        from regard.inspection.report import write_npz, write_page

        text, way = case["text"], case["way"]
        if way == "stream":
            *_, last = reader.stream(text, **case["options"])
            require(last.text == alone.text, f"streamed {last.text!a:.100}, otherwise {alone.text!a:.100}")
        if not text.strip() or alone.parts or not alone.tokens:
            return
        if way in ("page", "npz"):
            seen = regard.inspect(reader, text, max_length=4, what=("weights", "scores", "norms"))
            check_written(write_page(seen, folder / "x.html") if way == "page" else write_npz(seen, folder / "x.npz"))
        elif way == "svg" and not reader.reader.traits.continues_text and len(alone.source_tokens) < 100:
            check_written(folder / regard.draw(alone.attention(), folder / "x.svg").path)
        elif way == "explain":
            json.dumps(regard.explain(reader, text, -1, max_length=4).as_dict(), allow_nan=True)
