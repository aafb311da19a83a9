"""The commands, run as a user runs them."""

import contextlib
import json
import os
import pty
import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from conftest import Run

import regard

pytestmark = pytest.mark.slow
PNG = b"\x89PNG\r\n\x1a\n"

CUSTOM_SCORE = """
import regard

class Manhattan(regard.Score):
    name = "manhattan"

    def scores(self, query, prepared):
        return -(query.unsqueeze(-2) - prepared.unsqueeze(-3)).abs().sum(-1)
"""


def test_help_imports_no_heavy_packages() -> None:
    code = (
        "import sys\nsys.argv = ['regard', '--help']\nimport regard\nfrom regard.cli.main import app\n"
        "try: app()\nexcept SystemExit: pass\n"
    )
    heavy = ("torch", "numpy", "tokenizers", "pydantic", "ruamel", "ruamel.yaml", "matplotlib")
    code += f"print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "Train, look inside, and ship" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_version(regard_command: Run) -> None:
    assert regard_command("--version").stdout == f"regard {version('regard')}\n"


def test_demo_shows_error_rates_words_and_attention(workspace: Path) -> None:
    out = (workspace / "demo.out").read_text()
    assert "update 40/40" in out
    assert re.search(
        r"On 11,854 words never seen: phoneme error rate \d+\.\d%, \d+\.\d% of the words not exactly right \(sequ", out
    )
    assert re.search(r"data:cmudict-test:3ebbd2 \| trained-on:[0-9a-f]{6} \| search:greedy,max_length=\d+ \| steps:40 \|", out)
    assert re.search(r"\| seed:1 \| threads:1 \| weights:[0-9a-f]{6} \| regard:[\d.]+ \| torch:", out)
    words = re.search(r"Five of them:\n((?:  [a-z]+ +[A-Z ]*\((?:right|the dictionary says [A-Z ]+(?:or)?.*)\)\n){5})", out)
    assert words
    assert "Where the model looked" in out
    assert (workspace / "regard-demo" / "attention.png").read_bytes().startswith(PNG)
    assert regard.load(workspace / "regard-demo" / "model")("cat").text


def test_the_same_seed_gives_the_same_folder(workspace: Path, regard_command: Run) -> None:
    """All files are equal byte for byte."""
    for out in ("once", "again"):
        done = regard_command("train", "pairs.tsv", "--out", out, "--threads", "1", "--set", "train.steps=9", cwd=workspace)
        assert done.returncode == 0, done.stderr
    once, again = ({path.name: path.read_bytes() for path in (workspace / out).iterdir()} for out in ("once", "again"))
    assert once == again
    refused = regard_command("train", "pairs.tsv", "--out", "once", cwd=workspace)
    assert refused.stderr.startswith(
        "regard: once.run holds a run with other settings, which was not modified: train.steps was 9 and is now"
    )


