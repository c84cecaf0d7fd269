"""Make odd command lines, and run them in this process as the console script would."""

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

ODD_TEXTS = (
    "", " ", "-", "--", "0", "-1", "1e999", "nan", "2**63", "9223372036854775808", "true", "null", "[]", "{", "%s%n",
    "bundle-tiny-llama/edgeformer.json", "/", "/dev/null", "~", "*", "\n", "\t\x1b[31m", "\udcff\udcfe", "名前",
    "🙂" * 50, "a" * 5000, "{{7*7}}", "$(id)", "--help", "-h", "--json", "a=b", "=", "tiny-llama", "fp99", "int4",
    "cuda", "http://x/y",
)  # fmt: skip
"""Texts for arguments and values of options. A lone surrogate is what Python makes of bytes that are not UTF-8."""

UNSTARTED = ("bench", "optimize", "serve")
"""Commands that start processes or run for ever; they get no bundle that they could open."""

SMALL = {"--max-new-tokens": "3", "--limit": "1", "--steps": "1", "--rounds": "1"}
"""Values of options that are always given, where a command has them, so that a case ends soon."""


def draw_line(draw: random.Random, bundles: list[str]) -> list[str]:
    """Return the arguments of an odd command line. bundles: paths of folders that commands can open."""
    from edgeformer.cli.main import COMMANDS, cli

    if draw.random() < 0.05:
        return [draw.choice(ODD_TEXTS) for _ in range(draw.randint(0, 3))]
    name = draw.choice(list(COMMANDS))
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    line = [name]
    if name in UNSTARTED:
        bundles = [text for text in ODD_TEXTS if not text.startswith("-")]
    options = [each for each in command.params if isinstance(each, click.Option)]
    for option in draw.sample(options, min(len(options), draw.randint(0, 4))):
        line.append(draw.choice(option.opts))
        if not option.is_flag and draw.random() < 0.95:
            line.append(_value(option, draw, bundles))
    if name == "export" and "--no-verify" not in line and draw.random() < 0.9:
        line.append("--no-verify")
    if name == "verify" and "--quick" not in line:
        line.append("--quick")  # a full verification takes a minute
    line += [part for each in options for name in each.opts if name in SMALL for part in (name, SMALL[name])]
    for argument in command.params:
        if isinstance(argument, click.Argument):
            count = draw.randint(0, 2) if argument.nargs == -1 else int(draw.random() < 0.95)
            place = bundles if argument.name in ("bundle", "bundles", "model") and draw.random() < 0.7 else ODD_TEXTS
            line += [draw.choice(place) for _ in range(count)]
    if draw.random() < 0.1:
        line.insert(draw.randint(0, len(line)), draw.choice(ODD_TEXTS))
    return line


def _value(option: click.Option, draw: random.Random, bundles: list[str]) -> str:
    """Return a value of an option: one that it takes, or an odd text."""
    if draw.random() < 0.5:
        if isinstance(option.type, click.Choice):
            return str(draw.choice(list(option.type.choices)))
        if isinstance(option.type, click.types.IntParamType | click.types.FloatParamType):
            return str(draw.choice((1, 2, 7, 0, -3, 0.5, 1e-320, 10**6)))
        if option.name in ("model", "against"):
            return draw.choice(["tiny-llama", "tiny-embed", *bundles])
    return draw.choice(ODD_TEXTS)


def call(line: list[str], folder: Path) -> Callable[[], Any]:
    """Return what runs a command line in a folder; an error of the user ends it as a click exception."""

    def run() -> None:
        from edgeformer.cli.main import cli

        os.environ["HF_HUB_OFFLINE"] = "1"
        os.chdir(folder)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        try:
            cli.main(list(line), prog_name="edgeformer")
        except SystemExit as end:
            if end.code in (1, 2):
                raise click.ClickException(f"exit code {end.code}") from None
            if end.code not in (0, None):
                raise

    run.named = tuple(text for text in line if text.startswith("/"))  # type: ignore[attr-defined]
    return run
