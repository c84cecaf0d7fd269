"""The alignment graph: its weights are the decoder's, and its proof can fail."""

import json

import onnx
import pytest
from onnx import numpy_helper
from slow_rows import slow_unless
from speech_model import GENERATION, SIZES, TOKENS

from edgeformer.errors import ExportError
from edgeformer.export import export_model
from edgeformer.export.alignment_heads import read_alignment
from edgeformer.export.importers.opened_model import Origin
from edgeformer.export.parity.verify import open_subject, verify_graph
from edgeformer.families import read_model_config
from edgeformer.manifest.graph_forms import FORMS
from edgeformer.manifest.parts import Provenance, SpecialTokens

HEADS = [[1, 3], [0, 2], [1, 0]]


@pytest.fixture(scope="module")
def checkpoints(make_model):
    """Models by their width: queries are scaled by 1 / sqrt(8), for which there is a Mul, or 1 / 4, within weights."""
    return {
        width: make_model("whisper", 11, auto="AutoModelForSpeechSeq2Seq", **SIZES | TOKENS | {"d_model": width})
        for width in (32, 64)
    }


@pytest.fixture(scope="module")
def checkpoint(checkpoints):
    return checkpoints[64]


def export(checkpoint, folder, heads=HEADS, **options):
    generation = GENERATION | ({} if heads is None else {"alignment_heads": heads})
    (checkpoint / "generation_config.json").write_text(json.dumps(generation))
    return export_model(checkpoint, folder / "whisper", **options)


OPTIONS = {
    "ort": {},
    "portable": {"ops": "portable"},
    "int8": {"precision": "int8"},
    "fp16": {"precision": "fp16"},
    "standard": {"ops": "standard"},
    "standard, static": {"ops": "standard", "cache": "static"},
    "int4": {"precision": "int4"},
    "bf16": {"precision": "bf16"},
    "functions": {"ops": "portable", "functions": True},
    "web": {"deployment": "web"},
    "cuda": {"provider": "cuda"},
}
CASES = [(width, options) for options in OPTIONS.values() for width in (64, 32)]
FAST = [(64, OPTIONS["ort"]), (64, OPTIONS["portable"]), (32, OPTIONS["int8"])]


@pytest.mark.parametrize(("width", "options"), slow_unless(FAST, CASES), ids=str)
def test_it_is_verified_and_adds_no_weights(checkpoints, tmp_path, width, options):
    checkpoint = checkpoints[width]
    found = export(checkpoint, tmp_path, verify="quick", **options)
    assert [[each.layer, each.head] for each in found.manifest.alignment.heads] == HEADS
    assert found.manifest.alignment.median_filter_width == 7
    checks = [check for check in found.report.checks if "alignment" in check.name]
    assert checks and all(check.passed for check in checks)
    (tmp_path / "plain").mkdir()
    plain = export(checkpoint, tmp_path / "plain", heads=None, verify=None, **options).manifest
    assert plain.alignment is None and FORMS["alignment"].file not in plain.files
    sizes = [
        sum(entry.bytes for file, entry in manifest.files.items() if ".onnx_data" in file)
        for manifest in (plain, found.manifest)
    ]
    assert sizes[0] == sizes[1]


def test_heads_that_are_exchanged_fail_verification(checkpoint, tmp_path):
    # Negative control.
    path = export(checkpoint, tmp_path, verify=None).path
    opened = open_subject(path)
    graph = onnx.load(path / FORMS["alignment"].file, load_external_data=False)
    [gather] = [node for node in graph.graph.node if node.name.startswith("alignment/Gather")]
    [places] = [each for each in graph.graph.initializer if each.name == gather.input[1]]
    places.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(places)[::-1].copy(), places.name))
    (path / FORMS["alignment"].file).write_bytes(graph.SerializeToString())
    report = verify_graph(path, opened.manifest, opened.model_spec, opened.weights)
    assert {check.name.partition(":")[0] for check in report.failures()} == {"alignment", "alignment, batch of 3"}


def test_phones_have_none(checkpoint, tmp_path):
    assert export(checkpoint, tmp_path, verify=None, deployment="mobile").manifest.alignment is None


@pytest.mark.parametrize(
    ("heads", "width", "message"),
    [
        (
            [[2, 0]],
            None,
            r"has \[2, 0\] in alignment_heads; each must be \[layer, head\] of 2 layers of 4 heads",
        ),
        ([[0, -1]], None, r"has \[0, -1\] in alignment_heads"),
        ([3], None, "has 3 in alignment_heads"),
        ("all", None, "has 'all' in alignment_heads"),
        ([[0, True]], None, r"has \[0, True\] in alignment_heads"),
        (HEADS, 4, "config.json has median_filter_width = 4; it must be a positive odd number, such as 7"),
    ],
    ids=str,
)
def test_heads_and_filters_that_there_cannot_be_are_refused(heads, width, message):
    config = {} if width is None else {"median_filter_width": width}
    origin = Origin(
        name="", provenance=Provenance(source=""), tokens=SpecialTokens(eos=(), bos=None, pad=None), hf_config=config,
        generation={"alignment_heads": heads},
    )  # fmt: skip
    _, model = read_model_config({"model_type": "whisper", **SIZES}, None)
    with pytest.raises(ExportError, match=message):
        read_alignment(origin, model)
