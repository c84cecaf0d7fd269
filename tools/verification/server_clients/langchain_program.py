"""LangChain's models of OpenAI and Anthropic: invoke, stream, tools over two turns, structured output."""

import json
import sys
from typing import Literal

from langchain_anthropic import ChatAnthropic
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

url, model = sys.argv[1:]


class Verdict(BaseModel):
    """The form of a structured answer."""

    label: Literal["good", "bad"] = Field(description="what it is")
    stars: Literal[1, 2, 3]


@tool
def weather(city: Literal["Paris", "Rome"]) -> str:
    """Tells the weather of a city."""
    return f"22 degrees and sunny in {city}"


def say(call: str, value: object) -> None:
    """Print what came back."""
    print(call, json.dumps(value))


models = {
    "openai": ChatOpenAI(model=model, base_url=f"{url}/v1", api_key="none"),
    "responses": ChatOpenAI(model=model, base_url=f"{url}/v1", api_key="none", use_responses_api=True),
    "anthropic": ChatAnthropic(model=model, base_url=url, api_key="none", max_tokens=100),
}
for name, llm in models.items():
    say(f"{name} chat", llm.invoke("What is 345 + 278?").text)
    say(f"{name} stream", [chunk.text for chunk in llm.stream("What is 345 + 278?") if chunk.text])

    llm_with_tools = llm.bind_tools([weather])
    messages = [HumanMessage("What is the weather in Paris?")]
    ai_msg = llm_with_tools.invoke(messages)
    say(f"{name} tool call", [call["args"] for call in ai_msg.tool_calls])
    messages.append(ai_msg)
    messages += [weather.invoke(call) for call in ai_msg.tool_calls]
    say(f"{name} tool answer", llm_with_tools.invoke(messages).text)

    gathered = None
    for chunk in llm_with_tools.stream(messages[:1]):
        gathered = chunk if gathered is None else gathered + chunk
    say(f"{name} streamed tool call", [call["args"] for call in gathered.tool_calls])

    for method in ("json_schema", "function_calling"):
        structured = llm.with_structured_output(Verdict, method=method)
        say(f"{name} structured", structured.invoke("What is 345 + 278?").model_dump())
