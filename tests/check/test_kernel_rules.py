"""`check` predicts what each client runs for functions of a graph, and clients that are here run just that."""

import pytest

from edgeformer.check import check
from edgeformer.check.client_rules import CLIENTS
from edgeformer.check.folder import read_folder
from edgeformer.check.kernel_rules import SENTENCES, genai_library

LIBRARY = "model/decoder/session_options/custom_ops_library"


def test_every_client_has_a_sentence(bundles):
    assert SENTENCES.keys() == CLIENTS.keys()
    report = check(bundles["int4"])
    assert "MatMulNBits" in report.functions
    assert report.kernels == SENTENCES


@pytest.mark.parametrize("kind", ["bert", "dynamic"])
def test_other_graphs_have_nothing_to_choose(bundles, kind):
    """Functions of a portable graph are canonical ops, for which there are no kernels."""
    report = check(bundles[kind])
    assert (report.functions, report.kernels) == ((), {})


def test_genai_runs_kernels_of_the_library_that_its_config_names(bundles, spoil, tmp_path):
    library = tmp_path / "libedgeformer_kernels.so"
    library.touch()
    report = check(spoil(bundles["int4"], lambda edit: edit.json("genai_config.json", LIBRARY, str(library))))
    assert report.verdict("onnxruntime-genai") == "loads"
    assert report.kernels["onnxruntime-genai"].startswith(f"Kernels run: genai_config.json names the library {library}")


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("/nowhere/libedgeformer_kernels.so", "which is not on this machine. Set it to the path that"),
        ("../libedgeformer_kernels.so", "a path with .. is an error for it. Give an absolute path."),
    ],
)
def test_a_library_that_genai_does_not_take_is_an_error(bundles, spoil, path, problem):
    report = check(spoil(bundles["int4"], lambda edit: edit.json("genai_config.json", LIBRARY, path)))
    assert report.verdict("onnxruntime-genai") == "does not load"
    (finding,) = report.clients["onnxruntime-genai"]
    assert f"custom_ops_library is {path}" in str(finding)
    assert problem in str(finding)
    og = pytest.importorskip("onnxruntime_genai")
    with pytest.raises(Exception, match="libedgeformer_kernels|path traversal"):
        og.Model(str(report.folder))


def test_a_config_of_another_shape_names_no_library(bundles, spoil):
    folder = spoil(bundles["int4"], lambda edit: edit.json("genai_config.json", "model/decoder", []))
    assert genai_library(read_folder(folder)) is None
