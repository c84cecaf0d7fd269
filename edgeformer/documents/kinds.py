"""Kinds that are files: each file of a package is a kind, named as it is, and names its class. Nothing lists them."""

import functools
import importlib
import pkgutil
from typing import Any


@functools.cache
def kinds_of(package: str, attribute: str) -> dict[str, Any]:
    """Return what the files of a package name in an attribute, by the names of the files; others have no kind."""
    names = [each.name for each in pkgutil.iter_modules(importlib.import_module(package).__path__)]
    modules = {name: importlib.import_module(f"{package}.{name}") for name in names}
    return {name: getattr(module, attribute) for name, module in modules.items() if hasattr(module, attribute)}
