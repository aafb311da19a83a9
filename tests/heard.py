"""A small Whisper with random weights, as transformers writes it."""

import json
from pathlib import Path
from typing import Any

import foreign
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

CONTROL = [
    "<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>", "<|transcribe|>", "<|startoflm|>",
    "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>", "<|0.00|>", "<|0.02|>",
]  # fmt: skip
SIZES = {"d_model": 12, "encoder_layers": 2, "decoder_layers": 3, "vocab_size": 0}
SECONDS = 1
"""How long its sounds may be."""


def tokenizer() -> Tokenizer:
    """Byte-level merges, learned from few texts, and then the tokens that are no text."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=290, initial_alphabet=letters, show_progress=False)
    made.train_from_iterator([f" {text}" for text in foreign.TEXTS], trainer)
    made.add_special_tokens([AddedToken(name, special=True) for name in CONTROL])
    return made


def write(folder: Path, transformers: Any, *, old_files: bool = False, **changes: Any) -> Any:
    """Writes the folder, and returns the model of transformers. old_files: vocab.json and merges.txt instead of tokenizer.json.
    changes: of generation_config.json."""
    made = tokenizer()
    ids = made.get_vocab()
    size = len(ids)
    special = {f"{name}_token_id": ids["<|endoftext|>"] for name in ("pad", "bos", "eos")}
    config = transformers.WhisperConfig(
        **{**SIZES, "vocab_size": size},
        **special,
        encoder_attention_heads=3,
        decoder_attention_heads=3,
        encoder_ffn_dim=23,
        decoder_ffn_dim=23,
        num_mel_bins=7,
        max_source_positions=50 * SECONDS,
        max_target_positions=29,
        decoder_start_token_id=ids["<|startoftranscript|>"],
    )
    torch.manual_seed(7)
    model = transformers.WhisperForConditionalGeneration(config).eval()
    for name, parameter in model.named_parameters():
        if "embed_positions" not in name or "decoder" in name:
            torch.nn.init.normal_(parameter, std=2.0 if "embed_positions" in name or "encoder_attn" in name else 0.4)
    generation = {
        **special,
        "decoder_start_token_id": ids["<|startoftranscript|>"],
        "is_multilingual": True,
        "lang_to_id": {name: ids[name] for name in ("<|en|>", "<|de|>")},
        "task_to_id": {name: ids[f"<|{name}|>"] for name in ("translate", "transcribe")},
        "no_timestamps_token_id": ids["<|notimestamps|>"],
        "suppress_tokens": [ids[name] for name in ("!", "#", *CONTROL[4:9])],
        "begin_suppress_tokens": [ids["Ġ"], ids["<|endoftext|>"]],
        "max_length": 29,
        "return_timestamps": False,
        **changes,
    }
    model.generation_config = transformers.GenerationConfig(**generation)
    model.save_pretrained(folder)
    transformers.WhisperFeatureExtractor(feature_size=7, chunk_length=SECONDS).save_pretrained(folder)
    if old_files:
        made.model.save(str(folder))
        (folder / "added_tokens.json").write_text(json.dumps({name: ids[name] for name in CONTROL[:-2]}))
    else:
        made.save(str(folder / "tokenizer.json"))
    return model
