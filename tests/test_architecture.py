"""Arrows between packages point one way; public names come from facades.

Imports are read from the source, wherever in a file they stand, so that a lazy import cannot hide an arrow.
"""

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODEL = ("ops", "layers", "models", "families", "weights", "graphs", "blueprint")

# Who (folder or file of the repository) → what none of its imports may start with.
FORBIDDEN = {
    **{f"edgeformer/{name}*": ("edgeformer.export", "edgeformer.runtime", "onnx", "onnxruntime") for name in MODEL},
    **{
        f"edgeformer/{name}*": ("torch", "onnx", "onnxruntime", "numpy", "edgeformer.export", "edgeformer.runtime")
        for name in ("config", "contract", "manifest", "cache_scales", "schema", "errors", "accounting")
    },
    "edgeformer/families*": ("torch", "edgeformer.export", "edgeformer.runtime"),
    "edgeformer/check*": ("torch", "onnxruntime", "numpy", "edgeformer.export", "edgeformer.runtime"),
    "runtime*": ("torch", "onnx", "onnx_ir", "onnxscript", "transformers", "safetensors", "edgeformer.export"),
    **{
        f"export/{name}*": ("edgeformer.runtime", "transformers")
        for name in ("capture", "canonical", "bodies", "passes", "lower", "tensors", "bundle", "clients", "model_card")
    },
}


def imports(path: Path) -> set[str]:
    """Names of all modules that a file imports, except those for type checkers alone."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(node)
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and getattr(branch.test, "id", "") == "TYPE_CHECKING"
        for node in ast.walk(branch)
    }
    names: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def files(pattern: str) -> list[Path]:
    return sorted(file for path in ROOT.glob(pattern) for file in ([path] if path.is_file() else path.rglob("*.py")))


@pytest.mark.parametrize("who", FORBIDDEN)
def test_imports_point_the_allowed_way(who):
    assert files(who), f"nothing matches {who}"
    wrong = {
        f"{file.relative_to(ROOT)}: {name}"
        for file in files(who)
        for name in imports(file)
        for forbidden in FORBIDDEN[who]
        if name == forbidden or name.startswith(f"{forbidden}.")
    }
    assert wrong == set()


def test_the_reader_of_imports_sees_lazy_ones():
    assert "edgeformer.export.export_model" in imports(ROOT / "edgeformer/cli/export.py")
    assert not any(name.startswith("torch") for name in imports(ROOT / "edgeformer/source.py"))


def test_facades_offer_what_they_say():
    import edgeformer.export
    import edgeformer.runtime

    for facade in (edgeformer.export, edgeformer.runtime):
        assert all(hasattr(facade, name) for name in facade.__all__)
        assert facade.__all__ == sorted(facade.__all__)


def test_no_module_is_named_for_nothing():
    vague = {"utils", "helpers", "common", "misc"}
    assert not [path for folder in ("edgeformer", "export", "runtime") for path in files(folder) if path.stem in vague]


def test_the_wheel_holds_every_package():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    roots = {"edgeformer": "edgeformer", "export": "edgeformer.export", "runtime": "edgeformer.runtime"}
    found = {
        ".".join([name, *path.parent.relative_to(ROOT / folder).parts])
        for folder, name in roots.items()
        for path in (ROOT / folder).rglob("__init__.py")
    }
    assert set(listed) == found


def test_the_wheel_holds_every_file_of_every_preset():
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["edgeformer"]
    packed = {path for pattern in patterns for path in (ROOT / "edgeformer").glob(pattern) if path.is_file()}
    found = {path for path in (ROOT / "edgeformer" / "presets").rglob("*") if path.is_file()}
    assert ROOT / "edgeformer/presets/tiny-llama/model.safetensors" in found
    assert found <= packed
