"""float16 may choose another expert than float64 where two are nearly equal; a wrong choice elsewhere is an error."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "families"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from op_set_kinds import experts, routed
from verification.false_positive_rate import export_random, verify_one

from edgeformer.checkpoints.weights import RandomWeights
from edgeformer.export.parity import verify_graph
from edgeformer.models.model_spec import model_spec_of

MODEL = routed(*[experts({}, count=16, used=4)] * 3)


@pytest.mark.parametrize("seed", [1, 4])
def test_a_choice_between_nearly_equal_experts_is_no_error(seed):
    """These seeds have positions where eager PyTorch and the graph choose different experts."""
    report = verify_one(MODEL, "fp16", seed)
    assert report.passed, report.describe()
    assert report.orders > 1, "the first look failed"


def test_another_number_of_experts_is_an_error_in_fp16(tmp_path):
    wrong = replace(MODEL, blocks=tuple(_with_one_less(block) for block in MODEL.blocks))
    weights = RandomWeights(MODEL, 1)
    bundle = export_random(model_spec_of(wrong), weights, "fp16", tmp_path)
    report = verify_graph(bundle.path, replace(bundle.manifest, model=MODEL), model_spec_of(MODEL), weights)
    assert not report.passed


def _with_one_less(block):
    return replace(block, feed_forward=replace(block.feed_forward, experts_per_token=3))
