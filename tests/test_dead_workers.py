"""A process of the suite that dies is noticed at once, and its tests go on in another one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

DIES = """
import os
import time


def test_dies_while_a_child_holds_its_pipes():
    if os.fork() == 0:
        time.sleep(300)
        os._exit(0)
    os.kill(os.getpid(), 9)


def test_behind_it():
    pass
"""


@pytest.mark.slow
def test_a_dead_process_is_replaced_at_once(tmp_path):
    (tmp_path / "test_dies.py").write_text(DIES)
    line = [
        sys.executable,
        "-m",
        "pytest",
        "-c",
        os.devnull,
        "--rootdir",
        tmp_path,
        "-p",
        "conftest",
        "-n",
        "1",
        tmp_path,
    ]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PYTHONPATH"] = str(Path(__file__).parent)
    # Less than its child sleeps, whose end xdist would wait for.
    done = subprocess.run(
        [*line, tmp_path], env=environment, stdout=subprocess.PIPE, text=True, check=False, timeout=50
    )
    assert "1 failed, 1 passed" in done.stdout
    assert "crashed while running" in done.stdout
