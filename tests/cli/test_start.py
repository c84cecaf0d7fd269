"""SIGINT and SIGTERM end the command line quietly, whatever Python makes of the exceptions that they raise."""

import os
import signal
import subprocess
import sys

import pytest
from slow_rows import slow_after

START = """
import os, signal, sys
import edgeformer.cli.main
from edgeformer.cli.start import main
def come(number=signal.{name}):
    os.kill(os.getpid(), number)
def command():
{command}
edgeformer.cli.main.main = command
main()
"""


def run(command, name="SIGINT", **options):
    """Run a program as the command line, and return its exit code, stdout and stderr."""
    lines = "\n".join(f"    {line}" for line in command.strip().splitlines())
    program = START.format(name=name, command=lines)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, **options)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_command_cleans_up_and_says_nothing(name, code):
    command = """
try:
    come()
finally:
    print("clean")"""
    assert run(command, name) == (code, "clean\n", "")


OTHERWISE = {
    "an import that fails otherwise": """
try:
    come()
except BaseException as error:
    raise ImportError("numpy cannot be imported") from error""",
    "an exception in a finalizer": """
class Value:
    def __del__(self):
        come()
Value()
while True:
    pass""",
    "an exit code of its own": """
try:
    come()
except BaseException:
    sys.exit(1)""",
    "an exception that is printed at exit": """
import atexit
atexit.register(come)
come()""",
}


@pytest.mark.parametrize("command", OTHERWISE.values(), ids=OTHERWISE)
@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_what_python_makes_of_the_exception_is_not_shown(command, name, code):
    ended, stdout, stderr = run(command, name)
    # A signal that comes at exit ends the process by itself.
    assert ended in (code, 128 - code) and (stdout, stderr) == ("", "")


def test_a_command_that_is_done_in_spite_of_a_signal_is_done():
    command = """
try:
    come()
except KeyboardInterrupt:
    print("drained")"""
    assert run(command) == (0, "drained\n", "")


IMPORTED = """
import pathlib, tempfile
with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, "imported.py")
    path.write_text({text!r})
    sys.path.insert(0, folder)
    try:
        import imported
        sys.stdout.write("imported\\n")  # in one write, behind which a signal may come
        for _ in range(3000):
            __import__("time").sleep(0.01)
    finally:
        print("clean")"""
COMES = "import os, signal, time\nos.kill(os.getpid(), signal.{name})\ntime.sleep(0.1)\n"


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_an_import_ends_before_the_command_does(name, code):
    assert run(IMPORTED.format(text=COMES.format(name=name)), name) == (code, "imported\nclean\n", "")


def test_a_signal_behind_one_that_was_caught_ends_an_import_too():
    caught = "try:\n    come()\nexcept KeyboardInterrupt:\n    pass\n"
    assert run(caught + IMPORTED.format(text=COMES.format(name="SIGINT"))) == (130, "imported\nclean\n", "")


def test_the_third_signal_ends_an_import():
    assert run(IMPORTED.format(text=COMES.format(name="SIGINT") * 3)) == (130, "", "")


PYTORCH = """
from edgeformer.cli import start
signal.signal(signal.SIGALRM, start._interrupt)
def called(frame, event, value):
    if event == "c_call" and value.__name__ == "_autograd_init":
        sys.setprofile(None)
        signal.setitimer(signal.ITIMER_REAL, {delay})
sys.setprofile(called)
import torch
sys.stdout.write("imported\\n")  # in one write, behind which a signal may come
for _ in range(3000):
    __import__("time").sleep(0.01)"""


@pytest.mark.parametrize("delay", slow_after(1, [1e-4, 1e-5, 3e-4]))
def test_a_signal_does_not_abort_the_import_of_pytorch(delay):
    """Its C++ ends the process with SIGABRT where Python raises within it."""
    assert run(PYTORCH.format(delay=delay)) == (128 + signal.SIGALRM, "imported\n", "")


def test_the_third_signal_ends_a_command_that_does_not():
    command = """
while True:
    try:
        come()
    except KeyboardInterrupt:
        pass"""
    assert run(command) == (130, "", "")


def test_faults_and_exit_codes_of_commands_stay():
    code, _, stderr = run("raise KeyError('a fault of ours')")
    assert code == 1 and "KeyError" in stderr
    assert run("sys.exit(2)") == (2, "", "")
    assert "Exception ignored in" in run("class Value:\n    def __del__(self):\n        {}[1]\nValue()")[2]


def test_modules_are_not_taken_apart_behind_the_last_exit():
    command = """
import atexit, types
class Value:
    def __del__(self):
        print("taken apart")
sys.modules["kept"] = types.ModuleType("kept")
sys.modules["kept"].value = Value()
atexit.register(print, "registered")
print("done")
sys.exit({code})"""
    said = "done\nregistered\n"
    for code, status in (("3", 3), ("None", 0), ("'why'", 1)):
        assert run(command.format(code=code)) == (status, said, "why\n" if status == 1 else "")


def test_output_that_nobody_reads_is_an_error_as_before():
    buffered = {**os.environ, "PYTHONUNBUFFERED": ""}
    code, _, stderr = run("print('lost')\nos.close(1)", env=buffered)
    assert code == 120 and "Bad file descriptor" in stderr


def test_a_signal_that_the_parent_ignores_stays_ignored():
    """As in `nohup`, and in background jobs of scripts."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert run("come()\nprint('done')") == (0, "done\n", "")
    finally:
        signal.signal(signal.SIGINT, before)
