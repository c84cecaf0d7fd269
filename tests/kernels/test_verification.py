"""Verification judges kernels at every SIMD level beside the bodies of functions, and a wrong kernel fails it."""

import json

import pytest
from click.testing import CliRunner
from plant_faults import compile_file, copy_of_sources, link_library
from slow_rows import slow_unless
from test_cpp_faults import FAULTS

from edgeformer.cli.main import cli
from edgeformer.errors import ParityError
from edgeformer.export import export_model, verify
from edgeformer.export.parity.certificate.words import verdict
from edgeformer.runtime.sessions import kernels


def simd_levels():
    return [level for level in kernels.find_library().levels if level != "plain"]


@pytest.mark.parametrize("mode", slow_unless(["quick"], ["quick", "full"]))
def test_a_verification_runs_kernels_at_every_level(int4_bundle, installed, library, mode):
    installed(library)
    report, levels = verify(int4_bundle, mode=mode), simd_levels() + ["plain"] * (mode == "full")
    assert report.passed
    assert list(report.kernel_checks()) == levels
    used = {check.name.removeprefix("int8 activations, ") for check in report.checks if "int8 act" in check.name}
    for level, checks in report.kernel_checks().items():
        assert {check.name.removeprefix(f"kernels {level}, ") for check in checks} == used, "as bodies are judged"
    assert report.environment["kernels"].endswith(f"; run at {', '.join(levels)}")
    assert "MatMulNBits ×" in report.describe()


def test_a_verification_without_kernels_says_so(int4_bundle, installed, library, monkeypatch):
    installed(library)
    monkeypatch.setenv(kernels.SWITCH, "0")
    report = verify(int4_bundle, mode="quick")
    assert report.kernel_checks() == {}
    assert report.environment["kernels"] == "none were run: EDGEFORMER_KERNELS=0 turns kernels off"


def test_a_graph_without_functions_needs_none(llama_folder, installed, library, tmp_path):
    bundle = export_model(llama_folder, tmp_path / "b", ops="standard", verify=None).path
    installed(library)
    report = verify(bundle, mode="quick")
    assert report.kernel_checks() == {}
    assert "kernels" not in report.environment


@pytest.mark.slow
def test_a_fault_in_one_level_fails_that_level(int4_bundle, built, installed, tmp_path):
    """A dot product of AVX2 that leaves out half of its factors is wrong, and that of other levels is not."""
    source = copy_of_sources(tmp_path, ("simd/avx2.h", "_mm256_set1_epi16(1)", "_mm256_set1_epi32(1)"))
    installed(link_library(built, [compile_file(built, source, "level_avx2.cc", optimize=True)], tmp_path))
    report = verify(int4_bundle, mode="quick")
    assert not report.passed
    assert report.only_kernels_failed
    wrong = {level for level, checks in report.kernel_checks().items() if not all(each.passed for each in checks)}
    assert wrong == {"avx2"}
    assert "computes what the original computes, and kernels of edgeformer-kernels do not" in verdict(report)
    done = CliRunner().invoke(cli, ["verify", str(int4_bundle), "--quick"])
    assert done.exit_code == 1
    assert "FAIL" in done.stdout
    assert "The graph is right by itself. EDGEFORMER_KERNELS=0 or load" in done.stdout
    with pytest.raises(ParityError, match="(?s)the graph is right by itself, and kernels.*EDGEFORMER_KERNELS=0"):
        export_model("tiny-llama", tmp_path / "again", precision="int4")


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["a block that is dropped", "a zero point of all blocks that is ignored"])
def test_faults_of_all_levels_fail_all(int4_bundle, built, installed, tmp_path, fault):
    source = copy_of_sources(tmp_path, FAULTS[fault][1:4])
    levels = [
        path.name
        for path in source.glob("level_*.cc")
        if (built / f"CMakeFiles/kernels.dir/src/{path.name}.o").exists()
    ]
    installed(link_library(built, [compile_file(built, source, level, optimize=True) for level in levels], tmp_path))
    report = verify(int4_bundle, mode="quick")
    assert report.only_kernels_failed
    for checks in report.kernel_checks().values():
        assert not all(check.passed for check in checks)


def test_a_kernel_that_refuses_a_graph_fails(int4_bundle, installed, library_that_says):
    """The library names the op and registers nothing, so that onnxruntime cannot open it."""
    installed(library_that_says(ops=["MatMulNBits"]))
    report = verify(int4_bundle, mode="quick")
    assert report.only_kernels_failed
    assert [check.name for check in report.failures()] == ["kernels plain, run"]


def test_the_command_shows_a_line_for_each_level(int4_bundle, installed, library):
    installed(library)
    done = CliRunner().invoke(cli, ["verify", str(int4_bundle), "--quick"])
    assert done.exit_code == 0, done.output
    for level in simd_levels():
        assert f"  {level}: " in done.stdout
    assert "kernels avx" not in done.stdout, "a table of passed checks would be four times as long"
    data = json.loads(CliRunner().invoke(cli, ["verify", str(int4_bundle), "--quick", "--json"]).stdout)
    assert any(check["name"].startswith(f"kernels {simd_levels()[0]}, decode") for check in data["checks"])
