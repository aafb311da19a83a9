"""What every model keeps: its base class and that of its settings, and the types that carry tensors between data, models,
search, training and inspection.

`encode` turns a `Source` into a `Memory`; `start` turns the Memory into a `State`; each `step` consumes a State and returns a
`Step` (logits, the next State, captured attention). Training reads the whole target at once: `decode` returns `Decoded`.

Capital letters at the end of a tensor's name are its axes:

    B sentences   K hypotheses of one sentence   S source positions   T target positions   H heads
    V vocabulary  E width of the memory          D width of the decoder
"""

from __future__ import annotations

from dataclasses import Field, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

from torch import Tensor, nn

from regard.contracts import OWN, Specials, Traits
from regard.core import masks
from regard.core.linear import linear
from regard.core.losses import projected_loss, smoothed_loss, target_log_probs
from regard.core.precision import log_softmax
from regard.core.source import Source
from regard.equality import ByValue
from regard.errors import check_numbers
from regard.look import Look, Seen


@dataclass(frozen=True, eq=False)
class Memory(ByValue):
    """The output of the encoder, h_1 … h_S. It has the same form for text, pictures and sound.

    values_BSE: one vector for each source position.   allow_BS: False at padding.
    summary_BE: one vector for the whole source.       axes: (S,), (rows, columns) of a grid, or (time, rows, columns).
    seen: the encoder attention that a Look requested.  tokens_BS: the source token at each position, if the decoder copies.
    features_BFI: the vectors of the features of each source, if the model reads them as a set.

    >>> values = torch.tensor([[4, 5, 6]])
    >>> memory = regard.load("model").model.encode(regard.Source(values, values > 0))
    >>> memory.values_BSE.shape[:2], memory.axes
    (torch.Size([1, 3]), (3,))
    """

    values_BSE: Tensor
    allow_BS: Tensor
    summary_BE: Tensor
    axes: tuple[int, ...]
    seen: tuple[Seen[Tensor], ...] = ()
    tokens_BS: Tensor | None = None
    features_BFI: Tensor | None = None


class State(Protocol):
    """Everything a decoder carries from one target position to the next, for B sentences with K hypotheses each.

    It holds recurrent states or a key-value cache (KV cache). A step *spends* its State: it may write into the cache in place,
    so using a spent State raises RuntimeError; call `copy()` first to continue from it twice.

    >>> model, values = regard.load("model").model, torch.tensor([[4, 5, 6]])
    >>> state = model.start(model.encode(regard.Source(values, values > 0)))
    >>> twice = state.select(torch.tensor([[0, 0]]))  # two hypotheses
    >>> model.step(torch.tensor([[2, 2]]), twice.copy()).state.lengths_B  # 2 is <sos>
    tensor([1])
    >>> twice.join(twice.copy()).keep(torch.tensor([1])).nbytes == twice.nbytes  # a second sentence enters, the first leaves
    True
    >>> twice.copy().put(torch.tensor([0]), twice.copy()).nbytes == twice.nbytes  # the second takes the row of the first
    True
    >>> twice.spend()  # as a step does
    >>> twice.spend()
    Traceback (most recent call last):
        ...
    RuntimeError: this State was already used by an earlier step, which may have modified it; call copy() before that step
    """

    lengths_B: Tensor
    """The number of tokens read for each sentence. Rows may differ, because sentences can join a running batch."""

    def spend(self) -> None:
        """Marks this State as used; raises RuntimeError the second time."""

    def select(self, parents_BK: Tensor) -> Self:
        """Returns the surviving hypotheses: new hypothesis k of sentence b continues old hypothesis parents[b, k]."""
        ...

    def keep(self, rows_N: Tensor) -> Self:
        """Returns these sentences only, in this order."""
        ...

    def join(self, *others: Self) -> Self:
        """Returns the sentences of all States, those of this one first."""
        ...

    def put(self, rows_N: Tensor, new: Self) -> Self:
        """Returns these sentences with those in some rows replaced by the sentences of another State, in order. It may write
        into this State, which must not be used again."""
        ...

    def copy(self) -> Self:
        """Returns an independent State that can be continued separately."""
        ...

    @property
    def nbytes(self) -> int:
        """The size of all tensors in bytes."""
        ...


