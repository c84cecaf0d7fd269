"""The routes /v1/audio/transcriptions and /v1/audio/translations: a recording, sent as a form, becomes its text."""

import asyncio
from dataclasses import asdict, dataclass, replace
from typing import Any, cast, get_args

import numpy as np
from numpy.typing import NDArray
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from edgeformer.errors import RequestError
from edgeformer.runtime import Generation, Segment, SpeechConfig, Transcript
from edgeformer.runtime.media.sound.audio import resample
from edgeformer.runtime.media.sound.sound_files import decode_audio
from edgeformer.runtime.tasks.speech import SubtitleFormat, Window, subtitles
from edgeformer.runtime.tasks.speech.prompt import needs_language
from edgeformer.server.schema.api_errors import ApiError
from edgeformer.server.service.answers import unless_gone
from edgeformer.server.service.generating import keep_text, submit
from edgeformer.server.service.served import ServedModel
from edgeformer.server.service.state import record_of, state_of

FORMATS = ("json", "text", "srt", "verbose_json", "vtt")
"""Values of `response_format`."""

TIMED = ("srt", "verbose_json", "vtt")
"""Formats that hold the times of segments."""

NEUTRAL: dict[str, tuple[str, ...]] = {
    "stream": ("false", "False", "0"),
    "chunking_strategy": ("auto",),
}
"""Fields that the server does not have, with the values at which they change nothing."""

SAMPLES_PER_BYTE = 32
"""Samples of a compressed recording at most, per byte that a request may have: Opus at 12 kbit/s and 48 kHz. With the
default of 4 MiB they take 512 MiB."""

FIELDS = ("file", "model", "language", "prompt", "response_format", "temperature")
GRANULARITIES = "timestamp_granularities[]"
"""The field that says whether verbose_json has the times of words, of segments, or both; it may come twice."""


@dataclass(frozen=True)
class Transcription:
    """The fields of a request.

    Attributes:
        file: a sound file.
        prompt: a text that stands before it.
        words, segments: whether verbose_json has them.
        temperature: 0 for the likeliest words.
    """

    file: bytes
    name: str
    model: str | None
    language: str | None
    prompt: str | None
    response_format: str
    words: bool
    segments: bool
    temperature: float


async def transcriptions(request: Request) -> Response:
    """Return the text of a recording, a sound file in a form, in the language that is spoken."""
    return await _answer(request, "transcribe")


async def translations(request: Request) -> Response:
    """Return the text of a recording, a sound file in a form, in English."""
    return await _answer(request, "translate")


async def _answer(request: Request, task: str) -> Response:
    state, record = state_of(request), record_of(request)
    body = await _read_form(request)
    served = await state.models.use(body.model, record_of(request))
    served.require_speech()
    most = SAMPLES_PER_BYTE * state.max_body_bytes
    decoding = asyncio.get_running_loop().run_in_executor(state.decoder, _samples_of, body, most)
    samples = await unless_gone(request, _result_of(decoding))  # one that has not begun is not decoded any more then
    transcript = await _transcribe(request, served, samples, body, task)
    keep_text(state, record, "answer", transcript.text)
    return _response(transcript, body)


async def _transcribe(
    request: Request, served: ServedModel, samples: NDArray[np.float32], body: Transcription, task: str
) -> Transcript:
    """Run the windows of a recording, one after the other, beside the requests of other clients."""
    model, state = served.require_speech(), state_of(request)
    try:
        needs_language(model.manifest.generation, body.language, task)
    except RequestError as error:
        raise ApiError(400, str(error), param="language") from None
    config = replace(model.generation_config, num_beams=1, temperature=body.temperature)
    timestamps = True if body.response_format in TIMED and model.writes_times else None
    speech = SpeechConfig(timestamps=timestamps, word_timestamps=body.words, prompt=body.prompt)
    if body.words and model.manifest.alignment is None:
        message = f"{GRANULARITIES} has 'word', and this bundle has no alignment graph, which gives the times of words"
        raise ApiError(400, f"{message}. Leave it out.", param=GRANULARITIES)
    if body.response_format in get_args(SubtitleFormat) and not model.writes_times:
        message = f"response_format is {body.response_format!r}, and this model writes no times; it must be json, text"
        raise ApiError(400, f"{message} or verbose_json.", param="response_format")
    runs = model.transcription(samples, body.language, task, speech, config)
    result: Generation | None = None
    while True:
        try:
            # Spectrograms and times of words are computed here, which takes its time: the loop must go on.
            step = await state.in_thread(_next, runs, result)
        except RequestError as error:
            raise ApiError(400, str(error), param="prompt" if body.prompt else None) from None
        if isinstance(step, Transcript):
            return step
        result = await _generated(request, served, step)


async def _result_of(decoding: "asyncio.Future[NDArray[np.float32]]") -> NDArray[np.float32]:
    return await decoding


