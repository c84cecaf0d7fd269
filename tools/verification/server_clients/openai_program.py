"""OpenAI's client: chat, streams, tools over two turns, structured output, completions and responses."""

import json
import sys
from typing import Literal

from openai import OpenAI
from pydantic import BaseModel

url, model = sys.argv[1:]
client = OpenAI(base_url=f"{url}/v1", api_key="none")
question = [{"role": "user", "content": "What is 345 + 278?"}]


class Verdict(BaseModel):
    """The form of a structured answer."""

    label: Literal["good", "bad"]
    stars: Literal[1, 2, 3]


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tells the weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"enum": ["Paris", "Rome"]}},
                "required": ["city"],
                "additionalProperties": False,
            },
            "strict": True,
        },
    }
]


def say(call: str, value: object) -> None:
    """Print what came back."""
    print(call, json.dumps(value))


completion = client.chat.completions.create(model=model, messages=question)
say("chat", completion.choices[0].message.content)

stream = client.chat.completions.create(
    model=model, messages=question, stream=True, stream_options={"include_usage": True}
)
chunks = list(stream)
say("stream", [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content])
say("usage", chunks[-1].usage.completion_tokens)

messages = [{"role": "user", "content": "What is the weather in Paris?"}]
completion = client.chat.completions.create(model=model, messages=messages, tools=TOOLS)
message = completion.choices[0].message
say("tool call", [json.loads(call.function.arguments) for call in message.tool_calls])
messages.append(message)
messages += [
    {"role": "tool", "tool_call_id": call.id, "content": "22 degrees and sunny"} for call in message.tool_calls
]
completion = client.chat.completions.create(model=model, messages=messages, tools=TOOLS)
say("tool answer", completion.choices[0].message.content)

final_tool_calls = {}
stream = client.chat.completions.create(model=model, messages=messages[:1], tools=TOOLS, stream=True)
for chunk in stream:
    for tool_call in chunk.choices[0].delta.tool_calls or []:
        if tool_call.index not in final_tool_calls:
            final_tool_calls[tool_call.index] = tool_call
        else:
            final_tool_calls[tool_call.index].function.arguments += tool_call.function.arguments
say("streamed tool call", [json.loads(call.function.arguments) for call in final_tool_calls.values()])

with client.chat.completions.stream(model=model, messages=messages[:1], tools=TOOLS) as events:
    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    final = events.get_final_completion()
say("stream helper", [event.parsed_arguments or json.loads(event.arguments) for event in done])

hello = [{"role": "user", "content": "Hello"}]
forced = client.chat.completions.create(model=model, messages=hello, tools=TOOLS, tool_choice="required")
say("required tool", forced.choices[0].message.tool_calls[0].function.name)

parsed = client.chat.completions.parse(model=model, messages=question, response_format=Verdict)
say("structured", parsed.choices[0].message.parsed.model_dump())

text = client.completions.create(model=model, prompt="Once upon a time", max_tokens=8, stream=True)
say("completions", [chunk.choices[0].text for chunk in text if chunk.choices[0].text])

response = client.responses.create(model=model, input="What is 345 + 278?")
say("responses", response.output_text)
events = list(client.responses.create(model=model, input="What is 345 + 278?", stream=True))
say("responses stream", [event.delta for event in events if event.type == "response.output_text.delta"])

flat = [{"type": "function", **TOOLS[0]["function"]}]
input_list = [{"role": "user", "content": "What is the weather in Paris?"}]
response = client.responses.create(model=model, tools=flat, input=input_list)
input_list += response.output
for item in response.output:
    if item.type == "function_call":
        say("responses tool call", [json.loads(item.arguments)])
        input_list.append(
            {"type": "function_call_output", "call_id": item.call_id, "output": json.dumps({"weather": "22 degrees"})}
        )
response = client.responses.create(model=model, tools=flat, input=input_list)
say("responses tool answer", response.output_text)
say("responses structured", client.responses.parse(
    model=model, input="What is 345 + 278?", text_format=Verdict).output_parsed.model_dump())  # fmt: skip

city = {"type": "grammar", "syntax": "regex", "definition": "(Paris|Rome), day [1-9]"}
custom = [{"type": "custom", "name": "forecast", "description": "Reads a city and a day.", "format": city}]
asked = {"model": model, "tools": custom, "tool_choice": "required"}
response = client.responses.create(input=[{"role": "user", "content": "Hello"}], **asked)
say("responses custom tool", [item.input for item in response.output if item.type == "custom_tool_call"])
conversation = [{"role": "user", "content": "Hello"}, *response.output]
conversation += [
    {"type": "custom_tool_call_output", "call_id": item.call_id, "output": "Sunny."} for item in response.output
]
after = client.responses.create(model=model, tools=custom, input=conversation)
say("responses custom tool usage", after.usage.input_tokens)
with client.responses.stream(input="Hello", **asked) as events:
    inputs = [event.delta for event in events if event.type == "response.custom_tool_call_input.delta"]
    final = events.get_final_response()
say("responses custom tool pieces", inputs if "".join(inputs) == final.output[0].input else [])

response = client.responses.create(
    model=model, input="What is 345 + 278?", include=["message.output_text.logprobs"], top_logprobs=2
)
part = response.output[0].content[0]
say("responses logprobs", "".join(entry.token for entry in part.logprobs) if part.logprobs[0].top_logprobs else "")
