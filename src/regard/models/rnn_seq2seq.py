"""The recurrent encoder-decoder: one recurrent network reads the source, another writes the target and attends to the source
states h_i, whose mixture is the context vector c_t = Σ_i α_ti h_i.

    Luong     s_t = RNN(s_{t−1}, y_{t−1})    c_t from the scores of s_t against all h_i    s̃_t = tanh(W [c_t; s_t] + b)
              logits from s̃_t; with input feeding the input is [s̃_{t−1}; y_{t−1}] (Luong et al. 2015, 3.3)
    Bahdanau  c_t from the scores of s_{t−1}    s_t = RNN(s_{t−1}, [c_t; y_{t−1}])    logits = W_o f([s_t; c_t]) + b_o
              (Bahdanau et al. 2015, 3.1), f the identity or an activation
    fixed     no attention: C, the final state of the encoder, initialises the decoder (Sutskever et al. 2014), and with
              `every_step` is part of every input, [C; y_{t−1}] (Cho et al. 2014)    logits = W_o s_t + b_o

    summed    Luong without input feeding, c_t = h_j for one position j = a_t, logits = W_o [s_t; h_j] + b_o; the probabilities
              of all choices of j are added up, not sampled (core/latent.py); with `copy`, position j may also write its own
              token, with probability σ(W_g [s_t; h_j] + b_g)

With features="set", the features f_k of a source, such as those of an inflected form, have no positions and are not encoded.
Each state of the decoder opens a gate for each of them: s_t + Σ_k σ(W_q s_t · f_k / √I) W_v f_k replaces s_t in all that
follows the recurrence. It does not depend on the choices, so their sum stays exact.

s_0 = tanh(W C + b), or C itself, or 0. If the recurrence does not depend on c_t (fixed; Luong without input feeding), training
runs it over the whole sequence on torch's fused kernel and attends for all steps at once. The other decoders run step by step,
and only what depends on earlier steps is computed inside the loop.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.contracts import EOS, Traits
from regard.core import latent, masks
from regard.core.attention import AttentionOutput, scores_prepared
from regard.core.devices import default_generator
from regard.core.mechanism import Mechanism
from regard.core.score import Score
from regard.core.source import Source
from regard.core.taps import Capture, attend_with_look, join_steps, look_at_given
from regard.core.transforms import is_readable
from regard.core.weights import SAMPLED, AttentionType
from regard.layers.dropout import Dropout
from regard.layers.frontends import GRIDS, Frontend, FrontendName, FrontendOutput, check_frontend, make_frontend
from regard.layers.recurrent import Cell, RecurrentEncoder, StepwiseStack, check_cell, make_stack, run, state_width
from regard.layers.scores import ScoreMaker, check_score_options, make_score
from regard.look import Look
from regard.models.contract import Memory, Model, ModelSettings, Projected, State, Step
from regard.models.encoder import masked_mean, with_fusion
from regard.models.mixture import Mixture
from regard.models.state import BatchState, per_hypothesis, per_sentence

# B sentences  K hypotheses  N = B·K  S source positions  T target positions  R = K·T rows, where K or T is 1  L layers
# E memory width  D decoder width  A score width  I embedding  X width of a state (D; for an LSTM 2D)  V vocabulary  J jumps
# F features


READOUT_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "tanh": torch.tanh,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
}
"""`readout_activation` in the settings -> the function."""


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
    """For pictures and grids: whether a recurrent encoder reads each row of cells, so that a cell knows what is left and right
    of it (Deng et al. 2017)."""
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


@dataclass(kw_only=True)
class RnnState(BatchState):
    """The state of a recurrent decoder. Fields that a decoder does not use have size 0.

    prepared_BSA, values_BSE, allow_BS: prepared keys, values and mask of the source. fixed_BE: C, if it is part of every input.
    hidden_BKLX: recurrent states. fed_BKD: the attentional state s̃ of the last step, for input feeding.
    Exact hard attention: source_BSV: log-probabilities of the tokens by each source position alone. jumps_BSJ: the part of
    the source in the scores of jumps. mixture_BKS: the mixture (see core/latent.py) that the next token comes from.
    Copying: tokens_BS: the token x_j at each position. gates_BS: the part of the source in the log-odds of g_tj.
    copied_BKS, state_BKV: as in `Mixture`, for the next token. features_BFI: the vectors of the features, 0 for padding.
    """

    prepared_BSA: Tensor = per_sentence(grows=1)
    values_BSE: Tensor = per_sentence(grows=1)
    allow_BS: Tensor = per_sentence(grows=1)
    fixed_BE: Tensor = per_sentence()
    hidden_BKLX: Tensor = per_hypothesis()
    fed_BKD: Tensor = per_hypothesis()
    source_BSV: Tensor = per_sentence(grows=1)
    jumps_BSJ: Tensor = per_sentence(grows=1)
    mixture_BKS: Tensor = per_hypothesis(grows=2)
    tokens_BS: Tensor = per_sentence(grows=1)
    gates_BS: Tensor = per_sentence(grows=1)
    copied_BKS: Tensor = per_hypothesis(grows=2)
    state_BKV: Tensor = per_hypothesis()
    features_BFI: Tensor = per_sentence(grows=1)


@dataclass(frozen=True)
class Choices:
    """Which source position each token comes from, see core/latent.py.

    emission: the tokens that each position writes: a `Mixture` in which all positions have the weight 1.
    prior_BKTS: log p(a_t = j | y_<t). written_BKTS: log p(y_t | s_t, h_j) of the tokens that are read after step t, up to a
    number for each token; the token after the last step is not known. steps: the moves of every step, if monotone.
    """

    emission: Mixture
    prior_BKTS: Tensor
    written_BKTS: Tensor
    steps: Sequence[latent.Moves] = ()

    @property
    def mixture(self) -> Mixture:
        """What each token comes from, given those before it."""
        return self.emission.weighted(self.prior_BKTS.flatten(1, 2))

    def posterior_BKTS(self) -> Tensor:
        """Returns p(a_t = j | y), where y are the tokens read after step t; after the last step there are none."""
        known_BKTS = latent.after_token(self.prior_BKTS[:, :, :-1], self.written_BKTS)
        filtered_BKTS = torch.cat((known_BKTS, self.prior_BKTS[:, :, -1:]), dim=2)
        if not self.steps:
            return filtered_BKTS.exp()
        smoothed = latent.smooth_chain(self.prior_BKTS.unbind(2), filtered_BKTS.unbind(2), self.steps)
        return torch.stack(smoothed, dim=2).exp()


@dataclass(frozen=True)
class DecoderStates:
    """The results of the recurrence.

    states_BRD: s_t. attended: the result of attention, if the recurrence includes attention. attentional_BRD: s̃_t, with input
    feeding. attended_steps: `attended`, step by step. choices: with exact hard attention.
    """

    states_BRD: Tensor
    attended: AttentionOutput | None = None
    attentional_BRD: Tensor | None = None
    attended_steps: tuple[AttentionOutput, ...] = ()
    choices: Choices | None = None


UNK = 1
"""The id of <unk> in every vocabulary."""

AttendStep = Callable[[Tensor, int], AttentionOutput]
"""(queries (B, K, D), step number) -> the result of attention; axis 1 of its tensors is the single head."""


class RnnSeq2Seq(Model):
    """A recurrent encoder-decoder. Arguments: see `build`."""

    settings: RnnSettings

    def __init__(
        self,
        settings: RnnSettings,
        source_vocab: int,
        target_vocab: int,
        scores: Mapping[str, ScoreMaker] | None = None,
        auxiliary: int = 0,
    ) -> None:
        super().__init__(settings)
        width, memory_width, dropout, cell = settings.width, settings.memory_width, settings.dropout, settings.cell
        self.source_embedding: nn.Embedding | Frontend
        grid = settings.frontend in GRIDS
        if settings.frontend == "tokens":
            self.source_embedding = nn.Embedding(source_vocab, settings.embedding)
        else:
            frontend_width = memory_width if grid else settings.embedding
            self.source_embedding = make_frontend(
                settings.frontend,
                source_vocab,
                frontend_width,
                settings.channels,
                positions=False,
                auxiliary=auxiliary,
                make_score=lambda width: _score(settings, settings.fusion_score or settings.score, scores, width, width),
            )
            self.traits = with_fusion(self.traits, self.source_embedding)
        self.target_embedding = nn.Embedding(target_vocab, settings.embedding)
        self.num_features = auxiliary
        if settings.features == "set":
            self.feature_query = nn.Linear(width, settings.embedding)
            self.feature_value = nn.Linear(settings.embedding, width, bias=False)
        if not grid or settings.row_encoder:
            self.encoder = RecurrentEncoder(
                cell,
                memory_width if grid else settings.embedding,
                memory_width,
                settings.encoder_layers,
                dropout,
                bidirectional=settings.bidirectional,
            )
        if settings.bridge == "learned":
            self.bridge = nn.Linear(memory_width, settings.decoder_layers * width * (2 if cell == "lstm" else 1))
        extra = width if settings.input_feeding else memory_width if settings.runs_stepwise or settings.every_step else 0
        self.decoder = make_stack(cell, extra + settings.embedding, width, settings.decoder_layers, dropout)
        if settings.decoder != "fixed":
            self.score = _score(settings, settings.score, scores, width, memory_width)
        plain = settings.decoder == "bahdanau" or settings.readout == "plain"
        if settings.decoder == "luong" and not plain:
            self.combine = nn.Linear(memory_width + width, width)
        self.output = nn.Linear(width + memory_width if plain else width, target_vocab)
        if settings.attention == "monotone":
            self.jump = nn.Linear(width + memory_width, settings.jumps + 1)
        if settings.copy:
            self.gate = nn.Linear(width + memory_width, 1)
        self.dropout = Dropout(dropout)

    def encode(self, source: Source, look: Look | None = None) -> Memory:
        features_BFI = None
        if self.settings.features == "set":
            source, features_BFI = self._without_features(source)
        if isinstance(self.source_embedding, Frontend):
            output = self.source_embedding(source, look)
        else:
            output = FrontendOutput(self.source_embedding(source.values), source.allow, (source.values.shape[1],))
        if self.settings.frontend in GRIDS:  # a grid as a whole has no reading order for a recurrent encoder
            x_BSE = self._with_rows(output) if self.settings.row_encoder else output.x_BSD
            summary_BE = masked_mean(x_BSE, output.allow_BS)
            return Memory(self.dropout(x_BSE), output.allow_BS, summary_BE, output.axes, output.seen)
        values_BSE, summary_BE = self.encoder(self.dropout(output.x_BSD), output.allow_BS)
        tokens_BS = source.values if self.settings.copy else None
        return Memory(self.dropout(values_BSE), output.allow_BS, summary_BE, output.axes, output.seen, tokens_BS, features_BFI)

    def _without_features(self, source: Source) -> tuple[Source, Tensor]:
        """Returns the source without its features, and their vectors (B, F, I), 0 for padding.

        Features have the first ids after the special tokens, see `Codec.num_features`. They follow the text, so what is unknown
        after one of them is an unknown feature, which is left out.
        """
        ids_BS, allow_BS = source.values, source.allow
        is_feature_BS = allow_BS & (ids_BS > EOS) & (ids_BS <= EOS + self.num_features)
        is_unknown_BS = (ids_BS == UNK) & (is_feature_BS.cumsum(1) > 0)
        ids_BF, real_BF = _chosen(ids_BS, is_feature_BS)
        features_BFI = self.source_embedding(ids_BF) * real_BF.unsqueeze(-1)
        if is_readable(ids_BS) and not is_feature_BS.any():
            return source, features_BFI
        return Source(*_chosen(ids_BS, allow_BS & ~is_feature_BS & ~is_unknown_BS)), features_BFI

    def _with_rows(self, cells: FrontendOutput) -> Tensor:
        """Returns x + RNN(x), where the recurrent encoder reads each row of the grid by itself."""
        rows_NCE, allow_NC = (part.unflatten(1, cells.axes).flatten(0, 1) for part in (cells.x_BSD, cells.allow_BS))
        read_NCE: Tensor = self.encoder(self.dropout(rows_NCE), allow_NC)[0]
        return cells.x_BSD + read_NCE.reshape(cells.x_BSD.shape)

    def start(self, memory: Memory, prefix_BP: Tensor | None = None) -> RnnState:
        values_BSE, allow_BS, summary_BE = memory.values_BSE, memory.allow_BS, memory.summary_BE
        attends, input_feeding = self.settings.decoder != "fixed", self.settings.input_feeding
        prepared_BSA = self._prepare(memory) if attends else values_BSE[:, :0]
        source_BSV, jumps_BSJ = values_BSE[:, :0], values_BSE[:, :0]
        if self.settings.sums_choices:
            known_BS = self.score.known(prepared_BSA)
            allow_BS = allow_BS if known_BS is None else masks.both(allow_BS, known_BS)
            source_BSV, jumps_BSJ = self._source_parts(values_BSE, allow_BS)
        tokens_BS, gates_BS, num_tokens = memory.tokens_BS, values_BSE[:, :0, 0], 0
        if tokens_BS is None:
            tokens_BS = allow_BS[:, :0].long()
        else:
            gates_BS = F.linear(values_BSE, self.gate.weight[:, self.settings.width :]).squeeze(-1)
            gates_BS = gates_BS.masked_fill(tokens_BS <= EOS, latent.NEVER)  # special tokens are not copied
            num_tokens = self.output.out_features
        if self.settings.bridge == "learned":
            hidden_BLX = self.bridge(summary_BE).tanh().unflatten(-1, (self.decoder.num_layers, state_width(self.decoder)))
        elif self.settings.bridge == "zero":
            hidden_BLX = summary_BE.new_zeros(len(summary_BE), self.decoder.num_layers, state_width(self.decoder))
        else:
            hidden_BLX = summary_BE.unsqueeze(1).expand(-1, self.decoder.num_layers, -1)
        state = RnnState(
            lengths_B=torch.zeros(len(allow_BS), dtype=torch.long, device=allow_BS.device),
            prepared_BSA=prepared_BSA,
            values_BSE=values_BSE if attends else values_BSE[:, :0],
            allow_BS=allow_BS if attends else allow_BS[:, :0],
            fixed_BE=summary_BE if self.settings.every_step else summary_BE[:, :0],
            hidden_BKLX=hidden_BLX.unsqueeze(1),
            fed_BKD=summary_BE.new_zeros(len(allow_BS), 1, self.settings.width if input_feeding else 0),
            source_BSV=source_BSV,
            jumps_BSJ=jumps_BSJ,
            mixture_BKS=source_BSV.new_zeros(len(allow_BS), 1, source_BSV.shape[1]),
            tokens_BS=tokens_BS,
            gates_BS=gates_BS,
            copied_BKS=gates_BS.new_zeros(len(allow_BS), 1, gates_BS.shape[1]),
            state_BKV=gates_BS.new_zeros(len(allow_BS), 1, num_tokens),
            features_BFI=values_BSE[:, :0] if memory.features_BFI is None else memory.features_BFI,
        )
        if prefix_BP is None:
            return state
        _, state = self._recur(prefix_BP.unsqueeze(1), state, None)
        return state

    def step(self, ids_BK: Tensor, state: State, look: Look | None = None) -> Step:
        state = cast(RnnState, state)
        state.check_ids(ids_BK)
        state.spend()
        cross_look = self._cross_look(look)
        outputs, next_state = self._recur(ids_BK.unsqueeze(-1), state, cross_look)
        decoded = self._readout(outputs, state, cross_look, state.lengths_B[:, None])
        return Step(decoded.logits_BTV, next_state, decoded.seen)

    def decode(self, ids_BT: Tensor, memory: Memory, look: Look | None = None) -> Projected | Mixture:
        state, cross_look = self.start(memory), self._cross_look(look)
        outputs, _ = self._recur(ids_BT.unsqueeze(1), state, cross_look)
        return self._readout(outputs, state, cross_look)

    def _cross_look(self, look: Look | None) -> Look | None:
        return look.at("cross", 0, 1) if look and self.settings.decoder != "fixed" else None

    def _prepare(self, memory: Memory) -> Tensor:
        if self.score.by_position:
            return self.score.prepare(memory.values_BSE, masks.positions(memory.allow_BS))
        return self.score.prepare(memory.values_BSE)

    def _recur(self, ids_BKT: Tensor, state: RnnState, look: Look | None) -> tuple[DecoderStates, RnnState]:
        """Reads one token of K hypotheses, or T tokens of one. Returns the results of the recurrence and the State after it."""
        embedded_NTI = self.dropout(self.target_embedding(ids_BKT)).flatten(0, 1)
        if self.settings.runs_stepwise:
            outputs, hidden_LNX, fed_ND = self._loop(embedded_NTI, state, look)
        else:
            if self.settings.every_step:
                fixed_NE = state.fixed_BE.repeat_interleave(ids_BKT.shape[1], dim=0)
                fixed_NTE = fixed_NE.unsqueeze(1).expand(*embedded_NTI.shape[:2], -1)
                embedded_NTI = torch.cat((fixed_NTE, embedded_NTI), dim=-1)
            states_NTD, hidden_LNX = run(self.decoder, embedded_NTI, state.hidden_BKLX.flatten(0, 1).transpose(0, 1))
            states_BRD = states_NTD.reshape(len(ids_BKT), -1, states_NTD.shape[-1])
            outputs = DecoderStates(self.with_features(states_BRD, state))
            fed_ND = state.fed_BKD.flatten(0, 1)
        if self.settings.sums_choices:
            dropped_BRD = self.dropout(outputs.states_BRD)
            choices = self._choices(ids_BKT, dropped_BRD, state)
            outputs = DecoderStates(dropped_BRD, choices=choices)
            state = self._with_last(state, choices.mixture, ids_BKT)
        return outputs, replace(
            state,
            spent=False,
            lengths_B=state.lengths_B + ids_BKT.shape[-1],
            hidden_BKLX=hidden_LNX.transpose(0, 1).unflatten(0, ids_BKT.shape[:2]),
            fed_BKD=fed_ND.unflatten(0, ids_BKT.shape[:2]),
        )

    def with_features(self, states_BRD: Tensor, state: RnnState) -> Tensor:
        """Returns s_t + Σ_k σ(W_q s_t · f_k / √I) W_v f_k for every state s_t, if features are read as a set."""
        if self.settings.features != "set":
            return states_BRD
        scores_BRF = self.feature_query(states_BRD) @ state.features_BFI.transpose(1, 2) / math.sqrt(self.settings.embedding)
        added_BRD: Tensor = scores_BRF.sigmoid() @ self.feature_value(state.features_BFI)
        return states_BRD + added_BRD

    def _loop(self, embedded_NTI: Tensor, state: RnnState, look: Look | None) -> tuple[DecoderStates, Tensor, Tensor]:
        """Runs a recurrence that includes attention. Returns (its results, the last state (L, N, X), the last s̃ (N, D)).

        With look.grad, callers expect gradients with respect to one tensor with the weights of all steps. The steps then run
        twice: first to compute the weights, then with slices of that tensor as weights.
        """
        steps = StepwiseStack(self.decoder, embedded_NTI)
        num_steps = embedded_NTI.shape[1]

        def attend(query_BKD: Tensor, step: int) -> AttentionOutput:
            step_look = look.at_row(step, num_steps) if look and num_steps > 1 else look
            positions_B1 = None if step_look is None else state.lengths_B[:, None] + step
            return self._attend(state, step_look, positions_B1)(query_BKD)

        outputs, hidden_LNX, fed_ND = self._steps(steps, num_steps, state, attend)
        attended = outputs.attended
        assert attended is not None
        if num_steps > 1:
            attended = replace(attended, seen=join_steps(look, [step.seen for step in outputs.attended_steps]))
            outputs = replace(outputs, attended=attended)
        weights = [seen.weights_BHTS for seen in attended.seen if seen.what == "weights"] if look and look.grad else []
        if num_steps == 1 or not weights:
            return outputs, hidden_LNX, fed_ND
        step_weights, values_B1SE = weights[0].unbind(2), state.values_BSE.unsqueeze(1)
        steps = StepwiseStack(self.decoder, embedded_NTI, steps.dropout_masks)
        outputs, hidden_LNX, fed_ND = self._steps(
            steps, num_steps, state, lambda _, step: AttentionOutput(step_weights[step].unsqueeze(2) @ values_B1SE)
        )
        assert outputs.attended is not None
        return replace(outputs, attended=replace(attended, context=outputs.attended.context)), hidden_LNX, fed_ND

    def _steps(
        self, steps: StepwiseStack, num_steps: int, state: RnnState, attend: AttendStep
    ) -> tuple[DecoderStates, Tensor, Tensor]:
        """Runs all steps in order. Returns as `_loop` does."""
        B, K = state.fed_BKD.shape[:2]
        hidden = steps.split(state.hidden_BKLX.flatten(0, 1).transpose(0, 1))
        fed_ND = state.fed_BKD.flatten(0, 1)
        states, attentional, attended_steps = [], [], []
        for step in range(num_steps):
            if self.settings.input_feeding:
                hidden = steps(step, fed_ND, hidden)
                top_ND = hidden[-1][0]
                attended = attend(top_ND.view(B, K, -1), step)
                fed_ND = self._attentional(attended.context.flatten(0, 2), top_ND)
                attentional.append(fed_ND)
            else:
                attended = attend(hidden[-1][0].view(B, K, -1), step)
                hidden = steps(step, attended.context.flatten(0, 2), hidden)
            states.append(hidden[-1][0])
            attended_steps.append(attended)
        outputs = DecoderStates(
            _rows(states, B), _joined(attended_steps), _rows(attentional, B) if attentional else None, tuple(attended_steps)
        )
        return outputs, steps.join(hidden), fed_ND

    def _readout(
        self, outputs: DecoderStates, state: RnnState, look: Look | None, positions_BR: Tensor | None = None
    ) -> Projected | Mixture:
        """Computes logits from s_t for all R rows: the positions of a sequence, or the hypotheses of a step.

        positions_BR: the positions of the rows, (B or 1, R or 1); by default 0, 1, 2, …
        """
        if outputs.choices is not None:
            return self._mixture(outputs.choices, outputs.states_BRD, state, look, positions_BR)
        if self.settings.decoder == "fixed":
            return Projected(self.dropout(outputs.states_BRD), self.output.weight, self.output.bias, affects_later_steps=False)
        attended = outputs.attended or self._attend(state, look, positions_BR)(outputs.states_BRD)
        context_BRE = attended.context.squeeze(1)
        if self.settings.decoder == "bahdanau" or self.settings.readout == "plain":
            readout = torch.cat((outputs.states_BRD, context_BRE), dim=-1)
            readout = READOUT_ACTIVATIONS[self.settings.readout_activation](readout)
        else:
            attentional_BRD = outputs.attentional_BRD
            readout = self._attentional(context_BRE, outputs.states_BRD) if attentional_BRD is None else attentional_BRD
        return Projected(
            self.dropout(readout),
            self.output.weight,
            self.output.bias,
            attention_log_prob_BT=None if attended.log_prob is None else attended.log_prob.squeeze(1),
            attention_entropy_BT=None if attended.entropy is None else attended.entropy.squeeze(1),
            affects_later_steps=self.settings.runs_stepwise,
            seen=attended.seen,
        )

    def _attentional(self, context: Tensor, states: Tensor) -> Tensor:
        """Returns the attentional state s̃ = tanh(W [c; s] + b) (Luong et al. 2015, eq. 5)."""
        attentional: Tensor = self.combine(torch.cat((context, states), dim=-1)).tanh()
        return attentional

    def _attend(
        self, state: RnnState, look: Look | None, positions_BR: Tensor | None = None
    ) -> Callable[[Tensor], AttentionOutput]:
        """Returns a function from queries (B, R, D) to the result of attention to the source; axis 1 is the single head."""
        generator, attention = default_generator(state.allow_BS.device) if self.training else None, self.settings.attention
        mechanism = Mechanism(
            self.score, state.allow_BS[:, None, None], attention=cast(AttentionType, attention), generator=generator
        )
        prepared, values = state.prepared_BSA.unsqueeze(1), state.values_BSE.unsqueeze(1)
        return lambda query_BRD: attend_with_look(
            query_BRD.unsqueeze(1), prepared, values, mechanism, look, positions_BR=positions_BR
        )

    # --- exact hard attention ------------------------------------------------------------------------------------------------

    def _source_parts(self, values_BSE: Tensor, allow_BS: Tensor) -> tuple[Tensor, Tensor]:
        """Returns what depends on the source only: log-probabilities of the tokens (B, S, V), scores of the jumps (B, S, J).

        A monotone alignment ends at the last source position: no other position writes <eos>.
        """
        width = self.settings.width
        logits_BSV = F.linear(values_BSE, self.output.weight[:, width:])
        if self.settings.attention == "marginal":
            return logits_BSV.log_softmax(-1), values_BSE[..., :0]
        before_last_BS = masks.first(allow_BS.sum(1) - 1, allow_BS.shape[1])
        is_eos_V = torch.arange(logits_BSV.shape[-1], device=logits_BSV.device) == EOS
        logits_BSV = logits_BSV.masked_fill(before_last_BS.unsqueeze(-1) & is_eos_V, latent.NEVER)
        return logits_BSV.log_softmax(-1), F.linear(values_BSE, self.jump.weight[:, width:])

    def _choices(self, ids_BKT: Tensor, states_BRD: Tensor, state: RnnState) -> Choices:
        """Returns how probable each source position is, for every token that follows the tokens read."""
        size, width = ids_BKT.shape[1:], self.settings.width
        emission = self._emission(states_BRD, state)
        next_BR = ids_BKT.roll(-1, dims=-1).flatten(1)  # what is rolled to the end, is not used
        written_BKTS = emission.positions(next_BR).unflatten(1, size)[:, :, :-1]
        mechanism = Mechanism(self.score, state.allow_BS[:, None, None])
        scores_BRS = scores_prepared(states_BRD.unsqueeze(1), state.prepared_BSA.unsqueeze(1), mechanism).squeeze(1)
        forbidden_B1S = ~state.allow_BS.unsqueeze(1)
        scores_BKTS = scores_BRS.masked_fill(forbidden_B1S, latent.NEVER).unflatten(1, size)
        if self.settings.attention == "marginal":
            return Choices(emission, scores_BKTS.log_softmax(-1), written_BKTS)
        jumps_BRJ = F.linear(states_BRD, self.jump.weight[:, :width], self.jump.bias)
        jumps_BKTSJ = jumps_BRJ.unflatten(1, size).unsqueeze(3) + state.jumps_BSJ[:, None, None]
        steps = latent.moves(scores_BKTS, jumps_BKTSJ, state.allow_BS[:, None, None]).unbind(2)
        last_BKS = self._last(state).positions(ids_BKT[:, :, 0])
        start_BKS = last_BKS.masked_fill(forbidden_B1S, latent.NEVER).log_softmax(-1)
        start_BKS = torch.where((state.lengths_B == 0)[:, None, None], latent.first_position(start_BKS), start_BKS)
        priors = latent.filter_chain(start_BKS, steps, [torch.zeros_like(start_BKS)] * len(steps), written_BKTS.unbind(2))
        return Choices(emission, torch.stack(priors, dim=2), written_BKTS, steps)

    def _emission(self, states_BRD: Tensor, state: RnnState) -> Mixture:
        """Returns the tokens that each source position writes in the decoder states s_t."""
        width = self.settings.width
        state_BRV = F.linear(states_BRD, self.output.weight[:, :width], self.output.bias).log_softmax(-1)
        mixture_BRS = -latent.log_overlap(state_BRV, state.source_BSV)
        if not self.settings.copy:
            return Mixture(state_BRV, state.source_BSV, mixture_BRS)
        gates_BRS = F.linear(states_BRD, self.gate.weight[:, :width], self.gate.bias) + state.gates_BS.unsqueeze(1)
        mixture_BRS = mixture_BRS + F.logsigmoid(-gates_BRS)
        return Mixture(state_BRV, state.source_BSV, mixture_BRS, F.logsigmoid(gates_BRS), state.tokens_BS)

    def _last(self, state: RnnState) -> Mixture:
        """Returns what the next token comes from, as the last step left it."""
        if not self.settings.copy:
            return Mixture(state.state_BKV, state.source_BSV, state.mixture_BKS)
        return Mixture(state.state_BKV, state.source_BSV, state.mixture_BKS, state.copied_BKS, state.tokens_BS)

    def _with_last(self, state: RnnState, mixture: Mixture, ids_BKT: Tensor) -> RnnState:
        """Returns a State that holds what the next token comes from."""
        size = ids_BKT.shape[1:]
        state = replace(state, mixture_BKS=mixture.mixture_BTS.unflatten(1, size)[:, :, -1])
        if mixture.copied_BTS is None:
            return state
        copied_BKS, state_BKV = (x.unflatten(1, size)[:, :, -1] for x in (mixture.copied_BTS, mixture.state_BTV))
        return replace(state, copied_BKS=copied_BKS, state_BKV=state_BKV)

    def _mixture(
        self, choices: Choices, states_BRD: Tensor, state: RnnState, look: Look | None, positions_BR: Tensor | None
    ) -> Mixture:
        """Returns the distribution of every token, and what a Look requests. Edits change only what the tokens are mixed from;
        the alignments go on without them.

        positions_BR: as for `_readout`.
        """
        if look is None:
            return choices.mixture
        weights_BHRS = choices.prior_BKTS.flatten(1, 2).exp().unsqueeze(1)
        query, prepared, values = (tensor.unsqueeze(1) for tensor in (states_BRD, state.prepared_BSA, state.values_BSE))
        mechanism = Mechanism(self.score, state.allow_BS[:, None, None])
        capture = Capture(query, prepared, values, mechanism, given_BHRS=weights_BHRS)
        used_BHRS, seen = look_at_given(
            capture, look, lambda: choices.posterior_BKTS().flatten(1, 2).unsqueeze(1), positions_BR
        )
        mixture = choices.mixture
        if look.edits or look.grad:
            log_weights_BRS, log_rest_BR1 = latent.log_weights(used_BHRS.squeeze(1))
            mixture = choices.emission.weighted(log_weights_BRS).with_no_key(log_rest_BR1)
        return replace(mixture, seen=seen)


def _chosen(ids_BS: Tensor, chosen_BS: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the chosen ids of each row in their order, (B, N), N being the largest number of them, and where they are real.
    Traced code keeps all columns, because it must not depend on values."""
    order_BN = (~chosen_BS).to(torch.uint8).argsort(dim=1, stable=True)
    numbers_B = chosen_BS.sum(1)
    if is_readable(numbers_B):
        order_BN = order_BN[:, : int(numbers_B.max())]
    return ids_BS.gather(1, order_BN), masks.first(numbers_B, order_BN.shape[1])


