"""Counts of an engine: what is in it now, and what it has done."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class EngineStatistics:
    """The state of an engine at one moment.

    Attributes:
        waiting, running: requests in the queue, and in the batch (one whose prompt is being run included).
        rows: of the batch at most.
        cache_bytes: that the running requests may need at their ends.
        memory: bytes that they may need at most.
        held_bytes: of that memory, what rows take that are held for later requests.
        prefix_bytes: that prefixes take which are kept for later requests, on top of it. Sums since the start:
            prompt_tokens; cached_tokens, those of them that were kept from earlier requests; generated_tokens;
            drafted_tokens, and accepted_tokens, those of them that were chosen; and requests by how they ended:
            finished, cancelled, failed.
        steps: decode steps; without drafts, generated_tokens / steps is about the mean number of rows in a step.
    """

    waiting: int = 0
    running: int = 0
    rows: int = 0
    cache_bytes: int = 0
    memory: int = 0
    held_bytes: int = 0
    prefix_bytes: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    steps: int = 0
