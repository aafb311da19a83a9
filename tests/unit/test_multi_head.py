"""Self-, cross- and multi-head attention."""

from collections.abc import Callable

import pytest
import torch
from table import SCORES
from test_attention import Largest
from torch import Tensor, nn

import regard
from regard.core import masks
from regard.layers.attention import MultiHeadAttention
from regard.layers.scores import Additive, Location
from regard.look import Edit, Look, Tap


def softmax_rows(scores: Tensor) -> Tensor:
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)


def test_basic_self_attention() -> None:  # SPEC A6.1
    x = torch.randn(2, 5, 11).double().requires_grad_()
    expected = softmax_rows(x @ x.mT) @ x
    ours = regard.self_attention(x)
    torch.testing.assert_close(ours, expected)
    weight = torch.randn_like(expected)
    torch.testing.assert_close(*(torch.autograd.grad((one * weight).sum(), x)[0] for one in (ours, expected)))
    lower = masks.causal(5)
    alone = regard.self_attention(x, allow=lower)
    torch.testing.assert_close(alone[:, 0], x[:, 0])  # the first position attends to itself only
    torch.testing.assert_close(alone[:, -1], ours[:, -1])


def test_one_learnable_head_in_one_line() -> None:  # SPEC A6.2
    layer = MultiHeadAttention(11, 1, key_dim=5, value_dim=3, bias=False, project_output=False).double()
    x = torch.randn(2, 7, 11).double().requires_grad_()
    w_q, w_k, w_v = (linear.weight.T for linear in (layer.query, layer.key, layer.value))
    expected = softmax_rows(x @ w_q @ w_k.T @ x.mT / 5**0.5) @ x @ w_v
    ours = layer(x)
    assert ours.shape == (2, 7, 3)
    torch.testing.assert_close(ours, expected)
    wrt = [x, *layer.parameters()]
    weight = torch.randn_like(expected)
    for one, other in zip(*(torch.autograd.grad((y * weight).sum(), wrt) for y in (ours, expected)), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("project_output", [True, False])
def test_one_wide_matrix_equals_many_small_ones(project_output: bool) -> None:  # SPEC A6.3
    layer = MultiHeadAttention(11, 2, key_dim=2, value_dim=3, project_output=project_output).double()
    x, memory = torch.randn(2, 5, 11).double(), torch.randn(2, 7, 11).double()
    heads = []
    for head in range(2):
        keys, values = slice(2 * head, 2 * head + 2), slice(3 * head, 3 * head + 3)
        q = x @ layer.query.weight[keys].T + layer.query.bias[keys]
        k = memory @ layer.key.weight[keys].T + layer.key.bias[keys]
        v = memory @ layer.value.weight[values].T + layer.value.bias[values]
        heads.append(softmax_rows(q @ k.mT / 2**0.5) @ v)
    together = torch.cat(heads, -1)
    expected = together @ layer.output.weight.T + layer.output.bias if project_output else together
    assert expected.shape == (2, 5, 11 if project_output else 6)
    torch.testing.assert_close(layer(x, memory), expected)
    assert MultiHeadAttention(12, 3).key.weight.shape == (12, 12)  # key_dim = d/h unless it is given


def test_cross_attention_between_modalities() -> None:  # SPEC A6.4
    """Attention(Q_audio, K_text, V_text): lengths and widths differ; padding of the text is ignored."""
    layer = MultiHeadAttention(11, 2, memory_width=13, key_dim=5).double()
    audio, text = torch.randn(3, 17, 11).double(), torch.randn(3, 7, 13).double()
    allow = masks.first(torch.tensor([7, 2, 5]), 7)
    output = layer(audio, text, allow=allow[:, None, None])
    assert output.shape == (3, 17, 11)
    theirs = nn.MultiheadAttention(10, 2, batch_first=True).double()
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.eye(10).repeat(3, 1))
        theirs.in_proj_bias.zero_()
        theirs.out_proj.weight.copy_(torch.eye(10))
        theirs.out_proj.bias.zero_()
    heads, _ = theirs(layer.query(audio), layer.key(text), layer.value(text), key_padding_mask=~allow)
    torch.testing.assert_close(output, layer.output(heads))
    for row, length in enumerate((7, 2, 5)):
        torch.testing.assert_close(layer(audio[row], text[row, :length]), output[row])


