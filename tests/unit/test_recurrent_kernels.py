"""The kernels of recurrent layers against torch in float64, for every instruction set."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from regard.core import masks
from regard.layers.recurrent import RecurrentEncoder, make_stack, run
from regard.look import Look, Tap
from regard.models.contract import Memory
from regard.models.rnn_seq2seq import RnnSeq2Seq, RnnSettings
from regard.native import bahdanau as native_bahdanau
from regard.native import recurrent as native
from regard.native.flops import COUNTED_KERNELS
from regard.native.library import library

pytestmark = pytest.mark.skipif(library() is None, reason="the native library is not built: make native")

CELLS = ("gru", "rnn_tanh", "rnn_relu", "rnn_sigmoid")
every_cell = pytest.mark.parametrize("cell", CELLS)


@pytest.fixture(params=["avx512", "avx2", "portable"])
def instructions(request):
    chosen = library().regard_instruction_set()
    if library().regard_choose(request.param.encode()):
        pytest.skip(f"this processor has no {request.param}")
    yield request.param
    library().regard_choose(chosen)


@pytest.fixture
def calls(monkeypatch) -> list[str]:
    """The kinds of cells that the kernels have computed."""
    found: list[str] = []
    original = native.run_layer
    monkeypatch.setattr(native, "run_layer", lambda mode, *given: found.append(mode) or original(mode, *given))
    return found


def results(compute: Callable[..., tuple[Tensor, Tensor]], module: nn.Module, *inputs: Tensor) -> list[Tensor]:
    """Returns both outputs and the gradients of inputs and weights."""
    outputs = compute(*inputs)
    upstream = [torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view_as(x).cos() for x in outputs]
    leaves = [*(x for x in inputs if x.requires_grad), *module.parameters()]
    return [*outputs, *torch.autograd.grad(outputs, leaves, upstream)]


def assert_equals_torch(module: nn.Module, compute: Callable[..., tuple[Tensor, Tensor]], *inputs: Tensor) -> None:
    """Compares with the same in float64, which the kernels leave to torch."""
    found = results(compute, module, *inputs)
    doubles = [x.detach().double().requires_grad_() if x.is_floating_point() else x for x in inputs]
    for one, other in zip(found, results(compute, module.double(), *doubles), strict=True):
        torch.testing.assert_close(one.double(), other, atol=3e-6 * max(1.0, other.abs().max().item()), rtol=1e-5)


def encoder_inputs(rows: int, steps: int, width: int) -> tuple[Tensor, Tensor]:
    lengths = 1 + torch.arange(rows) * 7 % steps
    return torch.randn(rows, steps, width, requires_grad=True), masks.first(lengths, steps)


@every_cell
@pytest.mark.parametrize("sizes", [(1, 2, 1, 1), (5, 7, 3, 6), (61, 6, 33, 40), (7, 301, 2, 17)])
def test_value_and_gradients_of_a_stack(cell: str, sizes: tuple[int, ...], instructions: str, calls: list[str]) -> None:
    rows, steps, input_width, width = sizes
    torch.manual_seed(1)
    stack = make_stack(cell, input_width, width, layers=2)
    inputs = torch.randn(rows, steps, input_width, requires_grad=True), torch.randn(2, rows, width, requires_grad=True)
    assert_equals_torch(stack, lambda x, state: run(stack, x, state), *inputs)
    assert len(calls) == 2


@every_cell
def test_value_and_gradients_of_both_directions(cell: str, instructions: str, calls: list[str]) -> None:
    torch.manual_seed(2)
    encoder = RecurrentEncoder(cell, 5, 38, layers=2)
    assert_equals_torch(encoder, encoder, *encoder_inputs(11, 9, 5))
    assert len(calls) == 2  # both directions of a layer at once


def test_results_do_not_depend_on_threads_or_neighbours(calls: list[str]) -> None:
    encoder, (x, allow), threads = RecurrentEncoder("gru", 19, 44), encoder_inputs(151, 5, 19), torch.get_num_threads()
    found = []
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            found.append(results(encoder, encoder, x, allow))
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))
    alone = encoder(x[70:71], allow[70:71])
    assert torch.equal(found[0][0][70:71], alone[0])
    assert torch.equal(found[0][1][70:71], alone[1])
    assert len(calls) == 4


def test_padding_and_its_gradient_stay_out() -> None:
    encoder, (x, allow) = RecurrentEncoder("gru", 4, 6), encoder_inputs(9, 7, 4)
    states, ends = encoder(x, allow)
    other = x.detach().masked_fill(~allow[..., None], 77.0).requires_grad_()
    changed, changed_ends = encoder(other, allow)
    assert torch.equal(states[allow], changed[allow])
    assert torch.equal(ends, changed_ends)
    (gradient,) = torch.autograd.grad(changed[allow].sum() + changed_ends.sum(), other)
    assert not gradient[~allow].any()
    assert (gradient[allow] != 0).all()


def test_nan_stays_in_its_row_and_is_not_lost() -> None:
    stack, x = make_stack("gru", 3, 5), torch.randn(4, 6, 3)
    x[1, 2, 0] = torch.nan
    with torch.no_grad():
        states, last = run(stack, x)
    bad = states.isnan()
    assert bad[1, 2:].all()
    assert bad.sum() == 4 * 5
    assert last[0, 1].isnan().all()


def test_saved_values_survive_the_backward_pass() -> None:
    stack, x = make_stack("gru", 3, 5), torch.randn(4, 6, 3, requires_grad=True)
    states, _ = run(stack, x)
    once, again = (torch.autograd.grad(states.square().sum(), x, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(once, again)


@every_cell
def test_a_second_derivative_is_that_of_torch(cell: str) -> None:
    torch.manual_seed(3)
    encoder, (x, allow) = RecurrentEncoder(cell, 3, 8), encoder_inputs(4, 5, 3)

    def second(x: Tensor) -> Tensor:
        (gradient,) = torch.autograd.grad(encoder(x, allow)[0].square().sum(), x, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), encoder.forwards[0].weight_hh_l0)[0]

    found = second(x).double()
    encoder.double()
    torch.testing.assert_close(found, second(x.detach().double().requires_grad_()), atol=1e-5, rtol=1e-4)


def test_torch_accepts_the_operators() -> None:
    lead = (2, 15)
    weights = [torch.randn(*lead, width, requires_grad=True) for width in (3, 5)]
    biases = [torch.randn(lead, requires_grad=True) for _ in range(2)]
    x, first = torch.randn(4, 6, 3, requires_grad=True), torch.randn(2, 4, 5, requires_grad=True)
    given = (native.MODES["GRU"], x, *weights, *biases, first)
    torch.library.opcheck(torch.ops.regard.recurrent.default, (*given, torch.tensor([6, 1, 3, 4])))
    torch.library.opcheck(torch.ops.regard.recurrent.default, (*given, None))


@pytest.mark.filterwarnings("ignore:The tensor attributes .* were assigned during export")
def test_what_torch_computes(calls: list[str], monkeypatch) -> None:
    stack, lstm, x, zeros = make_stack("gru", 3, 5), make_stack("lstm", 3, 5), torch.randn(4, 6, 3), torch.zeros(1, 4, 5)
    run(lstm, x)
    run(stack, x[:, :1])
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([6, 4, 3, 1]), batch_first=True)
    torch.testing.assert_close(stack(x)[0][0], nn.utils.rnn.unpack_sequence(stack(packed)[0])[0])
    stack(x[0], zeros[:, 0])
    with torch.autocast("cpu", torch.bfloat16):
        run(stack, x)
    torch.func.grad(lambda x: run(stack, x)[0].sum())(x)
    torch.export.export(stack, (x, zeros))
    run(stack.double(), x.double())
    assert not calls
    found = run(stack.float(), x)[0]
    assert calls == ["GRU"]
    monkeypatch.setattr(native, "_LIBRARY", None)
    torch.testing.assert_close(run(stack, x)[0], found, atol=1e-6, rtol=1e-5)
    assert calls == ["GRU"]


def test_hooks_of_both_directions_are_called(calls: list[str]) -> None:
    encoder, (x, allow), seen = RecurrentEncoder("gru", 3, 8), encoder_inputs(4, 5, 3), []
    without = encoder(x, allow)[0]
    handle = encoder.backwards[0].register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    hooked = encoder(x, allow)[0]
    handle.remove()
    torch.testing.assert_close(hooked, without)
    (reversed_x,) = seen
    assert torch.equal(reversed_x[1, 0], x[1, int(allow[1].sum()) - 1])


@every_cell
def test_operations_are_counted_as_those_of_torch(cell: str, monkeypatch) -> None:
    encoder, (x, allow) = RecurrentEncoder(cell, 3, 8, layers=2), encoder_inputs(4, 25, 3)

    def count(*, backwards: bool) -> int:
        with FlopCounterMode(display=False, custom_mapping=COUNTED_KERNELS) as counter:
            states = encoder(x, allow)[0]
            if backwards:
                states.sum().backward()
        return counter.get_total_flops()

    ours = [count(backwards=backwards) for backwards in (False, True)]
    monkeypatch.setattr(native, "_LIBRARY", None)
    forward, both = (count(backwards=backwards) for backwards in (False, True))
    assert ours[0] == forward > 0
    assert both <= ours[1] < 1.02 * both  # torch leaves out the gradient of the first state


# --- Bahdanau's decoder ------------------------------------------------------------------------------------------------------


def decoder(width: int, **changes) -> RnnSeq2Seq:
    torch.manual_seed(4)
    settings = RnnSettings(width=width, embedding=7, score_width=11, decoder="bahdanau", dropout=0.0, **changes)
    return RnnSeq2Seq(settings, 10, 13)


def memory_inputs(model: RnnSeq2Seq, rows: int, positions: int) -> tuple[Tensor, Tensor, Tensor]:
    values = torch.randn(rows, positions, model.settings.memory_width, requires_grad=True)
    return values, torch.randn(rows, model.settings.memory_width, requires_grad=True), 1 + torch.arange(rows) * 5 % positions


def logits(model: RnnSeq2Seq, ids: Tensor) -> Callable[..., tuple[Tensor, ...]]:
    """Returns a function from values, summaries and lengths to the logits and the last state."""

    def compute(values: Tensor, summary: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        memory = Memory(values, masks.first(lengths, values.shape[1]), summary, axes=(values.shape[1],))
        state = model.start(memory, ids)
        return model.decode(ids, memory).logits_BTV, state.hidden_BKLX

    return compute


@pytest.fixture
def whole(monkeypatch) -> list[int]:
    """The numbers of steps that the kernel of Bahdanau's decoder has computed."""
    found: list[int] = []
    original = native_bahdanau.decode
    monkeypatch.setattr(native_bahdanau, "decode", lambda x, *given: found.append(x.shape[1]) or original(x, *given))
    return found


