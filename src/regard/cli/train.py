"""regard train pairs.tsv --out model"""

import json
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, replace
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
from regard.errors import UserError, plural

if TYPE_CHECKING:
    from rich.console import Console

    from regard.checkpoint.folder import Saved
    from regard.layers.scores import ScoreMaker
    from regard.training.data import Survey
    from regard.training.run import Trained
    from regard.training.run_folder import RunFolder
    from regard.training.settings import DataSettings, NormalForm, RunSettings, StartSettings, TrainSettings
    from regard.training.transfer import Transfer

READING = {
    f"data.{name}"
    for name in ("files", "held_out_files", "source_columns", "target_column", "header", "bad_lines", "normalise", "max_length")
}
"""What must be known before the data is read."""
RATES = ("train.steps", "train.warmup", "train.schedule", "train.learning_rate")
"""What the learning rate depends on. A run goes on with others if they would have given it the same rates so far."""
AT_THE_END = ("train.average",)
"""What matters only when a run ends, and may change until then."""


def run_file(files: list[Path]) -> Path | None:
    """The run file among these; it must be the only one."""
    runs = [file for file in files if file.suffix in (".yaml", ".yml")]
    if runs and len(files) > 1:
        raise UserError(
            f"{runs[0]} is a run file and stands alone; name the data in it, as data.files, or with --set data.files=…"
        )
    return runs[0] if runs else None


