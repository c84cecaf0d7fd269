"""Every command and Python block on the tutorial pages, and on one how-to page, runs and prints what is shown."""

from collections import Counter

import docs_pages
import pytest
from docs_pages import DOCS, Block, blocks, commands, is_shown, run_page

TUTORIALS = [*sorted((DOCS / "tutorials").glob("*.md")), DOCS / "how-to" / "control-generation.md"]

# Blocks that a test cannot run, by page: how many, and why.
NOT_RUN = {
    "a-model-that-sees.md": {"installs packages": 1},
    "control-generation.md": {"needs a model of the Hugging Face hub": 2, "needs two bundles of one family": 1},
    "first-export.md": {"installs packages": 1},
    "into-a-browser.md": {"needs npm": 1},
    "into-an-app.md": {"installs packages": 1},
    "onto-a-phone.md": {"needs a build of ONNX Runtime": 1},
    "your-checkpoint.md": {"needs the Hugging Face hub": 1},
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # PEFT 0.21 with transformers 5.23
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_runs_from_top_to_bottom(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run_page(page, tmp_path)


def test_only_what_needs_a_network_or_a_device_is_not_run():
    found = {page.name: dict(Counter(b.reason for b in blocks(page) if b.reason is not None)) for page in TUTORIALS}
    assert {name: reasons for name, reasons in found.items() if reasons} == NOT_RUN


def test_tutorials_hold_nothing_in_a_language_that_nobody_runs():
    """JavaScript is run by tests/tools/test_conformance.py, from examples/."""
    languages = {block.language for page in TUTORIALS for block in blocks(page)}
    assert languages <= {"sh", "console", "python", "js"}


def test_blocks_are_found_with_the_reason_why_they_are_not_run(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("a\n```sh\nls\n```\n<!-- no-run: needs npm -->\n```python\nx\n```\n")
    assert blocks(page) == [Block("sh", "ls\n", 2, None), Block("python", "x\n", 6, "needs npm")]


@pytest.mark.parametrize(
    ("shown", "output", "same"),
    [
        ("a\nb\n", "a\nb\n", True),
        ("a … c", "a b c", True),
        ("a\n…\nc\n", "a\nb\nb\nc\n", True),
        ("a\n…\n", "a\nb", True),
        ("a\n…\n", "b\na", False),
        ("a", "a b", False),
        ("1.5", "1x5", False),
        ("a  1", "a    1\n", True),
        ("a 1", "a1", False),
    ],
)
def test_what_a_page_shows_is_compared_with_what_is_printed(shown, output, same):
    assert is_shown(shown, output) is same


def test_commands_of_a_block_come_with_what_they_print():
    assert commands("$ a b\nc\nd\n$ e\n") == [("a b", "c\nd\n"), ("e", "")]


@pytest.mark.parametrize(
    "text", ["```sh\nfalse\n```\n", "```console\n$ echo a\nb\n```\n", "```console\n$ echo error: a\nerror: a\n```\n"]
)
def test_a_block_that_does_otherwise_is_a_failure(text, tmp_path, monkeypatch):
    monkeypatch.setattr(docs_pages, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(text)
    with pytest.raises(AssertionError, match=r"page\.md:1"):
        run_page(page, tmp_path)
