"""The route /infill: the text between a prefix and a suffix, as llama.cpp's server and its editors speak it."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edgeformer.errors import PromptLengthError, RequestError
from edgeformer.runtime import CausalLM
from edgeformer.runtime.text.fill_in import fill_in_prompt
from edgeformer.server.schema.api_errors import ApiError, as_api_error
from edgeformer.server.schema.bodies import InfillBody
from edgeformer.server.service.answers import Answers, unless_gone
from edgeformer.server.service.config_of_body import configs
from edgeformer.server.service.generating import EventStream, submit
from edgeformer.server.service.prompts import check_length
from edgeformer.server.service.records import Record
from edgeformer.server.service.served import ServedModel
from edgeformer.server.service.state import body_of, record_of, state_of

STOP_TYPES = {"eos": "eos", "stop": "word", "length": "limit"}
"""`stop_type` by the finish reason of the runtime."""


@dataclass
class FillingIn:
    """A middle that is being written."""

    served: ServedModel
    answers: Answers
    record: Record

    async def events(self) -> AsyncIterator[dict[str, Any]]:
        """Yield pieces of text, and at the end what there is to say."""
        async for progress in self.answers.progress():
            text = "".join(event.text or "" for event in progress.tokens)
            ending = {} if progress.result is None else self._ending(progress.result.finish_reason)
            if text or ending:
                yield {"index": 0, "content": text, "stop": bool(ending)} | ending

    def _ending(self, reason: str) -> dict[str, Any]:
        return {
            "model": self.served.name,
            "stop_type": STOP_TYPES[reason],
            "truncated": False,
            "tokens_predicted": self.record.completion_tokens,
            "tokens_evaluated": self.record.prompt_tokens,
            "tokens_cached": self.record.cached_tokens,
        }

    async def collect(self) -> dict[str, Any]:
        """Return the whole answer."""
        text, last = "", {}
        async for last in self.events():
            text += last["content"]
        return last | {"content": text}


async def infill(request: Request) -> Response:
    """Fill in the text between a prefix and a suffix, with models that were trained for it (as llama.cpp)."""
    state, record = state_of(request), record_of(request)
    body = await body_of(request, InfillBody)
    served = await state.models.use(body.model, record_of(request))
    served.require(CausalLM)
    files = [(each.filename, each.text) for each in body.input_extra or ()]
    texts = body.input_prefix, body.input_suffix
    try:
        tokens = await state.in_thread(fill_in_prompt, served.tokenizer, *texts, files, served.context_length)
        tokens += served.tokenizer.encode(body.prompt or "", add_special_tokens=False)
    except PromptLengthError as error:
        raise as_api_error(error, "input_prefix") from None
    except RequestError as error:
        raise ApiError(400, str(error), code="wrong_model", param="model") from None
    check_length(served, tokens, state.options.max_prompt_tokens, "input_prefix")
    answers = await submit(request, served, [tokens], configs(served, body, state.options, len(tokens)))
    filling = FillingIn(served, answers, record)
    if body.stream:
        return EventStream(request, answers, filling.events())
    with answers:
        return JSONResponse(await unless_gone(request, filling.collect()))
