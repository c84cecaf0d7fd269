"""edgeformer run"""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgeformer.cli._options import COMMON, COUNT, ENCODER_DECODERS, Command, execution_options, json_option, option
from edgeformer.cli._output import note, print_json, print_table
from edgeformer.errors import RequestError

if TYPE_CHECKING:
    from edgeformer.runtime import CausalLM, Encoder, Generation, Seq2SeqLM
    from edgeformer.runtime.generate import GenerationStream
    from edgeformer.runtime.model import Model


SEQ2SEQ_OPTIONS = ("num_beams", "source_language", "target_language", "language")
"""Options, by their parameters, that only bundles of encoder-decoders take."""


class Bias(click.ParamType[tuple[int, float]]):
    """The value of --logit-bias: a token id and a number, joined by an equals sign."""

    name = "ID=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, float]:
        """Return the token id and the number."""
        token, _, bias = str(value).partition("=")
        try:
            return int(token), float(bias)
        except ValueError:
            self.fail(f"{value!r} is no ID=VALUE, such as 42=-3.5.", param, ctx)


BIAS = Bias()
CHAT = "Chat"
SAMPLING = "Sampling"
SPECULATION = "Speculation"
STRUCTURED = "Structured output"


@click.command("run", cls=Command)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("prompt", required=False)
@option(
    "--max-new-tokens", "-n", type=int, metavar="N", topic=COMMON,
    help="Tokens to generate at most. [default: 256, or what the context leaves]",
)  # fmt: skip
@option("--stop", multiple=True, topic=COMMON, help="End before this text; may be given several times.")
@option("--adapter", metavar="NAME", topic=COMMON, help="Run with this LoRA adapter of the bundle.")
@option("--chat", is_flag=True, topic=CHAT, help="Use the model's chat template; without PROMPT, hold a conversation.")
@option("--system", topic=CHAT, help="System message of the chat.")
@option("--temperature", type=float, topic=SAMPLING, help="0 is greedy, and the default.")
@option("--top-k", type=int, metavar="N", topic=SAMPLING, help="Keep the k most likely tokens; 0 keeps all.")
@option("--top-p", type=float, topic=SAMPLING, help="Keep the fewest tokens that reach this probability.")
@option("--min-p", type=float, topic=SAMPLING, help="Keep tokens of at least this fraction of the largest probability.")
@option(
    "--typical-p", type=float, topic=SAMPLING, help="Keep the tokens nearest to the entropy, up to this probability."
)
@option("--xtc-probability", type=float, topic=SAMPLING, help="Drop the most likely tokens in this fraction of steps.")
@option("--xtc-threshold", type=float, topic=SAMPLING, help="Probability from which XTC drops tokens. [default: 0.1]")
@option("--repetition-penalty", type=float, topic=SAMPLING, help="Above 1, repeat less.")
@option("--presence-penalty", type=float, topic=SAMPLING, help="Above 0, new tokens that came before come less.")
@option("--frequency-penalty", type=float, topic=SAMPLING, help="The same for every time that the token came.")
@option("--dry-multiplier", type=float, topic=SAMPLING, help="Above 0, texts that came before are not repeated (DRY).")
@option(
    "--logit-bias", multiple=True, type=BIAS, topic=SAMPLING,
    help="Add VALUE to the logit of token ID; may be given several times.",
)  # fmt: skip
@option("--ignore-eos", is_flag=True, topic=SAMPLING, help="Go on after an end token.")
@option("--top-logprobs", **COUNT, topic=SAMPLING, help="With --json, log-probabilities of the N most likely tokens.")
@option("--seed", type=int, metavar="N", topic=SAMPLING, help="Make sampling repeatable.")
@option(
    "--json-schema", metavar="FILE|JSON", topic=STRUCTURED, help="Write JSON that this schema allows.",
)  # fmt: skip
@option("--regex", topic=STRUCTURED, help="Write a text that this regular expression matches.")
@option("--grammar", metavar="FILE|LARK", topic=STRUCTURED, help="Write a text of this grammar.")
@option(
    "--draft", type=click.Path(path_type=Path), metavar="BUNDLE", topic=SPECULATION,
    help="A smaller model with the same tokenizer, which drafts tokens.",
)  # fmt: skip
@option(
    "--num-assistant-tokens", **COUNT, topic=SPECULATION, help="With --draft, tokens at a time at most. [default: 8]"
)
@option(
    "--prompt-lookup-num-tokens", **COUNT, topic=SPECULATION,
    help="Draft up to N tokens at a time of what came before.",
)  # fmt: skip
@option(
    "--max-matching-ngram-size", **COUNT, topic=SPECULATION, help="Last tokens to look up for a draft. [default: 3]"
)
@option("--num-beams", **COUNT, topic=ENCODER_DECODERS, help="Beam search instead of greedy choice.")
@option(
    "--source-language", topic=ENCODER_DECODERS,
    help="Language of PROMPT, as the model names it (multilingual translators).",
)  # fmt: skip
@option("--target-language", topic=ENCODER_DECODERS, help="Language to translate into.")
@option(
    "--language", topic=ENCODER_DECODERS,
    help="Language spoken in the recording. [default: the one that the model detects]",
)  # fmt: skip
@execution_options
@json_option
def run_command(
    bundle: Path,
    prompt: str | None,
    chat: bool,
    system: str | None,
    provider: Any,
    threads: int | None,
    as_json: bool,
    draft: Path | None,
    **options: Any,
) -> None:
    """Run the model in BUNDLE on PROMPT (or standard input).

    The task of the bundle decides what that does: continue a text, translate it, classify it, fill its mask, or
    transcribe a recording (PROMPT is the path of a WAV file then).
    """
    from edgeformer.runtime import CausalLM, Encoder, Seq2SeqLM, load

    # Defaults are those of the runtime: pass only the options that were given.
    options = {name: value for name, value in options.items() if value not in (None, ())}
    if not options["ignore_eos"]:
        del options["ignore_eos"]
    for name in options.keys() & {"json_schema", "grammar"}:
        options[name] = _text_or_file(options[name])
    if "top_logprobs" in options:
        options["logprobs"] = True
    model = load(bundle, provider, threads, draft=draft)
    if model.manifest.random_weights is not None:
        note("note: this model's weights are random, not trained. Its text is noise.")
    _check_options(model, chat, system, options)
    if prompt is None and not (chat and sys.stdin.isatty()):
        prompt = sys.stdin.read().removesuffix("\n")  # which echo and editors add
    match model:
        case Encoder():
            _label(model, prompt or "", as_json)
        case Seq2SeqLM():
            _write(model, prompt or "", options, as_json)
        case CausalLM() if prompt is None:
            _converse(model, system, options)
        case _:
            stream = model.chat(_messages(system, prompt), **options) if chat else model.stream(prompt, **options)
            if as_json:
                print_json(asdict(stream.finish()))
            else:
                _show(stream)