@pytest.mark.parametrize("sizes", [(1, 2, 1, 2), (5, 7, 3, 6), (61, 6, 33, 40), (7, 61, 2, 18)])
def test_value_and_gradients_of_bahdanau(sizes: tuple[int, ...], instructions: str, whole: list[int]) -> None:
    rows, steps, positions, width = sizes
    model, ids = decoder(width), torch.arange(rows * steps).view(rows, steps) % 13
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.split(".")[0] not in ("source_embedding", "encoder"))
    used = nn.ParameterList(parameter for parameter in model.parameters() if parameter.requires_grad)
    inputs = memory_inputs(model, rows, positions)

    def compute(*given: Tensor) -> tuple[Tensor, ...]:
        model.to(given[0].dtype)
        return logits(model, ids)(*given)

    found = results(compute, used, *inputs)
    doubles = [x.detach().double().requires_grad_() if x.is_floating_point() else x for x in inputs]
    for one, other in zip(found, results(compute, used, *doubles), strict=True):
        torch.testing.assert_close(one.double(), other, atol=4e-6 * max(1.0, other.abs().max().item()), rtol=1e-5)
    assert whole == [steps, steps]


def test_rows_without_a_key_have_no_context() -> None:
    model = decoder(6)
    values, summary, _ = memory_inputs(model, 3, 4)
    with torch.no_grad():
        found = logits(model, torch.arange(15).view(3, 5) % 13)(values, summary, torch.tensor([4, 0, 2]))[0]
        model.double()
        exact = logits(model, torch.arange(15).view(3, 5) % 13)(values.double(), summary.double(), torch.tensor([4, 0, 2]))[0]
    torch.testing.assert_close(found.double(), exact, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("allowed", [1, 2, 4])
def test_nan_in_a_key_is_not_lost(allowed: int) -> None:
    model = decoder(6)
    values, summary, _ = memory_inputs(model, 3, 4)
    with torch.no_grad():
        values[1, allowed - 1, 2] = torch.nan
        found = logits(model, torch.arange(15).view(3, 5) % 13)(values, summary, torch.tensor([4, allowed, 2]))[0]
    assert found.isnan().flatten(1).any(1).tolist() == [False, True, False]
    assert found[1].isnan().all()


def test_bahdanau_does_not_depend_on_threads_or_neighbours() -> None:
    shapes = ((151, 5, 66), (66, 22), (66, 22), (66,), (11, 22), (11,), (151, 6, 11), (151, 6, 22), (151, 22))
    inputs, allow, threads = (
        [torch.randn(shape, requires_grad=True) for shape in shapes],
        torch.rand(151, 6) > 0.3,
        torch.get_num_threads(),
    )
    found = []
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            found.append(results(lambda *given: native_bahdanau.decode(*given, allow), nn.Module(), *inputs))
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))
    alone = native_bahdanau.decode(*(x[70:71] if len(x) == 151 else x for x in inputs), allow[70:71])
    assert torch.equal(alone[0], found[0][0][70:71])
    assert torch.equal(alone[1], found[0][1][70:71])


