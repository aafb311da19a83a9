"""regard evaluate model texts.txt, for models that learned from texts."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from regard.errors import UserError, plural

if TYPE_CHECKING:
    from rich.console import Console

    from regard.pipeline import Translator


def evaluate_texts(console: "Console", folders: Sequence[Path], systems: "Sequence[Translator]", files: Sequence[Path]) -> None:
    """Prints the perplexity of texts, with confidence intervals and a signature. Several models are compared by a paired test.

    Raises UserError if the files hold no texts, if a text cannot be scored, or if a model does not learn from texts.
    """
    import torch

    from regard.checkpoint.folder import weights_digest
    from regard.cli.evaluate import describe_seen
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
    for line in describe_seen(folders, systems, texts):
        console.print(line)
    log_probs, tokens = zip(*(score_texts(system, texts) for system in systems), strict=True)
    unknown = sum(len(systems[0].target.unknown(text)) for text in texts)
    if unknown:
        console.print(f"symbols of the texts that are not in the vocabulary and count as <unk>: {unknown:,}")
    for measure in perplexities(texts, log_probs, tokens):
        console.print(str(measure))
    digests = [weights_digest(system.model)[:6] for system in systems]
    facts = {
        "data": f"{counts.name}:{text_fingerprint(texts)}",
        **dict(zip(("weights", "against"), digests, strict=False)),
        "counted": "tokens, words and characters, with the end of each text as one of them",
        "threads": torch.get_num_threads(),
    }
    console.print(f"\n{signature(facts)}")


def score_texts(system: "Translator", texts: Sequence[str]) -> tuple[list[float], list[int]]:
    """Returns the log-probability and the number of tokens of each text. Raises UserError if one cannot be scored."""
    from regard.results import Refused

    log_probs, tokens = [], []
    for number, scored in enumerate(system.score_each([""] * len(texts), texts), start=1):
        if isinstance(scored, Refused):  # without its longest texts, a test set would give too good a figure
            raise UserError(f"{plural(len(texts), 'text')}: number {number}: {scored.reason}")
        log_probs.append(scored.log_prob)
        tokens.append(len(scored.token_log_probs))
    return log_probs, tokens
