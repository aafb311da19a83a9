"""A whole run: pairs in, a trained and measured model out."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import torch
from rich.console import Console

from regard.checkpoint.folder import Saved, weights_digest
from regard.contracts import Result
from regard.data.batch import encode_pairs, endless_batches
from regard.data.corpus import Pair
from regard.data.tokenizers.codec import Codec
from regard.evaluation import ErrorRates, error_rates, signature
from regard.layers.scores import ScoreMaker
from regard.models.build import Model, build, num_parameters
from regard.pipeline import Translator
from regard.training.loop import train
from regard.training.record import progress
from regard.training.settings import RunSettings
from regard.training.transfer import Transfer, start_encoder


@dataclass(frozen=True)
class Answered:
    """One held-out source with all its references and what the model made of it."""

    source: str
    references: tuple[str, ...]
    reference_tokens: tuple[tuple[str, ...], ...]
    result: Result

    @property
    def right(self) -> bool:
        return self.result.tokens in self.reference_tokens


@dataclass(frozen=True)
class Trained:
    saved: Saved
    translator: Translator
    answers: list[Answered]
    rates: ErrorRates
    signature: str


def run(
    name: str,
    training: Sequence[Pair],
    held_out: Sequence[Pair],
    settings: RunSettings,
    console: Console,
    device: torch.device,
    scores: Mapping[str, ScoreMaker] | None = None,
    transfer: Transfer | None = None,
) -> Trained:
    """Learns from `training`, then reads `held_out` once. `name` is what the data is called in the signature.

    `scores` holds score functions of the user's own; `transfer` a model whose encoder starts this one.
    """
    source = transfer.saved.source if transfer else Codec.learn((pair.source for pair in training), settings.data.source)
    target = Codec.learn((pair.target for pair in training), settings.data.target)
    torch.manual_seed(settings.seed)
    model = build(settings.model, len(source), len(target), scores).to(device)
    console.print(
        f"{settings.model.kind} with {num_parameters(model):,} parameters; {len(training):,} pairs to learn from, "
        f"{len(held_out):,} held out; {len(source)} source {settings.data.source}, {len(target)} target {settings.data.target}"
    )
    if transfer:
        report_transfer(model, transfer, training, console)
    batches = endless_batches(
        encode_pairs(training, source, target), batch_tokens=settings.train.batch_tokens, seed=settings.seed
    )
    with progress(console, settings.train.steps) as record:
        train(model, batches, settings.train, seed=settings.seed, record=record)

    translator = Translator(model, source, target, device)
    max_length = 2 * max(len(target.encode(pair.target)) for pair in training) + 10
    answers = answer(translator, held_out, max_length)
    num_stopped = sum(not answered.result.finished for answered in answers)
    if num_stopped:
        console.print(
            f"{num_stopped:,} of {len(answers):,} outputs did not come to an end and were stopped at {max_length} tokens"
        )
    unknown = {symbol for answered in answers for symbol in answered.result.unknown}
    if unknown:
        console.print(
            f"symbols of held-out sources that do not occur in those that were learnt from: {' '.join(sorted(unknown))}"
        )
    rates = error_rates([answered.result.tokens for answered in answers], [answered.reference_tokens for answered in answers])
    facts = {
        "data": f"{name}:{fingerprint(held_out)}",
        "learnt-from": fingerprint(training),
        "search": f"greedy,max_length={max_length}",
        "steps": settings.train.steps,
        "seed": settings.seed,
        "threads": torch.get_num_threads(),
        "weights": weights_digest(model)[:6],
    }
    signed = signature(facts)
    training_facts = {
        "signature": signed,
        "settings": asdict(settings),
        "symbol_error_rate": rates.symbol,
        "word_error_rate": rates.word,
    }
    saved = Saved(model, settings.model, source, target, training_facts, card(name, training, rates, signed))
    return Trained(saved, translator, answers, rates, signed)


def report_transfer(model: Model, transfer: Transfer, training: Sequence[Pair], console: Console) -> None:
    number = start_encoder(model, transfer)
    console.print(f"{number:,} of them come from another encoder" + (" and stay as they are" if transfer.freeze else ""))
    codec = transfer.saved.source
    known = set(codec.tokens(range(len(codec))))
    unknown = Counter(piece for pair in training for piece in codec.pieces(pair.source) if piece not in known)
    if unknown:
        most = " ".join(symbol for symbol, _ in unknown.most_common(10))
        console.print(f"{unknown.total():,} source symbols that this encoder never met: {most}")


def answer(translator: Translator, pairs: Sequence[Pair], max_length: int) -> list[Answered]:
    """Translates every distinct source once; all its targets count as references."""
    references: dict[str, list[str]] = {}
    for pair in pairs:
        references.setdefault(pair.source, []).append(pair.target)
    results = translator.batch(list(references), max_length=max_length)
    codec = translator.target
    return [
        Answered(text, tuple(known), tuple(codec.tokens(codec.encode(one)) for one in known), result)
        for (text, known), result in zip(references.items(), results, strict=True)
    ]


def fingerprint(pairs: Sequence[Pair]) -> str:
    """Six letters that change when the data does."""
    return hashlib.sha256("\n".join("\t".join(pair) for pair in pairs).encode()).hexdigest()[:6]


def card(name: str, training: Sequence[Pair], rates: ErrorRates, signed: str) -> str:
    return (
        f"# A model trained by regard\n\n- Data: {name}, {len(training):,} pairs\n- Held out: {rates}\n- Signature: {signed}\n"
        "- Licence: that of the data, as far as it reaches; say it here before you pass the model on\n"
    )
