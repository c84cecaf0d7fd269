"""Every surface of an option of export equals what follows from its declaration; calls are checked as commands are."""

import importlib.util
from dataclasses import MISSING, fields
from pathlib import Path

import click
import numpy as np
import pytest
import torch

from edgeformer.cli.main import cli
from edgeformer.cli.make.export import OVERRIDES, PARTS
from edgeformer.documents.option import options_of
from edgeformer.errors import ConfigError, ExportError
from edgeformer.export import ExportOptions, QuantizationOverrides, export_model, export_module, verify
from edgeformer.manifest.plan import ExportPlan
from edgeformer.options.export import GROUPS, OPTIONS

ROOT = Path(__file__).parent.parent.parent
COMMAND = cli.get_command(click.Context(cli), "export")
ON_THE_COMMAND_LINE = [part for each in OPTIONS.values() for part in PARTS.get(each.name, (each,))]

WRONG = {
    "quantization": ({"block": 64}, "a Quantization or a QuantizationOverrides, or None"),
    "precision": ("int5", "one of fp32, fp16, bf16, int8, int4, or None"),
    "ops": (None, "one of ort, standard, portable"),
    "provider": (["cpu"], "one of cpu, cuda, webgpu"),
    "overwrite": ("yes", "True or False"),
    "normalize": (1, "True or False, or None"),
    "context_length": ("128", "at least 1, or None"),
    "merge_adapter": (3, "a text or a Path, or None"),
    "adapters": (["a"], "a mapping of names to paths"),
    "target_size": (1.5, "a text or an integer, or None"),
    "bits": (0, "above 0, or None"),
    "sensitivities": (3, "a text or a Path, or None"),
    "calibration": ({"text": "a"}, "a text or a Path or a list, or None"),
    "verify": (True, "one of quick, full, or None"),
}
"""A wrong value of an option, and what its error says that it must be."""

WRONG_OVERRIDES = {
    "block": (48, "one of 16, 32, 64, 128, 256, or None"),
    "symmetric": (0, "True or False, or None"),
    "rounding": ("up", "one of nearest, mse, gptq, or None"),
    "activations": ("token", "one of block, per_token, or None"),
    "scales": ("fp8", "one of fp32, fp16, or None"),
    "head": ("int3", "one of fp32, int4, int8, int6, or None"),
    "tower": ("int4", "one of fp32, int8, or None"),
    "keep": ("blocks.0.*", "a tuple of texts"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_value_is_named_before_anything_is_read(name, tmp_path):
    value, expected = WRONG[name]
    with pytest.raises(ExportError) as raised:
        export_model("tiny-llama", tmp_path / "bundle", **{name: value})
    assert str(raised.value) == f"{name} is {value!r}; it must be {expected}."
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", WRONG_OVERRIDES)
def test_a_wrong_override_is_named(name):
    value, expected = WRONG_OVERRIDES[name]
    with pytest.raises(ConfigError) as raised:
        QuantizationOverrides(**{name: value})
    assert str(raised.value) == f"{name} is {value!r}; it must be {expected}."


def test_all_overrides_have_a_wrong_value_here():
    assert WRONG_OVERRIDES.keys() == {option.name for option in OVERRIDES}


@pytest.mark.parametrize("option", OPTIONS.values(), ids=lambda option: option.name)
def test_an_option_takes_its_default_and_choices_only(option):
    for value in (option.default, *option.choices, *((None,) if option.is_optional else ())):
        assert option.expected(value) == ""
    assert option.expected(object()) != "" and option.expected(b"") != ""


def test_values_of_every_kind_are_taken():
    """The negative control of the refusals above."""
    for values in (
        {"quantization": QuantizationOverrides(block=64)},
        {"adapters": {"a": "folder", "b": Path("folder")}, "merge_adapter": Path("folder")},
        *({"calibration": each} for each in ("a.txt", Path("a.txt"), [[1, 2]], [np.array([1])], (), np.ones((2, 3)))),
    ):
        name, value = next(iter(values.items()))
        assert getattr(ExportOptions(**values), name) is value


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((5, "bundle"), "model is 5; it must be a preset, the path of a folder or a GGUF file, or a hub id."),
        (("tiny-llama", 5), "output is 5; it must be the path of a folder, as a text or a Path."),
        (("tiny-llama", "bundle", {"ops": "ort"}), "options is {'ops': 'ort'}; it must be an ExportOptions, or None."),
    ],
)  # fmt: skip
def test_arguments_of_another_type_are_refused(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ExportError) as raised:
        export_model(*arguments)
    assert str(raised.value) == message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("texts", [[1, 2], [["a"]], [[1.5]], [[[1]]], [[True]], [None]], ids=repr)
def test_texts_that_are_no_token_ids_are_refused(texts, tmp_path):
    with pytest.raises(ExportError, match=r"^a text to calibrate with is .*; it must be a list of token ids\.$"):
        export_model("tiny-llama", tmp_path / "bundle", precision="int4", calibration=texts)
    assert not list(tmp_path.iterdir())


