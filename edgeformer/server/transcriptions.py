"""The route /v1/audio/transcriptions: a recording, sent as a form, becomes its text. Its windows run together."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from edgeformer.errors import RequestError
from edgeformer.runtime import Generation, GenerationConfig, Seq2SeqLM
from edgeformer.runtime.audio import SAMPLE_RATE, decode_wav, resample
from edgeformer.runtime.speech import speech_prompt
from edgeformer.server.answers import unless_gone
from edgeformer.server.api_errors import ApiError
from edgeformer.server.generating import keep_text, submit
from edgeformer.server.served import ServedModel
from edgeformer.server.state import record_of, state_of

FORMATS = ("json", "text", "verbose_json")
"""Values of `response_format`; srt and vtt need times, which the runtime does not compute."""

NEUTRAL: dict[str, tuple[str, ...]] = {
    "prompt": ("",),
    "stream": ("false", "False", "0"),
    "chunking_strategy": ("auto",),
    "timestamp_granularities[]": ("segment",),
}
"""Fields that the server does not have, with the values at which they change nothing."""

FIELDS = ("file", "model", "language", "response_format", "temperature")


@dataclass(frozen=True)
class Transcription:
    """The fields of a request. file: a WAV file. temperature: 0 for the likeliest words."""

    file: bytes
    name: str
    model: str | None
    language: str | None
    response_format: str
    temperature: float


async def transcriptions(request: Request) -> Response:
    """Return the text of a recording, a WAV file in a form."""
    state, record = state_of(request), record_of(request)
    body = await _read_form(request)
    served = state.models.find(body.model)
    served.require_speech()
    model = served.model
    assert isinstance(model, Seq2SeqLM)
    samples = await state.in_thread(_samples_of, body)
    windows = model.speech_windows(samples)
    prompt, language = await _prompt_of(request, served, windows[0], body.language)
    config = model.generation_config.override({"num_beams": 1, "temperature": body.temperature})
    results = await _generated(request, served, windows, config, prompt=prompt)
    text = " ".join(text for result in results if (text := (result.text or "").strip()))
    keep_text(state, record, "answer", text)
    if body.response_format == "text":
        return PlainTextResponse(text + "\n")
    if body.response_format == "json":
        return JSONResponse({"text": text})
    duration = len(samples) / SAMPLE_RATE
    return JSONResponse({"task": "transcribe", "language": language, "duration": duration, "text": text})


async def _generated(
    request: Request, served: ServedModel, windows: list[NDArray[np.float32]], config: GenerationConfig, **keywords: Any
) -> list[Generation]:
    """Return what the model generates for each window."""
    record = record_of(request)
    results: dict[int, Generation] = {}

    async def collect() -> None:
        async for progress in answers.progress():
            if progress.result is not None:
                results[progress.choice] = progress.result

    with await submit(request, served, windows, [config], **keywords) as answers:
        record.prompt_tokens = 0  # what was submitted are samples, and no tokens
        await unless_gone(request, collect())
    return [results[place] for place in range(len(windows))]


async def _prompt_of(
    request: Request, served: ServedModel, window: NDArray[np.float32], language: str | None
) -> tuple[list[int], str]:
    """Return the decoder's first tokens and the code of the language, which the model hears if none is given."""
    model = served.model
    assert isinstance(model, Seq2SeqLM)
    generation, start = model.manifest.generation, model.start_prompt(None)
    codes = {token: name.strip("<|>") for name, token in (generation.get("lang_to_id") or {}).items()}
    heard = None
    if language is None and codes:

        def only_languages(ids: Any, logits: Any) -> Any:
            kept = np.full_like(logits, -np.inf)
            kept[list(codes)] = logits[list(codes)]
            return kept

        # A config of its own, because the model's suppresses these tokens.
        config = GenerationConfig(max_new_tokens=1)
        keywords = {"prompt": start, "logits_processors": [only_languages]}
        [result] = await _generated(request, served, [window], config, **keywords)
        heard = codes[result.token_ids[0]]
    try:
        spoken = language or heard
        return speech_prompt(generation, start, spoken, "transcribe", lambda languages: languages[0]), spoken or "en"
    except RequestError as error:
        raise ApiError(400, str(error), param="language") from None


def _samples_of(body: Transcription) -> NDArray[np.float32]:
    """Return the samples of a recording at 16 kHz."""
    try:
        return resample(*decode_wav(body.file, body.name))
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
        raise ApiError(400, "file: a WAV file is missing.", code="invalid_type", param="file")
    texts = _texts(form)
    wanted = texts.get("response_format", "json")
    if wanted not in FORMATS:
        message = f"response_format is {wanted!r}; it must be one of {', '.join(FORMATS)}."
        raise ApiError(400, message, param="response_format")
    return Transcription(
        await file.read(), file.filename or "the file", texts.get("model"), texts.get("language") or None, wanted,
        _temperature(texts.get("temperature", "0")),
    )  # fmt: skip


def _texts(form: FormData) -> dict[str, str]:
    """Return the text fields of a form. Raises ApiError for one that the server must not ignore."""
    texts: dict[str, str] = {}
    for name, value in form.multi_items():
        if name in NEUTRAL:
            if value not in NEUTRAL[name]:
                message = f"{name!r} is not supported by this server. Leave it out."
                raise ApiError(400, message, code="unsupported_parameter", param=name)
        elif name not in FIELDS:
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
