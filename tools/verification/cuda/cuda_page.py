"""Generate the tables of docs/reference/cuda.md: where onnxruntime's CUDA provider runs the nodes of every block.

    python tools/verification/cuda/cuda_page.py                                 # prints the tables
    python tools/verification/cuda/cuda_page.py --write docs/reference/cuda.md  # writes them between the page's markers

For each block of docs/reference/op-sets.md, a small model that has it is captured and lowered for CUDA in every
precision, op set and form of cache, and each graph is audited, as `edgeformer check --provider cuda` does. It takes
neither a GPU nor onnxruntime-gpu: the kernels are data of the package (edgeformer/check/providers/kernels.json).
"""

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import click
import onnx_ir as ir

sys.path.insert(0, str(Path(__file__).parents[2]))  # the folders of tools/ are packages

from edgeformer.check.providers.audit import audit_graph
from edgeformer.check.providers.kernel_table import Kernel, kernel_table
from edgeformer.check.providers.typed_nodes import typed_nodes
from edgeformer.errors import ExportError
from edgeformer.export.lower import LoweringOptions
from edgeformer.manifest.parts import Precision
from edgeformer.manifest.quantization import make_quantization
from verification.op_set_tables.blocks import BLOCKS, Block
from verification.op_set_tables.lowering import lowered
from verification.op_set_tables.page import with_part

TOOL = "cuda/cuda_page.py"

COLUMNS: dict[str, tuple[Precision, LoweringOptions]] = {
    "`ort` fp16": ("fp16", LoweringOptions(provider="cuda")),
    "`ort` bf16": ("bf16", LoweringOptions(provider="cuda")),
    "`ort` fp32": ("fp32", LoweringOptions(provider="cuda")),
    "`ort` int8": ("fp16", LoweringOptions(provider="cuda", quantization=make_quantization("int8"))),
    "`ort` int4": ("fp16", LoweringOptions(provider="cuda", quantization=make_quantization("int4"))),
    "`standard` dynamic": ("fp16", LoweringOptions(provider="cuda", ops="standard", cache_form="dynamic")),
    "`standard` static": ("fp16", LoweringOptions(provider="cuda", ops="standard", cache_form="static")),
    "`portable` dynamic": ("fp16", LoweringOptions(provider="cuda", ops="portable", cache_form="dynamic")),
}
"""The type of activations and the lowering of each column."""


@dataclass
class Tables:
    """The rows of both tables. ops: (domain, op) of nodes with a CUDA kernel. findings: texts, in order."""

    rows: list[str] = field(default_factory=list)
    ops: set[tuple[str, str]] = field(default_factory=set)
    findings: list[str] = field(default_factory=list)

    def add(self, block: Block) -> None:
        """Add the row of a block."""
        cells = [self._cell(block, *column) for column in COLUMNS.values()]
        self.rows.append(f"| {block.title} | {' | '.join(cells)} |")

    def _cell(self, block: Block, precision: Precision, lowering: LoweringOptions) -> str:
        try:
            graph, _ = lowered(block.config, precision, lowering)
        except ExportError:
            return "refused"
        model, table = ir.serde.serialize_model(graph), kernel_table()
        audit = audit_graph("", model, table)
        self.ops |= {
            (node.domain, node.op)
            for node in typed_nodes(model, table)
            if table.why_not("cuda", node.domain, node.op, node.version, node.types) is None
        }
        marks = []
        for finding in audit.findings:
            text = str(finding).removeprefix(": ")
            if text not in self.findings:
                self.findings.append(text)
            marks.append(str(self.findings.index(text) + 1))
        shapes, others = sum(audit.shapes.values()), sum(audit.on_cpu.values())
        cell = f"{audit.on_device} + {shapes}" + (f" + {others}" if others else "")
        return f"{cell} [{', '.join(marks)}]" if marks else cell


def tables(keys: Iterable[str], done: Callable[[], object] = lambda: None) -> Tables:
    """Return the tables of some blocks. done: called behind each."""
    made = Tables()
    for key in keys:
        made.add(BLOCKS[key])
        done()
    return made


def block_part(made: Tables) -> str:
    """Return the table of blocks, and its findings."""
    head = f"| block | {' | '.join(COLUMNS)} |\n|---|{'---|' * len(COLUMNS)}"
    found = "\n".join(f"{place}. {text}" for place, text in enumerate(made.findings, 1)) or "There are no findings."
    return "\n".join([head, *made.rows]) + f"\n\n{found}"


def kernel_part(ops: Iterable[tuple[str, str]]) -> str:
    """Return the table of the kernels of these ops."""
    table = kernel_table()
    lines = [f"Kernels of onnxruntime {table.onnxruntime}, from `{table.package}`.", "", "| op | types |", "|---|---|"]
    for domain, op in sorted(ops):
        known = table.kernels["cuda"][f"{domain}::{op}" if domain else op]
        newest = max(kernel.first for kernel in known)
        said = "; ".join(dict.fromkeys(_types(kernel) for kernel in known if kernel.first == newest))
        lines.append(f"| `{op}` {f'({domain})' if domain else newest} | {said} |")
    return "\n".join(lines)


def _types(kernel: Kernel) -> str:
    """Types of a kernel; variables that take eight and more types have them counted."""
    said = (
        f"{name}: {', '.join(sorted(kinds)) if len(kinds) < 8 else f'{len(kinds)} types'}"
        for name, kinds in sorted(kernel.types.items())
    )
    return ", ".join(said) or "any"


@click.command(help=(__doc__ or "").split("\n")[0])
@click.option(
    "--write", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Page to write the tables to."
)
def main(write: Path | None) -> None:
    """Print the tables, or write them."""
    with click.progressbar(length=len(BLOCKS), file=sys.stderr) as bar:
        made = tables(BLOCKS, lambda: bar.update(1))
    parts = {"blocks": block_part(made), "kernels": kernel_part(made.ops)}
    if write is None:
        click.echo("\n\n".join(parts.values()))
        return
    page = write.read_text(encoding="utf-8")
    for name, text in parts.items():
        page = with_part(page, name, text, TOOL)
    write.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
