"""Pydantic AI, by its models of chats, responses and Anthropic: runs, streams, tools, structured output."""

import asyncio
import json
import sys
from typing import Literal

from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

url, model = sys.argv[1:]


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


async def main() -> None:
    """Run agents over each model."""
    openai = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
    models = {
        "chat": OpenAIChatModel(model, provider=openai),
        "responses": OpenAIResponsesModel(model, provider=openai),
        "anthropic": AnthropicModel(
            model, provider=AnthropicProvider(base_url=url, api_key="none"), settings={"max_tokens": 100}
        ),
    }
    for name, llm in models.items():
        agent = Agent(llm)
        result = await agent.run("What is 345 + 278?")
        say(f"{name} chat", result.output)
        async with agent.run_stream("What is 345 + 278?") as streamed:
            say(f"{name} stream", [text async for text in streamed.stream_text(delta=True, debounce_by=None)])

        agent = Agent(llm, tools=[weather])
        result = await agent.run("What is the weather in Paris?")
        calls = [part for message in result.all_messages() for part in message.parts if part.part_kind == "tool-call"]
        say(f"{name} tool call", [call.args_as_dict() for call in calls])
        say(f"{name} tool answer", result.output)
        async with agent.run_stream("What is the weather in Paris?") as streamed:
            say(f"{name} streamed tool answer", await streamed.get_output())

        result = await Agent(llm, output_type=Verdict).run("What is 345 + 278?")
        say(f"{name} structured", result.output.model_dump())
        if name != "anthropic":  # it allows native output by the names of Anthropic's own models
            result = await Agent(llm, output_type=NativeOutput(Verdict)).run("What is 345 + 278?")
            say(f"{name} structured", result.output.model_dump())


asyncio.run(main())
