"""Start the command line, so that SIGINT and SIGTERM end it quietly at any moment from its first line on.

    first line   imports of the command line   the command         its end
    the system ends the process ───────────┤ it cleans up ├─── the system ends the process

A command ends by an exception, KeyboardInterrupt or SystemExit, which removes what is half written. Within an import it
is raised when the import is done: PyTorch's runs C++ that no exception may leave, or the system aborts the process.
Raised inside of a callback it may come out as another error, or be printed and forgotten; neither is shown to the user.
This module imports as little as it can, since Python prints a traceback where it is interrupted before `main`.
"""

import _thread
import atexit
import gc
import os
import signal
import sys
import time
from types import FrameType
from typing import Any, NoReturn

_received: list[int] = []
"""Signals that have come, in order."""

_waiting: list[int] = []
"""The signal that waits for the end of an import; others that come meanwhile need not."""

_status: list[int] = []
"""Exit status of the command, once it has ended."""

OBJECTS = 50_000
"""New objects after which Python looks for garbage in cycles, instead of 700. The imports of an export make 740,000
objects that stay: looking through them again and again took 0.9 of their 3.7 s."""

IMPATIENT = 3
"""Signals after which the process ends without cleaning up."""

IMPORTS = "<frozen importlib._bootstrap>"
"""File that Python gives for the code that imports modules."""


def main() -> NoReturn:
    """Run the command line: the entry point of the console script. Exits with 130 after SIGINT, 143 after SIGTERM."""
    atexit.register(_leave)  # what is registered later is called earlier
    watched = [each for each in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(each) is not signal.SIG_IGN]
    for each in watched:
        signal.signal(each, signal.SIG_DFL)
    gc.set_threshold(OBJECTS)
    from edgeformer.cli.main import main as run

    code: Any = 1
    try:
        sys.unraisablehook = _ignore
        for each in watched:
            signal.signal(each, _interrupt)
        run()
        code = 0
    except SystemExit as end:
        code = end.code
        if code and _received:
            code = 128 + _received[0]
    except BaseException:
        if not _received:
            raise
        code = 128 + _received[0]
    finally:
        # What runs at exit has nothing to clean up, and an exception there would be printed.
        for each in watched:
            signal.signal(each, signal.SIG_DFL)
        # Python looks for garbage several times as it ends: 1.8 s for the objects of an export, which the system frees.
        gc.freeze()
    _status.append(code if isinstance(code, int) else int(code is not None))
    sys.exit(code)


def _leave() -> None:
    """Let the system end the process, once all is done that runs at exit, and before Python takes modules apart.

    Modules of triton 3.9, which torch 2.15 brings, would print a list of their objects that no collector has found.
    """
    if not _status:
        return
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    except (OSError, ValueError):  # Python says so, and exits with its own status
        return
    os._exit(_status[0])


def _interrupt(number: int, frame: FrameType | None) -> None:
    """End the command by an exception, so that it cleans up."""
    _received.append(number)
    if len(_received) >= IMPATIENT:
        os._exit(128 + number)
    if _imports(frame):
        if not _waiting:
            _waiting.append(number)
            _thread.start_new_thread(_send_again, (number, _thread.get_ident()))
        return
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    sys.exit(128 + number)


def _imports(frame: FrameType | None) -> bool:
    """Return whether a frame runs within the import of a module."""
    while frame is not None and frame.f_code.co_filename != IMPORTS:
        frame = frame.f_back
    return frame is not None


def _ignore(unraisable: Any) -> None:
    """Report an exception that Python ignores; one of a signal is sent again instead, since the command went on."""
    if _received and isinstance(unraisable.exc_value, KeyboardInterrupt | SystemExit):
        # Python ignores what is raised in here, too: another thread sends it when this has returned.
        _thread.start_new_thread(_send_again, (_received[-1], _thread.get_ident()))
    elif not _received:
        sys.__unraisablehook__(unraisable)


def _send_again(number: int, thread: int) -> None:
    """Send a signal that has come once more, as soon as the thread imports nothing."""
    time.sleep(0.01)
    while _imports(sys._current_frames().get(thread)):
        time.sleep(0.01)
    _waiting.clear()
    _received.remove(number)
    _thread.interrupt_main(signal.Signals(number))
