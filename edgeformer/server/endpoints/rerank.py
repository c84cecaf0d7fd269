"""The route that ranks documents by pairs or by their tokens: /v1/rerank, as Jina, Cohere and vLLM speak it."""

import functools
import uuid
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edgeformer.errors import RequestError
from edgeformer.runtime import Encoder
from edgeformer.runtime.tasks.encoders.cross_encoder import best_documents
from edgeformer.server.endpoints.texts import MAX_TEXTS, all_of
from edgeformer.server.schema.api_errors import ApiError
from edgeformer.server.schema.bodies import RerankBody
from edgeformer.server.service.answers import unless_gone
from edgeformer.server.service.prompts import check_length
from edgeformer.server.service.state import body_of, record_of, state_of


async def rerank(request: Request) -> Response:
    """Rank documents by how well they answer a query (as Jina, Cohere and vLLM)."""
    state, record = state_of(request), record_of(request)
    body = await body_of(request, RerankBody)
    served = await state.models.use(body.model, record_of(request))
    model = served.require_ranking()
    texts = [each if isinstance(each, str) else each.text for each in body.documents]
    if not 1 <= len(texts) <= MAX_TEXTS:
        message = f"documents has {len(texts)} texts; 1 to {MAX_TEXTS} are allowed."
        raise ApiError(400, message, param="documents")
    if not model.scores_pairs:
        if body.instruction is not None:
            raise ApiError(400, "this model reads no instruction. Leave it out.", param="instruction")
        return await _by_tokens(request, served.name, model, body, texts)
    pairs = [(body.query, text) for text in texts]
    try:
        encoded = await state.in_thread(lambda: [model.encode_pair(pair, prompt=body.instruction) for pair in pairs])
    except RequestError as error:
        raise ApiError(400, str(error), param="documents") from None
    for ids, _ in encoded:
        check_length(served, ids, state.options.max_prompt_tokens, "documents")
    record.model = served.name
    record.prompt_tokens = sum(len(ids) for ids, _ in encoded)
    submit = functools.partial(served.engine.submit_pairs, pairs, prompt=body.instruction)
    scores = await unless_gone(request, all_of(await state.in_thread(submit)))
    return _answer(body, served.name, texts, scores, record.prompt_tokens)


async def _by_tokens(request: Request, name: str, model: Encoder, body: RerankBody, texts: list[str]) -> Response:
    """Rank documents by the vectors of their tokens, which are computed beside the engine."""
    state, record = state_of(request), record_of(request)
    try:
        scores, tokens = await unless_gone(request, state.in_thread(model.max_sim_and_tokens, body.query, texts))
    except RequestError as error:
        raise ApiError(400, str(error), param="documents") from None
    record.model, record.prompt_tokens = name, tokens
    return _answer(body, name, texts, scores, tokens)


def _answer(body: RerankBody, name: str, texts: list[str], scores: Any, tokens: int) -> Response:
    """Return the answer with the documents in the order of their scores."""
    results = [
        {"index": each.index, "relevance_score": each.score}
        | ({} if body.return_documents is False else {"document": {"text": each.text}})
        for each in best_documents(texts, scores, body.top_n or len(texts))
    ]
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return JSONResponse({"id": f"rerank-{uuid.uuid4().hex}", "model": name, "results": results, "usage": usage})
