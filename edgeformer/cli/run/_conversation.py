"""A conversation on the terminal: lines in, answers out, and commands that begin with a slash."""

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from edgeformer.cli._output import note
from edgeformer.errors import EdgeformerError, RequestError

if TYPE_CHECKING:
    from edgeformer.runtime import CausalLM, Generation, GenerationStream
    from edgeformer.runtime.tasks.model import Model

QUOTES = '"""'
"""A line of its own before and behind a message of several lines."""

HELP = f"""\
/system TEXT   begin anew with this system message; without TEXT, with none
/reset         begin anew with the same system message
/image PATH    put a picture into the next message; without PATH, take it out
/save FILE     write the conversation and what was read of it to a file
/load FILE     go on with a conversation that /save wrote
/quit          end, as Ctrl-D does
//TEXT         say /TEXT to the model
A line that ends with \\ goes on in the next one. {QUOTES} on a line of its own
begins a message of several lines, and ends it. Ctrl-C stops an answer."""


class Conversation:
    """A conversation with a model. options: keywords of `CausalLM.chat`.

    Raises RequestError for a model without a chat template.
    """

    def __init__(self, model: "CausalLM", system: str | None, options: dict[str, Any]):
        if model.tokenizer is None or not model.tokenizer.has_chat_template:
            raise RequestError("this model has no chat template; give it a plain prompt with `edgeformer run`.")
        self._model = model
        self._options = options
        self._messages = opening(system)
        self._pictures: list[str] = []  # of the next message
        self._terminal = sys.stdin.isatty()
        self._interrupted = False
        self._answering = False
        self._commands: dict[str, Callable[[str], None]] = {
            "/help": lambda _: note(HELP),
            "/image": self.attach,
            "/system": self.begin,
            "/reset": lambda _: self.begin(self._system),
            "/save": self.save,
            "/load": self.load,
        }

    def hold(self) -> None:
        """Read messages and answer them until the end of input or /quit."""
        if self._terminal:
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401 -- input() then edits lines and has a history
            note("Ctrl-C stops an answer, Ctrl-D ends the chat, /help lists the commands.")
        with self._interrupts():
            while True:
                try:
                    text = self._read()
                    if text is None or text.strip() == "/quit":
                        break
                    self._take(text)
                except EdgeformerError as error:
                    note(f"error: {error}")
                except KeyboardInterrupt:  # what was typed is dropped, or an answer whose prompt was being run
                    click.echo()
        if text is None and self._terminal:
            click.echo()

    def begin(self, system: str) -> None:
        """Begin anew, with this system message; none for an empty one."""
        self._messages, self._pictures = opening(system or None), []

    def attach(self, file: str) -> None:
        """Put a picture into the next message, or take all out for an empty name; of its file only the header is read.

        Raises RequestError for a file that is no picture, and for a model that reads none.
        """
        if self._model.manifest.placeholder is None:
            raise RequestError("this model reads no pictures.")
        pictures = [*self._pictures, str(Path(file).expanduser().absolute())] if file else []
        _check(pictures)
        self._pictures = pictures
        if self._terminal:
            note(f"The next message has {len(pictures) or 'no'} picture{'' if len(pictures) == 1 else 's'}.")

    def save(self, file: str) -> None:
        """Write the conversation to a file."""
        self._model.save_session(_named(file), self._messages)

    def load(self, file: str) -> None:
        """Go on with the conversation of a file."""
        messages = self._model.load_session(_named(file))
        _check(_pictures(messages))
        self._messages = messages
        note(f"{len(self._messages)} messages were loaded.")

    @property
    def _system(self) -> str:
        first = self._messages[0] if self._messages else {}
        return first["content"] if first.get("role") == "system" else ""

    def _take(self, text: str) -> None:
        """Run a command, or answer a message."""
        if not text.strip():
            return
        name, _, argument = text.partition(" ")
        if text.startswith("//"):
            self._answer(text[1:])
        elif text.startswith("/"):
            command = self._commands.get(name)
            if command is None:
                raise RequestError(f"there is no command {name}; /help lists them.")
            command(argument.strip())
        else:
            self._answer(text)

    def _answer(self, text: str) -> None:
        """Answer a message; both join the conversation, unless nothing came of it."""
        pictures = [{"type": "image", "path": path} for path in self._pictures]
        content = [*pictures, {"type": "text", "text": text}] if pictures else text
        asked = [*self._messages, {"role": "user", "content": content}]
        self._interrupted, self._answering = False, True
        try:
            stream = self._model.chat(asked, images=_pictures(asked), **self._options)
            answer = show(stream, self._model, stopped=lambda: self._interrupted, quiet=not self._terminal)
        finally:
            self._answering = False
        if answer.text:
            thought = {"reasoning_content": answer.reasoning} if answer.reasoning else {}
            self._messages, self._pictures = [*asked, {"role": "assistant", "content": answer.text, **thought}], []

    def _read(self) -> str | None:
        """Return the next message, of one or more lines; None at the end of input."""
        lines: list[str] = []
        quoted = False
        while True:
            try:
                line = input(("... " if lines or quoted else "you> ") if self._terminal else "")
            except EOFError:
                return "\n".join(lines) if lines else None
            if line.strip() == QUOTES:
                if quoted:
                    return "\n".join(lines)
                quoted = True
            elif quoted:
                lines.append(line)
            elif line.endswith("\\"):
                lines.append(line[:-1])
            else:
                return "\n".join([*lines, line])

    @contextlib.contextmanager
    def _interrupts(self) -> Iterator[None]:
        """Let SIGINT stop the answer that is being written, at the next token, or drop the line that is being typed.

        A second one stops the answer before its next token.
        """

        def interrupt(number: int, frame: FrameType | None) -> None:
            again, self._interrupted = self._interrupted, True
            if again or not self._answering:
                raise KeyboardInterrupt

        before = signal.signal(signal.SIGINT, interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)


