"""Hugging Face's Whisper (Radford et al. 2022): a folder with config.json, generation_config.json, model.safetensors (or an old
pytorch_model.bin), preprocessor_config.json, and tokenizer.json or vocab.json with merges.txt. It is read, not written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from regard.checkpoint.folder import Saved
from regard.contracts import Array, Specials
from regard.core.arrays import as_array
from regard.core.positions import tensor2tensor
from regard.data.documents import mapping
from regard.data.tokenizers.pretrained import PretrainedCodec
from regard.data.whisper import WhisperSounds
from regard.errors import UserError, shown
from regard.interop import ctranslate2
from regard.interop.huggingface import (
    ACTIVATIONS,
    CONFIG,
    OLD_WEIGHTS,
    WEIGHTS,
    licence_of,
    model_type,
    read_json,
    read_weights,
)
from regard.interop.library import optional
from regard.interop.model_bin import dequantised, read_model_bin
from regard.interop.names import Names, bart_modules, check_reasons
from regard.interop.opened import Opened, naming, num_layers
from regard.interop.proof import Ids, Peer
from regard.languages import Language, Languages
from regard.layers.frontends import WHISPER_POSITIONS
from regard.models.transformer import TransformerSettings

GENERATION, TOKENIZER, VOCABULARY, ADDED = "generation_config.json", "tokenizer.json", "vocab.json", "added_tokens.json"
PREPROCESSOR, PROCESSOR, MERGES = "preprocessor_config.json", "processor_config.json", "merges.txt"
READ = (
    CONFIG, WEIGHTS, OLD_WEIGHTS, GENERATION, TOKENIZER, VOCABULARY, ADDED, PREPROCESSOR, PROCESSOR, MERGES
)  # fmt: skip
"""The files of a folder that we read."""
NAMES = Names(
    bart_modules(
        "model.",
        {
            "model.encoder.conv1": "encoder.embedding.first",
            "model.encoder.conv2": "encoder.embedding.second",
            "model.encoder.embed_positions": "encoder.positions",
            "model.decoder.embed_tokens": "decoder.embedding.tokens",
            "proj_out": "decoder.embedding.tokens",
            "model.decoder.embed_positions": "decoder.embedding.learned.vectors",
        },
    )
)
"""Their names of modules, and ours. The positions of the encoder are no module of ours."""
MODEL, SPECIFICATION = "model.bin", b"WhisperSpec\0"
_NOT_HERE = ("encoder/embeddings_0", "decoder/projection")
CTRANSLATE2_NAMES = replace(
    ctranslate2.NAMES,
    modules={
        **{theirs: ours for theirs, ours in ctranslate2.NAMES.modules.items() if theirs not in _NOT_HERE},
        "encoder/conv1": "encoder.embedding.first",
        "encoder/conv2": "encoder.embedding.second",
        "encoder/position_encodings": "encoder.positions",
        "decoder/projection": "decoder.embedding.tokens",
    },
)
"""The names of CTranslate2, and ours."""
TOKENS, TABLE = "decoder.embedding.tokens.weight", "decoder.embedding.learned.vectors.weight"
CONVOLUTION = "encoder.embedding.first.weight"
EXPECTED = {"sampling_rate": 16_000, "n_fft": 400, "hop_length": 160, "dither": 0.0}
"""How all published models make frames of sound."""
ENGLISH_ONLY = 51_865
"""Models with fewer tokens write English only, if their files do not say it."""
SILENT = ("<|startofprev|>", "<|startoflm|>", "<|nospeech|>", "<|nocaptions|>")
"""Tokens that no text contains: the first is padding, the second is <unk>."""
NO_TIMES, FIRST_TIME = "<|notimestamps|>", "<|0.00|>"


def is_folder(path: Path) -> bool:
    """Whether a folder holds a Whisper model of Hugging Face."""
    return model_type(path) == "whisper"


def open_folder(folder: Path) -> Opened:
    """Reads a folder. Raises UserError with all reasons if our Transformer cannot represent the model."""
    config, generation = read_json(folder / CONFIG), read_json(folder / GENERATION, required=False)
    tensors = read_weights(folder)
    with naming(folder):
        frames = _frames(folder)
        check_reasons("our Transformer cannot represent this model", _obstacles(config, frames))
        weights = _weights(NAMES.to_ours(tensors))
        settings = _settings(weights, config)
        source = WhisperSounds(_bands(weights), frames.get("chunk_length", 30))
        names, merges = _vocabulary(folder, len(weights[TOKENS]))
        target = _codec(names, merges, {**config, **generation})
    return opened("whisper", folder, READ, settings, weights, source, target, config.get("max_source_positions", 1500))


def opened(
    format: str,
    folder: Path,
    read: Sequence[str],
    settings: TransformerSettings,
    weights: Mapping[str, Tensor],
    source: WhisperSounds,
    target: PretrainedCodec,
    positions: int,
) -> Opened:
    """Returns a model. read: the names of the files that were read.  positions: the number of those of its encoder."""
    if source.num_positions != positions:
        raise UserError(f"{folder}: it reads {source.longest} seconds, but its encoder has {positions} positions for them")
    files = tuple(folder / name for name in read if (folder / name).is_file())
    licence, languages = licence_of(folder), _languages(target)
    return Opened(format, folder, files, settings, weights, source, target, licence=licence, languages=languages)


def _frames(folder: Path) -> dict[str, Any]:
    """Returns how the folder says that sounds become frames."""
    joined = read_json(folder / PROCESSOR, required=False).get("feature_extractor")
    return mapping(joined, "feature_extractor") if joined else read_json(folder / PREPROCESSOR, required=False)


def _obstacles(config: Mapping[str, Any], frames: Mapping[str, Any]) -> list[str]:
    """Returns all reasons why our Transformer cannot represent a model."""
    reasons = []
    for what in ("attention_heads", "ffn_dim"):
        sizes = [config.get(f"{side}_{what}") for side in ("encoder", "decoder")]
        if sizes[0] != sizes[1] or type(sizes[0]) is not int:
            reasons.append(f"{what} is {sizes[0]} in the encoder and {sizes[1]} in the decoder, expected one number for both")
    if (activation := config.get("activation_function", "gelu")) not in ACTIVATIONS:
        reasons.append(f"its activation function is {shown(activation)}, expected one of {', '.join(ACTIVATIONS)}")
    if config.get("scale_embedding"):
        reasons.append("its embeddings are scaled (scale_embedding)")
    reasons += [
        f"{name} of its sounds is {shown(frames[name])}, expected {expected}"
        for name, expected in EXPECTED.items()
        if frames.get(name, expected) != expected
    ]
    return reasons


def _weights(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns complete weights under our names. Keys have no bias in Whisper, and the output has none."""
    positions_SD = weights.pop("encoder.positions.weight", None)
    for name in (TOKENS, CONVOLUTION, TABLE):
        if name not in weights:
            raise UserError(f"its weights have no {name}")
    sinusoids_SD = tensor2tensor(WHISPER_POSITIONS, weights[CONVOLUTION].shape[0])
    if positions_SD is not None:
        expected = sinusoids_SD[: len(positions_SD)]
        if expected.shape != positions_SD.shape or not torch.allclose(positions_SD.float(), expected, rtol=0, atol=2e-3):
            raise UserError("the positions of its encoder are not the sinusoids of Whisper")
        sinusoids_SD[: len(positions_SD)] = positions_SD
    weights["encoder.embedding.sinusoids"] = sinusoids_SD
    for name in [name for name in weights if name.endswith(".key.weight")]:
        weights.setdefault(name.removesuffix("weight") + "bias", torch.zeros(len(weights[name])))
    weights["decoder.output.bias"] = torch.zeros(len(weights[TOKENS]))
    return weights


