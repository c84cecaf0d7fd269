"""The text model inside a bigger checkpoint is read where it lies: its config, tensors, tying, and tokens.

The oracle is transformers' module of the whole model, run on text alone. Error: max |Δlogit| / max |logit|.
"""

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from slow_rows import slow_unless
from test_parity import GREEDY, LENGTHS, PROMPT, STEPS, relative_error
from wrapper_rows import MODELS, VOCABULARY

from edgeformer.checkpoints.source import open_source
from edgeformer.checkpoints.weights import parameter_shapes
from edgeformer.cli.main import cli
from edgeformer.errors import ConfigError, WeightsError
from edgeformer.export import export_model, verify
from edgeformer.export.reference.reference import Reference
from edgeformer.families import family_names, read_model_config, text_config
from edgeformer.families._nested import text_defaults
from edgeformer.families._wrappers import SAME_ON_TEXT, WRAPPERS
from edgeformer.manifest.manifest import Manifest
from edgeformer.models.model_spec import model_spec_of

CASES = [(kind, name) for kind, models in MODELS.items() for name in models]
EXPORTED = [
    ("gemma3", "tied"),
    ("llama4", "dense"),
    ("mistral3", "untied"),
    ("qwen2_vl", "mrope"),
    ("smolvlm", "plain"),
]
LIMIT = 1e-5


@pytest.fixture(scope="module")
def make_wrapper(make_model):
    """Return a function that saves a random model of several modalities and returns its folder."""

    def make(kind, name):
        model = MODELS[kind][name]
        return make_model(kind, auto=model.auto, **model.options)

    return make


@pytest.fixture(autouse=True)
def tower_without_timm(monkeypatch):
    """Gemma 3n's vision tower is a model of timm, which is not installed; text does not run what stands for it."""
    module = importlib.import_module("transformers.models.gemma3n.modeling_gemma3n")
    make = transformers.AutoModel.from_config

    def from_config(config, **options):
        return torch.nn.Linear(4, 4) if config.model_type == "gemma3n_vision" else make(config, **options)

    monkeypatch.setattr(module, "AutoModel", SimpleNamespace(from_config=from_config))


def whole_model(folder, auto="AutoModelForImageTextToText"):
    whole = getattr(transformers, auto).from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    # 2026-11-30: of a text alone, transformers 5.24.0's Llama 4 looks for states of pictures that it has not made.
    return whole.language_model if whole.config.model_type == "llama4" else whole


def logits_of_whole(folder, tokens, auto="AutoModelForImageTextToText"):
    with torch.no_grad():
        return whole_model(folder, auto)(input_ids=torch.from_numpy(tokens)).logits.numpy()


def logits_of_text(folder, tokens):
    source = open_source(folder, text_only=True)
    return Reference(model_spec_of(source.config), source.weights()).run(torch.from_numpy(tokens))[0].numpy()


def some_tokens(seed=0, rows=1, length=40):
    return np.random.default_rng(seed).integers(10, VOCABULARY, (rows, length))


def changed(folder, tmp_path, config=None, tensors=None):
    """Copy a folder, with a changed config.json and changed tensors."""
    data = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(data if config is None else config(data)))
    stored = load_file(folder / "model.safetensors")
    save_file(
        {name: tensor.clone() for name, tensor in (tensors or dict)(stored).items()}, tmp_path / "model.safetensors"
    )
    return tmp_path


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_the_text_model_computes_what_the_whole_one_does(make_wrapper, kind, name):
    folder, tokens = make_wrapper(kind, name), some_tokens()
    expected = logits_of_whole(folder, tokens, MODELS[kind][name].auto) * MODELS[kind][name].logit_scale
    assert relative_error(logits_of_text(folder, tokens), expected) <= LIMIT


def test_the_comparison_sees_another_rotary_base(make_wrapper, tmp_path):
    folder, tokens = make_wrapper("qwen2_vl", "mrope"), some_tokens()

    def with_another_base(data):
        data["text_config"]["rope_parameters"]["rope_theta"] = 9000.0
        return data

    other = logits_of_text(changed(folder, tmp_path, with_another_base), tokens)
    assert relative_error(other, logits_of_whole(folder, tokens)) > 100 * LIMIT


