"""Log-probabilities in the two forms of OpenAI's API: that of chats, and the older one of completions."""

from collections.abc import Sequence
from typing import Any

from edgeformer.runtime import CausalLM, TokenEvent
from edgeformer.runtime.measure.evaluation.perplexity import prompt_logprobs
from edgeformer.runtime.text.streaming import TextStream
from edgeformer.server.service.served import ServedModel


def chat_logprobs(served: ServedModel, events: Sequence[TokenEvent]) -> dict[str, Any]:
    """Return `logprobs` of a chat's choice for these tokens."""
    content = []
    for event in events:
        assert event.logprobs is not None, "a request for logprobs gets them with every token"
        top = [_entry(served, token, logprob) for token, logprob in event.logprobs.top]
        content.append(_entry(served, event.token_id, event.logprobs.logprob) | {"top_logprobs": top})
    return {"content": content, "refusal": None}


def _entry(served: ServedModel, token: int, logprob: float) -> dict[str, Any]:
    spelled = served.spelled(token)
    return {"token": spelled.decode(errors="replace"), "logprob": logprob, "bytes": list(spelled)}


def echoed_logprobs(served: ServedModel, prompt: Sequence[int], count: int) -> dict[str, Any]:
    """Return `logprobs` of a prompt that is echoed; of the first token, which nothing is before, they are null.

    It runs the model beside its engine, on this thread.
    """
    model = served.require(CausalLM)
    scored = prompt_logprobs(model, prompt, count, served.adapter)
    stream, offset, offsets = TextStream(served.tokenizer), 0, []
    for token in prompt:
        offsets.append(offset)
        offset += len(stream.push(token))
    return {
        "tokens": [_text(served, token) for token in prompt],
        "token_logprobs": [None, *(each.logprob for each in scored)],
        "top_logprobs": [None, *({_text(served, id): value for id, value in each.top} for each in scored)],
        "text_offset": offsets,
    }


def _text(served: ServedModel, token: int) -> str:
    return served.spelled(token).decode(errors="replace")


def joined(first: dict[str, Any] | None, second: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the `logprobs` of an echo and of what follows it."""
    if first is None or second is None:
        return first if second is None else second
    return {name: values + second[name] for name, values in first.items()}


def completion_logprobs(served: ServedModel, events: Sequence[TokenEvent], offset: int) -> dict[str, Any]:
    """Return `logprobs` of a completion's choice for these tokens. offset: characters of text before them."""
    tokens, logprobs, top, offsets = [], [], [], []
    for event in events:
        assert event.logprobs is not None, "a request for logprobs gets them with every token"
        tokens.append(_text(served, event.token_id))
        logprobs.append(event.logprobs.logprob)
        likely = event.logprobs.top
        top.append({_text(served, id): logprob for id, logprob in likely})
        offsets.append(offset)
        offset += len(event.text or "")
    return {"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": top, "text_offset": offsets}