def _text_or_file(value: str) -> str:
    """Return the content of a file of this name, or the value itself where there is none."""
    try:
        return Path(value).read_text(encoding="utf-8") if Path(value).is_file() else value
    except OSError:  # a text that is longer than a name of a file may be
        return value


def _check_options(model: "Model", chat: bool, system: str | None, options: dict[str, Any]) -> None:
    """Raise RequestError for options that do not apply to this task, instead of ignoring them."""
    from edgeformer.runtime import Encoder, Seq2SeqLM

    given = [*options, *(["chat"] if chat else []), *(["system"] if system is not None else [])]
    match model:
        case Encoder():
            foreign = given
        case Seq2SeqLM():
            languages = ["source_language", "target_language"] if model.is_speech else ["language"]
            foreign = [name for name in given if name in ("chat", "system", "adapter", *languages)]
        case _:
            foreign = [name for name in given if name in SEQ2SEQ_OPTIONS]
    if foreign:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in foreign)
        raise RequestError(f"{names}: not for a bundle of this kind ({model.manifest.task}).")
    if system is not None and not chat:
        raise click.UsageError("--system is for --chat.")


def _label(model: "Encoder", text: str, as_json: bool) -> None:
    """Print the tokens that fill the mask of `text`, or its labels, the most likely first."""
    head = model.config.head
    if head is None or head.kind == "pooling":
        raise RequestError(f"this model makes vectors: edgeformer embed {model.folder} TEXT…")
    if head.kind == "masked_lm":
        found: Any = model.fill_mask(text)
        rows: list[tuple[str, ...]] = [(f"{each.probability:.3f}", each.token, each.text) for each in found]
    else:
        found = model.classify(text)
        rows = [(f"{each.probability:.3f}", each.label) for each in found]
    if as_json:
        print_json([asdict(each) for each in found])
    else:
        print_table(rows)


def _write(model: "Seq2SeqLM", source: str, options: dict[str, Any], as_json: bool) -> None:
    """Transcribe a recording, translate if languages are given, or else generate; print text as it is generated."""
    languages = {name: options.pop(name) for name in ("source_language", "target_language") if name in options}
    language = options.pop("language", None)
    if model.is_speech:
        if not source:
            raise RequestError("there is no recording; give the path of a WAV file.")
        text = model.transcribe(source, language, **options)
        print_json({"text": text}) if as_json else click.echo(text)
    elif languages:
        text = model.translate(source, **languages, **options)
        print_json({"text": text}) if as_json else click.echo(text)
    elif as_json or model.uses_beam_search(**options):
        result = model.generate(source, **options)
        print_json(asdict(result)) if as_json else click.echo(result.text)
    else:
        _show(model.stream(source, **options))


def _converse(model: "CausalLM", system: str | None, options: dict[str, Any]) -> None:
    """Hold a conversation on the terminal until end of input."""
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
    if result.speculation:
        speeds.append(f"{result.speculation.accepted} of {result.speculation.drafted} drafted tokens came true")
    note("; ".join(speeds))
    return result
