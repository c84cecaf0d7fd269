"""The requests of a soak: each number is one request, drawn by its seed, of a client that may misbehave.

answer, stream    a client that reads all; the text is compared with that of the model by itself
slow              the same, with pauses and a small buffer
leave             goes away in the middle of a stream
cut               goes away behind the request
garbage           a body that is wrong: random bytes, or a request with a few bytes changed
long              a prompt longer than the model's context
large             a body beyond the server's limit
embed             texts for an encoder; the vectors are compared
"""

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from edgeformer.runtime import CausalLM, Encoder, load
from reliability.soaking.soak_client import connected, head_of, post, sent

BODY_BYTES = 40_000
"""`--max-body-bytes` of the soaked server."""

SECONDS = 90
"""Time that one request may take before it counts as hung: a full queue of the longest requests on a busy machine."""

VECTOR_ERROR = 1e-4
"""By how much an element of an embedding may differ: lengths of batches change the order of sums."""

WORDS = tuple("the old bear dog girl walked to river and saw a red ball she was".split())  # noqa: SIM905

COMPLETIONS, EMBEDDINGS = "/v1/completions", "/v1/embeddings"


@dataclass(frozen=True)
class Case:
    """A request and its right answer: the text of a completion, or vectors."""

    body: dict[str, Any]
    expected: Any


@dataclass(frozen=True)
class Cases:
    """Requests with right answers, of a model that generates and of an encoder if one is served."""

    texts: list[Case]
    vectors: list[Case]


class Outcome(NamedTuple):
    """How a request ended. result: `ok`, `busy` (429), `lost` (no answer) or a fault. Durations are in seconds."""

    kind: str
    result: str
    detail: str = ""
    seconds: float | None = None
    first_token_seconds: float | None = None


def cases_of(bundles: list[Path], seed: int, count: int = 24, short: bool = False) -> Cases:
    """Compute requests and their answers by `generate` and `embed`, without an engine or a server.

    short: few words and tokens, so that as many requests as possible fit into a time.
    """
    draw = random.Random(f"cases/{seed}")
    texts: list[Case] = []
    vectors: list[Case] = []
    for bundle in bundles:
        model = load(bundle, "cpu")
        for _ in range(count):
            if isinstance(model, CausalLM):
                texts.append(_completion(model, bundle.name, draw, short))
            elif isinstance(model, Encoder):
                given = [_words(draw, draw.randint(1, 20)) for _ in range(draw.randint(1, 3))]
                vectors.append(Case({"model": bundle.name, "input": given}, model.embed(given)))
    return Cases(texts, vectors)


def _completion(model: CausalLM, name: str, draw: random.Random, short: bool) -> Case:
    words, most_new = ((3, 10), 8) if short else ((3, 10, 40, 160), 30)
    prompt, new = _words(draw, draw.choice(words)), draw.randint(2, most_new)
    options: dict[str, Any] = {"temperature": 0.9, "seed": draw.randint(0, 999)} if draw.random() < 0.5 else {}
    text = model.generate(prompt, max_new_tokens=new, **options).text
    return Case({"model": name, "prompt": prompt, "max_tokens": new} | options, text)


def _words(draw: random.Random, count: int) -> str:
    return " ".join(draw.choice(WORDS) for _ in range(count))


async def answer(port: int, draw: random.Random, cases: Cases) -> Outcome:
    """Ask for a completion in one piece."""
    case, started = draw.choice(cases.texts), time.perf_counter()
    found = await post(port, COMPLETIONS, json.dumps(case.body).encode())
    if found.status != 200:
        return _unusual("answer", found.status, found.body)
    text = found.json()["choices"][0]["text"]
    return _compared("answer", case, text, time.perf_counter() - started)


async def stream(port: int, draw: random.Random, cases: Cases, slowly: bool = False) -> Outcome:
    """Ask for a completion as a stream."""
    kind, case, started, first = "slow" if slowly else "stream", draw.choice(cases.texts), time.perf_counter(), None
    async with sent(port, COMPLETIONS, json.dumps(case.body | {"stream": True}).encode(), slowly=slowly) as exchange:
        if exchange.status != 200:
            return _unusual(kind, exchange.status, await exchange.rest())
        text = ""
        async for event in exchange.events():
            if "error" in event:
                return Outcome(kind, "wrong", f"an event has the error {event['error']['message']!r}")
            text += event["choices"][0]["text"]
            first = first or time.perf_counter() - started
            if slowly:
                await asyncio.sleep(draw.random() * 0.1)
    seconds = None if slowly else time.perf_counter() - started
    return _compared(kind, case, text, seconds, None if slowly else first)


async def slow(port: int, draw: random.Random, cases: Cases) -> Outcome:
    """Read a stream slowly."""
    return await stream(port, draw, cases, slowly=True)


