"""edgeformer optimize"""

from dataclasses import asdict
from pathlib import Path

import click

from edgeformer.cli._output import json_option, note, print_json, print_table


@click.command("optimize")
@click.argument("bundle", type=click.Path(path_type=Path))
@click.option("--threads", type=click.IntRange(min=1), help="[default: all usable cores]")
@click.option("--remove", "removes", is_flag=True, help="Remove what was written, for whatever machine.")
@json_option
def optimize_command(bundle: Path, threads: int | None, removes: bool, as_json: bool) -> None:
    """Let BUNDLE load faster and take less memory on this machine.

    Writes its graphs a second time, with weights as this processor's kernels read them. With another processor or
    another onnxruntime the bundle runs as if they were not there.
    """
    from edgeformer.runtime.optimize import optimize, remove

    if removes:
        note("removed" if remove(bundle) else "there was nothing to remove")
        return
    done = optimize(bundle, threads)
    if as_json:
        print_json(asdict(done) | {"folder": str(done.folder)})
        return
    rows = []
    for what, startup in (("before", done.before), ("after", done.after)):
        private = None if startup.memory is None else startup.memory.private_bytes
        told = "?" if private is None else f"{private / 1e6:.0f} MB"
        rows.append((what, f"{startup.load_seconds:.2f} s", told))
    print_table(rows, "", "loading", "memory of its own")
    click.echo(f"wrote {done.bytes / 1e6:.1f} MB to {done.folder}; answers are the same, bit for bit")
