"""Weights in a file, compared with the model that they are for before either takes memory."""

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
from regard.models.build import Model, ModelSettings

FLOATS = {"F64", "F32", "F16", "BF16"}
"""Types of weights; a model holds them in 32 bits."""
NAMED = 2
"""How many wrong weights an error names."""

DRAWN = (Tensor.uniform_, Tensor.normal_, init.uniform_, init.normal_, init.kaiming_uniform_)
"""What fills new weights with random numbers."""

Scores = Mapping[str, ScoreMaker]
Shapes = Mapping[str, tuple[int, ...]]


def load_weights(
    path: Path, settings: ModelSettings, make: Callable[[Scores], Model], scores: Scores, number: int = migrate.FORMAT
) -> Model:
    """The model of these settings, with the weights of this file. make: builds it with score functions of the user's own.

    The model is first built without memory (torch's meta device), and only if the header of the file has exactly its weights,
    once more for real: so nothing takes more memory or time than a file of this size is worth.
    """
    try:
        with safe_open(path, framework="pt") as file:
            names = migrate.weights({name: name for name in file.keys()}, number)  # noqa: SIM118 it is no mapping
            found = {name: file.get_slice(stored) for name, stored in names.items()}
            shapes = {name: tuple(one.get_shape()) for name, one in found.items()}
            _check_types({name: one.get_dtype() for name, one in found.items()})
            _check_layers(settings, len(shapes))
            _compare(_expected_shapes(make, scores), shapes)
            with _Blank() as blank:
                model = make(blank.own(scores))
            model.load_state_dict({name: file.get_tensor(stored) for name, stored in names.items()}, strict=True)
    except SafetensorError as error:
        raise UserError(f"{path} is damaged or not a safetensors file: {one_line(error)}") from None
    except UserError as error:
        raise UserError(f"{path} does not fit config.json: {error}", error.details) from None
    return model


def check_finite(path: Path, model: Model) -> None:
    for name, tensor in model.state_dict().items():
        if not torch.isfinite(tensor).all():
            raise UserError(f"{path}: {name} holds numbers that are not finite; the training run went wrong")


def _check_types(types: Mapping[str, str]) -> None:
    wrong = [f"{shown(name)} is of the type {kind}" for name, kind in types.items() if kind not in FLOATS]
    if wrong:
        raise _several(wrong, f"expected {', '.join(sorted(FLOATS))}")


def _check_layers(settings: ModelSettings, num_tensors: int) -> None:
    """Every layer has weights of its own; a million layers would take minutes to build, even without memory."""
    for name, number in vars(settings).items():
        if name.endswith("layers") and number > num_tensors:
            raise UserError(f"{name} is {number:,}, but the file holds only {plural(num_tensors, 'tensor')}")


def _expected_shapes(make: Callable[[Scores], Model], scores: Scores) -> Shapes:
    try:
        with torch.device("meta"), _Blank() as blank:
            model = make(blank.own(scores))
    except UserError:
        raise
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:  # sizes whose product overflows, for instance
        raise UserError(f"the model cannot be built: {one_line(error)}") from error
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def _compare(expected: Shapes, found: Shapes) -> None:
    wrong = [f"{name} is missing" for name in expected if name not in found]
    wrong += [f"{shown(name)} is unknown" for name in found if name not in expected]
    wrong += [
        f"{name} has shape {shown(found[name])}, expected {expected[name]}"
        for name in expected
        if name in found and found[name] != expected[name]
    ]
    if wrong:
        raise _several(wrong, "do both come from the same training?")


def _several(wrong: list[str], hint: str) -> UserError:
    more = f"; and {len(wrong) - NAMED:,} more" if len(wrong) > NAMED else ""
    return UserError(f"{'; '.join(one_line(one, 100) for one in wrong[:NAMED])}{more}; {hint}", details="\n".join(wrong))


class _Blank(TorchFunctionMode):
    """While a model is built, its weights are not drawn: those of the file follow, and random numbers take most of the time."""

    draws = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in DRAWN and not self.draws:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)

    def own(self, scores: Scores) -> Scores:
        """Score functions of the user's own may hold tensors that no file has, and these are drawn."""
        return {name: self._drawn(maker) for name, maker in scores.items()}

    def _drawn(self, maker: ScoreMaker) -> ScoreMaker:
        @wraps(maker)
        def make(**sizes: Any) -> Any:
            self.draws = True
            try:
                return maker(**sizes)
            except (RuntimeError, NotImplementedError):  # it reads numbers out of tensors, and those on "meta" have none
                with torch.device("cpu"):
                    return maker(**sizes)
            finally:
                self.draws = False

        return make
