"""Write what this environment is made of: a bill of materials, and the packages pinned by their hashes.

    python tools/bill_of_materials.py build/sbom.json [--pinned build/requirements.txt]

The bill is in the format CycloneDX (https://cyclonedx.org), by the program cyclonedx-py, which is installed into a
folder of its own that goes again. The tool looks for every installed package in it.

--pinned writes the packages of `.[cpu,dev]` at the versions of constraints.txt, each with the SHA-256 that pip's index
gives for this platform and this Python. `pip install --require-hashes -r FILE && pip install --no-deps -e .` then takes
these files and no others. Another index may have other builds of a version (of torch, for one), so the file is for
machines like this one, and CI does not take it.
"""

import json
import re
import subprocess
import sys
import tempfile
import venv
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).parents[1]

PROGRAM = "cyclonedx-bom==7.5.0"


def normal(name: str) -> str:
    """Return the name of a package as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def run(*line: str | Path) -> str:
    """Return what a program writes to stdout. Raises ClickException where it fails."""
    done = subprocess.run([str(part) for part in line], capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise click.ClickException(f"{' '.join(map(str, line[:4]))} … failed: {done.stderr.strip()[-2000:]}")
    return done.stdout


def write_bill(output: Path) -> dict[str, Any]:
    """Write the bill of materials of this interpreter's environment, and return it."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        programs = Path(folder) / ("Scripts" if sys.platform == "win32" else "bin")
        run(programs / "python", "-m", "pip", "install", "--quiet", PROGRAM)
        output.parent.mkdir(parents=True, exist_ok=True)
        options = ["--output-format", "JSON", "--output-file", output.absolute()]
        run(programs / "cyclonedx-py", "environment", *options, sys.executable)
    bill: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    return bill


def missing(bill: dict[str, Any]) -> list[str]:
    """Return the installed packages that a bill lacks, as NAME==VERSION."""
    listed = {(normal(each["name"]), each.get("version")) for each in bill["components"]}
    listed |= {(normal(each["name"]), each.get("version")) for each in [bill["metadata"].get("component")] if each}
    return sorted(
        f"{each.name}=={each.version}" for each in distributions() if (normal(each.name), each.version) not in listed
    )


def pinned(report: dict[str, Any]) -> str:
    """Return a file of requirements with hashes from a report of `pip install --dry-run`.

    Packages without a file in an index, such as this repository, are left out.
    """
    lines = []
    for each in report["install"]:
        hashes = each["download_info"].get("archive_info", {}).get("hashes", {})
        if "sha256" in hashes:
            name, version = normal(each["metadata"]["name"]), each["metadata"]["version"]
            lines.append(f"{name}=={version} --hash=sha256:{hashes['sha256']}\n")
    return "".join(sorted(lines))


@click.command()
@click.argument("output", type=click.Path(path_type=Path))
@click.option("--pinned", "requirements", type=click.Path(path_type=Path), help="File for the packages with hashes.")
def main(output: Path, requirements: Path | None) -> None:
    """Write the bill of materials of this environment, and pin its packages by their hashes."""
    bill = write_bill(output)
    if lacking := missing(bill):
        raise click.ClickException(f"the bill lacks {', '.join(lacking)}.")
    click.echo(f"{output}: {len(bill['components'])} packages, CycloneDX {bill['specVersion']}")
    if requirements is not None:
        options = ["--dry-run", "--ignore-installed", "--quiet", "--report", "-", "-c", "constraints.txt"]
        content = pinned(json.loads(run(sys.executable, "-m", "pip", "install", *options, ".[cpu,dev]")))
        requirements.write_text(content, encoding="utf-8")
        click.echo(f"{requirements}: {len(content.splitlines())} packages with hashes")


if __name__ == "__main__":
    main()
