"""The route /v1/responses: a chat whose answer is a list of items (thoughts, messages, calls), in events as it comes.

Nothing is stored: a request has the whole conversation.
"""

import secrets
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edgeformer.server.endpoints.chat import Chat, Delta, begin_chat, count_chat_tokens
from edgeformer.server.endpoints.logprobs import chat_logprobs
from edgeformer.server.schema.custom_tools import CustomTool, InputPieces
from edgeformer.server.schema.response_bodies import OPTION_NAMES, ResponseBody
from edgeformer.server.service.answers import unless_gone
from edgeformer.server.service.generating import EventStream, keep_text
from edgeformer.server.service.state import body_of, record_of, state_of
from edgeformer.server.tool_calls.format import CallPiece

Event = dict[str, Any]

CALLS = {"function_call": ("fc", "arguments"), "custom_tool_call": ("ctc", "input")}
"""The beginning of ids of items that are calls, and the field of them that grows, by their types."""


@dataclass
class Output:
    """The items of an answer so far. Its methods yield an event for each change, without a number yet.

    custom: names of custom tools, whose calls have a text in place of arguments.
    """

    custom: frozenset[str] = frozenset()
    items: list[dict[str, Any]] = field(default_factory=list)
    _open: str = ""  # the type of the last item, if it is one that grows
    _input: InputPieces = field(default_factory=InputPieces)  # of a custom tool, while it is the last item

    def add_reasoning(self, piece: str) -> Iterator[Event]:
        """Append text to what the model thinks, or begin it."""
        yield from self._begin_text("reasoning", {"summary": []}, {"type": "reasoning_text", "text": ""})
        self.items[-1]["content"][0]["text"] += piece
        yield self._change("reasoning_text.delta", content_index=0, delta=piece)

    def add_text(self, piece: str, logprobs: list[dict[str, Any]]) -> Iterator[Event]:
        """Append text to the message that is being written, or begin one. logprobs: of its tokens, if wanted."""
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        yield from self._begin_text("message", {"role": "assistant"}, part)
        self.items[-1]["content"][0]["text"] += piece
        self.items[-1]["content"][0]["logprobs"] += logprobs
        yield self._change("output_text.delta", content_index=0, delta=piece, logprobs=logprobs)

    def _begin_text(self, kind: str, fields: dict[str, Any], part: dict[str, Any]) -> Iterator[Event]:
        """Begin an item with one part of text, unless it is open already."""
        if self._open == kind:
            return
        yield from self.end_item("incomplete" if self._open in CALLS else "completed")
        self._open = kind
        id = f"{'msg' if kind == 'message' else 'rs'}_{secrets.token_hex(12)}"
        yield self._begin({"type": kind, "id": id, "content": []} | fields)
        self.items[-1]["content"] = [part]
        yield self._change("content_part.added", content_index=0, part=dict(part))

    def add_piece(self, piece: CallPiece) -> Iterator[Event]:
        """Append a part of a call, or begin one."""
        if piece.begins:
            yield from self.end_item("completed")
            self._open = "custom_tool_call" if piece.name in self.custom else "function_call"
            id, content = CALLS[self._open]
            item = {"type": self._open, "id": f"{id}_{secrets.token_hex(12)}", "call_id": piece.id}
            self._input = InputPieces()
            yield self._begin(item | {"name": piece.name, content: ""})
        is_custom = self._open == "custom_tool_call"
        text = self._input.push(piece.arguments) if is_custom else piece.arguments
        if is_custom and piece.ends:
            text += self._input.finish()
        content = CALLS[self._open][1]
        self.items[-1][content] += text
        if text:
            yield self._change(f"{self._open}_{content}.delta", delta=text)
        if piece.ends:
            yield from self.end_item("completed")

    def end_item(self, status: str) -> Iterator[Event]:
        """End the item that is being written, if there is one; a call that is ended by another item is incomplete."""
        if not self._open:
            return
        if self._open in CALLS:
            name, content = self._open, CALLS[self._open][1]
            self._open = ""
            yield self._change(f"{name}_{content}.done", **{content: self.items[-1][content]})
            yield self._end(status)
            return
        self._open = ""
        [part] = self.items[-1]["content"]
        logprobs = {"logprobs": part["logprobs"]} if "logprobs" in part else {}
        yield self._change(f"{part['type']}.done", content_index=0, text=part["text"], **logprobs)
        yield self._change("content_part.done", content_index=0, part=part)
        yield self._end(status)

    def _begin(self, item: dict[str, Any]) -> Event:
        item["status"] = "in_progress"
        self.items.append(item)
        return {"type": "response.output_item.added", "output_index": len(self.items) - 1, "item": dict(item)}

    def _change(self, name: str, **fields: object) -> Event:
        place = {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}
        return {"type": f"response.{name}"} | place | fields

    def _end(self, status: str) -> Event:
        self.items[-1]["status"] = status
        return {"type": "response.output_item.done", "output_index": len(self.items) - 1, "item": self.items[-1]}


