"""How far a change reaches: the table of CONTRIBUTING.md names the files that it touches, and the product agrees.

An example of each change, which is in the product, has a name of its own: a family, an option, a level. The files that
have this name are those that somebody touched who added it.
"""

import re

import pytest
from test_architecture import ROOT

SOURCES = [
    path
    for folder in ("edgeformer", "export", "runtime", "kernels")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".cc", ".h") or path.name == "CMakeLists.txt"
]
CHANGES = {
    # The name of the example, the files that it has for itself, and how many others it may touch.
    "a tower (of pictures, say) before a decoder": (
        r"MergedPatches|LongestEdge|RowEnds|\"mistral3\"|\"PixtralProcessor"
        r"|config\.alternating|alternating: bool \| None",
        (
            *(f"edgeformer/families/picture_text/any_size/{name}.py" for name in (
                "mistral3", "llava_pixtral", "lighton_ocr",  # which have the same tower
            )),
            "edgeformer/manifest/pictures/longest_edge.py", "edgeformer/manifest/placeholders/row_ends.py",
            "runtime/media/pictures/processors/longest_edge.py",
            "edgeformer/check/client_rules/genai_pictures.py",  # why a client does not read its pictures
        ),
        6,
    ),
    "a sampling option": (r"\bmin_p\b", (), 2),
    "a quantization format": (r'"mse"', (), 5),
    "a cache layout": (r"DynamicCache|dynamic_cache", ("runtime/caches/dynamic_cache.py",), 5),
    "a provider": (
        r"CudaSessions|CudaRules|^CUDA = |PROVIDERS.*CUDA",
        ("runtime/sessions/providers/cuda.py", "export/lower/providers/cuda.py"),
        3,
    ),
    "a graph form": (r"WindowedGraph|windowed_graph", ("export/lower/windowed_graph.py",), 3),
    "a SIMD level": (
        r"[aA]vx2_?[vV]nni(?:\.cc|Level)|level_avx2_vnni|struct Avx2Vnni",
        ("kernels/src/level_avx2_vnni.cc", "kernels/src/simd/avx2_vnni.h"),
        3,
    ),
    "a server route": (
        r"endpoints\.rerank|async def rerank|class RerankBody",
        ("edgeformer/server/endpoints/rerank.py",),
        3,
    ),
    "a family": (
        r"smollm3",
        ("edgeformer/families/smollm3.py", "edgeformer/checkpoints/gguf/architectures.py",
         *(f"edgeformer/check/client_rules/{name}.py" for name in (
            "genai_keys", "optimum", "optimum_types", "transformers_js_types",
        ))),
        0,
    ),  # what clients load, and what GGUF files hold, is what they say of themselves
    "a client": (
        r"\boptimum\b|optimum_findings",
        ("edgeformer/check/client_rules/optimum.py", "edgeformer/check/client_rules/optimum_types.py"),
        4,
    ),
    "a deployment": (r'"mobile"', (), 1),
    "an op": (r"[eE]xpert_?[rR]outer", ("edgeformer/ops/expert_router.py",), 5),
}  # fmt: skip


def rows():
    """The rows of the table: the change, and the paths in its third column."""
    table = (
        (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## Twelve changes")[2].partition("\n## ")[0]
    )
    lines = [line.split("|") for line in table.splitlines() if line.startswith("| ") and "---" not in line]
    return {cells[1].strip(): re.findall(r"`([^`]+)`", cells[3]) for cells in lines[1:]}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_touches_the_files_that_are_listed(change):
    pattern, own, most = CHANGES[change]
    found = {
        path.relative_to(ROOT).as_posix()
        for path in SOURCES
        if re.search(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    assert found >= {name for name in own if "client_rules" not in name or change == "a client"}
    assert sorted(found - set(own)) == sorted(rows()[change])
    assert len(found - set(own)) <= most


def test_every_listed_file_is_there():
    assert len(rows()) == 12
    for change, files in rows().items():
        assert [name for name in files if not (ROOT / name).is_file()] == [], change


FIRST_WORDS = {"a family": "a model family"}
"""The names that the architecture's table has for changes, where they differ from those of CONTRIBUTING.md."""


def test_the_architecture_leads_to_every_listed_file():
    """Its table has a row for each change, which names the files; the paths of a file are whole in it."""
    page = (ROOT / "docs/explanation/architecture.md").read_text(encoding="utf-8")
    text = page.partition("\n## Where a change belongs")[2]
    lines = [line for line in text.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    for change, files in rows().items():
        first = FIRST_WORDS.get(change, change.partition(" (")[0])
        [line] = [line for line in lines if line.startswith(f"| {first} ")]
        missing = [name for name in files if f"`{name}`" not in line]
        assert not missing, f"the row {first!r} of the architecture lacks {missing}"
