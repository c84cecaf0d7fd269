"""Tools that take too long for a test can at least be imported."""

import runpy
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"
PATTERNS = ("*.py", "*/*.py", "benchmarks/[!p]*/*.py", "verification/cuda/*.py", "reliability/*/*.py")
# The interpreter of another environment runs the worker.
FOREIGN = {"ctranslate2_worker", "__init__"}


@pytest.mark.parametrize(
    "tool",
    [path for pattern in PATTERNS for path in sorted(TOOLS.glob(pattern)) if path.stem not in FOREIGN],
    ids=lambda path: str(path.relative_to(TOOLS)),
)
def test_what_a_tool_imports_is_there(tool):
    assert runpy.run_path(str(tool), run_name="imported")["__doc__"]
