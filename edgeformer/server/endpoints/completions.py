"""The route /v1/completions."""

import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edgeformer.runtime import CausalLM, Seq2SeqLM, TokenEvent
from edgeformer.server.schema.api_errors import ApiError
from edgeformer.server.schema.bodies import CompletionBody
from edgeformer.server.service.answers import Answers, unless_gone
from edgeformer.server.service.config_of_body import configs
from edgeformer.server.service.generating import FINISH_REASONS, EventStream, keep_text, submit, usage
from edgeformer.server.service.logprobs import completion_logprobs
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


@dataclass
class Completions:
    """Prompts that are being completed. echoes: the text to repeat before each choice."""

    served: ServedModel
    body: CompletionBody
    answers: Answers
    record: Record
    echoes: list[str]
    id: str = field(default_factory=lambda: f"cmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))

    async def collect(self) -> dict[str, Any]:
        """Return the whole answer."""
        completions = [Completion() for _ in self.echoes]
        async for progress in self.answers.progress():
            completion = completions[progress.choice]
            completion.text += "".join(event.text or "" for event in progress.tokens)
            completion.events += progress.tokens
            if progress.result is not None:
                completion.finish_reason = FINISH_REASONS[progress.result.finish_reason]
        choices = [
            self._choice(index, self.echoes[index] + each.text, self._logprobs(each.events, 0), each.finish_reason)
            for index, each in enumerate(completions)
        ]
        return self._envelope() | {"choices": choices, "usage": usage(self.record)}

    async def chunks(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the events of a stream."""
        lengths = [0] * len(self.echoes)
        options = self.body.stream_options
        with_usage = options is not None and options.include_usage
        usage_field: dict[str, Any] = {"usage": None} if with_usage else {}
        for index, echo in enumerate(self.echoes):
            if echo:
                yield self._envelope() | {"choices": [self._choice(index, echo, None, None)]} | usage_field
        async for progress in self.answers.progress():
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
    served = state.models.find(body.model)
    served.require(CausalLM, Seq2SeqLM)
    limit = max(1, state.options.max_choices // (body.n or 1))
    prompts = await state.in_thread(text_prompts, served, body.prompt, "prompt", limit)
    wanted = configs(served, body, state.options, max(map(len, prompts)))
    for prompt in prompts:
        check_length(served, prompt, state.options.max_prompt_tokens, "prompt")
    echoes = [_echo(served, body, prompt) for prompt in prompts for _ in wanted]
    keep_text(state, record, "prompt", body.prompt)
    answers = await submit(request, served, prompts, wanted, **_languages(served, body))
    answering = Completions(served, body, answers, record, echoes)
    if body.stream:
        return EventStream(request, answers, answering.chunks())
    with answers:
        answer = await unless_gone(request, answering.collect())
    keep_text(state, record, "answer", [choice["text"] for choice in answer["choices"]])
    return JSONResponse(answer)


def _echo(served: ServedModel, body: CompletionBody, prompt: list[int]) -> str:
    if not body.echo:
        return ""
    if body.logprobs is not None:
        raise ApiError(400, "echo with logprobs is not supported: prompts get no logprobs.", param="echo")
    return served.tokenizer.decode(prompt)


def _languages(served: ServedModel, body: CompletionBody) -> dict[str, Any]:
    names = ("source_language", "target_language")
    given = {name: getattr(body, name) for name in names if getattr(body, name) is not None}
    if given and not isinstance(served.model, Seq2SeqLM):
        name = next(iter(given))
        raise ApiError(400, f"{name} is for models that translate; {served.name!r} does not.", param=name)
    return given
