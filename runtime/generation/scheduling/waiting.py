"""Requests that wait for a row and for memory: first come, first served, with a bound on going ahead."""

import sys
from collections import deque
from collections.abc import Iterator

from edgeformer.errors import RequestError
from edgeformer.runtime.generation.scheduling.request import ScheduledRequest

MOST_SKIPPED = 16
"""Requests that may go ahead of one that does not fit yet. Then nobody does, until rows have ended and it fits."""


PICTURE_BYTES = 1 << 30
"""Bytes of pictures that wait for a tower in a bounded queue, beyond which no request with pictures joins it. A picture
of 17 tiles of 512 × 512 pixels takes 53 MB."""


class EngineBusyError(RequestError):
    """The queue is full. retry_after: seconds after which there is probably room, ≥ 1."""

    def __init__(self, waiting: int, seconds: float):
        self.retry_after = max(1.0, seconds)
        super().__init__(
            f"{waiting} requests are waiting already, as many as the engine queues. Try again in about "
            f"{self.retry_after:.0f} s."
        )


class WaitingRequests:
    """Up to `most` requests in the order of their arrival; None for any number. requests: all of them."""

    def __init__(self, most: int | None = None):
        self._most = sys.maxsize if most is None else most
        self.requests: deque[ScheduledRequest] = deque()

    def __len__(self) -> int:
        return len(self.requests)

    def __iter__(self) -> Iterator[ScheduledRequest]:
        return iter(list(self.requests))

    def has_room_for(self, request: ScheduledRequest) -> bool:
        """Return whether another request may join; one with pictures, where those that wait leave memory for them."""
        if len(self.requests) >= self._most:
            return False
        waiting = 0 if request.row.pictures is None else sum(_picture_bytes(each) for each in self.requests)
        return waiting < PICTURE_BYTES or self._most == sys.maxsize

    def append(self, request: ScheduledRequest) -> None:
        """Add a request; the caller sees to it that there is room."""
        self.requests.append(request)

    def remove(self, request: ScheduledRequest) -> None:
        """Take out a request, wherever it stands."""
        self.requests.remove(request)

    def take(self, free_bytes: int) -> ScheduledRequest | None:
        """Take out the first request that fits into these bytes; None if there is none, or none may go ahead.

        A request that does not fit lets smaller ones go ahead, `MOST_SKIPPED` of them in all, so that they cannot
        keep it out forever.
        """
        for place, request in enumerate(self.requests):
            if request.bytes <= free_bytes:
                for passed in list(self.requests)[:place]:
                    passed.times_skipped += 1
                del self.requests[place]
                return request
            if request.times_skipped >= MOST_SKIPPED:
                return None
        return None


def _picture_bytes(request: ScheduledRequest) -> int:
    """Return the bytes of a request's pictures that a tower has not read."""
    pictures = request.row.pictures
    return 0 if pictures is None else sum(each.waiting_bytes for each in pictures.pictures)
