"""Loads weights from a file, after comparing their names and shapes with those of the model before either takes memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.nn import init
from torch.overrides import TorchFunctionMode

from regard.checkpoint import migrate
from regard.errors import UserError, one_line, plural, shown
from regard.layers.scores import ScoreMaker
from regard.models.contract import Model, ModelSettings

FLOATS = {"F64", "F32", "F16", "BF16"}
"""Accepted types of weights; a model stores them in 32 bits."""
MAX_NAMED = 2
"""Maximum number of mismatched weights that an error message lists."""

INITIALISERS = (Tensor.uniform_, Tensor.normal_, init.uniform_, init.normal_, init.kaiming_uniform_)
"""Functions that initialise weights with random numbers."""

Scores = Mapping[str, ScoreMaker]
Shapes = Mapping[str, tuple[int, ...]]


def load_weights(
    path: Path, settings: ModelSettings, make: Callable[[Scores], Model], scores: Scores, number: int = migrate.FORMAT
) -> Model:
    """Builds a model and loads its weights from a file.

    make: builds the model, given custom score functions.  number: the format of the file.

    The model is first built without memory, on torch's meta device. It is built again with memory only if the header of the
    file lists exactly its weights. So a damaged file cannot take more time or memory than its size justifies.

    Raises UserError if the file is damaged or its weights do not match the settings.
    """
    try:
        with safe_open(path, framework="pt") as file:
            names = migrate.weights({name: name for name in file.keys()}, number)  # noqa: SIM118 it is no mapping
            slices = {name: file.get_slice(stored) for name, stored in names.items()}
            shapes = {name: tuple(tensor.get_shape()) for name, tensor in slices.items()}
            _check_types({name: tensor.get_dtype() for name, tensor in slices.items()})
            _check_layers(settings, len(shapes))
            _compare(_expected_shapes(make, scores), shapes)
            with SkipInitialisation() as mode:
                model = make(mode.except_for(scores))
            model.load_state_dict({name: file.get_tensor(stored) for name, stored in names.items()}, strict=True)
    except SafetensorError as error:
        raise UserError(f"{path} is damaged or not a safetensors file: {one_line(error)}") from None
    except UserError as error:
        raise UserError(f"{path} does not match config.json: {error}", error.details) from None
    return model


def is_finite(tensor: Tensor) -> bool:
    """Whether all numbers of a tensor are finite. Unlike torch.isfinite, it takes no memory of the tensor's size."""
    return not tensor.numel() or bool(torch.isfinite(torch.stack(tensor.aminmax())).all())


def check_finite(path: Path, model: Model) -> None:
    """Raises UserError if a weight of the model is infinite or NaN. path: the file that the error names."""
    for name, tensor in model.state_dict().items():
        if not is_finite(tensor):
            raise UserError(f"{path}: {name} contains numbers that are not finite; training probably diverged")


def _check_types(types: Mapping[str, str]) -> None:
    """Raises UserError if a weight is not a floating-point tensor."""
    wrong = [f"{shown(name)} has type {kind}" for name, kind in types.items() if kind not in FLOATS]
    if wrong:
        raise _mismatch(wrong, f"expected {', '.join(sorted(FLOATS))}")


def _check_layers(settings: ModelSettings, num_tensors: int) -> None:
    """Raises UserError if the model has more layers than the file has tensors. Each layer has at least one tensor, and a model
    with a million layers would take minutes to build, even without memory."""
    for name, number in settings.num_layers.items():
        if number > num_tensors:
            raise UserError(f"{name} is {number:,}, but the file has only {plural(num_tensors, 'tensor')}")


def _expected_shapes(make: Callable[[Scores], Model], scores: Scores) -> Shapes:
    """Returns the shapes of the model's weights. Raises UserError if the model cannot be built."""
    try:
        with torch.device("meta"), SkipInitialisation() as mode:
            model = make(mode.except_for(scores))
    except UserError:
        raise
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:  # e.g. the product of sizes overflows
        raise UserError(f"the model cannot be built: {one_line(error)}") from error
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def _compare(expected: Shapes, found: Shapes) -> None:
    """Raises UserError if names or shapes differ."""
    wrong = [f"{name} is missing" for name in expected if name not in found]
    wrong += [f"{shown(name)} is unknown" for name in found if name not in expected]
    wrong += [
        f"{name} has shape {shown(found[name])}, expected {expected[name]}"
        for name in expected
        if name in found and found[name] != expected[name]
    ]
    if wrong:
        raise _mismatch(wrong, "were both written by the same run?")


def _mismatch(wrong: list[str], hint: str) -> UserError:
    """Returns an error that lists the first mismatches, and all of them in its details."""
    more = f"; and {len(wrong) - MAX_NAMED:,} more" if len(wrong) > MAX_NAMED else ""
    listed = "; ".join(one_line(line, 100) for line in wrong[:MAX_NAMED])
    return UserError(f"{listed}{more}; {hint}", details="\n".join(wrong))


class SkipInitialisation(TorchFunctionMode):
    """Skips the random initialisation of weights while a model is built. It would take most of the time, and the weights are
    about to be loaded from a file."""

    initialises = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in INITIALISERS and not self.initialises:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)

    def except_for(self, scores: Scores) -> Scores:
        """Returns the custom score functions so that their tensors are initialised: they may have some that no file holds."""
        return {name: self._initialised(maker) for name, maker in scores.items()}

    def _initialised(self, maker: ScoreMaker) -> ScoreMaker:
        @wraps(maker)
        def make(**sizes: Any) -> Any:
            self.initialises = True
            try:
                return maker(**sizes)
            except (RuntimeError, NotImplementedError):  # it reads values of tensors, and those on "meta" have none
                with torch.device("cpu"):
                    return maker(**sizes)
            finally:
                self.initialises = False

        return make