def test_the_options_have_the_declared_fields_and_defaults():
    assert [field.name for field in fields(ExportOptions)] == list(OPTIONS)
    assert all(
        (field.default if field.default is not MISSING else field.default_factory()) == OPTIONS[field.name].default
        for field in fields(ExportOptions)
    )
    assert all(f"    {name}: " in ExportOptions.__doc__ for name in OPTIONS)
    assert all(group.__doc__ for group in GROUPS)


def test_what_the_plan_takes_as_it_is_has_the_type_of_the_option():
    """A choice of the plan that has the name of an option is that option, or is decided from it by `make_plan`."""
    decided = {"precision", "arithmetic", "quantization"}
    same = {field.name: field.type for field in fields(ExportPlan) if field.name in OPTIONS.keys() - decided}
    assert same == {name: OPTIONS[name].type for name in same} and len(same) == 6


def test_the_command_has_the_declared_options_with_their_help():
    params = {flag: param for param in COMMAND.params for flag in (*param.opts, *param.secondary_opts)}
    found = set()
    for option in ON_THE_COMMAND_LINE:
        for flag, _, text in option.flags:
            assert params[flag].is_flag and params[flag].help == text
            found.add(flag)
        if not option.flags:
            param = next(param for param in COMMAND.params if param.name == option.name)
            text = option.help.removesuffix(".")
            assert param.help.startswith(text) and (option.unset in param.help)
            assert param.topic == option.title
            found |= {*param.opts, *param.secondary_opts}
    assert params.keys() - found == {"--model", "--output", "-o", "--explain", "--json"}


LINES = {
    "--precision int4 --overwrite": {"precision": "int4", "overwrite": True},
    "--calibrate a.txt --context-length 64": {"calibration": Path("a.txt"), "context_length": 64},
    "--no-normalize --pooling mean_sqrt": {"normalize": False, "pooling": "mean_sqrt"},
    "--target-size 75MB --sensitivities a.json": {"target_size": "75MB", "sensitivities": Path("a.json")},
    "--bits 4.5": {"bits": 4.5},
    "--full-verify": {"verify": "full"},
    "--no-verify": {"verify": None},
    "--adapter a=b --adapter c=d": {"adapters": {"a": "b", "c": "d"}},
    "--asymmetric": {"quantization": QuantizationOverrides(symmetric=False)},
    "--activations per-token --head-precision fp32 --keep a --keep b": {
        "quantization": QuantizationOverrides(activations="per_token", head="fp32", keep=("a", "b"))
    },
    "--tower-precision int8": {"quantization": QuantizationOverrides(tower="int8")},
    "": {},
}


@pytest.mark.parametrize("line", LINES)
def test_the_command_only_parses(line, monkeypatch):
    """The options hold what a call gives; every default stands in one place."""
    taken = {}

    def stop(model, output, options, **_):
        taken["options"] = options
        raise ExportError("stopped")

    monkeypatch.setattr("edgeformer.export.export_model", stop)
    with pytest.raises(ExportError, match="stopped"):
        COMMAND.main(["--model", "tiny-llama", *line.split()], standalone_mode=False)
    assert taken["options"] == ExportOptions(**LINES[line])


def test_two_flags_of_one_option_exclude_each_other():
    with pytest.raises(click.UsageError, match="^--full-verify and --no-verify exclude each other.$"):
        COMMAND.main(["--model", "x", "--full-verify", "--no-verify"], standalone_mode=False)


def test_the_reference_has_a_row_for_each_option():
    spec = importlib.util.spec_from_file_location("docs_site", ROOT / "tools" / "docs_site.py")
    docs_site = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(docs_site)
    text = docs_site.export_options()
    for option in (*OPTIONS.values(), *options_of(QuantizationOverrides)):
        row = next(line for line in text.splitlines() if line.startswith(f"| `{option.name}` |"))
        assert option.help.replace("|", "\\|") in row and (option.unset or repr(option.default)) in row


@pytest.mark.parametrize("mode", ["fast", None, True])
def test_a_mode_of_verify_that_does_not_exist_is_refused(mode):
    with pytest.raises(ExportError) as raised:
        verify("no bundle", mode=mode)
    assert str(raised.value) == f"mode is {mode!r}; it must be one of quick, full."


@pytest.mark.parametrize("value", ["16", 0, 1.5, True, None])
def test_sizes_of_a_module_are_whole_numbers(value, tmp_path):
    sizes = {"vocab_size": 30, "context_length": 32, "num_layers": 1, "num_kv_heads": 1, "head_dim": value}
    with pytest.raises(ExportError) as raised:
        export_module(torch.nn.Linear(1, 1), tmp_path / "bundle", verify=None, **sizes)
    assert str(raised.value) == f"head_dim is {value!r}; it must be at least 1."
