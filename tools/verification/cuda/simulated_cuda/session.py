"""Asks a process with onnxruntime-gpu and simulated CUDA."""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from verification.cuda.simulated_cuda.libraries import build_libraries, environment, unpacked

CHILD = Path(__file__).parent / "child.py"


class SimulatedCuda:
    """onnxruntime-gpu with simulated CUDA, from a wheel or a folder where one is unpacked. Close it after use."""

    def __init__(self, wheel: Path):
        self._folder = TemporaryDirectory(prefix="simulated-cuda.")
        place = Path(self._folder.name)
        modules = unpacked(wheel, place / "modules")
        self._environment = environment(modules, build_libraries(modules, place / "libraries"))

    def ask(self, action: str, given: Any = None) -> Any:
        """Return the answer of an action of child.py. Raises RuntimeError with what it wrote if it failed."""
        return json.loads(self._run(action, [str(CHILD), action], json.dumps(given)).splitlines()[-1])

    def python(self, code: str) -> str:
        """Return what a Python program prints whose onnxruntime has simulated CUDA.

        The program may import edgeformer. Raises RuntimeError with what it wrote if it failed.
        """
        return self._run("the program", ["-c", code])

    def _run(self, what: str, arguments: list[str], given: str = "") -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            input=given,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{what} failed with {done.returncode}: {done.stderr[-2000:]}")
        return done.stdout

    def close(self) -> None:
        """Remove the libraries, and what was unpacked."""
        self._folder.cleanup()
