import pytest
import torch
from rich.console import Console
from test_folder import make_saved

import regard
from regard.contracts import AttentionMap
from regard.errors import UserError
from regard.evaluation import error_rates, signature
from regard.inspection import render
from regard.models.build import ModelSettings
from regard.models.rnn_seq2seq import RnnSettings
from regard.models.transformer import TransformerSettings

every_family = pytest.mark.parametrize("settings", [RnnSettings(width=8, embedding=3), TransformerSettings(width=8, heads=2)])


def make_translator(settings: ModelSettings) -> regard.Translator:
    saved = make_saved(settings)
    return regard.Translator(saved.model, saved.source, saved.target, torch.device("cpu"))


@every_family
def test_texts_come_back_in_order(settings: ModelSettings) -> None:
    translator = make_translator(settings)
    texts = ["abc", "", "a", "cab?", "bb", "", "abcabcabc"] * 40
    results = translator.batch(texts, max_length=6)
    assert len(results) == len(texts)
    for text, result in list(zip(texts, results, strict=True))[:7]:
        alone = translator(text, max_length=6)
        assert (alone.text, alone.tokens, alone.finished) == (result.text, result.tokens, result.finished)
        assert result.log_prob == pytest.approx(alone.log_prob, abs=1e-5)
        assert result.unknown == ("?",) * text.count("?")
        assert [(one.text, one.log_prob) for one in result.n_best] == [(result.text, result.log_prob)]
        assert text or (result.text, result.log_prob, result.finished) == ("", 0.0, True)
        assert len(result.tokens) <= 6
    assert translator.batch([]) == []
    for wrong in ("abc", ["abc", None]):
        with pytest.raises(TypeError, match=r"batch takes a list of texts, got .*; for one text call the model itself"):
            translator.batch(wrong)


@every_family
def test_attention_of_a_result(settings: ModelSettings) -> None:
    result = make_translator(settings)("abcab", max_length=4)
    written = (*result.tokens, "<eos>") if result.finished else result.tokens
    attention = result.attention()
    assert attention.source == ("a", "b", "c", "a", "b", "<eos>")
    assert attention.target == written
    assert make_translator(settings)("a?").attention().source == ("a", "?", "<eos>")
    assert attention.weights_HTS.shape[1:] == (len(written), 6)
    torch.testing.assert_close(attention.mean_TS.sum(-1), torch.ones(len(written)))
    if settings.kind == "transformer":
        own, encoder = result.attention("decoder", 0), result.attention("encoder", 1)
        assert own.source == ("<sos>", *written[:-1])
        assert encoder.target == encoder.source == attention.source
        assert own.weights_HTS.shape == (2, len(written), len(written))
        assert (own.layer, encoder.layer, attention.layer) == (0, 1, 1)
        with pytest.raises(UserError, match="there is no encoder attention in layer 7: this model has layers 0 to 1"):
            result.attention("encoder", 7)
    else:
        with pytest.raises(
            UserError, match="this model has no encoder attention; models that look at their source have kind cross"
        ):
            result.attention("encoder")
    with pytest.raises(ValueError, match="unknown kind of attention 'self'; expected one of encoder, decoder, cross"):
        result.attention("self")
    attention.weights_HTS.requires_grad_()  # an ordinary tensor, to go on with


def test_unknown_options_are_named() -> None:
    with pytest.raises(TypeError, match=r"unknown search option 'max_lenght'; expected one of beam, .*; did you mean"):
        make_translator(RnnSettings(width=8))("abc", max_lenght=3)


def test_error_rates_by_hand() -> None:
    outputs = [("A", "B"), ("A",), ("X", "Y", "Z")]
    references = [[("A", "B")], [("B", "C", "D"), ("A", "B")], [("A", "B", "C", "D"), ("X", "Q", "Z")]]
    rates = error_rates(outputs, references)
    assert rates.word == pytest.approx(2 / 3)
    assert rates.symbol == pytest.approx((0 + 1 + 1) / (2 + 2 + 3))
    assert str(rates) == "symbol error rate 28.57%; 66.67% of 3 outputs are not quite right"
    assert signature({"data": "x", "seed": 7}).startswith("data:x | seed:7 | regard:")


# --- pictures ----------------------------------------------------------------------------------------------------------------


def make_map() -> AttentionMap:
    weights = torch.tensor([[[1.0, 0.0, 0.0], [0.0, 0.55, 0.55]], [[0.8, 0.2, 0.0], [0.0, 0.65, 0.35]]])
    return AttentionMap(weights, ("ph", "語", "<eos>"), ("F", "<eos>"), "cross", 0)


def test_a_picture_shows_the_weights(tmp_path) -> None:  # type: ignore[no-untyped-def]
    import matplotlib.image

    with pytest.warns(UserWarning, match=r"map.png lacks some of the characters; in an .svg any browser shows them"):
        path = render.draw(make_map(), tmp_path / "new" / "map.png")
    pixels = matplotlib.image.imread(path)
    assert pixels.shape[0] > 100
    darkest = pixels[..., 0].min()
    assert darkest < 0.2  # weight 0.9 is dark blue on white
    assert (pixels[..., :3] > 0.99).all(-1).mean() > 0.2
    with pytest.warns(UserWarning, match="lacks"):
        svg = render.draw([make_map()] * 4, tmp_path / "four.svg").read_text()
    assert svg.count("語") >= 4
    assert [entry.name for entry in (tmp_path / "new").iterdir()] == ["map.png"]
    math = AttentionMap(torch.ones(1, 1, 1), ("$_$",), ("$x^$",), "cross", 0)
    assert "$_$" in render.draw(math, tmp_path / "math.svg").read_text()  # text, not a formula
    long = AttentionMap(torch.full((1, 300, 300), 1 / 300), ("a",) * 300, ("b",) * 300, "cross", 0)
    assert matplotlib.image.imread(render.draw(long, tmp_path / "long.png")).shape[0] < 4000
    with pytest.raises(ValueError, match="no map to draw"):
        render.draw([], tmp_path / "none.png")
    with pytest.raises(UserError, match=r"map.xyz: the ending says what to draw; expected one of .png, .svg, .pdf"):
        render.draw(make_map(), tmp_path / "map.xyz")


def test_a_terminal_shows_the_weights() -> None:
    text = render.in_terminal(make_map())
    assert text.plain.splitlines() == ["      ph 語 <eos> ", "F     ██          ", "<eos>    ▓▓ ▒▒▒▒▒ "]
    console = Console(force_terminal=True, color_system="truecolor", width=80)
    with console.capture() as captured:
        console.print(text)
    assert "\x1b[38;2;" in captured.get()


def test_drawing_without_matplotlib_says_what_to_type(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(render, "can_draw", lambda: False)
    with pytest.raises(UserError, match=r'pip install "regard\[plot\]"'):
        render.draw(make_map(), tmp_path / "map.png")
