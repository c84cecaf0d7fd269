"""The stream of one request: written by the thread that computes, read by the callers."""

from collections.abc import Callable, Iterator
from threading import Condition, RLock

from edgeformer.runtime.generation.generate import Generation, Row, TokenEvent
from edgeformer.runtime.request_values import functions, seconds
from edgeformer.runtime.text.streaming import TextStream


class EngineStream(Iterator[str]):
    """An iterator over pieces of text as they are generated, which blocks its caller only.

    Iterating, `poll` and `events` share one place in the stream: a token is handed out once. Whoever reads a token
    decodes its text, so that the engine's thread has that much less to do between two steps.

    row: one without tokens.
    """

    def __init__(self, row: Row, wake: Callable[[], None]):
        self._row = row
        self._wake = wake
        self._texts = row.stream
        if isinstance(row.stream, TextStream):
            row.stream = row.stream.at_end()
        # Stop strings are looked for in each piece of text, so the row decodes it itself.
        self._pieces: list[str] | None = [] if row.stream is self._texts else None
        self._cancelled = False
        lock = RLock()
        self._changed = Condition(lock)  # tells of tokens and of the end
        self._finished = Condition(lock)  # of the end alone: who waits for it need not wake for each token
        self._pushed = self._read = 0  # of the row's tokens
        self._listeners: list[Callable[[EngineStream], None]] = []
        self._ended = False
        self._error: BaseException | None = None

    @property
    def ended(self) -> bool:
        """Whether no more tokens come."""
        return self._ended

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled

    @property
    def error(self) -> BaseException | None:
        """The error that ended the request, which `finish` and iterating raise; None without one."""
        return self._error

    def __next__(self) -> str:
        while True:
            event = self._next_event()
            if event is None:
                raise StopIteration
            if event.text:
                return event.text

    def events(self) -> Iterator[TokenEvent]:
        """Return an iterator over the tokens that blocks until each is there. It raises the error of the request."""
        while (event := self._next_event()) is not None:
            yield event

    def poll(self) -> tuple[list[TokenEvent], bool]:
        """Return the tokens since the last call, without waiting, and whether the stream has ended behind them."""
        with self._changed:
            return [self._next_token() for _ in range(self._read, self._pushed)], self._ended

    def finish(self, timeout: float | None = None) -> Generation:
        """Wait for the end and return the whole result.

        timeout: in seconds. Raises the error of the request, and TimeoutError if it has not ended by then.
        """
        timeout = seconds("timeout", timeout)
        with self._changed:
            if not self._finished.wait_for(lambda: self._ended, timeout):
                raise TimeoutError(f"the request has not ended within {timeout} seconds")
        self._raise_error()
        return self._row.result()

    def cancel(self) -> None:
        """End the request at the latest after the current step; its finish_reason becomes `cancelled`.

        The whole text may then end with what no piece has: U+FFFD for a part of a character, or the beginning of a stop
        string.
        """
        self._cancelled = True
        self._wake()

    def add_listener(self, callback: "Callable[[EngineStream], None]") -> None:
        """Call a function with this stream whenever there is a token, the end or an error.

        It is called from the engine's thread, which computes nothing until it returns; now, from this thread, if there
        is something to read already. A callback that raises fails the request.
        """
        functions("callback", [callback])
        with self._changed:
            self._listeners.append(callback)
            ready = self._read < self._pushed or self._ended
        if ready:
            callback(self)

    def push(self, piece: str) -> None:
        """Tell of the row's next token, and of the text that the row says it completes; for the engine."""
        with self._changed:
            self._pushed += 1
            if self._pieces is not None:
                self._pieces.append(piece)
            self._changed.notify_all()
        self._call_listeners()

    def end(self, error: BaseException | None = None) -> None:
        """End the stream, by an error or without; for the engine."""
        with self._changed:
            if self._ended:
                return
            self._ended, self._error = True, error
            self._changed.notify_all()
            self._finished.notify_all()
        self._call_listeners()

    def _call_listeners(self) -> None:
        for callback in list(self._listeners):
            callback(self)

    def _next_event(self) -> TokenEvent | None:
        """Wait for the next token; return None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._read < self._pushed or self._ended)
            if self._read < self._pushed:
                return self._next_token()
        self._raise_error()
        return None

    def _next_token(self) -> TokenEvent:
        """Return the first token that nobody has read; the caller holds the lock."""
        place, row = self._read, self._row
        self._read += 1
        token = row.tokens[place]
        if self._pieces is not None:
            text = self._pieces[place]
        else:
            assert self._texts is not None
            text = "" if token in row.eos else self._texts.push(token)
            # The engine appends the last token before it says why it is the last.
            if row.finish_reason and place + 1 == len(row.tokens):
                text += self._texts.flush()
        return TokenEvent(token, text, row.logprobs[place] if row.logprobs else None)

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error