@pytest.fixture(scope="module")
def model(workspace: Path, regard_command: Run) -> Path:
    settings = [part for setting in ("train.steps=60", "seed=7", "model.kind=transformer") for part in ("--set", setting)]
    done = regard_command("train", "pairs.tsv", "--out", "mine", "--threads", "1", *settings, cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert "Skipped: 2 lines with an empty source or target." in done.stdout
    assert re.search(r"\n  model.kind=transformer +given with --set\n", done.stdout)
    assert re.search(r"\n  train.steps=60 +given with --set\n", done.stdout)
    assert re.search(r"\n  data.target_unit=symbols +\d+\.\d symbols of \d\.\d characters per line", done.stdout)
    assert "target symbols" in done.stdout
    assert re.search(r"held out: symbol error rate \d.*, sequence error rate \d.* on 67 outputs", done.stdout)
    assert done.stdout.endswith("saved in mine; next: regard translate mine texts.txt\n")
    return workspace / "mine"


def test_a_model_folder_records_its_training(model: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    assert config["training"]["settings"]["seed"] == 7
    assert config["training"]["settings"]["train"]["steps"] == 60
    assert f"torch:{version('torch')}" in config["training"]["signature"]
    assert f"weights:{config['sha256']['model.safetensors'][:6]} |" in config["training"]["signature"]
    assert "pairs.tsv" in (model / "card.md").read_text()
    assert sorted(path.name for path in model.iterdir()) == [
        "card.md",
        "config.json",
        "curves.svg",
        "model.safetensors",
        "source.tokenizer.json",
        "target.tokenizer.json",
    ]


def test_a_run_file_repeats_the_run_that_wrote_it(model: Path, workspace: Path, regard_command: Run) -> None:
    """The weights are the same. Settings changed by options are changed in the run file of the new run, with the reason."""
    written = (workspace / "mine.run" / "run.yaml").read_text()
    assert re.search(r"\n  files: \[pairs.tsv\] +# Training data", written)
    assert re.search(r"\n  target_unit: symbols +# \d+\.\d symbols of \d\.\d characters per line", written)
    assert re.search(r"\n  steps: 60 +# given with --set\n", written)
    done = regard_command("train", "mine.run/run.yaml", "--out", "repeated", "--threads", "1", cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert "settings from mine.run/run.yaml; all of them: " in done.stdout
    assert "Skipped: 2 lines with an empty source or target" in done.stdout
    first, second = (json.loads((workspace / name / "config.json").read_text()) for name in ("mine", "repeated"))
    assert "weights:" in first["training"]["signature"]
    assert first == second

    (workspace / "few.tsv").write_text("cat\tK AE T\ndog\tD AO G\n" + 400 * "a" + "\tB\n")
    changed = ["--held-out", "few.tsv", "--set", "train.steps=2", "--set", "data.max_length=300", "--out", "changed"]
    done = regard_command("train", "repeated.run/run.yaml", *changed, "--threads", "1", cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert re.search(r"few.tsv: \d+ pairs in \d+ lines. Skipped: 1 pair longer than 300 characters \(line \d\)", done.stdout)
    assert "on 2 outputs" in done.stdout
    kept = workspace / "changed.run" / "run.yaml"
    assert "  held_out_files: [few.tsv]" in kept.read_text()
    mine = kept.read_text().replace("# given with --set", "# because I say so")
    kept.write_text(mine)
    again = regard_command("train", kept, "--out", "changed", "--overwrite", "--threads", "1", cwd=workspace)
    assert again.returncode == 0, again.stderr
    assert kept.read_text() == mine  # no setting was changed, so the file keeps the user's edits


def test_five_errors_in_a_run_file_give_five_lines(tmp_path: Path, regard_command: Run) -> None:
    (tmp_path / "run.yaml").write_text(
        "seed: one\n\ndata:\n  held_out: 2\n\nmodel:\n  kind: transformer\n  heads: 3\n\n"
        "train:\n  stepz: 3\n  steps: 3\n  steps: 4\n"
    )
    done = regard_command("train", "run.yaml", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines() == [
        "regard: run.yaml:1: seed: got 'one', expected a whole number",
        "run.yaml:4: data.held_out: got 2, expected less than 1",
        "run.yaml:6: model: width 128 is not divisible by 3 heads; try width=132, or set key_dim",
        'run.yaml:11: train.stepz: got an unknown setting; did you mean "steps"?',
        "run.yaml:13: train.steps: got a second value, expected one; the first is on line 12",
    ]


def test_translate_prints_one_line_per_input_line(model: Path, regard_command: Run) -> None:
    done = regard_command("translate", model, input="cat\n\ndog\r\nÅ!\n")
    assert done.returncode == 0
    translator = regard.load(model)
    assert done.stdout.splitlines() == [translator(text).text for text in ("cat", "", "dog", "Å!")]
    assert done.stderr == "regard: 2 source symbols were never seen in training: Å !\n"
    short = regard_command("translate", model, "--max-length", "1", input="cat\n")
    assert short.stderr == "regard: outputs that did not end and were stopped at 1 token (--max-length): 1\n"
    broken = regard_command("translate", model, input=b"cat\n  dog \nd\xe9j\xe0\ncat\n")
    assert broken.stdout.splitlines() == [translator("cat").text, translator("dog").text]
    assert broken.stderr.startswith("regard: standard input:3: byte 0xe9 at position 2 is not UTF-8")


def test_translate_with_other_searches_and_formats(model: Path, regard_command: Run) -> None:
    translator = regard.load(model)
    moses = regard_command("translate", model, "--beam", "4", "--n-best", "2", input="cat\n\ndog\n").stdout.splitlines()
    assert [line.split(" ||| ")[0] for line in moses] == ["0", "0", "1", "2", "2"]
    best = translator("cat", beam=4, n_best=2)
    _, text, log_prob, rank_score = moses[1].split(" ||| ")
    assert text == best.n_best[1].text
    assert float(log_prob.removeprefix("log_prob= ")) == pytest.approx(best.n_best[1].log_prob, abs=1e-5)
    assert float(rank_score) == pytest.approx(best.n_best[1].rank_score, abs=1e-5)
    (record, empty) = map(
        json.loads, regard_command("translate", model, "--json", "--align", input="cat\n\n").stdout.splitlines()
    )
    cat = translator("cat")
    assert (record["line"], record["source"], record["text"], record["tokens"]) == (1, "cat", cat.text, list(cat.tokens))
    assert record["log_prob"] == pytest.approx(sum(record["token_log_probs"]))
    assert record["alignment"] == [list(link) for link in cat.alignment()]
    assert (empty["text"], empty["alignment"]) == ("", [])
    aligned = regard_command("translate", model, "--align", input="cat\n\n").stdout
    assert aligned == f"{cat.text} ||| {' '.join(f'{i}-{j}' for i, j in cat.alignment())}\n\n"
    streamed = regard_command("translate", model, "--stream", "--beam", "3", input="cat\n\ndog\n").stdout
    assert streamed.splitlines() == [result.text for result in translator.batch(["cat", "", "dog"], beam=3)]
    how = ["--sample", "--top-k", "5", "--temperature", "0.7", "--seed", "3"]
    drawn = regard_command("translate", model, *how, input="cat\ncat\n").stdout.splitlines()
    options = {"sample": True, "top_k": 5, "temperature": 0.7, "seed": 3}
    assert drawn == [result.text for result in translator.batch(["cat", "cat"], **options)]
    constrained = regard_command("translate", model, "--prefix", "K K", "--ban", "AE", input="cat\n").stdout
    assert constrained.startswith("K K")
    assert "AE" not in constrained


def test_unusual_lines_are_reported(model: Path, regard_command: Run) -> None:
    lines = ["a" * 1_000_000, "cat", "\x00\x07\x1b[2J", "Dog. " * 300, "\u2028"]
    done = regard_command("translate", model, "--max-source", "40", "--max-length", "9", input="\n".join(lines) + "\n")
    assert done.returncode == 1
    out = done.stdout.split("\n")
    assert (out[0], out[1], len(out)) == ("", regard.load(model)("cat", max_length=9).text, len(lines) + 1)
    assert (
        "line 1 is left empty: a sentence has 1,000,000 tokens, but this model translates at most 40 at a time" in done.stderr
    )
    assert "lines that were too long and were translated sentence by sentence: 1\n" in done.stderr
    assert re.search(r"\d+ source symbols were never seen in training: ", done.stderr)
    assert "\x1b" not in done.stderr  # no control sequence reaches the terminal
    assert done.stderr.endswith("regard: lines that could not be translated and were left empty: 1\n")


def test_a_pipe_gets_its_output_line_by_line(model: Path) -> None:
    command = [sys.executable, "-m", "regard", "translate", str(model)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for word in ("cat", "dog"):  # the second word is written only after the output of the first was read
            process.stdin.write(f"{word}\n")
            process.stdin.flush()
            assert process.stdout.readline() == regard.load(model)(word).text + "\n"
        process.stdin.close()
        assert process.stdout.read() == ""


def test_a_file_and_a_pipe_give_the_same_output(model: Path, workspace: Path, regard_command: Run) -> None:
    words = [line.split("\t")[0] for line in (workspace / "pairs.tsv").read_text().splitlines()[:300]]
    (workspace / "words.txt").write_text("\n".join(words) + "\n")
    piped = regard_command("translate", model, input="\n".join(words) + "\n").stdout
    with (workspace / "words.txt").open() as file:
        command = [sys.executable, "-m", "regard", "translate", str(model)]
        read = subprocess.run(command, stdin=file, capture_output=True, text=True, check=True).stdout
    assert piped == read
    assert len(read.splitlines()) == len(words)


def test_evaluate_measures_and_compares(model: Path, workspace: Path, regard_command: Run) -> None:
    lines = (workspace / "pairs.tsv").read_text().splitlines()[:40]
    (workspace / "test.tsv").write_text("\n".join([*lines, "cat\tK AE T\tK AH T", "\tX"]) + "\n")
    other = workspace / "regard-demo" / "model"
    done = regard_command("evaluate", model, "test.tsv", "--against", other, "--beam", "3", cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert re.match(r"test.tsv: \d+ sources, 42 references\nSkipped 1 line with an empty source or target\n", done.stdout)
    for name in ("BLEU", "chrF", "word error rate", "symbol error rate", "exact match"):
        assert re.search(rf"\n{name} +\d+\.\d\d%? \[-?\d+\.\d\d, \d+\.\d\d\]  p = \d\.\d\d\d  \S+", done.stdout)
    assert "by source length (tokens):" in done.stdout
    last = done.stdout.splitlines()[-1]
    assert re.match(
        r"data:test.tsv:[0-9a-f]{6} \| weights:[0-9a-f]{6} \| against:[0-9a-f]{6} \| search:beam=3,length_pen", last
    )


def test_evaluate_shows_a_progress_bar(model: Path, workspace: Path, regard_command: Run, tmp_path: Path) -> None:
    """The bar is printed to standard error if that is a terminal. Standard output stays the same."""
    lines = (workspace / "pairs.tsv").read_text().splitlines()[:300]  # enough for two worker processes if there are two cores
    (workspace / "many.tsv").write_text("\n".join(lines) + "\n")
    plain = regard_command("evaluate", model, "many.tsv", "--beam", "1", cwd=workspace)
    assert (plain.returncode, plain.stderr) == (0, "")
    number = int(re.match(r"many.tsv: (\d+) sources", plain.stdout)[1])  # type: ignore[index]
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "regard", "evaluate", str(model), "many.tsv", "--beam", "1"]
    terminal = {**os.environ, "COLUMNS": "100", "TERM": "xterm"}
    seen = b""
    with (
        (tmp_path / "out").open("wb") as out,
        subprocess.Popen(command, cwd=workspace, env=terminal, stdout=out, stderr=theirs),
    ):
        os.close(theirs)
        with contextlib.suppress(OSError):  # raised at the end of the output
            while chunk := os.read(ours, 4096):
                seen += chunk
    os.close(ours)
    assert (tmp_path / "out").read_text() == plain.stdout
    assert b"translating" in seen
    assert f"{number}/{number}".encode() in seen


def test_score_prints_log_probabilities(model: Path, workspace: Path, regard_command: Run) -> None:
    (workspace / "given.tsv").write_text("cat\tK AE T\ndog\tD AO G\n\n")
    done = regard_command("score", model, "given.tsv", cwd=workspace)
    expected = regard.load(model).score(["cat", "dog"], ["K AE T", "D AO G"])
    assert done.stdout.splitlines()[0] == f"{expected[0].log_prob:.6f}\tcat\tK AE T"
    assert re.match(r"regard: 2 pairs, 8 tokens, perplexity \d+\.\d{4}\nregard: Skipped 1 line", done.stderr)
    record = json.loads(regard_command("score", model, "given.tsv", "--json", cwd=workspace).stdout.splitlines()[1])
    assert record["tokens"] == ["D", "AO", "G"]
    assert record["token_log_probs"] == pytest.approx(expected[1].token_log_probs, abs=1e-5)


def test_inspect_prints_and_draws(model: Path, regard_command: Run, tmp_path: Path) -> None:
    done = regard_command("inspect", model, "wood", "--out", tmp_path / "wood.png")
    assert done.returncode == 0
    assert done.stdout.startswith(f"wood -> {regard.load(model)('wood').text}\n")
    assert "w o o d <eos>" in done.stdout
    assert (tmp_path / "wood.png").read_bytes().startswith(PNG)


def test_arguments_that_are_not_utf_8(model: Path, regard_command: Run) -> None:
    done = regard_command("inspect", model, os.fsdecode(b"le\xffma"))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith(r"regard: argument 3 (le\xffma) is not UTF-8")
    nowhere = regard_command("inspect", os.fsdecode(b"mod\xffel"), "wood")
    assert (nowhere.returncode, nowhere.stderr.count("\n")) == (1, 1)
    assert nowhere.stderr.startswith(r"regard: argument 2 (mod\xffel) is not UTF-8")


def test_inspect_writes_a_page_and_numbers(model: Path, workspace: Path, regard_command: Run, tmp_path: Path) -> None:
    done = regard_command("inspect", model, "wood", "--out", tmp_path / "wood.html", "--threads", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"written to {tmp_path / 'wood.html'}; open it in a browser\n")
    page = (tmp_path / "wood.html").read_text()
    assert page.startswith("<!doctype html>")
    assert f"<title>wood → {regard.load(model)('wood').text}</title>" in page
    recurrent = workspace / "regard-demo" / "model"
    done = regard_command("inspect", recurrent, "wood", "--out", tmp_path / "wood.npz", "--threads", "1")
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "wood.npz") as arrays:
        assert arrays["cross.0.weights"].shape[-1] == 5
        assert arrays["gates.decoder.layer_0.update"].shape[-1] == 192
    wrong = regard_command("inspect", model, "wood", "--out", "wood.xyz")
    assert (
        wrong.stderr
        == "regard: wood.xyz: the file extension selects the format; expected one of .html, .npz, .png, .svg, .pdf\n"
    )


def test_explain_shows_every_number(model: Path, regard_command: Run) -> None:
    done = regard_command("explain", model, "wood", "--token", "1", "--head", "2", "--threads", "1")
    assert done.returncode == 0, done.stderr
    names = [line.split()[0] for line in done.stdout.splitlines() if line and not line.startswith(" ")]
    expected = (
        "query keys scores allowed weights values context contexts output residual fed after hidden logits probabilities token"
    )
    assert names[-16:] == expected.split()
    assert "e_j = s · k_j / √d" in done.stdout
    explanation = json.loads(regard_command("explain", model, "wood", "--json", "--threads", "1").stdout)
    lines = {line["name"]: line for line in explanation["lines"]}
    assert sum(lines["weights"]["values"]) == pytest.approx(1, abs=1e-5)
    assert lines["weights"]["rows"] == [*"wood", "<eos>"]
    wrong = regard_command("explain", model, "wood", "--token", "99")
    assert re.fullmatch(r"regard: there is no token 99: the output has tokens 0 to \d+, <eos> included\n", wrong.stderr)


def test_align_counts_characters_of_a_model_of_characters_unless_words_are_asked_for(model: Path, regard_command: Run) -> None:
    text = "wood cut"
    result = regard.load(model)(text)
    assert len(result.source_tokens) == 8
    for options, pieces in (([], None), (["--pieces"], True), (["--words"], False)):
        done = regard_command("translate", model, "--align", *options, "--threads", "1", input=f"{text}\n")
        links = " ".join(f"{i}-{j}" for i, j in result.alignment(pieces=pieces))
        assert done.stdout == f"{result.text} ||| {links}\n", done.stderr
    assert {i for i, _ in result.alignment(pieces=False)} <= {0, 1}
    done = regard_command("translate", model, "--words", input="cat\n")
    assert done.stderr == "regard: --pieces and --words say what --align counts; add --align\n"


def test_align_prints_links_and_keeps_the_best_head(model: Path, regard_command: Run, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    shutil.copytree(model, mine)
    (tmp_path / "pairs.tsv").write_text("cat\tK AE T\ndog\tD AO G\n")
    (tmp_path / "gold").write_text("0-0 1-1 2-2\n" * 2)
    done = regard_command("align", mine, tmp_path / "pairs.tsv", "--threads", "1")
    assert re.fullmatch(r"(\d-\d \d-\d \d-\d\n){2}", done.stdout), done.stderr
    wide = "".join(f"{n}\t{line}\n" for n, line in enumerate((tmp_path / "pairs.tsv").read_text().splitlines()))
    (tmp_path / "wide.tsv").write_text(wide)
    chosen = regard_command("align", mine, tmp_path / "wide.tsv", "--from", "2", "--to", "3", "--threads", "1")
    assert (chosen.returncode, chosen.stdout) == (0, done.stdout)
    best = regard_command("align", mine, tmp_path / "pairs.tsv", "--gold", tmp_path / "gold", "--threads", "1")
    assert best.stderr.startswith("regard: --gold is expected to count characters in the source; --words: words\n")
    assert re.search(r"regard: aligned by AlignmentHead\(layer=.*\), alignment error rate 0\.\d+; saved in ", best.stderr)
    assert json.loads((mine / "config.json").read_text())["alignment"]["by"] == "gold"
    again = regard_command("align", mine, tmp_path / "pairs.tsv", "--threads", "1")
    assert (again.stdout, again.stderr) == (best.stdout, "")
    (tmp_path / "gold").write_text("0-0\n")
    wrong = regard_command("align", mine, tmp_path / "pairs.tsv", "--gold", tmp_path / "gold")
    assert wrong.stderr.endswith(
        "has 1 line, but " + str(tmp_path / "pairs.tsv") + " has 2 pairs; expected one line per pair\n"
    )


def test_a_custom_score_is_trained_saved_and_required(workspace: Path, regard_command: Run) -> None:  # SPEC A2.6
    (workspace / "my.py").write_text(CUSTOM_SCORE)
    mine = ["--score", "my.py:Manhattan", "--threads", "1"]
    done = regard_command("train", "pairs.tsv", "--out", "own", *mine, "--set", "train.steps=9", cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert "model.score=manhattan" in done.stdout
    assert json.loads((workspace / "own" / "config.json").read_text())["model"]["score"] == "manhattan"
    translated = regard_command("translate", "own", *mine, input="cat\n", cwd=workspace)
    assert (translated.returncode, translated.stdout.count("\n")) == (0, 1)
    assert regard_command("inspect", "own", "cat", *mine, cwd=workspace).stdout.startswith("cat -> ")
    without = regard_command("translate", "own", input="cat\n", cwd=workspace)
    assert without.returncode == 1
    assert without.stderr.startswith("regard: own uses the custom score 'manhattan', which is not part of regard: load it with")


def test_an_encoder_starts_another_model(model: Path, workspace: Path, regard_command: Run) -> None:  # SPEC A7.7
    (workspace / "more.tsv").write_text("cat\tÄ\nact\tÄ Ö\ntac!\tÖ\ncatt!\tÖ Ä\n" * 4)
    how = ["--encoder-from", model, "--freeze", "--threads", "1", "--set", "train.steps=3", "--out", "further"]
    done = regard_command("train", "more.tsv", *how, cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert re.search(r"[\d,]+ parameters are copied from another encoder and stay frozen", done.stdout)
    assert re.search(r"\d+ symbols? (is|are) not in the vocabulary of the model that this run starts from: !", done.stdout)
    assert regard.load(workspace / "further").source.to_json() == regard.load(model).source.to_json()


def test_training_starts_from_a_model(model: Path, workspace: Path, regard_command: Run) -> None:
    (workspace / "others.tsv").write_text("".join(f"{word}\tK AE T\n" for word in ("cat", "kat", "catt", "qat!")))
    how = ["--start-from", model, "--threads", "1", "--set", "train.steps=40", "--out", "continued"]
    done = regard_command("train", "others.tsv", *how, cwd=workspace)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\d+ symbols? (is|are) not in the vocabulary of the model that this run starts from: !", done.stdout)
    before, after = regard.load(model), regard.load(workspace / "continued")
    assert after.target.to_json() == before.target.to_json()
    (old,), (new,) = before.score(["catt"], ["K AE T"]), after.score(["catt"], ["K AE T"])
    assert new.log_prob > old.log_prob

    again = regard_command("train", "continued.run/run.yaml", "--threads", "1", "--out", "continued-again", cwd=workspace)
    assert again.returncode == 0, again.stderr
    digests = [json.loads((workspace / out / "config.json").read_text())["sha256"] for out in ("continued", "continued-again")]
    assert digests[0] == digests[1]  # the run file records the model that it started from
    forbidden = regard_command("train", "others.tsv", "--set", "start.model=elsewhere", cwd=workspace)
    assert "use --start-from, --encoder-from and --freeze to say what" in forbidden.stderr

    both = regard_command("train", "others.tsv", *how, "--encoder-from", model, cwd=workspace)
    assert "use one of them" in both.stderr
    other = regard_command("train", "others.tsv", *how[:-1], "other", "--set", "model.width=32", cwd=workspace)
    assert "the settings of that model cannot change" in other.stderr


def test_doctor_reports_what_is_installed(regard_command: Run) -> None:
    done = regard_command("doctor")
    assert done.returncode == 0
    assert re.search(r"torch +2\.13.*threads", done.stdout)
    assert f"\nnumpy        {version('numpy')}\n" in done.stdout
    assert re.search(r"fused and plain differ by at most \d\.\de-0[67]", done.stdout)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "nowhere.tsv"], r"regard: nowhere.tsv: no such file"),
        (["train", "line7.tsv"], r"regard: line7.tsv:7: expected source<TAB>target, found no tab in 'and no tab'"),
        (["train", "latin1.tsv"], r"regard: latin1.tsv:2: byte 0xe9 at position 2 is not UTF-8"),
        (
            ["train", "pairs.tsv", "--set", "train.stepz=3"],
            r'regard: .*no setting \'train.stepz\'; did you mean "train.steps"\?',
        ),
        (
            ["train", "pairs.tsv", "--out", "pairs.tsv/m"],
            r"regard: pairs.tsv/m cannot be written: (Not a directory|File exists)",
        ),
        (
            ["train", "pairs.tsv", "--out", ".", "--overwrite"],
            r"regard: . is not overwritten, since it contains files .* \(broken.py, latin1.tsv, line7.tsv\)",
        ),
        (["train", "pairs.tsv", "--out", "."], r"regard: . already exists"),
        (["train", "pairs.tsv", "--score", "own.py:Missing"], r"regard: --score own.py:Missing: own.py has no 'Missing'"),
        (["train", "pairs.tsv", "--score", "nowhere.py:Own"], r"regard: --score nowhere.py:Own: expected FILE.py:CLASS with a"),
        (["train", "pairs.tsv", "--score", "own.py:Nameless"], r"regard: --score own.py:Nameless: Nameless needs a name"),
        (
            ["train", "pairs.tsv", "--score", "line7.tsv:Own"],
            r"regard: --score line7.tsv:Own: expected FILE.py:CLASS with a Python",
        ),
        (["train", "pairs.tsv", "--score", "broken.py:Own"], r"regard: --score broken.py:Own: broken.py does not run: ZeroDiv"),
        (
            ["train", "pairs.tsv", "--freeze"],
            r"regard: --freeze requires an encoder to freeze; name its model with --encoder-from",
        ),
        (["train", "pairs.tsv", "--encoder-from", "nowhere"], r"regard: nowhere is not a model folder"),
        (["train", "run.yaml", "pairs.tsv"], r"regard: run.yaml is a run file, so no other files are accepted; name the"),
        (["train", "run.yaml"], r"regard: run.yaml: data.files: got none, expected files to train on, such as files: \[pairs"),
        (["train", "pairs.tsv", "--held-out", "nowhere.tsv"], r"regard: nowhere.tsv: no such file"),
        (["train", "pairs.tsv", "pairs.tsv", "pairs.tsv"], r"regard: files names 3 files, expected one file of pairs or two"),
        (["train", "pairs.tsv", "--from", "2", "--to", "2"], r"regard: column '2' is both source and target; leave it out of"),
        (["train", "pairs.tsv", "--from", "2, 3"], r"regard: pairs.tsv has 2 columns \(1 'a', 2 'b'\); there is no column 3"),
        (
            ["train", "run.yaml", "--set", "data.files=pairs.tsv,pairs.tsv"],
            r"regard: pairs.tsv: two files are read as parallel texts, line n of one with line n of the other",
        ),
        (["train", "pairs.tsv", "--set", "data.max_length=0"], r"regard: --set data.max_length: input should be greater than"),
        (["train", "wide.tsv", "--set", "data.max_length=2"], r"regard: wide.tsv: expected pairs of texts .*, 2 too long"),
        (["train", "pairs.tsv", "--device", "tpu"], r"regard: unknown device 'tpu'; expected auto, cpu, cuda or mps"),
        (["translate", "nowhere"], r"regard: nowhere is not a model folder"),
        (["translate", "nowhere", "--n-best", "3"], r"regard: n_best is 3, but beam is only 1; set beam=3"),
        (["translate", "nowhere", "nowhere.txt"], r"regard: nowhere.txt: no such file"),
        (
            ["translate", "nowhere", "--length-penalty", "much"],
            r"regard: length_penalty is 'much', expected a number from 0 to 10",
        ),
        (["translate", "nowhere", "--stream", "--json"], r"regard: --stream prints text while it is generated; it cannot be"),
        (["translate", "nowhere", "--align", "--beam", "2", "--n-best", "2"], r"regard: --align is for the best output"),
        (["evaluate", "nowhere", "pairs.tsv"], r"regard: nowhere is not a model folder"),
        (["score", "nowhere", "pairs.tsv"], r"regard: nowhere is not a model folder"),
        (
            ["inspect", "nowhere", "x", "--kind", "self"],
            r"regard: unknown kind 'self'; expected one of encoder, decoder, cross",
        ),
    ],
)
def test_bad_input_gives_a_one_line_error(arguments: list[str], words: str, tmp_path: Path, regard_command: Run) -> None:
    (tmp_path / "pairs.tsv").write_text("a\tb\nc\td\n")
    (tmp_path / "wide.tsv").write_text("abc\tdef\nghi\tj\n")
    (tmp_path / "run.yaml").write_text("seed: 7\n")
    (tmp_path / "own.py").write_text(CUSTOM_SCORE + "\nclass Nameless:\n    pass\n")
    (tmp_path / "broken.py").write_text("1 / 0\n")
    (tmp_path / "line7.tsv").write_text("a\tb\n" * 6 + "and no tab\n")
    (tmp_path / "latin1.tsv").write_bytes("a\tb\ndéjà\tvu\n".encode("latin-1"))
    before = sorted(tmp_path.iterdir())
    done = regard_command(*arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert re.match(words, done.stderr)
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert sorted(tmp_path.iterdir()) == before


def test_everything_but_pictures_works_without_matplotlib(tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("".join(f"{letter}b\tX {letter.upper()}\n" for letter in "acdefghij"))
    code = (
        "import sys\n"
        "sys.modules['matplotlib'] = None\n"
        "from regard.cli.main import main\n"
        "sys.argv = ['regard', 'train', 'pairs.tsv', '--out', 'm', '--set', 'train.steps=2']\n"
        "try: main()\nexcept SystemExit as end: assert not end.code, end.code\n"
        "sys.argv = ['regard', 'inspect', 'm', 'ab', '--out', 'a.png']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert "saved in m" in done.stdout
    assert done.stderr == 'regard: drawing pictures needs matplotlib; type: pip install "regard[plot]"\n'
    assert done.returncode == 1
