"""Run files: written settings are read back, and every error is reported with its line number."""

import itertools
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from regard.data.codecs import FITTING
from regard.errors import UserError
from regard.layers.scores import SCORES
from regard.models.build import FAMILIES, presets
from regard.models.contract import ModelSettings
from regard.models.rnn_seq2seq import RnnSettings
from regard.models.transformer import PRESETS, TransformerSettings
from regard.training import config
from regard.training.config import parse_config, read_config, save_config, write_config
from regard.training.overrides import leaves, override
from regard.training.settings import DEMO, DataSettings, RunSettings, TrainSettings

EVERY_KIND = {**presets(), **{kind: family.settings() for kind, family in FAMILIES.items()}}


def errors_of(text: str) -> list[str]:
    with pytest.raises(UserError) as caught:
        parse_config(text, "run.yaml")
    return str(caught.value).splitlines()


# --- round trips -------------------------------------------------------------------------------------------------------------


def of_kind(kind: str) -> RunSettings:
    """Returns settings of this kind; some need one vocabulary."""
    model = EVERY_KIND[kind]
    return RunSettings(data=DataSettings(shared=model.traits.shares_vocabulary), model=model)


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_every_kind_is_read_back(kind: str) -> None:
    settings = of_kind(kind)
    text = write_config(settings, {})
    assert parse_config(text, "run.yaml") == settings
    shared = str(settings.data.shared).lower()
    assert parse_config(f"data:\n  shared: {shared}\nmodel:\n  kind: {kind}\n", "run.yaml") == settings
    assert override(RunSettings(), [f"model.kind={kind}", f"data.shared={shared}"]) == settings


def words_of(cls: type, name: str) -> st.SearchStrategy[Any]:
    hint = get_type_hints(cls)[name]
    return st.sampled_from(get_args(hint)) if get_origin(hint) is Literal else st.booleans()


