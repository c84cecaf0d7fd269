"""The plan of an export: what is asked for, proposed and decided before anything is read or written."""

import dataclasses
import subprocess
import sys
from typing import get_type_hints

import pytest

from edgeformer.checkpoints.source import open_source
from edgeformer.errors import ExportError
from edgeformer.export import ExportOptions, export_model
from edgeformer.export.api import ModuleKeywords
from edgeformer.export.importers.own_module import ModuleDescription
from edgeformer.export.plan import make_plan
from edgeformer.manifest.plan import ExportPlan
from edgeformer.manifest.quantization import QuantizationOverrides, make_quantization
from edgeformer.options.export import OPTIONS, ModuleOptionKeywords, OptionKeywords, with_changes

FROM_CHECKPOINTS = {
    "context_length",
    "pooling",
    "normalize",
    "backend",
    "merge_adapter",
    "adapters",
    "allow_pickle",
    "mtp",
    "text_only",
}
"""Options that a module of the user's own does not have."""


@pytest.fixture(scope="module")
def llama():
    return open_source("tiny-llama").config


def test_keyword_arguments_are_the_options():
    options = {name: option.type for name, option in OPTIONS.items()}
    assert get_type_hints(OptionKeywords) == options
    shared = {name: hint for name, hint in options.items() if name not in FROM_CHECKPOINTS}
    assert get_type_hints(ModuleOptionKeywords) == shared


def test_keywords_of_a_module_describe_it_or_are_options():
    described = get_type_hints(ModuleDescription)
    assert get_type_hints(ModuleKeywords) == get_type_hints(ModuleOptionKeywords) | described
    required = {field.name for field in dataclasses.fields(ModuleDescription) if field.default is dataclasses.MISSING}
    assert ModuleKeywords.__required_keys__ == required


def test_keyword_arguments_replace_options():
    options = with_changes(ExportOptions(precision="int4", ops="ort"), {"precision": "int8"})
    assert (options.precision, options.ops) == ("int8", "ort")
    assert with_changes(None, {}) == ExportOptions()


def test_a_plan_cannot_be_changed(llama):
    plan = make_plan(ExportOptions(), llama)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.precision = "int8"
    assert {field.name for field in dataclasses.fields(ExportPlan)} >= {
        "deployment", "ops", "provider", "cache_form", "precision", "quantization", "smooth",
    }  # fmt: skip


def test_overrides_complete_what_a_deployment_proposes(llama):
    """The same from Python as from the command line: the block is asked for, the int6 head is proposed."""
    overrides = QuantizationOverrides(block=64)
    plan = make_plan(ExportOptions(deployment="desktop", quantization=overrides), llama)
    assert plan.precision == "int4"
    assert plan.quantization == make_quantization("int4", QuantizationOverrides(block=64, head="int6"))
    whole = make_quantization("int4", overrides)
    assert make_plan(ExportOptions(deployment="desktop", quantization=whole), llama).quantization == whole


@pytest.mark.parametrize(
    ("precision", "provider", "arithmetic"),
    [("fp32", "cpu", "fp32"), ("fp16", "cpu", "fp16"), ("int4", "cpu", "fp32"), ("int4", "cuda", "fp16")],
)
def test_the_arithmetic_follows_precision_and_provider(precision, provider, arithmetic, llama):
    assert make_plan(ExportOptions(precision=precision, provider=provider), llama).arithmetic == arithmetic


@pytest.mark.parametrize("precision", ["int4", "int8"])
def test_integers_for_cuda_compute_in_half_precision(precision, llama):
    options = ExportOptions(precision=precision, provider="cuda", arithmetic="bf16")
    assert make_plan(options, llama).arithmetic == "bf16"


@pytest.mark.parametrize(
    ("precision", "provider", "arithmetic", "default"),
    [
        ("int4", "cpu", "fp16", "fp32"),
        ("int4", "cpu", "bf16", "fp32"),
        ("int4", "cuda", "fp32", "fp16"),
        ("fp32", "cuda", "bf16", "fp32"),
        ("bf16", "cpu", "bf16", "fp32"),
    ],
)
def test_another_arithmetic_is_refused(precision, provider, arithmetic, default, llama):
    options = ExportOptions(precision=precision, provider=provider, arithmetic=arithmetic)
    with pytest.raises(
        ExportError, match=rf"^{precision} weights for {provider.upper()} are computed with in {default}\."
    ):
        make_plan(options, llama)


def test_blocks_that_cuda_lacks_for_one_token(llama):
    wide = {"precision": "int4", "quantization": QuantizationOverrides(block=256)}
    with pytest.raises(
        ExportError, match=r"takes int4 blocks of 128 weights at most\. Choose a block of 16, 32, 64 or 128"
    ):
        make_plan(ExportOptions(provider="cuda", **wide), llama)
    assert make_plan(ExportOptions(**wide), llama).quantization is not None
    assert make_plan(ExportOptions(provider="cuda", **{**wide, "precision": "int8"}), llama).quantization is not None


def test_a_precision_that_is_not_quantized_has_no_overrides(llama):
    with pytest.raises(
        ExportError,
        match=r"^a quantization config and its overrides .* are for int4 and int8, and the precision is fp32\.",
    ):
        make_plan(ExportOptions(quantization=QuantizationOverrides(block=64)), llama)
    assert make_plan(ExportOptions(quantization=QuantizationOverrides()), llama).quantization is None


def test_a_backend_has_no_pooling():
    with pytest.raises(ExportError, match=r"^pooling is for encoders, and a backend exports only decoders\.$"):
        make_plan(ExportOptions(backend="transformers", pooling="mean"), None)


def test_an_unknown_option_is_named(tmp_path):
    with pytest.raises(TypeError, match=r"^an export has no option 'precisoin'; did you mean precision\?$"):
        export_model("tiny-llama", tmp_path / "bundle", precisoin="int4")
    assert not list(tmp_path.iterdir())


REFUSED = """
import sys
from edgeformer.errors import ExportError
from edgeformer.export import ExportOptions, export_model
for options in (ExportOptions(precision="int4", ops="standard"), ExportOptions(smooth=True)):
    try:
        export_model("tiny-llama", "never-made", options)
    except ExportError as error:
        print(error)
print("torch" in sys.modules, "onnx" in sys.modules)
"""


def test_impossible_exports_are_refused_before_torch_loads(tmp_path):
    done = subprocess.run([sys.executable, "-c", REFUSED], capture_output=True, text=True, check=True, cwd=tmp_path)
    first, second, imported = done.stdout.splitlines()
    assert first.startswith("quantized products are ops of onnxruntime's own.")
    assert second.startswith("smoothing is for activations that are quantized per token")
    assert imported == "False False"
    assert not list(tmp_path.iterdir())
