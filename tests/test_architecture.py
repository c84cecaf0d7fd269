"""Arrows between packages point one way; public names come from facades.

Imports are read from the source, wherever in a file they stand, so that a lazy import cannot hide an arrow.
"""

import ast
import functools
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODEL = ("ops", "layers", "models", "families", "lora", "checkpoints", "transformers_backend")

# Who (folder or file of the repository) → what none of its imports may start with.
FORBIDDEN = {
    **{f"edgeformer/{name}*": ("edgeformer.export", "edgeformer.runtime", "onnx", "onnxruntime") for name in MODEL},
    **{
        f"edgeformer/{name}*": ("torch", "onnx", "onnxruntime", "numpy", "edgeformer.export", "edgeformer.runtime")
        for name in ("config", "contract", "documents", "errors", "manifest", "options")
    },
    "edgeformer/families*": ("torch", "onnx", "onnxruntime", "edgeformer.export", "edgeformer.runtime"),
    "edgeformer/client_files*": ("torch", "onnx", "onnxruntime", "numpy", "edgeformer.export", "edgeformer.runtime"),
    "edgeformer/check": ("torch", "onnxruntime", "numpy", "edgeformer.export", "edgeformer.runtime"),
    "edgeformer/server*": ("torch", "onnx", "onnxruntime", "edgeformer.export", "edgeformer.cli"),
    "edgeformer/batch*": ("torch", "onnx", "onnxruntime", "edgeformer.export", "edgeformer.server", "edgeformer.cli"),
    "runtime*": (
        "torch",
        "onnx",
        "onnx_ir",
        "onnxscript",
        "transformers",
        "safetensors",
        "edgeformer.export",
        "edgeformer.server",
        "edgeformer.batch",
        "ray",
        "pyarrow",
    ),
    "export*": ("edgeformer.server", "edgeformer.batch"),
    **{
        f"export/{name}*": ("edgeformer.runtime", "transformers")
        for name in ("graph", "quantize", "passes", "capture", "lower", "reference")
    },
}

ROOMS = (
    "graph", "quantize", "passes", "capture", "lower", "reference", "calibrate", "bundle", "importers", "parity",
)  # fmt: skip
"""Packages of export/, from the bottom up: each may import only those before it. Files that stand in export/ itself
(options, plan, pipeline …) are checked as files: no circle may lead through them."""


@functools.cache
def imports(path: Path) -> frozenset[str]:
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
    return frozenset(names)


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


def test_the_server_needs_its_extra_and_the_runtime_alone():
    packages = {name.split(".")[0] for file in files("edgeformer/server*") for name in imports(file)}
    extra = {"starlette", "uvicorn", "pydantic", "pydantic_core", "prometheus_client"}
    assert packages - sys.stdlib_module_names == extra | {"edgeformer", "numpy"}
    engine = {name for file in files("edgeformer/server*") for name in imports(file) if "engine" in name.lower()}
    assert all(name.startswith("edgeformer.runtime.Engine") for name in engine), "the facade, not its parts"


def test_jobs_need_their_extra_and_only_the_cli_imports_them():
    packages = {name.split(".")[0] for file in files("edgeformer/batch*") for name in imports(file)}
    assert packages - sys.stdlib_module_names == {"edgeformer", "fsspec", "jinja2", "pyarrow", "ray", "tokenizers"}
    engine = {name for file in files("edgeformer/batch*") for name in imports(file) if ".engine" in name}
    assert engine == set(), "the facade, not its parts"
    importers = {
        file.relative_to(ROOT).as_posix()
        for folder in ("edgeformer", "export", "runtime")
        for file in files(folder)
        if any(name.startswith("edgeformer.batch") for name in imports(file)) and "batch" not in file.parent.name
    }
    assert importers == {"edgeformer/cli/run/batch.py"}


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_of_the_export_import_only_what_is_below_them(room):
    below = {f"edgeformer.export.{name}" for name in ROOMS[: ROOMS.index(room) + 1]}
    above = {
        f"{file.relative_to(ROOT)}: {name}"
        for file in files(f"export/{room}")
        for name in imports(file)
        if name.startswith("edgeformer.export.") and name.split(".")[2] in ROOMS
        if ".".join(name.split(".")[:3]) not in below
    }
    assert above == set()


