"""Serve many requests at once over one static cache: they join and leave a running batch at any step.

with Engine(load("tiny-llama")) as engine:
    streams = [engine.submit(prompt, max_new_tokens=64) for prompt in prompts]
    for stream in streams:
        print(stream.finish().text)

engine.py       submit, statistics, close: what callers see, from any thread
worker.py       the thread that takes the turns of a scheduler (`generation/scheduling/`), and its lock
stream.py       tokens of one request, across threads
offline.py      the same without a thread, for jobs
service.py      requests of a model and their rows; causal_service.py, seq2seq_service.py: of decoders, and of
                encoder-decoders with the keys and values of their sources; new_service.py chooses one
texts.py        texts for an encoder, run together by length
"""

from edgeformer.runtime.engine.engine import Engine
from edgeformer.runtime.engine.offline import OfflineEngine
from edgeformer.runtime.engine.stream import EngineStream
from edgeformer.runtime.generation.scheduling import EngineBusyError, EngineStatistics

__all__ = ["Engine", "EngineBusyError", "EngineStatistics", "EngineStream", "OfflineEngine"]
