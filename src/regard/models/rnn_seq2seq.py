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
and only what depends on earlier steps is computed inside the loop; for the most common one a native kernel is the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn

from regard.core import masks
from regard.core.attention import AttentionOutput
from regard.core.devices import default_generator
from regard.core.mechanism import Mechanism
from regard.core.score import Score
from regard.core.source import Source
from regard.core.taps import attend_with_look, join_steps
from regard.core.weights import AttentionType
from regard.layers.dropout import Dropout
from regard.layers.frontends import GRIDS, Frontend, FrontendOutput, make_frontend
from regard.layers.recurrent import RecurrentEncoder, StepwiseStack, make_stack, run, state_width
from regard.layers.scores import Additive, ScoreMaker, make_score
from regard.look import Look
from regard.models.contract import Memory, Model, Projected, State, Step
from regard.models.encoder import masked_mean, with_fusion
from regard.models.mixture import Mixture
from regard.models.rnn_choices import Choices, SummedAttention, after
from regard.models.rnn_features import add_features, split_features
from regard.models.rnn_settings import RnnSettings
from regard.models.rnn_state import RnnState
from regard.models.rnn_whole import run_whole, runs_whole

__all__ = ["DecoderStates", "RnnSeq2Seq", "RnnSettings", "RnnState"]

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
            source, ids_BF, real_BF = split_features(source, self.num_features, self.specials)
            features_BFI = self.source_embedding(ids_BF) * real_BF.unsqueeze(-1)
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

    def _with_rows(self, cells: FrontendOutput) -> Tensor:
        """Returns x + RNN(x), where the recurrent encoder reads each row of the grid, or of each frame, by itself."""
        rows_NCE, allow_NC = (
            part.unflatten(1, cells.axes).flatten(0, len(cells.axes) - 1) for part in (cells.x_BSD, cells.allow_BS)
        )
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
            source_BSV, jumps_BSJ = self._summed.source_parts(values_BSE, allow_BS)
        tokens_BS, gates_BS, num_tokens = memory.tokens_BS, values_BSE[:, :0, 0], 0
        if tokens_BS is None:
            tokens_BS = allow_BS[:, :0].long()
        else:
            gates_BS = self._summed.source_gates(values_BSE, tokens_BS)
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
        if look is None and self.settings.runs_stepwise and self._runs_whole(embedded_NTI, state):
            states_NTD, contexts_NTE = run_whole(self.decoder, cast(Additive, self.score), embedded_NTI, state)
            outputs = DecoderStates(states_NTD, AttentionOutput(contexts_NTE.unsqueeze(1)))
            hidden_LNX, fed_ND = states_NTD[:, -1].unsqueeze(0), state.fed_BKD.flatten(0, 1)
        elif self.settings.runs_stepwise:
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
            choices = self._summed.choices(ids_BKT, dropped_BRD, state)
            outputs = DecoderStates(dropped_BRD, choices=choices)
            state = after(state, choices.mixture, ids_BKT.shape[1:])
        return outputs, replace(
            state,
            spent=False,
            lengths_B=state.lengths_B + ids_BKT.shape[-1],
            hidden_BKLX=hidden_LNX.transpose(0, 1).unflatten(0, ids_BKT.shape[:2]),
            fed_BKD=fed_ND.unflatten(0, ids_BKT.shape[:2]),
        )

    def _runs_whole(self, embedded_NTI: Tensor, state: RnnState) -> bool:
        return runs_whole(self.settings, self.decoder, self.score, embedded_NTI, state)

    def with_features(self, states_BRD: Tensor, state: RnnState) -> Tensor:
        """Returns decoder states with the features that they choose, if features are read as a set."""
        if self.settings.features != "set":
            return states_BRD
        return add_features(states_BRD, state.features_BFI, self.feature_query, self.feature_value)

    @property
    def _summed(self) -> SummedAttention:
        """The layers of exact hard attention."""
        jump = self.jump if self.settings.attention == "monotone" else None
        gate = self.gate if self.settings.copy else None
        return SummedAttention(self.settings, self.specials, self.score, self.output, jump, gate)

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
            return self._summed.with_look(outputs.choices, outputs.states_BRD, state, look, positions_BR)
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
