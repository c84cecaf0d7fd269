"""Choose what serves a model, and check the numbers that an engine is given."""

from typing import Any

from edgeformer.errors import RequestError
from edgeformer.runtime.engine.causal_service import CausalService
from edgeformer.runtime.engine.seq2seq_service import Seq2SeqService
from edgeformer.runtime.engine.service import Service
from edgeformer.runtime.request_values import count
from edgeformer.runtime.tasks.causal_lm import CausalLM
from edgeformer.runtime.tasks.seq2seq import Seq2SeqLM

MOST_ROWS = 4096
"""Rows of an engine at most: each takes memory before there is a request, and no CPU runs a batch so large."""


def check_sizes(max_rows: int, memory: int | None, prefix_cache_bytes: int | None) -> None:
    """Raise RequestError for numbers out of range."""
    count("max_rows", max_rows, most=MOST_ROWS)
    for name, value in (("memory", memory), ("prefix_cache_bytes", prefix_cache_bytes)):
        if value is not None:
            count(name, value, least=int(name == "memory"))


def new_service(model: Any, max_rows: int, memory: int | None, prefix_cache_bytes: int | None) -> Service:
    """Return what serves a model that generates. Raises RequestError for one that an engine cannot run."""
    if isinstance(model, CausalLM):
        return CausalService(model, max_rows, memory, prefix_cache_bytes)
    if isinstance(model, Seq2SeqLM):
        return Seq2SeqService(model, max_rows, memory)
    raise RequestError(f"an engine runs a model that `load` returned, and {type(model).__name__} is none.")
