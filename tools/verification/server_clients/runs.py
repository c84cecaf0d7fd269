"""The programs of clients, where they find what they need, and what has to come back from each call."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from verification.server_clients.scripted_server import ANSWER, ARGUMENTS

HERE = Path(__file__).parent
SUM = "345 + 278 = 623"
CITY_AND_DAY = "(Paris|Rome), day [1-9]"
TIMEOUT = 300
"""Seconds that a program may take."""

PROBE = """
import importlib, importlib.metadata, json, sys
try:
    versions = {name: importlib.metadata.version(name) for name in sys.argv[1:]}
except importlib.metadata.PackageNotFoundError as error:
    versions = {}
print(json.dumps(versions))
"""


@dataclass(frozen=True)
class Program:
    """A program of a client.

    packages: of Python or npm, by which it is looked for and whose versions are reported. tokenizer: whether it reads
    the tokenizer of the bundle.
    """

    name: str
    file: str
    packages: tuple[str, ...]
    tokenizer: bool = False

    @property
    def is_node(self) -> bool:
        """Whether it runs in Node."""
        return self.file.endswith(".mjs")


PROGRAMS = (
    Program("openai", "openai_program.py", ("openai",)),
    Program("openai for Node", "openai_program.mjs", ("openai",)),
    Program("anthropic", "anthropic_program.py", ("anthropic",)),
    Program("anthropic for Node", "anthropic_program.mjs", ("@anthropic-ai/sdk",)),
    Program("AI SDK", "ai_sdk_program.mjs", ("ai", "@ai-sdk/openai-compatible", "zod")),
    Program("LangChain", "langchain_program.py", ("langchain-openai", "langchain-anthropic", "langchain-core")),
    Program("LlamaIndex", "llama_index_program.py", ("llama-index-llms-openai-like", "llama-index-core")),
    Program("LiteLLM", "litellm_program.py", ("litellm",)),
    Program("Pydantic AI", "pydantic_ai_program.py", ("pydantic-ai-slim", "openai", "anthropic")),
    Program("Instructor", "instructor_program.py", ("instructor", "openai", "anthropic")),
    Program("OpenAI Agents", "agents_program.py", ("openai-agents", "openai")),
    Program("lm-evaluation-harness", "lm_eval_program.py", ("lm-eval", "transformers"), tokenizer=True),
)


@dataclass(frozen=True)
class Places:
    """Where clients are installed.

    environments: folders of Python environments, each searched for the packages of a program; the running interpreter
    is one, too. node_modules: folders of npm packages.
    """

    environments: tuple[Path, ...] = ()
    node_modules: tuple[Path, ...] = ()

    @classmethod
    def found(cls, folder: Path | None) -> "Places":
        """Return the environments and the node_modules in a folder."""
        if folder is None:
            return cls()
        pythons = tuple(sorted(path.parent.parent for path in folder.glob("*/bin/python")))
        return cls(pythons, tuple(sorted(folder.glob("*/node_modules"))))

    def installed(self, program: Program) -> tuple[Path, dict[str, str]] | None:
        """Return the interpreter or the node_modules that has the packages of a program, and their versions."""
        return self._in_node(program) if program.is_node else self._in_python(program)

    def _in_python(self, program: Program) -> tuple[Path, dict[str, str]] | None:
        for environment in self.environments:
            python = environment / "bin" / "python"
            line = [python, "-c", PROBE, *program.packages]
            versions = json.loads(subprocess.run(line, capture_output=True, text=True, check=True).stdout)
            if versions:
                return python, versions
        try:
            return Path(sys.executable), {name: version(name) for name in program.packages}
        except ModuleNotFoundError:
            return None

    def _in_node(self, program: Program) -> tuple[Path, dict[str, str]] | None:
        for modules in self.node_modules if shutil.which("node") else ():
            files = {name: modules / name / "package.json" for name in program.packages}
            if all(file.is_file() for file in files.values()):
                return modules, {name: json.loads(file.read_text())["version"] for name, file in files.items()}
        return None


@dataclass
class Run:
    """The run of a program: its calls and what is wrong with some; error: of the program itself."""

    calls: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    error: str | None = None


def run(program: Program, where: Path, url: str, bundle: Path, folder: Path) -> Run:
    """Run a program against a server of a bundle. folder: an empty one."""
    arguments = [url, bundle.name, *([str(bundle)] if program.tokenizer else [])]
    file = HERE / program.file
    if program.is_node:
        (folder / "node_modules").symlink_to(where.resolve())
        file = Path(shutil.copy(file, folder))
    line = ["node" if program.is_node else str(where), str(file), *arguments]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    try:
        done = subprocess.run(line, capture_output=True, text=True, cwd=folder, timeout=TIMEOUT, env=clean, check=False)
    except subprocess.TimeoutExpired:
        return Run(error=f"no end within {TIMEOUT} s")
    found = Run()
    for said in done.stdout.splitlines():
        call, value = _parsed(said)
        if call:
            found.calls.append(call)
            if not is_right(call, value):
                found.wrong.append(f"{call}: {json.dumps(value)[:200]}")
    if done.returncode:
        found.error = "\n".join(done.stderr.strip().splitlines()[-15:])
    return found


def _parsed(line: str) -> tuple[str, Any]:
    """Return the call of a line and what came back; "" for a line that is none of the program's own."""
    places = [place for place, letter in enumerate(line) if letter == " "]
    for place in places:
        if line[:place].replace(" ", "").replace("-", "").replace("_", "").isalnum() and _kind(line[:place]):
            try:
                return line[:place], json.loads(line[place + 1 :])
            except ValueError:
                continue
    return "", None


def is_right(call: str, value: Any) -> bool:
    """Return whether the right thing came back from a call."""
    kind = _kind(call)
    return kind is not None and CHECKS[kind](value)


def _kind(call: str) -> str | None:
    """Return the longest of the kinds that a call's name ends with."""
    return max((kind for kind in CHECKS if f" {call}".endswith(f" {kind}")), key=len, default=None)


def _is_verdict(value: Any) -> bool:
    return isinstance(value, Mapping) and value.get("label") in ("good", "bad") and value.get("stars") in (1, 2, 3)


def _are_pieces(value: Any) -> bool:
    return isinstance(value, Sequence) and len(value) > 1 and "".join(value) == SUM


CHECKS: dict[str, Callable[[Any], bool]] = {
    "chat": lambda value: value == SUM,
    "responses": lambda value: value == SUM,
    "stream": _are_pieces,
    "tool call": lambda value: value == [ARGUMENTS],
    "custom tool": lambda value: len(value) == 1 and re.fullmatch(CITY_AND_DAY, value[0]) is not None,
    "custom tool pieces": lambda value: re.fullmatch(CITY_AND_DAY, "".join(value)) is not None,
    "logprobs": lambda value: value == SUM,
    "stream helper": lambda value: value == [ARGUMENTS],
    "pieces of arguments": lambda value: value > 1,
    "partial": lambda value: value > 1,
    "tool answer": lambda value: value == ANSWER,
    "tool runner": lambda value: value == [ANSWER],
    "required tool": lambda value: value == "weather",
    "structured": _is_verdict,
    "completions": lambda value: len("".join(value) if isinstance(value, list) else str(value)) > 0,
    "usage": lambda value: value > 5,
    "count": lambda value: value > 5,
    "thinking": lambda value: value in (["text"], ["thinking", "text"]),
    "log-likelihoods": lambda value: value == 1.0,
    "chats": lambda value: value == 1.0,
}
"""Tests of what comes back, by the ends of the names of calls; tiny-llama adds right."""
