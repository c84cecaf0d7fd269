"""The routes /v1/messages and /v1/messages/count_tokens, as Anthropic's clients speak them."""

import json
import secrets
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edgeformer.runtime import CausalLM
from edgeformer.runtime.text.thinking.switches import EFFORT
from edgeformer.server.endpoints.chat import Chat, begin_chat, count_chat_tokens
from edgeformer.server.schema.bodies import ChatBody
from edgeformer.server.schema.message_bodies import MessagesBody
from edgeformer.server.service.answers import unless_gone
from edgeformer.server.service.generating import EventStream, keep_text
from edgeformer.server.service.state import body_of, record_of, state_of
from edgeformer.server.tool_calls.format import CallPiece

Event = dict[str, Any]

STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
"""`stop_reason` by the `finish_reason` of a chat."""


@dataclass
class Blocks:
    """The blocks of an answer so far. Its methods yield an event for each change."""

    blocks: list[dict[str, Any]] = field(default_factory=list)
    _open: str = ""  # the type of the last block, if it still grows
    _arguments: str = ""  # of the last call

    def add_thinking(self, piece: str) -> Iterator[Event]:
        """Append text to what the model thinks, or begin it. There is no signature, as nobody checks it."""
        yield from self._begin_text({"type": "thinking", "thinking": "", "signature": ""})
        self.blocks[-1]["thinking"] += piece
        yield self._change({"type": "thinking_delta", "thinking": piece})

    def add_text(self, piece: str) -> Iterator[Event]:
        """Append text to the block that is being written, or begin one."""
        yield from self._begin_text({"type": "text", "text": ""})
        self.blocks[-1]["text"] += piece
        yield self._change({"type": "text_delta", "text": piece})

    def _begin_text(self, block: dict[str, Any]) -> Iterator[Event]:
        """Begin a block that grows, unless one of its type is open already."""
        if self._open != block["type"]:
            yield from self.end()
            self._open = block["type"]
            yield self._begin(block)

    def add_piece(self, piece: CallPiece) -> Iterator[Event]:
        """Append a part of a call, or begin one."""
        if piece.begins:
            yield from self.end()
            self._open = "tool_use"
            self._arguments = ""
            yield self._begin({"type": "tool_use", "id": piece.id, "name": piece.name, "input": {}})
        self._arguments += piece.arguments
        yield self._change({"type": "input_json_delta", "partial_json": piece.arguments})
        if piece.ends:
            self.blocks[-1]["input"] = json.loads(self._arguments)
            yield from self.end()

    def end(self) -> Iterator[Event]:
        """End the block that is being written, if there is one."""
        if self._open:
            self._open = ""
            yield self._stop()

    def _begin(self, block: dict[str, Any]) -> Event:
        self.blocks.append(block)
        return {"type": "content_block_start", "index": len(self.blocks) - 1, "content_block": dict(block)}

    def _change(self, delta: dict[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": len(self.blocks) - 1, "delta": delta}

    def _stop(self) -> Event:
        return {"type": "content_block_stop", "index": len(self.blocks) - 1}


@dataclass
class AnsweringMessage:
    """A request that is being answered."""

    body: MessagesBody
    chat: Chat
    blocks: Blocks = field(default_factory=Blocks)
    id: str = field(default_factory=lambda: f"msg_{secrets.token_hex(12)}")

    async def events(self) -> AsyncIterator[Event]:
        """Yield all events."""
        yield {"type": "message_start", "message": self._message([], None, None)}
        async for _, delta in self.chat.changes():
            for event in self.blocks.add_thinking(delta.reasoning) if delta.reasoning else ():
                yield event
            for event in self.blocks.add_text(delta.text) if delta.text else ():
                yield event
            for piece in delta.pieces:
                for event in self.blocks.add_piece(piece):
                    yield event
        for event in self.blocks.end():
            yield event
        reason, sequence = self._ending()
        ending = {"stop_reason": reason, "stop_sequence": sequence}
        yield {"type": "message_delta", "delta": ending, "usage": self._usage()}
        yield {"type": "message_stop"}

    async def collect(self) -> dict[str, Any]:
        """Return the whole answer."""
        async for _ in self.events():
            pass
        return self._message(self.blocks.blocks, *self._ending())

    def _message(self, blocks: list[dict[str, Any]], reason: str | None, sequence: str | None) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.chat.served.name,
            "content": blocks,
            "stop_reason": reason,
            "stop_sequence": sequence,
            "usage": self._usage(),
        }

    def _ending(self) -> tuple[str, str | None]:
        """Return the reason of the end, and the stop sequence that it was."""
        [choice] = self.chat.choices
        assert choice.finish_reason is not None
        sequence = choice.stopped_at(self.chat.served.tokenizer, self.body.stop_sequences or ())
        if sequence is not None and choice.finish_reason == "stop":
            return "stop_sequence", sequence
        return STOP_REASONS[choice.finish_reason], None

    def _usage(self) -> dict[str, Any]:
        record = self.chat.record
        return {
            "input_tokens": record.prompt_tokens - record.cached_tokens,
            "cache_read_input_tokens": record.cached_tokens,
            "cache_creation_input_tokens": 0,
            "output_tokens": record.completion_tokens,
        }


async def _as_chat(request: Request, body: MessagesBody) -> ChatBody:
    """Return a request as a chat, without what clients ask of every model, and this one cannot do.

    They have to say how long an answer may become, and name what their own models could write.
    """
    state, record = state_of(request), record_of(request)
    served = await state.models.use(body.model, record)
    if served.picture_transcriber is None:
        served.require(CausalLM)
    chat, left_out = body.as_chat(), {}
    if served.tokenizer.thinking_format is None and body.thinking is not None:
        left_out = {"thinking": None}
        if body.thinking.type != "disabled":
            record.warnings.append(f"thinking is left out: {served.name!r} does not think")
    if chat.reasoning_effort is not None and EFFORT not in served.tokenizer.template_variables(bool(chat.tools)):
        left_out |= {"reasoning_effort": None}
        record.warnings.append("output_config.effort is left out: the chat template does not read it")
    return chat.model_copy(update=left_out)


async def messages(request: Request) -> Response:
    """Answer a conversation (Anthropic's API)."""
    body = await body_of(request, MessagesBody)
    answering = AnsweringMessage(body, await begin_chat(request, await _as_chat(request, body), "messages", cut=True))
    answers = answering.chat.answers
    if body.stream:
        return EventStream(request, answers, answering.events(), named=True, nested_errors=True)
    with answers:
        answer = await unless_gone(request, answering.collect())
    keep_text(state_of(request), record_of(request), "answer", [answering.chat.choices[0].text])
    return JSONResponse(answer)


async def count_tokens(request: Request) -> Response:
    """Return how many tokens a conversation has (Anthropic's API)."""
    body = await body_of(request, MessagesBody)
    return JSONResponse({"input_tokens": await count_chat_tokens(request, await _as_chat(request, body), "messages")})
