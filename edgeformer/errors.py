"""Errors meant for the user. Each message says what happened, what was expected, and what to do.

Programming errors are `ValueError` or `assert`; only what a user can act on is an `EdgeformerError`. The command line
prints the message alone and exits with 1.
"""

import importlib
from types import ModuleType


class EdgeformerError(Exception):
    """Anything that the user of edgeformer can act on."""


class ConfigError(EdgeformerError):
    """A model configuration that is invalid, contradictory or not supported."""


class WeightsError(EdgeformerError):
    """A checkpoint whose tensors are missing, unexpected, misshapen or unreadable."""


class ExportError(EdgeformerError):
    """An export that cannot be done, or was not completed."""


class BundleError(EdgeformerError):
    """A folder that is not a bundle, or whose files are not what its manifest says."""


class ParityError(EdgeformerError):
    """A graph that does not compute what its PyTorch model computes."""


class RequestError(EdgeformerError):
    """A generation request that the model cannot serve as asked."""


class MissingDependencyError(EdgeformerError):
    """A package that this part of edgeformer needs is not installed, or is too old."""


def require(module: str, extra: str) -> ModuleType:
    """Import `module`, or say which extra of edgeformer installs it.

    Only an absent module is reported so: an import that fails inside an installed package raises as it is, because
    reinstalling would not help.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.split(".")[0]:
            raise
        raise MissingDependencyError(
            f"{module} is not installed, and this needs it. Install it with: pip install 'edgeformer[{extra}]'"
        ) from None
