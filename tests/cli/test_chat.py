"""`edgeformer chat`: through a pipe, and on a terminal with Ctrl-C and Ctrl-D."""

import os
import pty
import select
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from edgeformer.cli.main import cli

SUM = "What is 345 + 278?"
WAIT = 60  # seconds, for what takes milliseconds


def chat(bundle, lines, *options):
    return CliRunner().invoke(cli, ["chat", str(bundle), "--threads", "1", *options], input="\n".join(lines) + "\n")


def test_every_line_of_a_pipe_is_a_message(tiny_llama_bundle):
    done = chat(tiny_llama_bundle, [SUM, "", "What is 2 + 3?", "/quit", SUM])
    assert done.exit_code == 0, done.output
    assert done.stdout == "345 + 278 = 623\n2 + 3 = 5\n"
    assert done.stderr == ""


def test_a_message_may_have_several_lines(tiny_llama_bundle):
    done = chat(tiny_llama_bundle, ["What is \\", "345 + 278?", '"""', SUM, '"""'])
    assert done.stdout.splitlines()[1] == "345 + 278 = 623"
    assert len(done.stdout.splitlines()) == 2


def test_a_session_is_saved_and_taken_up_again(tiny_llama_bundle, tmp_path):
    file = tmp_path / "sum.session"
    first = chat(tiny_llama_bundle, [SUM, f"/save {file}"], "--system", "You add numbers.")
    assert first.stderr == "" and file.is_file()
    again = chat(tiny_llama_bundle, [f"/save {tmp_path / 'copy'}", "/reset", f"/load {file}"], "--session", str(file))
    assert again.stderr == "3 messages were loaded.\n" * 2
    assert (tmp_path / "copy").read_bytes() == file.read_bytes()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/nothing", "error: there is no command /nothing; /help lists them."),
        ("/save", "error: there is no file; name one behind the command."),
        ("/load /none", "error: the session /none cannot be read: No such file or directory."),
        ("dog " * 1100, "error: the prompt has"),
        ("/help", "/system TEXT   begin anew"),
    ],
)
def test_commands_and_errors_leave_the_chat_going(tiny_llama_bundle, line, message):
    done = chat(tiny_llama_bundle, [line, SUM])
    assert done.exit_code == 0 and done.stdout == "345 + 278 = 623\n"
    assert done.stderr.startswith(message)
    assert max(map(len, done.stderr.splitlines())) <= 80 or line.startswith("dog")


def test_a_model_without_a_chat_template_is_refused(llama_bundle):
    done = chat(llama_bundle, [SUM])
    assert done.exit_code == 1 and "this model has no chat template" in done.stderr


class Terminal:
    """A process on a terminal of 80 columns. text: all that it has written."""

    def __init__(self, *arguments):
        self._own, other = pty.openpty()
        command = [sys.executable, "-m", "edgeformer", *map(str, arguments)]
        environment = os.environ | {"TERM": "dumb", "COLUMNS": "80"}
        # A session of its own, whose terminal this is: then Ctrl-C becomes SIGINT, as for a user.
        self.process = subprocess.Popen(
            [sys.executable, "-c", CONTROLLING, *command], stdin=other, stdout=other, stderr=other, env=environment,
            start_new_session=True,
        )  # fmt: skip
        os.close(other)
        self.text = ""

    def type(self, text):
        os.write(self._own, text.encode())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait(WAIT)
        os.close(self._own)

    def wait_for(self, text, since=0, key=""):
        """Read until a text comes behind a place; return the place behind it. key: typed again while nothing comes."""
        end = time.monotonic() + WAIT
        while text not in self.text[since:]:
            assert time.monotonic() < end, self.text
            if select.select([self._own], [], [], 1)[0]:
                self.text += os.read(self._own, 4096).decode()
            elif key:
                self.type(key)
        return self.text.index(text, since) + len(text)


CONTROLLING = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""
"""A program that makes its standard input its controlling terminal, and becomes its arguments."""


def test_ctrl_c_stops_the_answer_and_ctrl_d_the_program(tiny_llama_bundle):
    options = ["--threads", "1", "-n", "900", "--ignore-eos", "--temperature", "0"]
    with Terminal("chat", tiny_llama_bundle, *options) as terminal:
        place = terminal.wait_for("you> ")
        assert "Ctrl-C stops an answer, Ctrl-D ends the chat, /help lists the commands." in terminal.text
        terminal.type("Tell me a story.\n")
        place = terminal.wait_for("story.\r\n", place)
        terminal.wait_for(" ", place)  # the answer has begun
        terminal.type("\x03")
        place = terminal.wait_for("ended by cancelled", place)
        place = terminal.wait_for("you> ", place)
        terminal.type("half a line")
        place = terminal.wait_for("half a line", place)
        # readline sees a signal only while it waits for a key, which it may not do yet.
        terminal.type("\x03")
        place = terminal.wait_for("you> ", place, key="\x03")
        terminal.type("/reset\n/save\n")
        place = terminal.wait_for("name one behind the command.", place)
        terminal.wait_for("you> ", place)
        terminal.type("\x04")
        assert terminal.process.wait(WAIT) == 0