def _pictures(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the paths of the pictures in messages, in their order."""
    contents = (message["content"] for message in messages)
    parts = (part for content in contents if not isinstance(content, str) for part in content)
    return [part["path"] for part in parts if part["type"] == "image"]


def _check(pictures: Sequence[str]) -> None:
    """Raise RequestError for a file that is no picture; only headers are read."""
    from edgeformer.runtime.media.pictures.picture_files import picture_size

    for path in pictures:
        picture_size(path)


def _named(file: str) -> str:
    if not file:
        raise RequestError("there is no file; name one behind the command.")
    return file


def opening(system: str | None, prompt: str | None = None, media: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the messages that a conversation begins with. media: types of the parts in front of the prompt."""
    messages: list[dict[str, Any]] = [] if system is None else [{"role": "system", "content": system}]
    if prompt is None:
        return messages
    parts = [*({"type": each} for each in media), {"type": "text", "text": prompt}]
    return [*messages, {"role": "user", "content": parts if media else prompt}]


def show(
    stream: "GenerationStream", model: "Model", stopped: Callable[[], bool] = lambda: False, quiet: bool = False
) -> "Generation":
    """Print the text of a stream as it comes, its counts, and what ran; return the result.

    What the model thinks goes dim to stderr. stopped: whether to stop, asked at every token. quiet: print no counts and
    no thoughts.
    """
    printed, thinks = 0, False
    for event in stream.events():
        if event.reasoning and not quiet:
            click.secho(event.reasoning, dim=True, nl=False, err=True)
            thinks = True
        if event.text and thinks:
            click.echo("\n", err=True)
            thinks = False
        click.echo(event.text, nl=False)
        printed += len(event.text)
        if stopped():
            stream.cancel()
            break
    result = stream.finish()
    if thinks:
        click.echo(err=True)
    click.echo((result.text or "")[printed:])  # what a stop string might have begun with
    if not quiet:
        ran = model.kernels.describe_briefly()
        note("; ".join([*_counts(result), *([ran] if ran else [])]))
    return result


def _counts(result: "Generation") -> list[str]:
    """Return the numbers and speeds of a result."""
    new = len(result.token_ids)
    counts = [f"{result.prompt_tokens} + {new} tokens", f"ended by {result.finish_reason}"]
    if result.cached_tokens:
        counts.append(f"{result.cached_tokens} not read again")
    if result.prefill_seconds:
        read = result.prompt_tokens - result.cached_tokens
        counts.append(f"prefill {read / result.prefill_seconds:.0f} tokens/s")
    if result.decode_seconds:
        counts.append(f"decode {(new - 1) / result.decode_seconds:.0f} tokens/s")
    if result.speculation:
        counts.append(f"{result.speculation.accepted} of {result.speculation.drafted} drafted tokens came true")
    return counts
