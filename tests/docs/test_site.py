"""The documentation site builds without a warning: links, anchors, navigation, references into the code."""

import importlib
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import docs_arguments
import docs_site
import pytest
from docs_pages import ROOT

from edgeformer.options.export import OPTIONS as EXPORT_OPTIONS
from edgeformer.options.generation import OPTIONS


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    result = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert "WARNING" not in result.stderr
    return folder


def page(site, name):
    return (site / name / "index.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_every_page_is_there(site):
    written = {path.parent.relative_to(site).as_posix() for path in site.rglob("index.html")}
    sources = {path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")}
    assert {(path.parent if path.name == "index" else path).as_posix() for path in sources} <= written


@pytest.mark.slow
def test_nothing_is_fetched_from_another_server(site):
    """Readers without a network see the pages as they are; links are for readers to follow."""
    for file in site.rglob("*.html"):
        text = file.read_text(encoding="utf-8")
        assert not re.findall(r'<(?:script|img)[^>]+src="https?://', text), file
        assert not re.findall(r'<link[^>]+rel="(?:stylesheet|preconnect)"[^>]+href="https?://', text), file


@pytest.mark.slow
def test_the_command_line_reference_has_every_option(site):
    text = page(site, "reference/cli")
    for name in (
        "export",
        "run",
        "embed",
        "score",
        "rank",
        "bench",
        "eval",
        "optimize",
        "verify",
        "check",
        "info",
        "models",
        "serve",
    ):
        assert f'id="{name}"' in text
    assert "<code>--precision</code>" in text and "<code>--max-new-tokens</code>" in text
    assert "<code>--target</code>" not in text  # a name of before, which help hides, too


@pytest.mark.parametrize("package", docs_site.FACADES)
@pytest.mark.slow
def test_the_python_reference_has_every_public_name(site, package):
    facade = importlib.import_module(package)
    name = f"reference/api-{package.split('.')[1]}"
    text = page(site, name)
    for public in facade.__all__:
        assert re.search(rf'id="{package.rpartition(".")[0]}[\w.]*\.{public}"', text), f"{name} lacks {public}"


@pytest.mark.slow
def test_families_are_listed(site):
    from edgeformer.families import family_names

    text = page(site, "reference/families")
    assert [name for name in family_names() if f"<code>{name}</code>" not in text] == []


@pytest.mark.slow
def test_options_of_generation_are_listed(site):
    text = page(site, "reference/generation-options")
    assert [name for name in OPTIONS if f"<code>{name}</code>" not in text] == []


@pytest.mark.slow
def test_options_of_export_are_listed(site):
    text = page(site, "reference/export-options")
    assert [name for name in EXPORT_OPTIONS if f"<code>{name}</code>" not in text] == []


def rendered(markdown):
    """Return what the hook makes of a page how-to/page.md."""
    where = SimpleNamespace(file=SimpleNamespace(src_uri="how-to/page.md"))
    config = SimpleNamespace(repo_url="https://host/repo")
    return docs_site.on_page_markdown(markdown, page=where, config=config, files=None)


def test_links_out_of_the_folder_become_urls_of_the_repository():
    assert rendered("[a](../../README.md#b)") == "[a](https://host/repo/blob/main/README.md#b)"
    assert rendered("[a](../../tools)") == "[a](https://host/repo/tree/main/tools)"
    assert rendered("[a](../index.md)") == "[a](../index.md)"


def test_a_link_to_no_file_and_an_unknown_part_are_warnings(monkeypatch):
    warnings = []
    monkeypatch.setattr(docs_site, "warn", warnings.append)
    assert rendered("[a](../../no.md)\n\n<!-- generated: nothing -->\n").endswith("\n\n\n")
    assert ["leads to no file" in warnings[1], "nothing generates nothing" in warnings[0]] == [True, True]


@pytest.mark.parametrize(
    ("paragraph", "shown"),
    [
        ("x: a number. y, z: two\nmore: these.", "- `x`: a number.\n- `y`, `z`: two more: these."),
        ("x: one. Note: no argument.", "- `x`: one. Note: no argument."),
        ("What it does. x: a number.", "What it does. x: a number."),
        ("w: unknown.", "w: unknown."),
        ("a    [B]\nb, c [B, S],\n     or none", "- `a`: [B]\n- `b`, `c`: [B, S], or none"),
        ("a    b\nxyz w q", "a    b\nxyz w q"),
    ],
)
def test_arguments_of_a_docstring_become_a_list(paragraph, shown):
    assert docs_arguments.as_list(paragraph, {"x", "y", "z"}) == shown
