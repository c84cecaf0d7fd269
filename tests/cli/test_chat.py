"""`edgeformer chat`: through a pipe, and on a terminal with Ctrl-C and Ctrl-D."""

import os
import pty
import select
import shutil
import subprocess
import sys
import time

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from edgeformer.cli.main import cli
from edgeformer.runtime import load

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
    assert lines_of(done.stdout)[1] == "345 + 278 = 623"
    assert len(lines_of(done.stdout)) == 2


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


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Return the paths of two pictures."""
    folder = tmp_path_factory.mktemp("pictures")
    for seed in range(2):
        pixels = np.random.default_rng(seed).integers(0, 256, (40, 60, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{seed}.png")
    return [folder / "0.png", folder / "1.png"]


LENGTH = ["-n", "6", "--ignore-eos"]
IMAGE = {"type": "image"}


def lines_of(text):
    """Return the lines of a text, in which a model may have written other characters that end lines."""
    return text.split("\n")[:-1]


def answers(bundle, *turns):
    """Return what a model says in a conversation; turns: (content, pictures)."""
    model, messages, seen, said = load(bundle, "cpu", 1), [], [], []
    for content, images in turns:
        messages.append({"role": "user", "content": content})
        seen += images
        answer = model.chat(messages, images=seen, max_new_tokens=6, ignore_eos=True).finish()
        messages.append({"role": "assistant", "content": answer.text})
        said.append(answer.text)
    return said


def text(words):
    return {"type": "text", "text": words}


def test_pictures_are_put_into_the_next_message(smolvlm_bundle, pictures, tmp_path):
    first, second = pictures
    lines = [
        f"/image {first}", "What is it?", "And now?", f"/image {first}", f"/image {second}", "/image /no/such.png",
        "Which is red?", f"/image {first}", "/image", "No picture.", f"/save {tmp_path / 'session'}",
    ]  # fmt: skip
    done = chat(smolvlm_bundle, lines, *LENGTH)
    wanted = answers(
        smolvlm_bundle,
        ([IMAGE, text("What is it?")], [first]),
        ("And now?", []),
        ([IMAGE, IMAGE, text("Which is red?")], [first, second]),
        ("No picture.", []),
    )
    assert done.exit_code == 0 and done.stdout == "\n".join(wanted) + "\n"
    assert done.stderr.splitlines() == ["error: '/no/such.png' cannot be read: No such file or directory."], (
        "and the two pictures before it are still there"
    )
    again = chat(smolvlm_bundle, [f"/load {tmp_path / 'session'}", "Again?"], *LENGTH)
    assert again.stderr == "8 messages were loaded.\n" and len(again.stdout) > 1


def test_a_message_that_is_refused_keeps_its_pictures(smolvlm_bundle, pictures):
    done = chat(smolvlm_bundle, [f"/image {pictures[0]}", "dog " * 600, "What is it?"], *LENGTH)
    assert done.stderr.startswith("error: the prompt has") and len(done.stderr.splitlines()) == 1
    assert lines_of(done.stdout) == answers(smolvlm_bundle, ([IMAGE, text("What is it?")], pictures[:1]))


def test_a_model_of_text_takes_no_pictures(tiny_llama_bundle, pictures):
    done = chat(tiny_llama_bundle, [f"/image {pictures[0]}", SUM])
    assert done.stderr == "error: this model reads no pictures.\n" and done.stdout == "345 + 278 = 623\n"
    assert "/image PATH" in chat(tiny_llama_bundle, ["/help"]).stderr


def test_a_session_names_a_picture_that_is_gone(smolvlm_bundle, pictures, tmp_path):
    path = shutil.copy(pictures[0], tmp_path / "gone.png")
    chat(smolvlm_bundle, [f"/image {path}", "What is it?", f"/save {tmp_path / 'session'}"], *LENGTH)
    path.unlink()
    done = chat(smolvlm_bundle, [f"/load {tmp_path / 'session'}", "What is it?"], *LENGTH)
    assert "cannot be read: No such file or directory." in done.stderr and done.exit_code == 0
    assert lines_of(done.stdout) == answers(smolvlm_bundle, ("What is it?", []))


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
