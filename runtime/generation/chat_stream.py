"""The stream of a chat with a model that thinks: what it thinks comes apart from its answer."""

from collections.abc import Callable, Collection
from dataclasses import replace

from edgeformer.runtime.generation.row import Generation, TokenEvent
from edgeformer.runtime.generation.scheduling import GenerationStream, ScheduledRequest, Scheduler
from edgeformer.runtime.text.thinking.reader import Divided, ThinkingStream


class ChatStream(GenerationStream):
    """An iterator over pieces of the answer; `events` and the result have what the model thinks as well.

    new_thinking: makes what divides the row's tokens.
    """

    def __init__(self, request: ScheduledRequest, scheduler: Scheduler, new_thinking: Callable[[], ThinkingStream]):
        super().__init__(request, scheduler)
        self._new_thinking = new_thinking
        self._thinking = new_thinking()

    def finish(self) -> Generation:
        """Generate the rest and return the whole result. Raises the error of the request."""
        return divided(super().finish(), self._new_thinking(), self._row.eos)

    def _next_token(self) -> TokenEvent:
        place, row = self._read, self._row
        self._read += 1
        token = row.tokens[place]
        new = Divided() if token in row.eos else self._thinking.push(token)
        if row.finish_reason and place + 1 == len(row.tokens):
            rest = self._thinking.finish()
            new = Divided(new.reasoning + rest.reasoning, new.text + rest.text)
        return TokenEvent(token, new.text, row.logprobs[place] if row.logprobs else None, new.reasoning)


def divided(result: Generation, thinking: ThinkingStream, eos: Collection[int]) -> Generation:
    """Return a result with what the model thought apart from its answer."""
    pieces = [thinking.push(token) for token in result.token_ids if token not in eos]
    reasoning, text = ("".join(each) for each in zip(*pieces, thinking.finish(), strict=True))
    return replace(result, text=text, reasoning=reasoning or None)
