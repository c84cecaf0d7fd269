"""The one loop that generates: requests in a queue, rows that run together, one turn at a time.

    waiting  ──begin──►  prompt in chunks  ──first token──►  running rows, a step of all in each turn  ──►  ended

scheduler.py    the turns. It has no thread: whoever holds it calls `turn`, or `run`
request.py      one request: its row, its stream, and where it stands
waiting.py      requests in the queue, and which one is next
beginnings.py   where a row's beginning comes from: nothing, another sample's row, a kept prefix
stream.py       tokens of one row as they are read
statistics.py   what is in a scheduler now, and what it has done

`generate` and its like drive a scheduler on the caller's thread (`generation/generate.py`), and so does
`OfflineEngine`; `Engine` drives one on a thread of its own.
"""

from edgeformer.runtime.generation.scheduling.beginnings import Beginnings, PrefixBeginnings, SampleBeginnings
from edgeformer.runtime.generation.scheduling.request import ScheduledRequest
from edgeformer.runtime.generation.scheduling.scheduler import Scheduler
from edgeformer.runtime.generation.scheduling.statistics import EngineStatistics
from edgeformer.runtime.generation.scheduling.stream import GenerationStream, RowStream
from edgeformer.runtime.generation.scheduling.waiting import EngineBusyError

__all__ = [
    "Beginnings",
    "EngineBusyError",
    "EngineStatistics",
    "GenerationStream",
    "PrefixBeginnings",
    "RowStream",
    "SampleBeginnings",
    "ScheduledRequest",
    "Scheduler",
]
