"""What a run starts from: another model as a whole, only its encoder (transfer learning), or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from regard.checkpoint.folder import Saved, weights_digest
from regard.data.sources import FileCodec
from regard.data.tokenizers.units import NormalForm
from regard.errors import UserError, plural
from regard.interop.convert import open_any, open_encoder
from regard.layers.scores import ScoreMaker
from regard.models.build import FAMILIES
from regard.models.contract import Model, ModelSettings
from regard.models.stack import StackSettings
from regard.pipeline import Translator
from regard.training.data import StartCodecs
from regard.training.settings import RunSettings, StartSettings

ENCODER = ("encoder.", "source_embedding.")
"""The prefixes of the names of encoder weights, in every model."""


@dataclass(frozen=True)
class Transfer:
    """The model whose encoder and source vocabulary are taken over. freeze: whether the encoder's weights stay fixed."""

    saved: Saved
    freeze: bool = False


@dataclass(frozen=True)
class Start:
    """What a run starts from. transfer: a model whose encoder is taken over. parent: a model that is trained further.
    teachers: models from which the new one learns."""

    settings: StartSettings = StartSettings()
    transfer: Transfer | None = None
    parent: Saved | None = None
    teachers: tuple[Saved, ...] = ()

    @classmethod
    def load(cls, settings: StartSettings, scores: Mapping[str, ScoreMaker]) -> Start:
        """Loads the models that the settings name, if any. Raises UserError if one cannot be loaded."""
        transfer = Transfer(open_encoder(Path(settings.encoder), scores), settings.freeze) if settings.encoder else None
        parent = open_any(Path(settings.model), scores)[0] if settings.model else None
        return cls(settings, transfer, parent, tuple(open_any(Path(name), scores)[0] for name in settings.teachers))

    @cached_property
    def teacher(self) -> Model | None:
        """The teachers as one model, an ensemble; None if there are none. Raises UserError if they do not fit together."""
        return Translator.ensemble(list(map(Translator.of_saved, self.teachers))).model if self.teachers else None

    @property
    def origin(self) -> dict[str, Any]:
        """What checkpoints record of the teachers: the sha256 of their weights."""
        return {"teachers": [weights_digest(teacher.model) for teacher in self.teachers]} if self.teachers else {}

    def check_origin(self, origin: Mapping[str, Any]) -> None:
        """Raises UserError if a run learned from other teachers so far. origin: that of its last checkpoint."""
        if {**self.origin, **origin}.get("teachers") != self.origin.get("teachers"):
            raise UserError(
                f"the weights of {', '.join(self.settings.teachers)} changed since this run started; the run was not modified. "
                "Restore them to continue, or start a new run with another --out or with --overwrite"
            )

    @property
    def saved(self) -> Saved | None:
        """The model that this one starts from, as a whole or with its encoder only; or the first of its teachers."""
        return self.transfer.saved if self.transfer else self.parent or next(iter(self.teachers), None)

    @property
    def name(self) -> str:
        """The folder of that model."""
        return self.settings.model or self.settings.encoder or next(iter(self.settings.teachers), "")

    @property
    def codecs(self) -> StartCodecs:
        """The codecs that the run takes over."""
        whole = self.parent or next(iter(self.teachers), None)
        if whole:
            return StartCodecs(whole.source, whole.target)
        return StartCodecs(self.transfer.saved.source if self.transfer else None)

    @property
    def normalise(self) -> NormalForm:
        """The default of data.normalise: that of the vocabularies which the run takes over."""
        reused = [source.auxiliary if isinstance(source, FileCodec) else source for source in self.codecs]
        forms = {codec.normal_form for codec in reused if codec is not None} or {"nfc"}
        return cast(NormalForm, forms.pop()) if len(forms) == 1 else "none"

    @property
    def defaults(self) -> dict[str, Any]:
        """Defaults of settings that this model has decided, by key."""
        fusion_score = getattr(self.saved.settings, "fusion_score", None) if self.saved else None
        return {"data.normalise": self.normalise, "model.fusion_score": fusion_score}

    def check(self, settings: RunSettings) -> None:
        """Raises UserError if a run with these settings cannot start from this model."""
        if self.parent and settings.model != self.parent.settings:
            raise UserError(
                f"--start-from {self.name}: the settings of that model cannot change; remove the options that change them"
            )
        self._check_columns(settings.data.source_columns)
        if self.saved and settings.data.normalise != self.normalise:
            raise UserError(
                f"data.normalise is {settings.data.normalise}, but the vocabulary of {self.name} was made with "
                f"{self.normalise} and cannot change; set data.normalise={self.normalise}, or train without that model"
            )

    def _check_columns(self, columns: tuple[str, ...]) -> None:
        """Raises if there are auxiliary texts, but the model that this one starts from cannot read them."""
        source = self.saved.source if self.saved else None
        if isinstance(source, FileCodec) and source.auxiliary is None and len(columns) > 1:
            raise UserError(
                f"{self.name} reads {source.nouns} without an auxiliary text, but there are the source columns "
                f"{' and '.join(columns)}; use --from {columns[0]}, or train without that model"
            )


def with_encoder_of(kind: str, other: ModelSettings) -> ModelSettings:
    """Returns the settings of a model of this kind with an encoder like that of `other`; those of `other` if its encoder is of
    another type, or if the kind is unknown, which is reported later."""
    if kind == other.kind or kind not in FAMILIES or not isinstance(other, StackSettings):
        return other
    fresh = FAMILIES[kind].settings()
    same = {name: value for name, value in vars(other).items() if name in vars(fresh) and name not in ("kind", "tie", "mask")}
    layers = vars(other).get("encoder_layers", vars(other).get("layers"))
    names = [name for name in ("encoder_layers", "layers") if name in vars(fresh)]
    return cast(ModelSettings, replace(fresh, **{**same, **dict.fromkeys(names, layers)}))


def start_encoder(model: Model, transfer: Transfer) -> int:
    """Copies the weights of the encoder into `model` and returns their number. Raises UserError if they do not match."""
    theirs = {name: tensor for name, tensor in transfer.saved.model.state_dict().items() if name.startswith(ENCODER)}
    mine = {name: tensor.shape for name, tensor in model.state_dict().items() if name.startswith(ENCODER)}
    if not any("embedding" in name for name in theirs):
        raise UserError(
            "that model shares its embedding with its decoder (tie=all), so its encoder cannot be taken over; "
            "use a model with another setting of tie"
        )
    shapes = {name: tensor.shape for name, tensor in theirs.items()}
    if mine != shapes:
        differing = sorted(name for name in mine.keys() | shapes.keys() if mine.get(name) != shapes.get(name))
        raise UserError(
            f"the encoders do not match: {plural(len(differing), 'weight')} with another name or shape, such as {differing[0]}"
            "; use the encoder settings of the other model"
        )
    model.load_state_dict(theirs, strict=False)
    for name, parameter in model.named_parameters():
        if name in theirs:
            parameter.requires_grad_(not transfer.freeze)
    return sum(tensor.numel() for tensor in theirs.values())
