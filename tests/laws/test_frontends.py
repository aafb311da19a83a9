"""The laws, tested for models whose source is a picture, a grid of features or a sequence of frames (tests/table.py)."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from searching import make_engine, make_requests, outputs
from table import CHANNELS, EOS, FRONTENDS, PAD, make_frontend_model, make_rows, make_targets
from torch._subclasses.fake_tensor import FakeTensorMode

from regard.contracts import FileAndText
from regard.core import masks
from regard.core.positions import sinusoidal
from regard.core.source import Source
from regard.core.spectrum import BANDS
from regard.data.batch import source_batch
from regard.data.sources import num_positions
from regard.layers.frontends import (
    FrameFrontend,
    GridFrontend,
    GridProjection,
    PatchFrontend,
    PictureNorm,
    ResNetFrontend,
    SoundFrontend,
    VideoFrontend,
    standardised,
)
from regard.look import Look, Tap

EVERYTHING = Look(taps=(Tap("encoder"), Tap("decoder"), Tap("cross"), Tap("fusion")))
every_frontend = pytest.mark.parametrize("name", FRONTENDS)


def has_cross(name: str) -> bool:
    return getattr(FRONTENDS[name], "decoder", "") != "fixed"


@every_frontend
def test_the_memory_has_one_vector_per_grid_cell(name: str) -> None:  # SPEC A8.1
    model = make_frontend_model(name)
    for example in make_rows(name):
        memory = model.encode(source_batch([example]))
        row = example.file if isinstance(example, FileAndText) else example
        if name.startswith(("frames", "whisper")):
            assert memory.axes == (len(row),)
        elif name.startswith("sound"):  # SPEC A8.4
            assert memory.axes == (max(1, math.ceil(len(row) / 4)),)
        else:
            cell = 1 if name.startswith(("grid", "video_grid")) else 8
            *frames, height, width = row.shape[1:]  # SPEC A8.5
            assert memory.axes == tuple(max(1, size) for size in (*frames, math.ceil(height / cell), math.ceil(width / cell)))
        assert memory.values_BSE.shape[1] == math.prod(memory.axes) == max(1, num_positions(row))
        assert memory.allow_BS.all()


@every_frontend
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_law_3_neighbours_and_padding_do_not_matter(name: str, dtype: torch.dtype) -> None:  # SPEC A8.1 A8.2 A8.5
    """Values in the padding do not affect any output, whatever they are."""
    model, rows, targets = make_frontend_model(name, dtype), make_rows(name), make_targets(4, 6)
    together = source_batch(rows)
    outside = ~(together.allow.unsqueeze(1) if together.values.dim() > 3 else together.allow.unsqueeze(-1))
    dirty = replace(together, values=torch.where(outside, torch.full_like(together.values, 77.0), together.values))
    for source in (together, dirty):
        memory = model.encode(source)
        logits = model.decode(targets, memory).logits_BTV
        for number, row in enumerate(rows):
            alone = model.encode(source_batch([row]))
            expected = model.decode(targets[number : number + 1], alone).logits_BTV[0]
            tolerance = 1e-12 if dtype == torch.float64 else 2e-5
            assert ((logits[number] - expected).abs() <= tolerance * expected.abs().clamp(min=1)).all()
            real = memory.values_BSE[number][memory.allow_BS[number]]  # grid cells in row-major order, as in `alone`
            torch.testing.assert_close(real, alone.values_BSE[0], atol=100 * tolerance, rtol=0)
            torch.testing.assert_close(memory.summary_BE[number], alone.summary_BE[0], atol=100 * tolerance, rtol=0)


@every_frontend
def test_law_2_taps_do_not_change_the_output_and_show_valid_weights(name: str) -> None:
    model, targets = make_frontend_model(name, torch.float32).train(), make_targets(4, 6)
    source = source_batch(make_rows(name))

    def run(look: Look | None) -> list[torch.Tensor]:
        torch.manual_seed(11)
        memory = model.encode(source, look)
        decoded = model.decode(targets, memory, look)
        gradients = torch.autograd.grad(
            decoded.logits_BTV.square().sum(), list(model.parameters()), allow_unused=True, materialize_grads=True
        )
        return [memory.values_BSE, decoded.logits_BTV, *gradients]

    for plain, tapped in zip(run(None), run(EVERYTHING), strict=True):
        assert torch.equal(plain, tapped)
        assert plain.isfinite().all()
    model.eval()
    memory = model.encode(source)
    cross = [seen for seen in model.decode(targets, memory, EVERYTHING).seen if seen.kind == "cross"]
    assert bool(cross) == has_cross(name)
    for seen in cross:
        torch.testing.assert_close(seen.weights_BHTS.sum(-1), torch.ones(seen.weights_BHTS.shape[:-1]))
        hidden = ~memory.allow_BS[:, None, None].expand_as(seen.weights_BHTS)
        assert hidden.any()
        assert (seen.weights_BHTS[hidden] == 0).all()


@every_frontend
def test_law_4_step_by_step_equals_the_whole_sequence(name: str) -> None:  # SPEC A5.8
    model, targets = make_frontend_model(name), make_targets(4, 20)
    memory = model.encode(source_batch(make_rows(name)))
    expected = model.decode(targets, memory).logits_BTV
    for prefix in (0, 7):
        state = model.start(memory, targets[:, :prefix] if prefix else None)
        for position in range(prefix, 20):
            step = model.step(targets[:, position : position + 1], state)
            state = step.state
            torch.testing.assert_close(step.logits_BKV[:, 0], expected[:, position])


@every_frontend
def test_law_4_rows_of_different_grids_join(name: str) -> None:
    """The grids of the two batches differ in size; each row still gives the logits that it gives alone."""
    model, rows, targets = make_frontend_model(name), make_rows(name), make_targets(1, 4)
    state = model.start(model.encode(source_batch(rows[:1])), targets[:, :3])
    state = state.join(model.start(model.encode(source_batch(rows[3:4])), targets[:, :3]))
    logits = model.step(targets[:, 3:].repeat(2, 1), state).logits_BKV
    for number, row in enumerate((rows[0], rows[3])):
        expected = model.decode(targets, model.encode(source_batch([row]))).logits_BTV[0, 3]
        torch.testing.assert_close(logits[number, 0], expected)


@every_frontend
def test_law_3_a_beam_finds_the_same_alone_and_its_log_prob_is_what_score_gives(name: str) -> None:
    rows, engine = make_rows(name), make_engine(make_frontend_model(name), collate=source_batch)
    found = outputs(engine, rows, beam=3, n_best=2, max_length=6)
    for number, row in enumerate(rows):
        (alone,) = outputs(engine, [row], beam=3, n_best=2, max_length=6).values()
        for hypothesis, expected in zip(found[number], alone, strict=True):
            assert hypothesis.ids == expected.ids
            assert hypothesis.log_prob == pytest.approx(expected.log_prob, abs=1e-9)
            written = [*hypothesis.ids, EOS] if hypothesis.finished else hypothesis.ids
            (forced,) = engine.force(make_requests([row]), [written])
            assert hypothesis.log_prob == pytest.approx(sum(forced.token_log_probs), abs=1e-9)


@every_frontend
def test_law_5_fused_and_plain_agree(name: str) -> None:
    model, source, targets = make_frontend_model(name), source_batch(make_rows(name)), make_targets(4, 6)
    usual = model.decode(targets, model.encode(source)).logits_BTV
    look = replace(EVERYTHING, grad=True)
    torch.testing.assert_close(model.decode(targets, model.encode(source, look), look).logits_BTV, usual)


@every_frontend
def test_law_10_nothing_is_left_on_the_cpu(name: str) -> None:
    model, device = make_frontend_model(name, torch.float32), "meta"
    with FakeTensorMode():
        for module in model.modules():
            for key, parameter in module._parameters.items():
                if parameter is not None:
                    module._parameters[key] = torch.nn.Parameter(torch.empty(parameter.shape, device=device))
            for key, buffer in module._buffers.items():
                if buffer is not None:
                    module._buffers[key] = torch.empty(buffer.shape, device=device)
            if isinstance(module, torch.nn.RNNBase):
                module._flat_weights = [getattr(module, key) for key in module._flat_weights_names]
        shapes = {
            "frames": (3, 7, CHANNELS),
            "sound": (3, 7, BANDS),
            "whisper": (3, 7, 2 * CHANNELS),
            "grid": (3, CHANNELS, 3, 5),
            "video": (3, CHANNELS, 5, 16, 24),
            "video_grid": (3, CHANNELS, 5, 3, 7),
        }
        shape = shapes.get(name.split(",")[0].removesuffix(" with text"), (3, CHANNELS, 16, 24))
        sizes = shape[1:2] if len(shape) == 3 else shape[2:]
        allow = masks.not_padding(torch.ones(3, *sizes, dtype=torch.long, device=device), PAD)
        targets = torch.ones(3, 5, dtype=torch.long, device=device)
        auxiliary = Source(targets, masks.not_padding(targets, PAD)) if "with text" in name else None
        memory = model.encode(Source(torch.ones(shape, device=device), allow, auxiliary), EVERYTHING)
        decoded = model.decode(targets, memory, EVERYTHING)
        decoded.logits_BTV.sum().backward()
        assert all(weight.grad.device.type == device for weight in model.parameters() if weight.grad is not None)
        assert model.step(targets[:, :1], model.start(memory)).logits_BKV.device.type == device


@pytest.mark.parametrize("positions", [False, True])
def test_the_resnet_frontend_equals_its_formula(positions: bool) -> None:  # SPEC A8.1
    """Compared with a second implementation that only uses functions, on a picture without padding."""
    torch.manual_seed(0)
    network = ResNetFrontend(3, 20, 12, positions=positions).double()
    pixels = torch.randn(2, 3, 17, 26, dtype=torch.float64)

    for block in network.blocks:
        for norm in block.norms:
            torch.nn.init.normal_(norm.weight)
            torch.nn.init.normal_(norm.bias)

    def standardised(x: torch.Tensor) -> torch.Tensor:
        rows = []
        for picture in x:
            centred = torch.stack([channel - channel.mean() for channel in picture])
            rows.append(centred / (centred.square().mean() + 1e-5).sqrt())
        return torch.stack(rows)

    x = torch.cat((standardised(pixels), pixels), dim=1)
    for halve, block in zip(network.halve, network.blocks, strict=True):
        x = F.conv2d(x, halve.weight, halve.bias, stride=2, padding=1)
        y = x
        for norm, convolution in zip(block.norms, block.convolutions, strict=True):
            y = torch.stack([standardised(y)[:, c] * norm.weight[c] + norm.bias[c] for c in range(y.shape[1])], dim=1)
            y = F.conv2d(y.clamp(min=0), convolution.weight, convolution.bias, padding=1)
        x = x + y
    x = torch.cat((standardised(x), x), dim=1)
    assert x.shape == (2, 24, 3, 4)
    expected = []
    for row in range(3):
        for column in range(4):
            waves = []
            for number in (row, column):
                for k in range(5):
                    angle = number * 10000 ** (-2 * k / 10)
                    waves += [math.sin(angle), math.cos(angle)]
            cell = x[:, :, row, column]
            encoding = torch.tensor(waves, dtype=torch.float64)
            bound = network.projection.output((network.projection.project(cell) + encoding).clamp(min=0))
            expected.append(cell @ network.projection.direct.weight.T + bound + (encoding if positions else 0))
    output = network(Source(pixels, masks.first(torch.tensor([26, 26]), 26)[:, None].expand(2, 17, 26)))
    assert output.axes == (3, 4)
    torch.testing.assert_close(output.x_BSD, torch.stack(expected, dim=1))


@pytest.mark.parametrize("positions", [False, True])
def test_the_video_frontend_equals_its_formula(positions: bool) -> None:  # SPEC A8.5
    """Compared with a second implementation: pictures frame by frame, and sums over three frames written out."""
    torch.manual_seed(0)
    frontend = VideoFrontend(3, 24, 12, positions=positions).double()
    for module in frontend.modules():
        if isinstance(module, PictureNorm):
            torch.nn.init.normal_(module.weight)
            torch.nn.init.normal_(module.bias)
    video = torch.randn(1, 3, 5, 17, 26, dtype=torch.float64)

    def whole(x: torch.Tensor) -> torch.Tensor:
        return torch.ones(1, *x.shape[2:], dtype=torch.bool)

    frames = [torch.cat((standardised(x, whole(x)), x), dim=1) for x in video.unbind(2)]
    network = frontend.frames
    for halve, block, over_time in zip(network.halve, network.blocks, frontend.over_time, strict=True):
        frames = [halve(x) for x in frames]
        frames = [block(x, whole(x)) for x in frames]
        quiet = [over_time.norm(x, whole(x)).clamp(min=0) for x in frames]
        nothing = torch.zeros_like(quiet[0])
        kernels = over_time.convolution.weight.squeeze((3, 4)).unbind(2)  # one matrix for each of three frames
        mixed = []
        for number, x in enumerate(frames):
            around = [quiet[at] if 0 <= at < len(frames) else nothing for at in (number - 1, number, number + 1)]
            change = sum(torch.einsum("oc,bchw->bohw", kernel, y) for kernel, y in zip(kernels, around, strict=True))
            mixed.append(x + change + over_time.convolution.bias[:, None, None])
        frames = mixed
    frames = [torch.cat((standardised(x, whole(x)), x), dim=1) for x in frames]
    expected, projection = [], network.projection
    for time, x in enumerate(frames):
        for row in range(3):
            for column in range(4):
                waves = []
                for number, width in ((time, 12), (row, 6), (column, 6)):
                    for k in range(width // 2):
                        angle = number * 10000 ** (-2 * k / width)
                        waves += [math.sin(angle), math.cos(angle)]
                cell, encoding = x[:, :, row, column], torch.tensor(waves, dtype=torch.float64)
                bound = projection.output((projection.project(cell) + encoding).clamp(min=0))
                expected.append(cell @ projection.direct.weight.T + bound + (encoding if positions else 0))
    output = frontend(Source(video, torch.ones(1, 5, 17, 26, dtype=torch.bool)))
    assert output.axes == (5, 3, 4)
    torch.testing.assert_close(output.x_BSD, torch.stack(expected, dim=1))


def test_patches_are_a_projection_of_the_pixels_of_a_cell() -> None:
    torch.manual_seed(0)
    frontend = PatchFrontend(3, 20).double()
    pixels = torch.randn(1, 3, 16, 24, dtype=torch.float64)
    output = frontend(Source(pixels, masks.first(torch.tensor([24]), 24)[:, None].expand(1, 16, 24)))
    blank = frontend(Source(torch.zeros_like(pixels), masks.first(torch.tensor([24]), 24)[:, None].expand(1, 16, 24)))
    weight = frontend.project.weight.flatten(1)
    for row in range(2):
        for column in range(3):
            cell = pixels[0, :, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8].flatten()
            difference = (output.x_BSD - blank.x_BSD)[0, 3 * row + column]
            torch.testing.assert_close(difference, weight @ cell)
    assert output.axes == (2, 3)


def test_a_mean_over_the_grid_depends_on_the_positions() -> None:  # SPEC A8.2
    """Swapping two features changes the mean, which is all that the "fixed" decoder gets of a picture."""
    torch.manual_seed(0)
    grid = GridFrontend(5, 20, positions=False).double()
    assert isinstance(grid.projection, GridProjection)
    features = torch.randn(1, 5, 1, 2, dtype=torch.float64)
    allow = masks.first(torch.tensor([2]), 2)[:, None]
    mean, swapped = (grid(Source(values, allow)).x_BSD.mean(1) for values in (features, features.flip(-1)))
    assert (mean - swapped).abs().max() > 0.01


@pytest.mark.parametrize("width", [8, 12])
def test_sequences_get_positions_where_the_encoder_needs_them(width: int) -> None:
    """Those of a Transformer, whose self-attention does not know the order; a recurrent encoder reads in order."""
    frames, allow = torch.randn(2, 11, 5), masks.first(torch.tensor([11, 6]), 11)
    for make in (
        lambda positions: FrameFrontend(5, width, positions=positions),
        lambda positions: SoundFrontend(5, width, 4, positions=positions),
    ):
        frontends = []
        for positions in (False, True):
            torch.manual_seed(1)
            frontends.append(make(positions)(Source(frames, allow)).x_BSD)
        without, with_positions = frontends
        expected = sinusoidal(torch.arange(without.shape[1]), width).expand_as(without)
        torch.testing.assert_close(with_positions - without, expected)
    for name in ("frames", "sound"):
        assert make_frontend_model(f"{name}, transformer").encoder.embedding.positions
        assert not make_frontend_model(f"{name}, luong").source_embedding.positions


def test_a_picture_of_one_pixel_is_standardised_to_zero() -> None:
    """It is its own mean; so are all pixels of one colour."""
    x = torch.randn(2, 3, 2, 2)
    x[1] = torch.tensor([1.0, 2.0, 3.0])[:, None, None]
    allow = torch.tensor([[[True, False], [False, False]], [[True, True], [True, True]]])
    assert (standardised(x, allow).abs() < 1e-6).all()