def _next(runs: Any, result: Generation | None) -> Window | Transcript:
    """Return the next run of a transcription, or its result: a thread can raise no StopIteration to the loop."""
    try:
        found: Window | Transcript = next(runs) if result is None else runs.send(result)
    except StopIteration as done:
        found = done.value
    return found


def _response(transcript: Transcript, body: Transcription) -> Response:
    form = body.response_format
    if form == "text":
        return PlainTextResponse(transcript.text + "\n")
    if form in get_args(SubtitleFormat):
        return PlainTextResponse(subtitles(transcript.segments, cast(SubtitleFormat, form)))
    if form == "json":
        return JSONResponse({"text": transcript.text})
    answer: dict[str, Any] = {
        "task": transcript.task, "language": transcript.language, "duration": transcript.duration,
        "text": transcript.text,
    }  # fmt: skip
    if body.words:
        words = [word for segment in transcript.segments for word in segment.words or ()]
        answer["words"] = [{"word": word.text, "start": word.start, "end": word.end} for word in words]
    if body.segments:
        answer["segments"] = [_segment(number, segment) for number, segment in enumerate(transcript.segments)]
    return JSONResponse(answer)


def _segment(number: int, segment: Segment) -> dict[str, Any]:
    values = asdict(segment)
    del values["words"], values["token_times"]
    return {"id": number, "tokens": values.pop("token_ids"), **values}


async def _generated(request: Request, served: ServedModel, window: Window) -> Generation:
    """Return what the model generates for a window."""
    record = record_of(request)
    results: list[Generation] = []

    async def collect() -> None:
        async for progress in answers.progress():
            if progress.result is not None:
                results.append(progress.result)

    keywords = {"prompt": window.prompt, "logits_processors": window.processors}
    with await submit(request, served, [window.source], [window.config], **keywords) as answers:
        record.prompt_tokens = 0  # what was submitted are frames, and no tokens
        await unless_gone(request, collect())
    return results[0]


def _samples_of(body: Transcription, most_samples: int) -> NDArray[np.float32]:
    """Return the samples of a recording at 16 kHz."""
    try:
        return resample(*decode_audio(body.file, body.name, most_samples))
    except RequestError as error:
        raise ApiError(400, str(error), param="file") from None


async def _read_form(request: Request) -> Transcription:
    """Return the fields of a form. Raises ApiError that names the one that is wrong."""
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise ApiError(400, "the body is no form; send multipart/form-data with a file.", code="invalid_form")
    try:
        async with request.form(max_files=1, max_fields=20) as form:
            return await _fields_of(form)
    except HTTPException as error:
        raise ApiError(400, f"the body is no form: {error.detail}.", code="invalid_form") from None


async def _fields_of(form: FormData) -> Transcription:
    file = form.get("file")
    if not isinstance(file, UploadFile):
        raise ApiError(400, "file: a sound file is missing.", code="invalid_type", param="file")
    texts = _texts(form)
    wanted = texts.get("response_format", "json")
    if wanted not in FORMATS:
        message = f"response_format is {wanted!r}; it must be one of {', '.join(FORMATS)}."
        raise ApiError(400, message, param="response_format")
    times = form.getlist(GRANULARITIES) or ["segment"]
    if unknown := [each for each in times if each not in ("word", "segment")]:
        message = f"{GRANULARITIES} has {unknown[0]!r}; it may have word and segment."
        raise ApiError(400, message, param=GRANULARITIES)
    if "word" in times and wanted != "verbose_json":
        message = f"{GRANULARITIES} has 'word', for which response_format must be verbose_json."
        raise ApiError(400, message, param=GRANULARITIES)
    return Transcription(
        file=await file.read(),
        name=file.filename or "the file",
        model=texts.get("model"),
        language=texts.get("language") or None,
        prompt=texts.get("prompt") or None,
        response_format=wanted,
        words="word" in times,
        segments="segment" in times,
        temperature=_temperature(texts.get("temperature", "0")),
    )


def _texts(form: FormData) -> dict[str, str]:
    """Return the text fields of a form. Raises ApiError for one that the server must not ignore."""
    texts: dict[str, str] = {}
    for name, value in form.multi_items():
        if name in NEUTRAL:
            if value not in NEUTRAL[name]:
                message = f"{name!r} is not supported by this server. Leave it out."
                raise ApiError(400, message, code="unsupported_parameter", param=name)
        elif name not in (*FIELDS, GRANULARITIES):
            raise ApiError(400, f"{name!r} is no field of this request.", code="unknown_parameter", param=name)
        elif isinstance(value, str):
            texts[name] = value
    return texts


def _temperature(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 2:
        raise ApiError(400, f"temperature is {text!r}; it must be 0 to 2.", param="temperature")
    return value
