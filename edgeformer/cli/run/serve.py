"""edgeformer serve"""

import os
from pathlib import Path
from typing import Any

import click

from edgeformer.cli._generation import SPECULATION
from edgeformer.cli._options import COMMON, COUNT, Command, cache_option, execution_options, option

ACCESS = "Access"
LIMITS = "Limits"

ENGINE_OPTIONS = ("max_rows", "max_queue", "memory", "prefix_cache")
"""Options of the engine; the others are of the server."""


@click.command("serve", cls=Command)
@click.argument("bundles", nargs=-1, metavar="BUNDLE…", type=click.Path(path_type=Path))
@option("--host", default="127.0.0.1", show_default=True, topic=COMMON, help="Address to listen on.")
@option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, envvar="EDGEFORMER_PORT", topic=COMMON,
    help="TCP port, 0 for a free one; or the variable EDGEFORMER_PORT.",
)  # fmt: skip
@option(
    "--models-dir", type=click.Path(path_type=Path), metavar="DIR", topic=COMMON,
    help="Folder of bundles that are loaded when a request names them, and put to sleep when nobody uses them.",
)  # fmt: skip
@option("--log-prompts", is_flag=True, topic=COMMON, help="Write prompts and answers into the log.")
@option(
    "--draft", metavar="BUNDLE", topic=SPECULATION,
    help="A smaller model with the same tokenizer, which drafts tokens; mtp for a layer of the bundle itself.",
)  # fmt: skip
@option(
    "--tool-format", metavar="NAME", topic=COMMON,
    help="Format of tool calls, such as hermes or llama3. [default: what the chat template asks for]",
)  # fmt: skip
@option(
    "--api-key-file", type=click.Path(path_type=Path), topic=ACCESS,
    help="File whose first line is the API key. [default: the variable EDGEFORMER_API_KEY, or no key]",
)  # fmt: skip
@option("--cors-origin", "cors_origins", multiple=True, topic=ACCESS, help="Origin of web pages that may use it; or *.")
@option(
    "--allowed-host", "allowed_hosts", multiple=True, topic=ACCESS,
    help="Name that clients may call it by; or *. [default: those of the loopback, or any with --host]",
)  # fmt: skip
@option("--max-rows", **COUNT, topic=LIMITS, help="Requests that run together. [default: 8]")
@option("--max-queue", **COUNT, topic=LIMITS, help="Requests that wait; more get status 429. [default: 256]")
@option("--memory", type=click.FloatRange(min=0), metavar="MB", topic=LIMITS, help="Memory for the caches, in MB.")
@option(
    "--prefix-cache", type=click.FloatRange(min=0), metavar="MB", topic=LIMITS,
    help="Memory for prompts and answers that are kept, in MB; 0 keeps none. [default: a quarter of --memory]",
)  # fmt: skip
@option(
    "--models-memory", type=click.FloatRange(min=0, min_open=True), metavar="MB", topic=LIMITS,
    help="Files of models of --models-dir that are loaded, in MB; beyond it the least recently used sleep.",
)  # fmt: skip
@option(
    "--idle-seconds", type=click.FloatRange(min=0), metavar="S", topic=LIMITS,
    help="Time after which a model of --models-dir that nobody uses is put to sleep. [default: 300]",
)  # fmt: skip
@option("--max-prompt-tokens", **COUNT, topic=LIMITS, help="Tokens of a prompt. [default: the model's context]")
@option("--default-max-tokens", **COUNT, topic=LIMITS, help="New tokens, where a request does not say. [default: 256]")
@option(
    "--max-body-bytes", **COUNT, topic=LIMITS,
    help="Bytes of a request. [default: 4 MiB, or 32 MiB where a model reads pictures or hears]",
)  # fmt: skip
@option("--max-pictures", **COUNT, topic=LIMITS, help="Pictures of a conversation. [default: 16]")
@option("--max-picture-bytes", **COUNT, topic=LIMITS, help="Bytes of a picture's file. [default: 20 MiB]")
@option("--max-picture-pixels", **COUNT, topic=LIMITS, help="Pixels of a picture. [default: 67 million]")
@option(
    "--picture-host", "picture_hosts", multiple=True, metavar="HOST", topic=LIMITS,
    help="Host that pictures of requests are fetched from, by https. [default: none]",
)  # fmt: skip
@option(
    "--picture-seconds", type=click.FloatRange(min=0, min_open=True), metavar="S", topic=LIMITS,
    help="Time in which they have to arrive. [default: 10]",
)  # fmt: skip
@option("--max-recordings", **COUNT, topic=LIMITS, help="Recordings of a conversation. [default: 16]")
@option("--max-recording-bytes", **COUNT, topic=LIMITS, help="Bytes of a recording's file. [default: 20 MiB]")
@option("--max-recording-seconds", **COUNT, topic=LIMITS, help="Seconds of a recording. [default: 600]")
@option(
    "--drain-seconds", type=click.FloatRange(min=0), metavar="S", topic=LIMITS,
    help="Time that running requests get after SIGTERM. [default: 30]",
)  # fmt: skip
@execution_options
@cache_option
def serve_command(
    bundles: tuple[Path, ...],
    provider: Any,
    threads: int | None,
    draft: str | None,
    models_dir: Path | None,
    api_key_file: Path | None,
    **given: Any,
) -> None:
    """Serve BUNDLEs over the APIs of OpenAI and Anthropic.

    Requests choose a bundle by the name of its folder. http://HOST:PORT/ is a page to chat in a browser. SIGTERM or
    Ctrl-C stops the server after running requests.
    """
    from edgeformer.server import ServerOptions, serve
    from edgeformer.server.service.options import read_api_key

    # Defaults are those of the server and of the engine: pass only the options that were given.
    chosen = {name: value for name, value in given.items() if value not in (None, ())}
    engine: dict[str, Any] = {name: chosen.pop(name) for name in ENGINE_OPTIONS if name in chosen}
    if "memory" in engine:
        engine["memory"] = int(engine["memory"] * 1e6)
    if "prefix_cache" in engine:
        engine["prefix_cache_bytes"] = int(engine.pop("prefix_cache") * 1e6)
    if "models_memory" in chosen:
        chosen["models_memory"] = int(chosen["models_memory"] * 1e6)
    options = ServerOptions(api_key=read_api_key(api_key_file, os.environ), **chosen)
    serve(bundles, options, provider, threads, engine, draft, models_dir)
