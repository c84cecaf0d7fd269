"""LiteLLM, by its providers `hosted_vllm`, `openai`, `llamafile` and `anthropic`."""

import json
import os
import sys
from typing import Literal

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

import litellm
from litellm import completion
from pydantic import BaseModel

url, model = sys.argv[1:]
litellm.suppress_debug_info = True
question = [{"role": "user", "content": "What is 345 + 278?"}]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tells the weather of a city.",
            "parameters": {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]},
        },
    }
]


class Verdict(BaseModel):
    """The form of a structured answer."""

    label: Literal["good", "bad"]
    stars: Literal[1, 2, 3]


def say(call: str, value: object) -> None:
    """Print what came back."""
    print(call, json.dumps(value))


for provider, base in {
    "openai": f"{url}/v1", "hosted_vllm": f"{url}/v1", "llamafile": f"{url}/v1", "anthropic": url,
}.items():  # fmt: skip
    options = {"model": f"{provider}/{model}", "api_base": base, "api_key": "none"}
    response = completion(messages=question, **options)
    say(f"{provider} chat", response.choices[0].message.content)
    chunks = list(completion(messages=question, stream=True, **options))
    say(f"{provider} stream", [chunk.choices[0].delta.content for chunk in chunks if chunk.choices[0].delta.content])

    messages = [{"role": "user", "content": "What is the weather in Paris?"}]
    response = completion(messages=messages, tools=TOOLS, tool_choice="auto", **options)
    message = response.choices[0].message
    say(f"{provider} tool call", [json.loads(call.function.arguments) for call in message.tool_calls])
    messages.append(message)
    messages += [
        {"tool_call_id": call.id, "role": "tool", "name": call.function.name, "content": "22 degrees and sunny"}
        for call in message.tool_calls
    ]
    say(f"{provider} tool answer", completion(messages=messages, tools=TOOLS, **options).choices[0].message.content)

    chunks = list(completion(messages=messages[:1], tools=TOOLS, stream=True, **options))
    built = litellm.stream_chunk_builder(chunks, messages=messages[:1])
    calls = [json.loads(call.function.arguments) for call in built.choices[0].message.tool_calls]
    say(f"{provider} streamed tool call", calls)

    response = completion(messages=question, response_format=Verdict, max_tokens=100, **options)
    say(f"{provider} structured", json.loads(response.choices[0].message.content))
