"""The route that ranks documents by a cross-encoder: /v1/rerank, as Jina, Cohere and vLLM speak it."""

import functools
import uuid

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edgeformer.errors import RequestError
from edgeformer.runtime.tasks.cross_encoder import best_documents
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
    results = [
        {"index": each.index, "relevance_score": each.score}
        | ({} if body.return_documents is False else {"document": {"text": each.text}})
        for each in best_documents(texts, scores, body.top_n or len(texts))
    ]
    usage = {"prompt_tokens": record.prompt_tokens, "total_tokens": record.prompt_tokens}
    return JSONResponse({"id": f"rerank-{uuid.uuid4().hex}", "model": served.name, "results": results, "usage": usage})
