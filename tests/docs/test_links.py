"""Links and paths in the pages lead somewhere. The site's build checks docs/ itself; this checks what is around it."""

import ast
import importlib
import re

import click
import pytest
from docs_pages import DOCS, ROOT

from edgeformer.cli.main import cli

PAGES = [
    ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md", "tools/README.md")
]
ALL = [*PAGES, *sorted(DOCS.rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
PATH = re.compile(r"(?<![\w./-])((?:edgeformer|export|runtime|tools|tests|examples|docs)/[\w./-]*\w/?)(?![\w*{])")
MADE_BY_READERS = {"examples/browser/model", "examples/browser/model-webgpu", "tools/FOLDER/NAME.py"}
HEADING = re.compile(r"^#+ (.+)$", re.M)


def ids(page):
    """Return the anchors of a page, as GitHub makes them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    return {re.sub(r"[^\w -]", "", heading.strip().lower()).replace(" ", "-") for heading in HEADING.findall(text)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_a_file_and_a_heading(page):
    for link in LINK.findall(page.read_text(encoding="utf-8")):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {link}"
        assert not anchor or anchor in ids(target), f"{page.name} links to {link}: no such heading"


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_files_that_a_page_names_exist(page):
    text = re.sub(r"\]\([^)]*\)", "]", page.read_text(encoding="utf-8"))
    named = {path for piece in code(text) for path in PATH.findall(piece)} - MADE_BY_READERS
    missing = [path for path in named if not (ROOT / path).exists()]
    assert missing == []


def test_the_folder_maps_of_the_architecture_are_true():
    """Each `### Inside FOLDER/` has a table of paths in that folder, and leaves no module or package of it out."""
    text = (DOCS / "explanation" / "architecture.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^### Inside (\w+)/\n(.*?)(?=^##)", text, re.M | re.S))
    assert set(sections) == {"edgeformer", "export", "runtime"}
    for folder, section in sections.items():
        cells = re.findall(r"^\| (`.+?) \|", section, re.M)
        named = {name for cell in cells for name in re.findall(r"`([\w./]+)`", cell)}
        files = [path for path in (ROOT / folder).glob("*.py") if not path.name.startswith("__")]
        packages = [path.parent for path in (ROOT / folder).glob("*/__init__.py")]
        own = {path.name for path in files} | {f"{path.name}/" for path in packages}
        elsewhere = {"errors.py"} if folder == "edgeformer" else set()  # the table of folders has it
        assert {name for name in named if not (ROOT / folder / name).exists()} == set(), folder
        assert own - named - elsewhere == set(), folder


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_that_a_page_shows_have_these_options(page):
    text = page.read_text(encoding="utf-8").replace("\\\n", " ")
    shown = re.findall(r"(?<![\w/.-])(?<!from )edgeformer (\w+)((?: [^\n`|&#>]+)?)", "\n".join(code(text)))
    for name, arguments in shown:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None, f"edgeformer has no command {name}"
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        used = set(re.findall(r"(?<=\s)(--?[a-z][\w-]*)", arguments)) - {"--help"}
        assert used <= known, f"edgeformer {name}{arguments}"


@pytest.mark.parametrize("page", ALL, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_names_that_a_page_imports_exist(page):
    blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)
    imported = {
        (node.module, alias.name)
        for block in blocks
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "edgeformer"
        for alias in node.names
    }
    for module, name in imported:
        assert hasattr(importlib.import_module(module), name) or importlib.import_module(f"{module}.{name}")


def code(text):
    """Return the code spans and code blocks of a page."""
    blocks = re.findall(r"^```\w*\n(.*?)^```$", text, re.M | re.S)
    return blocks + re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S))