def test_values_are_the_states_themselves() -> None:  # SPEC A6.5
    layer = MultiHeadAttention(11, 2, memory_width=13, key_dim=5, project_values=False, project_output=False).double()
    x, memory = torch.randn(2, 5, 11).double(), torch.randn(2, 7, 13).double()
    heads = []
    for head in range(2):
        part = slice(5 * head, 5 * head + 5)
        q = x @ layer.query.weight[part].T + layer.query.bias[part]
        k = memory @ layer.key.weight[part].T + layer.key.bias[part]
        heads.append(softmax_rows(q @ k.mT / 5**0.5) @ memory)
    torch.testing.assert_close(layer(x, memory), torch.cat(heads, -1))
    assert layer.value is None
    joined = MultiHeadAttention(11, 2, memory_width=13, key_dim=5, project_values=False)
    assert joined.output.weight.shape == (11, 26)


def test_query_key_and_value_are_separate_tensors_of_different_widths() -> None:  # SPEC A6.4
    layer = MultiHeadAttention(11, 2, memory_width=13, value_width=7, key_dim=5, value_dim=3).double()
    query, key, value = (torch.randn(2, length, width).double() for length, width in ((5, 11), (3, 13), (3, 7)))
    heads = []
    for head in range(2):
        part, values = slice(5 * head, 5 * head + 5), slice(3 * head, 3 * head + 3)
        q = query @ layer.query.weight[part].T + layer.query.bias[part]
        k = key @ layer.key.weight[part].T + layer.key.bias[part]
        v = value @ layer.value.weight[values].T + layer.value.bias[values]
        heads.append(softmax_rows(q @ k.mT / 5**0.5) @ v)
    torch.testing.assert_close(layer(query, key, value), layer.output(torch.cat(heads, -1)))
    same = MultiHeadAttention(11, 1, value_width=7).double()
    x, other = torch.randn(2, 5, 11).double(), torch.randn(2, 5, 7).double()
    torch.testing.assert_close(same(x, value=other), same(x, x, other))  # without a key, keys are the queries
    joined = MultiHeadAttention(11, 1).double()
    torch.testing.assert_close(joined(x, x * 2), joined(x, x * 2, x * 2))  # without a value, values are the keys
    states = MultiHeadAttention(11, 1, value_width=7, project_values=False, project_output=False).double()
    assert states(x, value=other).shape == (2, 5, 7)


# --- weights, looks and dropout ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"kv_heads": 2}, {"alibi": True}, {"rotary": "halves"}, {"dropout": 0.5}], ids=str)
@pytest.mark.parametrize("score_name", ["scaled_dot", "additive", "cosine"])
def test_weights_do_not_change_the_output(score_name: str, options: dict[str, object]) -> None:
    if score_name == "additive" and "rotary" in options:
        return
    layer, x = MultiHeadAttention(24, 4, score=SCORES[score_name](6), **options), torch.randn(3, 6, 24)
    allow = masks.first(torch.tensor([6, 2, 4]), 6)[:, None]
    outputs = []
    for given in ({}, {"weights": True}, {"look": Look((Tap("encoder"),))}):
        torch.manual_seed(7)
        outputs.append(layer(x, allow=allow, **given))
    plain, (output, weights), seen = outputs
    assert torch.equal(plain, output)
    assert torch.equal(plain, seen.context)
    torch.testing.assert_close(weights, seen.seen[0].weights_BHTS)
    assert weights.shape == (3, 4, 6, 6)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 4, 6))  # before dropout
    assert (weights[1, :, :, 2:] == 0).all()
    values = layer.keys_values(x)[1].repeat_interleave(4 // layer.kv_heads, dim=1)
    mixed = layer.output((weights @ values).transpose(1, 2).flatten(-2))
    if not layer.dropout:
        torch.testing.assert_close(mixed, output)
    (gradient,) = torch.autograd.grad(weights.square().sum(), layer.query.weight)
    assert gradient.abs().max() > 0


def test_weights_of_one_sentence_without_a_batch() -> None:
    layer, x = MultiHeadAttention(20, 4), torch.randn(6, 20)
    output, weights = layer(x, weights=True)
    assert output.shape == (6, 20)
    assert weights.shape == (4, 6, 6)


def test_a_look_in_the_layer() -> None:
    layer, x = MultiHeadAttention(20, 4), torch.randn(3, 6, 20)
    found = layer(x, look=Look((Tap(head=1, rows=(2,)), Tap(what="scores"))))  # of any kind
    assert [result.weights_BHTS.shape for result in found.seen] == [(3, 1, 1, 6), (3, 4, 6, 6)]
    off = layer(x, look=Look((Tap(),), (Edit(head=2),)))
    assert (off.seen[0].weights_BHTS[:, 2] == 0).all()
    assert not torch.equal(off.context, found.context)
    whole = layer(x, look=Look((Tap(head=1),), grad=True))
    (gradient,) = torch.autograd.grad(whole.context.sum(), whole.seen[0].weights_BHTS)  # the tensor that was used
    assert gradient.shape == (3, 4, 6, 6)
    assert layer(x, look=Look()).seen == ()
    with pytest.raises(ValueError, match="weights=True and a look were both given"):
        layer(x, weights=True, look=Look())
    with pytest.raises(
        regard.UserError, match="there is no cross attention here, only encoder; request it with kind='encoder'"
    ):
        layer(x, look=Look((Tap("encoder"), Tap("cross"))))


@pytest.mark.parametrize("score_name", ["scaled_dot", "additive"])
@pytest.mark.parametrize("tile", [None, 2 * 4 * 7])
def test_dropout_of_weights(score_name: str, tile: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """In training, weights are dropped and the others scaled; the default generator decides which, also in tiles."""
    if tile is not None:
        monkeypatch.setattr("regard.core.attention.TILE", tile)
    layer = MultiHeadAttention(20, 4, score=SCORES[score_name](5), dropout=0.25, project_output=False)
    x = torch.randn(2, 7, 20)
    identity = torch.eye(7).repeat(2, 1, 1)  # values that show which weights are left
    layer.value, layer.value_width = None, 7
    outputs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outputs.append(layer(x, x, identity).unflatten(-1, (4, 7)).transpose(1, 2))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])
    _, weights = layer(x, x, identity, weights=True)
    kept = outputs[0] != 0
    torch.testing.assert_close(outputs[0][kept], (weights / 0.75)[kept])
    assert 0.6 < kept.double().mean() < 0.9
    layer.eval()
    torch.testing.assert_close(layer(x, x, identity).unflatten(-1, (4, 7)).transpose(1, 2), weights)
    with pytest.raises(ValueError, match=r"dropout is 1\.5, expected a probability"):
        MultiHeadAttention(20, 4, dropout=1.5)


