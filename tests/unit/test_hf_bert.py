"""Encoders of Hugging Face: their states are those of transformers, their tokens those of its tokenizers, and a new model
starts with them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer

import regard
from regard.core.source import Source
from regard.data.tokenizers.pretrained import PretrainedCodec
from regard.errors import UserError
from regard.interop import bert
from regard.interop.bert import open_encoder
from regard.pipeline import Translator

transformers: Any = pytest.importorskip("transformers")
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "##s", "apf", "##el", "dog", "red", ".", "漢", "un"]
SIZES = {"vocab_size": 19, "max_position_embeddings": 13}
KINDS: dict[str, dict[str, Any]] = {
    "Bert": {"hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 23},
    "Electra": {
        "hidden_size": 12, "embedding_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 23,
    },
    "DistilBert": {"dim": 12, "n_layers": 2, "n_heads": 3, "hidden_dim": 23},
}  # fmt: skip


def write(folder: Path, kind: str = "Bert", *, head: str = "Model", lowercase: bool = True, **changes: Any) -> Any:
    """Writes a folder of transformers with random weights, and returns its encoder. head: the end of its class's name."""
    torch.manual_seed(3)
    config = getattr(transformers, f"{kind}Config")(**{**SIZES, **KINDS[kind], **changes})
    model = getattr(transformers, kind + head)(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"do_lower_case": lowercase, "tokenizer_class": f"{kind}Tokenizer"})
    )
    return getattr(model, model.base_model_prefix, model)


@pytest.mark.parametrize(
    ("kind", "head"), [("Bert", "Model"), ("Bert", "ForMaskedLM"), ("Electra", "Model"), ("DistilBert", "Model")]
)
def test_states_and_attention_are_those_of_transformers(kind: str, head: str, tmp_path: Path) -> None:
    theirs = write(tmp_path / "theirs", kind, head=head)
    theirs.set_attn_implementation("eager")
    ours = open_encoder(tmp_path / "theirs")
    ids_BS = torch.tensor([[2, 5, 6, 7, 3, 0], [2, 11, 12, 16, 18, 3]])
    look = regard.Look((regard.Tap("encoder"),))
    with torch.no_grad():
        expected = theirs(input_ids=ids_BS, attention_mask=(ids_BS != 0).long(), output_attentions=True)
        memory = ours.model.encode(Source(ids_BS, ids_BS != 0), look)
    real = memory.allow_BS
    torch.testing.assert_close(memory.values_BSE[real], expected.last_hidden_state[real], atol=1e-5, rtol=1e-4)
    assert len(memory.seen) == len(expected.attentions) == 2
    for seen, weights_BHTS in zip(memory.seen, expected.attentions, strict=True):
        torch.testing.assert_close(seen.weights_BHTS[1], weights_BHTS[1], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("as_json", [True, False])
def test_tokens_are_those_of_their_tokenizer(as_json: bool, lowercase: bool, tmp_path: Path) -> None:
    write(tmp_path, lowercase=lowercase)
    theirs = transformers.BertTokenizerFast(str(tmp_path / "vocab.txt"), do_lower_case=lowercase)
    if as_json:
        theirs.backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
        (tmp_path / "vocab.txt").unlink()
        theirs = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    codec = open_encoder(tmp_path).source
    assert isinstance(codec, PretrainedCodec)
    for text in ("The cats sat.", "Äpfel und a red dog", "漢字 [SEP] the\tcat", ""):
        expected = theirs.encode(text)
        plain = [*codec.encode(text), *codec.specials.source_end]
        assert plain == (expected.ids if as_json else expected) or "[SEP]" in text
        assert len(codec.pieces(text)) == len(codec.encode(text))
    assert codec.labels("The cats")[0] == "[CLS]"
    assert codec.labels("the cats")[1:] == ("the", "cat", "s", "[SEP]")
    assert codec.unknown("the bird") == ("bird",)
    assert codec.decode(codec.encode("the cats sat")) == "the cats sat"
    assert PretrainedCodec.from_content(json.loads(codec.to_json())).encode("red cats") == codec.encode("red cats")


def test_training_goes_on_from_the_encoder_in_a_folder_of_its_own(tmp_path: Path) -> None:
    write(tmp_path / "theirs")
    pairs = [("the cat sat", "c s"), ("red dog", "r d"), ("the red cat", "r c"), ("dog sat", "d s")] * 5
    options: dict[str, Any] = {"encoder_from": tmp_path / "theirs", "quiet": True, "settings": {"model.decoder_layers": 1}}
    trained = {
        freeze: regard.train(pairs, tmp_path / f"m{freeze}", freeze=freeze, steps=4, **options) for freeze in (False, True)
    }
    encoder = {name: one for name, one in open_encoder(tmp_path / "theirs").model.state_dict().items() if "encoder." in name}
    assert len(encoder) == 5 + 2 * 16 - 1
    for freeze, model in trained.items():
        after = model.model.state_dict()
        assert all(torch.equal(after[name], encoder[name]) for name in encoder) == freeze
    (tmp_path / "theirs").rename(tmp_path / "gone")
    for freeze, model in trained.items():
        again = regard.load(tmp_path / f"m{freeze}")
        assert isinstance(again, Translator)
        assert again.model.settings.decoder_layers == 1  # type: ignore[attr-defined]
        assert again("the cats").ids == model("the cats").ids
        assert again.attention("the cats").source == ("[CLS]", "the", "cat", "s", "[SEP]")


def test_an_encoder_alone_translates_nothing(tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(UserError, match=r"is an encoder \(bert\), which writes nothing; .*--encoder-from"):
        regard.load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "silly", "is_decoder": True}, "activation function is 'silly', .*; it is a decoder"),
        ({"position_embedding_type": "relative_key"}, "its positions are 'relative_key', expected absolute"),
        ({"num_attention_heads": "3"}, "its heads is '3', expected a number"),
        ({"num_hidden_layers": 3}, "missing weights"),
    ],
)
def test_what_our_encoder_cannot_be_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    write(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(UserError, match=message):
        open_encoder(tmp_path)


def test_a_difference_from_transformers_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path)
    honest = bert._settings
    monkeypatch.setattr(bert, "_settings", lambda *given: replace(honest(*given), norm_eps=0.1))
    with pytest.raises(UserError, match=r"the conversion is wrong: a number of the encoder's output differs by"):
        open_encoder(tmp_path)
