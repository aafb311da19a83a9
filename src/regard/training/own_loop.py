"""What a training loop of one's own needs: an untrained model, batches, and the loss.

model = regard.build("rnn", pairs).train()
optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
for batch in regard.batches(model, pairs, epochs=10):
    regard.loss(model, batch).backward()
    optimiser.step()
    optimiser.zero_grad()
regard.save(model, "model")
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path
from typing import Literal, cast, overload

import torch
from torch import Tensor

from regard.checkpoint.folder import Saved
from regard.core.devices import choose_device, settings_restored
from regard.data.batch import Batch, Batches, BatchOrder, encode_pairs, lengths
from regard.data.columns import Columns
from regard.data.corpus import read_pairs
from regard.data.counts import CorpusCounts
from regard.data.sources import SourceCodec, auxiliary_vocabulary_size
from regard.data.tokenizers.contract import TextCodec
from regard.data.trained import TrainedOn
from regard.errors import check_whole
from regard.layers.scores import ScoreMaker
from regard.models.build import build as build_model
from regard.models.contract import Model
from regard.pipeline import Translator
from regard.training.choice import choose
from regard.training.data import StartCodecs, make_codecs
from regard.training.objective import batch_loss
from regard.training.order import Order, are_files
from regard.training.overrides import keys_of
from regard.training.run_folder import RunFolder
from regard.training.settings import TrainSettings
from regard.training.spool import DATA
from regard.training.survey import folder_of, stream
from regard.training.train import Data, columns, given_data
from regard.training.transfer import Start
from regard.training.untrained import build_model as build_without_data
from regard.wording import python_words


@overload
def build(
    kind: str,
    data: Data,
    *,
    num_tokens: None = None,
    seed: int = 1,
    source: str | int | Sequence[str | int] | None = None,
    target: str | int | None = None,
    vocabularies: tuple[SourceCodec, TextCodec] | None = None,
    scores: Mapping[str, ScoreMaker] | None = None,
    device: str | torch.device = "auto",
    **settings: object,
) -> Translator: ...


@overload
def build(
    kind: str,
    data: None = None,
    *,
    num_tokens: int | tuple[int, int],
    seed: int = 1,
    source: None = None,
    target: None = None,
    vocabularies: None = None,
    scores: Mapping[str, ScoreMaker] | None = None,
    device: str | torch.device = "auto",
    **settings: object,
) -> Model: ...


def build(
    kind: str,
    data: Data | None = None,
    *,
    num_tokens: int | tuple[int, int] | None = None,
    seed: int = 1,
    source: str | int | Sequence[str | int] | None = None,
    target: str | int | None = None,
    vocabularies: tuple[SourceCodec, TextCodec] | None = None,
    scores: Mapping[str, ScoreMaker] | None = None,
    device: str | torch.device = "auto",
    **settings: object,
) -> Translator | Model:
    """Returns an untrained model for some data: `regard.build("transformer", pairs, width=64)`.

    Without data, `regard.build("base", num_tokens=37_000)` returns the torch module alone, which reads and writes token ids.

    kind: a family ("rnn", "transformer", "decoder_only", "rnn_lm") or a preset ("tiny", "small", "base", "deep-shallow").
    data: pairs or texts, in any form that `regard.train` takes. The vocabularies are built from all of them, with the units
    that `regard.train` would choose.
    num_tokens: without data, the number of tokens of both vocabularies, or of source and target. If the source is a picture, a
    grid, frames or sound, the first is the number of numbers per pixel, cell or frame.
    settings: settings of the model and of the data by name, such as width=64 or source_unit="bpe".
    seed: of the initial weights.  source, target: the columns of the data (see `regard.train`).
    vocabularies: those of another model, (model.source, model.target), instead of new ones.
    scores, device: see `regard.train`.

    Raises UserError if the data or a setting is wrong, and TypeError for an unknown setting or one of training, or if there are
    neither data nor num_tokens.

    >>> model = regard.build("rnn", [("cab", "C A B"), ("ad", "A D")], width=16)
    >>> model.settings.width, model.source.pieces("cab")
    (16, ('c', 'a', 'b'))
    >>> module = regard.build("decoder_only", num_tokens=100, width=16, heads=2)
    >>> module(None, torch.tensor([[2, 4, 5]])).shape  # sentences, positions, logits
    torch.Size([1, 3, 100])
    """
    changes = {"model.kind": kind, "seed": seed, **keys_of(settings, "build")}
    for key in changes:
        if key.startswith("train."):
            raise TypeError(f"build() got the setting {key!r}, but it does not train; leave it out, or use regard.train")
    if data is None:
        _check_no_data(num_tokens, {"source": source, "target": target, "vocabularies": vocabularies}, changes)
        with python_words():
            return build_without_data(
                kind, cast("int | tuple[int, int]", num_tokens), changes, seed=seed, scores=scores, device=device
            )
    if num_tokens is not None:
        raise TypeError("build() got num_tokens, but the vocabularies follow from the data; leave out one of them")
    with _in_files(data, source, target, changes) as order, settings_restored():
        choice = choose(replace(order, scores=scores or {}), Start())
        chosen, root = choice.settings, folder_of(choice.settings.data.files)
        start = StartCodecs(*vocabularies) if vocabularies else StartCodecs()
        codecs = make_codecs(lambda what: stream(chosen.data), chosen.data, start, root)
        torch.manual_seed(seed)
        sizes = len(codecs.source), len(codecs.target)
        model = build_model(chosen.model, *sizes, scores, auxiliary=auxiliary_vocabulary_size(codecs.source))
        model.to(choose_device(device))
    recorded = chosen if are_files(given_data(data, "data")) else replace(chosen, data=replace(chosen.data, files=()))
    facts = {"settings": json.loads(json.dumps(asdict(recorded))), "header": list(choice.surveyed.counts.header)}
    card = f"# A model built by regard\n\n- Data: {choice.surveyed.counts.describe()}\n"
    return Translator.of_saved(Saved(model.eval(), chosen.model, *codecs, facts, card)).at(Path())


def _check_no_data(num_tokens: object, given: Mapping[str, object], changes: Mapping[str, object]) -> None:
    """Raises TypeError if the sizes of the vocabularies are missing, or if arguments only make sense with data."""
    if num_tokens is None:
        raise TypeError(
            'build() got no data; give pairs, or num_tokens for a model without texts: build("base", num_tokens=8000)'
        )
    needless = [name for name, value in given.items() if value is not None]
    needless += [key for key in changes if key.startswith("data.")]
    if needless:
        raise TypeError(f"build() got {', '.join(needless)}, but no data; give data, or leave {needless[0]} out")


def batches(
    model: Translator,
    data: Data,
    *,
    batch_tokens: int = 512,
    epochs: int | None = 1,
    seed: int = 1,
    source: str | int | Sequence[str | int] | None = None,
    target: str | int | None = None,
) -> Iterator[Batch]:
    """Yields batches of pairs on the device of the model. Each holds pairs of similar length.

    The order depends on the seed alone: it differs from epoch to epoch, and is that of `regard.train`, whose first batch is the
    largest one. The encoded pairs are held in memory.

    data: pairs, in any form that `regard.train` takes.
    batch_tokens: the maximum number of positions per side in a batch, padding included.
    epochs: the number of passes over the data; None for no end.
    source, target: the columns of the data (see `regard.train`).

    Raises UserError, once iteration starts, if the data cannot be read.

    >>> pairs = [("cab", "C A B"), ("ad", "A D"), ("bad", "B A D")]
    >>> model = regard.build("rnn", pairs, width=16)
    >>> [batch.num_targets for batch in regard.batches(model, pairs, epochs=2)]  # with <eos>
    [11, 11]
    """
    check_whole("batch_tokens", batch_tokens)
    if epochs is not None:
        check_whole("epochs", epochs)
    of_texts = model.reader.traits.learns_from == "texts"
    with _in_files(data, source, target, {"model.kind": model.settings.kind} if of_texts else {}) as order:
        chosen = Columns(tuple(order.reading["source_columns"]), order.reading["target_column"])
        if of_texts:
            pairs = tuple(TrainedOn.from_facts(model.training).texts(order.files, CorpusCounts(), model.normalisation))
        else:
            pairs = read_pairs(order.files, chosen, normalisation=model.normalisation).pairs
        reader = model.reader.at(order.files[0].parent)
        examples = encode_pairs(pairs, reader)
    updates = Batches(
        examples,
        BatchOrder(lengths(examples), batch_tokens=batch_tokens, seed=seed),
        source=reader.source.specials,
        target=reader.target.specials,
    )
    numbers = count() if epochs is None else range(epochs * updates.order.epoch_length)
    for number in numbers:
        for batch in updates(number):
            yield batch.to(model.device)


def loss(
    model: Translator,
    batch: Batch,
    *,
    label_smoothing: float = 0.0,
    policy_gradient: bool = True,
    entropy_bonus: float = 0.0,
    samples: int = 1,
    baseline: Literal["moving", "leave_one_out", "self_critical"] = "moving",
    doubly_stochastic: float = 0.0,
) -> Tensor:
    """Returns the mean loss per target token, with its gradient: cross-entropy, by teacher forcing.

    Call `model.train()` first, so that dropout is applied. The choices of hard and gated attention are then sampled, and the
    loss includes their policy gradient; the baseline "moving" is then the mean reward of the batch.

    label_smoothing, policy_gradient, entropy_bonus, samples, baseline, doubly_stochastic: as the settings of the same names.

    >>> pairs = [("cab", "C A B"), ("ad", "A D")]
    >>> model = regard.build("rnn", pairs, width=16).train()
    >>> for batch in regard.batches(model, pairs):
    ...     regard.loss(model, batch).backward()  # then optimiser.step() and optimiser.zero_grad()
    >>> all(parameter.grad is not None for parameter in model.parameters())
    True
    """
    settings = TrainSettings(
        label_smoothing=label_smoothing,
        policy_gradient=policy_gradient,
        entropy_bonus=entropy_bonus,
        samples=samples,
        baseline=baseline,
        doubly_stochastic=doubly_stochastic,
    )
    total, _ = batch_loss(model.model, batch, settings)
    return total / batch.num_targets


@contextmanager
def _in_files(
    data: Data, source: str | int | Sequence[str | int] | None, target: str | int | None, changes: Mapping[str, object]
) -> Iterator[Order]:
    """Yields an order of this data, in files; rows in memory are in a temporary folder. Errors name arguments of Python."""
    reading = {"source_columns": columns(source), "target_column": "".join(columns(target))}
    with tempfile.TemporaryDirectory(prefix="regard-") as folder, python_words({str(Path(folder) / DATA): "data"}):
        order = Order(data=given_data(data, "data"), out=Path(folder) / "model", reading=reading, changes=changes)
        yield order.in_files(RunFolder(Path(folder)), resuming=False)
