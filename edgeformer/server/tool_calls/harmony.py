"""Harmony, in which gpt-oss writes every answer: messages in channels.

    <|channel|>analysis<|message|>I should look.<|end|>
    <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"city": "Rome"}<|call|>
    <|start|>assistant<|channel|>final<|message|>It is sunny.<|return|>

The prompt ends with `<|start|>assistant`. The recipient may stand before the channel. Text of the channel `analysis`
is thinking; `final`, and `commentary` without a recipient, is the answer. Described in OpenAI's harmony cookbook.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgeformer.server.tool_calls.format import Block, ToolFormat, Tools, call
from edgeformer.server.tool_calls.lark import Lark
from edgeformer.server.tool_calls.source import NotACall, Reading, Source

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
END, RETURN, CALL = "<|end|>", "<|return|>", "<|call|>"
RECIPIENT = re.compile(r"\bto=(functions\.)?([\w.:/-]+)")


@dataclass(frozen=True, kw_only=True)
class Harmony(ToolFormat):
    """Messages in channels."""

    def starts(self, tools: Tools) -> Sequence[str]:
        """Return texts that begin a call where an answer begins: behind the role is the recipient."""
        return ("to=functions.",)

    def read(self, source: Source, tools: Tools) -> Reading[Block]:
        """Read a header, and the arguments if it is one of a call."""
        header = yield from source.until(MESSAGE)
        recipient = RECIPIENT.search(header)
        if recipient is None or (recipient[1] is None and recipient[2] not in tools):
            return Block(thinks_until=END if f"{CHANNEL}analysis" in header else "")
        yield from source.skip_space()
        if (yield from source.peek()) == "{":
            arguments = yield from source.json(begins=source.begin(recipient[2]))
        elif (yield from source.take(CALL)) or not (yield from source.peek()):
            arguments = {}
        else:
            raise NotACall
        end = source.at
        yield from source.skip_space()
        if not (yield from source.take(CALL, END)):
            source.at = end
        return Block([call(recipient[2], arguments)])

    def call_rule(self, lark: Lark, name: str, parameters: Mapping[str, Any]) -> str:
        """Return the expression of a call."""
        begin = f"{CHANNEL}commentary to=functions.{name} {CONSTRAIN}json{MESSAGE}"
        return f"{lark.text(begin)} {lark.json(parameters)}"

    def grammar(
        self,
        functions: Sequence[Mapping[str, Any]],
        special: Mapping[str, int],
        *,
        forced: bool,
        answer_schema: Mapping[str, Any] | None = None,
    ) -> str:
        """Return a grammar of answers: messages of the channels, and a call or the final one at the end."""
        lark = Lark(special)
        one = lark.any_of([self.call_rule(lark, each["name"], each.get("parameters") or {}) for each in functions])
        if forced:
            return lark.grammar(one)
        text = lark.free_text()
        before = " ".join(
            [lark.text(CHANNEL), "/analysis|commentary/", lark.text(MESSAGE), text, lark.text(f"{END}{START}assistant")]
        )
        answer = text if answer_schema is None else lark.json(answer_schema)
        return lark.grammar(f"({before})* ({one} | {lark.text(f'{CHANNEL}final{MESSAGE}')} {answer})")
