"""Install a folder of wheels, some of them in pieces, into a folder of their own for PYTHONPATH.

    python tools/verification/cuda/wheel_folder.py WHEELS PACKAGES

A carrier of small files takes a wheel of 250 MB in pieces, as `split` writes them:

    split -b 40m NAME.whl NAME.whl.              # NAME.whl.aa, NAME.whl.ab, …
    split -b 40m -d NAME.whl NAME.whl.part       # NAME.whl.part00, NAME.whl.part01, …

Nothing is downloaded, and what wheels require is ignored: the folder has all that is wanted. This file imports Python's
own modules only, so that it runs where nothing is installed yet.
"""

import json
import re
import shutil
import string
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import BadZipFile, ZipFile

PIECE = re.compile(r"(?P<wheel>.+\.whl)(?:\.(?P<ending>[a-z]{2}|part\d\d))?")

MARKER = "installed-from.json"
"""The file of an installed folder with the size in bytes of each wheel; it is written when all else is there."""


class WheelError(Exception):
    """A folder of wheels that cannot be installed. The message says which file is wrong."""


def install(folder: Path, target: Path) -> list[str]:
    """Install the wheels in `folder` into `target`, and return their names; the same wheels are installed once.

    A target with other wheels is replaced. Raises WheelError for a missing or damaged piece, for wheels that pip does
    not take, and for a target that was not installed by this.
    """
    wheels = wheels_in(folder)
    sizes = {name: sum(piece.stat().st_size for piece in pieces) for name, pieces in wheels.items()}
    marker = target / MARKER
    if target.exists() and not marker.is_file():
        raise WheelError(f"{target} exists, and was not installed from wheels. Remove it, or name another folder.")
    if marker.is_file() and json.loads(marker.read_text(encoding="utf-8")) == sizes:
        return list(wheels)
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.part")
    _remove(part)
    # Joined beside the target: /tmp may be a small disk in memory.
    with TemporaryDirectory(prefix=f"{target.name}.wheels.", dir=target.parent) as joined:
        files = [_joined(name, pieces, Path(joined)) for name, pieces in wheels.items()]
        # In one call: pip would replace the folder `nvidia` of one wheel by that of the next.
        command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--no-compile"]
        done = subprocess.run(
            [*command, "--target", str(part), *map(str, files)], capture_output=True, text=True, check=False
        )
    if done.returncode:
        _remove(part)
        raise WheelError(f"pip cannot install the wheels: {done.stderr.strip()}")
    (part / MARKER).write_text(json.dumps(sizes, indent=1), encoding="utf-8")
    _remove(target)
    part.rename(target)
    return list(wheels)


def wheels_in(folder: Path) -> dict[str, list[Path]]:
    """Return the pieces of each wheel in a folder, in order; a whole wheel is one piece. Other files are left out.

    Raises WheelError if there is no wheel, if a piece before the last is missing, and for a wheel in several forms.
    """
    found: dict[str, dict[str, Path]] = {}
    for path in sorted(folder.iterdir()):
        if match := PIECE.fullmatch(path.name):
            found.setdefault(match["wheel"], {})[match["ending"] or ""] = path
    if not found:
        raise WheelError(
            f"{folder} has no wheels: files NAME.whl, or their pieces NAME.whl.aa, NAME.whl.ab, … or NAME.whl.part00, "
            "NAME.whl.part01, …"
        )
    return {name: _in_order(name, pieces, folder) for name, pieces in found.items()}


def _in_order(name: str, pieces: dict[str, Path], folder: Path) -> list[Path]:
    """Return the pieces of a wheel by their endings, which have to be the first ones of their form."""
    forms = {
        "whole" if not ending else "in pieces .part00" if "part" in ending else "in pieces .aa" for ending in pieces
    }
    if len(forms) > 1:
        raise WheelError(f"{name} is in {folder} in more than one form: {', '.join(sorted(forms, reverse=True))}.")
    if "" in pieces:
        return [pieces[""]]
    expected = _endings(next(iter(pieces)), max(pieces))
    for ending in expected:
        if ending not in pieces:
            raise WheelError(f"{name}.{ending} is missing from {folder}.")
    return [pieces[ending] for ending in expected]


def _endings(form: str, last: str) -> list[str]:
    """Return the endings of pieces from the first to `last`, in the form of one of them."""
    if form.startswith("part"):
        return [f"part{number:02}" for number in range(int(last.removeprefix("part")) + 1)]
    letters = string.ascii_lowercase
    both = [first + second for first in letters for second in letters]
    return both[: both.index(last) + 1]


def _joined(name: str, pieces: list[Path], folder: Path) -> Path:
    """Return the file of a wheel, joined in `folder` if it is in pieces. Raises WheelError if it is not a whole zip."""
    path = pieces[0]
    if len(pieces) > 1 or path.name != name:
        path = folder / name
        with path.open("wb") as whole:
            for piece in pieces:
                with piece.open("rb") as part:
                    shutil.copyfileobj(part, whole, 1 << 24)
    try:
        with ZipFile(path) as archive:
            damaged = archive.testzip()
    except BadZipFile as error:
        raise WheelError(f"{name} is no whole wheel ({error}).{_next(pieces)}") from error
    if damaged is not None:
        raise WheelError(f"{name} is damaged at {damaged}. Copy it again.")
    return path


def _next(pieces: list[Path]) -> str:
    """Return a sentence about the piece that would come behind the last one."""
    last = pieces[-1]
    form = last.suffix.removeprefix(".")
    if form == "whl":
        return " Copy it again."
    following = _endings(form, "part99" if form.startswith("part") else "zz")[len(pieces) :][:1]
    return f" Its pieces end with {last.name}; is {' '.join(following)} missing?"


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit((__doc__ or "").strip())
    try:
        print("\n".join(install(Path(sys.argv[1]), Path(sys.argv[2]))))
    except WheelError as wrong:
        sys.exit(f"Error: {wrong}")
