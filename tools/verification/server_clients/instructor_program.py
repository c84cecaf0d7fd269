"""Instructor, in its modes over OpenAI's and Anthropic's clients."""

import json
import sys
from typing import Literal

import anthropic
import instructor
from openai import OpenAI
from pydantic import BaseModel

url, model = sys.argv[1:]


class Author(BaseModel):
    """A class within the other one, which needs `$defs`."""

    name: Literal["Tom", "Anna"]


class Verdict(BaseModel):
    """The form of a structured answer."""

    label: Literal["good", "bad"]
    stars: Literal[1, 2, 3]
    author: Author


def say(call: str, value: object) -> None:
    """Print what came back."""
    print(call, json.dumps(value))


question = [{"role": "user", "content": "What is 345 + 278?"}]
openai = OpenAI(base_url=f"{url}/v1", api_key="none")
for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA):
    client = instructor.from_openai(openai, mode=mode)
    found = client.chat.completions.create(model=model, response_model=Verdict, messages=question)
    say(f"{mode.name} structured", found.model_dump())
    pieces = list(client.chat.completions.create_partial(model=model, response_model=Verdict, messages=question))
    say(f"{mode.name} partial", len(pieces))
    say(f"{mode.name} streamed structured", pieces[-1].model_dump())
claude = anthropic.Anthropic(base_url=url, api_key="none")
client = instructor.from_anthropic(claude, mode=instructor.Mode.ANTHROPIC_TOOLS)
found = client.messages.create(model=model, max_tokens=100, response_model=Verdict, messages=question)
say("ANTHROPIC_TOOLS structured", found.model_dump())
