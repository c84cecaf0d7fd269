"""Count how many sampled outputs of a bundle are valid for their JSON schema, over 20 schemas, and the cost a token.

    python tools/verification/structured_outputs.py tiny-llama              # 1,000 outputs
    python tools/verification/structured_outputs.py tiny-llama --count 100

Every schema bounds its texts and lists, so that an output ends before it is cut; one that is cut counts as invalid. The
validator is the package jsonschema. The cost is processor time, of one thread, of structured and plain steps in turns.
"""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import click
import jsonschema

from edgeformer.runtime import CausalLM, Generation, load_causal_lm

TEXT = {"type": "string", "maxLength": 12}
COUNT = {"type": "integer", "minimum": 0, "maximum": 999}
AMOUNT = {"type": "number", "minimum": -10, "maximum": 10, "multipleOf": 0.25}  # which bounds the digits, too
COLOUR = {"enum": ["red", "green", "blue"]}
DATE = {"type": "string", "format": "date"}


def record(optional: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    """Return the schema of an object with these properties and no others."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def listed(items: Any, most: int = 3, least: int = 0) -> dict[str, Any]:
    """Return the schema of a list."""
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


SCHEMAS: dict[str, dict[str, Any]] = {
    "boolean": {"type": "boolean"},
    "integer": COUNT,
    "number": AMOUNT,
    "text": TEXT,
    "enum": {"enum": ["red", 3, None, True]},
    "const": {"const": {"a": [1, "b"]}},
    "list": listed(COUNT),
    "list of lists": listed(listed(COLOUR, 2, 1), 2, 1),
    "tuple": {"type": "array", "prefixItems": [COUNT, COLOUR], "items": False, "minItems": 2},
    "record": record(name=TEXT, age=COUNT),
    "optional": record(("b", "c"), a=COUNT, b=TEXT, c={"type": "boolean"}),
    "nested": record(person=record(name=TEXT, tags=listed(COLOUR)), score=AMOUNT),
    "list of records": listed(record(id=COUNT, colour=COLOUR), 3, 1),
    "one of two types": {"anyOf": [record(kind={"const": "a"}, n=COUNT), record(kind={"const": "b"}, s=TEXT)]},
    "null or text": record(value={"type": ["null", "string"], "maxLength": 8}),
    "pattern": record(code={"type": "string", "pattern": "^[A-Z]{3}-[0-9]{2,4}$"}),
    "formats": record(day=DATE, id={"type": "string", "format": "uuid"}),
    "reference": {**record(left={"$ref": "#/$defs/leaf"}, right={"$ref": "#/$defs/leaf"}),
                  "$defs": {"leaf": record(("next",), value=COUNT, next={"type": "null"})}},
    "exclusive bounds": record(x={"type": "integer", "exclusiveMinimum": 10, "exclusiveMaximum": 13}),
    "tool call": record(name={"enum": ["search", "add"]}, arguments=record(("limit",), query=TEXT, limit=COUNT)),
}  # fmt: skip

PROMPTS = ("Once upon a time", "The answer as JSON: ", "{", "12 + 30 = ")
MAX_NEW_TOKENS = 400
"""More than the longest text that a schema allows, at one byte a token."""


def outputs(model: CausalLM, count: int) -> Iterator[tuple[str, Generation]]:
    """Yield `count` sampled outputs with the names of their schemas, which take turns."""
    names = list(SCHEMAS)
    for index in range(count):
        name = names[index % len(names)]
        prompt = PROMPTS[index // len(names) % len(PROMPTS)]
        yield (
            name,
            model.generate(
                prompt, json_schema=SCHEMAS[name], temperature=1.0, seed=index, max_new_tokens=MAX_NEW_TOKENS
            ),
        )


def invalid(name: str, output: Generation) -> str | None:
    """Return why an output is not valid for its schema; None if it is."""
    if output.finish_reason == "length":
        return f"cut after {len(output.token_ids)} tokens"
    try:
        validator = jsonschema.Draft202012Validator(
            SCHEMAS[name], format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
        )
        errors = [error.message for error in validator.iter_errors(json.loads(output.text or ""))]
    except ValueError as error:
        errors = [str(error)]
    return f"{output.text!r}: {errors[0]}" if errors else None


def cost(model: CausalLM, rounds: int) -> tuple[float, float]:
    """Return the median ratio of structured steps to plain ones, greedy and sampled, in processor time."""
    schema = listed(record(name={"type": "string", "maxLength": 40}, n={"type": "integer"}), 1000, 1000)

    def seconds(seed: int, **options: Any) -> float:
        events = model.stream("Once upon a time", max_new_tokens=200, seed=seed, **options).events()
        next(events)
        start = time.process_time()
        steps = sum(1 for _ in events)
        return (time.process_time() - start) / steps

    def ratio(temperature: float) -> float:
        pairs = [
            (
                seconds(seed, temperature=temperature, json_schema=schema),
                seconds(seed, temperature=temperature, ignore_eos=True),
            )
            for seed in range(rounds)
        ]
        return median(structured / plain for structured, plain in pairs)

    return ratio(0.0), ratio(1.0)


@click.command()
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--count", default=1000, show_default=True, help="Outputs to sample.")
@click.option("--rounds", default=20, show_default=True, help="Rounds of the measurement; 0 leaves it out.")
def main(bundle: Path, count: int, rounds: int) -> None:
    """Sample, validate, measure; exit with 1 if an output is invalid."""
    model = load_causal_lm(bundle, threads=1)
    failures, tokens = [], 0
    for name, output in outputs(model, count):
        tokens += len(output.token_ids)
        reason = invalid(name, output)
        if reason:
            failures.append(f"{name}: {reason}")
    print(f"{count - len(failures)} of {count} outputs over {len(SCHEMAS)} schemas are valid; {tokens} tokens")
    for failure in failures[:20]:
        print(f"  {failure}")
    if rounds:
        greedy, sampled = cost(model, rounds)
        print(f"a structured step takes {greedy:.3f} of a plain one if greedy, {sampled:.3f} if sampled")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