@dataclass
class Responding:
    """A request that is being answered."""

    body: ResponseBody
    chat: Chat
    output: Output
    id: str = field(default_factory=lambda: f"resp_{secrets.token_hex(12)}")
    created: int = field(default_factory=lambda: int(time.time()))

    async def events(self) -> AsyncIterator[Event]:
        """Yield all events with their numbers; the last one has the whole answer."""
        number = 0
        async for event in self._events():
            yield event | {"sequence_number": number}
            number += 1

    async def _events(self) -> AsyncIterator[Event]:
        for name in ("created", "in_progress"):
            yield {"type": f"response.{name}", "response": self.response("in_progress")}
        async for _, delta in self.chat.changes():
            for event in self.output.add_reasoning(delta.reasoning) if delta.reasoning else ():
                yield event
            for event in self.output.add_text(delta.text, self._logprobs(delta)) if delta.text else ():
                yield event
            for piece in delta.pieces:
                for event in self.output.add_piece(piece):
                    yield event
        status = "incomplete" if self.chat.choices[0].finish_reason == "length" else "completed"
        for event in self.output.end_item(status):
            yield event
        yield {"type": f"response.{status}", "response": self.response(status)}

    def _logprobs(self, delta: Delta) -> list[dict[str, Any]]:
        entries = chat_logprobs(self.chat.served, delta.said)["content"] if self.body.wants_logprobs else []
        return list(entries)

    async def collect(self) -> dict[str, Any]:
        """Return the whole answer."""
        async for event in self.events():
            last = event
        response: dict[str, Any] = last["response"]
        return response

    def response(self, status: str) -> dict[str, Any]:
        """Return the answer as it is now; status: of it."""
        body, ended = self.body, status != "in_progress"
        text = body.text.model_dump(by_alias=True, exclude_none=True) if body.text is not None else {}
        choice = body.tool_choice
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": {},
            "model": self.chat.served.name,
            "output": self.output.items if ended else [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": next(iter(body.efforts().values()), None), "summary": None},
            "store": False,
            **{name: getattr(body, name) for name in OPTION_NAMES},
            "text": {"format": {"type": "text"}} | text,
            "tool_choice": "auto" if choice is None else choice if isinstance(choice, str) else choice.model_dump(),
            "tools": [tool.model_dump() for tool in body.tools or ()],
            "top_logprobs": body.top_logprobs or 0,
            "truncation": "disabled",
            "usage": self._usage() if ended else None,
        }

    def _usage(self) -> dict[str, Any]:
        record = self.chat.record
        return {
            "input_tokens": record.prompt_tokens,
            "input_tokens_details": {"cached_tokens": record.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": record.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": record.reasoning_tokens},
            "total_tokens": record.prompt_tokens + record.completion_tokens,
        }


async def responses(request: Request) -> Response:
    """Answer a conversation with items; nothing is stored."""
    body = await body_of(request, ResponseBody)
    custom = [tool for tool in body.tools or () if isinstance(tool, CustomTool)]
    chat = await begin_chat(request, body.as_chat(), "input")
    responding = Responding(body, chat, Output(frozenset(tool.name for tool in custom)))
    if any(tool.has_lark for tool in custom):
        reason = (
            "the model reads grammars of Lark of custom tools, but is not held to them; those of regex are followed"
        )
        chat.record.warnings.append(reason)
    answers = responding.chat.answers
    if body.stream:
        return EventStream(request, answers, responding.events(), named=True)
    with answers:
        answer = await unless_gone(request, responding.collect())
    keep_text(state_of(request), record_of(request), "answer", [responding.chat.choices[0].text])
    return JSONResponse(answer)


async def input_tokens(request: Request) -> Response:
    """Return how many tokens the input of a response has."""
    body = await body_of(request, ResponseBody)
    count = await count_chat_tokens(request, body.as_chat(), "input")
    return JSONResponse({"object": "response.input_tokens", "input_tokens": count})
