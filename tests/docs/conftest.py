"""The tests of the documentation import the site's hooks from tools/."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
