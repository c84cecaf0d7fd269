"""edgeformer run"""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgeformer.cli._generation import (
    SPECULATION,
    declared,
    explicit_options,
    length_options,
    sampling_options,
    thinking_options,
)
from edgeformer.cli._options import (
    COMMON,
    ENCODER_DECODERS,
    Command,
    cache_option,
    execution_options,
    json_option,
    option,
)
from edgeformer.cli._output import note, print_json, print_table
from edgeformer.cli.run._conversation import Conversation, opening, show
from edgeformer.errors import RequestError
from edgeformer.options.generation import BeamOptions, LogprobOptions

if TYPE_CHECKING:
    from edgeformer.runtime import DualEncoder, Encoder, Seq2SeqLM, VisionEncoder
    from edgeformer.runtime.tasks.model import Model


SPEECH_OPTIONS = ("language", "task", "subtitles", "words", "initial_prompt")
"""Options, by their parameters, that only bundles of speech models take."""

SEQ2SEQ_OPTIONS = ("num_beams", "source_language", "target_language", *SPEECH_OPTIONS)
"""Options, by their parameters, that only bundles of encoder-decoders take."""

ENCODER_OPTIONS = ("question", "aggregation")
"""Options that only bundles of some encoders take."""

PICTURE_OPTIONS = ("images", "labels")
"""Options that only bundles of models of pictures take."""

SOUND_OPTIONS = ("sounds",)
"""Options that only bundles of models of recordings and text take."""

MEDIA_OPTIONS = (*PICTURE_OPTIONS, *SOUND_OPTIONS)
"""Options that say what is not text."""

CHAT = "Chat"

CHAT_OPTIONS = ("enable_thinking", "reasoning_effort", "chat_template_kwargs")
"""Options, by their parameters, that only a chat takes."""