@pytest.mark.parametrize(("kind", "name"), slow_unless([("gemma3", "tied"), ("qwen2_vl", "mrope")], EXPORTED))
def test_plain_onnxruntime_matches_the_whole_model(make_wrapper, run_plain, tmp_path, kind, name):
    folder = make_wrapper(kind, name)
    tokens = some_tokens(rows=len(LENGTHS), length=PROMPT + STEPS)
    result = export_model(folder, tmp_path / "bundle", verify=None, text_only=True)
    assert verify(tmp_path / "bundle", folder, mode="quick").passed
    outputs = run_plain(tmp_path / "bundle", tokens)
    expected = logits_of_whole(folder, tokens)
    parts = {
        "prefill": (outputs["prefill"], expected[:1, :PROMPT]),
        "decode": (outputs["decode"], expected[:1, PROMPT:]),
        "chunks": (outputs["chunks"], expected[:1]),
        "batch": (outputs["batch_prefill"][1, : LENGTHS[1]], expected[1, : LENGTHS[1]]),
    }
    assert max(relative_error(*pair) for pair in parts.values()) <= LIMIT
    with torch.no_grad():
        written = whole_model(folder).generate(
            input_ids=torch.from_numpy(tokens[:1, :PROMPT]), max_new_tokens=GREEDY, do_sample=False, eos_token_id=None,
            pad_token_id=0,
        )  # fmt: skip
    assert outputs["greedy"].tolist() == written[0, PROMPT:].tolist()
    whole = result.manifest.provenance.text_model_of
    assert whole is not None and whole.model_type == kind
    stored = load_file(folder / "model.safetensors")
    kept = parameter_shapes(result.manifest.model)
    assert sum(part.tensors for part in whole.left_out) == len(stored) - len(kept)


@pytest.fixture
def run_plain(tmp_path):
    """Return a function that runs a bundle as an app does that has nothing but onnxruntime."""

    def run(bundle, tokens):
        inputs, outputs = tmp_path / "inputs.npz", tmp_path / "outputs.npz"
        np.savez(inputs, tokens=tokens, prompt=PROMPT, lengths=np.array(LENGTHS), greedy=GREEDY)
        jobs = [{"bundle": str(bundle), "inputs": str(inputs), "outputs": str(outputs)}]
        (tmp_path / "jobs.json").write_text(json.dumps(jobs))
        script = Path(__file__).with_name("plain_onnxruntime.py")
        command = [sys.executable, str(script), str(tmp_path / "jobs.json")]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
        assert "ran without edgeformer and torch" in done.stdout, done.stderr
        return np.load(outputs)

    return run


LAYOUTS = {
    "transformers 4": ("language_model.model.", "language_model.lm_head."),
    "transformers 5": ("model.language_model.", "lm_head."),
    "idefics": ("model.text_model.", "lm_head."),
    "omni": ("thinker.model.", "thinker.lm_head."),
    "plain": ("model.", "lm_head."),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_tensors_are_found_in_every_layout(make_wrapper, tmp_path, layout):
    folder, tokens = make_wrapper("mistral3", "untied"), some_tokens()
    body, head = LAYOUTS[layout]

    def renamed(tensors):
        new = {}
        for name, tensor in tensors.items():
            name = name.replace("language_model.model.", body).replace("language_model.lm_head.", head)
            new[name] = tensor
        return new

    moved = changed(folder, tmp_path, tensors=renamed)
    assert np.array_equal(logits_of_text(moved, tokens), logits_of_text(folder, tokens))


def test_a_flat_config_is_read_like_a_nested_one(make_wrapper, tmp_path):
    """Qwen2-VL's config.json on the hub has the fields of its text model beside vision_config."""
    folder = make_wrapper("qwen2_vl", "old-name")

    def flat(data):
        text = data.pop("text_config")
        rope = text.pop("rope_parameters")
        old = {"rope_theta": rope["rope_theta"], "rope_scaling": {"type": "mrope", "mrope_section": [4, 2, 2]}}
        return text | data | old | {"model_type": "qwen2_vl"}

    moved = changed(folder, tmp_path, flat)
    assert open_source(moved, text_only=True).config == open_source(folder, text_only=True).config
    assert relative_error(logits_of_text(moved, some_tokens()), logits_of_whole(moved, some_tokens())) <= LIMIT


@pytest.mark.parametrize("name", ["tied", "untied"])
def test_a_head_is_tied_as_transformers_ties_it(make_wrapper, tmp_path, name):
    """Mistral Small 3.1 stores a head of its own, and Mistral3Config ties by default."""
    folder, tokens = make_wrapper("mistral3", name), some_tokens()

    def silent(data):
        data["text_config"].pop("tie_word_embeddings", None)
        return {key: value for key, value in data.items() if key != "tie_word_embeddings"}

    moved = changed(folder, tmp_path, silent)
    assert open_source(moved, text_only=True).config.tied_head is (name == "tied")
    assert relative_error(logits_of_text(moved, tokens), logits_of_whole(moved, tokens)) <= LIMIT


def test_the_text_config_may_say_that_the_head_is_tied(make_wrapper, tmp_path):
    """Older checkpoints say it there; the head is then not stored."""
    folder = make_wrapper("llava", "tied")

    def inner(data):
        data["text_config"]["tie_word_embeddings"] = True
        return data | {"tie_word_embeddings": False}

    moved = changed(folder, tmp_path, inner)
    assert open_source(moved, text_only=True).config.tied_head
    assert relative_error(logits_of_text(moved, some_tokens()), logits_of_whole(moved, some_tokens())) <= LIMIT


def test_text_config_tokens_come_after_the_whole_models(make_wrapper, tmp_path):
    folder = make_wrapper("gemma3", "tied")

    def changed_ids(data):
        data["text_config"] |= {"bos_token_id": 5, "eos_token_id": 6, "pad_token_id": 7}
        return data | {"eos_token_id": [6, 8], "bos_token_id": None}

    tokens = open_source(changed(folder, tmp_path, changed_ids), text_only=True).special_tokens()
    assert (tokens.bos, tokens.eos, tokens.pad) == (5, (6, 8), 7)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"attention_temperature": 2.0},
            r"fields beside text_config that are not known .*attention_temperature = 2\.0",
        ),
        ({"hidden_size": 65}, "this gemma3 has fields beside text_config .*: hidden_size = 65"),
        ({"text_config": {"model_type": "gemma3_text", "twist": 1}}, "the gemma3_text family does not know: twist = 1"),
        (
            {"text_config": {"model_type": "no_such_model"}},
            "text model of this gemma3 is of model_type 'no_such_model', which no family",
        ),
        (
            {"model_type": "paligemma"},
            r"paligemma is made of several models \(text_config .* text models of these are: .*gemma3",
        ),
        ({"model_type": "modernvbert"}, "text model of this modernvbert is of model_type 'gemma3_text'"),
    ],
)
def test_what_nobody_looked_at_is_refused(change, message):
    data = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}, "vision_config": {}}
    assert read_model_config(data)[1].hidden_size == 2304
    with pytest.raises(ConfigError, match=message):
        read_model_config(data | change)


