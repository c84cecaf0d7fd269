"""edgeformer.cli._options and main: help by topic, earlier spellings of options, lazy commands, warnings."""

import json
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from edgeformer.cli._options import AliasedChoice, Command, option
from edgeformer.cli.main import COMMANDS, cli
from edgeformer.errors import EdgeformerError

HEAVY = ("torch", "onnx", "numpy", "onnxruntime", "rich", "jinja2", "tokenizers", "transformers")


def run(command, *arguments):
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


@click.command("make", cls=Command)
@option("--json", is_flag=True, topic="Output", help="Print JSON.")
@option("--deployment", renamed_from=("--target",), help="Where it runs.")
@option("--cache", type=AliasedChoice(["dynamic", "static"], {"growing": "dynamic"}), topic="Graph", help="Of it.")
@option("--keep", multiple=True, topic="Graph")
@click.argument("words", nargs=-1)
def make(**options):
    """Make it."""
    click.echo(json.dumps(options))


def test_help_has_a_section_for_each_topic_and_output_is_the_last():
    lines = run(make, "--help").stdout.splitlines()
    titles = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert titles == ["Common:", "Graph:", "Output:"]
    section = lines[lines.index("Output:") :]
    assert [line.split()[0] for line in section[1:]] == ["--json", "--help"]
    descriptions = {line.index(text) for line in lines for text in ("Where it runs.", "Print JSON.") if text in line}
    assert len(descriptions) == 1, "descriptions of all sections start in one column"
    assert "--target" not in "".join(lines) and "growing" not in "".join(lines)


@pytest.mark.parametrize("arguments", [["--target", "web"], ["--target=web"]])
def test_an_earlier_option_still_works_and_warns(arguments):
    result = run(make, *arguments)
    assert json.loads(result.stdout)["deployment"] == "web"
    assert result.stderr == "warning: --target is now --deployment\n"


def test_an_earlier_value_still_works_and_warns():
    result = run(make, "--cache", "growing")
    assert json.loads(result.stdout)["cache"] == "dynamic"
    assert result.stderr == "warning: --cache growing is now --cache dynamic\n"
    result = run(make, "--cache", "dynamic")
    assert (json.loads(result.stdout)["cache"], result.stderr) == ("dynamic", "")
    result = run(make, "--cache", "shrinking")
    assert result.exit_code == 2
    assert "dynamic" in result.stderr and "growing" not in result.stderr


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


EARLIER = [
    (["--target", "web"], "--target is now --deployment"),
    (["--via", "transformers"], "--via is now --backend"),
    (["--cache", "growing"], "--cache growing is now --cache dynamic"),
    (["--activations", "token"], "--activations token is now --activations per-token"),
]


@pytest.mark.parametrize(("arguments", "warning"), EARLIER)
def test_earlier_spellings_of_export(arguments, warning):
    result = run(cli, "export", "--model", "tiny-llama", *arguments, "--full-verify", "--no-verify")
    assert f"warning: {warning}" in result.stderr.splitlines()
    assert "--full-verify and --no-verify exclude each other" in result.stderr, "all of them were read"
    shown = run(cli, "export", "--help").stdout
    assert arguments[0] in ("--cache", "--activations") or arguments[0] not in shown
    assert "growing" not in shown and "token]" not in shown.replace("per-token]", "")


def test_options_of_export_are_in_sections():
    lines = run(cli, "export", "--help").stdout.splitlines()
    titles = [line for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert titles == ["Common:", "Precision and quantization:", "Graph:", "Encoders:", "Verification:", "Output:"]
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
