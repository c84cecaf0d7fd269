"""The tables of docs/reference/cuda.md are up to date: some rows, and all kernels, are generated again and compared."""

import re
from dataclasses import replace
from pathlib import Path

from click.testing import CliRunner
from verification.cuda import cuda_page
from verification.op_set_tables.page import part

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cuda.md"
KEYS = ["softcap"]
STALE = "run `python tools/verification/cuda/cuda_page.py --write docs/reference/cuda.md`"


def page(name):
    return part(PAGE.read_text(), name, cuda_page.TOOL)


def test_the_page_has_what_the_audit_finds():
    made, said = cuda_page.tables(KEYS), page("blocks")
    assert len(made.rows) == len(KEYS)
    for row in made.rows:
        assert row in said.splitlines(), STALE
    titles = [line.split(" | ")[0].removeprefix("| ") for line in said.splitlines()[2:] if line.startswith("| ")]
    assert titles == [block.title for block in cuda_page.BLOCKS.values()], STALE


def test_the_page_has_the_kernels_of_the_table():
    ops = re.findall(r"^\| `(\w+)` (?:\d+|\((.*)\)) \|", page("kernels"), re.MULTILINE)
    assert len(ops) > 50
    assert page("kernels") == cuda_page.kernel_part((domain, op) for op, domain in ops), STALE


def test_a_node_without_a_kernel_is_marked(monkeypatch):
    """Graphs for the CPU have attention in float32, which has no CUDA kernel."""
    precision, options = "fp32", replace(cuda_page.COLUMNS["`ort` fp32"][1], provider="cpu")
    monkeypatch.setattr(cuda_page, "COLUMNS", {"for the CPU": (precision, options)})
    made = cuda_page.tables(["softcap"])
    assert made.rows[0].endswith(" [1] |")
    assert "GroupQueryAttention" in made.findings[0]
    assert "there is no kernel for T = float" in made.findings[0]
    assert cuda_page.block_part(made).endswith(f"1. {made.findings[0]}")


def test_it_writes_the_parts_of_a_page(tmp_path, monkeypatch):
    monkeypatch.setattr(cuda_page, "BLOCKS", {key: cuda_page.BLOCKS[key] for key in KEYS[:1]})
    (tmp_path / "page.md").write_text(PAGE.read_text())
    result = CliRunner().invoke(cuda_page.main, ["--write", str(tmp_path / "page.md")])
    assert result.exit_code == 0, result.output
    written = (tmp_path / "page.md").read_text()
    assert part(written, "blocks", cuda_page.TOOL).count("| soft-cap |") == 1
    assert "RMSNorm |" not in part(written, "blocks", cuda_page.TOOL)