@click.command("run", cls=Command)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("prompt", required=False)
@length_options
@option(
    "--adapter",
    metavar="NAME",
    topic=COMMON,
    help="Run with this LoRA adapter of the bundle, or with a sum: A*0.7+B*0.3.",
)
@option("--chat", is_flag=True, topic=CHAT, help="Use the model's chat template; without PROMPT, hold a conversation.")
@option("--system", topic=CHAT, help="System message of the chat.")
@thinking_options
@sampling_options
@declared(LogprobOptions, note="Only --json shows them.")
@option(
    "--draft", metavar="BUNDLE", topic=SPECULATION,
    help="A smaller model with the same tokenizer, which drafts tokens; mtp for a layer of the bundle itself.",
)  # fmt: skip
@declared(BeamOptions)
@option(
    "--source-language", topic=ENCODER_DECODERS,
    help="Language of PROMPT, as the model names it (multilingual translators).",
)  # fmt: skip
@option("--target-language", topic=ENCODER_DECODERS, help="Language to translate into.")
@option(
    "--language", topic=ENCODER_DECODERS,
    help="Language spoken in the recording. [default: the one that the model detects]",
)  # fmt: skip
@option(
    "--task", type=click.Choice(["transcribe", "translate"]), topic=ENCODER_DECODERS,
    help="Write the language spoken in the recording, or English. [default: transcribe]",
)  # fmt: skip
@option(
    "--subtitles", type=click.Choice(["srt", "vtt"]), topic=ENCODER_DECODERS,
    help="Print the transcript as subtitles, with its times.",
)  # fmt: skip
@option(
    "--words",
    is_flag=True,
    default=None,
    topic=ENCODER_DECODERS,
    help="Print the words of the recording with their times.",
)
@option(
    "--initial-prompt", metavar="TEXT", topic=ENCODER_DECODERS,
    help="A text that stands before the recording, as its names and its spelling would be written.",
)  # fmt: skip
@option("--question", metavar="TEXT", help="Find the answer to this question in PROMPT (question-answering models).")
@option(
    "--aggregation", type=click.Choice(["simple", "first", "average", "max"]),
    help="Join labelled tokens to spans (models that label tokens): what labels a word of several tokens.",
)  # fmt: skip
@option(
    "--image", "images", multiple=True, type=click.Path(path_type=Path),
    help="A picture: classify it (models of pictures), write its text (TrOCR), or put it in the place of a placeholder "
    "of PROMPT (models of pictures and text); with --chat, or where PROMPT has none, before it. Several of these, in "
    "their order.",
)  # fmt: skip
@option(
    "--audio", "sounds", multiple=True, type=click.Path(path_type=Path),
    help="A recording, in the place of a placeholder of PROMPT (models of recordings and text); with --chat, or where "
    "PROMPT has none, before it. Several of these, in their order.",
)  # fmt: skip
@option(
    "--label", "labels", multiple=True, metavar="TEXT",
    help="A label that the picture may have (dual encoders of texts and pictures). Repeatable.",
)  # fmt: skip
@execution_options
@cache_option
@json_option
def run_command(
    bundle: Path,
    prompt: str | None,
    chat: bool,
    system: str | None,
    provider: Any,
    threads: int | None,
    cache_precision: Any,
    as_json: bool,
    draft: str | None,
    question: str | None,
    aggregation: str | None,
    images: tuple[Path, ...],
    sounds: tuple[Path, ...],
    labels: tuple[str, ...],
    **given: object,
) -> None:
    """Run the model in BUNDLE on PROMPT (or standard input).

    The task of the bundle decides what that does: continue a text, translate it, classify it, fill its mask, or
    transcribe a recording (PROMPT is the path of a sound file then). A model of pictures classifies --image, and a
    dual encoder does so by the labels of --label.
    """
    from edgeformer.runtime import CausalLM, DualEncoder, Encoder, Seq2SeqLM, VisionEncoder, load

    options = explicit_options(given)
    model = load(bundle, provider, threads, draft=draft, cache_precision=cache_precision)
    if model.manifest.provenance.random_weights is not None:
        note("note: this model's weights are random, not trained. Its text is noise.")
    named = {"question": question, "aggregation": aggregation, "images": images or None, "labels": labels or None}
    named["sounds"] = sounds or None
    _check_options(model, chat, system, options | {name: value for name, value in named.items() if value is not None})
    if isinstance(model, VisionEncoder | DualEncoder):
        _classify(model, prompt, images, labels, as_json)
        return
    if isinstance(model, Seq2SeqLM) and not (model.reads_text or model.is_speech):
        if prompt is not None or len(images) != 1:
            raise RequestError(f"this model writes the text of a picture: edgeformer run {bundle} --image PATH")
        _write(model, images[0], options, as_json)
        return
    if prompt is None and not (chat and sys.stdin.isatty()):
        prompt = sys.stdin.read().removesuffix("\n")  # which echo and editors add
    match model:
        case Encoder():
            _label(model, prompt or "", question, aggregation, images, as_json)
        case Seq2SeqLM():
            _write(model, prompt or "", options, as_json)
        case CausalLM() if prompt is None:
            if sounds:
                raise RequestError("a conversation is typed here; ask about a recording with PROMPT.")
            conversation = Conversation(model, system, options)
            for path in images:
                conversation.attach(str(path))
            conversation.hold()
        case _:
            options |= {"images": list(images)} if images else {}
            options |= {"sounds": list(sounds)} if sounds else {}
            chat = chat or _is_asked(model, prompt, (*images, *sounds))
            parts = ["image"] * len(images) + ["audio"] * len(sounds)
            stream = model.chat(opening(system, prompt, parts), **options) if chat else model.stream(prompt, **options)
            if as_json:
                print_json(asdict(stream.finish()))
            else:
                show(stream, model)


def _is_asked(model: "Model", prompt: str, media: tuple[Path, ...]) -> bool:
    """Return whether pictures or recordings have no place in a prompt, so that it is a message of a conversation."""
    from edgeformer.runtime import PictureTextLM, SoundTextLM

    if not media or not isinstance(model, PictureTextLM | SoundTextLM):
        return False
    tokenizer = model.require_tokenizer()
    return tokenizer.has_chat_template and model.placeholder.token not in tokenizer.encode(prompt)