def test_a_field_of_the_whole_model_may_repeat_the_texts():
    data = {"model_type": "gemma3", "text_config": {"hidden_size": 640}, "hidden_size": 640, "image_grid_pinpoints": []}
    assert read_model_config(data)[1].hidden_size == 640


def test_mrope_by_itself_is_still_refused():
    rope = {"rope_type": "default", "mrope_section": [2, 3, 3]}
    with pytest.raises(ConfigError, match="parameters that are not known: mrope_section"):
        read_model_config({**text_defaults()["qwen2"], "model_type": "qwen2", "rope_scaling": rope})


@pytest.mark.parametrize("name", ["language_model.model.layers.0.extra.weight", "memory.weight"])
def test_a_tensor_of_no_known_module_is_reported(make_wrapper, tmp_path, name):
    more = changed(make_wrapper("gemma3", "tied"), tmp_path, tensors=lambda stored: stored | {name: torch.ones(3)})
    with pytest.raises(WeightsError, match=f"unexpected: .*{name.rpartition('layers')[2]}"):
        open_source(more, text_only=True).weights()


def test_the_export_says_what_was_left_out(make_wrapper, tmp_path):
    folder = make_wrapper("gemma3", "tied")
    arguments = ["export", "--model", str(folder), "--output", str(tmp_path / "bundle"), "--no-verify", "--text-only"]
    done = CliRunner().invoke(cli, arguments)
    parts = "vision (32 tensors, 0.0 M parameters); projection (2 tensors, 0.0 M parameters)"
    line = f"text model of gemma3; left out: {parts}"
    assert done.exit_code == 0, done.output
    assert line in done.output.splitlines()
    assert f"This is the {line}." in (tmp_path / "bundle" / "README.md").read_text()
    assert str(Manifest.read(tmp_path / "bundle").provenance.text_model_of) == line
    config = json.loads((tmp_path / "bundle" / "config.json").read_text())
    assert config["model_type"] == "gemma3_text"
    assert config["tie_word_embeddings"] is True
    assert "vision_config" not in config
    loaded = transformers.CONFIG_MAPPING["gemma3_text"].from_dict(config)
    assert (loaded.num_hidden_layers, loaded.eos_token_id, loaded.head_dim) == (6, 2, 16)


def test_every_wrapper_with_a_readable_text_model_is_compared():
    readable = set(family_names()) | SAME_ON_TEXT.keys()
    decoders = {kind: wrapper for kind, wrapper in WRAPPERS.items() if wrapper.heads is None}
    assert {kind for kind, wrapper in decoders.items() if wrapper.text in readable} <= MODELS.keys()


def test_other_models_are_not_taken_apart():
    assert text_config({"model_type": "llama", "hidden_size": 64}) is None


def test_a_model_inside_a_model_inside_is_found(make_wrapper, tmp_path):
    """Qwen2.5-Omni's config.json holds a thinker's, which holds its text model's."""
    folder = make_wrapper("qwen2_5_omni_thinker", "mrope")

    def outer(data):
        return {"model_type": "qwen2_5_omni", "thinker_config": data, "talker_config": {}, "enable_audio_output": True}

    def renamed(tensors):
        return {f"thinker.{name}": tensor for name, tensor in tensors.items()} | {
            "talker.model.norm.weight": torch.ones(3)
        }

    source = open_source(changed(folder, tmp_path, outer, renamed), text_only=True)
    assert source.config == open_source(folder, text_only=True).config
    tokens = some_tokens()
    auto = "AutoModelForMultimodalLM"
    assert relative_error(logits_of_text(tmp_path, tokens), logits_of_whole(folder, tokens, auto)) <= LIMIT
    assert {part.modality for part in source.weights().left_out} == {"vision", "audio"}
