"""Small models to convert: random weights, large enough that every head and position matters."""

from dataclasses import replace
from functools import cache
from typing import Any

import torch

from regard.checkpoint.folder import Saved
from regard.contracts import Specials
from regard.data.tokenizers.listed import ListedCodec
from regard.data.tokenizers.sentencepieces import SentencePieces
from regard.languages import Languages
from regard.models.build import build
from regard.models.transformer import TransformerSettings

TEXTS = ["the cat sat on the mat", "a dog ran", "the dog and a cat ran on", "sat a man", "no rats at sea", "Äpfel sind rot!"]
"""What the vocabulary is made from, and what is translated."""
HEAD = {"layer": 1, "head": 2, "shifted": True, "norms": False}
SETTINGS = TransformerSettings(
    width=12, heads=3, feed_forward=23, encoder_layers=2, decoder_layers=3, layout="halves", norm_order="post", tie="all"
)
MARIAN = Specials(pad=42, unk=1, start=42, eos=0, never=(42,))
"""Special tokens as Marian has them: a decoder starts with padding."""


def listed(number: int = 43) -> ListedCodec:
    """A vocabulary of words w2, w3, … with Marian's special tokens."""
    names = ["</s>", "<unk>", *("<pad>" if one == MARIAN.pad else f"w{one}" for one in range(2, number))]
    return ListedCodec(names, MARIAN, "spaces")


@cache
def pieces() -> SentencePieces:
    """A vocabulary of SentencePiece with Marian's order: <eos> and <unk> first, and padding last."""
    codec = SentencePieces.train(TEXTS, "unigram", 311, "nmt_nfkc")
    rest = [piece for piece in codec.vocabulary if piece not in ("<pad>", "<unk>", "<s>", "</s>")]
    names = ["</s>", "<unk>", *rest, ">>deu<<", "<pad>"]
    last = len(names) - 1
    return SentencePieces(codec.spm, names, Specials(pad=last, unk=1, start=last, eos=0, never=(last,)))


def saved(*, words: bool = False, **settings: Any) -> Saved:
    """A model as a folder holds it. words: whether its tokens are words. settings: those that differ from SETTINGS."""
    chosen = replace(SETTINGS, **settings)
    source = target = listed() if words else pieces()
    if words and chosen.tie != "all":
        target = listed(53)
    model = build(chosen, len(source), len(target), specials=target.specials).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return Saved(model, chosen, source, target, {}, "A card.", HEAD, languages=Languages.parse(["en", "de"]))
