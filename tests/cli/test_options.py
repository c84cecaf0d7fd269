"""edgeformer.cli._options and main: help by topic, lazy commands, warnings."""

import json
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from edgeformer.cli._options import Command, option
from edgeformer.cli.main import COMMANDS, cli
from edgeformer.errors import EdgeformerError

HEAVY = ("torch", "onnx", "numpy", "onnxruntime", "rich", "jinja2", "tokenizers", "transformers")


def run(command, *arguments):
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


@click.command("make", cls=Command)
@option("--json", is_flag=True, topic="Output", help="Print JSON.")
@option("--deployment", help="Where it runs.")
@option("--cache", type=click.Choice(["dynamic", "static"]), topic="Graph", help="Of it.")
@option("--keep", multiple=True, topic="Graph")
@click.argument("words", nargs=-1)
def make(**options):
    """Make it."""
    click.echo(json.dumps(options))


def test_help_has_a_section_per_topic_and_output_last():
    lines = run(make, "--help").stdout.splitlines()
    titles = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert titles == ["Common:", "Graph:", "Output:"]
    section = lines[lines.index("Output:") :]
    assert [line.split()[0] for line in section[1:]] == ["--json", "--help"]
    descriptions = {line.index(text) for line in lines for text in ("Where it runs.", "Print JSON.") if text in line}
    assert len(descriptions) == 1, "descriptions of all sections start in one column"


def test_what_follows_two_dashes_is_no_option():
    result = run(make, "--", "--target")
    assert json.loads(result.stdout)["words"] == ["--target"]
    assert result.stderr == ""


@pytest.mark.parametrize("name", COMMANDS)
def test_summaries_of_commands_are_the_first_lines_of_their_help(name):
    command = cli.get_command(click.Context(cli), name)
    assert isinstance(command, Command)
    assert command.name == name
    assert command.help.splitlines()[0] == COMMANDS[name].summary
    undescribed = [param.name for param in command.params if isinstance(param, click.Option) and not param.help]
    assert not undescribed


def test_commands_are_grouped():
    lines = run(cli, "--help").stdout.splitlines()
    titles = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert titles == ["Make:", "Run:", "Measure:", "Prove:", "Look up:", "Options:"]
    assert lines[lines.index("Make:") + 1].split()[0] == "export"


def loaded_by(program):
    """Return the heavy modules that a fresh interpreter has imported after `program`."""
    program = f"import sys\nfrom click.testing import CliRunner\n{program}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return {name for name in HEAVY if name in done.stdout.split()}


def test_help_imports_nothing_heavy():
    """`edgeformer --help` takes 0.04 s because of this; with rich and numpy it took 0.13 s."""
    invoke = "from edgeformer.cli.main import cli; assert CliRunner().invoke(cli, {}).exit_code == 0"
    assert loaded_by(invoke.format(["--help"])) == set()
    for name in COMMANDS:
        assert loaded_by(invoke.format([name, "--help"])) <= {"rich"}, name
    assert loaded_by("import numpy") == {"numpy"}


def test_a_warning_of_python_is_one_line_without_its_place():
    program = (
        "import click, warnings\n"
        "from edgeformer.cli import main\n"
        "main.cli = click.command()(lambda: warnings.warn('weights are odd', stacklevel=1))\n"
        "main.main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "warning: weights are odd\n")


OF_THE_ALPHA = [
    ["--target", "web"], ["--via", "transformers"], ["--cache", "growing"], ["--activations", "token"],
]  # fmt: skip


@pytest.mark.parametrize("arguments", OF_THE_ALPHA, ids=lambda arguments: arguments[0])
def test_earlier_spellings_are_refused(arguments):
    result = run(cli, "export", "--model", "tiny-llama", *arguments)
    assert result.exit_code == 2
    assert arguments[0] in result.stderr


def test_options_of_export_are_in_sections():
    lines = run(cli, "export", "--help").stdout.splitlines()
    titles = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert titles == [
        "Common:", "Checkpoint:", "Precision and quantization:", "Graph:", "Encoders:", "Verification:", "Output:",
    ]  # fmt: skip
    assert "--model TEXT" in lines[lines.index("Common:") + 1]


LONG_NAME = "a" * 5000
"""A name that no file system takes: `Path.is_dir` raises for it where `os.path.isdir` says no."""


@pytest.mark.parametrize("name", [name for name in COMMANDS if name != "models"])
def test_a_name_that_is_too_long_for_a_file_ends_in_a_sentence(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = cli.get_command(click.Context(cli), name)
    required = [each for each in command.params if isinstance(each, click.Option) and each.required]
    line = [part for each in required for part in (each.opts[0], LONG_NAME)]
    line += [LONG_NAME for each in command.params if isinstance(each, click.Argument)]
    result = run(command, *line)
    assert isinstance(result.exception, EdgeformerError | SystemExit), result.exception
    assert "Traceback" not in result.output
