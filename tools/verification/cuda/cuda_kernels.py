"""Write the table of kernels that `edgeformer check --provider cuda` reads, from a wheel of onnxruntime-gpu.

    pip download --no-deps --dest wheels onnxruntime-gpu==1.31.1
    python tools/verification/cuda/cuda_kernels.py wheels/onnxruntime_gpu-1.31.1-*.whl

The wheel is for the interpreter that runs this. It needs gcc and binutils, and neither a GPU nor CUDA: the provider
itself lists its kernels, in a process with simulated CUDA (tools/verification/cuda/simulated_cuda).
"""

import json
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import click
import onnx

sys.path.insert(0, str(Path(__file__).parents[2]))  # the folders of tools/ are packages

from edgeformer.check.providers.kernel_table import TABLE
from verification.cuda.simulated_cuda.session import SimulatedCuda

LATEST = 2**31 - 1
"""The last version of a kernel that has none."""

DOMAINS = ("", "com.microsoft")

OLDEST = 11
"""Kernels for older versions of an op only are left out: nobody exports transformers with them."""

Row = tuple[int, int | None, dict[str, tuple[str, ...]]]
"""First and last version, and the types of each type variable."""


def table_of(registry: dict[str, Any], package: str) -> dict[str, Any]:
    """Return the table of a provider's registry, as child.py returns it."""
    kernels: dict[str, dict[str, list[Row]]] = {"cuda": defaultdict(list), "cpu": defaultdict(list)}
    for provider, domain, op, (first, last), types in registry["kernels"]:
        if domain in DOMAINS and (domain or last >= OLDEST):
            given = {variable: tuple(sorted(map(_plain, names))) for variable, names in sorted(types.items())}
            rows = kernels["cuda" if provider.startswith("CUDA") else "cpu"][_key(domain, op)]
            rows.append((first, None if last >= LATEST else last, given))
    return {
        "onnxruntime": registry["onnxruntime"],
        "package": package,
        "schemas": {
            _key(each["domain"], each["name"]): {
                **{part: [[name, _plain(kind)] for name, kind in each[part]] for part in ("inputs", "outputs")},
                "only": {name: _plain(kind) for name, kind in each["only"].items()},
            }
            for each in sorted(registry["schemas"], key=lambda each: (each["domain"], each["name"]))
            if any(_key(each["domain"], each["name"]) in ops for ops in kernels.values())
            and not onnx.defs.has(each["name"], domain=each["domain"])
        },
        **{name: {op: merged(rows) for op, rows in sorted(ops.items())} for name, ops in kernels.items()},
    }


def merged(rows: list[Row]) -> list[Row]:
    """Return fewer rows that accept the same: rows that differ in the types of one variable become one."""
    rows = [row for place, row in enumerate(rows) if row not in rows[:place]]
    for variable in sorted({variable for _, _, types in rows for variable in types}):
        groups: dict[str, Row] = {}
        for first, last, types in rows:
            others = {name: names for name, names in types.items() if name != variable}
            key = json.dumps([first, last, variable in types, others])
            known = groups.get(key)
            joined = set(types.get(variable, ())) | set(known[2].get(variable, ()) if known else ())
            own = {variable: tuple(sorted(joined))} if variable in types else {}
            groups[key] = (first, last, others | own)
        rows = list(groups.values())
    return sorted(rows, key=lambda row: (row[0], json.dumps(row[2])))


def text_of(table: dict[str, Any]) -> str:
    """Return the table as JSON with an op a line."""
    parts = []
    for name, value in table.items():
        if isinstance(value, dict):
            lines = ",\n".join(f"  {json.dumps(op)}: {json.dumps(rows)}" for op, rows in value.items())
            parts.append(f" {json.dumps(name)}: {{\n{lines}\n }}")
        else:
            parts.append(f" {json.dumps(name)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _key(domain: str, op: str) -> str:
    return f"{domain}::{op}" if domain else op


def _plain(kind: str) -> str:
    """float16 for tensor(float16); names of type variables and other types stay."""
    return kind.removeprefix("tensor(").removesuffix(")") if kind.startswith("tensor(") else kind


@click.command(help=(__doc__ or "").split("\n", maxsplit=1)[0])
@click.argument("wheel", type=click.Path(exists=True, path_type=Path))
@click.option("--write", type=click.Path(path_type=Path), default=TABLE, show_default=True, help="File to write.")
def main(wheel: Path, write: Path) -> None:
    """Write the table."""
    simulated = SimulatedCuda(wheel)
    try:
        table = table_of(simulated.ask("registry"), wheel.name)
    finally:
        simulated.close()
    write.write_text(text_of(table), encoding="utf-8")
    click.echo(f"{write}: {len(table['cuda'])} ops on CUDA, {len(table['cpu'])} on the CPU", err=True)


if __name__ == "__main__":
    main()
