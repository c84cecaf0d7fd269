"""The route /v1/completions."""

import contextlib
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edgeformer.errors import RequestError
from edgeformer.runtime import CausalLM, Seq2SeqLM, TokenEvent
from edgeformer.server.endpoints.logprobs import completion_logprobs, echoed_logprobs, joined
from edgeformer.server.schema.answer_forms import form_error, warnings_of
from edgeformer.server.schema.api_errors import ApiError
from edgeformer.server.schema.bodies import CompletionBody
from edgeformer.server.service.answers import Answers, Progress, unless_gone
from edgeformer.server.service.config_of_body import configs
from edgeformer.server.service.generating import FINISH_REASONS, EventStream, keep_text, submit, usage
from edgeformer.server.service.prompts import check_length, text_prompts
from edgeformer.server.service.records import Record
from edgeformer.server.service.served import ServedModel
from edgeformer.server.service.state import body_of, record_of, state_of


@dataclass
class Completion:
    """One answer: its text and tokens so far."""

    text: str = ""
    events: list[TokenEvent] = field(default_factory=list)
    finish_reason: str | None = None


@dataclass(frozen=True)
class Echo:
    """A prompt that is repeated before its completion, and its logprobs if they were asked for."""

    text: str = ""
    logprobs: dict[str, Any] | None = None


@dataclass
class Completions:
    """Prompts that are being completed. echoes: what to repeat before each choice. answers: None if nothing follows."""

    served: ServedModel
    body: CompletionBody
    answers: Answers | None
    record: Record
    echoes: list[Echo]
    id: str = field(default_factory=lambda: f"cmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))

    async def collect(self) -> dict[str, Any]:
        """Return the whole answer."""
        completions = [Completion() for _ in self.echoes]
        async for progress in self._progress():
            completion = completions[progress.choice]
            completion.text += "".join(event.text or "" for event in progress.tokens)
            completion.events += progress.tokens
            if progress.result is not None:
                completion.finish_reason = FINISH_REASONS[progress.result.finish_reason]
        choices = [
            self._choice(
                index,
                echo.text + each.text,
                joined(echo.logprobs, self._logprobs(each.events, len(echo.text))),
                each.finish_reason or "length",
            )
            for index, (echo, each) in enumerate(zip(self.echoes, completions, strict=True))
        ]
        return self._envelope() | {"choices": choices, "usage": usage(self.record)}

    async def _progress(self) -> AsyncIterator[Progress]:
        if self.answers is not None:
            async for progress in self.answers.progress():
                yield progress

    async def chunks(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the events of a stream."""
        lengths = [len(echo.text) for echo in self.echoes]
        options = self.body.stream_options
        with_usage = options is not None and options.include_usage
        usage_field: dict[str, Any] = {"usage": None} if with_usage else {}
        for index, echo in enumerate(self.echoes):
            reason = "length" if self.answers is None else None
            if echo.text or reason:
                choice = self._choice(index, echo.text, echo.logprobs, reason)
                yield self._envelope() | {"choices": [choice]} | usage_field
        async for progress in self._progress():
            index, result = progress.choice, progress.result
            text = "".join(event.text or "" for event in progress.tokens)
            logprobs = self._logprobs(progress.tokens, lengths[index])
            lengths[index] += len(text)
            if text or logprobs or result is not None:
                reason = None if result is None else FINISH_REASONS[result.finish_reason]
                yield self._envelope() | {"choices": [self._choice(index, text, logprobs, reason)]} | usage_field
        if with_usage:
            yield self._envelope() | {"choices": [], "usage": usage(self.record)}

    def _logprobs(self, events: Any, offset: int) -> dict[str, Any] | None:
        return None if self.body.logprobs is None else completion_logprobs(self.served, events, offset)

    def _choice(self, index: int, text: str, logprobs: Any, finish_reason: str | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}

    def _envelope(self) -> dict[str, Any]:
        return {"id": self.id, "object": "text_completion", "created": self.created, "model": self.served.name}


async def completions(request: Request) -> Response:
    """Continue prompts, or translate them with a model that translates."""
    state, record = state_of(request), record_of(request)
    body = await body_of(request, CompletionBody)
    served = await state.models.use(body.model, record_of(request))
    served.require(CausalLM, Seq2SeqLM)
    limit = max(1, state.options.max_choices // (body.n or 1))
    prompts = await state.in_thread(text_prompts, served, body.prompt, "prompt", limit, body.truncate_prompt_tokens)
    for prompt in prompts:
        check_length(served, prompt, state.options.max_prompt_tokens, "prompt")
    keep_text(state, record, "prompt", body.prompt)
    echoes = [await _echo(request, served, body, prompt) for prompt in prompts]
    count, answers = body.n or 1, None
    if body.max_tokens == 0:
        count, record.model, record.prompt_tokens = 1, served.name, sum(map(len, prompts))
        if not body.echo:
            message = "max_tokens is 0, which only repeats and scores the prompt; it needs echo to be true."
            raise ApiError(400, message, param="max_tokens")
    else:
        wanted = configs(served, body, state.options, max(map(len, prompts)))
        record.warnings += warnings_of(body)
        try:
            answers = await submit(request, served, prompts, wanted, **_languages(served, body))
        except RequestError as error:
            raise form_error(error, of_tools=False) from None
    answering = Completions(served, body, answers, record, [echo for echo in echoes for _ in range(count)])
    if body.stream:
        return EventStream(request, answers, answering.chunks())
    with answers or contextlib.nullcontext():
        answer = await unless_gone(request, answering.collect())
    keep_text(state, record, "answer", [choice["text"] for choice in answer["choices"]])
    return JSONResponse(answer)


async def _echo(request: Request, served: ServedModel, body: CompletionBody, prompt: list[int]) -> Echo:
    if not body.echo:
        return Echo()
    text = served.tokenizer.decode(prompt)
    if body.logprobs is None:
        return Echo(text)
    state, model = state_of(request), served.require(CausalLM)
    if model.captures:
        raise ApiError(400, "echo with logprobs does not run beside CUDA graphs; prompts get none here.", param="echo")
    async with state.scoring:
        scored = state.in_thread(echoed_logprobs, served, prompt, body.logprobs)
        return Echo(text, await unless_gone(request, scored))


def _languages(served: ServedModel, body: CompletionBody) -> dict[str, Any]:
    names = ("source_language", "target_language")
    given = {name: getattr(body, name) for name in names if getattr(body, name) is not None}
    if given and not isinstance(served.model, Seq2SeqLM):
        name = next(iter(given))
        raise ApiError(400, f"{name} is for models that translate; {served.name!r} does not.", param=name)
    return given
