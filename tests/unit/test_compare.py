"""The parts of `regard compare`: its mechanisms, tasks, budgets and reports. tests/doors/test_comparison.py trains."""

import dataclasses
import html
import json
import random
import re
from collections import Counter
from pathlib import Path
from xml.dom import minidom

import numpy as np
import pytest
import torch

import regard
from regard.comparing import contenders as table
from regard.comparing.cell import Cell, LengthGroup, Timings, _timings, final_loss, groups_of, memory, share_aligned
from regard.comparing.compare import Budget, Plan, _keep, _task
from regard.comparing.recipes import SENTENCES, STRINGS
from regard.comparing.report import Comparison, Row
from regard.comparing.tasks import TASKS
from regard.core.devices import settings_restored
from regard.data.corpus import Pair
from regard.errors import UserError
from regard.evaluation import Measure
from regard.layers.embed import POSITION_ENCODINGS
from regard.models.build import build, num_parameters
from regard.models.transformer import TransformerSettings
from regard.training.data import in_memory
from regard.training.operations import count, fit_to_operations
from regard.training.settings import RunSettings
from regard.training.transfer import Start

ALL = (*table.CONTENDERS, *table.WITHOUT)


def make_plan(budget: Budget = Budget("updates", 3), **changes: object) -> Plan:  # noqa: B008 it is frozen
    changes = {key.replace("_", ".", 1): value for key, value in changes.items()}
    return Plan("pairs", "", RunSettings(train=STRINGS.train), STRINGS, changes, budget, "exact match", 1)


# --- mechanisms --------------------------------------------------------------------------------------------------------------


def test_every_mechanism_is_a_different_model() -> None:
    assert len({one.name for one in ALL}) == len(ALL) == 37
    plan = make_plan()
    settings = [plan.settings_of(one) for one in ALL]
    assert len({str((each.model, each.train)) for each in settings}) == len(ALL)
    for one, each in zip(ALL, settings, strict=True):
        for key, value in one.settings.items():
            section, name = key.split(".")
            assert getattr(getattr(each, section), name) == value, one.name
    by_name = dict(zip((one.name for one in ALL), settings, strict=True))
    assert not by_name["hard-without-gradient"].train.policy_gradient
    assert by_name["hard"].train.policy_gradient
    assert by_name["hard"].model == by_name["hard-without-gradient"].model


@pytest.mark.parametrize("recipe", [STRINGS, SENTENCES], ids=["strings", "sentences"])
def test_families_have_about_equally_many_parameters(recipe: object) -> None:
    plan = dataclasses.replace(make_plan(), recipe=recipe)
    names = ("fixed-vector", "luong-general", "bahdanau", "transformer")
    sizes = [num_parameters(build(plan.settings_of(one).model, 29, 29)) for one in ALL if one.name in names]
    assert len(sizes) == 4
    assert max(sizes) / min(sizes) < 1.5, sizes


def test_every_score_position_scheme_and_norm_order_is_compared() -> None:
    """The lists of the models, read from their settings, are covered: a new score or scheme must be added here, too."""
    scores = {one.settings.get("model.score") for one in table.CONTENDERS}
    assert set(regard.scores.SCORES) <= scores
    schemes = {str(one.settings.get("model.positions", "sinusoidal")) for one in ALL if one.kind == "transformer"}
    assert set(POSITION_ENCODINGS) == schemes
    assert {"post"} == {one.settings["model.norm_order"] for one in ALL if "model.norm_order" in one.settings}
    assert set(table.QUICK) <= {one.name for one in ALL}


def test_mechanisms_are_chosen_by_name() -> None:
    def names(*arguments: tuple[str, ...]) -> list[str]:
        return [one.name for one in table.choose(*arguments)]

    assert names((), ()) == [one.name for one in table.CONTENDERS]
    assert names(("bahdanau", "luong-dot"), ()) == ["luong-dot", "bahdanau"]
    assert len(names(("luong-*",), ())) == 10
    assert names((), ("mask", "scale")) == ["transformer", "without-scale", "without-mask"]
    assert names(("dense",), ("heads",)) == ["dense", "without-heads"]
    with pytest.raises(UserError, match=r"no mechanism 'bahdano'; did you mean \"bahdanau\"\?; regard compare --list"):
        names(("bahdano",), ())
    with pytest.raises(UserError, match=r"without 'masks': expected some of scale, mask, .*, heads, or all; did you mean"):
        names((), ("masks",))


