"""Clients that are a command with the arguments BUNDLE "5 6 7" --ids --new-tokens N, and that print token ids."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from edgeformer.config import Task
from edgeformer.manifest.manifest import Manifest
from verification.client_programs.client import (
    DECODERS,
    DECODERS_AND_SEQ2SEQ,
    EXAMPLES,
    TIMEOUT,
    ClientError,
    Places,
    Prompts,
    Tokens,
)

PROBE = """
import importlib, importlib.metadata, json, sys
modules, packages = map(json.loads, sys.argv[1:])
absent = []
for name in modules:
    try:
        importlib.import_module(name)
    except ImportError:
        absent.append(name)
versions = {} if absent else {name: importlib.metadata.version(name) for name in packages}
print(json.dumps([absent, versions]))
"""


def run(line: Sequence[str | Path], folder: Path | None = None) -> str:
    """Run a command and return its output. Raises ClientError with the most informative line of its errors."""
    try:
        done = subprocess.run(line, capture_output=True, text=True, cwd=folder, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        raise ClientError(f"no answer within {TIMEOUT} s") from None
    if done.returncode:
        said = [text.strip() for text in done.stderr.splitlines() if text.strip()]
        errors = [text for text in said if "error" in text.lower()]
        raise ClientError((errors or said or [f"exit code {done.returncode}"])[-1])
    return done.stdout


def ids_of(text: str) -> list[int]:
    """Parse the token ids that a program printed. Raises ClientError for anything else."""
    try:
        return [int(word) for word in text.split()]
    except ValueError:
        raise ClientError(f"it printed no token ids but {text.strip()[:80]!r}") from None


@dataclass(frozen=True)
class PythonClient:
    """A Python program.

    modules: what it imports. packages: distributions whose versions are reported. recipe: the line that installs them.
    """

    name: str
    file: Path
    modules: tuple[str, ...]
    packages: tuple[str, ...]
    recipe: str
    reads_checkpoint: bool = False
    tasks: tuple[Task, ...] = DECODERS

    def missing(self, places: Places) -> str | None:
        """Implement Client."""
        if self.reads_checkpoint and places.checkpoint is None:
            return "the checkpoint of the bundle; name it with --checkpoint"
        absent = self._probe(places)[0]
        return f"{', '.join(absent)}; install with: {self.recipe}" if absent else None

    def versions(self, places: Places) -> dict[str, str]:
        """Implement Client."""
        return self._probe(places)[1]

    def generate(self, bundle: Path, prompts: Prompts, new_tokens: int, places: Places) -> Tokens:
        """Implement Client."""
        model = places.checkpoint if self.reads_checkpoint else bundle
        line = [self._python(places), self.file, model]
        return [
            ids_of(run([*line, " ".join(map(str, prompt)), "--ids", "--new-tokens", str(new_tokens)]))
            for prompt in prompts
        ]

    def _python(self, places: Places) -> Path:
        return places.pythons.get(self.name, Path(sys.executable))

    def _probe(self, places: Places) -> tuple[list[str], dict[str, str]]:
        return json.loads(run([self._python(places), "-c", PROBE, json.dumps(self.modules), json.dumps(self.packages)]))


class NodeClient:
    """examples/node: transformers.js in Node."""

    tasks = DECODERS_AND_SEQ2SEQ

    def missing(self, places: Places) -> str | None:
        """Implement Client."""
        if shutil.which("node") is None:
            return "node; install Node.js 18 or later"
        return missing_package(places)

    def versions(self, places: Places) -> dict[str, str]:
        """Implement Client."""
        return {"node": run(["node", "--version"]).strip().removeprefix("v")} | package_versions(
            places, "@huggingface/transformers", "onnxruntime-node"
        )

    def generate(self, bundle: Path, prompts: Prompts, new_tokens: int, places: Places) -> Tokens:
        """Implement Client."""
        program = "translate.mjs" if Manifest.read(bundle).task == "seq2seq-lm" else "main.mjs"
        with with_modules(EXAMPLES / "node", places) as folder:
            line = ["node", Path(folder) / program, bundle.resolve(), "--ids", "--new-tokens", str(new_tokens)]
            return [ids_of(run([*line, " ".join(map(str, prompt))])) for prompt in prompts]


class CppClient:
    """examples/cpp, compiled with the headers of an onnxruntime release."""

    tasks = DECODERS

    def missing(self, places: Places) -> str | None:
        """Implement Client."""
        if shutil.which("g++") is None:
            return "g++; install a C++17 compiler"
        header = places.onnxruntime and places.onnxruntime / "include" / "onnxruntime_cxx_api.h"
        if header is None or not header.is_file():
            return "onnxruntime's C++ headers; unpack a release of onnxruntime and name its folder with --onnxruntime"
        return None

    def versions(self, places: Places) -> dict[str, str]:
        """Implement Client."""
        assert places.onnxruntime is not None
        header = (places.onnxruntime / "include" / "onnxruntime_c_api.h").read_text(encoding="utf-8")
        found = re.search(r"#define ORT_API_VERSION (\d+)", header)
        return {"g++": run(["g++", "-dumpfullversion"]).strip(), "headers' API": found[1] if found else "unknown"}

    def generate(self, bundle: Path, prompts: Prompts, new_tokens: int, places: Places) -> Tokens:
        """Implement Client."""
        assert places.onnxruntime is not None
        ends = json.loads((bundle / "edgeformer.json").read_text(encoding="utf-8"))["tokens"]["eos"]
        with tempfile.TemporaryDirectory(prefix="conformance.") as folder:
            program = self._compile(Path(folder), places.onnxruntime)
            options = [str(new_tokens), *map(str, ends)]
            return [ids_of(run([program, bundle, " ".join(map(str, prompt)), *options])) for prompt in prompts]

    def _compile(self, folder: Path, onnxruntime: Path) -> Path:
        """Compile, and link with the release's library or, if it has only headers, with the Python package's."""
        library = next(iter((onnxruntime / "lib").glob("libonnxruntime.so*")), None)
        if library is None:
            import onnxruntime as package

            library = next((Path(package.__file__).parent / "capi").glob("libonnxruntime.so*"))
        # The linker looks for the first name, the loader for the second.
        for name in ("libonnxruntime.so", "libonnxruntime.so.1"):
            (folder / name).symlink_to(library.resolve())
        program, include = folder / "generate", onnxruntime / "include"
        paths = [f"-I{include}", f"-L{folder}", f"-Wl,-rpath,{folder}"]
        run(["g++", "-std=c++17", "-O1", EXAMPLES / "cpp" / "main.cc", *paths, "-lonnxruntime", "-o", program])
        return program


class DotnetClient:
    """examples/csharp: Microsoft.ML.OnnxRuntime."""

    tasks = DECODERS

    def missing(self, places: Places) -> str | None:
        """Implement Client."""
        return None if shutil.which("dotnet") else "dotnet; install the .NET SDK 8 or later"

    def versions(self, places: Places) -> dict[str, str]:
        """Implement Client."""
        return {"dotnet": run(["dotnet", "--version"]).strip()}

    def generate(self, bundle: Path, prompts: Prompts, new_tokens: int, places: Places) -> Tokens:
        """Implement Client."""
        with tempfile.TemporaryDirectory(prefix="conformance.") as folder:
            project = shutil.copytree(EXAMPLES / "csharp", Path(folder) / "csharp")
            line = ["dotnet", "run", "--project", project, "--", bundle.resolve()]
            return [ids_of(run([*line, " ".join(map(str, prompt)), str(new_tokens)])) for prompt in prompts]


def missing_package(places: Places) -> str | None:
    """Return what is missing if transformers.js is not installed, otherwise None."""
    if (places.node_modules / "@huggingface" / "transformers" / "package.json").is_file():
        return None
    return (
        f"transformers.js in {places.node_modules}; install with: npm install --ignore-scripts "
        f"--prefix {os.path.relpath(EXAMPLES / 'node')}"
    )


def package_versions(places: Places, *names: str) -> dict[str, str]:
    """Return the versions of packages in node_modules."""
    files = {name: places.node_modules / name / "package.json" for name in names}
    return {name: json.loads(file.read_text(encoding="utf-8"))["version"] for name, file in files.items()}


def with_modules(example: Path, places: Places) -> AbstractContextManager[str]:
    """Copy an example to a temporary folder with a link to node_modules, without anything else installed beside it."""
    folder = tempfile.TemporaryDirectory(prefix="conformance.")
    for file in example.iterdir():
        if file.is_file():
            shutil.copy(file, folder.name)
    (Path(folder.name) / "node_modules").symlink_to(places.node_modules.resolve())
    return folder
