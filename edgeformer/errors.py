"""Errors meant for the user. Each message says what happened, what was expected, and what to do.

Programming errors are `ValueError` or `assert`; only what a user can act on is an `EdgeformerError`. The command line
prints the message alone and exits with 1.
"""

import importlib
from types import ModuleType
from typing import Any

LONGEST = 3000
"""Characters of an error's text at most. Programs that it cites, such as onnxruntime, may cite whole files."""


class EdgeformerError(Exception):
    """Base class of all errors that a user of edgeformer can act on. A text of more than LONGEST characters is cut."""

    def __init__(self, message: str = "", *arguments: Any):
        if len(message) > LONGEST:
            message = f"{message[:LONGEST]} … ({len(message) - LONGEST:,} more characters)"
        super().__init__(message, *arguments)


class ConfigError(EdgeformerError):
    """A model config is invalid, contradictory or not supported."""


class ContextLengthError(ConfigError):
    """More positions are asked for than a model has, or than a static graph can provide for."""


class WeightsError(EdgeformerError):
    """Tensors of a checkpoint are missing, unexpected, of a wrong shape, or unreadable."""


class ExportError(EdgeformerError):
    """An export is not possible, or was not completed."""


class BundleError(EdgeformerError):
    """A folder is not a bundle, or its files differ from its manifest."""


class ParityError(EdgeformerError):
    """A graph does not compute what its PyTorch model computes."""


class RequestError(EdgeformerError):
    """The model cannot serve a request as asked. field: the option or argument that is wrong, where it is one."""

    def __init__(self, message: str = "", *, field: str | None = None):
        super().__init__(message)
        self.field = field


class PromptLengthError(RequestError):
    """A prompt, with the tokens that are to come, is longer than the model's context or the caller's limit."""


class MissingDependencyError(EdgeformerError):
    """A package that this part of edgeformer needs is not installed, or is too old."""


def shown(value: Any, longest: int = 60) -> str:
    """Return a value as errors show it: as Python writes it, and its type where it is cut."""
    text = repr(value)
    return f"{text[:longest]}… ({type(value).__name__})" if len(text) > longest else text


def require(module: str, extra: str) -> ModuleType:
    """Return the imported `module`; raise MissingDependencyError that names the `extra` that installs it.

    Only a missing module is reported this way. An import that fails inside an installed package raises its own error,
    because installing the extra would not help.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.split(".")[0]:
            raise
        raise MissingDependencyError(
            f"{module} is not installed, and this needs it. Install it with: pip install 'edgeformer[{extra}]'"
        ) from None
