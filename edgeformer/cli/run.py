"""edgeformer run"""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgeformer.cli._output import json_option, note, print_json
from edgeformer.errors import RequestError

if TYPE_CHECKING:
    from edgeformer.runtime import CausalLM, Generation
    from edgeformer.runtime.generate import GenerationStream


@click.command("run")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("prompt", required=False)
@click.option("--chat", is_flag=True, help="Use the model's chat template; without a prompt, talk in turns.")
@click.option("--system", help="System message of a chat.")
@click.option("--max-new-tokens", "-n", type=int, help="[default: 256, or what the context leaves]")
@click.option("--temperature", type=float, help="0 is greedy, and the default.")
@click.option("--top-k", type=int, help="Keep the k most likely tokens; 0 keeps all.")
@click.option("--top-p", type=float, help="Keep the fewest tokens that reach this probability.")
@click.option("--min-p", type=float, help="Keep tokens of at least this part of the largest probability.")
@click.option("--repetition-penalty", type=float, help="Above 1, repeat less.")
@click.option("--seed", type=int, help="Make sampling repeatable.")
@click.option("--stop", multiple=True, help="End before this text; may be given several times.")
@click.option("--provider", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--threads", type=click.IntRange(min=1), help="[default: all usable cores]")
@json_option
def run_command(
    bundle: Path,
    prompt: str | None,
    chat: bool,
    system: str | None,
    provider: Any,
    threads: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Continue PROMPT (or standard input) with the model in BUNDLE."""
    from edgeformer.runtime import load

    # What was not given is left to the runtime, the one home of defaults.
    options = {name: value for name, value in options.items() if value is not None}
    model = load(bundle, provider, threads)
    if model.manifest.random_weights is not None:
        note("note: this model's weights are random, not trained. Its text is noise.")
    if prompt is None and not (chat and sys.stdin.isatty()):
        prompt = sys.stdin.read().removesuffix("\n")  # which echo and editors add
    if prompt is None:
        _converse(model, system, options)
        return
    stream = model.chat(_messages(system, prompt), **options) if chat else model.stream(prompt, **options)
    if as_json:
        print_json(asdict(stream.finish()))
        return
    _show(stream)


def _converse(model: "CausalLM", system: str | None, options: dict[str, Any]) -> None:
    """Talk in turns until end of input."""
    if model.tokenizer is None or not model.tokenizer.has_chat_template:
        raise RequestError("this model has no chat template; give it a plain prompt.")
    note("Ctrl-D ends the conversation.")
    messages = _messages(system)
    while True:
        try:
            text = click.prompt("you", prompt_suffix="> ")
        except click.Abort:
            click.echo()
            return
        messages.append({"role": "user", "content": text})
        answer = _show(model.chat(messages, **options))
        messages.append({"role": "assistant", "content": answer.text or ""})


def _messages(system: str | None, prompt: str | None = None) -> list[dict[str, str]]:
    messages = [] if system is None else [{"role": "system", "content": system}]
    return messages if prompt is None else [*messages, {"role": "user", "content": prompt}]


def _show(stream: "GenerationStream") -> "Generation":
    for piece in stream:
        click.echo(piece, nl=False)
    click.echo()
    result = stream.finish()
    new = len(result.token_ids)
    speeds = [f"{result.prompt_tokens} + {new} tokens", f"ended by {result.finish_reason}"]
    if result.prefill_seconds:
        speeds.append(f"prefill {result.prompt_tokens / result.prefill_seconds:.0f} tokens/s")
    if result.decode_seconds:
        speeds.append(f"decode {(new - 1) / result.decode_seconds:.0f} tokens/s")
    note("; ".join(speeds))
    return result
