"""Invalid arguments of public functions raise a one-line error where the mistake is made: what it got and what it expected."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import regard
from regard import Edit, Look, MultiHeadAttention, Tap, losses, masks, positions, scores
from regard.core.source import Source
from regard.errors import UserError
from regard.results import AttentionMap, Result

NOT_NUMBERS = [None, "sqrt", 0, -1.0, float("nan"), float("inf"), True, [1]]
NO_SIZES = [None, "sqrt", 0, -3, 2.5, float("nan"), True, [1], torch.zeros(2, 3), "x" * 5000]
NOT_TENSORS = [None, "text", 3, [1, 2]]


def refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words) as caught:
        make()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


# --- scores ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", NOT_NUMBERS)
def test_divisors_of_scores_are_numbers_above_zero(number: object) -> None:
    refused(lambda: scores.ScaledDot(number), r'divide_by is .*, expected "√d", "d" or a number above 0')
    refused(lambda: scores.Cosine(number), "temperature is .*, expected a number above 0")


def test_sizes_that_are_too_large_for_torch_are_refused() -> None:
    for make in (
        lambda: masks.causal(3, 10**30),
        lambda: MultiHeadAttention(10**30, 1),
        lambda: positions.fourier(torch.arange(3), 2**63),
        lambda: positions.alibi_slopes(2**31),
    ):
        refused(make, r" is [0-9.]+, expected at most 2,147,483,647")


@pytest.mark.parametrize("name", ["bias", "project_values", "project_output", "alibi"])
def test_flags_are_true_or_false(name: str) -> None:
    refused(lambda: MultiHeadAttention(4, 2, **{name: torch.zeros(2)}), f"{name} is .*, expected True or False")
    refused(lambda: Look(grad=torch.zeros(2)), "grad is .*, expected True or False")


def test_numbers_of_any_library_are_numbers() -> None:
    query = torch.randn(5, 4)
    for two in (2, np.float32(2), np.int64(2)):
        torch.testing.assert_close(
            regard.attend(query, query, query, score=scores.ScaledDot(two)), regard.attend(query, query, query)
        )
    assert MultiHeadAttention(np.int64(8), np.int64(2)).heads == 2


@pytest.mark.parametrize("size", NO_SIZES)
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda size: scores.General(size, 5), "query_width"),
        (lambda size: scores.General(5, size), "key_width"),
        (lambda size: scores.Additive(size, 5, 5), "query_width"),
        (lambda size: scores.Additive(5, size, 5), "key_width"),
        (lambda size: scores.Additive(5, 5, size), "width"),
        (lambda size: scores.Additive.concat(torch.randn(3, 5), torch.randn(3), size), "query_width"),
        (lambda size: scores.Location(size, 5), "query_width"),
        (lambda size: scores.Location(5, size), "max_source"),
        (lambda size: positions.alibi_slopes(size), "heads"),
        (lambda size: regard.summarise(torch.randn(2, 3), torch.randn(2, 3), top=size), "top"),
        (lambda size: regard.Convolution(size, 5, 1), "width"),
        (lambda size: regard.Dense(size, 5, 5), "length"),
        (lambda size: regard.cost("recurrent", size, 5, 5), "length"),
    ],
)
def test_sizes_are_whole_numbers(make: Callable[[object], object], name: str, size: object) -> None:
    refused(lambda: make(size), f"{name} is .*, expected a whole number, 1 or more")


# --- masks and positions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", ["3", -1, 2.5, True, [1]])
def test_sizes_of_masks_are_whole_numbers(number: object) -> None:
    for make in (
        lambda: masks.causal(number),
        lambda: masks.causal(3, number),
        lambda: masks.window(number, width=1),
        lambda: masks.window(3, width=number),
        lambda: masks.first(torch.tensor([1, 2]), number),
        lambda: masks.starting_at(torch.tensor([1, 2]), number),
    ):
        refused(make, " is .*, expected a whole number, 0 or more")


@pytest.mark.parametrize("x", NOT_TENSORS)
def test_inputs_that_are_not_tensors_are_refused(x: object) -> None:
    query = torch.randn(2, 4)
    for make in (
        lambda: masks.first(x, 3),
        lambda: masks.starting_at(x, 3),
        lambda: masks.not_padding(x, 0),
        lambda: masks.positions(x),
        lambda: masks.both(masks.causal(3), x),
        lambda: positions.sinusoidal(x, 4),
        lambda: positions.fourier(x, 4),
        lambda: positions.raw_index(x),
        lambda: positions.one_hot(x, 4),
        lambda: positions.rotate(query, x),
        lambda: regard.attend(x, query, query),
        lambda: regard.attend(query, x, query),
        lambda: regard.attend(query, query, x),
        lambda: regard.attention_weights(query, x),
        lambda: regard.summarise(x, query),
        *(() if x is None else (lambda: regard.attend(query, query, query, allow=x),)),
    ):
        refused(make, r" is an? \w+, expected a tensor; write torch.as_tensor\(")


def test_lengths_have_one_axis_and_options_of_positions_are_numbers() -> None:
    refused(lambda: masks.first(torch.tensor([[1, 2]]), 3), r"lengths has shape \(1, 2\), expected \(batch,\)")
    refused(lambda: masks.first(torch.tensor(2), 3), r"lengths has shape \(\), expected \(batch,\)")
    indices = torch.arange(3)
    for width in (4.0, "4", True, None):
        refused(lambda: positions.sinusoidal(indices, width), "the width is .*; make it even, 2 or more")  # noqa: B023
    for number in NOT_NUMBERS:
        refused(lambda: positions.fourier(indices, 4, sharpness=number), "sharpness is .*, expected a number")  # noqa: B023
        refused(lambda: positions.rotate(torch.randn(3, 4), indices, base=number), "base is .*, expected a number")  # noqa: B023


# --- attend ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_float_dtypes_are_not_mixed(dtype: torch.dtype) -> None:
    x, layer = torch.randn(2, 5, 4), MultiHeadAttention(4, 2)
    for name in ("key", "value"):
        inputs = {"query": x, "key": x, "value": x} | {name: x.to(dtype)}
        refused(lambda: regard.attend(**inputs), f"{name} has dtype {dtype}, but query has torch.float32; expected the same")  # noqa: B023
    refused(lambda: layer(x.to(dtype)), f"query has dtype {dtype}, but the layer has weights of torch.float32; expected")
    refused(lambda: layer(x, x.to(dtype)), f"key has dtype {dtype}, but query has torch.float32")
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x.bfloat16()).shape == x.shape


def test_attend_requires_vectors_of_floats() -> None:
    x = torch.randn(2, 5, 4)
    for name in ("query", "key", "value"):
        for dtype in (torch.long, torch.bool, torch.complex64):
            inputs = {"query": x, "key": x, "value": x} | {name: x.to(dtype)}
            refused(lambda: regard.attend(**inputs), f"{name} has dtype {dtype}, expected floating-point vectors")  # noqa: B023
            sparse = {"query": x, "key": x, "value": x} | {name: x.to_sparse()}
            refused(lambda: regard.attend(**sparse), f"{name} has layout torch.sparse_coo, expected a dense tensor")  # noqa: B023
    empty = x[..., :0]
    for score in (scores.ScaledDot(), scores.Distance(), scores.Cosine()):
        refused(lambda: regard.attend(empty, empty, x, score=score), r"queries \(2, 5, 0\) have width 0")  # noqa: B023
    assert regard.attend(x, x, empty).shape == (2, 5, 0)


@pytest.mark.parametrize("wrong", [None, "0.1", -0.1, 1, True, float("nan"), [0.1]])
def test_dropout_is_a_probability(wrong: object) -> None:
    x = torch.randn(5, 4)
    refused(
        lambda: regard.attend(x, x, x, dropout=wrong, generator=torch.default_generator),
        "dropout is .*, expected a probability",
    )


def test_a_seed_instead_of_a_generator_is_refused() -> None:
    x = torch.randn(5, 4)
    refused(lambda: regard.attend(x, x, x, attention="hard", generator=7), "generator is 7, expected a torch.Generator")


def test_a_mask_must_be_on_the_device_of_the_queries() -> None:
    """torch itself accepts a mask on the meta device, which has no values."""
    query, allow = torch.randn(2, 5, 16), torch.ones(5, 5, dtype=torch.bool, device="meta")
    words = "allow is on device meta, expected cpu, where the queries are"
    refused(lambda: regard.attend(query, query, query, allow=allow), words)
    refused(lambda: MultiHeadAttention(16, 4)(query, allow=allow), words)


def test_values_that_are_not_projected_have_the_width_of_the_memory() -> None:
    refused(lambda: MultiHeadAttention(16, 4, value_dim=3, project_values=False), "value_dim is 3, but project_values=False")


@pytest.mark.parametrize("attention", ["soft", "unnormalised", "hard", "gated"])
def test_no_keys_at_all(attention: str) -> None:
    query, key, value = torch.randn(2, 5, 4), torch.randn(2, 0, 4), torch.randn(2, 0, 3)
    for allow in (None, torch.ones(3, 1, 1, 0).bool()):
        found = regard.attend(query, key, value, attention=attention, allow=allow)
        context = found if isinstance(found, Tensor) else found.context
        assert torch.equal(context, torch.zeros(*(() if allow is None else (3,)), 2, 5, 3))
        if not isinstance(found, Tensor):
            assert torch.equal(found.log_prob, context[..., 0])
            assert torch.equal(found.entropy, context[..., 0])


# --- taps, edits and looks ---------------------------------------------------------------------------------------------------


def attend_with(look: Look) -> regard.AttentionOutput:
    torch.manual_seed(1)
    layer, x = MultiHeadAttention(16, 4), torch.randn(2, 5, 16)
    return layer.attend(layer.queries(x), *layer.keys_values(x), None, look)


def test_lists_and_single_taps_equal_tuples() -> None:
    tap, edit = Tap("encoder", rows=(0, 2)), Edit("encoder", head=1)
    assert Tap("encoder", rows=[0, 2]) == tap
    assert Tap("encoder", rows=range(0, 4, 2)) == tap
    assert hash(Tap("encoder", rows=[0, 2])) == hash(tap)
    for look in (Look([tap], [edit]), Look(tap, edit)):
        assert look == Look((tap,), (edit,))
        assert hash(look) == hash(Look((tap,), (edit,)))
    assert attend_with(Look([Tap("encoder", rows=[0, 2])])) == attend_with(Look((tap,)))


@pytest.mark.parametrize("number", ["1", 1.0, True, [1], (0, 1)])
def test_layers_heads_and_positions_are_whole_numbers(number: object) -> None:
    for cls in (Tap, Edit):
        for name in ("layer", "head"):
            refused(lambda: cls(**{name: number}), f"{name} is .*, expected a whole number, or None for all")  # noqa: B023
    refused(lambda: Edit(key=number), "key is .*, expected a whole number, 'largest', or None to switch heads off")
    refused(lambda: Tap(rows=[0, number]), r"rows is .*, expected whole numbers such as \(0, 1\), or None for all")


@pytest.mark.parametrize("rows", [0, (), "01", 1.5])
def test_rows_are_sequences_of_numbers(rows: object) -> None:
    refused(lambda: Tap(rows=rows), r"rows is .*, expected whole numbers such as \(0, 1\), or None for all")


@pytest.mark.parametrize("wrong", [3, None, "cross", (Edit(),), [Tap(), 3]])
def test_looks_hold_taps_and_edits(wrong: object) -> None:
    refused(lambda: Look(wrong), r"taps is .*, expected Taps, as in Look\(taps=\(Tap\(\),\)\)")
    if wrong != (Edit(),):
        refused(lambda: Look(edits=wrong), r"edits is .*, expected Edits, as in Look\(edits=\(Edit\(\),\)\)")


def test_an_edit_of_a_missing_head_is_refused() -> None:
    for head in (4, 99, -5):
        with pytest.raises(UserError, match=f"there is no head {head}: heads are numbered 0 to 3 here"):
            attend_with(Look(edits=(Edit("encoder", head=head),)))
    last, same = (attend_with(Look((Tap("encoder"),), (Edit("encoder", head=head),))) for head in (-1, 3))
    assert last == same
    assert not last.seen[0].weights_BHTS[:, 3].any()


# --- losses ------------------------------------------------------------------------------------------------------------------


def test_losses_require_a_target_for_every_row() -> None:
    """(T, B) has as many numbers as (B, T), and missing targets would skip rows: both returned a number without an error."""
    logits, states, weight, bias = torch.randn(3, 4, 9), torch.randn(3, 4, 5), torch.randn(9, 5), torch.randn(9)
    targets = torch.randint(1, 9, (3, 4))
    for wrong in (targets.mT, targets[:2], targets[:, :3], targets.flatten()):
        words = rf"targets have shape \({wrong.shape[0]},.*expected \(3, 4\), one for each position"
        refused(lambda wrong=wrong: losses.sequence_loss(logits, wrong, pad=0), words)
        refused(lambda wrong=wrong: losses.projected_loss(states, weight, bias, wrong, pad=0), words)


@pytest.mark.parametrize("smoothing", [-1, 1.5, float("nan"), "0.1", True])
def test_smoothing_is_between_0_and_1(smoothing: object) -> None:
    logits, targets = torch.randn(1, 2, 9), torch.ones(1, 2, dtype=torch.long)
    refused(
        lambda: losses.sequence_loss(logits, targets, pad=0, smoothing=smoothing),
        "smoothing is .*, expected a number from 0 to 1",
    )
    refused(
        lambda: losses.projected_loss(logits, torch.eye(9), torch.zeros(9), targets, pad=0, smoothing=smoothing),
        "smoothing is .*, expected a number from 0 to 1",
    )


def test_every_decision_requires_a_reward() -> None:
    reward, log_prob, entropy = torch.randn(2, 4), torch.randn(2, 4), torch.rand(2, 4)
    words = r"have shapes? .*expected equal"
    refused(lambda: losses.policy_gradient(reward, log_prob[:, :1]), words)
    refused(lambda: losses.policy_gradient(reward[0], log_prob), words)
    refused(lambda: losses.policy_gradient(reward, log_prob, entropy[:, :1], entropy_bonus=0.1), words)
    refused(lambda: losses.policy_gradient(reward, log_prob, entropy_bonus=0.1), "entropy_bonus is 0.1, but no entropy")
    losses.policy_gradient(reward, log_prob, baseline=reward.mean(0))


# --- results -----------------------------------------------------------------------------------------------------------------


def attention_map(shift: float = 0.0, kind: str = "cross") -> AttentionMap:
    return AttentionMap(torch.arange(6.0).reshape(1, 2, 3) + shift, ("a", "b", "c"), ("d", "e"), kind, 0)


def test_results_are_compared_by_value() -> None:
    weights = attention_map()
    assert weights == attention_map()
    assert hash(weights) == hash(attention_map())
    assert weights != attention_map(shift=1e-6)
    assert weights != attention_map(kind="encoder")
    labels = weights.source, weights.target, weights.kind, weights.layer
    assert weights != AttentionMap(weights.weights_HTS.astype(np.float64), *labels)
    assert weights != AttentionMap(weights.weights_HTS[:, :1], *labels)
    assert weights != "map"
    query = torch.randn(5, 4)
    assert regard.summarise(query, query, top=2) == regard.summarise(query, query, top=2)
    assert regard.summarise(query, query, top=2) != regard.summarise(query, query, top=2, blocks=True)
    assert regard.attend(query, query, query, attention="hard") == regard.attend(query, query, query, attention="hard")
    assert attend_with(Look(Tap("encoder"))).seen == attend_with(Look(Tap("encoder"))).seen
    ids = torch.tensor([[1, 2]])
    assert Source(ids, ids > 1, Source(ids, ids > 0)) == Source(ids.clone(), ids > 1, Source(ids, ids > 0))
    assert Source(ids, ids > 1) != Source(ids, ids > 1, Source(ids, ids > 0))


def test_draw_refuses_what_it_cannot_draw(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    result = Result("x", (), "abc", (), 0.0, 0.0, True, (), ())
    words = "draw expects numbers, an attention map or a result, but got a {}"
    refused(lambda: regard.draw(torch.nn.Linear(1, 1), tmp_path / "a.png"), words.format("Linear"))
    refused(lambda: regard.draw([attention_map(), result], tmp_path / "a.png"), "a list of attention maps that holds a Result")
    refused(lambda: regard.write_page(attention_map(), tmp_path / "a.html"), "write_page expects the result of regard.inspect")
    assert list(tmp_path.iterdir()) == []
    assert regard.draw(attention_map(), tmp_path / "a.png").path == tmp_path / "a.png"
    assert (tmp_path / "a.png").is_file()


@pytest.mark.slow
def test_the_reference_is_imported_on_demand_without_torch() -> None:
    code = (
        "import sys, regard; assert not {'numpy', 'torch'} & set(sys.modules); "
        "print(regard.reference.causal(1, 2)); assert 'torch' not in sys.modules; assert 'reference' in dir(regard)"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[[ True  True]]\n"


# --- a model -----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def translator() -> regard.Translator:
    return regard.load(Path(__file__).parents[1] / "frozen" / "models" / "transformer", device="cpu")


@pytest.mark.parametrize("text", [3, None, torch.zeros(2, 3), torch.tensor(1), ["run"]])
def test_a_text_is_a_string(text: object, translator: regard.Translator) -> None:
    for use in (
        translator,
        lambda text: regard.inspect(translator, text),
        lambda text: regard.explain(translator, text),
    ):
        refused(lambda: use(text), "takes one text, got .*; for a list of texts call batch")  # type: ignore[operator] # noqa: B023
    if not isinstance(text, list):
        refused(lambda: translator.batch(text), "batch takes a list of texts, got .*; for one text call the model itself")


@pytest.mark.parametrize("output", [3, 1j, [None], ["WALK"], [0.5], [-1], [10**6], torch.zeros(2, 3), torch.tensor(1)])
def test_an_output_to_inspect_is_token_ids(output: object, translator: regard.Translator) -> None:
    for function in (regard.inspect, regard.explain):
        refused(lambda: function(translator, "run", output=output), "output is .*, expected token ids")  # type: ignore[operator] # noqa: B023


@pytest.mark.parametrize("number", [None, "0", 0.5, [0], 10**30, torch.zeros(2, 3)])
def test_token_layer_and_head_of_explain_are_whole_numbers(number: object, translator: regard.Translator) -> None:
    for wrong in ({"token": number}, {"layer": number}, {"head": number}):
        refused(lambda: regard.explain(translator, "run", output=(4,), **wrong), "there is no |head is .*, expected one whole")  # noqa: B023
    refused(lambda: translator("run", banned=torch.tensor(1)), "banned is .*, expected a list of lists of token ids")
    refused(lambda: regard.inspect(translator, "run", output=(4,), what=number), "a tap cannot ask for ")
