"""The beginnings of rows: how a row gets what it has before the first run of its prompt, and what follows its end.

Beginnings          an empty row                                         of a fresh cache
SampleBeginnings    a copy of the row that has run the same prompt       of a fresh cache
PrefixBeginnings    the longest prefix that earlier requests left        of a fresh cache
engine.Service      rows that come and go: rows held for whoever goes on behind them, beginnings of running rows,
                    prefixes; of an encoder-decoder, the outputs of its encoder
"""

import sys
import time
from collections.abc import Sequence

from edgeformer.runtime.generation.scheduling.request import ScheduledRequest
from edgeformer.runtime.prefixes.prefix_cache import PrefixCache
from edgeformer.runtime.steps.decode_graph import Logits
from edgeformer.runtime.steps.runner import StepRunner


class Beginnings:
    """Rows of a fresh cache, which begin empty.

    - memory: bytes that all running requests may need together.
    - held_bytes: those of rows that no request has, and that are held for later requests.
    - kept_bytes: those of prefixes that are kept for later requests, apart from the rows.
    """

    memory: int = sys.maxsize  # a fresh cache has room for its rows

    def __init__(self, decoder: StepRunner):
        self.decoder = decoder

    @property
    def held_bytes(self) -> int:
        """Bytes of rows that no request has, and that are held for later requests."""
        return 0

    @property
    def kept_bytes(self) -> int:
        """Bytes of prefixes that are kept for later requests, apart from the rows."""
        return 0

    def begin(
        self, request: ScheduledRequest, places: Sequence[int], running: Sequence[ScheduledRequest], free_bytes: int
    ) -> None:
        """Choose a row for a request, and make it ready for the prompt.

        places: the rows that it may have, the preferred one first. running: the requests of adjacent rows, in their
        order. free_bytes: those of the memory that requests leave; the request fits.
        """
        request.place = places[0]

    def keep(self, request: ScheduledRequest, tokens: Sequence[int], logits: Logits | None = None) -> None:
        """Keep what a row holds for these tokens, and will not hold once more follow, where somebody can use it.

        logits: [V] after them, if known.
        """

    def move(self, request: ScheduledRequest, place: int) -> None:
        """Move a request to another row; its old one is free then."""
        self.decoder.move(request.place, place)
        request.place = place

    def leave(self, request: ScheduledRequest) -> None:
        """Free the row of a request that has ended."""

    def kind_of(self, request: ScheduledRequest) -> str:
        """Return what the keys and values of a request depend on beside its tokens."""
        return self.decoder.graph.kind_of(request.adapter, request.most_tokens)

    def tokens_of(self, request: ScheduledRequest) -> list[int]:
        """Return the tokens that the row of a request holds: its last one is chosen, but not run."""
        row = request.row
        return [*row.prompt, *row.tokens][: int(self.decoder.lengths[request.place])]


class SampleBeginnings(Beginnings):
    """Rows of a fresh cache of which every `count` in turn have one prompt, which is run once."""

    def __init__(self, decoder: StepRunner, count: int):
        super().__init__(decoder)
        self._count = count
        self._begun = 0
        self._first: ScheduledRequest | None = None  # the request that ran the prompt
        self._logits: Logits | None = None  # [V] after it

    def begin(
        self, request: ScheduledRequest, places: Sequence[int], running: Sequence[ScheduledRequest], free_bytes: int
    ) -> None:
        """Begin with a copy of the row that has run the prompt."""
        super().begin(request, places, running, free_bytes)
        if self._begun % self._count == 0:
            self._first = request
        else:
            first, row = self._first, request.row
            assert first is not None
            self.decoder.copy(first.place, request.place, len(row.prompt))
            request.prefilled, request.first_logits = len(row.prompt), self._logits
            row.prefill_seconds = first.row.prefill_seconds
        self._begun += 1

    def keep(self, request: ScheduledRequest, tokens: Sequence[int], logits: Logits | None = None) -> None:
        """Keep the logits after a prompt for its other samples."""
        if request is self._first and logits is not None:
            self._logits = logits.copy()


class PrefixBeginnings(Beginnings):
    """Rows of a fresh cache that begin with prefixes, and leave theirs."""

    def __init__(self, decoder: StepRunner, prefixes: PrefixCache):
        super().__init__(decoder)
        self._prefixes = prefixes

    def begin(
        self, request: ScheduledRequest, places: Sequence[int], running: Sequence[ScheduledRequest], free_bytes: int
    ) -> None:
        """Begin with the longest prefix of the prompt."""
        started = time.perf_counter()
        super().begin(request, places, running, free_bytes)
        restore_prefix(self._prefixes, self.decoder, request)
        request.row.prefill_seconds += time.perf_counter() - started

    def keep(self, request: ScheduledRequest, tokens: Sequence[int], logits: Logits | None = None) -> None:
        """Keep what the row holds for these tokens."""
        self._prefixes.keep(self.decoder, request.place, tokens, logits, self.kind_of(request))


def restore_prefix(prefixes: PrefixCache, decoder: StepRunner, request: ScheduledRequest) -> None:
    """Put the longest prefix of a request's prompt into its row, which is empty."""
    kind = decoder.graph.kind_of(request.adapter, request.most_tokens)
    prefix = prefixes.restore(decoder, request.place, request.row.prompt, kind)
    request.prefilled, request.branches, request.first_logits = prefix.length, prefix.branches, prefix.logits
    request.row.cached_tokens = prefix.length
