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
    Header,
    Score,
    Set,
    SkipBadLines,
    Threads,
    load_score,
    make_console,
    prepare_device,
    split_columns,
)
from regard.errors import UserError, plural

if TYPE_CHECKING:
    from rich.console import Console

    from regard.checkpoint.folder import Saved
    from regard.layers.scores import ScoreMaker
    from regard.training.run import Trained
    from regard.training.run_folder import RunFolder
    from regard.training.settings import DataSettings, NormalForm, RunSettings, StartSettings, TrainSettings
    from regard.training.survey import Survey
    from regard.training.transfer import Transfer

READING = {
    f"data.{name}"
    for name in ("files", "held_out_files", "source_columns", "target_column", "header", "bad_lines", "normalise", "max_length")
}
"""Settings that must be known before the data is read."""
RATES = ("train.steps", "train.warmup", "train.schedule", "train.learning_rate")
"""Settings that the learning rate depends on. A run continues with other values if they give the same rates so far."""
AT_THE_END = ("train.average",)
"""Settings that matter only when a run ends, and may change until then."""


def find_run_file(files: list[Path]) -> Path | None:
    """Returns the run file (.yaml), or None if these are data files. Raises UserError if there are both."""
    runs = [file for file in files if file.suffix in (".yaml", ".yml")]
    if runs and len(files) > 1:
        raise UserError(
            f"{runs[0]} is a run file, so no other files are accepted; name the data in it, as data.files, or with --set "
            "data.files=…"
        )
    return runs[0] if runs else None


Files = Annotated[
    list[Path],
    typer.Argument(
        help="Pairs: a .tsv (source<TAB>target), .csv, .jsonl or .xlsx file, or two parallel text files. Text files may be "
        "compressed (.gz). A source may be the path of a picture or sound. Or a run file (.yaml)."
    ),
]
SourceColumns = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="COL[,COL]",
        help="Source columns, by name or number. Default: recognised by name, or the first of two.",
        show_default=False,
    ),
]
TargetColumn = Annotated[
    str | None,
    typer.Option(
        metavar="COL",
        help="Target column, by name or number. Default: recognised by name, or the second of two.",
        show_default=False,
    ),
]
HeldOut = Annotated[
    list[Path] | None,
    typer.Option(
        metavar="FILE",
        help="Pairs to validate on; give it twice for parallel files. Default: a part of the data.",
        show_default=False,
    ),
]


def train(
    context: typer.Context,
    files: Files,
    out: Annotated[Path, typer.Option(help="Model folder to write.")] = Path("model"),
    from_: SourceColumns = None,
    to: TargetColumn = None,
    header: Header = None,
    skip_bad_lines: SkipBadLines = False,
    held_out: HeldOut = None,
    set_: Set = None,
    score: Score = None,
    encoder_from: Annotated[
        Path | None, typer.Option(help="Model folder whose trained encoder the new model starts with.", show_default=False)
    ] = None,
    freeze: Annotated[bool, typer.Option("--freeze", help="With --encoder-from: do not train that encoder.")] = False,
    start_from: Annotated[
        Path | None,
        typer.Option(help="Model folder to train further, with its settings and vocabulary.", show_default=False),
    ] = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write the log for TensorBoard, to OUT.run/tensorboard.")
    ] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Start over, and replace the model folder if it exists.")
    ] = False,
    device: Device = "auto",
    threads: Threads = None,
) -> None:
    """Train a model on pairs of texts. No configuration needed: the settings are chosen from the data and printed.

    They are also written to OUT.run/run.yaml, with the reasons. `regard train OUT.run/run.yaml` repeats the run.

    To continue a run that was interrupted or killed, run the same command again.
    """
    for file in [*files, *(held_out or ())]:
        if not file.exists():
            raise UserError(f"{file}: no such file")  # before torch is imported, so that a mistyped name is reported at once
    run_file = find_run_file(files)

    from regard.checkpoint import folder
    from regard.checkpoint.lock import locked
    from regard.training.board import check_tensorboard
    from regard.training.data import StartCodecs
    from regard.training.run import run
    from regard.training.run_folder import RunFolder
    from regard.training.tokenise import from_files

    console, torch_device = make_console(), prepare_device(device, threads)
    if tensorboard:
        check_tensorboard()
    run_folder = RunFolder.for_model(out, tensorboard=tensorboard)
    context.with_resource(locked(out))
    folder.recover(out)
    run_folder.clean()
    resuming = not overwrite and run_folder.started
    folder.check_destination(out, replace=overwrite or resuming)
    scores = load_score(score)
    start = start_settings(run_file, str(start_from or ""), str(encoder_from or ""), freeze, scores)
    transfer, parent = load_start_models(start, scores)
    start_model = transfer.saved if transfer else parent
    num_updates, checkpoint_facts = run_folder.checkpoints(1).last_origin() if resuming else (0, {})
    previous = previous_settings(run_folder, checkpoint_facts, scores) if resuming else None
    options: dict[str, Any] = {
        "files": () if run_file else tuple(map(str, files)),
        "held_out_files": tuple(map(str, held_out or ())),
        "source_columns": split_columns(from_),
        "target_column": to,
        "header": None if header is None else "yes" if header else "no",
        "bad_lines": "skip" if skip_bad_lines else None,
    }
    if previous and previous["data"]["header"] == "usual":
        options["header"] = options["header"] or "usual"
    changes = [*(set_ or []), *(f"model.score={name}" for name in scores)]
    defaults = {
        "data.normalise": previous["data"]["normalise"] if previous else normal_form(start, start_model),
        "model.fusion_score": fusion_score(previous, start_model),
    }
    with console.status("reading the data"):
        settings, reasons, surveyed = choose_settings(run_file, options, changes, scores, start, start_model, defaults)
    if parent and settings.model != parent.settings:
        raise UserError(
            f"--start-from {start.model}: the settings of that model cannot change; remove the options that change them"
        )
    check_columns(settings, start_model)
    check_normalisation(settings, start_model)
    if previous:
        check_same_run(settings, previous, num_updates, files, out)

    settings_from = f"from {run_file}" if run_file else "chosen from the data"
    print_settings(console, surveyed, settings_from, run_folder.config, settings, reasons)
    start_codecs = (
        StartCodecs(parent.source, parent.target) if parent else StartCodecs(transfer.saved.source if transfer else None)
    )
    if not resuming:
        run_folder.clear()
    training_data = from_files(
        settings.data, surveyed, run_folder.path, console, start_codecs, resuming=resuming, origin=checkpoint_facts
    )
    if write_settings(run_folder, run_file, settings, reasons, scores, resuming=resuming) and resuming:
        console.print(f"{run_folder.config} was rewritten with the settings that this run continues with")
    trained = run(
        training_data,
        settings,
        console,
        torch_device,
        run_folder=run_folder,
        scores=scores,
        transfer=transfer,
        start_from=parent,
    )
    folder.save(trained.saved, out, replace=True)
    print_result(trained, out, console)