def test_settings_of_the_user_come_last_and_only_where_they_exist() -> None:
    plan = make_plan(model_bidirectional=False, train_learning_rate=0.5)
    rnn, transformer = (plan.settings_of(table.choose((name,), ())[0]) for name in ("luong-dot", "transformer"))
    assert (rnn.model.bidirectional, rnn.train.learning_rate, transformer.train.learning_rate) == (False, 0.5, 0.5)
    assert rnn.model.score == "dot"
    with pytest.raises(UserError, match=r"no mechanism that is compared has model\.bidirectional"):
        regard.compare("copy", only="transformer", settings={"model.bidirectional": False}, quiet=True)
    with pytest.raises(UserError, match=r"train\.steps is what a comparison decides"):
        regard.compare("copy", only="transformer", settings={"train.steps": 3}, quiet=True)


# --- tasks -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["copy", "reverse", "sort", "recall", "bag"])
def test_tasks_are_what_they_say(name: str) -> None:
    task = TASKS[name]
    assert task.make
    draw = random.Random(3)
    for length in range(task.lengths[0], task.lengths[1] + 1):
        source, target = map(str, task.make(length, draw))
        if name == "recall":
            assert len(source) == 2 * length + 2
            found = dict(re.findall(r"([a-z])(\d)", source.partition("?")[0]))
            assert target == found[source[-1]]
        elif name == "bag":
            assert re.fullmatch(r"([a-f]\d)+", target)
            assert {letter: int(number) for letter, number in re.findall(r"(\w)(\d)", target)} == Counter(source)
            assert list(target[::2]) == sorted(set(source))
        else:
            expected = {"copy": list(source), "reverse": list(reversed(source)), "sort": sorted(source)}
            assert (len(source), list(target)) == (length, expected[name])
        if task.origin:
            assert [source[position] for position in task.origin(source)] == list(target)


def test_no_test_source_is_trained_on() -> None:
    for name, num_test in (("dictionary", 41), ("bag", 37)):
        training, test = TASKS[name].pairs(num_test)
        sources = {pair.source for pair in test}
        assert len(sources) == num_test
        assert not sources & {pair.source for pair in training}
    assert (training, test) == TASKS["bag"].pairs(37)


# --- budgets -----------------------------------------------------------------------------------------------------------------


def test_operations_are_those_of_the_products() -> None:
    """Counted by hand for one batch of equally long pairs: each product of the forward pass has two in the backward pass."""
    width, hidden, length, vocabulary = 8, 20, 6, 7
    letters = "abc"
    pairs = [Pair("".join(letters[(i + j) % 3] for j in range(length)), letters[i % 3] * length) for i in range(3)]
    sizes = {"width": width, "heads": 2, "feed_forward": hidden, "encoder_layers": 1, "decoder_layers": 1}
    settings = RunSettings(model=TransformerSettings(**sizes, dropout=0.0, norm="none", positions="none"))
    data = in_memory("x", pairs, pairs[:1], settings.data)
    assert len(data.codecs.target) == vocabulary
    rows, queries = 3, length + 1  # <eos> is read in the source, <sos> in the target
    projections = rows * queries * 4 * width**2
    products = 2 * rows * queries**2 * width
    feed_forward = 2 * rows * queries * width * hidden
    output = rows * queries * width * vocabulary
    forward = 3 * (projections + products) + 2 * feed_forward + output
    with settings_restored():
        counted = count(settings, data, Start(), torch.device("cpu"), {})
    assert counted == 3 * forward
    fitted, reason = fit_to_operations(7.5 * counted, settings, data, Start(), torch.device("cpu"), {})
    assert (fitted.train.steps, "per update" in reason) == (7, True)
    with pytest.raises(UserError, match=r"one update takes .*; allow more"):
        fit_to_operations(0.5 * counted, settings, data, Start(), torch.device("cpu"), {})


def test_one_budget_is_given() -> None:
    with pytest.raises(UserError, match="got updates and minutes; give one budget"):
        regard.compare("copy", updates=3, minutes=1.0)
    with pytest.raises(UserError, match="minutes: got -1, expected a number above 0"):
        regard.compare("copy", minutes=-1.0)


