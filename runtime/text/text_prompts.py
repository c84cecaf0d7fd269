"""The prompt that goes before texts: one of the call, one of the model's own by its name, or the model's default."""

from edgeformer.errors import RequestError
from edgeformer.manifest.parts import TextPrompts
from edgeformer.runtime.request_values import shown, text_or_ids


def choose_prompt(own: TextPrompts | None, prompt: str | None, prompt_name: str | None) -> str | None:
    """Return the prompt of a call; None where there is none.

    own: the model's. Raises RequestError for an unknown name, for what is not a text, and for both at once.
    """
    for name, value in (("prompt", prompt), ("prompt_name", prompt_name)):
        if value is not None and not isinstance(value, str):
            raise RequestError(f"{name} is {shown(value)}; it must be a text.")
        if value is not None:
            text_or_ids(name, value)
    if prompt is not None and prompt_name is not None:
        raise RequestError("prompt and prompt_name are both given. Give one of them.")
    if prompt_name is not None:
        known = {} if own is None else own.by_name
        if prompt_name not in known:
            names = ", ".join(map(repr, known)) or "none"
            raise RequestError(f"prompt_name is {prompt_name!r}; the model's prompts are {names}.")
        return known[prompt_name]
    if prompt is None and own is not None and own.default is not None:
        return own.by_name[own.default]
    return prompt