def _check_options(model: "Model", chat: bool, system: str | None, options: dict[str, Any]) -> None:
    """Raise RequestError for options that do not apply to this task, instead of ignoring them."""
    from edgeformer.runtime import (
        DualEncoder,
        Encoder,
        PictureEncoder,
        PictureTextLM,
        Seq2SeqLM,
        SoundTextLM,
        VisionEncoder,
    )

    given = [*options, *(["chat"] if chat else []), *(["system"] if system is not None else [])]
    match model:
        case Encoder():
            takes = {"question"} if "answers" in model.gives else set()
            takes |= {"aggregation"} if "token classes" in model.gives else set()
            takes |= {"images"} if isinstance(model, PictureEncoder) else set()
            foreign = [name for name in given if name not in takes]
        case DualEncoder():
            foreign = [name for name in given if name not in PICTURE_OPTIONS]
        case VisionEncoder():
            foreign = [name for name in given if name != "images"]
        case Seq2SeqLM():
            languages = ["source_language", "target_language"] if model.is_speech else list(SPEECH_OPTIONS)
            others = ("chat", "system", "adapter", *CHAT_OPTIONS, *ENCODER_OPTIONS, *MEDIA_OPTIONS)
            foreign = [name for name in given if name in (*others, *languages)]
            if not (model.reads_text or model.is_speech):
                foreign = [name for name in given if name in (*others, *SEQ2SEQ_OPTIONS[1:]) and name != "images"]
        case PictureTextLM():
            foreign = [name for name in given if name in (*SEQ2SEQ_OPTIONS, *ENCODER_OPTIONS, *SOUND_OPTIONS)]
        case SoundTextLM():
            foreign = [name for name in given if name in (*SEQ2SEQ_OPTIONS, *ENCODER_OPTIONS, *PICTURE_OPTIONS)]
        case _:
            foreign = [name for name in given if name in (*SEQ2SEQ_OPTIONS, *ENCODER_OPTIONS, *MEDIA_OPTIONS)]
    if foreign:
        names = ", ".join(_flag(name, options) for name in foreign)
        raise RequestError(f"{names}: not for a bundle of this kind ({model.manifest.task}).")
    for name in ("system", *CHAT_OPTIONS):
        if name in given and not chat:
            raise click.UsageError(f"{_flag(name, options)} is for --chat.")


def _flag(name: str, options: dict[str, Any]) -> str:
    """Return an option of a parameter as it was given."""
    if name == "enable_thinking":
        return "--thinking" if options[name] else "--no-thinking"
    names = {"images": "--image", "labels": "--label", "sounds": "--audio"}
    return names.get(name, f"--{name.replace('_', '-')}")


def _classify(
    model: "VisionEncoder | DualEncoder", prompt: str | None, images: tuple[Path, ...], labels: tuple[str, ...],
    as_json: bool,
) -> None:  # fmt: skip
    """Print the labels of a picture, the most likely first. labels: those that it may have, for a dual encoder."""
    from edgeformer.runtime import DualEncoder

    if isinstance(model, DualEncoder):
        if prompt is not None or len(images) != 1 or not labels:
            raise RequestError(
                "this model compares a picture with labels: "
                f"edgeformer run {model.folder} --image PATH --label TEXT --label TEXT…"
            )
    elif model.config.classifier is None:
        raise RequestError(f"this model makes vectors: edgeformer embed {model.folder} --image PATH…")
    elif prompt is not None or len(images) != 1:
        raise RequestError(f"this model reads pictures, and no text: edgeformer run {model.folder} --image PATH")
    image = images[0]
    found = model.classify(image, labels) if isinstance(model, DualEncoder) else model.classify(image)
    if as_json:
        print_json([asdict(each) for each in found])
    else:
        print_table([(f"{each.probability:.3f}", each.label) for each in found])


