"""ONNX for transformers.js and Optimum: onnx/encoder_model.onnx, onnx/decoder_model_merged.onnx, and the files of a Hugging
Face folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from regard.checkpoint.files import write
from regard.checkpoint.folder import Saved
from regard.contracts import Array
from regard.data.tokenizers.sentencepieces import SentencePieces
from regard.data.tokenizers.spm import BYTE, NORMAL, USER_DEFINED, read_spm
from regard.interop import marian
from regard.interop.exports import Export
from regard.interop.library import require
from regard.interop.proof import Ids, Peer
from regard.models.transformer import TransformerSettings

ENCODER, DECODER = "onnx/encoder_model.onnx", "onnx/decoder_model_merged.onnx"
"""The files that transformers.js looks for."""
TOKENIZER = "tokenizer.json"
UNREACHED = -1000.0
"""The score of tokens that no text is split into."""


def is_folder(path: Path) -> bool:
    """Whether a folder holds an export in ONNX."""
    return (path / ENCODER).is_file()


def refused(saved: Saved) -> list[str]:
    """Returns the reasons why a model cannot be written in this format, beyond those of all exports."""
    reasons, source, target = marian.refused_as_tokens(saved), saved.source, saved.target
    if isinstance(source, SentencePieces) and isinstance(target, SentencePieces):
        if source.vocabulary != target.vocabulary:
            reasons.append("it has two vocabularies, expected one for both sides (data.shared=true)")
        if read_spm(source.spm).algorithm != "unigram":
            reasons.append("its SentencePiece model merges pairs (sentencepiece_bpe), expected the unit sentencepiece")
    return reasons


def write_folder(folder: Path, export: Export) -> tuple[str, ...]:
    """Writes the files of a model into a folder. Returns the names of those with weights."""
    require("onnx", "writing ONNX")
    from regard.interop.onnx_graph import decoder_graph, encoder_graph

    (folder / "onnx").mkdir()
    weights = {name: value.contiguous() for name, value in export.weights.items()}
    write(folder / ENCODER, encoder_graph(weights, export.settings).SerializeToString())
    write(folder / DECODER, decoder_graph(weights, export.settings, len(export.saved.target)).SerializeToString())
    marian.write_descriptions(folder, export)
    assert isinstance(export.saved.source, SentencePieces)
    write(folder / TOKENIZER, _tokenizer(export.saved.source).encode())
    return ENCODER, DECODER


def _tokenizer(codec: SentencePieces) -> str:
    """Returns the tokenizer.json that transformers.js reads: the pieces with their scores, and a score below all others for
    tokens that no text is split into. What the tokenizers library splits otherwise than SentencePiece, it splits otherwise
    here, too; the other files are for those who read SentencePiece."""
    contents = read_spm(codec.spm)
    scores = {
        piece: score
        for piece, score, kind in zip(contents.pieces, contents.scores, contents.types, strict=True)
        if kind in (NORMAL, USER_DEFINED)
    }
    eos, names = codec.vocabulary[codec.specials.eos], codec.vocabulary
    tokenizer = Tokenizer(
        models.Unigram([(name, scores.get(name, UNREACHED)) for name in names], codec.specials.unk, BYTE in contents.types)
    )
    steps = [normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), " ")]
    tokenizer.normalizer = normalizers.Sequence(([normalizers.Precompiled(contents.table)] if contents.table else []) + steps)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace("▁", prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace("▁", prepend_scheme="always")
    tokenizer.post_processor = processors.TemplateProcessing(f"$A {eos}", special_tokens=[(eos, codec.specials.eos)])
    tokenizer.add_special_tokens([names[number] for number in sorted(codec.specials.ids)])
    return str(tokenizer.to_str())


class OnnxPeer:
    """An export, run by onnxruntime: whole outputs in the first branch of the decoder, and step by step with its cache."""

    def __init__(self, folder: Path, library: Any, saved: Saved) -> None:
        self.name, self.specials = f"onnxruntime {library.__version__}", saved.target.specials
        assert isinstance(saved.settings, TransformerSettings)
        self.settings = saved.settings
        options = library.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.encoder, self.decoder = (
            library.InferenceSession(str(folder / name), options, providers=["CPUExecutionProvider"])
            for name in (ENCODER, DECODER)
        )

    def forced(self, sources: Sequence[Ids], targets: Sequence[Ids]) -> list[Array]:
        found = []
        for source, target in zip(sources, targets, strict=True):
            logits_TV = self._run(self._encoded(source), [self.specials.start, *target[:-1]], self._empty(), False)[0][0]
            found.append(logits_TV - np.logaddexp.reduce(logits_TV, axis=1, keepdims=True))
        return found

    def greedy(self, sources: Sequence[Ids], most: int) -> list[list[int]]:
        return [self._greedy(source, most) for source in sources]

    def _greedy(self, source: Ids, most: int) -> list[int]:
        memory, cache, ids, last = self._encoded(source), self._empty(), list[int](), self.specials.start
        for number in range(most):
            logits, *cache = self._run(memory, [last], cache, number > 0)
            last = int(logits[0, -1].argmax())
            if last == self.specials.eos:
                return ids
            ids.append(last)
        return ids

    def _encoded(self, source: Ids) -> Array:
        ids = np.array([[*source, *self.specials.source_end]])
        hidden: Array = self.encoder.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})[0]
        return hidden

    def _empty(self) -> list[Array]:
        shape = (1, self.settings.heads, 0, self.settings.head_width)
        return [np.zeros(shape, np.float32) for _ in range(4 * self.settings.decoder_layers)]

    def _run(self, memory: Array, ids: Ids, cache: Sequence[Array], use_cache: bool) -> list[Array]:
        names = [one.name for one in self.decoder.get_inputs() if one.name.startswith("past_key_values")]
        given = {
            "encoder_attention_mask": np.ones(memory.shape[:2], np.int64),
            "input_ids": np.array([list(ids)]),
            "encoder_hidden_states": memory,
            "use_cache_branch": np.array([use_cache]),
            **dict(zip(names, cache, strict=True)),
        }
        outputs: list[Array] = self.decoder.run(None, given)
        return outputs


def peer(folder: Path, saved: Saved) -> Peer | None:
    """Returns an export as onnxruntime runs it. Raises UserError if it is not installed, since nothing else could prove it."""
    return OnnxPeer(folder, require("onnxruntime", "proving an export in ONNX"), saved)
