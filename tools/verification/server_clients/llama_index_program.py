"""LlamaIndex's OpenAILike: complete, chat, stream, tools over two turns, structured output."""

import json
import sys
from typing import Literal

from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

url, model = sys.argv[1:]
llm = OpenAILike(
    model=model,
    api_base=f"{url}/v1",
    api_key="none",
    context_window=1024,
    is_chat_model=True,
    is_function_calling_model=True,
)
question = [ChatMessage(role="user", content="What is 345 + 278?")]


class Verdict(BaseModel):
    """The form of a structured answer."""

    label: Literal["good", "bad"]
    stars: Literal[1, 2, 3]


def weather(city: Literal["Paris", "Rome"]) -> str:
    """Tell the weather of a city."""
    return f"22 degrees and sunny in {city}"


def say(call: str, value: object) -> None:
    """Print what came back."""
    print(call, json.dumps(value))


say("chat", llm.chat(question).message.content)
say("chat", str(llm.complete("What is 345 + 278?")))
say("stream", [each.delta for each in llm.stream_chat(question) if each.delta])

tool = FunctionTool.from_defaults(fn=weather)
history = [ChatMessage(role="user", content="What is the weather in Paris?")]
response = llm.chat_with_tools([tool], chat_history=history)
calls = llm.get_tool_calls_from_response(response)
say("tool call", [call.tool_kwargs for call in calls])
history.append(response.message)
history += [
    ChatMessage(role="tool", content=str(tool(**call.tool_kwargs)), additional_kwargs={"tool_call_id": call.tool_id})
    for call in calls
]
say("tool answer", llm.chat_with_tools([tool], chat_history=history).message.content)

*_, last = llm.stream_chat_with_tools([tool], chat_history=history[:1])
say("streamed tool call", [call.tool_kwargs for call in llm.get_tool_calls_from_response(last)])

say("structured", llm.as_structured_llm(Verdict).chat(question).raw.model_dump())
