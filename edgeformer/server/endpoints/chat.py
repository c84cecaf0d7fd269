"""The route /v1/chat/completions."""

import secrets
import time
from collections.abc import AsyncIterator, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edgeformer.errors import RequestError
from edgeformer.runtime import CausalLM, Generation, Seq2SeqLM, TokenEvent
from edgeformer.runtime.text.thinking.reader import Divided, ThinkingStream
from edgeformer.runtime.text.tokenizer import Tokenizer
from edgeformer.server.endpoints.logprobs import chat_logprobs
from edgeformer.server.schema.answer_forms import form_error, tool_warnings, warnings_of
from edgeformer.server.schema.api_errors import ApiError, as_api_error, param_of
from edgeformer.server.schema.bodies import ChatBody
from edgeformer.server.schema.thinking import thinking_budget
from edgeformer.server.service.answers import Answers, Progress, unless_gone
from edgeformer.server.service.config_of_body import configs, skips_special_tokens
from edgeformer.server.service.generating import FINISH_REASONS, EventStream, keep_text, submit, usage
from edgeformer.server.service.media import media_of, only_picture
from edgeformer.server.service.prompts import ChatPrompt, chat_prompt, check_length
from edgeformer.server.service.records import Record
from edgeformer.server.service.served import ServedModel
from edgeformer.server.service.state import State, body_of, record_of, state_of
from edgeformer.server.tool_calls.format import Call, CallPiece
from edgeformer.server.tool_calls.reader import ToolCallReader


@dataclass(frozen=True)
class Delta:
    """New parts of an answer: text that the model thinks, text that it says, calls that are complete, and pieces.

    said: the tokens of the text that the model says, without those of marks.
    """

    reasoning: str = ""
    text: str = ""
    calls: Sequence[Call] = ()
    pieces: Sequence[CallPiece] = ()
    said: Sequence[TokenEvent] = ()


@dataclass
class Choice:
    """One answer of a chat so far.

    stream: divides its tokens into thinking and text with marks, which `reader` divides into text and calls. None where
    the text of the tokens is the answer. hidden: special tokens without a text.
    """

    stream: ThinkingStream | None
    reader: ToolCallReader | None
    one_call: bool
    hidden: Collection[int] = ()
    reasoning: str = ""
    text: str = ""
    calls: list[Call] = field(default_factory=list)
    events: list[TokenEvent] = field(default_factory=list)
    finish_reason: str | None = None
    result: Generation | None = None
    _unsaid: list[TokenEvent] = field(default_factory=list)  # tokens whose text may come

    def stopped_at(self, tokenizer: Tokenizer, stop: Sequence[str]) -> str | None:
        """Return the stop text at which the answer ended, or None."""
        if self.result is None or self.result.finish_reason != "stop":
            return None
        text = tokenizer.decode(self.result.token_ids, skip_special_tokens=False)
        found = [(text.find(each.strip()), each) for each in stop if each.strip() in text]
        return min(found)[1] if found else None

    def advance(self, progress: Progress) -> Delta:
        """Take new tokens; return what they add."""
        delta = self._read(progress)
        self.reasoning += delta.reasoning
        self.text += delta.text
        self.calls += delta.calls
        self.events += progress.tokens
        if progress.result is not None:
            self.result = progress.result
            self.finish_reason = self._finish_reason(progress.result)
        return delta

    def _read(self, progress: Progress) -> Delta:
        if self.stream is None:
            said = [each for each in progress.tokens if each.token_id not in self.hidden]
            return Delta(text="".join(each.text or "" for each in progress.tokens), said=said)
        pieces = list(map(self._divide, progress.tokens))
        pieces += [self.stream.finish()] if progress.result is not None else []
        reasoning, text = ("".join(each) for each in zip(*pieces, strict=True)) if pieces else ("", "")
        if self.reader is None:
            return Delta(reasoning, text, said=self._said(text))
        text, calls = self.reader.push(text)
        if progress.result is not None:
            rest, more = self.reader.finish()
            text, calls = text + rest, calls + more
        written = self.reader.take_pieces()
        said = self._said(text, called=bool(calls or written))
        if self.one_call:
            calls = calls[: 1 - len(self.calls)]
            written = [piece for piece in written if piece.place == 0]
        return Delta(reasoning, text, calls, written, said)

    def _divide(self, event: TokenEvent) -> Divided:
        """Return what a token adds, and keep it if it may be of the answer's text: neither thought nor a mark."""
        assert self.stream is not None
        before = self.stream.reasoning_tokens
        divided = self.stream.push(event.token_id)
        if self.stream.reasoning_tokens > before:
            self._unsaid.clear()
        elif event.token_id not in self.hidden:
            self._unsaid.append(event)
        return divided

    def _said(self, text: str, *, called: bool = False) -> list[TokenEvent]:
        """Return the tokens of new text. called: whether there is a call, which other tokens are of."""
        if not text and not called:
            return []
        said, self._unsaid = self._unsaid, []
        return said if text else []

    @property
    def reasoning_tokens(self) -> int:
        """Tokens that the model thought."""
        return 0 if self.stream is None else self.stream.reasoning_tokens

    def _finish_reason(self, result: Generation) -> str:
        return "tool_calls" if self.calls else FINISH_REASONS[result.finish_reason]