LONGEST_FILE, LONGEST_FUNCTION, MOST_PARAMETERS = 350, 60, 8
"""Lines of a file, lines of a function, and parameters of a function in export/, at most."""


def test_files_and_functions_of_the_export_stay_short():
    long: list[str] = []
    for path in files("export"):
        source, name = path.read_text(encoding="utf-8"), path.relative_to(ROOT)
        if source.count("\n") > LONGEST_FILE:
            long.append(f"{name} has {source.count(chr(10))} lines")
        long += [f"{name}: {problem}" for problem in too_long(ast.parse(source))]
    assert long == []


def too_long(tree: ast.AST) -> list[str]:
    """Return functions of more lines or parameters than are allowed; `self` and `cls` do not count."""
    problems = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        assert node.end_lineno is not None
        lines = node.end_lineno - node.lineno + 1
        names = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
        parameters = len(names) - (names[:1] in (["self"], ["cls"]))
        if lines > LONGEST_FUNCTION or parameters > MOST_PARAMETERS:
            problems.append(f"{node.name} has {lines} lines and {parameters} parameters")
    return problems


def test_a_function_that_is_too_long_is_seen():
    assert too_long(ast.parse("def f(a, b, c, d, e, f, g, h): pass")) == []
    assert too_long(ast.parse("def f(self, a, b, c, d, e, f, g, h): pass")) == []
    assert too_long(ast.parse("def f(a, b, c, d, e, f, g, h, *, i): pass")) == ["f has 1 lines and 9 parameters"]
    assert too_long(ast.parse("def f():\n" + "    x = 1\n" * 60)) == ["f has 61 lines and 0 parameters"]


def test_every_room_of_the_export_has_a_place_in_the_order():
    assert {path.parent.name for path in (ROOT / "export").glob("*/__init__.py")} == set(ROOMS)


def test_no_circle_of_imports_leads_through_any_file():
    graph = imports_of_modules()
    assert len(graph) > 200
    assert circles(graph) == []


def test_a_circle_would_be_seen():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


def module_of(path: Path) -> str:
    """The name that a file has when it is installed."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "edgeformer" else ("edgeformer", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of_modules() -> dict[str, set[str]]:
    """The modules of the project that each of them imports, lazily or not. A package's facade, which imports what is
    below it, counts as imported only where it is named itself.
    """
    paths = {module_of(file): file for folder in ("edgeformer", "export", "runtime") for file in files(folder)}
    graph: dict[str, set[str]] = {}
    for module, path in paths.items():
        named = imports(path)
        targets = {name if name in paths else name.rpartition(".")[0] for name in named}
        graph[module] = {target for target in targets if target in paths and target != module}
    return graph


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of more than one node, sorted (Tarjan, 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in graph.get(node, ()):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            component = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(component) > 1:
                found.append(sorted(component))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def test_the_reader_of_imports_sees_lazy_ones():
    assert "edgeformer.export.export_model" in imports(ROOT / "edgeformer/cli/make/export.py")
    for file in ("found_model.py", "source.py"):
        assert not any(name.startswith("torch") for name in imports(ROOT / "edgeformer/checkpoints" / file))


def test_facades_offer_what_they_say():
    import edgeformer.batch
    import edgeformer.check
    import edgeformer.export
    import edgeformer.runtime
    import edgeformer.runtime.measure.benchmarking
    import edgeformer.runtime.measure.evaluation
    import edgeformer.server

    runtime = edgeformer.runtime
    facades = (
        edgeformer,
        edgeformer.batch,
        edgeformer.check,
        edgeformer.export,
        runtime,
        runtime.measure.benchmarking,
        runtime.measure.evaluation,
        edgeformer.server,
    )
    for facade in facades:
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
