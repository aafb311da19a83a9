"""The ids of special tokens: a model whose vocabulary is numbered otherwise, as those of other toolkits are, does the same."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import pytest
import torch

import regard
from regard.contracts import OWN, Specials
from regard.data.batch import Example, collate
from regard.data.tokenizers.codec import Codec
from regard.data.tokenizers.contract import TextCodec
from regard.decoding.constraints import constrain
from regard.errors import UserError
from regard.models.build import build
from regard.options import SearchOptions
from regard.pipeline import Translator

PAIRS = [("abc", "abd"), ("cab", "dab"), ("bacad", "cadab"), ("ddd", "a")]
SETTINGS = {
    "transformer": {"kind": "transformer", "tie": "all", "heads": 2, "feed_forward": 11, "look_ahead_mask": False},
    "recurrent": {"kind": "rnn", "attention": "marginal", "readout": "plain", "copy": True, "embedding": 7},
    "monotone": {"kind": "rnn", "attention": "monotone", "readout": "plain", "embedding": 7},
    "tagger": {"kind": "tagger", "heads": 2},
}


class Renumbered(TextCodec):
    """A codec whose ids are permuted. of_own: id of the codec -> new id."""

    def __init__(self, own: Codec, of_own: Sequence[int]) -> None:
        self.own, self.of_own = own, of_own
        self.to_own = {new: old for old, new in enumerate(of_own)}
        pad, unk, start, eos = of_own[:4]
        self.specials = Specials(pad, unk, start, eos, never=(pad, unk, start))

    def __len__(self) -> int:
        return len(self.own)

    def encode(self, text: str) -> list[int]:
        return [self.of_own[number] for number in self.own.encode(text)]

    def decode(self, ids: Sequence[int]) -> str:
        return self.own.decode([self.to_own[number] for number in ids])

    def tokens(self, ids: Sequence[int]) -> tuple[str, ...]:
        return self.own.tokens([self.to_own[number] for number in ids])

    def pieces(self, text: str) -> tuple[str, ...]:
        return self.own.pieces(text)

    def unknown(self, text: str) -> tuple[str, ...]:
        return self.own.unknown(text)


@cache
def models(name: str) -> tuple[Translator, Translator]:
    """Returns an untrained model in float64, and the same model with a vocabulary that is numbered otherwise."""
    codec = Codec.train([text for pair in PAIRS for text in pair], "characters")
    permutation = torch.randperm(len(codec), generator=torch.Generator().manual_seed(3)).tolist()
    assert permutation[:4] != list(range(4))
    torch.manual_seed(5)
    settings = regard.build(num_tokens=len(codec), width=16, **SETTINGS[name]).settings  # type: ignore[call-overload]
    own, other = (build(settings, len(codec), len(codec), specials=specials).double().eval() for specials in (OWN, OWN))
    renumbered = Renumbered(codec, permutation)
    other.specials = renumbered.specials
    state = own.state_dict()
    for key, tensor in state.items():
        state[key] = torch.empty_like(tensor).copy_(tensor)
        for axis, size in enumerate(tensor.shape):
            if size == len(codec) and ("embedding" in key or "output" in key or "head" in key) and axis == 0:
                state[key][permutation] = tensor
    other.load_state_dict(state)
    return Translator.of_model(own, codec, codec), Translator.of_model(other, renumbered, renumbered)


@pytest.mark.parametrize("name", [*SETTINGS])
@pytest.mark.parametrize("options", [{}, {"beam": 3, "n_best": 2}, {"beam": 2, "repetition_penalty": 1.3, "no_repeat": 2}])
def test_other_ids_change_no_output(name: str, options: dict[str, float]) -> None:
    if name == "tagger" and options:
        pytest.skip("a tagger writes one tag for each token")
    if name == "monotone" and "no_repeat" in options:
        options = {"beam": 2}
    own, other = models(name)
    sources = ["abc", "d", "cabbad"]
    for one, same in zip(
        own.batch(sources, max_length=7, **options), other.batch(sources, max_length=7, **options), strict=True
    ):  # type: ignore[arg-type]
        assert (one.text, one.tokens, one.finished) == (same.text, same.tokens, same.finished)
        assert [output.text for output in one.n_best] == [output.text for output in same.n_best]
        assert one.log_prob == pytest.approx(same.log_prob, abs=1e-9)


@pytest.mark.parametrize("name", [*SETTINGS])
def test_other_ids_change_no_score_and_no_loss(name: str) -> None:
    own, other = models(name)
    pairs = [("ab", "cd"), ("abcd", "adda")] if name == "tagger" else [("ab", "cdd"), ("abcd", "a")]
    scored = zip(own.score(*zip(*pairs, strict=True)), other.score(*zip(*pairs, strict=True)), strict=True)
    assert all(one.log_prob == pytest.approx(same.log_prob, abs=1e-9) for one, same in scored)
    losses = []
    for model in (own, other):
        examples = [Example(model.source.encode(source), model.target.encode(target)) for source, target in pairs]  # type: ignore[arg-type]
        batch = collate(examples, model.source.specials, model.target.specials)
        assert batch.num_targets == sum(len(target) + 1 for _, target in pairs)
        losses.append(regard.loss(model, batch).detach().item())
    assert losses[0] == pytest.approx(losses[1], abs=1e-9)


def test_the_tokens_that_people_see_are_named_by_the_codec() -> None:
    own, other = models("transformer")
    seen = [regard.inspect(model, "abc", output=model.target.encode("dab")) for model in (own, other)]
    assert seen[1].read == seen[0].read == ("<sos>", "d", "a", "b")
    assert seen[1].target == seen[0].target
    assert seen[1].source == seen[0].source == ("a", "b", "c", "<eos>")
    result = other("abc", max_length=3)
    assert other.attention(result, "decoder", layer=0).source[0] == "<sos>"


def test_outputs_may_start_with_given_tokens_and_sources_may_lack_eos() -> None:
    own, _ = models("recurrent")
    codec = Codec(own.target.tokenizer)  # type: ignore[attr-defined]
    forced, end = codec.encode("ca"), codec.encode("d")[0]
    codec.specials = replace(OWN, prefix=tuple(forced), never=(0, 1, 2, end), source_eos=False)
    model = Translator.of_model(own.model, codec, codec)
    result = model("abc", max_length=6)
    assert result.text.startswith("ca")
    assert "d" not in result.text[2:]
    (scored,) = model.score(["abc"], [result.text[2:]])
    written = result.n_best[0].token_log_probs
    assert len(written) >= len(result.ids) > 2
    assert scored.token_log_probs[: len(written)] == pytest.approx(written, abs=1e-9)
    with pytest.raises(UserError, match="the prefix has 3 tokens, but max_length is 3"):
        model("abc", prefix="a", max_length=3)
    assert model.encode("abc").states.shape[0] == 3
    assert own.encode("abc").states.shape[0] == 4


def test_padding_must_not_hide_a_token() -> None:
    with pytest.raises(ValueError, match="padding has the id 3, which is also that of <eos>"):
        Specials(pad=3)


def test_some_tokens_may_not_come_first_after_the_prefix() -> None:
    """Whisper does not begin with a space, nor ends at once; later both are allowed."""
    specials = Specials(prefix=(5, 6), never=(0,), never_first=(3, 7))
    scores_BKV = constrain(torch.zeros(3, 2, 9), torch.zeros(3, 2, 2, dtype=torch.long), [2, 3, 0], SearchOptions(), specials)
    forbidden = [torch.isinf(row).nonzero().flatten().tolist() for row in scores_BKV[:, 1]]
    assert forbidden == [[0, 3, 7], [0], [0]]
