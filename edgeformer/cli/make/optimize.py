"""edgeformer optimize"""

from dataclasses import asdict
from pathlib import Path

import click

from edgeformer.cli._options import COUNT, Command, json_option, option
from edgeformer.cli._output import note, print_json, print_table


@click.command("optimize", cls=Command)
@click.argument("bundle", type=click.Path(path_type=Path))
@option("--threads", **COUNT, help="CPU threads of the measurement. [default: all usable cores]")
@option("--remove", "removes", is_flag=True, help="Remove the prepacked graphs of all machines.")
@json_option
def optimize_command(bundle: Path, threads: int | None, removes: bool, as_json: bool) -> None:
    """Let BUNDLE load faster and take less memory on this machine.

    Writes prepacked graphs: copies with the weights in the layout that this processor's kernels use. On another
    processor, or with another onnxruntime or other kernels of edgeformer, the bundle runs as before.
    """
    from edgeformer.runtime.measure.prepack import optimize, remove

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
        shown = "?" if private is None else f"{private / 1e6:.0f} MB"
        rows.append((what, f"{startup.load_seconds:.2f} s", shown))
    print_table(rows, "", "load time", "private memory")
    click.echo(f"wrote {done.bytes / 1e6:.1f} MB to {done.folder}; outputs are equal bit for bit")