@dataclass(frozen=True)
class Step:
    """The result of one decoder step: a logit for every token of the vocabulary, the next State, and what a Look requested.

    Log-probabilities are logits, too: their softmax gives the probabilities.

    >>> model, values = regard.load("model").model, torch.tensor([[4, 5, 6]])
    >>> state = model.start(model.encode(regard.Source(values, values > 0)))
    >>> step = model.step(torch.tensor([[2]]), state)  # 2 is <sos>
    >>> step.logits_BKV.shape[:2]
    torch.Size([1, 1])
    """

    logits_BKV: Tensor
    state: State
    seen: tuple[Seen[Tensor], ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True)
class Decoded(ByValue):
    """The result of decoding whole target sequences (teacher forcing): the distribution of every token given those before it.

    A subclass defines `distribution`; `log_probs` and `loss` follow from it, and may be replaced by something cheaper.
    attention_log_prob, attention_entropy (B, T): of the choices of hard or gated attention; None for other types.
    affects_later_steps: whether such a choice also affects later tokens, not only the token of its own step.

    >>> model, values = regard.load("model").model, torch.tensor([[4, 5, 6]])
    >>> decoded = model.decode(torch.tensor([[2, 4]]), model.encode(regard.Source(values, values > 0)))  # 2 is <sos>
    >>> decoded.distribution().shape[:2], decoded.log_probs(torch.tensor([[4, 5]])).shape
    (torch.Size([1, 2]), torch.Size([1, 2]))
    >>> decoded.loss(torch.tensor([[4, 5]]), pad=0).shape
    torch.Size([])
    """

    attention_log_prob_BT: Tensor | None = None
    attention_entropy_BT: Tensor | None = None
    affects_later_steps: bool = True
    seen: tuple[Seen[Tensor], ...] = ()

    def distribution(self) -> Tensor:
        """Returns the log-probability of every token of the vocabulary at every position, (B, T, V)."""
        raise NotImplementedError(f"{type(self).__name__} needs a method distribution()")

    def log_probs(self, targets_BT: Tensor) -> Tensor:
        """Returns the log-probability of each target, (B, T)."""
        return target_log_probs(self.distribution(), targets_BT)

    def loss(self, targets_BT: Tensor, *, pad: int, smoothing: float = 0.0) -> Tensor:
        """Returns the cross-entropy with label smoothing, summed over all targets except padding."""
        if smoothing:
            return smoothed_loss(self.distribution(), targets_BT, pad=pad, smoothing=smoothing)
        return -self.log_probs(targets_BT)[masks.not_padding(targets_BT, pad)].sum()


@dataclass(frozen=True, eq=False)
class Projected(Decoded):
    """The result of a model with an output projection: logits = states · weightᵀ + bias, computed on first use.

    The logits are by far the largest tensor; the loss is computed without them.

    >>> projected = regard.Projected(torch.zeros(1, 2, 8), torch.zeros(4, 8), torch.zeros(4))
    >>> projected.logits_BTV.shape
    torch.Size([1, 2, 4])
    >>> projected.distribution().exp()
    tensor([[[0.2500, 0.2500, 0.2500, 0.2500],
             [0.2500, 0.2500, 0.2500, 0.2500]]])
    """

    states_BTD: Tensor
    weight_VD: Tensor
    bias_V: Tensor

    @cached_property
    def logits_BTV(self) -> Tensor:
        """states · weightᵀ + bias."""
        return linear(self.states_BTD, self.weight_VD, self.bias_V)

    def distribution(self) -> Tensor:
        return log_softmax(self.logits_BTV)

    def loss(self, targets_BT: Tensor, *, pad: int, smoothing: float = 0.0) -> Tensor:
        return projected_loss(self.states_BTD, self.weight_VD, self.bias_V, targets_BT, pad=pad, smoothing=smoothing)


class Seq2Seq(Protocol):
    """The interface of every model. Search, training and inspection use nothing else."""

    traits: Traits
    """What this model is: the traits of its settings, and fusion if it reads an auxiliary text."""

    def encode(self, source: Source, look: Look | None = None) -> Memory:
        """Runs the encoder."""
        ...

    def start(self, memory: Memory, prefix_BP: Tensor | None = None) -> State:
        """Returns the first State, with one hypothesis per sentence, after reading the prefix, if any, in one pass.

        Computes once what depends on the source only.
        """
        ...

    def step(self, ids_BK: Tensor, state: State, look: Look | None = None) -> Step:
        """Reads one token per hypothesis and returns logits for the next one.

        The K hypotheses of a sentence are K query rows, so the source is not repeated for each of them.
        """
        ...

    def decode(self, ids_BT: Tensor, memory: Memory, look: Look | None = None) -> Decoded:
        """Reads whole target sequences that start with <sos> (teacher forcing); position t depends on the tokens up to t."""
        ...


