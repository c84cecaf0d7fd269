"""Log-probabilities in the two forms of OpenAI's API: that of chats, and the older one of completions."""

from collections.abc import Sequence
from typing import Any

from edgeformer.runtime import TokenEvent
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


def completion_logprobs(served: ServedModel, events: Sequence[TokenEvent], offset: int) -> dict[str, Any]:
    """Return `logprobs` of a completion's choice for these tokens. offset: characters of text before them."""
    tokens, logprobs, top, offsets = [], [], [], []
    for event in events:
        assert event.logprobs is not None, "a request for logprobs gets them with every token"
        tokens.append(served.spelled(event.token_id).decode(errors="replace"))
        logprobs.append(event.logprobs.logprob)
        likely = event.logprobs.top
        top.append({served.spelled(id).decode(errors="replace"): logprob for id, logprob in likely})
        offsets.append(offset)
        offset += len(event.text or "")
    return {"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": top, "text_offset": offsets}
