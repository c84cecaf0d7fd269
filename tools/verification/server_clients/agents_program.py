"""OpenAI's Agents SDK, over responses and over chats: runs, streams, tools, hand-offs, structured output."""

import asyncio
import json
import sys
from typing import Literal

from agents import (
    Agent,
    AgentOutputSchema,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from pydantic import BaseModel

url, model = sys.argv[1:]
set_tracing_disabled(True)


class Verdict(BaseModel):
    """The form of a structured answer."""

    label: Literal["good", "bad"]
    stars: Literal[1, 2, 3]


@function_tool
def weather(city: Literal["Paris", "Rome"]) -> str:
    """Tell the weather of a city."""
    return f"22 degrees and sunny in {city}"


def say(call: str, value: object) -> None:
    """Print what came back."""
    print(call, json.dumps(value))


async def main() -> None:
    """Run agents over each model."""
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none")
    models = {
        "responses": OpenAIResponsesModel(model=model, openai_client=client),
        "chat": OpenAIChatCompletionsModel(model=model, openai_client=client),
    }
    for name, llm in models.items():
        result = await Runner.run(Agent(name="Assistant", model=llm), "What is 345 + 278?")
        say(f"{name} chat", result.final_output)
        agent = Agent(name="Assistant", instructions="You are helpful.", model=llm, tools=[weather])
        result = await Runner.run(agent, "What is the weather in Paris?")
        say(f"{name} tool answer", result.final_output)
        calls = [item.raw_item for item in result.new_items if item.type == "tool_call_item"]
        say(f"{name} tool call", [json.loads(call.arguments) for call in calls])
        streamed = Runner.run_streamed(agent, "What is the weather in Paris?")
        deltas = [
            event.data.delta
            async for event in streamed.stream_events()
            if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"
        ]
        say(f"{name} streamed tool answer", "".join(deltas))
        forced = Agent(
            name="Assistant", model=llm, tools=[weather], model_settings=ModelSettings(tool_choice="required")
        )
        result = await Runner.run(forced, "Hello")
        required = [item.raw_item.name for item in result.new_items if item.type == "tool_call_item"]
        say(f"{name} required tool", required[0])
        judge = Agent(name="Judge", model=llm, output_type=AgentOutputSchema(Verdict))
        result = await Runner.run(judge, "What is 345 + 278?")
        say(f"{name} structured", result.final_output.model_dump())


asyncio.run(main())
