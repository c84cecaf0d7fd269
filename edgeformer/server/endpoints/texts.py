"""Routes that return at once or compute no new text: /v1/models, /v1/embeddings, /tokenize, /detokenize."""

import asyncio
import base64
import functools
from concurrent.futures import Future
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edgeformer.errors import RequestError
from edgeformer.runtime import CausalLM, DualEncoder, Encoder, PictureEncoder, VisionEncoder
from edgeformer.runtime.tasks.encoders.encoder import first_dimensions
from edgeformer.server.endpoints.picture_inputs import has_pictures, plain_texts, submit_inputs
from edgeformer.server.schema.api_errors import ApiError, as_api_error
from edgeformer.server.schema.bodies import DetokenizeBody, EmbeddingBody, TokenizeBody
from edgeformer.server.service.answers import unless_gone
from edgeformer.server.service.media import RequestMedia, media_of
from edgeformer.server.service.prompts import as_template_message, check_length, text_prompts
from edgeformer.server.service.served import ServedModel
from edgeformer.server.service.state import body_of, record_of, state_of

MAX_TEXTS = 2048
"""Texts of a request for embeddings at most, as in OpenAI's API."""


async def list_models(request: Request) -> Response:
    """List the models of the server."""
    return JSONResponse({"object": "list", "data": state_of(request).models.descriptions()})


async def show_model(request: Request) -> Response:
    """Show one model."""
    models, name = state_of(request).models, request.path_params["name"]
    found = [each for each in models.descriptions() if each["id"] == name]
    return JSONResponse(found[0] if found else models.find(name).description)


async def embeddings(request: Request) -> Response:
    """Return a vector for each text."""
    state, record = state_of(request), record_of(request)
    body = await body_of(request, EmbeddingBody)
    served = await state.models.use(body.model, record_of(request))
    model = served.require(Encoder, VisionEncoder, DualEncoder)
    record.model = served.name
    if isinstance(model, Encoder) and not (isinstance(model, PictureEncoder) and has_pictures(body.input)):
        futures = await _submit_texts(request, served, model, body)
    else:
        _require_vectors(model)
        record.prompt_tokens, futures = await state.read_media(submit_inputs, served, model, body.input, state.options)
    vectors = await unless_gone(request, all_of(futures))
    if body.dimensions is not None:
        try:
            vectors = first_dimensions(vectors, body.dimensions)
        except RequestError as error:
            raise ApiError(400, str(error), param="dimensions") from None
        vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)  # as OpenAI's are
    written = _as_base64 if body.encoding_format == "base64" else _as_list
    data = [{"object": "embedding", "index": i, "embedding": written(vector)} for i, vector in enumerate(vectors)]
    usage = {"prompt_tokens": record.prompt_tokens, "total_tokens": record.prompt_tokens}
    return JSONResponse({"object": "list", "data": data, "model": served.name, "usage": usage})


async def _submit_texts(
    request: Request, served: ServedModel, model: Encoder, body: EmbeddingBody
) -> "list[Future[Any]]":
    """Put the texts of a request into the queue of an encoder of texts."""
    state, record = state_of(request), record_of(request)
    _require_vectors(model)
    prompted = model.with_prompt(plain_texts(served, body.input))
    tokens = await state.in_thread(text_prompts, served, prompted, "input", MAX_TEXTS, body.truncate_prompt_tokens)
    for each in tokens:
        check_length(served, each, state.options.max_prompt_tokens, "input")
    record.prompt_tokens = sum(map(len, tokens))
    return await state.in_thread(served.engine.submit_texts, tokens)


def _require_vectors(model: Any) -> None:
    """Raise ApiError for an encoder of texts whose embeddings are no single vectors."""
    try:
        if isinstance(model, Encoder):
            model.require_vectors()
    except RequestError as error:
        raise ApiError(400, str(error), code="wrong_model", param="model") from None


async def all_of(futures: "list[Future[Any]]") -> Any:
    """Return the results of futures as one array; where this is cancelled, what has not begun is run no more."""
    return np.stack(await asyncio.gather(*map(asyncio.wrap_future, futures)))


def _as_base64(vector: Any) -> str:
    return base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode()


def _as_list(vector: Any) -> list[float]:
    values: list[float] = np.asarray(vector, np.float32).tolist()
    return values


async def tokenize(request: Request) -> Response:
    """Return the token ids of a text, or of a conversation with the start of its answer."""
    state = state_of(request)
    body = await body_of(request, TokenizeBody)
    served = await state.models.use(body.model, record_of(request))
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "give either prompt or messages.", param="prompt")
    media = RequestMedia()
    if body.messages is not None:
        media = await state.read_media(media_of, served, body.messages, state.options)
        messages = [as_template_message(message) for message in body.messages]
        encode = functools.partial(served.tokenizer.encode_chat, messages)
    else:
        assert body.prompt is not None
        encode = functools.partial(
            served.tokenizer.encode, body.prompt or "", add_special_tokens=body.add_special_tokens, what="prompt"
        )
    try:
        tokens = await state.in_thread(functools.partial(encode, most_tokens=served.context_length))
    except RequestError as error:
        raise as_api_error(error, "prompt" if body.messages is None else "messages") from None
    if media.media:
        tokens = (await state.decode(media.seen, served.require(CausalLM), tokens, served.context_length)).shown
    return JSONResponse({"tokens": tokens, "count": len(tokens), "max_model_len": served.context_length})


async def detokenize(request: Request) -> Response:
    """Return the text of token ids, without special tokens."""
    state = state_of(request)
    body = await body_of(request, DetokenizeBody)
    served = await state.models.use(body.model, record_of(request))
    size = served.model.manifest.vocab_size
    if any(token >= size for token in body.tokens):
        raise ApiError(400, f"tokens has ids outside 0 to {size - 1}, the model's vocabulary.", param="tokens")
    return JSONResponse({"prompt": await state.in_thread(served.tokenizer.decode, body.tokens)})