def _bands(weights: Mapping[str, Tensor]) -> int:
    """Returns the number of mel bands that the first convolution reads."""
    if weights[CONVOLUTION].dim() != 3:
        raise UserError(f"{CONVOLUTION} has the shape {tuple(weights[CONVOLUTION].shape)}, expected three axes")
    return weights[CONVOLUTION].shape[1]


def _settings(weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> TransformerSettings:
    table_PD = weights[TABLE]
    return TransformerSettings(
        width=table_PD.shape[1],
        heads=config["encoder_attention_heads"],
        feed_forward=config["encoder_ffn_dim"],
        encoder_layers=num_layers(weights, "encoder"),
        decoder_layers=num_layers(weights, "decoder"),
        activation=ACTIVATIONS[config.get("activation_function", "gelu")],
        dropout=config.get("dropout", 0.0),
        tie="output",
        scale_embedding=False,
        positions="learned",
        max_positions=len(table_PD),
        frontend="whisper",
    )


# --- CTranslate2 (faster-whisper) -------------------------------------------------------------------------------------------


def is_ctranslate2(path: Path) -> bool:
    """Whether a folder holds a Whisper model of CTranslate2, as faster-whisper reads it."""
    try:
        with open(path / MODEL, "rb") as file:
            return file.read(6 + len(SPECIFICATION))[6:] == SPECIFICATION
    except OSError:
        return False


def open_ctranslate2(folder: Path) -> Opened:
    """Reads a folder of faster-whisper. Raises UserError with all reasons if our Transformer cannot represent the model."""
    file, config = read_model_bin(folder / MODEL), read_json(folder / CONFIG)
    with naming(folder):
        kinds = {what: file.flag(f"decoder/{what}") for what in ("num_heads", "pre_norm", "activation", "scale_embeddings")}
        heads, activation = int(kinds["num_heads"]), int(kinds["activation"])
        reasons = [
            *([f"pre_norm is {kinds['pre_norm']:g}, expected 1"] if kinds["pre_norm"] != 1 else []),
            *(["its embeddings are scaled"] if kinds["scale_embeddings"] else []),
            *([f"its activation has the number {activation}"] if activation not in range(len(ctranslate2.ACTIVATIONS)) else []),
            *([f"{heads} heads in the decoder, others in the encoder"] if file.flag("encoder/num_heads") != heads else []),
        ]
        check_reasons("our Transformer cannot represent this model", reasons)
        arrays = {name.removesuffix("/encodings") + "/weight" * name.endswith("/encodings"): value
                  for name, value in dequantised(file).items()}  # fmt: skip
        weights = _weights(CTRANSLATE2_NAMES.to_ours(arrays))
        shape = {"encoder_attention_heads": heads, "encoder_ffn_dim": len(weights["encoder.layers.0.feed_forward.0.bias"])}
        settings = replace(_settings(weights, shape), activation=ctranslate2.ACTIVATIONS[activation])
        positions = arrays["encoder/position_encodings/weight"].shape[0]
        names, merges = _vocabulary(folder, len(weights[TOKENS]))
        ids = {name: number for number, name in enumerate(names)}
        known = {
            "decoder_start_token_id": ids.get("<|startoftranscript|>"),
            "eos_token_id": ids.get("<|endoftext|>"),
            "suppress_tokens": config.get("suppress_ids"),
            "begin_suppress_tokens": config.get("suppress_ids_begin"),
        }
        source, target = WhisperSounds(_bands(weights), positions // 50), _codec(names, merges, known)
    return opened("whisper_ctranslate2", folder, (MODEL, CONFIG, TOKENIZER), settings, weights, source, target, positions)


# --- tokens ------------------------------------------------------------------------------------------------------------------


def _vocabulary(folder: Path, size: int) -> tuple[list[str], list[tuple[str, str]]]:
    """Returns the tokens by id, and the merges. size: the number of rows of the embedding."""
    if (folder / TOKENIZER).is_file():
        content = read_json(folder / TOKENIZER)
        model = mapping(content.get("model"), "model")
        ids = {**mapping(model.get("vocab"), "vocab"), **{one["content"]: one["id"] for one in content.get("added_tokens", [])}}
        merges = [tuple(pair.split(" ") if isinstance(pair, str) else pair) for pair in model.get("merges", [])]
    else:
        ids = {**read_json(folder / VOCABULARY), **read_json(folder / ADDED, required=False)}
        if not (folder / MERGES).is_file():
            raise UserError(f"it has neither {TOKENIZER} nor {MERGES}, expected one of them")
        lines = (folder / MERGES).read_text(encoding="utf-8").split("\n")
        merges = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    tokens = {number: name for name, number in ids.items() if type(number) is int and 0 <= number < size}
    if len(tokens) < len(ids) or _wrong_pairs(merges):
        raise UserError(f"its tokens do not have ids from 0 to {size - 1:,}, one each, or its merges are no pairs of tokens")
    if NO_TIMES in ids:  # old folders leave out the tokens of points in time, which follow
        first = ids[NO_TIMES] + 1
        tokens |= {first + step: f"<|{step / 50:.2f}|>" for step in range(1501) if first + step < size}
    return [tokens.get(number, f"<unused {number}>") for number in range(size)], [(pair[0], pair[1]) for pair in merges]


def _wrong_pairs(merges: Sequence[Sequence[str]]) -> bool:
    """Whether any of these is not a pair of strings."""
    return any(len(pair) != 2 or not all(isinstance(part, str) for part in pair) for pair in merges)


def _codec(names: list[str], merges: list[tuple[str, str]], given: Mapping[str, Any]) -> PretrainedCodec:
    """Returns the codec of the outputs, which start with the language, the task, and that no points in time are written."""
    ids = {name: number for number, name in enumerate(names)}
    control = [
        number for number, name in enumerate(names) if name.startswith(("<|", "<unused ")) and name.endswith(("|>", ">"))
    ]

    def known(values: Any) -> tuple[int, ...]:
        return tuple(value for value in values or () if type(value) is int and 0 <= value < len(names))

    def number(name: str) -> int:
        if not known([given.get(name)]):
            raise UserError(f"{CONFIG}: {name} is {shown(given.get(name))}, expected the id of one of {len(names):,} tokens")
        return int(given[name])

    silent = [ids[name] for name in SILENT if name in ids and ids[name] != number("eos_token_id")]
    if len(silent) < 2:
        raise UserError(f"its vocabulary has none of the tokens {', '.join(SILENT)}")
    never = dict.fromkeys((*known(given.get("suppress_tokens")), silent[0], *_unused(names)))
    specials = Specials(
        pad=silent[0],
        unk=silent[1],
        start=number("decoder_start_token_id"),
        eos=number("eos_token_id"),
        prefix=_prefix(ids, given),
        never=tuple(never),
        never_first=known(given.get("begin_suppress_tokens")),
    )
    return PretrainedCodec("bytes", names, specials, merges=merges, control=control)


def _unused(names: Sequence[str]) -> list[int]:
    return [number for number, name in enumerate(names) if name.startswith("<unused ")]


def _prefix(ids: Mapping[str, int], given: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns the tokens that every output starts with."""
    end = (ids[NO_TIMES],) if NO_TIMES in ids else ()
    if not given.get("is_multilingual", len(ids) >= ENGLISH_ONLY):
        return end
    forced = {pair[0]: pair[1] for pair in given.get("forced_decoder_ids") or () if isinstance(pair, list) and len(pair) == 2}
    language = str(given.get("language") or "en").strip("<|>")
    first = forced.get(1) if type(forced.get(1)) is int else ids.get(f"<|{language}|>")
    task = ids.get(f"<|{given.get('task') or 'transcribe'}|>")
    if type(first) is not int or not 0 <= first < len(ids) or task is None:
        raise UserError(f"its vocabulary has no token <|{language}|> for the language, or none for the task")
    return (first, task, *end)


def hearing(saved: Saved, languages: Languages) -> Saved:
    """Returns a model with these languages. The outputs of Whisper start with a token for the language that
    it hears: the first of these.

    Raises UserError if it does not know the language.
    """
    target = saved.target
    if not isinstance(target, PretrainedCodec) or not isinstance(saved.source, WhisperSounds) or not languages.source:
        return replace(saved, languages=languages)
    token = f"<|{languages.source[0].code}|>"
    if token not in target.names or len(target.specials.prefix) < 2:
        raise UserError(f"this Whisper model does not know the language {languages.source[0].code}: it has no token {token}")
    prefix = (target.names.index(token), *target.specials.prefix[1:])
    specials = replace(target.specials, prefix=prefix)
    saved.model.specials = specials
    codec = PretrainedCodec(target.form, target.names, specials, merges=target.merges, control=sorted(target.control))
    return replace(saved, target=codec, languages=languages)


def _languages(target: PretrainedCodec) -> Languages:
    code = target.names[target.specials.prefix[0]].strip("<|>") if len(target.specials.prefix) > 1 else "en"
    return Languages((Language.parse(code),), (Language.parse(code),))


# --- their side --------------------------------------------------------------------------------------------------------------


class CTranslate2WhisperPeer:
    """A folder, run by CTranslate2. Sources are frames, two in each row (S, 2 · bands)."""

    def __init__(self, folder: Path, library: Any, opened: Saved) -> None:
        self.name, self.specials, self.library = f"ctranslate2 {library.__version__}", opened.target.specials, library
        self.counted = np.arange(self.specials.eos)
        """Its log-probabilities are shares of these: the tokens of texts, which precede <|endoftext|>."""
        self.model = library.models.Whisper(str(folder), compute_type="float32", intra_threads=torch.get_num_threads())

    def _view(self, source: Array) -> Any:
        return self.library.StorageView.from_array(_features(source))

    def forced(self, sources: Sequence[Array], targets: Sequence[Ids]) -> list[Array]:
        """Returns the log-probabilities of the tokens of the text. The library itself adds <|notimestamps|> and <eos>."""
        outputs, prefix = [], self.specials.prefix
        for source, target in zip(sources, targets, strict=True):
            text = list(target[len(prefix) : -1])
            (found,) = self.model.align(self._view(source), [self.specials.start, *prefix[:-1]], [text], len(source))
            outputs.append(np.log(np.array(found.text_token_probs)))
        return outputs

    def greedy(self, sources: Sequence[Array], most: int) -> list[list[int]]:
        specials, outputs = self.specials, []
        prompt = [specials.start, *specials.prefix]
        for source in sources:
            (found,) = self.model.generate(
                self._view(source),
                [prompt],
                beam_size=1,
                max_length=max(2 * most, len(prompt) + most),  # outputs take at most half of it
                suppress_blank=bool(specials.never_first),
                suppress_tokens=[-1],
            )
            outputs.append([*specials.prefix, *found.sequences_ids[0]])
        return outputs


def ctranslate2_peer(folder: Path, opened: Saved) -> Peer | None:
    """Returns the folder as CTranslate2 runs it; None if it is not installed."""
    library = optional("ctranslate2")
    return None if library is None else CTranslate2WhisperPeer(folder, library, opened)


class WhisperPeer:
    """A folder, run by transformers. Sources are frames, two in each row (S, 2 · bands)."""

    def __init__(self, folder: Path, library: Any, opened: Saved) -> None:
        self.name, self.specials, self.library = f"transformers {library.__version__}", opened.target.specials, library
        library.utils.logging.set_verbosity_error()
        library.utils.logging.disable_progress_bar()
        whisper = library.WhisperForConditionalGeneration
        self.model = whisper.from_pretrained(folder, local_files_only=True, dtype=torch.float32).eval()

    @torch.no_grad()
    def forced(self, sources: Sequence[Array], targets: Sequence[Ids]) -> list[Array]:
        return [
            as_array(
                self.model(
                    input_features=torch.from_numpy(_features(source)),
                    decoder_input_ids=torch.tensor([[self.specials.start, *target[:-1]]]),
                )
                .logits[0]
                .log_softmax(-1)
            )
            for source, target in zip(sources, targets, strict=True)
        ]

    @torch.no_grad()
    def greedy(self, sources: Sequence[Array], most: int) -> list[list[int]]:
        specials, outputs = self.specials, []
        config = self.library.GenerationConfig(
            suppress_tokens=list(specials.never) or None,
            begin_suppress_tokens=list(specials.never_first) or None,
            eos_token_id=specials.eos,
            pad_token_id=specials.eos,
            decoder_start_token_id=specials.start,
            max_new_tokens=most,
        )
        for source in sources:
            written = self.library.GenerationMixin.generate(
                self.model,
                torch.from_numpy(_features(source)),
                generation_config=config,
                decoder_input_ids=torch.tensor([[specials.start, *specials.prefix]]),
            )[0].tolist()[1:]
            outputs.append(written[: written.index(specials.eos)] if specials.eos in written else written)
        return outputs


def _features(rows: Array) -> Array:
    """Returns frames as both libraries take them, (1, bands, S)."""
    return np.ascontiguousarray(rows.reshape(-1, rows.shape[1] // 2).T)[None]


def peer(folder: Path, opened: Saved) -> Peer | None:
    """Returns the folder as transformers runs it; None if it is not installed."""
    library = optional("transformers")
    return None if library is None else WhisperPeer(folder, library, opened)