@dataclass
class Chat:
    """A chat that is being answered."""

    served: ServedModel
    body: ChatBody
    prompt: ChatPrompt
    answers: Answers
    record: Record
    choices: list[Choice]
    id: str = field(default_factory=lambda: f"chatcmpl-{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))

    async def changes(self) -> AsyncIterator[tuple[Progress, Delta]]:
        """Yield what comes, and what it adds to its choice, until all choices have ended."""
        async for progress in self.answers.progress():
            delta = self.choices[progress.choice].advance(progress)
            self.record.reasoning_tokens = sum(each.reasoning_tokens for each in self.choices)
            yield progress, delta

    async def collect(self) -> dict[str, Any]:
        """Return the whole answer."""
        async for _ in self.changes():
            pass
        return self._envelope("chat.completion") | {
            "choices": [self._choice(index, choice) for index, choice in enumerate(self.choices)],
            "usage": usage(self.record),
        }

    def _choice(self, index: int, choice: Choice) -> dict[str, Any]:
        calls = [call.as_json() for call in choice.calls]
        message: dict[str, Any] = {"role": "assistant", "content": choice.text or (None if calls else "")}
        if choice.reasoning:
            message["reasoning_content"] = choice.reasoning
        if calls:
            message["tool_calls"] = calls
        logprobs = chat_logprobs(self.served, choice.events) if self.body.logprobs else None
        return {
            "index": index,
            "message": message | {"refusal": None},
            "logprobs": logprobs,
            "finish_reason": choice.finish_reason,
        }

    async def chunks(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the events of a stream."""
        for index in range(len(self.choices)):
            yield self._chunk(index, {"role": "assistant", "content": ""})
        async for progress, delta in self.changes():
            logprobs = chat_logprobs(self.served, progress.tokens) if self.body.logprobs else None
            if delta.reasoning:
                yield self._chunk(progress.choice, {"reasoning_content": delta.reasoning})
            if delta.text or (logprobs and progress.tokens):
                yield self._chunk(progress.choice, {"content": delta.text}, logprobs)
            for piece in delta.pieces:
                yield self._chunk(progress.choice, {"tool_calls": [piece.as_json()]})
            if progress.result is not None:
                yield self._chunk(progress.choice, {}, finish_reason=self.choices[progress.choice].finish_reason)
        if self._includes_usage:
            yield self._envelope("chat.completion.chunk") | {"choices": [], "usage": usage(self.record)}

    @property
    def _includes_usage(self) -> bool:
        return self.body.stream_options is not None and self.body.stream_options.include_usage

    def _chunk(
        self, index: int, delta: dict[str, Any], logprobs: Any = None, finish_reason: str | None = None
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}
        usage_field = {"usage": None} if self._includes_usage else {}
        return self._envelope("chat.completion.chunk") | {"choices": [choice]} | usage_field

    def _envelope(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.served.name}


async def _prompt(request: Request, body: ChatBody, param: str) -> tuple[ServedModel, ChatPrompt]:
    """Return the model of a conversation, and its prompt."""
    state = state_of(request)
    served = await state.models.use(body.model, record_of(request))
    if served.picture_transcriber is not None:
        return served, await _source_prompt(state, served, served.picture_transcriber, body)
    model = served.require(CausalLM)
    media = await state.read_media(media_of, served, body.messages, state.options)
    try:
        prompt = await state.in_thread(chat_prompt, served, body)
    except RequestError as error:
        raise as_api_error(error, param_of(error) or param) from None
    if not media.media:
        return served, prompt
    most = min(served.context_length, state.options.max_prompt_tokens or served.context_length)
    seen = await state.decode(media.seen, model, prompt.tokens, most)
    return served, replace(prompt, tokens=seen.shown, seen=seen)


async def _source_prompt(state: State, served: ServedModel, model: Seq2SeqLM, body: ChatBody) -> ChatPrompt:
    """Return the prompt of a model that writes the text of a picture, the only part of its conversation."""
    if body.tools:
        raise ApiError(400, f"the model {served.name!r} has no tools.", code="no_tools", param="tools")
    media = await state.read_media(only_picture, served, body.messages, state.options)
    pixels = await state.decode(media.pixels, model)
    return ChatPrompt(model.start_prompt(None), source=pixels, positions=model.source_positions)


async def count_chat_tokens(request: Request, body: ChatBody, param: str) -> int:
    """Return how many tokens a conversation has. param: the field that has it, for errors."""
    return (await _prompt(request, body, param))[1].length


async def begin_chat(request: Request, body: ChatBody, param: str, *, cut: bool = False) -> Chat:
    """Submit a conversation to its model. param: the field that has it, for errors.

    cut: lower the length of the answer to what the context leaves, where the request names more.
    """
    state, record = state_of(request), record_of(request)
    served, prompt = await _prompt(request, body, param)
    body = body.model_copy(update={"thinking_budget": thinking_budget(body)})
    check_length(served, prompt.tokens, state.options.max_prompt_tokens, param)
    room = max(1, served.context_length - len(prompt.tokens))
    if cut and (body.max_completion_tokens or 0) > room:
        body = body.model_copy(update={"max_completion_tokens": room})
        record.warnings.append(f"max_tokens is lowered to {room}, which the context leaves")
    wanted = configs(served, body, state.options, len(prompt.tokens), prompt.grammar)
    record.warnings += warnings_of(body) + (tool_warnings(prompt.functions) if prompt.grammar is not None else [])
    keep_text(state, record, "prompt", [message.model_dump(exclude_none=True) for message in body.messages])
    try:
        source = prompt.seen or prompt.tokens if prompt.source is None else prompt.source
        answers = await submit(request, served, [source], wanted)
    except RequestError as error:
        raise form_error(error, prompt.grammar is not None) from None
    record.prompt_tokens = prompt.length
    choices = [_choice(served, body, prompt, config.stop) for config in wanted]
    return Chat(served, body, prompt, answers, record, choices)


def _choice(served: ServedModel, body: ChatBody, prompt: ChatPrompt, stop: Sequence[str]) -> Choice:
    tokenizer, format = served.tokenizer, prompt.tool_format
    one_call = body.parallel_tool_calls is False
    if format is None and tokenizer.thinking_format is None:
        return Choice(None, None, one_call, tokenizer.special_tokens.keys())
    marks = {} if format is None else {id: mark for mark, id in served.special_marks.items()}
    if not skips_special_tokens(body):
        ends = served.model.manifest.tokens.eos
        marks = {id: text for id, text in tokenizer.special_tokens.items() if id not in ends} | marks
    is_open = prompt.is_thinking
    stream = ThinkingStream(tokenizer, tokenizer.thinking_format, is_open=is_open, stop=stop, spelled=marks)
    reader = None if format is None else ToolCallReader(format, prompt.functions, in_pieces=body.stream is True)
    return Choice(stream, reader, one_call, tokenizer.special_tokens.keys() - marks.keys())


async def chat_completions(request: Request) -> Response:
    """Answer a conversation."""
    body = await body_of(request, ChatBody)
    chat = await begin_chat(request, body, "messages")
    if body.stream:
        return EventStream(request, chat.answers, chat.chunks())
    with chat.answers:
        answer = await unless_gone(request, chat.collect())
    keep_text(state_of(request), chat.record, "answer", [choice.text for choice in chat.choices])
    return JSONResponse(answer)
