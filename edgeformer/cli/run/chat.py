"""edgeformer chat"""

from pathlib import Path
from typing import Any

import click

from edgeformer.cli._generation import SPECULATION, explicit_options, length_options, sampling_options, thinking_options
from edgeformer.cli._options import COMMON, Command, cache_option, execution_options, option
from edgeformer.cli._output import note
from edgeformer.cli.run._conversation import Conversation
from edgeformer.errors import RequestError


@click.command("chat", cls=Command)
@click.argument("bundle", type=click.Path(path_type=Path))
@option("--system", topic=COMMON, help="System message.")
@option("--session", type=click.Path(path_type=Path), topic=COMMON, help="Go on with a session that /save wrote.")
@option(
    "--adapter",
    metavar="NAME",
    topic=COMMON,
    help="Run with this LoRA adapter of the bundle, or with a sum: A*0.7+B*0.3.",
)
@length_options
@thinking_options
@sampling_options
@option(
    "--draft", metavar="BUNDLE", topic=SPECULATION,
    help="A smaller model with the same tokenizer, which drafts tokens; mtp for a layer of the bundle itself.",
)  # fmt: skip
@execution_options
@cache_option
def chat_command(
    bundle: Path,
    system: str | None,
    session: Path | None,
    provider: Any,
    threads: int | None,
    draft: str | None,
    cache_precision: Any,
    **options: object,
) -> None:
    """Chat with the model in BUNDLE on the terminal.

    Each turn reads only what is new. Ctrl-C stops an answer, Ctrl-D ends the chat. A line that ends with a backslash
    goes on in the next one, and so does a text between two lines of three quotes. /image PATH puts a picture into the
    next message, where the model sees, and /help lists the commands. What the model thinks before an answer is dim.
    Without a terminal, every line of standard input is a message, and only the answers are printed.
    """
    from edgeformer.runtime import CausalLM, load

    model = load(bundle, provider, threads, draft=draft, cache_precision=cache_precision)
    if not isinstance(model, CausalLM):
        raise RequestError(f"{bundle} holds a model for the task {model.manifest.task}, which does not chat.")
    if model.manifest.provenance.random_weights is not None:
        note("note: this model's weights are random, not trained. Its text is noise.")
    conversation = Conversation(model, system, explicit_options(options))
    if session is not None:
        conversation.load(str(session))
    conversation.hold()
