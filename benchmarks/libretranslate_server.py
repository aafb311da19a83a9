"""Runs LibreTranslate on a port of the loopback, with one of our models, without network; in an environment of its own.

    python libretranslate_server.py PACKAGE FOLDER PORT THREADS

PACKAGE: an .argosmodel from English to German. It is installed in FOLDER twice, the second time as one from German to English,
since LibreTranslate with fewer than two packages would download others. Every text is taken for one sentence, because the model
that splits texts into sentences would be downloaded, too.
"""

import json
import os
import sys
import zipfile
from pathlib import Path
from typing import Any


class Lines:
    """Takes every text for one sentence."""

    def __init__(self, package: Any) -> None: ...

    def split_sentences(self, text: str) -> list[str]:
        return [text]


def reversed_package(path: Path, folder: Path) -> Path:
    """Returns a copy of a package whose languages are exchanged."""
    copy = folder / "de_en.argosmodel"
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(copy, "w") as new:
        for name in old.namelist():
            content, (top, _, rest) = old.read(name), name.partition("/")
            if name.endswith("metadata.json"):
                given = json.loads(content)
                content = json.dumps({**given, "from_code": given["to_code"], "to_code": given["from_code"]}).encode()
            new.writestr(f"{top}_reversed/{rest}", content)
    return copy


def main(package: Path, folder: Path, port: str, threads: str) -> None:
    os.environ |= {
        "HOME": str(folder),
        "XDG_DATA_HOME": str(folder / "data"),
        "ARGOS_PACKAGES_DIR": str(folder / "packages"),
        "ARGOS_DEVICE_TYPE": "cpu",
        "ARGOS_INTRA_THREADS": threads,
    }
    os.chdir(folder)
    from argostranslate import package as packages
    from argostranslate import translate

    for path in (package, reversed_package(package, folder)):
        packages.install_from_path(path)
    translate.MiniSBDSentencizer = Lines
    from libretranslate import init
    from libretranslate.main import main as serve

    init.check_and_install_models = lambda *given, **named: None
    sys.argv = ["libretranslate", "--host", "127.0.0.1", "--port", port, "--disable-files-translation", "--disable-web-ui"]
    serve()


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), sys.argv[3], sys.argv[4])
