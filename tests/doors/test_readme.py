"""The README and the pages in docs/: all their commands and code run, in order."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from regard.cli.main import main
from regard.data.dictionary import pronunciations
from regard.models.build import presets
from regard.training.config import parse_config

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = sorted(path for path in (ROOT / "docs").glob("*.md") if path.name != "LOG.md")
BLOCK = re.compile(r"^```(console|python|yaml)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(page: Path) -> list[tuple[str, str]]:
    """Returns the code blocks of the page as pairs (language, text)."""
    return BLOCK.findall(page.read_text())


def commands(block: str) -> list[str]:
    lines = block.splitlines()
    assert all(line.startswith("$ ") for line in lines), block
    return [line.removeprefix("$ ") for line in lines]


def in_shell(command: str, folder: Path) -> str:
    """Runs the command, which must succeed, and returns its output."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout


def in_this_process(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """Runs `regard …` without starting Python again; returns what it printed."""
    monkeypatch.setattr("sys.argv", [word.strip('"') for word in re.findall(r'"[^"]*"|\S+', command)])
    with pytest.raises(SystemExit) as done:
        main()
    assert done.value.code in (0, None), command
    return capsys.readouterr().out


@pytest.fixture(scope="module")
def page_files(tmp_path_factory: pytest.TempPathFactory, workspace: Path) -> Path:
    """The files that the pages mention."""
    folder = tmp_path_factory.mktemp("pages")
    lines = ["\t".join(pair) for pair in pronunciations("dev")[:200]]
    for name, part in {"pairs.tsv": lines[:150], "more.tsv": lines[150:180], "test.tsv": lines[180:]}.items():
        (folder / name).write_text("\n".join(part) + "\n")
    for name, side in {"source.txt": 0, "target.txt": 1, "words.txt": 0}.items():
        (folder / name).write_text("\n".join(line.split("\t")[side] for line in lines[:60]) + "\n")
    verbs = [f"{verb},V;PST,{verb}ed" for verb in "walk talk jump look play call ask help need start turn show".split()]
    (folder / "verbs.csv").write_text("\n".join(["lemma,features,past", *verbs]) + "\n")
    (folder / "messy.tsv").write_text("\n".join([*lines[:60], "one cell", "a\tb\tc"]) + "\n")
    shutil.copytree(workspace / "regard-demo", folder / "regard-demo")
    return folder


@pytest.mark.slow
def test_the_readme_runs(page_files: Path, tmp_path: Path) -> None:
    folder = tmp_path / "readme"
    shutil.copytree(page_files, folder)
    code = [text for language, text in blocks(README) if language == "python"]
    for language, text in blocks(README):
        for command in commands(text) if language == "console" else ():
            if command.startswith("make "):  # a real run would install and train again
                dry = subprocess.run(
                    [*command.split(), "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=True
                ).stdout
                assert {"make demo": "regard demo", "make test": "-m pytest"}[command] in dry
            elif command.startswith("source "):
                assert command == "source .venv/bin/activate"
                assert "VENV := .venv\n" in (ROOT / "Makefile").read_text()
            else:
                assert in_shell(command, folder).strip(), command
    done = subprocess.run([sys.executable, "-W", "error", "-c", "\n".join(code)], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (folder / "serendipity.png").exists()
    assert (folder / "banana.html").exists()


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_pages_run(
    page: Path, page_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "page"
    shutil.copytree(page_files, folder)
    for name in ("model", "transformer"):
        shutil.copytree(folder / "regard-demo" / "model", folder / name, dirs_exist_ok=True)
    monkeypatch.chdir(folder)
    names: dict[str, object] = {}
    for language, text in blocks(page):
        if language == "python":
            exec(text, names)
        for command in commands(text) if language == "console" else ():
            alone = re.match(r"regard [^|<>]*$", command)
            assert in_this_process(command, monkeypatch, capsys) if alone else in_shell(command, folder), command


def test_the_run_files_of_the_pages_are_valid() -> None:
    for page in (README, *PAGES):
        for language, text in blocks(page):
            if language == "yaml":
                settings = parse_config(text, page.name)
                assert (settings.seed, settings.data.files, settings.train.steps) == (7, ("pairs.tsv",), 2000)
                assert settings.model == presets()["small"]


@pytest.mark.parametrize("page", [README, ROOT / "CONTRIBUTING.md", *PAGES], ids=lambda page: page.stem)
def test_links_have_a_target(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = page.parent / path if path else page
        assert target.is_file(), link
        headings = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE) if anchor else []
        anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert not anchor or anchor in anchors, link


def test_the_readme_is_short() -> None:
    """It has at most 150 lines, and no paragraph of more than four lines."""
    text = README.read_text()
    assert len(text.splitlines()) <= 150
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    assert [part for part in prose.split("\n\n") if len(part.strip().splitlines()) > 4] == []


def test_ci_runs_what_the_readme_says() -> None:
    assert (ROOT / ".ci" / "run").read_text().splitlines()[-1] == "make test"
