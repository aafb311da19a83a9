"""regard train pairs.tsv --out model"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from regard.cli.options import (
    Device,
    From,
    Header,
    Score,
    Set,
    SkipBadLines,
    Threads,
    To,
    columns_of,
    make_console,
    own_score,
    prepare,
)
from regard.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from regard.checkpoint.folder import Saved
    from regard.layers.scores import ScoreMaker
    from regard.training.material import Survey
    from regard.training.place import RunFolder
    from regard.training.run import Trained
    from regard.training.settings import RunSettings, StartSettings
    from regard.training.transfer import Transfer

READING = {
    f"data.{name}"
    for name in ("files", "held_out_files", "source_columns", "target_column", "header", "bad_lines", "max_length")
}
"""What must be known before the data is read."""


def run_file(files: list[Path]) -> Path | None:
    """The run file among these; it must be the only one."""
    runs = [file for file in files if file.suffix in (".yaml", ".yml")]
    if runs and len(files) > 1:
        raise UserError(
            f"{runs[0]} is a run file and stands alone; name the data in it, as data.files, or with --set data.files=…"
        )
    return runs[0] if runs else None


def train(
    files: Annotated[
        list[Path],
        typer.Argument(
            help="Pairs: .tsv (source<TAB>target), .csv, .jsonl, .xlsx, or two parallel texts; texts may be .gz; a source may "
            "be the name of a picture or sound. Or a run file, .yaml."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Where to put the model folder.")] = Path("model"),
    from_: From = None,
    to: To = None,
    header: Header = None,
    skip_bad_lines: SkipBadLines = False,
    held_out: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Pairs to measure with; twice for parallel files.")
    ] = None,
    set_: Set = None,
    score: Score = None,
    encoder_from: Annotated[
        Path | None, typer.Option(help="A model folder whose encoder this model starts with.", show_default=False)
    ] = None,
    freeze: Annotated[bool, typer.Option("--freeze", help="That encoder stays as it is.")] = False,
    start_from: Annotated[
        Path | None, typer.Option(help="A model folder that learns on, with its settings and vocabulary.", show_default=False)
    ] = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write the log for TensorBoard too, into OUT.run/tensorboard.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Begin anew, and replace the model folder if it exists.")
    ] = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Train a model on pairs of texts. Nothing to configure: the settings are chosen from the data and printed.

    They are also written to OUT.run/run.yaml, with the reasons; `regard train` with that file repeats the run.

    A run that was interrupted or killed goes on when the same command is typed again.
    """
    for file in [*files, *(held_out or ())]:
        if not file.exists():
            raise UserError(f"{file}: no such file")  # before torch is imported: a mistyped name is answered at once
    given = run_file(files)

    from regard.checkpoint import folder
    from regard.training.board import check_tensorboard
    from regard.training.config import read_config
    from regard.training.material import Given, from_files
    from regard.training.place import RunFolder
    from regard.training.run import run
    from regard.training.settings import OLDER

    console, chosen = make_console(), prepare(device, threads)
    if tensorboard:
        check_tensorboard()
    place = RunFolder.beside(out, tensorboard=tensorboard)
    begun = place.begun and not overwrite
    if not begun:
        folder.check_place(out, replace=overwrite)
    scores = own_score(score)
    start = start_of(given, str(start_from or ""), str(encoder_from or ""), freeze, scores)
    transfer, parent = origins(start, scores)
    options: dict[str, Any] = {
        "files": () if given else tuple(map(str, files)),
        "held_out_files": tuple(map(str, held_out or ())),
        "source_columns": columns_of(from_),
        "target_column": to,
        "header": None if header is None else "yes" if header else "no",
        "bad_lines": "skip" if skip_bad_lines else None,
    }
    if begun:
        kept = read_config(place.config, scores, OLDER)
        options["header"] = options["header"] or ("usual" if kept.data.header == "usual" else None)
    changes = [*(set_ or []), *(f"model.score={name}" for name in scores)]
    settings, reasons, found = settle(given, options, changes, scores, start, transfer.saved if transfer else parent)
    if parent and settings.model != parent.settings:
        raise UserError(f"--start-from {start.model}: its model settings stay as they are; leave out what changes them")
    check_columns(settings, transfer.saved if transfer else parent)
    if begun:
        check_same(settings, kept, out)

    say(console, found, f"from {given}" if given else "chosen from the data", place.config, settings, reasons)
    known = Given(parent.source, parent.target) if parent else Given(transfer.saved.source if transfer else None)
    material = from_files(settings.data, found, place.path, console, known, begun=begun)
    if not begun:
        begin(place, given, settings, reasons, scores)
    trained = run(material, settings, console, chosen, place=place, scores=scores, transfer=transfer, start_from=parent)
    folder.save(trained.saved, out, replace=True)
    tell(trained, out, console)


def start_of(given: Path | None, model: str, encoder: str, freeze: bool, scores: "Mapping[str, ScoreMaker]") -> "StartSettings":
    """What the command says a run starts from; if it says nothing, what the run file does."""
    from regard.training.config import read_config
    from regard.training.settings import StartSettings

    start = StartSettings(model=model, encoder=encoder, freeze=freeze)
    return read_config(given, scores).start if given and start == StartSettings() else start


