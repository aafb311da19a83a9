"""The build backend: scikit-build-core, but an editable installation adds the source folder to the path and does nothing else.

Its own also installs an import hook, which would find this source even where PYTHONPATH names another one.
"""

import base64
import hashlib
import zipfile
from pathlib import Path

from scikit_build_core import build
from scikit_build_core.build import *  # noqa: F403  (the functions of PEP 517 and PEP 660)

HOOK = "_editable_skbc_regard"


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):  # type: ignore[no-untyped-def]
    """Builds scikit-build-core's wheel and takes the import hook out of it."""
    name = build.build_editable(wheel_directory, config_settings, metadata_directory)
    wheel = Path(wheel_directory, name)
    with zipfile.ZipFile(wheel) as old:
        files = {file: old.read(file) for file in old.namelist()}
    del files[f"{HOOK}.py"]
    files[f"{HOOK}.pth"] = files[f"{HOOK}.pth"].replace(f"import {HOOK}\n".encode(), b"")
    record = next(file for file in files if file.endswith(".dist-info/RECORD"))
    del files[record]
    rows = [f"{file},sha256={digest(data)},{len(data)}" for file, data in files.items()]
    files[record] = "\n".join([*rows, f"{record},,", ""]).encode()
    with zipfile.ZipFile(wheel, "w") as new:
        for file, data in files.items():
            new.writestr(file, data)
    return name


def digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
