"""Rows over an empty cache, on the caller's thread: what `generate`, `stream` and `chat` do with a scheduler.

    scheduler, streams = start_rows(Beginnings(decoder), rows)
    scheduler.run()                     all of them to their end, as `generate` does
    for piece in streams[0]: …          or as far as somebody reads, as `stream` does

All prompts are run before the first step. Prompts of different lengths need no padding this way, and the result of a
prompt does not depend on its neighbours.
"""

from collections.abc import Callable, Sequence

from edgeformer.runtime.generation.row import Row
from edgeformer.runtime.generation.scheduling import Beginnings, GenerationStream, ScheduledRequest, Scheduler
from edgeformer.runtime.generation.speculation.row_drafts import RowDrafts
from edgeformer.runtime.steps.decode_graph import Logits
from edgeformer.runtime.steps.runner import StepRunner

LEAVE_OUT_AT = 0.75
"""Rows that have ended are left out of steps once this part of the rows, or less, is still running.

Leaving rows out moves some and binds the step anew. 0.85 and 0.9 are as fast, 0.99 is 3 % slower (64 rows of
tiny-translate).
"""


def start_rows(
    beginnings: Beginnings,
    rows: Sequence[Row],
    *,
    first_logits: Logits | None = None,
    drafts: RowDrafts | None = None,
    adapter: str | None = None,
    make_stream: Callable[[ScheduledRequest, Scheduler], GenerationStream] = GenerationStream,
) -> tuple[Scheduler, list[GenerationStream]]:
    """Return a scheduler with these rows in its queue, and a stream of each: whoever reads one runs all.

    first_logits: [B, V], the logits after the prompts where these were already run. drafts: of the only row. adapter:
    the name of the LoRA adapter that the graph has. make_stream: makes the stream of a request.
    """
    leave_out_at = LEAVE_OUT_AT if beginnings.decoder.memory.runs_fewer_rows else 0.0
    scheduler = Scheduler(beginnings, len(rows), leave_out_at=leave_out_at, prompts_first=True)
    streams = []
    for index, row in enumerate(rows):
        request = ScheduledRequest(row, adapter=adapter, drafts=drafts)
        streams.append(make_stream(request, scheduler))
        if first_logits is not None:
            request.prefilled, request.first_logits = len(row.prompt), first_logits[index]
        scheduler.add(request)
    return scheduler, streams


def run_rows(
    decoder: StepRunner, rows: Sequence[Row], first_logits: Logits | None = None, drafts: RowDrafts | None = None
) -> None:
    """Run rows over the empty cache of a decoder to their end; the arguments are those of `start_rows`."""
    start_rows(Beginnings(decoder), rows, first_logits=first_logits, drafts=drafts)[0].run()
