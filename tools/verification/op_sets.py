"""Generate the tables of docs/reference/op-sets.md from the code: how each op set lowers each block.

    python tools/verification/op_sets.py                                    # prints the tables
    python tools/verification/op_sets.py --write docs/reference/op-sets.md  # writes them between the page's markers
    python tools/verification/op_sets.py --check [--only softcap,sinks]     # exits with 1 and a diff if it is stale

For each block, a small model that has it is captured in float32 and float16 and lowered as an export does, for every op
set, provider and form of cache. The tool then looks at the nodes that replaced the block, and at the reason that a rule
gives if it did not apply. Each graph for the CPU runs in onnxruntime and must compute what its primitives compute; a
graph for CUDA runs where CUDA is available.
"""

import sys
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).parents[1]))  # the folders of tools/ are packages

from verification.op_set_tables.blocks import BLOCKS
from verification.op_set_tables.page import differences, with_part
from verification.op_set_tables.rules import rule_lists
from verification.op_set_tables.table import block_table

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "op-sets.md"


@click.command(help=(__doc__ or "").split("\n")[0])
@click.option(
    "--write", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Page to write the tables to."
)
@click.option("--check", is_flag=True, help="Compare with docs/reference/op-sets.md; exit code 1 if it is stale.")
@click.option("--only", help=f"Only these blocks, separated by commas: {', '.join(BLOCKS)}.")
def main(write: Path | None, check: bool, only: str | None) -> None:
    """Print the tables, write them, or compare them with the page."""
    keys = list(BLOCKS) if only is None else only.split(",")
    if unknown := [key for key in keys if key not in BLOCKS]:
        raise click.UsageError(f"there is no block {', '.join(unknown)}. Blocks are: {', '.join(BLOCKS)}.")
    if write is not None and (check or only is not None):
        raise click.UsageError("--write writes all blocks; it takes neither --only nor --check.")
    with click.progressbar(length=len(keys), file=sys.stderr) as bar:
        blocks, rules = block_table(keys, lambda key: bar.update(1)), rule_lists()
    if write is not None:
        page = with_part(write.read_text(encoding="utf-8"), "blocks", blocks)
        write.write_text(with_part(page, "rules", rules), encoding="utf-8")
    elif check:
        stale = list(differences(PAGE.read_text(encoding="utf-8"), keys, blocks, rules))
        for line in stale:
            click.echo(line)
        if stale:
            page = PAGE.relative_to(PAGE.parents[2])
            click.echo(f"{page} is stale: run `python tools/verification/op_sets.py --write {page}`.", err=True)
            sys.exit(1)
    else:
        click.echo(f"{blocks}\n\n{rules}")


if __name__ == "__main__":
    main()