def train(
    context: typer.Context,
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
    from regard.checkpoint.lock import locked
    from regard.training.board import check_tensorboard
    from regard.training.data import StartCodecs, from_files
    from regard.training.run import run
    from regard.training.run_folder import RunFolder

    console, chosen = make_console(), prepare(device, threads)
    if tensorboard:
        check_tensorboard()
    run_folder = RunFolder.for_model(out, tensorboard=tensorboard)
    context.with_resource(locked(out))
    folder.recover(out)
    run_folder.clean()
    begun = not overwrite and run_folder.begun
    folder.check_destination(out, replace=overwrite or begun)
    scores = own_score(score)
    start = start_of(given, str(start_from or ""), str(encoder_from or ""), freeze, scores)
    transfer, parent = origins(start, scores)
    origin = transfer.saved if transfer else parent
    done, learnt = run_folder.checkpoints(1).learnt() if begun else (0, {})
    before = settings_before(run_folder, learnt, scores) if begun else None
    options: dict[str, Any] = {
        "files": () if given else tuple(map(str, files)),
        "held_out_files": tuple(map(str, held_out or ())),
        "source_columns": columns_of(from_),
        "target_column": to,
        "header": None if header is None else "yes" if header else "no",
        "bad_lines": "skip" if skip_bad_lines else None,
    }
    if before and before["data"]["header"] == "usual":
        options["header"] = options["header"] or "usual"
    changes = [*(set_ or []), *(f"model.score={name}" for name in scores)]
    normalise = before["data"]["normalise"] if before else normal_form(start, origin)
    with console.status("reading the data"):
        settings, reasons, found = settle(given, options, changes, scores, start, origin, normalise)
    if parent and settings.model != parent.settings:
        raise UserError(f"--start-from {start.model}: its model settings stay as they are; leave out what changes them")
    check_columns(settings, origin)
    check_normalisation(settings, origin)
    if before:
        check_same(settings, before, done, files, out)

    print_choices(console, found, f"from {given}" if given else "chosen from the data", run_folder.config, settings, reasons)
    known = StartCodecs(parent.source, parent.target) if parent else StartCodecs(transfer.saved.source if transfer else None)
    if not begun:
        run_folder.clear()
    training_data = from_files(settings.data, found, run_folder.path, console, known, begun=begun, learnt=learnt)
    if write_settings(run_folder, given, settings, reasons, scores, begun=begun) and begun:
        console.print(f"{run_folder.config} is written again: it did not say what this run does from here on")
    trained = run(
        training_data, settings, console, chosen, run_folder=run_folder, scores=scores, transfer=transfer, start_from=parent
    )
    folder.save(trained.saved, out, replace=True)
    print_result(trained, out, console)


def start_of(given: Path | None, model: str, encoder: str, freeze: bool, scores: "Mapping[str, ScoreMaker]") -> "StartSettings":
    """What the command says a run starts from; if it says nothing, what the run file does."""
    from regard.training.config import read_config
    from regard.training.settings import StartSettings

    start = StartSettings(model=model, encoder=encoder, freeze=freeze)
    return read_config(given, scores).start if given and start == StartSettings() else start


def write_settings(
    run_folder: "RunFolder",
    given: Path | None,
    settings: "RunSettings",
    reasons: Mapping[str, str],
    scores: "Mapping[str, ScoreMaker]",
    *,
    begun: bool,
) -> bool:
    """Writes run.yaml, if it must be: one that says the same already is left alone, if it is of this run or the file given."""
    from regard.training.config import read_config, save_config
    from regard.training.settings import OLDER

    if run_folder.config.exists() and (begun or (given and run_folder.config.samefile(given))):
        with suppress(UserError):
            if read_config(run_folder.config, scores, OLDER, old_names=begun) == settings:
                return False
    save_config(run_folder.config, settings, reasons)
    return True


def settings_before(run_folder: "RunFolder", learnt: Mapping[str, Any], scores: "Mapping[str, ScoreMaker]") -> dict[str, Any]:
    """With which settings a run has learnt or, if it has not yet, or with an earlier version, those in its run.yaml."""
    from regard.training.config import read_config
    from regard.training.settings import OLDER

    if "settings" in learnt:
        return dict(learnt["settings"])
    if not run_folder.config.exists():
        raise UserError(
            f"{run_folder.path} holds checkpoints, but no {run_folder.config.name} that says with which settings; bring it back, or "
            "begin anew with another --out, or with --overwrite"
        )
    return asdict(read_config(run_folder.config, scores, OLDER, old_names=True))


def origins(start: "StartSettings", scores: "Mapping[str, ScoreMaker]") -> "tuple[Transfer | None, Saved | None]":
    """(a model whose encoder is taken over, a model that learns on)."""
    from regard.checkpoint import folder
    from regard.training.transfer import Transfer

    transfer = Transfer(folder.load(Path(start.encoder), scores), start.freeze) if start.encoder else None
    return transfer, folder.load(Path(start.model), scores) if start.model else None


def normal_form(start: "StartSettings", origin: "Saved | None") -> "NormalForm":
    """How the texts of this run are normalised where nobody says so: as the vocabularies of `origin` that it takes over do."""
    from regard.data.tokenizers.codec import Codec

    if origin is None:
        return "nfc"
    source = origin.source if isinstance(origin.source, Codec) else origin.source.auxiliary
    taken = [codec for codec in (source, origin.target if start.model else None) if codec is not None]
    return "nfc" if all(codec.normalises for codec in taken) else "none"


def settle(
    given: Path | None,
    options: Mapping[str, Any],
    changes: list[str],
    scores: "Mapping[str, ScoreMaker]",
    start: "StartSettings",
    origin: "Saved | None",
    normalise: "NormalForm",
) -> "tuple[RunSettings, dict[str, str], Survey]":
    """All settings of the run, the reasons for them, and what was found in the data, which had to be read for that.

    origin: the model that this one starts from, whole or with its encoder only. normalise: where nobody says so.
    """
    from regard.data.codecs import FILE_CODECS
    from regard.training.config import read_config
    from regard.training.data import folder_of, names_files, survey
    from regard.training.settings import DataSettings, RunSettings, override, suggest

    def with_options(settings: RunSettings) -> RunSettings:
        data = replace(settings.data, **{name: value for name, value in options.items() if value})
        return replace(settings, data=data, start=start)

    told_changes = [tuple(part.strip() for part in change.partition("=")) for change in changes]
    given_reasons = {key: "given with --set" for key, _, _ in told_changes}
    if any(key.startswith("start.") for key in given_reasons):
        raise UserError("--set start.…: what a run starts from is said with --start-from, --encoder-from and --freeze")
    if given:
        settings = override(with_options(read_config(given, scores, {"data.normalise": normalise})), changes, scores)
        if not settings.data.files:
            raise UserError(f"{given}: data.files: got none, expected what to learn from, such as files: [pairs.tsv]")
        return settings, given_reasons, survey(settings.data)
    early = [change for change in changes if change.partition("=")[0].strip() in READING]
    reading = override(with_options(RunSettings(data=DataSettings(normalise=normalise))), early).data
    unit = next((value for key, _, value in told_changes if key == "data.source_unit"), "")
    found = survey(reading, names=unit in FILE_CODECS if unit else names_files(reading))
    of_text = bool(unit) and unit not in FILE_CODECS
    suggestion = suggest(found.sample, found.counts.pairs, folder_of(tuple(map(str, options["files"]))), of_text=of_text)
    settings = with_options(suggestion.settings)
    settings, reasons = replace(settings, data=replace(settings.data, normalise=normalise)), {**suggestion.reasons}
    if origin:  # its model, and tokens as it knows them
        reasons["data.normalise"] = f"as {start.model or start.encoder} reads texts"
        before = origin.training.get("settings", {}).get("data", {})
        same = ("source_unit", "target_unit", "shared", "vocabulary") if start.model else ("source_unit",)
        tokens = {name: before[name] for name in same if name in before}
        settings = replace(settings, model=origin.settings, data=replace(settings.data, **tokens))
    return override(settings, changes, scores), {**reasons, **given_reasons}, found


def print_choices(
    console: "Console", found: "Survey", whence: str, config: Path, settings: "RunSettings", reasons: Mapping[str, str]
) -> None:
    """What there is to learn from, and how it will be learnt."""
    from regard.training.settings import describe, expectation

    console.print(found.counts.describe())
    if advice := expectation(found.counts.pairs):
        console.print(advice)
    console.print(f"settings {whence}; all of them: {config}; change any with --set")
    console.print(describe(settings, reasons))


def print_result(trained: "Trained", out: Path, console: "Console") -> None:
    """How good it is, where it is wrong, and what to type next."""
    from regard.data.tokenizers.codec import Codec

    console.print(f"\nheld out: {trained.rates}\n          {trained.signature}\n\n{trained.assessment}")
    worst = sorted((one for one in trained.predictions if not one.right), key=lambda one: one.result.log_prob)
    for title, some in (("some of them", trained.predictions), ("wrong, and what the model was least sure of", worst)):
        if some:
            console.print(f"\n{title}:")
        for prediction in some[:5]:
            console.print(f"  {prediction}")
    what = "texts" if isinstance(trained.saved.source, Codec) else "names"
    console.print(f"\nsaved in {out}; next: regard translate {shlex.quote(str(out))} {what}.txt")


def check_columns(settings: "RunSettings", origin: "Saved | None") -> None:
    """Raises if there are texts beside the files, but the model that this one starts from cannot read them."""
    from regard.data.sources import FileCodec

    columns, start = settings.data.source_columns, settings.start
    if origin and isinstance(origin.source, FileCodec) and origin.source.auxiliary is None and len(columns) > 1:
        raise UserError(
            f"{start.model or start.encoder} reads no text beside its {origin.source.nouns}, but there are the source columns "
            f"{' and '.join(columns)}; say --from {columns[0]}, or train without that model"
        )


def check_normalisation(settings: "RunSettings", origin: "Saved | None") -> None:
    """Raises if texts would be normalised in another way than the model that this one starts from reads them."""
    normalise, expected = settings.data.normalise, normal_form(settings.start, origin)
    if origin and normalise != expected:
        raise UserError(
            f"data.normalise is {normalise}, but {settings.start.model or settings.start.encoder} reads texts with {expected}, "
            f"and its vocabulary stays as it is; set data.normalise={expected}, or train without that model"
        )


def check_same(settings: "RunSettings", before: Mapping[str, Any], done: int, files: list[Path], out: Path) -> None:
    """A run goes on only as it began. before: its settings. done: how many updates it has learnt with them."""
    from regard.training.loop import same_rates
    from regard.training.settings import OLDER, RunSettings, leaves

    defaults = asdict(replace(RunSettings(), model=type(settings.model)()))  # for settings that came with a later version
    old, new = (dict(leaves(json.loads(json.dumps(one)))) for one in (before, asdict(settings)))
    old = {**dict(leaves(json.loads(json.dumps(defaults)))), **OLDER, **old}
    changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    if not changed:
        return
    longer = ""
    if set(changed) <= {*RATES, *AT_THE_END}:
        then = replace(settings.train, **{key.removeprefix("train."): old[key] for key in RATES})
        if done <= settings.train.steps and same_rates(then, settings.train, done):
            return
        longer = how_to_train_longer(then, settings, done, files, out)
    what = "; ".join(f"{key} was {old.get(key)} and is now {new.get(key)}" for key in changed[:5])
    more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
    raise UserError(
        f"{out}.run holds a run with other settings, which is left alone: {what}{more}. {longer}To go on, type the command of "
        "that run; to begin anew, choose another --out, or say --overwrite"
    )


def how_it_reads(data: "DataSettings") -> list[str]:
    """The options that read files in the same way."""
    return [
        *(("--from", ",".join(data.source_columns)) if data.source_columns else ()),
        *(("--to", data.target_column) if data.target_column else ()),
        *({"yes": ("--header",), "no": ("--no-header",)}.get(data.header, ())),
        *(("--skip-bad-lines",) if data.bad_lines == "skip" else ()),
        *(word for file in data.held_out_files for word in ("--held-out", file)),
    ]


def how_to_train_longer(then: "TrainSettings", settings: "RunSettings", done: int, files: list[Path], out: Path) -> str:
    """What to type for more updates than a run began with; nothing if fewer were asked for."""
    from regard.training.loop import num_warmup, same_rates

    now = settings.train
    if now.steps <= then.steps:
        return ""
    warmup = float(f"{num_warmup(then) / now.steps:.6g}")
    if same_rates(then, replace(now, warmup=warmup), done):
        return (
            f"Its learning rate rises for {plural(num_warmup(then), 'update')}; to train longer with the same rise, add "
            f"--set train.warmup={warmup:g}. "
        )
    how = [] if run_file(files) else how_it_reads(settings.data)
    command = ["regard", "train", *map(str, files), *how, "--start-from", str(out), "--out", f"{out}-longer"]
    command += ["--set", f"train.steps={now.steps - then.steps}"]
    return (
        f"Its learning rate ({then.schedule}) depends on train.steps, so the run cannot become longer; to train its model "
        f"longer once it has ended, type: {shlex.join(command)}. "
    )
