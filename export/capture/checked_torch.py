"""The versions of torch whose insides this folder replaces, and the lock of whoever does."""

import threading

CHECKED = ("2.13", "2.14", "2.15")
"""Versions of torch (major.minor) that the shim was tested with."""

LOCK = threading.Lock()
"""Held while functions of torch are replaced."""


def is_checked(version: str) -> bool:
    """Return whether a version of torch is one of `CHECKED`."""
    return ".".join(version.split(".")[:2]) in CHECKED