def test_a_second_derivative_of_bahdanau_is_that_of_torch() -> None:
    model, ids = decoder(6), torch.arange(15).view(3, 5)
    values, summary, lengths = memory_inputs(model, 3, 4)

    def second(values: Tensor, summary: Tensor) -> Tensor:
        (gradient,) = torch.autograd.grad(
            logits(model, ids % 13)(values, summary, lengths)[0].square().sum(), values, create_graph=True
        )
        return torch.autograd.grad(gradient.square().sum(), model.score.v)[0]

    found = second(values, summary).double()
    model.double()
    exact = second(values.detach().double().requires_grad_(), summary.detach().double())
    torch.testing.assert_close(found, exact, atol=1e-5, rtol=1e-4)


def test_torch_accepts_the_operators_of_bahdanau() -> None:
    shapes = ((2, 5, 9), (9, 4), (9, 3), (9,), (6, 3), (6,), (2, 7, 6), (2, 7, 4), (2, 3))
    inputs = [torch.randn(shape, requires_grad=True) for shape in shapes]
    torch.library.opcheck(torch.ops.regard.bahdanau.default, (*inputs, torch.rand(2, 7) > 0.3))


def test_what_the_loop_computes(whole: list[int]) -> None:
    values_and_more = memory_inputs(decoder(6), 3, 4)
    ids = torch.arange(15).view(3, 5) % 13
    for changes in ({"cell": "lstm"}, {"decoder_layers": 2}, {"score": "dot"}, {"attention": "hard"}):
        logits(decoder(6, **changes), ids)(*values_and_more)
    model = decoder(6)
    logits(model, ids[:, :1])(*values_and_more)
    values, summary, lengths = values_and_more
    memory = Memory(values, masks.first(lengths, 4), summary, axes=(4,))
    looked = model.decode(ids, memory, Look((Tap("cross"),)))
    with torch.autocast("cpu", torch.bfloat16):
        model.decode(ids, memory)
    assert not whole
    torch.testing.assert_close(model.decode(ids, memory).logits_BTV, looked.logits_BTV, atol=1e-6, rtol=1e-5)
    assert whole == [5]


def test_operations_of_bahdanau_are_counted_as_those_of_the_loop(monkeypatch) -> None:
    model, ids = decoder(22), torch.arange(15 * 5).view(15, 5) % 13
    inputs = memory_inputs(model, 15, 6)

    def count(*, backwards: bool) -> int:
        with FlopCounterMode(display=False, custom_mapping=COUNTED_KERNELS) as counter:
            found = logits(model, ids)(*inputs)[0]
            if backwards:
                found.sum().backward()
        return counter.get_total_flops()

    ours = [count(backwards=backwards) for backwards in (False, True)]
    monkeypatch.setattr(native_bahdanau, "_LIBRARY", None)
    forward, both = (count(backwards=backwards) for backwards in (False, True))
    assert ours[0] == forward > 0
    assert abs(ours[1] / both - 1) < 0.02
