"""Let the tests find the tools, of which they use the driver of a browser and the load generator."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))
