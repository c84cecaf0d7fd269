"""Anthropic's client: messages, streams, tools over two turns, structured output, counts, and a tool runner."""

import json
import sys
from typing import Literal

import anthropic
from anthropic import beta_tool
from pydantic import BaseModel

url, model = sys.argv[1:]
client = anthropic.Anthropic(base_url=url, api_key="none")
question = [{"role": "user", "content": "What is 345 + 278?"}]
TOOLS = [
    {
        "name": "weather",
        "description": "Tells the weather of a city.",
        "input_schema": {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]},
    }
]


class Verdict(BaseModel):
    """The form of a structured answer."""

    label: Literal["good", "bad"]
    stars: Literal[1, 2, 3]


def say(call: str, value: object) -> None:
    """Print what came back."""
    print(call, json.dumps(value))


message = client.messages.create(model=model, max_tokens=100, messages=question)
say("chat", message.content[0].text)

with client.messages.stream(model=model, max_tokens=100, messages=question) as stream:
    say("stream", list(stream.text_stream))
    say("usage", stream.get_final_message().usage.output_tokens)

say("count", client.messages.count_tokens(model=model, messages=question).input_tokens)

messages = [{"role": "user", "content": "What is the weather in Paris?"}]
response = client.messages.create(model=model, max_tokens=100, tools=TOOLS, messages=messages)
calls = [block for block in response.content if block.type == "tool_use"]
say("tool call", [call.input for call in calls])
messages += [
    {"role": "assistant", "content": response.content},
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": call.id, "content": "22 degrees and sunny"} for call in calls
        ],
    },
]
response = client.messages.create(model=model, max_tokens=100, tools=TOOLS, messages=messages)
say("tool answer", response.content[0].text)

with client.messages.stream(model=model, max_tokens=100, tools=TOOLS, messages=messages[:1]) as stream:
    pieces = [event.partial_json for event in stream if event.type == "input_json"]
    say("streamed tool call", [block.input for block in stream.get_final_message().content if block.type == "tool_use"])
say("pieces of arguments", len(pieces))

forced = client.messages.create(
    model=model, max_tokens=100, tools=TOOLS, messages=[{"role": "user", "content": "Hello"}],
    tool_choice={"type": "tool", "name": "weather"},
)  # fmt: skip
say("required tool", forced.content[0].name)

parsed = client.messages.parse(model=model, max_tokens=100, messages=question, output_format=Verdict)
say("structured", parsed.parsed_output.model_dump())


@beta_tool
def weather(city: Literal["Paris", "Rome"]) -> str:
    """Tells the weather of a city.

    Args:
        city: its name
    """
    return f"22 degrees and sunny in {city}"


runner = client.beta.messages.tool_runner(model=model, max_tokens=100, tools=[weather], messages=messages[:1])
say("tool runner", [block.text for block in runner.until_done().content])

thinking = client.messages.create(
    model=model, max_tokens=2000, messages=question, thinking={"type": "enabled", "budget_tokens": 1024}
)
say("thinking", [block.type for block in thinking.content])