def test_other_seeds_make_the_updates_of_the_first(tmp_path: Path) -> None:
    """Minutes and operations become updates once."""
    plan, one = make_plan(Budget("minutes", 2.0)), table.choose(("luong-dot",), ())[0]
    first, second = (_task(plan, one, seed, tmp_path) for seed in (1, 2))
    assert first
    assert second
    assert (first.order.minutes, second.order.minutes) == (2.0, 2.0)
    (tmp_path / "luong-dot-1.json").write_text(json.dumps(dataclasses.asdict(make_cell("luong-dot", 1, 0.5, updates=77))))
    assert _task(plan, one, 1, tmp_path) is None
    second = _task(plan, one, 2, tmp_path)
    assert second
    assert (second.order.minutes, second.order.changes) == (None, {"seed": 2, "train.steps": 77})
    counted = _task(make_plan(Budget("operations", 1e9)), one, 3, tmp_path / "other")
    assert counted
    assert (counted.order.minutes, counted.order.operations, counted.order.changes) == (None, 1e9, {"seed": 3})


def test_the_loss_of_a_run_is_that_of_its_last_tenth() -> None:
    assert final_loss([9.0] * 18 + [1.0, 2.0]) == 1.5
    assert final_loss([9.0, 4.0, 3.0]) == 3.0


def test_a_folder_holds_one_comparison(tmp_path: Path) -> None:
    _keep(make_plan(), tmp_path)
    _keep(make_plan(), tmp_path)
    with pytest.raises(UserError, match="holds a comparison with other budget; choose another folder, or start over"):
        _keep(make_plan(Budget("updates", 4)), tmp_path)
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(UserError, match=r"holds files that are not of a comparison, such as letter.txt"):
        regard.compare("copy", tmp_path, overwrite=True)
    (tmp_path / "letter.txt").unlink()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine.csv").write_text("precious")
    with pytest.raises(UserError, match=r"not of a comparison, such as data.mine.csv"):
        regard.compare("copy", tmp_path, overwrite=True)
    (tmp_path / "dense-1.json").write_text("{")
    with pytest.raises(UserError, match=r"dense-1.json is damaged .*; delete it"):
        Cell.read(tmp_path / "dense-1.json")


def test_what_is_not_of_a_comparison_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.tsv").write_text("precious")
    with pytest.raises(UserError, match="holds a comparison with other data; choose another folder"):
        regard.compare("copy", tmp_path, only="dense", quiet=True)
    with pytest.raises(UserError, match="holds files, but no comparison that could start over"):
        regard.compare("copy", tmp_path, overwrite=True)
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(UserError, match=r"not of a comparison, such as \.git"):
        regard.compare("copy", tmp_path, overwrite=True)
    assert (tmp_path / "data" / "train.tsv").read_text() == "precious"
    with pytest.raises(UserError, match=r"no mechanism that is compared has model\.nothing"):
        regard.compare("copy", tmp_path / "new", settings={"model.nothing": 1}, quiet=True)
    assert not (tmp_path / "new").exists()  # what is refused leaves nothing behind


def test_an_interruption_does_not_count_as_time() -> None:
    """The time and the tokens of an update end with it: the first has no time, and that of the sixth does not count."""
    updates = [(n + 1, 1.0, 10 + n, 100.0 + 0.5 * n + (3000 if n > 4 else 0)) for n in range(9)]
    timings = _timings(updates, 5)
    per_second = (11 + 12 + 13 + 14 + 16 + 17 + 18) / 3.5
    assert timings == Timings(pytest.approx(4.5), pytest.approx(per_second), 5, torch.get_num_threads())


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux can forget the peak of earlier tests")
def test_memory_is_the_peak_even_of_what_was_freed() -> None:
    Path("/proc/self/clear_refs").write_text("5")
    before = memory()
    more = torch.ones(64 * 2**20)  # 256 MB
    del more
    assert 250 * 2**20 < memory() - before < 300 * 2**20


def test_groups_that_are_too_short_for_a_measure_are_left_out() -> None:
    texts = ["a b", "c d", "e f g h", "i j k l", "m n o p q", "r s t u v"]
    references = [[text] for text in texts]
    sizes = [len(text.split()) for text in texts]
    found = groups_of(texts, references, sizes, "BLEU", str.split)
    assert [(group.lengths, group.sources, round(group.value)) for group in found] == [("4", 2, 100), ("5", 2, 100)]
    found = groups_of(["a x", *texts[1:]], references, sizes, "exact match", str.split)
    assert [(group.lengths, group.sources, group.value) for group in found] == [("2-3", 2, 0.5), ("4", 2, 1.0), ("5", 2, 1.0)]


