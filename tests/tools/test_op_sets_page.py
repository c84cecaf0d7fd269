"""The tables of docs/reference/op-sets.md are up to date: some are generated again and compared."""

import re
from dataclasses import replace

import click
import pytest
from click.testing import CliRunner
from verification import op_sets
from verification.op_set_tables import lowering, trial
from verification.op_set_tables.blocks import BLOCKS
from verification.op_set_tables.finding import Found, find, forget
from verification.op_set_tables.page import part, with_part
from verification.op_set_tables.rules import rule_lists
from verification.op_set_tables.table import Footnotes, block_table, expanded

from edgeformer.errors import ExportError
from edgeformer.export.graph.canonical import canonical_inputs
from edgeformer.export.lower import LoweringOptions, ort, portable, standard
from edgeformer.export.lower.ort.attention import attention
from edgeformer.export.lower.standard import norms

KEYS = ["softcap", "sinks"]
ONLY = "--check", "--only", ",".join(KEYS)
SOFTCAP = BLOCKS["softcap"]
TARGET = LoweringOptions()


@pytest.fixture
def changed_rules():
    """Clear cached lowerings before and after the test."""
    forget()
    yield
    forget()


def run(*arguments):
    return CliRunner().invoke(op_sets.main, [str(argument) for argument in arguments])


def test_the_page_says_what_the_code_does():
    result = run(*ONLY)
    assert result.exit_code == 0, result.output
    page = op_sets.PAGE.read_text(encoding="utf-8")
    stated, true = expanded(part(page, "blocks")), expanded(block_table(KEYS))
    assert true.items() <= stated.items()
    assert list(stated) == ["", *(block.title for block in BLOCKS.values())]


def test_a_changed_rule_makes_another_table(monkeypatch, changed_rules):
    monkeypatch.setattr(attention, "_no_kernel", lambda node, provider: "the kernel is on holiday")
    assert find(SOFTCAP, "fp32", TARGET) == Found("○", reasons=("the kernel is on holiday",))
    result = run(*ONLY)
    assert result.exit_code == 1
    assert "-● `GroupQueryAttention`\n" in result.stdout
    assert "+○ [The kernel is on holiday]\n" in result.stdout
    page = "docs/reference/op-sets.md"
    assert f"{page} is stale: run `python tools/verification/op_sets.py --write {page}`" in result.stderr


def test_a_changed_page_is_stale(monkeypatch, tmp_path):
    page = op_sets.PAGE.read_text(encoding="utf-8")
    note = re.search(r"^\d+\. Attention has no sinks$", page, re.MULTILINE)[0]
    monkeypatch.setattr(op_sets, "PAGE", tmp_path / "page.md")
    for old, new in (
        ("| soft-cap | ● ", "| soft-cap | ○ "),
        (note, note + " yet"),
        ("- rule `Gelu`: ", "- rule `Gelu`! "),
    ):
        assert page.count(old) == 1
        op_sets.PAGE.write_text(page.replace(old, new), encoding="utf-8")
        assert run(*ONLY).exit_code == 1, new
    op_sets.PAGE.write_text(page.replace("| RMSNorm | ● ", "| RMSNorm | ○ "), encoding="utf-8")
    assert run(*ONLY).exit_code == 0, "another row is none of its business"


def test_what_a_lowering_refuses_is_said_in_its_words(monkeypatch, changed_rules):
    def refuse(graph, spec, target):
        raise ExportError("no caps today. Export without.")

    monkeypatch.setattr(lowering, "lower_captured", refuse)
    assert find(SOFTCAP, "fp32", TARGET) == Found("✗", reasons=("no caps today. Export without.",))


def test_an_op_without_a_kernel_is_not_native(monkeypatch, changed_rules):
    monkeypatch.setattr(attention, "ATTENTION", replace(attention.ATTENTION, domain="com.example"))
    found = find(SOFTCAP, "fp32", TARGET)
    assert (found.mark, found.ops) == ("✗", ("GroupQueryAttention",))
    assert found.reasons[0].startswith("onnxruntime: ")


def test_an_op_that_onnxruntime_writes_out_itself_is_not_native(monkeypatch, changed_rules):
    real = trial.run

    def without_kernel(*arguments):
        output, kernels = real(*arguments)
        return output, kernels - {"GroupQueryAttention"}

    monkeypatch.setattr(trial, "run", without_kernel)
    found = find(SOFTCAP, "fp32", TARGET)
    assert found.mark == "○"
    assert found.reasons == (
        "there is no float32 CPU kernel for GroupQueryAttention: onnxruntime runs other ops in its place",
    )


def test_a_graph_that_computes_something_else_is_not_native(monkeypatch, changed_rules):
    real = norms._norm

    def without_weight(emit, node):
        canonical_inputs(node).set(weight=None)
        return real(emit, node)

    monkeypatch.setattr(norms, "_norm", without_weight)
    found = find(SOFTCAP, "fp32", LoweringOptions(ops="standard", cache_form="dynamic"))
    assert found.mark == "✗"
    assert re.fullmatch(r"it is 0\.\d+ off what its primitives compute", found.reasons[0])


def test_a_reason_has_one_footnote_wherever_it_stands():
    footnotes = Footnotes()
    assert [footnotes.mark(reason) for reason in ("no kernel", "no time", "no kernel")] == ["[1]", "[2]", "[1]"]
    assert footnotes.lines() == ["1. No kernel", "2. No time"]


def test_every_rule_and_pass_is_described():
    lists = rule_lists()
    for name, op_set in (("ort", ort), ("standard", standard), ("portable", portable)):
        section = lists.partition(f"### `{name}`")[2].partition("###")[0]
        assert section.count("- rule ") == len(op_set.RULES)
        assert "- pass `transpose_weights`: Store weights transposed, as MatMul reads them." in section
    assert "no relation vectors; on CUDA also float16 or bfloat16" in lists
    assert ": *" not in lists and ":  " not in lists, "a module says what it requires, but not what it is"


def test_a_page_without_markers_is_refused(tmp_path):
    with pytest.raises(click.ClickException, match="the page needs one line <!-- generated by .* blocks -->"):
        with_part("# Op sets", "blocks", "| |")
    result = run("--only", "softcap,sofa")
    assert result.exit_code == 2
    assert "there is no block sofa. Blocks are: rms_norm, " in result.output
