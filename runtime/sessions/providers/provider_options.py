"""The base class of the options of providers that users choose."""

from dataclasses import dataclass
from typing import Any, Self

from edgeformer.errors import RequestError
from edgeformer.runtime.request_values import shown


@dataclass(frozen=True, kw_only=True)
class ProviderOptions:
    """Options of one of onnxruntime's execution providers; they have no effect on the others."""

    def for_onnxruntime(self) -> dict[str, str]:
        """Return the options as a session takes them."""
        return {}

    def without_graphs(self) -> Self:
        """Return the options of a session whose runs are not captured."""
        return self


def checked(given: Any) -> ProviderOptions | None:
    """Return the options, or None for the defaults. Raises RequestError for anything else."""
    if given is not None and not isinstance(given, ProviderOptions):
        kinds = " or a ".join(sorted(each.__name__ for each in ProviderOptions.__subclasses__()))
        raise RequestError(f"provider_options is {shown(given)}; it must be a {kinds}, or None for the defaults.")
    return given
