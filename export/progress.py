"""How long work reports its progress."""

from collections.abc import Callable

Progress = Callable[[str, float], None]
"""Called with what is being done, and the fraction of it that is done, 0 to 1."""


def no_progress(what: str, fraction: float) -> None:
    """Report to nobody."""
