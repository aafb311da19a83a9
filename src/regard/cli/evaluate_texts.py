"""regard evaluate model texts.txt, for models that learned from texts."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from regard.errors import UserError, plural

if TYPE_CHECKING:
    from rich.console import Console

    from regard.pipeline import Translator


def evaluate_texts(
    console: "Console",
    folders: Sequence[Path],
    systems: "Sequence[Translator]",
    files: Sequence[Path],
    describe_seen: Callable[[Sequence[str]], Iterable[str]],
) -> None:
    """Prints the perplexity of texts, with confidence intervals and a signature. Several models are compared by a paired test.

    describe_seen: returns a line for each model that was trained on some of these texts.

    Raises UserError if the files hold no texts, if a text cannot be scored, or if a model does not learn from texts.
    """
    import torch

    from regard.checkpoint.folder import weights_digest
    from regard.data.counts import CorpusCounts
    from regard.data.trained import TrainedOn
    from regard.evaluation import perplexities
    from regard.signatures import signature, text_fingerprint

    for folder, system in zip(folders, systems, strict=True):
        if system.reader.traits.learns_from != "texts":
            raise UserError(f"{folder} reads a source, so it cannot be compared with a language model; compare similar models")
    counts = CorpusCounts()
    trained = TrainedOn.from_facts(systems[0].training)
    texts = [pair.target for pair in trained.texts(files, counts, systems[0].normalisation)]
    console.print(counts.describe())
    for line in describe_seen(texts):
        console.print(line)
    log_probs, tokens = zip(*(score_texts(system, texts) for system in systems), strict=True)
    unknown = sum(len(systems[0].target.unknown(text)) for text in texts)
    if unknown:
        console.print(f"symbols of the texts that are not in the vocabulary and count as <unk>: {unknown:,}")
    masks = [system.reader.traits.mask for system in systems]
    for measure in perplexities(texts, log_probs, tokens)[: 1 if any(masks) else None]:
        console.print(str(measure))
    digests = [weights_digest(system.model)[:6] for system in systems]
    facts = {
        "data": f"{counts.name}:{text_fingerprint(texts)}",
        **dict(zip(("weights", "against"), digests, strict=False)),
        **({"masked": masks[0]} if any(masks) else {"counted": "the end of each text is a token, a word and a character, too"}),
        "threads": torch.get_num_threads(),
    }
    console.print(f"\n{signature(facts)}")


def score_texts(system: "Translator", texts: Sequence[str]) -> tuple[list[float], list[int]]:
    """Returns the log-probability and the number of tokens of each text; those of its missing tokens if the model fills blanks.
    Raises UserError if a text cannot be scored."""
    from regard.results import Refused

    if system.reader.traits.mask:
        return score_blanks(system, texts)
    log_probs, tokens = [], []
    for number, scored in enumerate(system.score_each([""] * len(texts), texts), start=1):
        if isinstance(scored, Refused):  # without its longest texts, a test set would give too good a figure
            raise UserError(f"{plural(len(texts), 'text')}: number {number}: {scored.reason}")
        log_probs.append(scored.log_prob)
        tokens.append(len(scored.token_log_probs))
    return log_probs, tokens


def score_blanks(system: "Translator", texts: Sequence[str]) -> tuple[list[float], list[int]]:
    """Masks some tokens of each text, always the same ones; returns their log-probability and their number."""
    from random import Random

    from regard.data.batch import Example
    from regard.data.blanks import masked
    from regard.data.seeds import derived_seed

    reader, rows = system.reader, [Example([], system.target.encode(text)) for text in texts]
    fraction, specials = reader.traits.mask, system.target.specials
    examples = [
        masked(row, fraction, Random(derived_seed(0, "mask", text)), specials) for row, text in zip(rows, texts, strict=True)
    ]
    requests = [
        reader.segment(text, line=number, row=example.source).request
        for number, (text, example) in enumerate(zip(texts, examples, strict=True))
    ]
    found = {forced.id: forced for forced in system.engine.force(requests, [(*row.target, specials.eos) for row in rows])}
    log_probs = []
    for number, example in enumerate(examples):
        if found[number].error:
            raise UserError(f"{plural(len(texts), 'text')}: number {number + 1}: {found[number].error}")
        scores = zip(found[number].token_log_probs, example.target, strict=False)
        log_probs.append(sum(log_prob for log_prob, token in scores if token != specials.pad))
    return log_probs, [len(example.target) - example.target.count(specials.pad) for example in examples]
