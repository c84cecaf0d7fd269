"""64 streams at once over HTTP: each is the text that its prompt has alone."""

import asyncio
import json
import random

from reliability.soaking.soak_client import sent
from running_server import running

from edgeformer.runtime import load

STREAMS = 64
WORDS = ("the", "old", "bear", "dog", "girl", "walked", "to", "river", "and", "saw", "red", "ball")


def requests_of(draw):
    for index in range(STREAMS):
        prompt = " ".join(draw.choice(WORDS) for _ in range(draw.randint(1, 60)))
        drawn = {"temperature": 1.0, "seed": index} if index % 2 else {}
        yield {"prompt": prompt, "max_tokens": draw.randint(8, 20)} | drawn


async def streamed(port, body):
    """Return the text of a stream, and the number of its events."""
    async with sent(port, "/v1/completions", json.dumps(body | {"stream": True}).encode()) as exchange:
        assert exchange.status == 200
        pieces = [event["choices"][0]["text"] async for event in exchange.events()]
        return "".join(pieces), len(pieces)


def test_each_of_64_streams_equals_its_solo_run(tiny_llama_bundle):
    bodies, solo = list(requests_of(random.Random(0))), load(tiny_llama_bundle, "cpu", 1)
    alone = [
        solo.generate(body["prompt"], max_new_tokens=body["max_tokens"], temperature=body.get("temperature", 0.0),
                      seed=body.get("seed")).text
        for body in bodies
    ]  # fmt: skip
    most = 0
    with running([tiny_llama_bundle], {"max_rows": STREAMS}) as server:
        engine = server.models.find(None).engine
        step = engine._service.decoder.decode_rows

        def counted(first, tokens, *rest):
            nonlocal most
            most = max(most, len(tokens))
            return step(first, tokens, *rest)

        engine._service.decoder.decode_rows = counted

        async def all_at_once():
            port = int(server.url.rsplit(":", 1)[1])
            return await asyncio.gather(*(streamed(port, body) for body in bodies))

        found = asyncio.run(all_at_once())
        statistics = engine.statistics()
    assert [text for text, _ in found] == alone
    assert len(set(alone)) > 50, "streams that were mixed up would be seen"
    assert (statistics.finished, statistics.failed, statistics.cancelled) == (STREAMS, 0, 0)
    assert most > 4, "the streams ran together"
    assert sum(events for _, events in found) > 4 * STREAMS
