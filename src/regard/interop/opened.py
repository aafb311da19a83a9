"""A model of another format in our terms, and what all formats check and record."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
from torch import Tensor

from regard.checkpoint.files import sha256
from regard.checkpoint.folder import Saved
from regard.checkpoint.weights import SkipInitialisation, is_finite
from regard.core.positions import Layout, sinusoidal
from regard.data.sources import SourceCodec
from regard.data.tokenizers.contract import TextCodec
from regard.errors import UserError, one_line
from regard.interop.names import check_complete
from regard.languages import Languages
from regard.models.build import build
from regard.models.contract import Model
from regard.models.transformer import TransformerSettings

TABLE_POSITIONS = 1024
"""How many position vectors are made for sinusoids that our settings cannot express, and which become learned positions."""


NEVER = -1e9
"""The output bias of a token that is never written: its probability is exactly zero."""


@dataclass(frozen=True)
class Opened:
    """A model that was read from another format.

    format: its name.  path: what was opened.  files: what was read; the proof is valid for these.  weights: under our names.
    kept: a temporary folder that holds the files, for as long as this is in use; by default `path` holds them.
    alignment: the alignment head, as config.json of a model folder states it.  licence: as the model's own card states it.
    """

    format: str
    path: Path
    files: tuple[Path, ...]
    settings: TransformerSettings
    weights: Mapping[str, Tensor]
    source: SourceCodec
    target: TextCodec
    alignment: Mapping[str, Any] = field(default_factory=dict)
    licence: str = ""
    languages: Languages = Languages()
    kept: TemporaryDirectory[str] | None = None

    @property
    def folder(self) -> Path:
        """The folder that holds the files of the model."""
        return Path(self.kept.name) if self.kept else self.files[0].parent

    def __enter__(self) -> Opened:
        return self

    def __exit__(self, *_: object) -> None:
        """Removes the temporary folder, if there is one."""
        if self.kept:
            self.kept.cleanup()

    def model(self) -> Model:
        """Returns the model in evaluation mode; it takes over the tensors. Raises UserError if they do not fit the settings."""
        with torch.device("meta"), SkipInitialisation():
            model = build(self.settings, len(self.source), len(self.target), specials=self.target.specials)
        expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
        check_complete(expected, self.weights)
        damaged = [name for name, tensor in self.weights.items() if not is_finite(tensor)]
        if damaged:
            raise UserError(f"{damaged[0]} contains numbers that are not finite")
        model.load_state_dict({name: tensor.float() for name, tensor in self.weights.items()}, assign=True)
        for parameter in model.parameters():
            parameter.requires_grad_()
        return model.eval()

    def saved(self) -> Saved:
        """Returns the model as a model folder holds it, without a proof."""
        return Saved(self.model(), self.settings, self.source, self.target, {}, "", self.alignment, "", self.languages)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Turns what damaged files raise into a UserError that names their path."""
    try:
        yield
    except (ValueError, TypeError, LookupError, RuntimeError, OverflowError) as error:  # UserError is a ValueError
        reason = str(error) if isinstance(error, UserError) else f"its files contradict each other: {one_line(error)}"
        raise UserError(reason if str(path) in reason else f"{path}: {reason}", getattr(error, "details", "")) from None


def num_layers(weights: Mapping[str, Tensor], side: str) -> int:
    """Returns the number of layers of one side. Raises UserError if it has none."""
    numbers = {int(name.split(".")[2]) for name in weights if name.startswith(f"{side}.layers.")}
    if not numbers:
        raise UserError(f"it has no layers in the {side}")
    return max(numbers) + 1


def tie_of(weights: Mapping[str, Tensor]) -> Literal["none", "output", "all"]:
    """Returns which matrices are shared, by those that are there."""
    if "decoder.output.weight" in weights:
        return "none"
    return "output" if "encoder.embedding.tokens.weight" in weights else "all"


def digests(files: Sequence[Path]) -> dict[str, str]:
    """Returns the sha256 of files by name. Raises UserError if one cannot be read."""
    found = {}
    for path in files:
        try:
            with open(path, "rb") as file:
                found[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}") from None
    return found


def together(digests: Mapping[str, str]) -> str:
    """Returns one digest of all files."""
    return sha256("\n".join(f"{name} {digest}" for name, digest in sorted(digests.items())).encode())


def sinusoidal_layout(*tables_PD: Tensor) -> Layout | None:
    """Returns the layout in which tables of position vectors are our sinusoids, up to rounding; None if they are others."""
    layouts: tuple[Layout, ...] = ("halves", "interleaved")
    for layout in layouts:
        if all(
            table_PD.shape[1] % 2 == 0
            and torch.allclose(
                sinusoidal(torch.arange(len(table_PD)), table_PD.shape[1], layout=layout), table_PD.float(), rtol=0, atol=2e-6
            )
            for table_PD in tables_PD
        ):
            return layout
    return None
