"""Serve many requests at once over one static cache: they join and leave a running batch at any step.

with Engine(load("tiny-llama")) as engine:
    streams = [engine.submit(prompt, max_new_tokens=64) for prompt in prompts]
    for stream in streams:
        print(stream.finish().text)

engine.py       submit, statistics, close: what callers see, from any thread
scheduler.py    one turn of the batch: a step of all running rows, then at most one chunk of a prompt
waiting.py      requests in the queue, and which one is next
service.py      requests of a model and their rows; causal_service.py, seq2seq_service.py: of decoders, and of
                encoder-decoders with the keys and values of their sources
texts.py        texts for an encoder, run together by length
"""

from edgeformer.runtime.engine.engine import Engine
from edgeformer.runtime.engine.statistics import EngineStatistics
from edgeformer.runtime.engine.stream import EngineStream
from edgeformer.runtime.engine.waiting import EngineBusyError

__all__ = ["Engine", "EngineBusyError", "EngineStatistics", "EngineStream"]