async def leave(port: int, draw: random.Random, cases: Cases) -> Outcome:
    """Go away in the middle of a stream of many tokens."""
    body = draw.choice(cases.texts).body | {"stream": True, "max_tokens": 400, "min_tokens": 400}
    left = draw.randint(1, 12)
    async with sent(port, COMPLETIONS, json.dumps(body).encode()) as exchange:
        if exchange.status != 200:
            return _unusual("leave", exchange.status, await exchange.rest())
        async for _ in exchange.events():
            left -= 1
            if left == 0:
                return Outcome("leave", "ok")
    return Outcome("leave", "wrong", "the stream had fewer than 12 events")


async def cut(port: int, draw: random.Random, cases: Cases) -> Outcome:
    """Send a request, or a part of it, and go away."""
    content = json.dumps(draw.choice(cases.texts).body).encode()
    async with connected(port) as (_, writer):
        writer.write(head_of(COMPLETIONS, len(content)) + content[: draw.randint(0, len(content))])
        await writer.drain()
        await asyncio.sleep(draw.random() * 0.05)
    return Outcome("cut", "ok")


async def garbage(port: int, draw: random.Random, cases: Cases) -> Outcome:
    """Send a body that is wrong, or was changed and may be right still."""
    if draw.random() < 0.5:
        content = draw.randbytes(draw.randint(0, 300))
    else:
        # Few tokens, so that a body that is right still takes no time; what it answers is nobody's to know.
        changed = bytearray(json.dumps(draw.choice(cases.texts).body | {"max_tokens": 2}).encode())
        for _ in range(draw.randint(1, 4)):
            changed[draw.randrange(len(changed))] = draw.randrange(256)
        content = bytes(changed)
    found = await post(port, draw.choice((COMPLETIONS, "/v1/chat/completions", EMBEDDINGS, "/tokenize")), content)
    if found.status in (200, 400, 404, 429):
        return Outcome("garbage", "ok")
    return Outcome("garbage", "wrong", f"status {found.status} for {content!r}")


async def long(port: int, draw: random.Random, cases: Cases) -> Outcome:
    """Send a prompt longer than the model's context."""
    body = draw.choice(cases.texts).body | {"prompt": "dog " * 1500}
    return _refused("long", await post(port, COMPLETIONS, json.dumps(body).encode()), 400, "context_length_exceeded")


async def large(port: int, draw: random.Random, cases: Cases) -> Outcome:
    """Send a body beyond the server's limit."""
    return _refused("large", await post(port, COMPLETIONS, b" " * (BODY_BYTES + 1)), 413, "body_too_large")


async def embed(port: int, draw: random.Random, cases: Cases) -> Outcome:
    """Ask for embeddings."""
    case, started = draw.choice(cases.vectors), time.perf_counter()
    found = await post(port, EMBEDDINGS, json.dumps(case.body).encode())
    if found.status != 200:
        return _unusual("embed", found.status, found.body)
    vectors = np.array([each["embedding"] for each in found.json()["data"]])
    error = float(np.abs(vectors - case.expected).max())
    if error > VECTOR_ERROR:
        return Outcome("embed", "wrong", f"a vector of {case.body['input']} differs by {error:.1e}")
    return Outcome("embed", "ok", "", time.perf_counter() - started)


def _refused(kind: str, found: Any, status: int, code: str) -> Outcome:
    if found.status == status and found.json()["error"]["code"] == code:
        return Outcome(kind, "ok")
    return Outcome(kind, "wrong", f"status {found.status}, {found.body[:200]!r}")


def _unusual(kind: str, status: int, body: bytes) -> Outcome:
    """Return the outcome of a right request that was not answered: a full queue is none of the server's faults."""
    return Outcome(kind, "busy") if status == 429 else Outcome(kind, "wrong", f"status {status}, {body[:200]!r}")


def _compared(kind: str, case: Case, text: str, *durations: float | None) -> Outcome:
    if text == case.expected:
        return Outcome(kind, "ok", "", *durations)
    return Outcome(kind, "wrong", f"{case.body} was answered {text!r}, and by itself {case.expected!r}")


Request = Callable[[int, random.Random, Cases], Awaitable[Outcome]]

WEIGHTS: Mapping[Request, int] = {
    answer: 25, stream: 25, slow: 2, leave: 8, cut: 8, garbage: 20, long: 3, large: 4, embed: 15,
}  # fmt: skip
"""Requests of each kind, of 110 of all."""


async def run_request(number: int, seed: int, port: int, cases: Cases) -> Outcome:
    """Run the request of a number and return how it ended."""
    draw = random.Random(f"{seed}/{number}")
    kinds = [kind for kind in WEIGHTS if kind is not embed or cases.vectors]
    [kind] = draw.choices(kinds, [WEIGHTS[each] for each in kinds])
    try:
        async with asyncio.timeout(SECONDS):
            return await kind(port, draw, cases)
    except TimeoutError:
        return Outcome(kind.__name__, "hung", f"request {number} had no answer within {SECONDS} s")
    except (OSError, EOFError) as error:
        return Outcome(kind.__name__, "lost", f"request {number}: {error!r}")