def begin(
    place: "RunFolder",
    given: Path | None,
    settings: "RunSettings",
    reasons: Mapping[str, str],
    scores: "Mapping[str, ScoreMaker]",
) -> None:
    """Clears the run folder and writes the settings into it; a run file that stands there and says the same is left alone."""
    from regard.training.config import read_config, save_config
    from regard.training.settings import OLDER

    place.clear()
    if not (given and place.begun and place.config.samefile(given) and settings == read_config(given, scores, OLDER)):
        save_config(place.config, settings, reasons)


def origins(start: "StartSettings", scores: "Mapping[str, ScoreMaker]") -> "tuple[Transfer | None, Saved | None]":
    """(a model whose encoder is taken over, a model that learns on)."""
    from regard.checkpoint import folder
    from regard.training.transfer import Transfer

    transfer = Transfer(folder.load(Path(start.encoder), scores), start.freeze) if start.encoder else None
    return transfer, folder.load(Path(start.model), scores) if start.model else None


def settle(
    given: Path | None,
    options: Mapping[str, Any],
    changes: list[str],
    scores: "Mapping[str, ScoreMaker]",
    start: "StartSettings",
    origin: "Saved | None",
) -> "tuple[RunSettings, dict[str, str], Survey]":
    """All settings of the run, the reasons for them, and what was found in the data, which had to be read for that.

    origin: the model that this one starts from, whole or with its encoder only.
    """
    from regard.data.codecs import FILE_CODECS
    from regard.training.config import read_config
    from regard.training.material import folder_of, survey
    from regard.training.settings import RunSettings, override, suggest

    def with_options(settings: RunSettings) -> RunSettings:
        data = replace(settings.data, **{name: value for name, value in options.items() if value})
        return replace(settings, data=data, start=start)

    told_changes = [tuple(part.strip() for part in change.partition("=")) for change in changes]
    told = {key: "given with --set" for key, _, _ in told_changes}
    if any(key.startswith("start.") for key in told):
        raise UserError("--set start.…: what a run starts from is said with --start-from, --encoder-from and --freeze")
    if given:
        settings = override(with_options(read_config(given, scores)), changes, scores)
        if not settings.data.files:
            raise UserError(f"{given}: data.files: got none, expected what to learn from, such as files: [pairs.tsv]")
        return settings, told, survey(settings.data)
    early = [change for change in changes if change.partition("=")[0].strip() in READING]
    found = survey(override(with_options(RunSettings()), early).data)
    unit = next((value for key, _, value in told_changes if key == "data.source_unit"), "")
    of_text = bool(unit) and unit not in FILE_CODECS
    suggestion = suggest(found.sample, found.counts.pairs, folder_of(tuple(map(str, options["files"]))), of_text=of_text)
    settings = with_options(suggestion.settings)
    if origin:  # its model, and tokens as it knows them
        before = origin.training.get("settings", {}).get("data", {})
        same = ("source_unit", "target_unit", "shared", "vocabulary") if start.model else ("source_unit",)
        tokens = {name: before[name] for name in same if name in before}
        settings = replace(settings, model=origin.settings, data=replace(settings.data, **tokens))
    return override(settings, changes, scores), {**suggestion.reasons, **told}, found


def say(
    console: "Console", found: "Survey", whence: str, config: Path, settings: "RunSettings", reasons: Mapping[str, str]
) -> None:
    """What there is to learn from, and how it will be learnt."""
    from regard.training.settings import describe, expectation

    console.print(found.counts.say())
    if advice := expectation(found.counts.pairs):
        console.print(advice)
    console.print(f"settings {whence}; all of them: {config}; change any with --set")
    console.print(describe(settings, reasons))


def tell(trained: "Trained", out: Path, console: "Console") -> None:
    """How good it is, where it is wrong, and what to type next."""
    from regard.data.tokenizers.codec import Codec

    console.print(f"\nheld out: {trained.rates}\n          {trained.signature}")
    worst = sorted((one for one in trained.answers if not one.right), key=lambda one: one.result.log_prob)
    for title, some in (("some of them", trained.answers), ("wrong, and what the model was least sure of", worst)):
        if some:
            console.print(f"\n{title}:")
        for answered in some[:5]:
            console.print(f"  {answered}")
    what = "texts" if isinstance(trained.saved.source, Codec) else "names"
    console.print(f"\nsaved in {out}; next: regard translate {out} < {what}.txt")


def check_columns(settings: "RunSettings", origin: "Saved | None") -> None:
    """Raises if there are texts beside the files, but the model that this one starts from cannot read them."""
    from regard.data.sources import FileCodec

    columns, start = settings.data.source_columns, settings.start
    if origin and isinstance(origin.source, FileCodec) and origin.source.beside is None and len(columns) > 1:
        raise UserError(
            f"{start.model or start.encoder} reads no text beside its {origin.source.nouns}, but there are the source columns "
            f"{' and '.join(columns)}; say --from {columns[0]}, or train without that model"
        )


def check_same(settings: "RunSettings", before: "RunSettings", out: Path) -> None:
    """A run goes on only as it began."""
    from dataclasses import asdict

    from regard.training.settings import leaves

    old, new = (dict(leaves(asdict(one))) for one in (before, settings))
    changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    if changed:
        what = "; ".join(f"{key} was {old.get(key)} and is now {new.get(key)}" for key in changed[:5])
        more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
        raise UserError(
            f"{out}.run holds a run with other settings, which is left alone: {what}{more}. To go on, type the command of that "
            "run; to begin anew, choose another --out, or say --overwrite"
        )