def start_settings(
    run_file: Path | None, model: str, encoder: str, freeze: bool, scores: "Mapping[str, ScoreMaker]"
) -> "StartSettings":
    """Returns the settings of what a run starts from: those of the options or, if there are none, of the run file."""
    from regard.training.config import read_config
    from regard.training.settings import StartSettings

    start = StartSettings(model=model, encoder=encoder, freeze=freeze)
    return read_config(run_file, scores).start if run_file and start == StartSettings() else start


def write_settings(
    run_folder: "RunFolder",
    run_file: Path | None,
    settings: "RunSettings",
    reasons: Mapping[str, str],
    scores: "Mapping[str, ScoreMaker]",
    *,
    resuming: bool,
) -> bool:
    """Writes run.yaml and returns True, unless the file of this run, or the run file that was given, has the same settings."""
    from regard.training.config import read_config, save_config
    from regard.training.settings import OLDER

    if run_folder.config.exists() and (resuming or (run_file and run_folder.config.samefile(run_file))):
        with suppress(UserError):
            if read_config(run_folder.config, scores, OLDER, old_names=resuming) == settings:
                return False
    save_config(run_folder.config, settings, reasons)
    return True


def previous_settings(
    run_folder: "RunFolder", checkpoint_facts: Mapping[str, Any], scores: "Mapping[str, ScoreMaker]"
) -> dict[str, Any]:
    """Returns the settings that a run was trained with so far: those of its last checkpoint or, if there is none, or if an
    earlier version of regard wrote it, those of its run.yaml. Raises UserError if neither has them."""
    from regard.training.config import read_config
    from regard.training.settings import OLDER

    if "settings" in checkpoint_facts:
        return dict(checkpoint_facts["settings"])
    if not run_folder.config.exists():
        raise UserError(
            f"{run_folder.path} holds checkpoints, but no {run_folder.config.name} with their settings; restore that file, or "
            "start over with another --out, or with --overwrite"
        )
    return asdict(read_config(run_folder.config, scores, OLDER, old_names=True))


def load_start_models(start: "StartSettings", scores: "Mapping[str, ScoreMaker]") -> "tuple[Transfer | None, Saved | None]":
    """Returns the model whose encoder is reused and the model that is trained further, each None if there is none."""
    from regard.checkpoint import folder
    from regard.training.transfer import Transfer

    transfer = Transfer(folder.load(Path(start.encoder), scores), start.freeze) if start.encoder else None
    return transfer, folder.load(Path(start.model), scores) if start.model else None