def _label(
    model: "Encoder", text: str, question: str | None, aggregation: Any, images: tuple[Path, ...], as_json: bool
) -> None:
    """Print the tokens that fill the mask of `text`, its labels, or its answer to a question, the most likely first.

    Labelled spans come in the order of the text.
    """
    gives, shown = set(model.gives), dict[str, Any]()
    if images:
        text, shown["images"] = _placed(model, text, images), list(images)
    if not gives & {"answers", "words", "classes", "token classes"}:
        raise RequestError(f"this model makes vectors: edgeformer embed {model.folder} TEXT…")
    if "answers" in gives:
        if question is None:
            raise RequestError("this model answers questions about PROMPT; ask one: --question TEXT.")
        found: Any = model.answer(question, text)
        rows: list[tuple[str, ...]] = [(f"{each.score:.3f}", each.text) for each in found]
    elif "words" in gives:
        found = model.fill_mask(text, **shown)
        rows = [(f"{each.probability:.3f}", each.token, each.text) for each in found]
    elif aggregation is not None:
        if images:
            raise RequestError("--aggregation joins tokens of a text alone. Leave it out, or --image.")
        found = model.spans(text, aggregation=aggregation)
        rows = [(f"{each.score:.3f}", each.label, each.text) for each in found]
    else:
        found = model.classify(text, **shown)
        rows = [(f"{each.probability:.3f}", each.label) for each in found]
    if as_json:
        print_json([asdict(each) for each in found])
    else:
        print_table(rows)


def _placed(model: Any, text: str, images: tuple[Path, ...]) -> str:
    """Return a text with a placeholder for each picture in front of it, where it has none."""
    tokenizer, token = model.require_tokenizer(), model.placeholder.token
    spelled = str(tokenizer.backend.id_to_token(token))
    return text if token in tokenizer.encode(text) else spelled * len(images) + text


def _write(model: "Seq2SeqLM", source: str | Path, options: dict[str, Any], as_json: bool) -> None:
    """Transcribe a recording, translate if languages are given, or else generate; print text as it is generated."""
    languages = {name: options.pop(name) for name in ("source_language", "target_language") if name in options}
    if model.is_speech:
        _transcribe(model, str(source), options, as_json)
    elif languages:
        text = model.translate(str(source), **languages, **options)
        print_json({"text": text}) if as_json else click.echo(text)
    elif as_json or model.uses_beam_search(**options):
        result = model.generate(source, **options)
        print_json(asdict(result)) if as_json else click.echo(result.text)
    else:
        show(model.stream(source, **options), model)


def _transcribe(model: "Seq2SeqLM", recording: str, options: dict[str, Any], as_json: bool) -> None:
    """Print what is said in a recording: as text, as words with times, as subtitles, or with all segments."""
    from edgeformer.runtime import SpeechConfig
    from edgeformer.runtime.tasks.speech import subtitles

    if not recording:
        raise RequestError("there is no recording; give the path of a sound file.")
    form = options.pop("subtitles", None)
    if form and as_json:
        raise click.UsageError("--json has the times already; leave --subtitles out.")
    language, task = options.pop("language", None), options.pop("task", "transcribe")
    words, prompt = options.pop("words", False), options.pop("initial_prompt", None)
    timestamps = True if form or (as_json and model.writes_times) else None
    speech = SpeechConfig(timestamps=timestamps, word_timestamps=words, prompt=prompt)
    found = model.transcript(recording, language, task, speech=speech, **options)
    spoken = [word for segment in found.segments for word in segment.words or ()]
    if as_json:
        print_json(asdict(found))
    elif form:
        click.echo(subtitles(spoken if words else found.segments, form).rstrip("\n"))
    elif words:
        click.echo("\n".join(f"{word.start:8.2f} {word.end:8.2f}  {word.text}" for word in spoken))
    else:
        click.echo(found.text)
