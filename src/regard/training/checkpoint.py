"""Opens a checkpoint of a run as a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from regard.checkpoint.files import sha256
from regard.checkpoint.folder import CONFIG, FILE_SOURCE, SOURCE, TARGET, Saved, check_score, read_codec, read_source_codec
from regard.checkpoint.runs import Checkpoint, Damaged
from regard.data.sources import auxiliary_vocabulary_size
from regard.errors import UserError, plural
from regard.layers.scores import ScoreMaker
from regard.models.build import build
from regard.training.data import Codecs
from regard.training.learner import Learner
from regard.training.overrides import check
from regard.training.resume import Previous
from regard.training.run_folder import RunFolder
from regard.training.settings import RunSettings


def load_checkpoint(path: Path, update: int | None = None, scores: Mapping[str, ScoreMaker] | None = None) -> Saved:
    """Returns the model of a run after some update, in evaluation mode. If the run keeps a moving average of the weights, they
    are the average, as in validation.

    path: the run folder. update: the number of updates; by default that of the last checkpoint. scores: custom score functions.
    Raises UserError if there is no such checkpoint, or if it cannot be read.
    """
    run_folder, scores = RunFolder(path), scores or {}
    checkpoint = _read(run_folder, update)
    settings = _settings(run_folder, checkpoint, scores)
    check_score(path, settings.model, scores)
    codecs = _codecs(path, checkpoint)
    auxiliary = auxiliary_vocabulary_size(codecs.source)
    model = build(
        settings.model, len(codecs.source), len(codecs.target), scores, auxiliary=auxiliary, specials=codecs.target.specials
    )
    learner = Learner(model, settings.train)
    try:
        learner.check(checkpoint)
    except Damaged as error:
        raise UserError(f"{path}: the checkpoint of update {checkpoint.update} cannot be opened: {error}") from None
    learner.restore(checkpoint)
    learner.use_average()
    facts = {"settings": asdict(settings), "update": checkpoint.update}
    card = f"# A checkpoint of a run of regard\n\n- After {plural(checkpoint.update, 'update')} of {settings.train.steps:,}\n"
    return Saved(model.eval(), settings.model, *codecs, facts, card)


def _read(run_folder: RunFolder, update: int | None) -> Checkpoint:
    """Reads a checkpoint; by default, the last one."""
    path = run_folder.path
    if update is not None and not run_folder.started:
        if not (path / CONFIG).exists():
            raise UserError(f"{path} is not a run folder, so it has no checkpoint of update {update}; expected OUT.run")
        raise UserError(
            f"{path} is a model folder, but update={update} chooses a checkpoint of a run; leave update out, or give the run "
            f"folder, such as {path}.run"
        )
    checkpoints = run_folder.checkpoints(1)
    updates = checkpoints.updates()
    if not updates:
        raise UserError(f"{path}: this run has no checkpoint yet; it writes one every train.checkpoint_every updates")
    if update is not None and update not in updates:
        raise UserError(
            f"{path} has no checkpoint of update {update}; it has those of the updates {', '.join(map(str, updates))} "
            "(train.keep is the number of checkpoints that a run keeps)"
        )
    update = updates[-1] if update is None else update
    try:
        return checkpoints.read(update)
    except Damaged as error:
        others = ", ".join(str(other) for other in updates if other != update)
        hint = f"; there are also those of the updates {others}" if others else ""
        raise UserError(f"{path}: the checkpoint of update {update} is damaged: {error}{hint}") from None


def _settings(run_folder: RunFolder, checkpoint: Checkpoint, scores: Mapping[str, ScoreMaker]) -> RunSettings:
    """Returns the settings that the checkpoint was trained with."""
    settings = check(Previous.of(run_folder, checkpoint.update, checkpoint.origin, scores).settings, scores)
    if isinstance(settings, RunSettings):
        return settings
    raise UserError(f"{run_folder.path}: the settings of the run cannot be read: {'; '.join(one.in_file for one in settings)}")


def _codecs(path: Path, checkpoint: Checkpoint) -> Codecs:
    """Returns the codecs of the run. Raises UserError if they are missing, or are not those that the checkpoint was trained
    with."""
    content = {}
    for name in (FILE_SOURCE if (path / FILE_SOURCE).exists() else SOURCE, TARGET):
        try:
            content[name] = (path / name).read_bytes()
        except OSError as error:
            raise UserError(f"{path / name} cannot be read: {error.strerror}; restore it from a copy") from None
        if checkpoint.origin.get("codecs", {}).get(name, sha256(content[name])) != sha256(content[name]):
            raise UserError(f"{path / name} differs from the one that this run was trained with; restore it from a copy")
    source, target = content
    return Codecs(read_source_codec(path / source, content[source]), read_codec(path / target, content[target]))