def normal_form(start: "StartSettings", start_model: "Saved | None") -> "NormalForm":
    """Returns the default of data.normalise: that of the vocabularies which the run takes over from the start model."""
    from regard.data.tokenizers.codec import Codec

    if start_model is None:
        return "nfc"
    source = start_model.source if isinstance(start_model.source, Codec) else start_model.source.auxiliary
    reused = [codec for codec in (source, start_model.target if start.model else None) if codec is not None]
    return "nfc" if all(codec.normalises for codec in reused) else "none"


def fusion_score(previous: Mapping[str, Any] | None, start_model: "Saved | None") -> str | None:
    """Returns the default of model.fusion_score: that of the run which continues, or of the model that this one starts from."""
    from regard.checkpoint.migrate import FUSION_SCORE

    if previous:
        score: str | None = previous["model"].get("fusion_score", FUSION_SCORE)
        return score
    return getattr(start_model.settings, "fusion_score", None) if start_model else None


def choose_settings(
    run_file: Path | None,
    options: Mapping[str, Any],
    changes: list[str],
    scores: "Mapping[str, ScoreMaker]",
    start: "StartSettings",
    start_model: "Saved | None",
    defaults: Mapping[str, Any],
) -> "tuple[RunSettings, dict[str, str], Survey]":
    """Reads the data, and returns all settings of the run, the reasons for them, and the survey of the data.

    options: data settings from the command line. changes: arguments of --set. start_model: the model that this one starts from,
    as a whole or with its encoder only. defaults: those of data.normalise and model.fusion_score.
    """
    from regard.data.codecs import FILE_CODECS
    from regard.training.config import read_config
    from regard.training.overrides import override
    from regard.training.settings import DataSettings, RunSettings
    from regard.training.suggest import suggest
    from regard.training.survey import folder_of, names_files, survey

    def with_options(settings: RunSettings) -> RunSettings:
        data = replace(settings.data, **{name: value for name, value in options.items() if value})
        return replace(settings, data=data, start=start)

    key_values = [tuple(part.strip() for part in change.partition("=")) for change in changes]
    set_reasons = {key: "given with --set" for key, _, _ in key_values}
    if any(key.startswith("start.") for key in set_reasons):
        raise UserError("--set start.…: use --start-from, --encoder-from and --freeze to say what a run starts from")
    if run_file:
        settings = override(with_options(read_config(run_file, scores, defaults)), changes, scores)
        if not settings.data.files:
            raise UserError(f"{run_file}: data.files: got none, expected files to train on, such as files: [pairs.tsv]")
        return settings, set_reasons, survey(settings.data)
    normalise = defaults["data.normalise"]
    early = [change for change in changes if change.partition("=")[0].strip() in READING]
    reading = override(with_options(RunSettings(data=DataSettings(normalise=normalise))), early).data
    unit = next((value for key, _, value in key_values if key == "data.source_unit"), "")
    surveyed = survey(reading, names=unit in FILE_CODECS if unit else names_files(reading))
    of_text = bool(unit) and unit not in FILE_CODECS
    suggestion = suggest(surveyed.sample, surveyed.counts.pairs, folder_of(tuple(map(str, options["files"]))), of_text=of_text)
    settings = with_options(suggestion.settings)
    settings, reasons = replace(settings, data=replace(settings.data, normalise=normalise)), {**suggestion.reasons}
    if "fusion_score" in settings.model.__dataclass_fields__:
        settings = replace(settings, model=replace(settings.model, fusion_score=defaults["model.fusion_score"]))
    if start_model:  # take over its model settings, and the units of its vocabularies
        reasons["data.normalise"] = f"as {start.model or start.encoder} normalises texts"
        start_data = start_model.training.get("settings", {}).get("data", {})
        same = ("source_unit", "target_unit", "shared", "vocabulary") if start.model else ("source_unit",)
        tokens = {name: start_data[name] for name in same if name in start_data}
        settings = replace(settings, model=start_model.settings, data=replace(settings.data, **tokens))
    return override(settings, changes, scores), {**reasons, **set_reasons}, surveyed


def print_settings(
    console: "Console",
    surveyed: "Survey",
    settings_from: str,
    config: Path,
    settings: "RunSettings",
    reasons: Mapping[str, str],
) -> None:
    """Prints a description of the data and the settings of the run."""
    from regard.training.overrides import describe
    from regard.training.suggest import expectation

    console.print(surveyed.counts.describe())
    if advice := expectation(surveyed.counts.pairs):
        console.print(advice)
    console.print(f"settings {settings_from}; all of them: {config}; change any with --set")
    console.print(describe(settings, reasons))


