"""Run the programs of official clients against the server, and write a table of which calls ran, with which versions.

    python tools/verification/server_conformance.py tiny-llama --clients FOLDER

FOLDER holds environments: `python -m venv FOLDER/anthropic`, `FOLDER/anthropic/bin/pip install anthropic`, and so on,
and `npm install --prefix FOLDER/node openai @anthropic-ai/sdk ai @ai-sdk/openai-compatible zod`. A program whose client
is in none of them is left out, with its name. The exit status is 1 where a call did not bring what it should.
"""

import sys
import tempfile
from collections import Counter
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).parents[1]))

from verification.server_clients.runs import PROGRAMS, Places, Run, run
from verification.server_clients.scripted_server import scripted_server, with_tools


def row(name: str, versions: dict[str, str], found: Run) -> str:
    """Return the row of a program."""
    calls = ", ".join(f"{call} ({count})" if count > 1 else call for call, count in Counter(found.calls).items())
    right = len(found.calls) - len(found.wrong)
    stated = ", ".join(version if package == name else f"{package} {version}" for package, version in versions.items())
    return f"| {name} | {stated} | {right} of {len(found.calls)} | {calls} |"


@click.command()
@click.argument("bundle", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--clients", type=click.Path(exists=True, file_okay=False, path_type=Path), help="folder of environments")
@click.option("--only", multiple=True, help="names of programs, for some of them")
def main(bundle: Path, clients: Path | None, only: tuple[str, ...]) -> None:
    """Run the programs against BUNDLE, a bundle of the preset tiny-llama."""
    places, failed = Places.found(clients), False
    with tempfile.TemporaryDirectory(prefix="server-conformance.") as temporary:
        folder = Path(temporary)
        served = with_tools(bundle, folder / "tiny-llama")
        click.echo("| client | versions | right | calls |\n|---|---|---:|---|")
        for number, program in enumerate(PROGRAMS):
            if only and program.name not in only:
                continue
            installed = places.installed(program)
            if installed is None:
                click.echo(f"{program.name}: not installed", err=True)
                continue
            (folder / str(number)).mkdir()
            with scripted_server(served) as url:
                found = run(program, installed[0], url, served, folder / str(number))
            click.echo(row(program.name, installed[1], found))
            for wrong in found.wrong:
                click.echo(f"  wrong: {wrong}", err=True)
            if found.error:
                click.echo(f"  failed: {found.error}", err=True)
            failed |= bool(found.wrong or found.error)
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
