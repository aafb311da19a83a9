"""Settings of the recurrent encoder-decoder (rnn_seq2seq.py), and which of them go together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from regard.contracts import Traits
from regard.core import latent
from regard.core.weights import SAMPLED, AttentionType
from regard.layers.frontends import GRIDS, FrontendName, check_frontend
from regard.layers.recurrent import Cell, check_cell
from regard.layers.scores import check_score_options
from regard.models.contract import ModelSettings


@dataclass(frozen=True, kw_only=True)
class RnnSettings(ModelSettings):
    """Settings of `RnnSeq2Seq`."""

    kind: Literal["rnn"] = "rnn"
    width: int = 192
    """Width of the decoder states."""
    encoder_width: int | None = None
    """Width of the encoder states, both directions together; by default the same as width."""
    embedding: int = 64
    """Width of the token embeddings."""
    encoder_layers: int = 1
    """Number of encoder layers."""
    decoder_layers: int = 1
    """Number of decoder layers."""
    cell: Cell = "gru"
    """Type of recurrent cell."""
    bidirectional: bool = True
    """Whether the encoder reads the source in both directions."""
    decoder: Literal["luong", "bahdanau", "fixed"] = "luong"
    """When the decoder attends: after its recurrent step (luong), before it (bahdanau), or never (fixed)."""
    input_feeding: bool = False
    """For decoder=luong: whether the attentional state s̃ is part of the next input."""
    readout: Literal["mixed", "plain"] = "mixed"
    """For decoder=luong: whether logits are computed from s̃_t (mixed) or from [s_t; c_t] (plain)."""
    readout_activation: Literal["none", "tanh", "relu", "sigmoid"] = "none"
    """For decoder=bahdanau: the activation f before the output layer, logits = W_o f([s_t; c_t]) + b_o."""
    bridge: Literal["learned", "none", "zero"] = "learned"
    """Initial decoder state: from the source summary C, tanh(W C + b) (learned) or C itself (none); or 0 (zero), so that the
    decoder knows of the source only what it attends to."""
    every_step: bool = False
    """For decoder=fixed: whether the source summary C is part of every decoder input."""
    score: str = "additive"
    """Name of the score function: a built-in one such as additive or scaled_dot, or your own."""
    score_width: int = 64
    """Width of the hidden layer of the scores additive and concat."""
    score_divisor: float | Literal["d"] | None = None
    """What the score scaled_dot divides by: d, or a number (1 leaves the scale out); by default √d."""
    score_temperature: float | None = None
    """What the score cosine divides by; by default 0.1."""
    fusion_score: str | None = None
    """Name of the score function by which a file attends to its auxiliary text; by default the same as score."""
    frontend: Literal["tokens", FrontendName] = "tokens"
    """What the model reads: tokens, a picture or a video (by a residual network), a grid or frames of features, or sound."""
    row_encoder: bool = False
    """For pictures, videos and grids: whether a recurrent encoder reads each row of cells, so that a cell knows what is left
    and right of it (Deng et al. 2017)."""
    channels: int = 64
    """Channels of the last stage of the network for pictures and videos, and of the convolutions over sound."""
    attention: Literal[AttentionType, latent.SummedAttention] = "soft"
    """How scores become weights; hard (one key) and gated (0/1 per key) are sampled in training, deterministic otherwise;
    marginal and monotone (only to the right) sum over all choices of one key, and require decoder=luong and readout=plain."""
    jumps: int = 4
    """For attention=monotone: moves by 0 to jumps − 1 positions have a learned score each; all longer ones share one."""
    copy: bool = False
    """For attention=marginal or monotone: whether a source position may also write its own token; requires data.shared=true."""
    features: Literal["positions", "set"] = "positions"
    """How the features of a text are read: like tokens that follow it (positions), or in no order: every state of the decoder
    chooses by gates which of them it adds to itself (set)."""
    max_positions: int = 256
    """Number of source positions that the location score supports."""
    beyond: Literal["error", "ignore"] = "error"
    """What the location score does with positions beyond max_positions: error, or ignore them with a warning."""
    dropout: float = 0.1
    """Dropout probability during training."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_score_options(
            (self.score, self.fusion_score), score_divisor=self.score_divisor, score_temperature=self.score_temperature
        )
        check_cell(self.cell)
        check_frontend(self.frontend, self.memory_width, self.channels)
        if self.frontend == "patches":
            raise ValueError(
                "frontend=patches requires an encoder with self-attention; set kind=transformer, or frontend=picture"
            )
        if self.row_encoder and self.frontend not in GRIDS:
            raise ValueError(
                f"row_encoder reads the rows of a grid, but frontend={self.frontend} has none; set row_encoder=false"
            )
        if self.bidirectional and self.memory_width % 2:
            raise ValueError(f"width {self.memory_width} cannot be split evenly between two directions; make it even")
        if self.decoder not in ("luong", "bahdanau", "fixed"):
            raise ValueError(f"there is no decoder {self.decoder!r}; expected luong, bahdanau or fixed")
        if self.input_feeding and self.decoder != "luong":
            raise ValueError(
                f"input_feeding requires the state s̃, which only decoder=luong computes, but the decoder is {self.decoder}; "
                "set decoder=luong, or input_feeding=false"
            )
        if self.readout == "plain" and (self.decoder != "luong" or self.input_feeding):
            raise ValueError(
                f"readout=plain omits s̃ and requires decoder=luong without input_feeding, but decoder={self.decoder} and "
                f"input_feeding={str(self.input_feeding).lower()}; set readout=mixed"
            )
        if self.readout_activation != "none" and self.decoder != "bahdanau":
            raise ValueError(
                f"readout_activation={self.readout_activation} requires decoder=bahdanau, but the decoder is {self.decoder}; "
                "set decoder=bahdanau, or readout_activation=none"
            )
        if self.bridge == "none" and (self.memory_width != self.width or self.cell == "lstm"):
            raise ValueError(
                f"bridge=none uses C as the initial decoder state, but C has width {self.memory_width} and the state of the "
                f"{self.cell} has width {self.width * (2 if self.cell == 'lstm' else 1)}; set bridge=learned"
            )
        if self.bridge == "zero" and self.decoder == "fixed" and not self.every_step:
            raise ValueError(
                "decoder=fixed sees the source through its initial state only, so bridge=zero hides it; set bridge=learned"
            )
        if self.every_step and self.decoder != "fixed":
            raise ValueError(
                f"every_step requires decoder=fixed, but the decoder is {self.decoder}; set decoder=fixed, or every_step=false"
            )
        if self.features not in ("positions", "set"):
            raise ValueError(f"there is no way {self.features!r} to read features; expected positions or set")
        if self.features == "set" and self.frontend != "tokens":
            raise ValueError(
                f"features=set reads the features of a text, but the frontend is {self.frontend}; set features=positions"
            )
        if self.features == "set" and self.runs_stepwise:
            raise ValueError(
                f"features=set adds features to states that do not depend on a context, but decoder={self.decoder} and "
                f"input_feeding={str(self.input_feeding).lower()}; set decoder=luong and input_feeding=false, or "
                "features=positions"
            )
        if self.sums_choices:
            self._check_summed()
        elif self.copy:
            raise ValueError(
                f"copy=true adds a choice to a sum over all choices, but attention is {self.attention}; set "
                "attention=marginal or attention=monotone, or copy=false"
            )

    def _check_summed(self) -> None:
        """Raises ValueError if the decoder state would depend on the choices, or if the sum over them would be too large."""
        if self.decoder != "luong" or self.input_feeding:
            raise ValueError(
                f"attention={self.attention} sums over all choices, so the decoder state must not depend on them, but "
                f"decoder={self.decoder} and input_feeding={str(self.input_feeding).lower()}; set decoder=luong and "
                "input_feeding=false, or attention=hard, which samples"
            )
        if self.readout != "plain":
            raise ValueError(
                f"attention={self.attention} sums over all choices, which needs logits without a tanh of state and source, but "
                f"readout is {self.readout}; set readout=plain"
            )
        if self.copy and self.frontend != "tokens":
            raise ValueError(f"copy=true writes tokens of the source, but a {self.frontend} has none; set copy=false")
        if self.attention == "monotone" and self.frontend in GRIDS:
            raise ValueError(
                f"attention=monotone moves from left to right, but a {self.frontend} has no such order; set attention=marginal"
            )

    @property
    def traits(self) -> Traits:
        attends = self.decoder != "fixed"
        counts = attends and self.score == "location" and self.beyond == "error"
        return Traits(
            max_positions=self.max_positions if counts else None,
            attention={"cross": (1, 1)} if attends else {},
            soft_cross_attention=attends and self.attention in ("soft", *latent.SUMMED),
            sampled_attention=attends and self.attention in SAMPLED,
            frontend=self.frontend,
            score=self.score if attends else None,
            shares_vocabulary=self.copy,
            features_as_set=self.features == "set",
        )

    @property
    def memory_width(self) -> int:
        """Width of the encoder states."""
        return self.encoder_width or self.width

    @property
    def sums_choices(self) -> bool:
        """Whether the attention is hard and summed over all choices."""
        return self.attention in latent.SUMMED

    @property
    def runs_stepwise(self) -> bool:
        """Whether the recurrence depends on a context vector, and so has to run step by step."""
        return self.decoder == "bahdanau" or self.input_feeding