def test_where_a_model_looks() -> None:
    """Two heads, five source tokens: the first is one position off, the second looks at position 4; the output of the second
    source ends too early."""
    first, second = np.zeros((2, 4, 5)), np.zeros((2, 2, 5))
    for step, position in enumerate((1, 2, 1, 0)):  # expected: 0, 1, 2, and <eos>, which does not count
        first[:, step] = np.eye(5)[[position, 4]]
    for step, position in enumerate((3, 1)):  # expected: 3, 3, 3
        second[:, step] = np.eye(5)[[position, 4]]
    expected = (range(3), (3, 3, 3))
    assert share_aligned([first], expected[:1]) == 1.0
    assert share_aligned([first, second], expected) == 4 / 6
    assert share_aligned([first[1:], second[1:]], expected) == 2 / 6


# --- reports -----------------------------------------------------------------------------------------------------------------


def make_cell(name: str, seed: int, value: float, updates: int = 5, aligned: float | None = None) -> Cell:
    measures = (
        Measure("exact match", value, value - 0.1, value + 0.1, "", percent=True),
        Measure("chrF", 37.0, 36.0, 38.0, ""),
    )
    groups = LengthGroup("2-5", 11, value, value, value), LengthGroup("6-9", 13, value / 2, 0.0, value)
    curve, timings = ((1.0, 4.0), (3.0, 2.0), (5.0, 1.0)), Timings(60.0 * seed, 100.0, 7 * 2**20, 1)
    return Cell(name, seed, "", updates, 4321, 1.25, measures, groups, aligned, curve, "signed", timings)


def make_comparison() -> Comparison:
    luong, dense = (table.choose((name,), ())[0] for name in ("luong-dot", "dense"))
    cells = make_cell("luong-dot", 1, 0.75, aligned=0.25), make_cell("luong-dot", 2, 0.5, aligned=0.75)
    return Comparison(
        (Row(luong, cells, "exact match"), Row(dense, (Cell("dense", 1, "it <diverged>"),), "exact match")),
        "copy: abc → abc",
        "5 updates",
        "exact match",
    )


def test_a_row_is_the_mean_over_its_seeds() -> None:
    found = make_comparison()
    row = found.row("luong-dot")
    assert (row.value, row.spread, row.aligned) == (0.625, (0.5, 0.75), 0.5)
    assert (row.low, row.high) == (pytest.approx(0.525), pytest.approx(0.725))
    assert [(group.lengths, group.value) for group in row.by_length] == [("2-5", 0.625), ("6-9", 0.3125)]
    lines = found.table().splitlines()
    assert len({len(line) for line in lines[:3]}) == 1
    assert [cell.strip() for cell in lines[2].split("|")[1:-1]] == [
        *("luong-dot", "62.5 [52.5, 72.5]", "50.0–75.0", "62.5", "31.2", "50", "1.250", "4,321", "5", "100", "7", "1.5")
    ]
    assert lines[3].startswith("| dense ")
    assert "it <diverged>" in lines[3]
    with pytest.raises(KeyError):
        found.row("bahdanau")


def test_reports_agree_with_the_table(tmp_path: Path) -> None:
    found = make_comparison()
    found.save(tmp_path)
    facts = json.loads((tmp_path / "compare.json").read_text())
    assert facts == json.loads(json.dumps(found.as_dict()))
    assert [Cell.from_dict(cell) for cell in facts["rows"][0]["cells"]] == list(found.rows[0].cells)
    assert found.as_dict(timings=False)["rows"][0]["cells"][1]["timings"] is None
    assert found.table() in (tmp_path / "compare.md").read_text()
    assert (tmp_path / "compare.png").read_bytes().startswith(b"\x89PNG")
    page = (tmp_path / "compare.html").read_text()
    assert "--value:62.50%;--low:52.50%;--high:72.50%" in page
    assert "<!--" not in page.replace("<!doctype", "")
    assert not re.findall(r"(?:src|href)=|url\(|@import|https?://", page)
    text = html.unescape(re.sub(r"<[^>]+>", " ", page))
    assert all(cell in text for cell in found._cells(found.rows[0]))
    assert "it <diverged>" in text
    assert "5 updates for each mechanism, 2 seeds; the same data" in text
    assert '<polyline points="20.0,2.0 60.0,20.5 100.0,39.0"/>' in page  # the loss is halved twice, in equal steps


def test_a_picture_names_all_mechanisms(tmp_path: Path) -> None:
    rows = tuple(Row(one, (make_cell(one.name, 1, 0.5),), "exact match") for one in ALL)
    for number in (7, 37):
        path = Comparison(rows[:number], "copy", "5 updates", "exact match").draw(tmp_path / "compare.svg")
        texts = {node.firstChild.data for node in minidom.parse(str(path)).getElementsByTagName("text")}
        assert {row.name for row in rows[:number]} <= texts
        assert {"2-5", "6-9"} <= texts
