"""The generation config of a request, and its choices."""

from typing import Any

from edgeformer.errors import RequestError
from edgeformer.options.generation import OPTIONS
from edgeformer.runtime import CausalLM, GenerationConfig, Seq2SeqLM
from edgeformer.server.schema.answer_forms import structure_of
from edgeformer.server.schema.api_errors import ApiError, as_api_error
from edgeformer.server.schema.bodies import ALL_TOKENS, ChatBody, CompletionBody, GenerationBody
from edgeformer.server.service.options import ServerOptions
from edgeformer.server.service.served import ServedModel

COLDEST = 1e-5
"""Temperatures below it are 0."""

ID_DIGITS = 10
"""Digits of a token id at most."""

SEED_BITS = 63
"""Negative seeds, which OpenAI's API allows, are taken modulo 2 to this power."""


def configs(
    served: ServedModel,
    body: GenerationBody,
    options: ServerOptions,
    prompt_tokens: int,
    grammar: str | None = None,
) -> list[GenerationConfig]:
    """Return the config of each choice of a request: they differ in the seed alone.

    prompt_tokens: of its longest prompt; the server's own limit of new tokens is lowered to what the context leaves.
    grammar: what the answer has to follow; None for the schema or the expression of the body.

    Raises ApiError, naming the field, for a value that the runtime refuses.
    """
    count = body.n or 1
    if count > options.max_choices:
        raise ApiError(400, f"n is {count}; {options.max_choices} choices are allowed.", param="n")
    given = _options(served, body, count)
    assert isinstance(served.model, CausalLM | Seq2SeqLM)
    before = prompt_tokens if isinstance(served.model, CausalLM) else len(served.model.start_prompt(None))
    room = served.context_length - before
    given["max_new_tokens"] = _new_tokens(given["max_new_tokens"], room, prompt_tokens, options, served)
    given |= {"grammar": grammar} if grammar is not None else structure_of(body)
    own = served.model.generation_config
    seed = given.pop("seed", None)
    try:
        config = own.override(given)
        return [config.override({} if seed is None else {"seed": seed + choice}) for choice in range(count)]
    except RequestError as error:
        raise as_api_error(error) from None


def skips_special_tokens(body: GenerationBody) -> bool:
    """Return whether special tokens are left out of the text of an answer."""
    return getattr(body, "skip_special_tokens", None) is not False


def _new_tokens(
    wanted: int | None, room: int, prompt_tokens: int, options: ServerOptions, served: ServedModel
) -> int | None:
    """Return the new tokens of a request. Raises ApiError for more than the context has room for."""
    if wanted is None:
        return None if options.default_max_tokens is None else max(1, min(options.default_max_tokens, room))
    if wanted == ALL_TOKENS:
        return max(1, room)
    if wanted > room and isinstance(served.model, CausalLM):
        message = (
            f"the prompt has {prompt_tokens} tokens and max_tokens is {wanted}, but the model's context is "
            f"{served.context_length} tokens. Shorten the prompt or lower max_tokens."
        )
        raise ApiError(400, message, code="context_length_exceeded", param="max_tokens")
    return wanted


def _options(served: ServedModel, body: GenerationBody, count: int) -> dict[str, Any]:
    """Return the fields of a request as options of the runtime, those alone that it has."""
    given: dict[str, Any] = {
        name: value
        for name, option in OPTIONS.items()
        if option.api and (value := getattr(body, option.api)) is not None
    }
    given["max_new_tokens"] = _max_tokens(body, given.get("max_new_tokens"))
    if given.get("stop") == "":
        del given["stop"]
    if given.get("temperature", 1.0) < COLDEST:
        given["temperature"] = 0.0  # whose logits would be beyond float32
    if "seed" in given:
        given["seed"] %= 2**SEED_BITS
    if given.get("top_p") == 0:
        given |= {"top_p": 1.0, "temperature": 0.0}  # the likeliest token alone, which the runtime calls greedy
    if "top_p" in given or count > 1:
        given.setdefault("temperature", 1.0)  # what OpenAI's API has; without it, these fields would change nothing
    if "logit_bias" in given:
        given["logit_bias"] = _biases(given["logit_bias"])
    if isinstance(served.model, Seq2SeqLM):
        given["num_beams"] = 1  # no token of a beam is final before the search ends
    return given | _logprobs(body)


def _max_tokens(body: GenerationBody, max_tokens: int | None) -> int | None:
    if not isinstance(body, ChatBody) or body.max_completion_tokens is None:
        return max_tokens
    if max_tokens not in (None, body.max_completion_tokens):
        message = "max_tokens and max_completion_tokens differ; give max_completion_tokens alone."
        raise ApiError(400, message, param="max_tokens")
    return body.max_completion_tokens


def _biases(given: dict[str, float]) -> dict[int, float]:
    biases = {}
    for token, bias in given.items():
        if not token.isdecimal() or not token.isascii() or len(token) > ID_DIGITS:
            raise ApiError(400, f"logit_bias has the key {token[:40]!r}; keys are token ids.", param="logit_bias")
        if not -100 <= bias <= 100:
            raise ApiError(400, f"logit_bias of token {token} is {bias}; it must be -100 to 100.", param="logit_bias")
        biases[int(token)] = bias
    return biases


def _logprobs(body: GenerationBody) -> dict[str, Any]:
    if isinstance(body, CompletionBody):
        return {} if body.logprobs is None else {"logprobs": True, "top_logprobs": body.logprobs}
    if not isinstance(body, ChatBody):
        return {}
    if not body.logprobs:
        if body.top_logprobs:
            raise ApiError(400, "top_logprobs needs logprobs to be true.", param="top_logprobs")
        return {}
    return {"logprobs": True, "top_logprobs": body.top_logprobs or 0}
