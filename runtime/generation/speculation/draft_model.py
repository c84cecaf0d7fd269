"""A draft model: a smaller model with the same tokenizer, whose most likely tokens are drafted."""

from collections.abc import Sequence

from edgeformer.errors import RequestError
from edgeformer.runtime.steps.decode_graph import Logits
from edgeformer.runtime.steps.runner import Snapshot, StepRunner
from edgeformer.runtime.text.tokenizer import Tokenizer

SHORT = 16
"""Tokens that are run in one piece over a binding that is kept; more are run like a prompt."""


class DraftModel:
    """A decoder of the draft model, which follows the text and runs ahead of it.

    decoder: empty, of one row. vocab_size: that of the model which verifies. Beyond the decoder's capacity nothing is
    drafted.
    """

    def __init__(self, decoder: StepRunner, vocab_size: int):
        self._decoder = decoder
        self._vocab_size = vocab_size
        self._text: list[int] = []
        self._known: list[int] = []  # the tokens that the decoder has
        self._before: tuple[Snapshot, int] | None = None  # a moment at which it had the first tokens of the text

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text; a prompt is run at once, so that it takes no time of the first draft."""
        self._text.extend(tokens)
        if len(tokens) > 1 and len(self._text) <= self._decoder.cache.capacity:
            self._follow(self._text[:-1])

    def draft(self, count: int) -> list[int]:
        """Return the most likely tokens, each after those before it."""
        decoder = self._decoder
        count = min(count, decoder.cache.capacity - len(self._text))
        if count < 1:
            return []
        logits = self._follow(self._text)
        if not decoder.can_cut(len(self._text) + count):
            self._before = decoder.snapshot(), len(self._text)
        drafted = [int(logits.argmax())]
        while len(drafted) < count and drafted[-1] < self._vocab_size:
            self._known.append(drafted[-1])
            drafted.append(int(decoder.decode_one_token(drafted[-1:])[0].argmax()))
        return drafted if drafted[-1] < self._vocab_size else drafted[:-1]

    def _follow(self, text: list[int]) -> Logits:
        """Take back what is not in the text, and run what is missing, at least its last token; return logits [V]."""
        decoder, known = self._decoder, self._known
        same = next((place for place, (a, b) in enumerate(zip(known, text, strict=False)) if a != b), len(known))
        same = min(same, len(text) - 1)
        if same < len(known) and not decoder.can_cut(len(known)):
            assert self._before is not None, "a draft that cannot be cut has begun with a snapshot"
            snapshot, same = self._before
            decoder.restore(snapshot)
        elif same < len(known):
            decoder.cut(0, same)
        missing = text[same:]
        self._known = list(text)
        if len(missing) == 1:
            return decoder.decode_one_token(missing)[0]
        return decoder.decode_last(0, missing) if len(missing) <= SHORT else decoder.prefill(0, missing)


def check_same_tokens(model: Tokenizer | None, draft: Tokenizer | None, vocab_sizes: tuple[int, int]) -> None:
    """Raise RequestError unless the tokens of a model and its draft model are the same.

    vocab_sizes: rows of both tables of embeddings, which padding may make unequal where there are tokenizers.
    """
    if model is None or draft is None:
        if model is not draft or vocab_sizes[0] != vocab_sizes[1]:
            raise RequestError(
                "the draft model must have the tokenizer of the model. Without a tokenizer in both bundles, both must "
                f"have none and vocabularies of one size; here they have {vocab_sizes[0]} and {vocab_sizes[1]} tokens."
            )
        return
    ours, theirs = model.backend.get_vocab(), draft.backend.get_vocab()
    if ours != theirs:
        other = sorted(ours.items() ^ theirs.items(), key=lambda item: item[1])
        token, number = other[0]
        raise RequestError(
            f"the draft model has another tokenizer: {len(theirs)} tokens, and the model has {len(ours)}; the first "
            f"that both do not share is {number} ({token!r}). Take a draft model of the same family."
        )
