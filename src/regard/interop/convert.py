"""Opens models of other formats, writes ours in them, and proves every conversion before it counts."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

from regard.checkpoint import folder as model_folder
from regard.checkpoint.alignment import read_alignment_head
from regard.checkpoint.files import discard, resolved, sibling, write, writing
from regard.checkpoint.folder import Saved
from regard.contracts import AlignmentHead
from regard.errors import UserError, did_you_mean
from regard.interop import bert, hub, proof, whisper
from regard.interop.exports import Export, obstacles, refuse
from regard.interop.formats import FORMATS, REGARD, Format, format_of
from regard.interop.huggingface import model_type
from regard.interop.opened import digests, naming, together
from regard.interop.proof import Ours, Peer, Proof, prove
from regard.interop.record import record_of, write_record
from regard.languages import Languages
from regard.layers.scores import ScoreMaker
from regard.models.transformer import TransformerSettings

README = "README.md"


def open_any(path: Path, scores: Mapping[str, ScoreMaker] | None = None) -> tuple[Saved, AlignmentHead]:
    """Returns a model of ours or of another format, and its alignment head; of Hugging Face, by its name too, if it is in the
    cache. scores: custom score functions by name, for models of ours."""
    path = located(path)
    name = format_of(path)
    if bert.is_folder(path):
        raise UserError(
            f"{path} is an encoder ({model_type(path)}), which writes nothing; train a model that starts with it: "
            f"regard train pairs.tsv --encoder-from {path}"
        )
    if name is None:
        return model_folder.load(path, scores), read_alignment_head(path)
    saved = open_model(path, name)
    return saved, AlignmentHead(**saved.alignment) if saved.alignment else AlignmentHead()


def open_encoder(path: Path, scores: Mapping[str, ScoreMaker] | None = None) -> Saved:
    """Returns a model whose encoder another one may start with: an encoder of Hugging Face, or any model (see `open_any`)."""
    path = located(path)
    return bert.open_encoder(path) if bert.is_folder(path) else open_any(path, scores)[0]


def located(path: Path) -> Path:
    """Returns the folder of a model that is given by its name on Hugging Face; any other path as it is."""
    return hub.find(str(path)) if hub.is_name(str(path)) else path


def open_model(path: Path, name: str) -> Saved:
    """Returns a model of another format as a model folder holds it, with its proof.

    The proof runs at the first opening; then it is kept by the sha256 of the files. Raises UserError if the model cannot be
    read or represented, or if the proof fails.
    """
    kind = FORMATS[name]
    assert kind.open is not None
    with kind.open(path) as opened:
        with naming(path):
            saved = opened.saved()
        found = digests(opened.files)
        digest = together(found)
        shown = proof.kept(digest)
        if shown is None:
            shown = prove(saved, _peer_of(kind, path, opened.folder, saved))
            proof.keep(digest, shown)
    facts = {"format": name, "title": kind.title, "files": found, "licence": opened.licence, "proof": asdict(shown)}
    return replace(saved, training={**saved.training, "converted": facts}, card=_card(kind, path, opened.licence, shown))


def _peer_of(kind: Format, path: Path, folder: Path, saved: Saved) -> Peer:
    """Returns what was read or written, as its own library runs it, or as we read it once more.

    path: what to read.  folder: the folder that holds the files of the model.
    """
    peer = kind.peer(folder, saved) if kind.peer else None
    if peer is not None:
        return peer
    assert kind.open is not None
    with kind.open(path) as again:
        return Ours(again.saved(), _alone(kind))


def _alone(kind: Format) -> str:
    """Says why our own reading was compared with itself."""
    return f"a second reading by regard, since {kind.library or kind.title} is not installed"


def convert(
    path: Path, out: Path, to: str | None = None, *, overwrite: bool = False, languages: Languages | None = None
) -> Proof | None:
    """Converts a model to another format. Returns the proof; None if nothing was converted but copied.

    path: a model folder, or what one of the formats recognises.  to: a name in FORMATS, or "regard"; by default, what the name
    of `out` says, or else regard for other people's models.  languages: those of the model, if it does not know them.
    """
    path = located(path)
    origin = format_of(path)
    target = _target(origin, out, to)
    saved, head = open_any(path)
    saved = saved if saved.alignment or head == AlignmentHead() else replace(saved, alignment=asdict(head))
    saved = whisper.hearing(saved, languages) if languages else saved
    if target == REGARD:
        model_folder.save(saved, out, replace=overwrite)
        return Proof(**saved.training["converted"]["proof"]) if origin else None
    return write_model(saved, out, target, overwrite=overwrite)


def _target(origin: str | None, out: Path, to: str | None) -> str:
    """Returns the name of the format to write."""
    names = [REGARD, *(name for name, one in FORMATS.items() if one.write)]
    if to is None:
        to = "argos" if out.suffix == ".argosmodel" else REGARD if origin else None
    if to is None:
        raise UserError(f"the name {out} does not say which format to write; add --to {', --to '.join(names[1:])}")
    if to not in names:
        raise UserError(f"there is no format {to!r} to write; expected one of {', '.join(names)}{did_you_mean(to, names)}")
    return to


def write_model(saved: Saved, out: Path, name: str, *, overwrite: bool = False) -> Proof:
    """Writes a model in a format of other people, compares what was written with the model, and only then gives it its name.

    Raises UserError with all reasons if the format cannot represent it, or if the proof fails; then nothing is written.
    """
    kind = FORMATS[name]
    assert kind.write is not None
    refuse(kind.title, obstacles(saved) + (kind.refused(saved) if kind.refused else []))
    settings = saved.settings
    assert isinstance(settings, TransformerSettings)
    out = resolved(out)
    if out.exists() and not overwrite:
        raise UserError(f"{out} already exists; choose another name, or replace it with --overwrite")
    record = record_of(saved, settings)
    weights = {key: value.detach().cpu() for key, value in saved.model.state_dict().items()}
    export = Export(saved, settings, record.exported(weights), record)
    fresh = sibling(out, "new")
    with writing(out, "choose another name"):
        out.parent.mkdir(parents=True, exist_ok=True)
        try:
            fresh.mkdir()
            files = kind.write(fresh, export)
            write_record(fresh / kind.inner, saved, record, digests([fresh / file for file in files]))
            shown = prove(saved, _peer_of(kind, fresh, fresh, saved))
            write(fresh / README, _export_card(saved, kind, shown).encode())
            if kind.pack:
                kind.pack(fresh, out)
            else:
                _give_name(fresh, out)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    return shown


def _give_name(fresh: Path, out: Path) -> None:
    if out.exists():
        discard(out)
    fresh.rename(out)


def _card(kind: Format, path: Path, licence: str, shown: Proof) -> str:
    return (
        f"# A model of {kind.title}, opened by regard\n\n"
        f"- Origin: {path.name}\n"
        f"- Licence: {licence or 'not stated in its files; ask whoever published it before you pass it on'}\n"
        f"- Proof: {shown}.\n"
    )


def _export_card(saved: Saved, kind: Format, shown: Proof) -> str:
    licence = saved.training.get("converted", {}).get("licence", "")
    head = f"---\nlicense: {licence}\n---\n" if licence else ""
    return f"{head}# A model for {kind.title}, written by regard\n\n- Proof: {shown}.\n\n{saved.card}"
