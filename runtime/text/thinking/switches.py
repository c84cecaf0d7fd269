"""Variables of chat templates that switch thinking, or say how much of it there is to be."""

from collections.abc import Iterable

from edgeformer.errors import RequestError

EFFORT = "reasoning_effort"
"""The variable of degrees."""

SWITCHES = ("enable_thinking", "thinking", "reasoning")
"""Variables that switch thinking on and off: of most templates, of Granite and DeepSeek, and of Command A."""


def thinking_variables(
    names: frozenset[str], enable_thinking: bool | None, reasoning_effort: str | None, *, thinks: bool
) -> dict[str, str | bool]:
    """Return variables of a chat template that switch thinking, and say how much of it there is to be.

    names: the variables that the template reads. thinks: whether the model has marks of thinking. Raises RequestError
    for what the template does not read, but to switch off what is not there changes nothing, nor on what always is.
    """
    variables: dict[str, str | bool] = {}
    if reasoning_effort is not None:
        if EFFORT in names:
            variables[EFFORT] = reasoning_effort
        elif reasoning_effort == "none":
            enable_thinking = False
        else:
            raise _unread("reasoning_effort", (EFFORT,), names)
    if enable_thinking is not None and (enable_thinking or thinks or names & set(SWITCHES)):
        switch = next((name for name in SWITCHES if name in names), None)
        if switch is not None:
            variables[switch] = enable_thinking
        elif not enable_thinking or not thinks:
            raise _unread("enable_thinking", SWITCHES, names)
    return variables


def _unread(field: str, wanted: Iterable[str], names: frozenset[str]) -> RequestError:
    others = sorted(names & {EFFORT, *SWITCHES})
    instead = f" It reads {', '.join(others)}." if others else ""
    unread = f"the chat template of this model does not read {' or '.join(wanted)}"
    return RequestError(f"{field} would change nothing: {unread}.{instead}", field=field)