# --- families ----------------------------------------------------------------------------------------------------------------


class ModelSettings:
    """The base class of the settings of a model family: a frozen dataclass, which decides on the order of its fields.

    Invalid values raise a ValueError that says what to do.

    >>> settings = regard.load("model").model.settings
    >>> settings.num_layers, settings.traits.continues_text
    ({'encoder_layers': 2, 'decoder_layers': 1}, False)
    """

    kind: str
    """Model family."""
    width: int
    dropout: float
    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __post_init__(self) -> None:
        check_numbers(self)

    @property
    def traits(self) -> Traits:
        """What a model with these settings is."""
        raise NotImplementedError(f"{type(self).__name__} needs a property traits")

    @property
    def num_layers(self) -> dict[str, int]:
        """The settings that are numbers of layers, by name."""
        return {name: value for name, value in vars(self).items() if name.endswith("layers")}


class Model(nn.Module, Seq2Seq):
    """The base class of the models of a family.

    >>> model, values = regard.load("model").model, torch.tensor([[4, 5, 6]])
    >>> isinstance(model, regard.Model), model.settings.kind
    (True, 'rnn')
    >>> memory = model.encode(regard.Source(values, values > 0))
    >>> step = model.step(torch.tensor([[2]]), model.start(memory))  # 2 is <sos>
    >>> decoded = model.decode(torch.tensor([[2, 4]]), memory)  # the same token, and one more
    >>> torch.allclose(step.logits_BKV.log_softmax(-1), decoded.distribution()[:, :1], atol=1e-5)
    True
    """

    settings: ModelSettings
    specials: Specials = OWN
    """The special tokens of its outputs; `build` sets them."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__()
        self.settings, self.traits = settings, settings.traits

    def forward(
        self,
        source: Source | Tensor | None,
        target_in_BT: Tensor,
        *,
        allow: Tensor | None = None,
        pad: int | None = None,
    ) -> Tensor:
        """Returns the logits (B, T, V) of the token that follows each token of `target_in_BT` (teacher forcing).

        source: the ids of the source tokens (B, S), or a `Source`, such as `batch.source`; None for a language model, which has
        no source.
        target_in_BT: the ids of the target tokens, which start with <sos>. Padding after the end affects no logits before it.
        allow: False for the source ids that are padding, (B, S).  pad: or the id of padding; without either, there is none.
        Raises ValueError if a model that reads a source gets none, or if `allow` and `pad` come with a `Source` or together.

        >>> model = regard.load("model")
        >>> batch = next(regard.batches(model, "pairs.tsv"))
        >>> logits_BTV = model.model(batch.source, batch.target_in_BT)
        >>> logits_BTV.shape == (*batch.target_out_BT.shape, len(model.target))
        True
        """
        decoded = self.decode(target_in_BT, self.encode(self._source(source, target_in_BT, allow, pad)))
        return decoded.logits_BTV if isinstance(decoded, Projected) else decoded.distribution()

    if TYPE_CHECKING:
        __call__ = forward

    def _source(self, source: Source | Tensor | None, target_in_BT: Tensor, allow: Tensor | None, pad: int | None) -> Source:
        if source is None and self.traits.continues_text:
            empty_B0 = target_in_BT[:, :0]
            return Source(empty_B0, empty_B0.bool())
        if allow is not None and pad is not None:
            raise ValueError("got both allow and pad, expected one of them: each says which source ids are padding")
        if isinstance(source, Source):
            if allow is not None or pad is not None:
                raise ValueError("got allow or pad with a Source, which has its own mask; leave them out")
            return source
        if source is None:
            raise ValueError(f"got no source, but models of the kind {self.settings.kind} read one; give its token ids (B, S)")
        if source.is_floating_point():
            raise ValueError(f"got a source of {source.dtype}, expected the ids of tokens; give pictures or sounds as a Source")
        if allow is None:
            allow = masks.not_padding(source, -1 if pad is None else pad)  # no id is negative
        return Source(source, allow)
