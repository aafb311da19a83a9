"""The tables of docs/findings.md: all mechanisms on the dictionary, the main ones on Multi30k, next to what papers reported.

    python benchmarks/findings.py dictionary FOLDER         37 mechanisms, 1,000 updates each
    python benchmarks/findings.py multi30k FOLDER DATA      six mechanisms, 1,000 updates each, English to German

FOLDER keeps the models; an earlier comparison in it is continued. DATA: the folder with train.en.gz, test_2016_flickr.de.gz, …
Each table goes to a dated file in the folder of this script, with what papers claim: reproduced or not reproduced.
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

from compare import better, better_at_length, report
from dated import write_result

import regard

UPDATES = 1000
MAIN = ("fixed-vector", "luong-dot", "luong-general", "luong-input-feeding", "bahdanau", "transformer")
LUONG, BAHDANAU = "Luong et al. (2015)", "Bahdanau et al. (2015)"


def gain_at_length(found: regard.Comparison, one: str, other: str) -> bool:
    """Whether one mechanism gains more over another on the longest sources than on the shortest."""
    gains = [group.value - base.value for group, base in zip(found.row(one).by_length, found.row(other).by_length, strict=True)]
    return gains[-1] > gains[0]


CLAIMS = (
    (f"attention beats the fixed vector ({BAHDANAU}, Table 1)", better, "bahdanau", "fixed-vector"),
    (f"attention beats the fixed vector ({LUONG}, Table 3)", better, "luong-general", "fixed-vector"),
    ("the longest sources: Bahdanau's attention beats the fixed vector", better_at_length, "bahdanau", "fixed-vector"),
    ("attention gains more on the longest sources than on the shortest", gain_at_length, "bahdanau", "fixed-vector"),
    (f"dot is better than general ({LUONG}, Table 4)", better, "luong-dot", "luong-general"),
    (f"input feeding is better than none ({LUONG}, Table 3)", better, "luong-input-feeding", "luong-general"),
    (f"general is better than concat ({LUONG}, 4.4)", better, "luong-general", "luong-concat"),
    (f"dot is better than location ({LUONG}, Table 4)", better, "luong-dot", "luong-location"),
    ("a Transformer is better than Bahdanau's model (Vaswani et al., 2017)", better, "transformer", "bahdanau"),
    ("a Transformer needs positions (Vaswani et al., 2017)", better, "transformer", "without-positions"),
    ("several heads are better than one (Vaswani et al., 2017)", better, "transformer", "without-heads"),
    ("a Transformer needs residual connections", better, "transformer", "without-residual"),
    ("without the look-ahead mask generation fails", better, "transformer", "without-mask"),
    ("rotary positions are better than sinusoidal ones", better, "transformer-rotary", "transformer"),
    ("hard attention needs its policy gradient (Xu et al., 2015)", better, "hard", "hard-without-gradient"),
    ("the exact sum is better than samples (Wu, Shapiro & Cotterell, 2018)", better, "marginal", "hard"),
)
"""What papers claim: the claim, how it is tested, and two mechanisms. A difference counts if the intervals do not touch."""


def claims(found: regard.Comparison) -> dict[str, bool]:
    """Returns whether the claims about the mechanisms that were compared hold."""
    names = {row.name for row in found.rows if row.trained}
    return {claim: holds(found, one, other) for claim, holds, one, other in CLAIMS if {one, other} <= names}


def pairs(folder: Path, name: str) -> list[tuple[str, str]]:
    sides = [gzip.decompress((folder / f"{name}.{language}.gz").read_bytes()).decode() for language in ("en", "de")]
    lines = zip(*(side.splitlines() for side in sides), strict=True)
    return [(" ".join(source.split()), " ".join(target.split())) for source, target in lines]


def multi30k(folder: Path, data: Path) -> regard.Comparison:
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("train", "test_2016_flickr"):
        lines = (f"{source}\t{target}\n" for source, target in [("en", "de"), *pairs(data, name)])
        (folder / f"{name}.tsv").write_text("".join(lines), "utf-8")
    test = folder / "test_2016_flickr.tsv"
    return regard.compare(
        folder / "train.tsv", folder / "models", held_out=test, source="en", target="de", only=MAIN, updates=UPDATES
    )


def main(task: str, folder: str, *data: str) -> None:
    if task == "dictionary":
        found = regard.compare("dictionary", folder, only="*", updates=UPDATES)
    else:
        found = multi30k(Path(folder), Path(*data))
    write_result(__file__, report(found, claims(found), ("reproduced", "not reproduced")), task)


if __name__ == "__main__":
    main(*sys.argv[1:])
