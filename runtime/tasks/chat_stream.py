"""The stream of a chat with a model that thinks: what it thinks comes apart from its answer."""

from collections.abc import Generator, Iterator
from dataclasses import replace

from edgeformer.runtime.generation.generate import Generation, GenerationStream, Row, TokenEvent
from edgeformer.runtime.text.thinking.reader import Divided, ThinkingStream


class ChatStream(GenerationStream):
    """An iterator over pieces of the answer; `events` has what the model thinks as well.

    thinking: what divides the row's tokens.
    """

    def __init__(self, row: Row, steps: Generator[tuple[int, str]], thinking: ThinkingStream):
        self._thinking = thinking
        self._last = Divided()
        self._reasoning = self._text = ""
        self._is_whole = False
        super().__init__(row, self._divided(steps))

    def events(self) -> Iterator[TokenEvent]:
        """Yield the tokens that are still to come, each with the text that it completes, of the answer or thought."""
        for event in super().events():
            yield replace(event, reasoning=self._last.reasoning)

    def finish(self) -> Generation:
        """Generate the rest and return the whole result."""
        result = super().finish()
        if not self._is_whole:
            self._take(self._thinking.finish())
            self._is_whole = True
        return replace(result, text=self._text, reasoning=self._reasoning or None)

    def _divided(self, steps: Generator[tuple[int, str]]) -> Generator[tuple[int, str]]:
        try:
            for index, _ in steps:
                token = self._row.tokens[-1]
                new = Divided() if token in self._row.eos else self._thinking.push(token)
                if self._row.finish_reason is not None:
                    rest = self._thinking.finish()
                    new = Divided(new.reasoning + rest.reasoning, new.text + rest.text)
                    self._is_whole = True
                self._take(new)
                yield index, new.text
        finally:
            steps.close()

    def _take(self, new: Divided) -> None:
        self._last = new
        self._reasoning += new.reasoning
        self._text += new.text