def print_result(trained: "Trained", out: Path, console: "Console") -> None:
    """Prints how good the model is, some of its outputs and errors, and the next command."""
    from regard.data.tokenizers.codec import Codec

    console.print(f"\nheld out: {trained.rates}\n          {trained.signature}\n\n{trained.assessment}")
    wrong = (prediction for prediction in trained.predictions if not prediction.right)
    worst = sorted(wrong, key=lambda prediction: prediction.result.log_prob)
    for title, predictions in (("some outputs", trained.predictions), ("wrong outputs, the least probable first", worst)):
        if predictions:
            console.print(f"\n{title}:")
        for prediction in predictions[:5]:
            console.print(f"  {prediction}")
    inputs = "texts" if isinstance(trained.saved.source, Codec) else "names"
    console.print(f"\nsaved in {out}; next: regard translate {shlex.quote(str(out))} {inputs}.txt")


def check_columns(settings: "RunSettings", start_model: "Saved | None") -> None:
    """Raises if there are auxiliary texts, but the model that this one starts from cannot read them."""
    from regard.data.sources import FileCodec

    columns, start = settings.data.source_columns, settings.start
    source = start_model.source if start_model else None
    if isinstance(source, FileCodec) and source.auxiliary is None and len(columns) > 1:
        raise UserError(
            f"{start.model or start.encoder} reads {source.nouns} without an auxiliary text, but there are the source columns "
            f"{' and '.join(columns)}; use --from {columns[0]}, or train without that model"
        )


def check_normalisation(settings: "RunSettings", start_model: "Saved | None") -> None:
    """Raises if texts would be normalised differently from those of the model that this one starts from."""
    normalise, expected = settings.data.normalise, normal_form(settings.start, start_model)
    if start_model and normalise != expected:
        raise UserError(
            f"data.normalise is {normalise}, but the vocabulary of {settings.start.model or settings.start.encoder} was made "
            f"with {expected} and cannot change; set data.normalise={expected}, or train without that model"
        )


def check_same_run(
    settings: "RunSettings", previous: Mapping[str, Any], num_updates: int, files: list[Path], out: Path
) -> None:
    """Raises if a run cannot continue with these settings. previous: its settings so far. num_updates: how many it has done."""
    from regard.training.loop import same_rates
    from regard.training.overrides import leaves
    from regard.training.settings import OLDER, RunSettings

    defaults = asdict(replace(RunSettings(), model=type(settings.model)()))  # for settings that an older version did not have
    old, new = (dict(leaves(json.loads(json.dumps(one)))) for one in (previous, asdict(settings)))
    known = dict(leaves(json.loads(json.dumps(defaults))))
    old = {**known, **{key: value for key, value in OLDER.items() if key in known}, **old}
    changed = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    if not changed:
        return
    longer = ""
    if set(changed) <= {*RATES, *AT_THE_END}:
        old_train = replace(settings.train, **{key.removeprefix("train."): old[key] for key in RATES})
        if num_updates <= settings.train.steps and same_rates(old_train, settings.train, num_updates):
            return
        longer = how_to_train_longer(old_train, settings, num_updates, files, out)
    what = "; ".join(f"{key} was {old.get(key)} and is now {new.get(key)}" for key in changed[:5])
    more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
    raise UserError(
        f"{out}.run holds a run with other settings, which was not modified: {what}{more}. {longer}To continue that run, "
        "repeat its command; to start over, choose another --out, or use --overwrite"
    )


def reading_options(data: "DataSettings") -> list[str]:
    """Returns the options that read files in the same way."""
    return [
        *(("--from", ",".join(data.source_columns)) if data.source_columns else ()),
        *(("--to", data.target_column) if data.target_column else ()),
        *({"yes": ("--header",), "no": ("--no-header",)}.get(data.header, ())),
        *(("--skip-bad-lines",) if data.bad_lines == "skip" else ()),
        *(word for file in data.held_out_files for word in ("--held-out", file)),
    ]


def how_to_train_longer(
    old_train: "TrainSettings", settings: "RunSettings", num_updates: int, files: list[Path], out: Path
) -> str:
    """Returns a sentence on how to train for more updates than a run started with; "" if no more are requested."""
    from regard.training.loop import num_warmup, same_rates

    new_train = settings.train
    if new_train.steps <= old_train.steps:
        return ""
    warmup = float(f"{num_warmup(old_train) / new_train.steps:.6g}")
    if same_rates(old_train, replace(new_train, warmup=warmup), num_updates):
        return (
            f"Its learning rate warms up for {plural(num_warmup(old_train), 'update')}; to train longer with the same warm-up, "
            f"add --set train.warmup={warmup:g}. "
        )
    options = [] if find_run_file(files) else reading_options(settings.data)
    command = ["regard", "train", *map(str, files), *options, "--start-from", str(out), "--out", f"{out}-longer"]
    command += ["--set", f"train.steps={new_train.steps - old_train.steps}"]
    return (
        f"Its learning rate ({old_train.schedule}) depends on train.steps, so the run cannot be extended; to train its model "
        f"further once it has ended, type: {shlex.join(command)}. "
    )
