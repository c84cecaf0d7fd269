"""Code blocks of the documentation's pages, and how a test runs them.

A fenced block is run if its language is sh, console or python. The HTML comment `<!-- no-run: REASON -->` right above
a block exempts it. A console block holds commands, each behind `$ `, with what they print: a line or a part of a line
that may be anything is written as `…`. A command whose output ends in a line `error: …` must fail, any other must not.
"""

import os
import re
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"(?:^<!-- no-run: (?P<reason>.+?) -->\n)?^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.M | re.S)


def free_port() -> int:
    """Return a TCP port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


PORT = free_port()


@dataclass(frozen=True)
class Block:
    """One fenced block. line: where it starts in the page; reason: why it is not run, or None."""

    language: str
    text: str
    line: int
    reason: str | None


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    source = page.read_text(encoding="utf-8")
    return [
        Block(match["language"], match["text"], source[: match.start("text")].count("\n"), match["reason"])
        for match in BLOCK.finditer(source)
    ]


def run_page(page: Path, folder: Path) -> None:
    """Run every block of a page that is to be run, in `folder`, which must be the working directory."""
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks(page):
        if block.reason is not None:
            continue
        where = f"{page.relative_to(ROOT)}:{block.line}"
        if block.language == "python":
            exec(compile(with_port(block.text), where, "exec"), names)
        elif block.language == "sh":
            output, code = shell(block.text, folder)
            assert code == 0, f"{where} exits with {code}:\n{output}"
        elif block.language == "console":
            for command, shown in commands(block.text):
                output, code = shell(command, folder)
                fails = "error: " in shown
                assert (code != 0) == fails, f"{where}: `{command}` exits with {code}:\n{output}"
                assert is_shown(shown, output), f"{where}: `{command}` prints\n{output}\nand the page shows\n{shown}"


def with_port(text: str) -> str:
    """Return a text with a port that is free where the page has the server's default."""
    return text.replace("localhost:8000", f"localhost:{PORT}")


def shell(text: str, folder: Path) -> tuple[str, int]:
    """Run a script with bash, and return what it prints, on either stream, and its exit code."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "HF_HUB_OFFLINE": "1", "COLUMNS": "120", "EDGEFORMER_PORT": str(PORT)}
    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", with_port(text)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=300,
    )
    return result.stdout, result.returncode


def commands(text: str) -> list[tuple[str, str]]:
    """Return the commands of a console block, each with the output that the page shows."""
    return [
        (command, shown)
        for part in re.split(r"^\$ ", text, flags=re.M)[1:]
        for command, _, shown in [part.partition("\n")]
    ]


def is_shown(shown: str, output: str) -> bool:
    """Whether the output is what the page shows; `…` stands for anything, also for several lines.

    How many spaces stand between columns does not matter.
    """
    pattern = ".*".join(re.escape(piece) for piece in re.split(r"\s*…\s*", re.sub(" +", " ", shown.strip())))
    return re.fullmatch(rf"\s*{pattern}\s*", re.sub(" +", " ", output), re.S) is not None
