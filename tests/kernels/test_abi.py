"""The ABI of onnxruntime that kernels/ declares is that of its header: kernels/tests/test_abi.cc compares them."""

import re
import subprocess

import pytest
from build_kernels import KERNELS, compiler, headers
from plant_faults import copy_of_sources

ABI = "onnxruntime/abi.h"
FAULTS = {
    "another function": ("Function<65, ", "Function<66, ", "place of GetTensorTypeAndShape"),
    "beyond the table": ("functions[275]", "functions[274]", "end of the table: KernelContext_ParallelFor"),
    "another type": ("char* name, float* value", "char* name, float value", "type of KernelInfoGetAttribute_float"),
    "a member too many": (
        "  int (*GetStartVersion)",
        "  int (*Get)();\n  int (*GetStartVersion)",
        "place of CustomOp::GetStartVersion",
    ),
    "another type of elements": ("kInt64 = 7", "kInt64 = 8", "ElementType::kInt64"),
}
"""Lines of the header that are right, what is wrong, and what the compiler then says."""


def hold(source):
    if compiler() is None or headers() is None:
        pytest.skip("2026-11-27: needs a compiler, and onnxruntime's headers in the folder EDGEFORMER_ONNXRUNTIME")
    line = [compiler(), "-std=c++20", "-fsyntax-only", "-w", f"-I{source}", "-isystem", headers()]
    return subprocess.run([*line, KERNELS / "tests" / "test_abi.cc"], capture_output=True, text=True, check=False)


def test_our_declarations_are_those_of_onnxruntime():
    done = hold(KERNELS / "src")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", FAULTS)
def test_another_declaration_does_not_compile(tmp_path, name):
    right, wrong, says = FAULTS[name]
    done = hold(copy_of_sources(tmp_path, (ABI, right, wrong)))
    assert done.returncode != 0
    assert says in done.stderr


def test_all_that_is_declared_is_held_to_the_header():
    declared = (KERNELS / "src" / ABI).read_text()
    held = (KERNELS / "tests" / "test_abi.cc").read_text()
    functions = re.findall(r"^inline constexpr Function<[^;]*>\s+(\w+);", declared, re.M)
    assert len(functions) == declared.count("inline constexpr Function<")
    assert re.findall(r"^HOLD_FUNCTION\((\w+)\);", held, re.M) == functions
    members = re.findall(
        r"\(\*(\w+)\)\(", declared[declared.index("struct CustomOp {") : declared.index("// Throws what")]
    )
    assert re.findall(r"^HOLD_MEMBER\(CustomOp, (\w+)\);", held, re.M) == members
