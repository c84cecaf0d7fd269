"""Functions that tests call in another process, which imports this file alone: their own would bring PyTorch."""

import json
import os
import signal
import tempfile
import time
import warnings

from edgeformer.errors import ConfigError


def noisy(value):
    print("printed")
    os.write(1, b"written\n")
    warnings.warn("odd", stacklevel=1)
    return value, os.getpid()


def refuse():
    raise ConfigError("no such thing")


def fail():
    raise KeyError("a fault")


def be_killed(parent, value):
    if os.getpid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
    return value


def take_long(folder):
    """Say that this process runs, and where its temporary files are."""
    temporary = tempfile.mkdtemp()
    (folder / "started.json").write_text(json.dumps([os.getpid(), temporary]))
    time.sleep(60)
