"""Speed of decoding: regard with native steps and with torch's, Hugging Face's `generate` and CTranslate2, with the same
weights and the same sentences.

    python benchmarks/decoding.py MODEL SENTENCES REFERENCES [sentences]

MODEL is the folder of a Transformer (pre- or post-norm, sinusoidal positions); SENTENCES and REFERENCES are text files, plain
or .gz, with one sentence per line. Each system translates all of them on two threads with a beam of 1 and of 5, and then one
by one on one thread. Systems take turns, each in a separate process, because CTranslate2, for one, sets the number of threads
of the process that loads it. The median of three rounds is reported. Input and output are ids: no time includes a tokenizer.

All systems compute the same function: Marian is post-norm, so for a pre-norm model Hugging Face runs MBart, whose layers are
pre-norm; its learned positions are filled with sinusoids. The share of identical outputs is printed.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import sacrebleu
import torch
from dated import write_result
from torch import Tensor

from regard.checkpoint.folder import Saved, load
from regard.contracts import OWN, Request
from regard.core.devices import keep_freed_memory
from regard.core.positions import sinusoidal
from regard.data.batch import source_batch
from regard.data.lines import read_lines
from regard.decoding import schedule
from regard.decoding.torch_search import BATCH_HYPOTHESES
from regard.models.transformer import Transformer, TransformerSettings
from regard.options import EngineName, SearchOptions
from regard.pipeline import Translator

Ids = list[int]
System = Callable[[Sequence[Ids], int], list[Ids]]
"""(sources, beam) -> the best outputs, in the same order."""

MAX_LENGTH = 64
THREADS = 2
ROUNDS = 3
BATCH = 64
"""Sentences per batch, for the systems that need this number; all systems sort by length."""

EOS, PAD, SOS, UNK = OWN.eos, OWN.pad, OWN.start, OWN.unk


def ours(saved: Saved, engine: EngineName) -> System:
    keep_freed_memory()  # as `regard translate` does
    translator = Translator.of_model(saved.model, saved.source, saved.target, engine=engine)

    def run(sources: Sequence[Ids], beam: int) -> list[Ids]:
        options = SearchOptions(beam=beam, max_length=MAX_LENGTH, length_penalty=0.0)
        requests = [
            Request(number, ids, options, num_positions=len(ids), limit=MAX_LENGTH) for number, ids in enumerate(sources)
        ]
        workers = translator.workers()
        try:
            events = schedule.run(translator.engine, requests, workers, window=len(requests))
            found = {event.id: list(event.hypotheses[0].ids) for event in events if event is not None}
        finally:
            if workers is not None:
                workers.close()
        return [found[number] for number in range(len(sources))]

    return run


# --- Hugging Face ------------------------------------------------------------------------------------------------------------

PARTS = {"attention": "self_attn", "cross": "encoder_attn"}
LINEARS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}


def hf_name(name: str) -> str:
    """Returns the name that MBart and Marian use for a parameter of regard."""
    side, *path = name.split(".")
    match path:
        case ["embedding", "tokens", kind]:
            return f"model.{side}.embed_tokens.{kind}"
        case ["norm", kind]:
            return f"model.{side}.layer_norm.{kind}"
        case ["layers", number, "feed_forward", index, kind]:
            return f"model.{side}.layers.{number}.{'fc1' if index == '0' else 'fc2'}.{kind}"
        case ["layers", number, "around_feed_forward", "norm", kind]:
            return f"model.{side}.layers.{number}.final_layer_norm.{kind}"
        case ["layers", number, around, "norm", kind]:
            return f"model.{side}.layers.{number}.{PARTS[around.removeprefix('around_')]}_layer_norm.{kind}"
        case ["layers", number, part, linear, kind]:
            return f"model.{side}.layers.{number}.{PARTS[part]}.{LINEARS[linear]}.{kind}"
    raise ValueError(f"unknown parameter {name!r}")


def hugging_face(saved: Saved) -> System:
    from transformers import GenerationConfig, MarianConfig, MarianMTModel, MBartConfig, MBartForConditionalGeneration

    settings = saved.settings
    assert isinstance(settings, TransformerSettings)
    pre = settings.norm_order == "pre"
    sizes = {
        "d_model": settings.width,
        "encoder_layers": settings.encoder_layers,
        "decoder_layers": settings.decoder_layers,
        "encoder_attention_heads": settings.heads,
        "decoder_attention_heads": settings.heads,
        "encoder_ffn_dim": settings.feed_forward,
        "decoder_ffn_dim": settings.feed_forward,
        "activation_function": {"gelu_tanh": "gelu_new"}.get(settings.activation, settings.activation),
        "max_position_embeddings": 512,
        "scale_embedding": True,
        "pad_token_id": PAD,
        "bos_token_id": SOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": SOS,
        "forced_eos_token_id": None,
        "tie_word_embeddings": False,
    }
    top = max(len(saved.source), len(saved.target))
    config = MBartConfig(vocab_size=top, **sizes) if pre else MarianConfig(vocab_size=top, decoder_vocab_size=top, **sizes)
    model = (MBartForConditionalGeneration if pre else MarianMTModel)(config).eval()
    theirs = model.state_dict()
    weights = {name: value for name, value in saved.model.state_dict().items() if not name.startswith("decoder.output")}
    named = {hf_name(name): value for name, value in weights.items()}
    output = saved.model.decoder.output  # type: ignore[union-attr]
    matrix = saved.model.decoder.embedding.tokens.weight if output.weight is None else output.weight  # type: ignore[union-attr]
    named |= {"lm_head.weight": matrix, "final_logits_bias": output.bias[None]}
    if settings.tie == "all":
        named["model.encoder.embed_tokens.weight"] = named["model.decoder.embed_tokens.weight"]
    with torch.no_grad():
        for name, value in theirs.items():
            if "embed_positions" in name:  # MBart starts at row 2
                offset = len(value) - 512
                value.copy_(sinusoidal(torch.arange(-offset, 512).clamp(min=0), settings.width, layout=settings.layout))
            elif name == "model.shared.weight":
                value.zero_()
            elif "layernorm_embedding" in name:
                pass  # removed below
            else:
                value[tuple(slice(size) for size in named[name].shape)] = named[name]
                if name == "final_logits_bias":
                    value[:, len(saved.target) :] = -torch.inf
    if pre:
        for half in (model.model.encoder, model.model.decoder):
            half.layernorm_embedding = torch.nn.Identity()
    model.tie_weights = lambda *_, **__: None

    @torch.inference_mode()
    def run(sources: Sequence[Ids], beam: int) -> list[Ids]:
        order = sorted(range(len(sources)), key=lambda index: len(sources[index]))
        found: dict[int, Ids] = {}
        generation = GenerationConfig(
            num_beams=beam,
            max_new_tokens=MAX_LENGTH + 1,
            do_sample=False,
            length_penalty=0.0,
            pad_token_id=PAD,
            eos_token_id=EOS,
            decoder_start_token_id=SOS,
            bad_words_ids=[[PAD], [UNK], [SOS]],
        )
        for first in range(0, len(order), BATCH):
            chunk = order[first : first + BATCH]
            source = source_batch([sources[index] for index in chunk])
            rows = model.generate(source.values, attention_mask=source.allow.long(), generation_config=generation)
            for index, row in zip(chunk, rows[:, 1:].tolist(), strict=True):
                found[index] = row[: row.index(EOS)] if EOS in row else row
        return [found[index] for index in range(len(sources))]

    return run


# --- CTranslate2 -------------------------------------------------------------------------------------------------------------


def ctranslate2_system(saved: Saved, kind: str, threads: int, folder: Path) -> System:
    import ctranslate2
    import numpy
    from ctranslate2.specs import TransformerSpec, common_spec

    settings, model = saved.settings, saved.model
    assert isinstance(settings, TransformerSettings)
    assert isinstance(model, Transformer)
    activation = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "silu": "SWISH"}[settings.activation]
    spec = TransformerSpec.from_config(
        (settings.encoder_layers, settings.decoder_layers),
        settings.heads,
        pre_norm=settings.norm_order == "pre",
        activation=getattr(common_spec.Activation, activation),
    )

    def array(*tensors: Tensor) -> numpy.ndarray:
        return torch.cat([tensor.detach() for tensor in tensors]).numpy().copy()

    def linear(target: object, *layers: torch.nn.Module) -> None:
        target.weight, target.bias = (array(*(getattr(one, kind) for one in layers)) for kind in ("weight", "bias"))

    def norm(target: object, layer: torch.nn.Module) -> None:
        target.gamma, target.beta = array(layer.weight), array(layer.bias)

    halves = ((spec.encoder, model.encoder), (spec.decoder, model.decoder))
    positions = sinusoidal(torch.arange(512), settings.width, layout=settings.layout).numpy()
    for target, half in halves:
        embedding = half.embedding or model.decoder.embedding
        embeddings = target.embeddings[0] if isinstance(target.embeddings, list) else target.embeddings
        embeddings.weight = array(embedding.tokens.weight)
        target.scale_embeddings = True
        target.position_encodings.encodings = positions
        if settings.norm_order == "pre":
            norm(target.layer_norm, half.norm)
        for one, layer in zip(target.layer, half.layers, strict=True):
            attention = layer.attention
            linear(one.self_attention.linear[0], attention.query, attention.key, attention.value)
            linear(one.self_attention.linear[1], attention.output)
            norm(one.self_attention.layer_norm, layer.around_attention.norm)
            if half is model.decoder:
                linear(one.attention.linear[0], layer.cross.query)
                linear(one.attention.linear[1], layer.cross.key, layer.cross.value)
                linear(one.attention.linear[2], layer.cross.output)
                norm(one.attention.layer_norm, layer.around_cross.norm)
            linear(one.ffn.linear_0, layer.feed_forward[0])
            linear(one.ffn.linear_1, layer.feed_forward[3])
            norm(one.ffn.layer_norm, layer.around_feed_forward.norm)
    output = model.decoder.output
    spec.decoder.projection.weight = array(model.decoder.embedding.tokens.weight if output.weight is None else output.weight)
    spec.decoder.projection.bias = array(output.bias)
    for register, size in ((spec.register_source_vocabulary, saved.source), (spec.register_target_vocabulary, saved.target)):
        register(
            [{PAD: "<pad>", UNK: "<unk>", SOS: "<s>", EOS: "</s>"}.get(number, f"t{number}") for number in range(len(size))]
        )
    spec.config.add_source_bos, spec.config.add_source_eos = False, False
    spec.validate()
    spec.optimize()
    folder.mkdir(parents=True, exist_ok=True)
    spec.save(str(folder))
    translator = ctranslate2.Translator(str(folder), device="cpu", compute_type=kind, inter_threads=threads, intra_threads=1)

    def run(sources: Sequence[Ids], beam: int) -> list[Ids]:
        words = [[*(f"t{number}" if number > EOS else "<unk>" for number in ids), "</s>"] for ids in sources]
        results = translator.translate_batch(
            words, beam_size=beam, max_decoding_length=MAX_LENGTH, max_batch_size=BATCH, length_penalty=0.0
        )
        return [[int(word[1:]) for word in one.hypotheses[0] if word[1:].isdigit()] for one in results]

    return run


# --- the measurement ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SystemProcess:
    """A system in a separate process, which waits while the others work."""

    process: BaseProcess
    pipe: Connection

    def __call__(self, sources: Sequence[Ids], beam: int) -> tuple[list[Ids], float]:
        """Returns (outputs, seconds)."""
        self.pipe.send((sources, beam))
        found: tuple[list[Ids], float] = self.pipe.recv()
        return found

    def end(self) -> None:
        self.pipe.close()
        self.process.join()


def start(name: str, model: str, threads: int) -> SystemProcess:
    spawn = get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=serve, args=(name, model, threads, theirs))
    process.start()
    theirs.close()
    return SystemProcess(process, ours)


def serve(name: str, model: str, threads: int, pipe: Connection) -> None:
    torch.set_num_threads(threads)
    saved = load(Path(model))
    with tempfile.TemporaryDirectory() as folder, suppress(EOFError):
        run = SYSTEMS[name](saved, threads, Path(folder))
        while True:
            sources, beam = pipe.recv()
            began = time.perf_counter()
            written = run(sources, beam)
            pipe.send((written, time.perf_counter() - began))


def bleu(saved: Saved, written: Sequence[Ids], references: Sequence[str]) -> float:
    return sacrebleu.corpus_bleu([saved.target.decode(ids) for ids in written], [references]).score


SYSTEMS: dict[str, Callable[[Saved, int, Path], System]] = {
    "regard": lambda saved, threads, folder: ours(saved, "native"),
    "regard, torch engine": lambda saved, threads, folder: ours(saved, "torch"),
    "Hugging Face generate": lambda saved, threads, folder: hugging_face(saved),
    "CTranslate2 float32": lambda saved, threads, folder: ctranslate2_system(saved, "float32", threads, folder),
    "CTranslate2 int8": lambda saved, threads, folder: ctranslate2_system(saved, "int8", threads, folder),
}
"""How each system uses the threads: regard as workers, CTranslate2 as inter_threads, Hugging Face within operations."""


def all_at_once(
    saved: Saved, systems: Mapping[str, SystemProcess], sources: list[Ids], references: list[str], beam: int
) -> Iterator[str]:
    """Times the translation of all sentences together."""
    written = {name: run(sources, beam)[0] for name, run in systems.items()}  # warm-up
    seconds: dict[str, list[float]] = {name: [] for name in systems}
    for _ in range(ROUNDS):
        for name, run in systems.items():
            seconds[name].append(run(sources, beam)[1])
    for name, took in seconds.items():
        ratios = sorted(theirs / our for theirs, our in zip(took, seconds["regard"], strict=True))
        same = sum(a == b for a, b in zip(written[name], written["regard"], strict=True)) / len(sources)
        speed = len(sources) / statistics.median(took)
        yield (
            f"beam {beam}  {name:<22} {speed:7.1f} sentences/s ({min(took):.2f}-{max(took):.2f} s)  regard is "
            f"{statistics.median(ratios):.2f} x as fast ({ratios[0]:.2f}-{ratios[-1]:.2f})  "
            f"BLEU {bleu(saved, written[name], references):.2f}  {same:.1%} identical outputs"
        )


def one_by_one(systems: Mapping[str, SystemProcess], sources: list[Ids], beam: int) -> Iterator[str]:
    """Times each of the first hundred sentences alone; systems take turns."""
    took: dict[str, list[float]] = {name: [] for name in systems}
    for ids in sources[:100]:
        for name, run in systems.items():
            took[name].append(run([ids], beam)[1])
    for name, seconds in took.items():
        middle, high = (sorted(seconds)[len(seconds) * share // 100] * 1e3 for share in (50, 95))
        yield f"beam {beam}  {name:<22} one by one, 1 thread: {middle:6.1f} ms p50, {high:6.1f} ms p95"


def main(model: str, source_file: str, reference_file: str, number: int = 1000) -> None:
    saved = load(Path(model))
    lines = [[" ".join(line.split()) for line in read_lines(Path(file))][:number] for file in (source_file, reference_file)]
    sources = [saved.source.encode(line) for line in lines[0]]
    report = [
        f"torch {torch.__version__}; {THREADS} threads; {len(sources):,} sentences of {Path(source_file).name}, "
        f"{sum(map(len, sources)):,} source tokens; length_penalty 0, max_length {MAX_LENGTH}; one thread per worker. "
        f"regard: {THREADS} forked workers, up to {BATCH_HYPOTHESES} hypotheses at a time, finished rows leave; Hugging Face: "
        f"batches of {BATCH}, {THREADS} threads; CTranslate2: max_batch_size {BATCH}, inter_threads {THREADS}, intra_threads "
        f"1. {saved.settings}"
    ]
    print(report[0], flush=True)
    for threads in (THREADS, 1):
        systems = {name: start(name, model, threads) for name in SYSTEMS}
        for beam in (1, 5):
            found = all_at_once(saved, systems, sources, lines[1], beam) if threads > 1 else one_by_one(systems, sources, beam)
            for line in found:
                report.append(line)
                print(line, flush=True)
        for system in systems.values():
            system.end()
    if number == 1000:
        write_result(__file__, report)


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    main(*sys.argv[1:4], *map(int, sys.argv[4:]))
