"""The words of the project: docstrings are sentences, and a concept has one name, the one that the field uses."""

import ast
import functools
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("edgeformer", "export", "runtime", "tools")

FRAGMENT = re.compile(r"(What|Of|Those|These|Except|The same|Same|Such|And|But|Which)\b")
"""First words of docstrings that lean on something else than themselves."""

REPLACED = {
    "blueprint": "model spec",
    "growing cache": "dynamic cache",
    "straighten": "canonicalize",
    "written out": "decomposed",
    "making up": "error compensation",
    "looked up": "gathered",
    "lookups": "embedding gathers",
    "reroute": "patch",
    "favourite": "top-1",
    "made nothing": "had no effect",
    "cries wolf": "false-positive rate",
}
"""Words that the project used for a while, and the ones that stand for them now."""

EXCUSED = {
    "tools/presets": "texts that presets are trained on, and their makers, speak everyday English",
    "docs/explanation/what-was-tried.md": "a page of history",
}


@functools.cache
def docstrings(path: Path) -> list[tuple[str, str]]:
    """Return the name and the docstring of a module, and of every class, function and constant in it."""
    found: list[tuple[str, str]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        found += constants(node)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                found.append((getattr(node, "name", "module"), text))
    return found


def constants(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the names and the docstrings of constants in the body of a node: the strings behind assignments."""
    body = node.body if isinstance(node, ast.Module | ast.ClassDef) else []
    for statement, text in pairwise(body):
        assigns = isinstance(statement, ast.Assign | ast.AnnAssign)
        if assigns and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            yield ast.unparse(statement).split("=")[0].split(":")[0].strip(), str(text.value.value)


def sources(*suffixes: str) -> list[Path]:
    """Return files of the packages and of the documentation, but those that are excused."""
    folders = [ROOT / name for name in (*PACKAGES, "docs", "examples")]
    found = [path for folder in folders for path in folder.rglob("*") if path.suffix in suffixes]
    found += [path for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md") if path.suffix in suffixes]
    names = {path: path.relative_to(ROOT).as_posix() for path in found if "node_modules" not in path.parts}
    return [path for path, name in names.items() if not any(name.startswith(excused) for excused in EXCUSED)]


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_begin_like_sentences(package):
    fragments = [
        f"{path.relative_to(ROOT)}: {name}: {text.splitlines()[0]}"
        for path in (ROOT / package).rglob("*.py")
        for name, text in docstrings(path)
        if FRAGMENT.match(text)
    ]
    assert fragments == []


def test_a_fragment_is_seen():
    assert FRAGMENT.match("What is written.")
    assert FRAGMENT.match("Of an encoder.")
    assert not FRAGMENT.match("Whatever runs is counted.")
    assert not FRAGMENT.match("Return what is written.")


def test_docstrings_of_constants_are_read(tmp_path):
    path = tmp_path / "sizes.py"
    path.write_text('SIZE = 4\n"""What a size is."""\nOTHER: int = 5\n\nclass A:\n    of = 1\n    """Of a class."""\n')
    assert list(docstrings(path)) == [("SIZE", "What a size is."), ("of", "Of a class.")]


def test_words_that_were_replaced_are_gone():
    pattern = re.compile(rf"\b({'|'.join(REPLACED)})\b", re.IGNORECASE)
    files = sources(".py", ".md", ".jinja")
    assert len(files) > 350
    found = [
        f"{path.relative_to(ROOT)}:{number}: say {REPLACED[match.group(1).lower()]}: {line.strip()[:80]}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for match in pattern.finditer(line)
    ]
    assert found == []


NAME_AND_MEANING = re.compile(r"(?:^|(?<=[.;)]) )([a-z_]\w*(?:, [a-z_]\w*)*): ")
MOST_IN_A_PARAGRAPH = 4


def meanings(paragraph: str) -> int:
    """Return how many names a paragraph explains as `name: meaning. name: meaning.`"""
    found = list(NAME_AND_MEANING.finditer(" ".join(paragraph.split())))
    return sum(len(match[1].split(", ")) for match in found) if found and found[0].start() == 0 else 0


def test_many_names_and_their_meanings_are_a_list():
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for name, text in docstrings(path)
        for paragraph in text.split("\n\n")
        if meanings(paragraph) > MOST_IN_A_PARAGRAPH
    ]
    assert found == []


def test_names_and_their_meanings_are_counted():
    assert meanings("a: one. b, c: two;\nd: three.") == 4
    assert meanings("Attributes:\n    a: one.\n    b: two.") == 0
    assert meanings("Return what is read. path: a file.") == 0