def _score(
    settings: RnnSettings, name: str, scores: Mapping[str, ScoreMaker] | None, query_width: int, key_width: int
) -> Score:
    """Returns the score function of this name, with the sizes of the settings."""
    return make_score(
        name,
        scores,
        query_width=query_width,
        key_width=key_width,
        width=settings.score_width,
        max_source=settings.max_positions,
        beyond=settings.beyond,
        divide_by=settings.score_divisor,
        temperature=settings.score_temperature,
    )


def _rows(steps: list[Tensor], num_sentences: int) -> Tensor:
    """Joins T tensors (N, D) into (B, R, D)."""
    return torch.stack(steps, dim=1).reshape(num_sentences, -1, steps[0].shape[-1])


def _joined(steps: list[AttentionOutput]) -> AttentionOutput:
    """Joins T results (B, 1, K, ·) into one (B, 1, R, ·)."""
    if len(steps) == 1:
        return steps[0]

    def join(parts: list[Tensor | None], dim: int) -> Tensor | None:
        tensors = [part for part in parts if part is not None]
        return torch.cat(tensors, dim=dim) if tensors else None

    return AttentionOutput(
        torch.cat([step.context for step in steps], dim=-2),
        join([step.log_prob for step in steps], -1),
        join([step.entropy for step in steps], -1),
    )
