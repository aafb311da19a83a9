"""Models that read sounds, from the command line with default settings: train, translate, evaluate, inspect."""

import json
from pathlib import Path

import pytest
import torch
from tones import RATE, make_words, write_jsonl, write_wav, write_words

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, regard_command) -> tuple[Path, str]:  # type: ignore[no-untyped-def]
    """A folder with tones/speech.jsonl and a barely trained model m; and the output of training."""
    folder = tmp_path_factory.mktemp("sounds")
    (folder / "tones").mkdir()
    pairs = write_words(folder / "tones", make_words(60, 3))
    (folder / "tones" / "broken.wav").write_bytes(b"RIFF????WAVE")
    write_jsonl(folder / "tones" / "speech.jsonl", [*pairs, ("broken.wav", "a b"), ("lost.wav", "a")])
    options = ["--set", "train.steps=3", "--set", "train.validate_every=0", "--threads", "1"]
    done = regard_command("train", "tones/speech.jsonl", "--out", "m", *options, cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


def test_training_prints_the_settings_it_chose(trained: tuple[Path, str]) -> None:  # SPEC A8.4
    folder, output = trained
    assert "62 pairs in 62 lines. Column 'audio' was read as the source and 'text' as the target" in output
    assert "data.source_unit=sound" in output
    assert "sources are names of sounds, such as 0-1.wav" in output
    assert "sounds at 8,000 samples per second, 40 mel bands" in output
    for name, reason in (("broken.wav", "truncated"), ("lost.wav", "no such file")):
        assert name in output
        assert reason in output
    assert json.loads((folder / "m" / "source.json").read_text()) == {"unit": "sound", "rate": 8000}


def test_translate_reads_file_names(trained: tuple[Path, str], regard_command) -> None:  # type: ignore[no-untyped-def]
    folder, _ = trained
    done = regard_command("translate", "m", input="tones/0-1.wav\n\ntones/broken.wav\n", cwd=folder)
    assert done.stdout.count("\n") == 3
    assert done.returncode == 1
    assert "lines that could not be translated and were left empty: 1" in done.stderr
    assert "Traceback" not in done.stderr
    done = regard_command("translate", "m", "--json", input="tones/1-1.wav\n", cwd=folder)
    assert done.returncode == 0, done.stderr
    lines = "tones/1-1.wav\ntones/lost.wav\ntones/2-1.wav\n"
    done = regard_command("translate", "m", "--json", input=lines, cwd=folder)
    _, bad, _ = map(json.loads, done.stdout.splitlines())
    assert bad == {"line": 2, "source": "tones/lost.wav", "text": "", "error": "tones/lost.wav: no such file"}
    done = regard_command("translate", "m", "--beam", "2", "--n-best", "2", input=lines, cwd=folder)
    assert [line.split(" ||| ")[0] for line in done.stdout.splitlines()] == ["0", "0", "2", "2"]
    assert "line 2 is skipped: tones/lost.wav: no such file" in done.stderr


def test_evaluate_and_inspect(trained: tuple[Path, str], regard_command) -> None:  # type: ignore[no-untyped-def]
    folder, _ = trained
    lines = (folder / "tones" / "speech.jsonl").read_text().splitlines()[:20]
    (folder / "tones" / "test.jsonl").write_text("\n".join(lines) + "\n")
    done = regard_command("evaluate", "m", "tones/test.jsonl", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "by reference length" in done.stdout
    for out in ("seen.html", "seen.png", "seen.npz"):
        done = regard_command("inspect", "m", "tones/0-1.wav", "--out", out, cwd=folder)
        assert done.returncode == 0, done.stderr
        assert (folder / out).stat().st_size > 1000
    done = regard_command("inspect", "m", "tones/0-1.wav", "--out", "seen.svg", cwd=folder)
    assert ">seconds</text>" in (folder / "seen.svg").read_text()
    write_wav(folder / "long.wav", 0.1 * torch.randn(8 * RATE, generator=torch.Generator().manual_seed(1)))
    done = regard_command("inspect", "m", "long.wav", cwd=folder)
    assert done.returncode == 0, done.stderr
    head, *rows, note = done.stdout.split("\n\n")[1].splitlines()
    assert max(map(len, (head, *rows))) <= 100
    assert note.startswith("each cell shows the largest weight of 3 positions; the darkest is 0.")
    done = regard_command("inspect", "m", "tones/broken.wav", cwd=folder)
    assert done.returncode == 1
    assert "tones/broken.wav: truncated" in done.stderr


def test_unreadable_files_are_reported_and_left_out(trained: tuple[Path, str], regard_command) -> None:  # type: ignore[no-untyped-def]
    folder, _ = trained
    lines = (folder / "tones" / "speech.jsonl").read_text().splitlines()
    (folder / "tones" / "bad.jsonl").write_text("\n".join([*lines[-2:], *lines[:6], lines[0]]) + "\n")
    (folder / "tones" / "good.jsonl").write_text("\n".join([*lines[:6], lines[0]]) + "\n")
    for others in ([], ["--against", "m"]):
        done = regard_command("evaluate", "m", "tones/bad.jsonl", *others, cwd=folder)
        assert done.returncode == 0, done.stderr
        assert "bad.jsonl: 6 sources, 6 references" in done.stdout
        assert "1 row repeats a source" in done.stdout
        assert "files that cannot be read and are skipped: 2\n  line 1: tones/broken.wav: truncated" in done.stdout
        assert "\n  line 2: tones/lost.wav: no such file\n" in done.stdout
        assert "BLEU is not computed if no reference has 4 tokens" in done.stdout
        assert "BLEU  " not in done.stdout
        good = regard_command("evaluate", "m", "tones/good.jsonl", *others, cwd=folder)
        assert done.stdout[done.stdout.index("chrF") :] == good.stdout[good.stdout.index("chrF") :].replace("good", "bad")
    done = regard_command("score", "m", "tones/bad.jsonl", cwd=folder)
    assert done.returncode == 1
    assert [line.split("\t")[1] for line in done.stdout.splitlines()] == [
        json.loads(line)["audio"] for line in [*lines[:6], lines[0]]
    ]
    assert "line 2 is skipped: tones/lost.wav: no such file" in done.stderr
    assert "regard: 7 pairs, " in done.stderr
    assert done.stderr.endswith("regard: lines that could not be scored and were skipped: 2\n")
    (folder / "tones" / "bad.jsonl").write_text("\n".join(lines[-2:]) + "\n")
    done = regard_command("evaluate", "m", "tones/bad.jsonl", cwd=folder)
    assert (done.returncode, done.stdout) == (1, "")
    assert "none of the 2 files in bad.jsonl can be read; the first error: line 1: tones/broken.wav: truncated" in done.stderr
    done = regard_command("score", "m", "tones/bad.jsonl", cwd=folder)
    assert (done.returncode, done.stdout) == (1, "")
    assert "none of the 2 pairs in bad.jsonl can be scored" in done.stderr


def test_an_instruction_as_auxiliary_text(trained: tuple[Path, str], regard_command) -> None:  # type: ignore[no-untyped-def]
    """SPEC A6.4: every command reads two source columns, either of which may be empty."""
    folder, _ = trained
    rows = [json.loads(line) for line in (folder / "tones" / "speech.jsonl").read_text().splitlines()[:40]]
    rows = [{**row, "how": ("forwards", "from the end")[number % 2]} for number, row in enumerate(rows)]
    rows += [{"audio": None, "how": "forwards", "text": "a"}, {"audio": "1-1.wav", "text": "b"}]
    (folder / "tones" / "two.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = ["--from", "audio,how", "--to", "text"]
    options = ["--set", "train.steps=3", "--set", "train.validate_every=0", "--threads", "1"]
    done = regard_command("train", "tones/two.jsonl", *columns, "--out", "two", *options, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "data.source_columns=audio,how" in done.stdout
    assert "40 mel bands, auxiliary texts of 8 different words" in done.stdout
    assert "Kept: 1 row without column 'audio', 1 row without column 'how'" in done.stdout
    assert done.stdout.endswith("saved in two; next: regard translate two names.txt\n")
    assert "auxiliary" in json.loads((folder / "two" / "source.json").read_text())
    for start in ("--start-from", "--encoder-from"):
        done = regard_command("train", "tones/two.jsonl", *columns, "--out", "three", start, "m", *options, cwd=folder)
        assert done.returncode == 1
        assert (
            "m reads sounds without an auxiliary text, but there are the source columns audio and how; use --from audio"
            in done.stderr
        )
    lines = "tones/0-1.wav\tfrom the end\ntones/0-1.wav\n\tforwards\ntones/0-1.wav\tsideways\n"
    done = regard_command("translate", "two", input=lines, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 4
    assert "sideways" in done.stderr
    done = regard_command("evaluate", "two", "tones/two.jsonl", *columns, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "42 sources" in done.stdout
    done = regard_command("evaluate", "two", "tones/two.jsonl", *columns, "--outputs", cwd=folder)
    cells = [line.split("\t") for line in done.stdout.splitlines()[:42]]
    assert [row[0] for row in cells[1:2] + cells[40:]] == ["1-1.wav from the end", "forwards", "1-1.wav"]
    assert {len(row) for row in cells} == {3}
    done = regard_command("score", "two", "tones/two.jsonl", *columns, cwd=folder)
    cells = [line.split("\t") for line in done.stdout.splitlines()]
    assert [row[1:] for row in cells[1:2] + cells[40:]] == [
        ["1-1.wav from the end", rows[1]["text"]],
        ["forwards", "a"],
        ["1-1.wav", "b"],
    ]
    for command in ("evaluate", "score"):  # although the row without an instruction could be read
        done = regard_command(command, "m", "tones/two.jsonl", *columns, cwd=folder)
        assert (done.returncode, done.stdout) == (1, "")
        assert "this model reads no auxiliary text with its sounds, got 'forwards' with 0-1.wav" in done.stderr
    done = regard_command("inspect", "m", "tones/0-1.wav", "--auxiliary", "forwards", cwd=folder)
    assert "this model reads no auxiliary text with its sounds" in done.stderr
    done = regard_command("align", "two", "tones/two.jsonl", cwd=folder)
    assert done.stderr == "regard: align links words, but this model reads sounds; use regard inspect instead\n"
    done = regard_command(
        "inspect", "two", "tones/0-1.wav", "--auxiliary", "from the end", "--kind", "fusion", "--out", "two.html", cwd=folder
    )
    assert done.returncode == 0, done.stderr
    for word in ("from", "the", "end", "<eos>"):
        assert word in done.stdout
    assert done.stdout.startswith("tones/0-1.wav + from the end -> ")
    done = regard_command("inspect", "two", "", "--auxiliary", "forwards", "--out", "none.png", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("no sound + forwards -> ")
    assert "      no sound" in done.stdout
    assert "0.00 s" not in done.stdout
