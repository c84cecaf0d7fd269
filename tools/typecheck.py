"""Run mypy over what ships, laid out as it is installed.

    python tools/typecheck.py

`export/` and `runtime/` are installed as `edgeformer.export` and `edgeformer.runtime`, which mypy cannot know from the
repository's folders; a temporary tree of links shows it the packages as they will be.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent


def link_packages(folder: Path) -> None:
    """Make the packages in a folder, as they are installed, of links to the repository."""
    package = folder / "edgeformer"
    package.mkdir()
    for path in (ROOT / "edgeformer").iterdir():
        (package / path.name).symlink_to(path)
    for name in ("export", "runtime"):
        (package / name).symlink_to(ROOT / name)


def main() -> int:
    """Link, check, return mypy's exit code."""
    with tempfile.TemporaryDirectory() as folder:
        link_packages(Path(folder))
        line = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "-p", "edgeformer"]
        return subprocess.run(line, cwd=folder, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
