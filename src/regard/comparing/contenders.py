"""The mechanisms that `regard compare` compares: one line each, with the settings that tell it from the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from regard.errors import UserError, did_you_mean


@dataclass(frozen=True)
class Contender:
    """One mechanism. about: one line.  settings: those that make it what it is, by key.  paper: who published it."""

    name: str
    about: str
    settings: Mapping[str, object]
    paper: str = ""

    @property
    def kind(self) -> str:
        """The family of its model."""
        return str(self.settings["model.kind"])


def _rnn(name: str, about: str, paper: str, train: Mapping[str, object] | None = None, **model: object) -> Contender:
    return Contender(name, about, {"model.kind": "rnn", **_of_model(model), **(train or {})}, paper)


def _transformer(name: str, about: str, paper: str, **model: object) -> Contender:
    return Contender(name, about, {"model.kind": "transformer", **_of_model(model)}, paper)


def _of_model(settings: Mapping[str, object]) -> dict[str, object]:
    return {f"model.{name}": value for name, value in settings.items()}


SUTSKEVER, CHO = "Sutskever et al. 2014", "Cho et al. 2014"
BAHDANAU, LUONG, XU = "Bahdanau et al. 2015", "Luong et al. 2015", "Xu et al. 2015"
VASWANI = "Vaswani et al. 2017"
SAMPLED = {"train.entropy_bonus": 0.05}
"""What hard attention that is sampled needs, or else it decides too early."""

CONTENDERS = (
    _rnn("fixed-vector", "one vector for the whole source, the first state of the decoder", SUTSKEVER, decoder="fixed"),
    _rnn("fixed-vector-every-step", "the same vector, read again at every step", CHO, decoder="fixed", every_step=True),
    _rnn("luong-dot", "s·h", f"{LUONG}, eq. 8", score="dot"),
    _rnn("luong-scaled-dot", "s·h / √d", f"{VASWANI}, eq. 1", score="scaled_dot"),
    _rnn("luong-general", "sᵀ W h", f"{LUONG}, eq. 8", score="general"),
    _rnn("luong-basic", "(K h)·(Q s) / d", "", score="basic"),
    _rnn("luong-concat", "vᵀ tanh(W [s; h])", f"{LUONG}, eq. 8", score="concat"),
    _rnn("luong-additive", "vᵀ tanh(W s + U h), after the recurrent step", f"{BAHDANAU}, A.1.2", score="additive"),
    _rnn("luong-location", "W s: a score for each position, whatever is there", f"{LUONG}, eq. 9", score="location"),
    _rnn("luong-cosine", "cos(s, h) / 0.1", "", score="cosine"),
    _rnn("luong-distance", "−‖s − h‖² / 2d", "", score="distance"),
    _rnn("luong-input-feeding", "general; s̃ is part of the next input", f"{LUONG}, 3.3", score="general", input_feeding=True),
    _rnn("bahdanau", "additive; attends before the recurrent step", BAHDANAU, score="additive", decoder="bahdanau"),
    _rnn("hard", "one position, sampled; trained by the policy gradient", f"{XU}, 4.1", SAMPLED, attention="hard"),
    _rnn(
        "hard-without-gradient",
        "the same, but the choices are not trained",
        "",
        {"train.policy_gradient": False},
        attention="hard",
    ),
    _rnn(
        "marginal",
        "one position; the sum over all choices",
        "Wu, Shapiro & Cotterell 2018",
        attention="marginal",
        score="general",
        readout="plain",
    ),
    _rnn(
        "monotone",
        "one position that only moves to the right; the sum over all paths",
        "Wu & Cotterell 2019",
        attention="monotone",
        score="general",
        readout="plain",
    ),
    _rnn("gated", "an independent gate for each position, sampled", "Deng et al. 2018", SAMPLED, attention="gated"),
    _rnn("unnormalised", "the scores themselves as weights, without a softmax", "", attention="unnormalised", score="general"),
    _transformer("transformer", "sinusoidal positions, pre-norm", VASWANI),
    _transformer("transformer-post-norm", "sinusoidal positions, post-norm", VASWANI, norm_order="post"),
    _transformer("transformer-rms", "sinusoidal positions, RMSNorm before each block", "Zhang & Sennrich 2019", norm="rms"),
    _transformer("transformer-appended", "sinusoidal positions, appended", "", position_join="appended", position_width=16),
    _transformer("transformer-learned", "learned position vectors", "Gehring et al. 2017", positions="learned"),
    _transformer("transformer-rotary", "queries and keys rotated by their positions", "Su et al. 2021", positions="rotary"),
    _transformer("transformer-alibi", "scores − slope · distance", "Press et al. 2022", positions="alibi"),
    _transformer("transformer-fourier", "φ(i)·φ(j) ≈ exp(−λ(i−j)²)", "", positions="fourier"),
    _transformer("transformer-one-hot", "a one-hot vector per position", "", positions="one_hot"),
    _transformer(
        "transformer-index", "the index itself, appended", "", positions="index", position_join="appended", position_width=1
    ),
    _transformer("convolution", "weights by distance instead of self-attention", "Gehring et al. 2017", mixing="convolution"),
    _transformer("dense", "a table of weights instead of self-attention", "Tay et al. 2021", mixing="dense"),
)
"""All mechanisms, in the order of the table. Whatever a contender does not set, the recipe does (`recipes`)."""

WITHOUT = tuple(
    _transformer(f"without-{trick}", about, "", **{name: value})
    for trick, about, name, value in (
        ("scale", "scores q·k instead of q·k / √d", "score", "dot"),
        ("mask", "no look-ahead mask: in training, it sees what it is to write", "look_ahead_mask", False),
        ("positions", "no position encoding", "positions", "none"),
        ("residual", "f(LN(x)) instead of x + f(LN(x))", "residual", False),
        ("norm", "no normalisation", "norm", "none"),
        ("heads", "one head instead of several", "heads", 1),
    )
)
"""The contender `transformer` with one of its tricks left out."""
TRICKS = tuple(one.name.removeprefix("without-") for one in WITHOUT)

QUICK = (
    *("fixed-vector", "luong-dot", "luong-general", "luong-location", "luong-input-feeding", "bahdanau"),
    *("hard", "hard-without-gradient", "marginal", "transformer", "transformer-rotary", "convolution"),
    *("without-mask", "without-positions"),
)
"""What `--quick` compares."""


def choose(only: Sequence[str], without: Sequence[str]) -> tuple[Contender, ...]:
    """Returns contenders, in the order of the table.

    only: names or patterns such as luong-*; () for all mechanisms.  without: tricks to leave out of the Transformer.
    Raises UserError for a name that matches nothing.
    """
    names = [one.name for one in (*CONTENDERS, *WITHOUT)]
    for pattern in only:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise UserError(
                f"there is no mechanism {pattern!r}{did_you_mean(pattern, names)}; regard compare --list prints all of them"
            )
    for trick in without:
        if trick not in TRICKS:
            raise UserError(
                f"without {trick!r}: expected some of {', '.join(TRICKS)}, or all{did_you_mean(trick, list(TRICKS))}"
            )
    tricks = {f"without-{trick}" for trick in without}
    patterns = only or ([] if without else [one.name for one in CONTENDERS])
    chosen = {name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)} | tricks
    if tricks and not only:
        chosen.add("transformer")  # which they are compared with
    return tuple(one for one in (*CONTENDERS, *WITHOUT) if one.name in chosen)