def instances_of(cls: type, *names: str, **others: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Generates instances of a settings class, without combinations that its checks refuse."""

    def construct(values: dict[str, Any]) -> Any:
        try:
            return cls(**values)
        except ValueError:
            return None

    fields = {**{name: words_of(cls, name) for name in names}, **others}
    return st.fixed_dictionaries({}, optional=fields).map(construct).filter(lambda settings: settings is not None)


SHARES = st.floats(0, 1, exclude_max=True)
SIZES = st.integers(1, 10**6)
NUMBERS = st.floats(0, exclude_min=True, allow_infinity=False)
NAMES = st.lists(st.text(), max_size=2).map(tuple)
DATA = instances_of(
    DataSettings,
    *("source_unit", "target_unit", "shared"),
    files=NAMES,
    held_out_files=NAMES,
    source_columns=NAMES,
    target_column=st.text(),
    vocabulary=st.integers(300, 10**7),
    subword_dropout=SHARES,
    held_out=st.floats(0, 1, exclude_min=True, exclude_max=True),
    max_length=SIZES,
)
TRAIN = instances_of(
    TrainSettings,
    *("schedule", "metric"),
    steps=SIZES,
    learning_rate=NUMBERS,
    clip=NUMBERS,
    weight_decay=NUMBERS,
    warmup=SHARES,
    ema=SHARES,
    average=SIZES,
    patience=st.integers(0, 3),
    validate_every=st.integers(0, 3),
)
RNN = instances_of(
    RnnSettings,
    *("cell", "bidirectional", "decoder", "input_feeding", "readout", "bridge", "every_step", "attention", "beyond"),
    width=SIZES,
    encoder_width=st.none() | SIZES,
    score=st.sampled_from(list(SCORES)),
    dropout=SHARES,
)
TRANSFORMERS = instances_of(
    TransformerSettings,
    *("activation", "norm", "norm_order", "embedding_norm", "positions", "position_join", "layout", "tie"),
    width=st.sampled_from([96, 120]),
    heads=st.sampled_from([2, 3, 4, 6]),
    kv_heads=st.none() | st.just(2),
    window=st.none() | SIZES,
    norm_eps=NUMBERS,
)
MODELS = RNN | TRANSFORMERS | st.sampled_from(list(EVERY_KIND.values()))


@given(DATA, MODELS, TRAIN, st.integers(0, 2**31 - 1), st.text())
@example(
    DataSettings(files=("null", "- é\u2028\x85\ufeff\x00😀 # \"'\\")), DEMO.model, DEMO.train, 1, "two\nlines # of reasons"
)
@example(DataSettings(source_columns=("1", "true"), target_column=" 2020-01-01 "), DEMO.model, DEMO.train, 1, "")
def test_written_settings_are_read_back(
    data: DataSettings, model: ModelSettings, train: TrainSettings, seed: int, reason: str
) -> None:
    if getattr(model, "tie", "") == "all":
        dropout = data.subword_dropout if data.target_unit == "bpe" else 0.0
        data = replace(data, source_unit=data.target_unit, shared=True, subword_dropout=dropout)
    if data.source_unit in FITTING:
        try:
            model = replace(model, frontend=data.source_unit)  # type: ignore[call-arg]
        except (ValueError, TypeError):  # its width does not fit, or it reads text only
            data = replace(data, source_unit="characters")
    settings = RunSettings(seed=seed, data=data, model=model, train=train)
    text = write_config(settings, {"train.steps": reason, "seed": reason})
    assert parse_config(text, "run.yaml") == settings
    assert len(text.splitlines()) == 1 + len(list(leaves(asdict(settings)))) + 2 * 4  # each section has a blank line and a name


def test_every_setting_has_a_line_with_its_reason_or_its_meaning() -> None:
    for kind in EVERY_KIND:
        settings = of_kind(kind)
        lines = write_config(settings, {"train.steps": "twenty times\nthrough the data"}).split("\n")
        found = [line for line in lines[1:] if line and not line.endswith(":")]
        assert len(found) == len(list(leaves(asdict(settings))))
        assert all(len(line.split("  # ")[1]) > 5 for line in found)
        assert [line.split("#")[1] for line in found if line.startswith("  steps:")] == [" twenty times through the data"]
    schedule = next(line for line in lines if line.startswith("  schedule:"))
    assert schedule.endswith("linear and cosine fall almost to 0. One of linear, inverse_sqrt, cosine, constant.")


def test_without_source_code_there_are_fewer_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(cls: type) -> str:
        raise OSError("source code not available")

    monkeypatch.setattr("inspect.getsource", missing)
    monkeypatch.setattr(config, "_texts", config._texts.__wrapped__)  # without its cache
    text = write_config(DEMO, {"seed": "drawn"})
    assert parse_config(text, "run.yaml") == DEMO
    assert re.search(r"^seed: 1 +# drawn$", text, re.MULTILINE)
    assert re.search(r"^  steps: 3200$", text, re.MULTILINE)


def test_other_yaml_parsers_agree() -> None:
    """The text is plain YAML: a full parser constructs the same values."""
    settings = replace(DEMO, data=replace(DEMO.data, files=("a b.tsv", "c/d.tsv"), source_columns=(), target_column=""))
    constructed = YAML(typ="safe", pure=True).load(write_config(settings, {}))
    expected = asdict(settings)
    for section in ("data", "start"):
        expected[section] = {
            key: list(value) if isinstance(value, tuple) else value for key, value in expected[section].items()
        }
    assert constructed == expected


def test_files_are_written_completely_and_read(tmp_path: Path) -> None:
    path = tmp_path / "m.run" / "run.yaml"
    save_config(path, DEMO, {"seed": "drawn"})
    save_config(path, replace(DEMO, seed=7), {})
    assert read_config(path) == replace(DEMO, seed=7)
    assert [file.name for file in path.parent.iterdir()] == ["run.yaml"]
    path.write_bytes(b"\xef\xbb\xbfseed: 5\r\ntrain:\r\n  steps: 9\r\n")  # as Windows editors write it
    assert read_config(path) == RunSettings(seed=5, train=TrainSettings(steps=9))


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.yaml"
    save_config(path, DEMO, {})
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(UserError, match=r"run.yaml cannot be written: No space"):
        save_config(path, replace(DEMO, seed=7), {})
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("run.yaml", before)]


def test_missing_settings_keep_their_defaults() -> None:
    assert parse_config("seed: 1\n", "run.yaml") == RunSettings()
    assert parse_config("train:\nmodel: ~\ndata: {}\n", "run.yaml") == RunSettings()
    assert parse_config("train.steps: 5\nmodel:\n  kind: tiny\n  width: 64\n", "run.yaml") == RunSettings(
        model=replace(PRESETS["tiny"], width=64), train=TrainSettings(steps=5)
    )


def test_texts_need_no_quotes() -> None:
    text = 'data:\n  files: no\n  source_columns: [2, 1e3, "a, b", 2020-01-01, "\\ud83d\\ude00"]\n  target_column: 1\n'
    data = parse_config(text, "run.yaml").data
    assert (data.files, data.target_column) == (("no",), "1")
    assert data.source_columns == ("2", "1e3", "a, b", "2020-01-01", "😀")


# --- errors ------------------------------------------------------------------------------------------------------------------


def test_all_errors_are_reported_together() -> None:
    text = """
seed: -1
seed: 2
data: 5
trian:
  steps: 3
steps: 4
model:
  kind: transformer
  heads: 0
  kv_heads: -2
  norm_eps: .nan
  score: aditive
  cell: gru
train:
  stepz: 3
  width: 3
  steps: 1e3
  clip: "1"
  warmup: 1.5
  learning_rate: .inf
  schedule: lineer
  metric: [loss]
  keep:
  ema: true
? [1, 2]
: 3
"""
    assert errors_of(text) == [
        "run.yaml:2: seed: got -1, expected 0 or more",
        "run.yaml:3: seed: got a second value, expected one; the first is on line 2",
        "run.yaml:4: data: got 5, expected the settings of this section, indented below it",
        'run.yaml:5: trian: got an unknown setting; did you mean "train"?',
        'run.yaml:7: steps: got an unknown setting; did you mean "train.steps"?',
        "run.yaml:10: model.heads: got 0, expected 1 or more",
        "run.yaml:11: model.kv_heads: got -2, expected 1 or more",
        "run.yaml:12: model.norm_eps: got nan, expected a finite number",
        "run.yaml:13: model.score: there is no score 'aditive'; expected one of dot, scaled_dot, general, basic, additive, "
        "concat, location, cosine, distance, or your own score, passed as "
        'scores={"aditive": …} or --score file.py:Class; did you mean "additive"?',
        "run.yaml:14: model.cell: got an unknown setting of the model kind transformer, expected one of "
        + ", ".join(asdict(TransformerSettings())),
        'run.yaml:16: train.stepz: got an unknown setting; did you mean "steps"?',
        'run.yaml:17: train.width: got an unknown setting; did you mean "model.width"?',
        "run.yaml:18: train.steps: got 1000.0, expected a whole number",
        "run.yaml:19: train.clip: got '1', expected a number",
        "run.yaml:20: train.warmup: got 1.5, expected at most 1",
        "run.yaml:21: train.learning_rate: got inf, expected a finite number",
        "run.yaml:22: train.schedule: got 'lineer', expected one of 'linear', 'inverse_sqrt', 'cosine' or 'constant'; "
        'did you mean "linear"?',
        "run.yaml:23: train.metric: got a list, expected one of 'loss', 'symbol_error_rate', 'sequence_error_rate' or 'bleu'",
        "run.yaml:24: train.keep: got nothing, expected a whole number",
        "run.yaml:25: train.ema: got true, expected a number",
        "run.yaml:26: ?: got a list as a key, expected the name of a setting",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("seed: 2147483648\n", "1: seed: got 2147483648, expected less than 2147483648"),
        ("train: {learning_rate: 0}\n", "1: train.learning_rate: got 0, expected more than 0"),
        ("data:\n  files: {a: b}\n", "2: data.files: got a mapping, expected a list, such as [one, two]"),
        ("data:\n  files: [[a], b]\n", "2: data.files: got a list, expected a string"),
        ("data:\n  files: [{a: b}]\n", "2: data.files: got a mapping, expected a string"),
        ("data:\n  target_column: ~\n", "2: data.target_column: got nothing, expected a string"),
        ("data:\n  shared: yes\n", "2: data.shared: got 'yes', expected true or false"),
        ("train:\n  steps: !!int many\n", "2: train.steps: got 'many', expected a whole number"),
        (
            "train.steps: 3\ntrain:\n  steps: 4\n",
            "3: train.steps: got a second value, expected one; the first is on line 1",
        ),
        ("data:\n  source: symbols\n", '2: data.source: got an unknown setting; did you mean "source_unit"?'),
        ('"a\\nb": 1\n', r"1: 'a\nb': got an unknown setting, expected one of seed, data, model, train"),
        ("loud: true\n", "1: loud: got an unknown setting, expected one of seed, data, model, train"),
        (
            "model:\n  heads: 2\nseed: 2\n",
            "2: model.heads: got an unknown setting of the model kind rnn, expected one of kind, width,",
        ),
        (
            "model:\n  kind: tinny\n  heads: 2\n",
            "2: model.kind: got 'tinny', expected one of rnn, rnn_lm, transformer, decoder_o",
        ),
        ("model:\n  kind: [tiny]\n", "2: model.kind: got \"['tiny']\", expected one of rnn"),
        ("seed: 2\nmodel:\n  width: 31\n", "2: model: width 31 cannot be split evenly between two directions; make it even"),
        (
            "model:\n  kind: tiny\n  tie: all\n",
            "1: model: tie=all requires one vocabulary for both sides; set data.shared=true, or",
        ),
        ("seed: 2\ntrain:\n  patience: 3\n", "2: train: patience is 3 validations, but validate_every is 0, so there are none"),
        ("data:\n  files: [a, b, c]\n", "1: data: files names 3 files, expected one file of pairs or two parallel files"),
        ("data: {held_out_files: [a, b, c]}\n", "1: data: held_out_files names 3 files, expected one file of pairs or two"),
        (
            "data: {files: [a, b], target_column: 1}\n",
            "1: data: source_columns and target_column select columns of one file, but",
        ),
        (
            "data: {source_columns: [a, b], target_column: b}\n",
            "1: data: column 'b' is both source and target; leave it out of",
        ),
        (
            "data: {shared: true, source_unit: symbols}\n",
            "1: data: shared=true requires one unit, but source_unit is symbols and",
        ),
        (
            "data: {subword_dropout: 0.1}\n",
            "1: data: subword_dropout is 0.1, but only the unit bpe has merges to skip, and",
        ),
        ("", '1: got an empty file, expected settings, such as "seed: 7"; write one "key: value" per line'),
        ("# nothing yet\n", "1: got an empty file"),
        ("\n- seed\n- train\n", '2: got a list, expected settings by name; write one "key: value" per line'),
        ("seed:7\n", "1: got plain text, expected settings by name; write"),
        (
            "train:\n  steps: 3\n seed: 7\n",
            "3: this is not valid YAML: while parsing a block mapping, expected <block end>, but found",
        ),
        (
            "seed: 7\ntrain: {steps: 3\n",
            "3: this is not valid YAML: while parsing a flow mapping, expected ',' or '}', but got '<stre",
        ),
        ("seed: 7\n\nscore: \x07\n", "3: this is not valid YAML: special characters are not allowed; write"),
        ("seed: *7\n", "1: got the alias *7, expected a value; write out the value it refers to"),
        (
            "seed: 7\n---\nseed: 8\n",
            "2: this is not valid YAML: expected a single document in the stream, but found another document",
        ),
        ("[" * 20_000, "1: got more than 10 nested brackets or sections, expected settings; write one"),
        ("seed: 7\ndata: " + "{a: " * 20_000, "2: got more than 10 nested brackets or sections, expected settings"),
        ("- " * 20_000, "1: got more than 10 nested brackets or sections, expected settings"),
        ("? " * 20_000, "1: got more than 10 nested brackets or sections, expected settings"),
        ("a: &a [x, x]\nb: &b [*a, *a]\n", "2: got the alias *a, expected a value; write out the value it refers to"),
        ("seed: 0x" + "f" * 20_000, "1: seed: got '0xffffffffffffffffffffff"),
        ("seed: " + "9" * 20_000, "1: seed: got '9999999999999999999999999999999999"),
        ("train: {steps: " + "9" * 4000 + "}", "1: train.steps: got 9999999999999999999999999999999999"),
        ("# " + "x" * 100_000, " got 100,002 characters, expected settings in at most 100,000 characters; is this a run file?"),
    ],
)
def test_an_error_is_reported_with_its_line(text: str, expected: str) -> None:
    (found,) = errors_of(text)
    assert found.startswith(f"run.yaml:{expected}")
    assert len(found) < 500


def test_a_bomb_of_aliases_is_refused() -> None:
    """Each list contains the previous one nine times: 222 bytes expand to 9^9 texts and would keep the parser busy for ever."""
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n"
    for before, name in itertools.pairwise("abcdefghi"):
        bomb += f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n"
    (found,) = errors_of(bomb)
    assert found == "run.yaml:2: got the alias *a, expected a value; write out the value it refers to"


def test_only_the_first_of_many_errors_are_reported() -> None:
    found = errors_of("seed: 7\n" * 1000)
    assert len(found) == 51
    assert found[-1] == "run.yaml: and 949 more errors"


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_bytes(b"#" * 500_000)
    with pytest.raises(
        UserError, match=r"run.yaml: got 500,000 bytes, expected settings in at most 100,000 characters; is this"
    ):
        read_config(tmp_path / "run.yaml")


def test_tabs_are_reported() -> None:
    """Reports tabs outside texts; within a text they are harmless."""
    words = "got a tab, expected spaces"
    assert errors_of("train:\n\tsteps: 3\n  clip: 2\n  \tkeep: 2\n") == [f"run.yaml:2: {words}", f"run.yaml:4: {words}"]
    assert errors_of("seed: 7\n\ntrain: {}\t# none\n") == [f"run.yaml:3: {words}"]
    assert parse_config('data:\n  target_column: "a\tb"\n', "run.yaml").data.target_column == "a\tb"


def test_an_unreadable_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_bytes("seed: 7\n# déjà vu\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"run\.yaml:2: byte 0xe9 at position 4 is not UTF-8; convert the text first"):
        read_config(tmp_path / "run.yaml")
    with pytest.raises(UserError, match=r"nowhere\.yaml: no such file"):
        read_config(tmp_path / "nowhere.yaml")


def test_a_custom_score_is_accepted_by_name() -> None:
    settings = parse_config("model:\n  score: manhattan\n", "run.yaml", {"manhattan"})
    assert override(settings, ["seed=2"], {"manhattan"}).model == RnnSettings(score="manhattan")


def broken_lines() -> Iterator[str]:
    yield from write_config(DEMO, {}).splitlines()
    yield from (
        "\tx: 1",
        "- a",
        "model: &a",
        "x: *a",
        "'",
        "? []",
        "%YAML 1.1",
        "---",
        "<<: {a: 1}",
        "steps: !!float x",
        "{",
        "]: [",
    )


@given(st.lists(st.sampled_from(sorted(set(broken_lines()))) | st.text(max_size=9), max_size=20).map("\n".join))
@example("%YAML 1.3\n---\na: 1")
@example("model: &a [*a]")
@example("model: &a\nmodel: &a")
@example("seed: " + "9" * 5000)
def test_any_text_gives_settings_or_errors_with_lines(text: str) -> None:
    """Parsing returns settings or raises errors that name the file and a line; it never fails in another way."""
    try:
        assert isinstance(parse_config(text, "run.yaml"), RunSettings)
    except UserError as error:
        errors = str(error).split("\n")
        assert all(re.match(r"run\.yaml:\d+: ", line) for line in errors), errors


# --- the same on the command line --------------------------------------------------------------------------------------------


def test_lists_are_set_with_commas() -> None:
    changed = override(RunSettings(), ["data.files=a.tsv,b.tsv", "data.held_out_files=c.tsv"])
    assert (changed.data.files, changed.data.held_out_files) == (("a.tsv", "b.tsv"), ("c.tsv",))
    assert override(changed, ["data.files="]).data.files == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["width=3"], r"--set width=3: there is no setting 'width'; did you mean \"model.width\"\?$"),
        (["train.patience=3"], r"--set train: patience is 3 validations, but validate_every is 0"),
        (
            ["model.kind=tiny", "model.tie=all"],
            r"--set model: tie=all requires one vocabulary for both sides; set data.shared=true",
        ),
        (
            ["model.width=0", "model.embedding=-1"],
            r"^--set model: width is 0, expected 1 or more; embedding is -1, expected 1 or more$",
        ),
        (["train.learning_rate=inf"], r"--set train.learning_rate: input should be a finite number, got 'inf'"),
        (["model.score=aditive", "seed=x"], r"--set seed: .*got 'x'; --set model.score=aditive: there is no score 'aditive'"),
        (["data.vocabulary=299"], r"--set data.vocabulary: input should be greater than or equal to 300, got '299'"),
    ],
)
def test_invalid_changes_are_explained(changes: list[str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        override(RunSettings(), changes)


HOSTILE = (
    "",
    "0",
    "-1",
    "1" + "0" * 18,
    "nan",
    "inf",
    "-inf",
    "1e400",
    "9" * 5000,
    "[" * 5000,
    "\x1b[2J",
    "\udcff",
    "a.b",
    "=",
    ",,",
)


@pytest.mark.parametrize("kind", [*FAMILIES])
def test_any_value_gives_settings_or_an_error(kind: str) -> None:
    settings = override(RunSettings(), [f"model.kind={kind}"])
    keys = [key for key, _ in leaves(asdict(settings))]
    for key, value in itertools.product([*keys, "", ".", "..", "model", "train.", "x" * 5000, "data.files.x"], HOSTILE):
        with suppress(UserError):
            assert write_config(override(settings, [f"{key}={value}"]), {}).encode()
