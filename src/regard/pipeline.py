"""Text in, text out: a model with its two vocabularies and an engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from regard.contracts import AttentionMap, Engine, Hypothesis, Kind, Look, Result, SearchOptions, Seq2Seq, Tap
from regard.data.batch import source_batch
from regard.data.tokenizers.codec import EOS, PAD, SOS, SPECIALS, UNK, Codec
from regard.decoding.search import TorchEngine
from regard.errors import UserError, did_you_mean

BATCH_SENTENCES = 128


@dataclass(frozen=True)
class Translator:
    """Call it with a text, or `batch` with many; keywords are those of SearchOptions."""

    model: Seq2Seq
    source: Codec
    target: Codec
    device: torch.device

    def __call__(self, text: str, **options: Any) -> Result:
        return self.batch([text], **options)[0]

    def batch(self, texts: Sequence[str], **options: Any) -> list[Result]:
        """One result per text, in the same order."""
        if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
            raise TypeError(f"batch takes a list of texts, got {texts!r:.60}; for one text call the model itself")
        search = _search_options(options)
        encoded = [self.source.encode(text) for text in texts]
        results = {index: self._nothing(texts[index]) for index, ids in enumerate(encoded) if not ids}
        order = sorted(set(range(len(texts))) - results.keys(), key=lambda index: len(encoded[index]))
        chunks = [order[start : start + BATCH_SENTENCES] for start in range(0, len(order), BATCH_SENTENCES)]
        sources = [source_batch([encoded[index] for index in chunk]).to(self.device) for chunk in chunks]
        for event in self._engine().generate(sources, search):
            if event.hypotheses:
                index = order[event.sentence]
                results[index] = self._result(texts[index], event.hypotheses)
        return [results[index] for index in range(len(texts))]

    def _engine(self) -> Engine:
        return TorchEngine(self.model, sos=SOS, eos=EOS, never=(PAD, UNK, SOS))

    def _nothing(self, text: str) -> Result:
        """A text without a token stays empty; no model is asked."""
        return self._result(text, (Hypothesis((), log_prob=0.0, rank_score=0.0, finished=True),))

    def _result(self, text: str, hypotheses: tuple[Hypothesis, ...]) -> Result:
        best = hypotheses[0]
        return Result(
            text=self.target.decode(best.ids),
            tokens=self.target.tokens(best.ids),
            source_tokens=self.source.pieces(text),
            log_prob=best.log_prob,
            rank_score=best.rank_score,
            finished=best.finished,
            n_best=tuple((self.target.decode(one.ids), one.log_prob) for one in hypotheses),
            unknown=self.source.unknown(text),
            map_attention=partial(self._attention, text, best),
        )

    @torch.no_grad()
    def _attention(self, text: str, output: Hypothesis, kind: Kind, layer: int) -> AttentionMap:
        """One forced pass over an output. Row t holds the weights of the step that wrote token t; the last one wrote <eos>."""
        look = Look(taps=(Tap(kind, layer),))
        written = (*output.ids, EOS) if output.finished else output.ids
        memory = self.model.encode(source_batch([self.source.encode(text)]).to(self.device), look)
        read = torch.tensor([[SOS, *written[:-1]]], device=self.device)
        seen = memory.seen + self.model.decode(read, memory, look).seen
        if not seen:
            raise UserError(
                f"this model has no {kind} attention; models that look at their source have kind cross, "
                "Transformers encoder and decoder too"
            )
        source, target = (*self.source.pieces(text), SPECIALS[EOS]), self.target.tokens(written)
        rows = source if kind == "encoder" else target
        columns = (SPECIALS[SOS], *target[:-1]) if kind == "decoder" else source
        return AttentionMap(seen[0].weights_BHTS[0], columns, rows, kind, seen[0].layer)


def _search_options(options: dict[str, Any]) -> SearchOptions:
    known = list(SearchOptions.__dataclass_fields__)
    for name in options:
        if name not in known:
            raise TypeError(f"unknown search option {name!r}; expected one of {', '.join(known)}{did_you_mean(name, known)}")
    return SearchOptions(**options)
