"""200 sentences, translated by other people's programs with our exports: the outputs are those of our greedy search."""

import json
import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import foreign
import pytest
import torch

from regard.checkpoint.folder import Saved
from regard.data.batch import Example, collate
from regard.interop.convert import write_model
from regard.interop.onnx_export import OnnxPeer
from regard.pipeline import Translator

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent
MOST = 24


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    rng, words = random.Random(3), sorted({word for text in foreign.TEXTS for word in text.split()})
    return [" ".join(rng.choices(words, k=rng.randint(1, 9))) for _ in range(200)]


@pytest.fixture(scope="module")
def model(sentences: list[str]) -> Saved:
    """A model that begins to learn to write the words in reverse, so that its outputs depend on its sources."""
    torch.manual_seed(11)
    saved = foreign.saved(width=24, activation="silu", norm_order="post")
    for parameter in saved.model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.xavier_uniform_(parameter)
    for name, parameter in saved.model.named_parameters():
        if parameter.dim() == 1:
            torch.nn.init.constant_(parameter, float(name.endswith("norm.weight")))
    codec, optimiser = saved.source, torch.optim.Adam(saved.model.parameters(), lr=5e-3)
    for update in range(150):
        texts = sentences[32 * update % 192 :][:32]
        batch = collate(
            [Example(codec.encode(text), codec.encode(" ".join(text.split()[::-1]))) for text in texts],
            codec.specials,
            codec.specials,
        )
        decoded = saved.model.decode(batch.target_in_BT, saved.model.encode(batch.source))
        loss = decoded.loss(batch.target_out_BT, pad=batch.pad) / batch.num_targets
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return saved


@pytest.fixture(scope="module")
def ours(model: Saved, sentences: list[str]) -> list[list[int]]:
    """The ids that our greedy search writes."""
    results = Translator.of_saved(model).batch(sentences, max_length=MOST)
    assert len({result.ids for result in results}) > 50
    return [list(result.ids) for result in results]


def peer(name: str) -> Path:
    """Returns the folder of an installed program of others, in $REGARD_PEERS."""
    root = os.environ.get("REGARD_PEERS")
    if root is None or not (Path(root) / name).exists():
        pytest.skip(f"{name} is not installed; see CONTRIBUTING.md, and set REGARD_PEERS to the folder that holds it")
    return Path(root) / name


def written(model: Saved, ids: list[int]) -> list[int]:
    """Returns the ids before the first <eos>, without the start."""
    ids = ids[1:] if ids[0] == model.target.specials.start else ids
    eos = model.target.specials.eos
    return ids[: ids.index(eos)] if eos in ids else ids


def test_transformers_generates_the_same(model: Saved, ours: list[list[int]], sentences: list[str], tmp_path: Path) -> None:
    """Marian's own tokenizer splits the texts, and its model generates in batches."""
    transformers: Any = pytest.importorskip("transformers")
    write_model(model, tmp_path / "out", "marian")
    with pytest.warns(UserWarning, match="sacremoses"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    options = {"num_beams": 1, "max_new_tokens": MOST, "max_length": None, "forced_eos_token_id": None}
    found = []
    for first in range(0, 200, 40):
        batch = tokenizer(sentences[first : first + 40], return_tensors="pt", padding=True)
        found += [written(model, ids) for ids in theirs.generate(**batch, **options).tolist()]
    assert found == ours
    texts = Translator.of_saved(model).batch(sentences[:9], max_length=MOST)
    assert [tokenizer.decode(ids, skip_special_tokens=True) for ids in ours[:9]] == [result.text for result in texts]


def test_ctranslate2_translates_the_same(model: Saved, ours: list[list[int]], sentences: list[str], tmp_path: Path) -> None:
    library: Any = pytest.importorskip("ctranslate2")
    write_model(model, tmp_path / "out", "ctranslate2")
    names = json.loads((tmp_path / "out" / "shared_vocabulary.json").read_text())
    rows = [[names[number] for number in model.source.encode(text)] for text in sentences]
    translator = library.Translator(str(tmp_path / "out"), compute_type="float32", intra_threads=1)
    found = translator.translate_batch(rows, beam_size=1, max_decoding_length=MOST, min_decoding_length=0)
    assert [[names.index(token) for token in one.hypotheses[0]] for one in found] == ours


def test_onnxruntime_writes_the_same_step_by_step(
    model: Saved, ours: list[list[int]], sentences: list[str], tmp_path: Path
) -> None:
    library = pytest.importorskip("onnxruntime")
    write_model(model, tmp_path / "out", "onnx")
    peer = OnnxPeer(tmp_path / "out", library, model)
    assert peer.greedy([model.source.encode(text) for text in sentences], MOST) == ours


def test_argos_installs_the_package_and_translates(model: Saved, sentences: list[str], tmp_path: Path) -> None:
    """Argos decodes with a beam of 4 and a length penalty; CTranslate2 with the same options gives its outputs."""
    library: Any = pytest.importorskip("ctranslate2")
    sentences, python = sentences[:40], peer("argos") / "bin" / "python"
    write_model(model, tmp_path / "en_de.argosmodel", "argos")
    home = {"HOME": str(tmp_path), "ARGOS_PACKAGES_DIR": str(tmp_path / "packages"), "XDG_DATA_HOME": str(tmp_path / "data")}
    run = subprocess.run(
        [python, HERE / "argos.py", tmp_path / "en_de.argosmodel"],
        input="\n".join(sentences),
        env={"PATH": os.environ["PATH"], "ARGOS_DEVICE_TYPE": "cpu", "ARGOS_COMPUTE_TYPE": "float32", **home},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    found = [json.loads(line) for line in run.stdout.splitlines()]
    (folder,) = (tmp_path / "packages").iterdir()
    names = json.loads((folder / "model" / "shared_vocabulary.json").read_text())
    translator = library.Translator(str(folder / "model"), compute_type="float32", intra_threads=1)
    rows = [[names[number] for number in model.source.encode(text)] for text in sentences]
    expected = translator.translate_batch(rows, beam_size=4, length_penalty=0.2, replace_unknowns=True, max_batch_size=1)
    texts = [model.target.decode([names.index(token) for token in one.hypotheses[0]]) for one in expected]
    assert [text.strip() for text in found] == [text.strip() for text in texts]


def test_transformers_js_translates_the_same(model: Saved, ours: list[list[int]], sentences: list[str], tmp_path: Path) -> None:
    modules, node = peer("transformersjs"), shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    write_model(model, tmp_path / "out", "onnx")
    run = subprocess.run(
        [node, HERE / "translate.mjs", modules, tmp_path, "out"],
        input="\n".join(sentences),
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    found = [json.loads(line) for line in run.stdout.splitlines()]
    sources = [[*model.source.encode(text), model.source.specials.eos] for text in sentences]
    assert [one["source"] for one in found] == sources
    assert [written(model, one["output"]) for one in found] == ours
