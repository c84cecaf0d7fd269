"""Run one runtime behind stdin and stdout, in its own interpreter. Standard library only; process.py starts it.

    PYTHON -m benchmarks.peers.worker probe IMPORTS PACKAGES
    PYTHON -m benchmarks.peers.worker convert FILE CHECKPOINT FOLDER PRECISION
    PYTHON -m benchmarks.peers.worker serve FILE CHECKPOINT FOLDER PRECISION THREADS
    PYTHON -m benchmarks.peers.worker logits FILE CHECKPOINT FOLDER PRECISION THREADS TEXTS OUTPUT

FILE is the module of a peer in this folder. `probe` prints one JSON line: which of the comma-separated IMPORTS this
interpreter lacks, and the versions of the PACKAGES. `serve` prints an empty JSON object once the model is loaded, and
then answers each line {"prompt": [id…], "new": N} with a Generation. `logits` reads lists of ids from TEXTS, a JSON
file, and writes the logits after each token to OUTPUT as raw float32. The working directory is tools/, the root of all
imports.
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
"""Option of Linux's prctl: the signal that the process gets when its parent dies."""


def end_with_parent() -> None:
    """Have Linux kill this process when compare_peers exits in any way: a stopped process would not notice."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def forget_peak() -> None:
    """Have Linux count the most memory of this process anew (proc(5): clear_refs)."""
    if sys.platform == "linux":
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_mib() -> float | None:
    """Return the most memory that this process had since then, in MiB; None where the system does not say it."""
    if sys.platform != "linux":
        return None
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024  # told in kiB


def probe(imports: str, packages: str) -> dict[str, Any]:
    """Return what this interpreter lacks, and the versions of what it has."""
    versions = {}
    for package in packages.split(","):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {"missing": [name for name in imports.split(",") if not is_there(name)], "versions": versions}


def is_there(module: str) -> bool:
    """Return whether a module can be found. Looking for a submodule imports its package, which may be missing."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def peer(file: str) -> Any:
    """Import the module in a file, under another name: the file itself is named after the package that it imports."""
    spec = importlib.util.spec_from_file_location(f"peer_{Path(file).stem}", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def serve(
    requests: Iterable[str], file: str, checkpoint: str, folder: str, precision: str, threads: str
) -> Iterator[dict[str, Any]]:
    """Yield an empty answer once the model is loaded, and then an answer to each request."""
    generate = peer(file).load(Path(checkpoint), Path(folder), precision, int(threads))
    yield {}
    for line in requests:
        request = json.loads(line)
        forget_peak()
        yield asdict(generate(request["prompt"], request["new"])) | {"peak_mib": peak_mib()}


def write_logits(
    file: str, checkpoint: str, folder: str, precision: str, threads: str, texts: str, output: str
) -> None:
    """Write the logits of one text after the other."""
    read = peer(file).load_logits(Path(checkpoint), Path(folder), precision, int(threads))
    with Path(output).open("wb") as out:
        for text in json.loads(Path(texts).read_text(encoding="utf-8")):
            read(text).tofile(out)


def main() -> None:
    """Write answers to the original stdout. What libraries print goes to stderr."""
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
