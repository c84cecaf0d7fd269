"""Who is next: the first that fits, and no small request may keep a large one out forever."""

import pytest

from edgeformer.runtime.generation.scheduling import ScheduledRequest
from edgeformer.runtime.generation.scheduling.waiting import MOST_SKIPPED, WaitingRequests


def waiting_of(*sizes):
    waiting = WaitingRequests(100)
    for size in sizes:
        waiting.append(ScheduledRequest(None, needed=size))
    return waiting


def test_requests_that_fit_come_in_the_order_of_their_arrival():
    waiting = waiting_of(3, 1, 2)
    assert [waiting.take(5).bytes for _ in range(3)] == [3, 1, 2]
    assert waiting.take(5) is None


def test_a_large_request_lets_few_small_ones_ahead():
    waiting = waiting_of(10, *[1] * (MOST_SKIPPED + 5))
    assert [waiting.take(5).bytes for _ in range(MOST_SKIPPED)] == [1] * MOST_SKIPPED
    assert waiting.take(5) is None
    assert waiting.take(10).bytes == 10
    assert waiting.take(5).bytes == 1


def test_going_ahead_counts_for_everybody_who_was_passed():
    waiting = waiting_of(10, 8, 1)
    assert waiting.take(5).bytes == 1
    assert [request.times_skipped for request in waiting] == [1, 1]
    assert waiting.take(8).bytes == 8
    assert [request.times_skipped for request in waiting] == [2]


@pytest.mark.parametrize("place", [0, 1])
def test_a_cancelled_request_leaves_the_queue(place):
    waiting = waiting_of(1, 2)
    waiting.remove(list(waiting)[place])
    assert [request.bytes for request in waiting] == [[2], [1]][place]