def test_dropout_has_the_gradient_of_the_weights_that_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("regard.core.attention.TILE", 2 * 2 * 5)  # the backward pass computes tiles again
    layer = MultiHeadAttention(6, 2, dropout=0.5).double()

    def call(x: Tensor) -> Tensor:
        torch.manual_seed(3)
        return layer(x)

    assert torch.autograd.gradcheck(call, torch.randn(2, 5, 6, dtype=torch.float64, requires_grad=True))


def test_dropout_on_other_devices_uses_the_fused_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device "meta" stands for a GPU."""
    called, original = [], torch.nn.functional.scaled_dot_product_attention

    def recorded(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, **options: object) -> Tensor:
        called.append(dropout)
        return original(query, key, value, mask, dropout, **options)

    monkeypatch.setattr("torch.nn.functional.scaled_dot_product_attention", recorded)
    layer, x = MultiHeadAttention(20, 4, dropout=0.3).to("meta"), torch.empty(2, 7, 20, device="meta")
    assert layer(x).shape == (2, 7, 20)
    layer.eval()(x)
    assert called == [0.3, 0.0]


def test_the_repr_shows_what_is_not_usual() -> None:
    usual, other = (
        MultiHeadAttention(16, 4),
        MultiHeadAttention(
            16,
            4,
            score=Additive(4, 4, 3),
            kv_heads=2,
            memory_width=5,
            alibi=True,
            dropout=0.1,
            bias=False,
            project_output=False,
        ),
    )
    assert usual.extra_repr() == "width=16, heads=4, score=ScaledDot(divide_by='√d')"
    assert other.extra_repr() == (
        "width=16, heads=4, score=additive, memory_width=5, kv_heads=2, dropout=0.1, bias=False, project_output=False, "
        "alibi=True"
    )
    assert other.extra_repr() in repr(other)


# --- grouped keys and values -------------------------------------------------------------------------------------------------


def repeated(layer: MultiHeadAttention, groups: int) -> MultiHeadAttention:
    """The same function with a copy of its keys and values for every query head."""
    score = layer.score
    full = MultiHeadAttention(layer.query.in_features, layer.heads, score=score).double()
    full.query, full.output = layer.query, layer.output
    for name in ("key", "value"):
        few, many = getattr(layer, name), getattr(full, name)
        if few is None:
            continue
        with torch.no_grad():
            for mine, theirs in ((few.weight, many.weight), (few.bias, many.bias)):
                copies = mine.unflatten(0, (groups, -1)).repeat_interleave(layer.heads // groups, dim=0)
                theirs.copy_(copies.flatten(0, 1))
    return full


@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("score_name", ["scaled_dot", "additive", "cosine", "location"])
@pytest.mark.parametrize("mask", ["none", "causal", "per head", "padding"])
def test_grouped_heads_share_their_keys(groups: int, score_name: str, mask: str) -> None:
    score = SCORES[score_name](5)
    score = score.double() if isinstance(score, nn.Module) else score
    layer = MultiHeadAttention(30, 6, kv_heads=groups, score=score).double()
    x = torch.randn(2, 7, 30).double()
    allow = {
        "none": None,
        "causal": masks.causal(7),
        "per head": torch.rand(1, 6, 7, 7) < 0.7,
        "padding": masks.first(torch.tensor([7, 3]), 7)[:, None, None],
    }[mask]
    full = repeated(layer, groups)
    torch.testing.assert_close(layer(x, allow=allow), full(x, allow=allow))
    look = Look((Tap("encoder"),), (Edit("encoder", head=4),))  # heads are query heads, for edits too
    one, other = (part.attend(part.queries(x), *part.keys_values(x), allow, look) for part in (layer, full))
    torch.testing.assert_close(one.context, other.context)
    torch.testing.assert_close(one.seen[0].weights_BHTS, other.seen[0].weights_BHTS)
    assert (one.seen[0].weights_BHTS[:, 4] == 0).all()


def test_grouped_heads_copy_no_key() -> None:
    layer = MultiHeadAttention(64, 16, kv_heads=1)
    query, (keys, values) = layer.queries(torch.randn(1, 1, 64)), layer.keys_values(torch.randn(1, 4096, 64))
    with Largest() as largest, torch.no_grad():
        layer.attend(query, keys, values, None, None)
    assert largest.numel <= 4096 * 4 * 4  # 16 heads would have 4096 · 64 numbers each for keys and values


# --- masks -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_a_mask_of_one_row_per_head(kv_heads: int) -> None:
    layer, x = MultiHeadAttention(16, 4, kv_heads=kv_heads), torch.randn(2, 6, 16)
    torch.testing.assert_close(layer(x, allow=torch.ones(2, 4, 1, 6).bool()), layer(x))


def test_a_padding_mask_applies_to_sentences_even_if_there_are_as_many_heads() -> None:
    layer, x = MultiHeadAttention(16, 4), torch.randn(4, 6, 16)
    lengths = torch.tensor([6, 2, 3, 5])
    padded = layer(x, allow=masks.first(lengths, 6)[:, None])
    for row, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(padded[row, :length], layer(x[row, :length]))


@pytest.mark.parametrize("kv_heads", [1, 3])
def test_a_score_by_position_does_not_count_padding(kv_heads: int) -> None:  # SPEC A2.5
    """Row j of W belongs to the j-th real position, wherever the padding is."""
    layer = MultiHeadAttention(12, 3, score=Location(4, 9), kv_heads=kv_heads).double()
    x = torch.randn(3, 6, 12).double()
    real = [slice(0, 6), slice(2, 6), slice(1, 4)]
    allow = torch.zeros(3, 6, dtype=torch.bool)
    for row, part in enumerate(real):
        allow[row, part] = True
    padded = layer(x, allow=allow[:, None])
    per_head = layer(x, allow=allow[:, None, None] & masks.causal(6).expand(3, 3, 6, 6))
    for row, part in enumerate(real):
        torch.testing.assert_close(padded[row, part], layer(x[row, part]))
        alone = layer(x[row, part], allow=masks.causal(part.stop - part.start))
        torch.testing.assert_close(per_head[row, part], alone)
    memory = x[:1]
    torch.testing.assert_close(layer(x, memory, allow=allow[:, None])[1], layer(x[1], memory[0, 2:]))


def test_an_additive_mask_is_refused() -> None:
    layer, x = MultiHeadAttention(16, 4), torch.randn(2, 6, 16)
    for mask in (nn.Transformer.generate_square_subsequent_mask(6), torch.zeros(2, 4, 6, 6)):
        for attempt in (
            lambda: layer(x, allow=mask),  # noqa: B023
            lambda: layer.attend(layer.queries(x), *layer.keys_values(x), mask, None),  # noqa: B023
        ):
            with pytest.raises(
                ValueError, match=r"allow has dtype torch.float32, expected torch.bool .*`mask == 0` if it is an"
            ):
                attempt()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda layer, x: layer(x, x, torch.ones(6, 6).bool()),
            r"value is a boolean tensor.* pass a mask by name: .*allow=mask",
        ),
        (lambda layer, x: layer(x, x, x[:, :4]), r"every key needs one value, but there are 6 keys and 4 values"),
        (lambda layer, x: layer(x, x, x[..., :4]), r"value has shape \(2, 6, 4\), expected \(batch, length, 16\)"),
        (lambda layer, x: layer(x.long()), r"query has dtype torch.int64, expected floating-point vectors"),
        (lambda layer, x: layer(x, allow=[[True]]), r"allow is a list, expected a tensor; write torch.as_tensor\(allow\)"),
        (
            lambda layer, x: layer(x, allow=torch.ones(4, 6, 6).bool()),
            r"\(4, 6, 6\), expected one of \(6, 6\), \(2, 6, 6\), \(2, 4, 6, 6\) = .* masks per head .* as allow\[None",
        ),
        (lambda layer, x: layer(x, allow=torch.ones(8, 6, 6).bool()), r"\(8, 6, 6\), expected one of \(6, 6\)"),
        (lambda layer, x: layer(x, allow=torch.ones(2, 3, 6, 6).bool()), r"\(2, 3, 6, 6\), expected one of \(6, 6\)"),
        (lambda layer, x: layer(x, allow=torch.ones(1, 2, 4, 6, 6).bool()), r"\(1, 2, 4, 6, 6\), expected one of"),
        (
            lambda layer, x: layer(x, allow=torch.ones(2, 6).bool()),
            r"\(2, 6\), which .* for a padding mask \(B, S\) write allow",
        ),
        (lambda layer, x: layer(x, allow=torch.ones(6).bool()), r"\(6,\), which does not broadcast"),
        (
            lambda layer, x: layer.attend(layer.queries(x), *layer.keys_values(x), torch.ones(4, 6, 6).bool(), None),
            r"allow has shape \(4, 6, 6\), expected \(Lq, Lk\) or \(B, H, Lq, Lk\)",
        ),
        (lambda layer, x: layer(x[..., :5]), r"query has shape \(2, 6, 5\), expected \(batch, length, 16\)"),
        (lambda layer, x: layer(x[0, 0]), r"query has shape \(16,\), expected \(…, length, width\)"),
        (lambda layer, x: layer(x, x[..., :5]), r"key has shape \(2, 6, 5\), expected \(batch, length, 16\)"),
        (
            lambda layer, x: layer(x, torch.randn(3, 6, 16)),
            r"the leading dimensions do not broadcast: \(2, 6, 16\), \(3, 6, 16\)",
        ),
        (lambda layer, x: layer(x.tolist()), r"query is a list, expected a tensor"),
        (lambda layer, x: layer(x, x.tolist()), r"key is a list, expected a tensor"),
    ],
)
def test_wrong_inputs_are_explained(call: Callable[[MultiHeadAttention, Tensor], Tensor], words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words) as caught:
        call(MultiHeadAttention(16, 4), torch.randn(2, 6, 16))
    assert "\n" not in str(caught.value)


def test_the_default_width_of_values_is_that_of_keys() -> None:  # SPEC A6.3
    """key_dim is width / heads by default, and value_dim is key_dim, given or not."""
    sizes = {(): (4, 4), (("key_dim", 5),): (5, 5), (("value_dim", 7),): (4, 7), (("key_dim", 5), ("value_dim", 7)): (5, 7)}
    x = torch.randn(2, 6, 12)
    for options, (key_dim, value_dim) in sizes.items():
        layer = MultiHeadAttention(12, 3, **dict(options))
        assert layer.query.weight.shape == layer.key.weight.shape == (3 * key_dim, 12)
        assert layer.value.weight.shape == (3 * value_dim, 12)
        assert layer(x).shape == x.shape
        assert MultiHeadAttention(12, 3, **dict(options), project_output=False)(x).shape == (2, 6, 3 * value_dim)


# --- positions inside attention ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["halves", "interleaved"])
@pytest.mark.parametrize("score_name", ["dot", "scaled_dot", "scaled_dot by d", "general", "basic", "cosine", "distance"])
def test_rotary_scores_depend_on_the_distance(score_name: str, layout: str) -> None:  # SPEC A7.12
    score = SCORES[score_name](6)
    score = score.double() if isinstance(score, nn.Module) else score
    layer = MultiHeadAttention(12, 2, score=score, rotary=layout).double()
    x = torch.randn(2, 5, 12).double()

    def scores(shift: int) -> Tensor:
        positions = torch.arange(5)[None] + shift
        keys, _ = layer.keys_values(x, positions)
        return layer.score.scores(layer.queries(x, positions), keys)

    torch.testing.assert_close(scores(0), scores(1000))
    plain = MultiHeadAttention(12, 2, score=score).double()
    plain.load_state_dict(layer.state_dict())
    assert not torch.allclose(layer(x), plain(x))
    same = x[:, :1].expand(2, 5, 12)  # equal tokens: only positions differ
    keys, _ = layer.keys_values(same)
    diagonals = layer.score.scores(layer.queries(same), keys)
    for distance in range(-4, 5):
        diagonal = diagonals.diagonal(distance, -2, -1)
        torch.testing.assert_close(diagonal, diagonal[..., :1].expand_as(diagonal))


@pytest.mark.parametrize("score", [Additive(6, 6, 5), Location(6, 9)])
def test_rotary_is_refused_by_name(score: regard.Score) -> None:  # SPEC A7.12
    with pytest.raises(
        ValueError, match=f"rotary positions rotate queries and keys.* but the score is '{score.name}'; use a score"
    ):
        MultiHeadAttention(12, 2, score=score, rotary="halves")


@pytest.mark.parametrize("score_name", SCORES)
@pytest.mark.parametrize("tile", [None, 1, 2 * 3 * 7 * 2])
@pytest.mark.parametrize("causal", [False, True])
def test_alibi_lowers_scores_by_distance(
    score_name: str, tile: int | None, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:  # SPEC A7.12
    if tile is not None:
        monkeypatch.setattr("regard.core.attention.TILE", tile)
    score = SCORES[score_name](5)
    score = score.double() if isinstance(score, nn.Module) else score
    layer = MultiHeadAttention(15, 3, score=score, alibi=True, project_output=False).double()
    x = torch.randn(2, 7, 15).double().requires_grad_()
    allow = masks.causal(7) if causal else torch.ones(7, 7) > 0
    keys, values = layer.keys_values(x)
    distance = (torch.arange(7)[:, None] - torch.arange(7)).abs()
    slopes = torch.tensor([2.0**-4, 2.0**-8, 2.0**-2], dtype=torch.float64)  # 3 heads: the slopes of 2, and one of 4
    biased = layer.score.scores(layer.queries(x), keys) - slopes[:, None, None] * distance
    expected = (softmax_rows(biased.masked_fill(~allow, -1e300)) @ values).transpose(1, 2).flatten(-2)
    ours = layer(x, allow=allow)
    torch.testing.assert_close(ours, expected)
    weight = torch.randn_like(expected)
    gradients = (torch.autograd.grad((y * weight).sum(), x, retain_graph=True)[0] for y in (ours, expected))
    torch.testing.assert_close(*gradients)
    (seen,) = layer.attend(layer.queries(x), keys, values, allow, Look((Tap("encoder"),))).seen
    torch.testing.assert_close(seen.weights_BHTS, softmax_rows(biased.masked_fill(~allow, -1e300)))


def test_wrong_sizes_are_explained() -> None:
    with pytest.raises(ValueError, match="width 10 is not divisible by 3 heads; choose a multiple of 3, or give key_dim"):
        MultiHeadAttention(10, 3)
    with pytest.raises(ValueError, match="6 heads cannot share 4 key-value heads evenly; make kv_heads a divisor"):
        MultiHeadAttention(12, 6, kv_heads=4)
    for name in ("width", "heads", "memory_width", "value_width", "key_dim", "value_dim", "kv_heads"):
        for size in (0, -4, 2.0, True, "4"):
            with pytest.raises(ValueError, match=f"{name} is {size!r}, expected a whole number, 1 or more"):
                MultiHeadAttention(**{"width": 16, "heads": 4, name: size})
    with pytest.raises(TypeError, match="score is 'additive', expected a Score such as"):
        MultiHeadAttention(16, 4, score="additive")
    with pytest.raises(ValueError, match="rotary is True, expected None or one of the layouts 'interleaved' or 'halves'"):
        MultiHeadAttention(16, 4, rotary=True)
    with pytest.raises(ValueError, match=r"needs pairs.*the width is 3; make it even"):
        MultiHeadAttention(9, 3, rotary="halves")(torch.randn(2, 5, 9))
