"""One runtime behind stdin and stdout, in its own interpreter. Standard library only; started by process.py.

    PYTHON -m benchmarks.peers.worker probe IMPORTS PACKAGES
    PYTHON -m benchmarks.peers.worker convert FILE CHECKPOINT FOLDER PRECISION
    PYTHON -m benchmarks.peers.worker serve FILE CHECKPOINT FOLDER PRECISION THREADS
    PYTHON -m benchmarks.peers.worker logits FILE CHECKPOINT FOLDER PRECISION THREADS TEXTS OUTPUT

FILE is one of the peers beside this file. `probe` says in one JSON line which of the IMPORTS (with commas between) this
interpreter lacks, and the versions of the PACKAGES. `serve` answers an empty object once the model is loaded, and then
each line {"prompt": [id…], "new": N} with a Turn. `logits` reads lists of ids from TEXTS, a JSON file, and writes the
logits after each token to OUTPUT, float32 and nothing else. The working directory is tools/, from where all of it is
imported.
"""

import ctypes
import importlib.util
import json
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
"""Of Linux's prctl."""


def end_with_parent() -> None:
    """Have Linux kill this process when compare_peers ends, however it ends: a stopped process notices nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def probe(imports: str, packages: str) -> dict[str, Any]:
    """What this interpreter lacks, and versions of what it has."""
    versions = {}
    for package in packages.split(","):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {"missing": [name for name in imports.split(",") if not is_there(name)], "versions": versions}


def is_there(module: str) -> bool:
    """Whether a module could be imported. To look for one in a package imports the package, which may be missing."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def peer(file: str) -> Any:
    """The module in a file. It has another name than the file, whose name is that of the package that it imports."""
    spec = importlib.util.spec_from_file_location(f"peer_{Path(file).stem}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def serve(
    requests: Iterable[str], file: str, checkpoint: str, folder: str, precision: str, threads: str
) -> Iterator[dict[str, Any]]:
    """First that the model is loaded, then an answer to each request."""
    generate = peer(file).load(Path(checkpoint), Path(folder), precision, int(threads))
    yield {}
    for line in requests:
        request = json.loads(line)
        yield asdict(generate(request["prompt"], request["new"]))


def write_logits(
    file: str, checkpoint: str, folder: str, precision: str, threads: str, texts: str, output: str
) -> None:
    """Read one text after the other."""
    read = peer(file).load_logits(Path(checkpoint), Path(folder), precision, int(threads))
    with Path(output).open("wb") as out:
        for text in json.loads(Path(texts).read_text(encoding="utf-8")):
            read(text).tofile(out)


def main() -> None:
    """Answer on what was stdout. What libraries print there goes to stderr."""
    end_with_parent()
    verb, *arguments = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    if verb == "probe":
        print(json.dumps(probe(*arguments)), file=answers, flush=True)
    elif verb == "convert":
        file, checkpoint, folder, precision = arguments
        peer(file).convert(Path(checkpoint), Path(folder), precision)
    elif verb == "logits":
        write_logits(*arguments)
    else:
        for answer in serve(sys.stdin, *arguments):
            print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main()
