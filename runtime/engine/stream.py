"""The stream of one request of an engine: written by the thread that computes, read by the callers."""

from collections.abc import Callable
from threading import Condition, RLock

from edgeformer.runtime.generation.row import Generation, Row, TokenEvent
from edgeformer.runtime.generation.scheduling import RowStream
from edgeformer.runtime.request_values import functions, seconds


class EngineStream(RowStream):
    """An iterator over pieces of text as they are generated, which blocks its caller only.

    Iterating, `poll` and `events` share one place in the stream: a token is handed out once. Whoever reads a token
    decodes its text, so that the engine's thread has that much less to do between two steps.

    row: one without tokens. wake: tells the engine's thread that the stream was cancelled.
    """

    def __init__(self, row: Row, wake: Callable[[], None]):
        super().__init__(row)
        self._wake = wake
        self._pushed = 0  # of the row's tokens
        lock = RLock()
        self._changed = Condition(lock)  # tells of tokens and of the end
        self._finished = Condition(lock)  # of the end alone: who waits for it need not wake for each token
        self._listeners: list[Callable[[EngineStream], None]] = []

    def poll(self) -> tuple[list[TokenEvent], bool]:
        """Return the tokens since the last call, without waiting, and whether the stream has ended behind them."""
        with self._changed:
            return [self._next_token() for _ in range(self._read, self._pushed)], self._state.ended

    def finish(self, timeout: float | None = None) -> Generation:
        """Wait for the end and return the whole result.

        timeout: in seconds. Raises the error of the request, and TimeoutError if it has not ended by then.
        """
        timeout = seconds("timeout", timeout)
        with self._changed:
            if not self._finished.wait_for(lambda: self._state.ended, timeout):
                raise TimeoutError(f"the request has not ended within {timeout} seconds")
        self._raise_error()
        return self._row.result()

    def cancel(self) -> None:
        """End the request at the latest after the current step; its finish_reason becomes `cancelled`.

        The whole text may then end with what no piece has: U+FFFD for a part of a character, or the beginning of a stop
        string.
        """
        self._state.cancel()
        self._wake()

    def add_listener(self, callback: "Callable[[EngineStream], None]") -> None:
        """Call a function with this stream whenever there is a token, the end or an error.

        It is called from the engine's thread, which computes nothing until it returns; now, from this thread, if there
        is something to read already. A callback that raises fails the request.
        """
        functions("callback", [callback])
        with self._changed:
            self._listeners.append(callback)
            ready = self._read < self._pushed or self._state.ended
        if ready:
            callback(self)

    def push(self, piece: str) -> None:
        """Tell of the row's next token, and of the text that the row says it completes; for the scheduler."""
        with self._changed:
            self._pushed += 1
            if self._pieces is not None:
                self._pieces.append(piece)
            self._changed.notify_all()
        self._call_listeners()

    def end(self, error: BaseException | None = None) -> None:
        """End the stream, by an error or without; for the scheduler."""
        with self._changed:
            if self._state.ended:
                return
            self._state.end(error)
            self._changed.notify_all()
            self._finished.notify_all()
        self._call_listeners()

    def _call_listeners(self) -> None:
        for callback in list(self._listeners):
            callback(self)

    def _next_event(self) -> TokenEvent | None:
        with self._changed:
            self._changed.wait_for(lambda: self._read < self._pushed or self._state.ended)
            if self._read < self._pushed:
                return self._next_token()
        self._raise_error()
        return None
