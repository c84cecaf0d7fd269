"""`--backend transformers`: architectures without a family, exported, verified, and run by plain onnxruntime.

The oracle is transformers' untouched module over the same checkpoint in float32; the runner imports neither edgeformer
nor torch. Each model stands for something that patching must get right; `tools/survey_transformers.py` tries them all.
"""

import json
import shutil
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import transformers
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from slow_rows import slow_unless
from torch import Tensor, nn
from transformers.masking_utils import AttentionMaskInterface
from transformers.modeling_utils import AttentionInterface

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from checkpoints.tiny_transformers import CONTEXT, WINDOW, tiny_config

import edgeformer.checkpoints.found_model
from edgeformer.cli.main import cli
from edgeformer.errors import ConfigError, ExportError, MissingDependencyError, WeightsError
from edgeformer.export import export_model, verify
from edgeformer.export.graph.outlining import inline_functions
from edgeformer.export.importers.from_transformers import plan_patches
from edgeformer.export.importers.transformers_proof import prove
from edgeformer.manifest.manifest import Manifest
from edgeformer.transformers_backend import transformers_shim
from edgeformer.transformers_backend.hf_module import build
from edgeformer.transformers_backend.patch_plan import PatchPlan
from edgeformer.transformers_backend.patches.attention import AttentionPatch
from edgeformer.transformers_backend.patches.norms import rms_norm_form
from edgeformer.transformers_backend.patches.rotary import Rotation
from edgeformer.transformers_backend.planning import READS_VALUES, window_of
from edgeformer.transformers_backend.tensors.weights import checkpoint_tensors

PROMPT, STEPS, LENGTHS, GREEDY = 24, 24, (24, 9, 1), 32
LIMIT = 1e-5
TINY_LLAMA = {
    "hidden_size": 8,
    "intermediate_size": 8,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 16,
}
LAYERS = 2

# What each model covers that the others do not.
MODELS = {
    "olmo3": "a window in every other layer, norms behind the projections and behind the blocks",
    "glm4": "half of each head rotated, in interleaved pairs; four norms a layer",
    "cohere2": "layers without rotation, a LayerNorm of its own that stays",
    "nanochat": "norms without weights, rotation by the negative angle",
    "youtu": "latent attention: values narrower than keys, pairs gathered on the way",
    "vaultgemma": "weights of norms around zero, softcaps, a scaled embedding",
    "granite_swa": "sinks, several rotary modules, a scale that is no root of the width",
    "persimmon": "one projection for query, key and value, a norm of heads, a quarter of each head rotated",
    "qwen3_moe": "experts, stored one by one and stacked when they are loaded",
    "blenderbot": "no position_ids, but an embedding that is given positions",
    "xlm-roberta": "positions that start behind the padding token",
    "gpt_oss": "sinks; experts with biases, clamped, transposed, the rows of gate and up in turn",
    "exaone": "Llama's module, whose checkpoints have names of their own",
    "apertus1p5_text": "a head with fewer rows than the table of embeddings",
    "sarvam_moe": "GLM's module, whose checkpoints have other names, and query, key and value in one tensor",
}
FAST = {"olmo3", "youtu", "blenderbot"}
"""Windows, latent attention and learned positions; experts are in test_transformers_experts.py, the others are slow."""
CASES = slow_unless(FAST, MODELS)
NORMS = {
    "olmo3": 4,
    "glm4": 4,
    "cohere2": 0,
    "nanochat": 4,
    "youtu": 4,
    "vaultgemma": 2,
    "granite_swa": 2,
    "persimmon": 0,
    "qwen3_moe": 4,
    "blenderbot": 0,
    "xlm-roberta": 0,
    "gpt_oss": 2,
    "exaone": 2,
    "apertus1p5_text": 4,
    "sarvam_moe": 4,
}
"""RMSNorms in each layer; models that have any have another one at the end."""
OTHERS = {"qwen3_moe": {"Softmax"}, "gpt_oss": {"Softmax"}, "apertus1p5_text": {"CastLike"}}
"""Ops of other parts of a model that those of attention and norms are told by: of routers, and of xIELU."""


def sizes(model_type, **options):
    if model_type == "youtu":
        # transformers sets the embedding of its padding token to zero when it loads it, whatever is stored.
        options["pad_token_id"] = None
    if model_type == "apertus1p5_text":
        options["output_vocab_size"] = 120
    if model_type == "blenderbot":
        options["decoder_layers"] = LAYERS
    fields = tiny_config(model_type, num_hidden_layers=LAYERS, **options)
    kinds = fields.get("layer_types")
    return fields | ({"layer_types": kinds[:LAYERS]} if kinds else {})


class Lazy(dict):
    """Values that are made when they are first asked for."""

    def __init__(self, make):
        super().__init__()
        self.make = make

    def __missing__(self, name):
        self[name] = self.make(name)
        return self[name]


@pytest.fixture(scope="module")
def folders(make_model):
    """Checkpoints by model type."""
    return Lazy(lambda name: make_model(**sizes(name)))


@pytest.fixture(scope="module")
def bundles(folders, tmp_path_factory):
    """Bundles by model type, exported with the quick parity checks."""
    work = tmp_path_factory.mktemp("bundles")
    return Lazy(lambda name: export_model(folders[name], work / name, backend="transformers"))


@pytest.fixture(scope="module")
def outputs(bundles, folders, tmp_path_factory):
    """Return the outputs of plain onnxruntime for a bundle and of transformers for its checkpoint, by model type."""

    def outputs_of(name):
        work = tmp_path_factory.mktemp("outputs")
        # Without padding tokens, whose positions XLM-RoBERTa does not count.
        tokens = np.random.default_rng(list(MODELS).index(name)).integers(2, 131, (len(LENGTHS), PROMPT + STEPS))
        np.savez(work / "in.npz", tokens=tokens, prompt=PROMPT, lengths=np.array(LENGTHS), greedy=GREEDY)
        job = {"bundle": bundles[name].path, "inputs": work / "in.npz", "outputs": work / "out.npz"}
        (work / "jobs.json").write_text(json.dumps([{key: str(path) for key, path in job.items()}]))
        line = [sys.executable, Path(__file__).parents[1] / "families" / "plain_onnxruntime.py", work / "jobs.json"]
        done = subprocess.run(line, capture_output=True, text=True, cwd=work, check=False)
        assert "ran without edgeformer and torch" in done.stdout, done.stderr
        return np.load(work / "out.npz"), oracle(folders[name], tokens)

    return Lazy(outputs_of)


def oracle(folder, tokens):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        return model(torch.from_numpy(tokens), use_cache=False).logits.numpy()


@pytest.mark.parametrize("name", CASES)
def test_plain_onnxruntime_matches_untouched_transformers(outputs, name):
    found, logits = outputs[name]
    parts = {
        "prefill": (found["prefill"], logits[:1, :PROMPT]),
        "decode": (found["decode"], logits[:1, PROMPT:]),
        "chunks": (found["chunks"], logits[:1]),
        "dynamic": (found["dynamic"], logits[:1]),
    }
    for row, length in enumerate(LENGTHS):
        parts[f"batch row {row}"] = (found["batch_prefill"][row, :length], logits[row, :length])
        parts[f"batch row {row} decode"] = (found["batch_decode"][row], logits[row, length : length + 8])
    errors = {part: np.abs(left - right).max() / np.abs(right).max() for part, (left, right) in parts.items()}
    assert max(errors.values()) <= LIMIT, errors
    assert found["cache_tail_is_untouched"].all()


def inlined(bundle):
    """Return a bundle's graph with the bodies of its functions in their place."""
    return inline_functions(onnx.load(bundle / "onnx" / "model.onnx", load_external_data=False)).graph


@pytest.mark.parametrize("name", CASES)
def test_attention_and_norms_are_kernels_of_onnxruntime(bundles, name):
    graph = inlined(bundles[name].path)
    ops = [node.op_type for node in graph.node]
    assert ops.count("GroupQueryAttention") == LAYERS
    norms = ops.count("SimplifiedLayerNormalization") + ops.count("SkipSimplifiedLayerNormalization")
    # The models without any have none at the end either; nanochat has one more behind its embedding.
    assert norms == NORMS[name] * LAYERS + bool(NORMS[name]) + (name == "nanochat")
    left = {"Sin", "Cos", "SequenceAt", "CastLike", "Softmax"} & set(ops)
    assert left <= OTHERS.get(name, set())
    assert {node.domain for node in graph.node} <= {"", "com.microsoft"}


def test_rotations_become_part_of_the_attention(bundles):
    for name in ("olmo3", "glm4"):
        graph = inlined(bundles[name].path)
        attentions = [node for node in graph.node if node.op_type == "GroupQueryAttention"]
        assert all(attribute.i for node in attentions for attribute in node.attribute if attribute.name == "do_rotary")


def test_a_model_with_a_family_becomes_the_graph_of_the_family(llama_folder, llama_bundle, tmp_path):
    bundle = export_model(llama_folder, tmp_path / "bundle", backend="transformers", verify=None).path
    graphs = [
        onnx.load(each / "onnx" / "model.onnx", load_external_data=False).graph for each in (bundle, llama_bundle)
    ]
    ours, familys = (Counter((node.domain, node.op_type) for node in graph.node) for graph in graphs)
    assert ours == familys


def test_windows_are_those_of_the_masks(bundles):
    assert bundles["olmo3"].manifest.windows == (WINDOW, None)


def test_verify_works_with_and_without_the_checkpoint(bundles, folders):
    bundle = bundles["glm4"].path
    assert Manifest.read(bundle).provenance.backend == "transformers"
    assert verify(bundle, mode="quick").passed
    assert verify(bundle, folders["glm4"], mode="quick").passed
    with pytest.raises(ConfigError, match="is another model than the one that .* was exported from"):
        verify(bundle, folders["cohere2"], mode="quick")


def test_the_command_exports_half_precision_and_a_context(folders, tmp_path):
    line = ["export", "--model", str(folders["nanochat"]), "--backend", "transformers", "--precision", "fp16"]
    done = CliRunner().invoke(cli, [*line, "--context-length", "128", "-o", str(tmp_path / "bundle")])
    assert done.exit_code == 0, done.output
    assert "checks passed" in done.output
    config = json.loads((tmp_path / "bundle" / "config.json").read_text())
    assert config["max_position_embeddings"] == 128
    assert verify(tmp_path / "bundle", mode="quick").passed


def test_transformers_is_left_as_it_was_found(bundles, monkeypatch):
    from transformers.models.olmo3 import modeling_olmo3

    register = nn.Module.register_parameter
    turn = modeling_olmo3.apply_rotary_pos_emb
    plan_patches(sizes("olmo3"))
    monkeypatch.setattr("edgeformer.transformers_backend.planning.find_rotation", lambda *_: 1 / 0)
    with pytest.raises(ExportError, match="could not be run with our attention: ZeroDivisionError"):
        plan_patches(sizes("olmo3"))
    assert modeling_olmo3.apply_rotary_pos_emb is turn
    assert turn.__module__.startswith("transformers.")
    assert nn.Module.register_parameter is register
    assert "edgeformer" not in (*AttentionInterface._global_mapping, *AttentionMaskInterface._global_mapping)
    assert torch.get_default_dtype() == torch.float32


# What the shim patches


def test_transformers_has_every_internal_that_is_patched():
    """Fails when transformers moves: read its changes, adapt `transformers_shim`, and raise `CHECKED`."""
    assert transformers_shim.moved_internals() == []


def test_warnings_of_transformers_are_not_those_of_an_export():
    """Mamba-2 without its CUDA kernels is "correct but much slower", and that is of no concern to who exports it."""
    library = transformers.utils.logging
    logger, verbosity = library.get_logger("transformers.models.bamba"), library.get_verbosity()
    library.set_verbosity_warning()
    try:
        with transformers_shim.quietly():
            assert not logger.isEnabledFor(library.WARNING)
        assert logger.isEnabledFor(library.WARNING)
    finally:
        library.set_verbosity(verbosity)


def test_internals_that_moved_are_named(monkeypatch):
    from transformers import LlamaForCausalLM, cache_utils, masking_utils

    transformers_shim.check_version("99.0.0.dev0")
    monkeypatch.delattr(cache_utils.Cache, "get_query_offset")
    monkeypatch.setattr(masking_utils, "eager_mask", lambda batch_size, allowed: None)
    monkeypatch.setattr(LlamaForCausalLM, "forward", lambda self, input_ids, use_cache, states: None)
    transformers_shim.check_version(transformers.__version__)
    mask, forward = r"eager_mask\(mask_function\)", r"LlamaForCausalLM\.forward\(input_ids, cache\|past_key_values"
    moved = rf"99\.0\.0 is installed.*Cache\.get_query_offset, .*{mask}, .*{forward}"
    with pytest.raises(MissingDependencyError, match=moved):
        transformers_shim.check_version("99.0.0")


def test_older_versions_of_transformers_are_refused():
    with pytest.raises(MissingDependencyError, match=r"needs transformers 5\.23 or newer, and 5\.9\.1 is installed"):
        transformers_shim.check_version("5.9.1")


def test_other_threads_build_and_run_their_own_modules_meanwhile():
    def in_a_thread(function):
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(function).result()

    with transformers_shim.parameters_on_meta():
        assert nn.Linear(2, 2).weight.is_meta
        assert not in_a_thread(lambda: nn.Linear(2, 2)).weight.is_meta
    assert not nn.Linear(2, 2).weight.is_meta

    from transformers.models.llama import modeling_llama

    model = build(transformers.LlamaConfig(**TINY_LLAMA), torch.float32, "eager")
    heads, angles = torch.ones(1, 2, 3, 4), torch.ones(1, 3, 4)
    original = modeling_llama.apply_rotary_pos_emb
    plan = PatchPlan(8)
    with AttentionPatch(plan, [], torch.ones(1, 3), torch.zeros(1, 3)).applied(model):
        assert modeling_llama.apply_rotary_pos_emb is not original
        rotated = in_a_thread(lambda: modeling_llama.apply_rotary_pos_emb(heads, heads, angles, angles))
        assert torch.equal(rotated[0], original(heads, heads, angles, angles)[0])
        assert plan.notes == []
        modeling_llama.apply_rotary_pos_emb(heads, heads, angles, angles)
        assert plan.notes == [
            "apply_rotary_pos_emb is not patched: the cosines it is given are not those of a rotary module"
        ]
    assert modeling_llama.apply_rotary_pos_emb is original


# What the proof must detect


@pytest.fixture(scope="module")
def olmo3(folders):
    backend = plan_patches(sizes("olmo3"))
    folder = folders["olmo3"]
    return backend, checkpoint_tensors(folder, build(backend.config, torch.float32, "eager")), folder


def test_the_proof_holds_to_rounding_of_float64(olmo3):
    backend, weights, folder = olmo3
    assert prove(backend.config, backend.plan, weights, folder) < 1e-13


def test_a_window_longer_than_the_proof_is_read_from_the_mask(make_model):
    fields = sizes("ministral", sliding_window=600, max_position_embeddings=1024)
    backend = plan_patches(fields)
    assert {form.window for form in backend.plan.attentions.values()} == {600}
    backend.open_weights(make_model(**fields))


def with_attention(plan, layer, **changes):
    forms = plan.attentions | {layer: replace(plan.attentions[layer], **changes)}
    return replace(plan, attentions=forms)


def with_epsilon(plan, epsilon):
    return replace(plan, norms={name: replace(form, epsilon=epsilon) for name, form in plan.norms.items()})


FAULTS = {
    "pairing": (
        lambda plan: replace(plan, rotations=dict.fromkeys(plan.rotations, Rotation("interleaved", 1, False))),
        0,
    ),
    "window one short": (lambda plan: with_attention(plan, 0, window=WINDOW - 1), 0),
    "window one long": (lambda plan: with_attention(plan, 0, window=WINDOW + 1), 0),
    "window forgotten": (lambda plan: with_attention(plan, 0, window=0), 0),
    "scale": (lambda plan: with_attention(plan, 1, scale=plan.attentions[1].scale * 1.000001), 1),
    "epsilon": (lambda plan: with_epsilon(plan, 1.01e-5), 0),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_proof_refuses_a_wrong_plan_and_names_the_layer(olmo3, fault):
    backend, weights, folder = olmo3
    change, layer = FAULTS[fault]
    where = rf"first differ after layer {layer} \(model.layers.{layer}, "
    with pytest.raises(ExportError, match=f"does not compute what it computes in transformers.*{where}"):
        prove(backend.config, change(backend.plan), weights, folder)


def test_the_proof_refuses_positions_that_start_elsewhere(make_model, tmp_path, monkeypatch):
    """RoBERTa counts positions from its padding token on unless positions are given."""
    assert plan_patches(sizes("roberta"), CONTEXT).plan.first_position == 2
    monkeypatch.setattr("edgeformer.transformers_backend.planning.first_position", lambda model: 0)
    folder = make_model(**sizes("roberta"))
    with pytest.raises(
        ExportError, match="RobertaForCausalLM does not compute .* after layer 0 .* does not count its tokens"
    ):
        export_model(folder, tmp_path / "bundle", backend="transformers")
    assert not (tmp_path / "bundle").exists()


def test_the_proof_refuses_another_offset_of_positions(make_model):
    patched = plan_patches(sizes("bart"), CONTEXT)
    assert patched.plan.positions == {"model.decoder.embed_positions": 2}
    folder = make_model(**sizes("bart"))
    weights = checkpoint_tensors(folder, build(patched.config, torch.float32, "eager"))
    assert prove(patched.config, patched.plan, weights, folder) < 1e-12
    with pytest.raises(ExportError, match="does not compute what it computes in transformers"):
        wrong = replace(patched.plan, positions={"model.decoder.embed_positions": 1})
        prove(patched.config, wrong, weights, folder)


def test_a_context_without_positions_is_refused():
    """RoBERTa's embedding has two rows more than the longest text."""
    with pytest.raises(ConfigError, match=f"--context-length {CONTEXT + 1} is more than the {CONTEXT} tokens"):
        plan_patches(sizes("roberta"), CONTEXT + 1)
    assert plan_patches(sizes("roberta")).plan.context_length == CONTEXT


def test_a_module_that_transformers_itself_cannot_run_is_refused(make_model, tmp_path):
    """RoBERTa without a padding token cannot compute positions."""
    folder = make_model(**sizes("roberta"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"pad_token_id": None}))
    with pytest.raises(ExportError, match="RobertaForCausalLM of transformers cannot be run itself: TypeError"):
        export_model(folder, tmp_path / "bundle", backend="transformers")


# Refusals


REFUSALS = {
    "mamba": "keeps no cache of keys and values|takes no position_ids",
    "dbrx": "DbrxForCausalLM of transformers looks at values to decide what it computes next",
    "bloom": "takes no position_ids",
    "falcon": "takes none through transformers' attention interface. Only a family file",
    "gpt_neox_japanese": "did not attend through transformers' attention interface",
    "diffllama": "attends to keys that it did not just give to the cache: a second time",
    "doge": "attends with a mask that it made or changed itself",
    "dory": "gives keys and values to the cache twice",
}


@pytest.mark.parametrize("model_type", REFUSALS)
def test_what_cannot_be_patched_is_refused_without_weights(model_type):
    with pytest.raises(ExportError, match=REFUSALS[model_type]):
        plan_patches(tiny_config(model_type), CONTEXT)


@pytest.mark.parametrize("read", [bool, int, Tensor.tolist, Tensor.nonzero, Tensor.numpy, Tensor.unique])
def test_reading_a_value_is_told_from_other_errors(read):
    with pytest.raises((RuntimeError, TypeError)) as raised:
        read(torch.zeros((), device="meta"))
    assert READS_VALUES.search(str(raised.value))


def test_an_error_that_no_value_causes_is_given_as_it_is(monkeypatch):
    def forward(self, *args, **kwargs):
        raise NotImplementedError("not for this attention")

    monkeypatch.setattr("transformers.models.olmo3.modeling_olmo3.Olmo3MLP.forward", forward)
    with pytest.raises(ExportError, match="could not be run with our attention: NotImplementedError: not for this"):
        plan_patches(sizes("olmo3"), CONTEXT)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "no_such_model"}, "has no model_type 'no_such_model'"),
        ({"model_type": "own", "auto_map": {}}, "brings code of its own .auto_map., which is not run"),
        ({"model_type": "t5"}, "is not a causal language model"),
        ({"model_type": "gemma3"}, r"made of several models .vision_config, text_config in its config.json"),
        ({"model_type": "olmo3", "quantization_config": {"bits": 4}}, "its weights are quantized"),
        ({"model_type": "olmo3", "num_hidden_layers": "four"}, "does not take this config.json"),
    ],
)
def test_configs_of_something_else_are_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        plan_patches(fields)


def test_a_model_that_is_not_told_to_be_a_decoder_is_refused():
    with pytest.raises(ExportError, match="attends to tokens after it.*is one only with is_decoder"):
        plan_patches(sizes("bert", is_decoder=False))


def test_rotation_that_depends_on_length_is_refused_beyond_it():
    factors = {"short_factor": [1.0] * 16, "long_factor": [2.0] * 16, "original_max_position_embeddings": 64}
    fields = sizes("arcee") | {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4, "factor": 4.0} | factors}
    with pytest.raises(ExportError, match="rotates by other angles where a text is longer.*--context-length 64"):
        plan_patches(fields)
    assert plan_patches(fields, 64).model_spec.context_length == 64


def test_a_context_that_the_model_does_not_have_is_refused():
    with pytest.raises(ConfigError, match=f"--context-length 257 is not between 1 and the {CONTEXT} positions"):
        plan_patches(sizes("olmo3"), CONTEXT + 1)


def test_tensors_that_do_not_fit_are_reported_together(folders, tmp_path):
    folder = Path(shutil.copytree(folders["cohere2"], tmp_path / "model"))
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.self_attn.q_proj.extra"] = tensors.pop("model.layers.0.self_attn.q_proj.weight")
    tensors["model.layers.1.mlp.up_proj.weight"] = torch.zeros(2, 3)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(WeightsError) as error:
        export_model(folder, tmp_path / "bundle", backend="transformers")
    for line in (
        "missing: model.layers.0.self_attn.q_proj.weight [128, 64]",
        "misshapen: model.layers.1.mlp.up_proj.weight is [2, 3], and the config implies [96, 64]",
        "unexpected: model.layers.0.self_attn.q_proj.extra",
    ):
        assert line in str(error.value)


def test_a_preset_without_checkpoint_is_refused(tmp_path, monkeypatch):
    noise = tmp_path / "presets" / "noise"
    noise.mkdir(parents=True)
    shutil.copyfile(edgeformer.checkpoints.found_model.PRESETS / "tiny-llama" / "config.json", noise / "config.json")
    (noise / "preset.json").write_text('{"description": "to try the tools", "random_weights": 7}')
    monkeypatch.setattr(edgeformer.checkpoints.found_model, "PRESETS", noise.parent)
    with pytest.raises(ConfigError, match="preset noise has no checkpoint"):
        export_model("noise", tmp_path / "bundle", backend="transformers")


def test_an_export_imports_little_and_says_what_is_missing(llama_folder, tmp_path):
    """A process for three things, since its imports take two seconds.

    matplotlib took a second to import, and another to draw what the page of the certificate has in a plot of its own.
    """
    script = """
import sys
import edgeformer.export.pipeline, edgeformer.families
assert not {"transformers", "matplotlib"} & sys.modules.keys()
sys.modules["transformers"] = None

def refused(model, **options):
    try:
        edgeformer.export.export_model(model, sys.argv[2], **options)
    except edgeformer.errors.MissingDependencyError as error:
        print(str(error).replace("\\n", " "))

refused("tiny-llama", backend="transformers")
edgeformer.families.family_names = lambda: ["gpt2"]
refused(sys.argv[1])
"""
    command = [sys.executable, "-c", script, str(llama_folder), str(tmp_path / "bundle")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    asked_for, by_itself = done.stdout.splitlines()
    assert "transformers is not installed" in asked_for
    assert "edgeformer[transformers]" in asked_for
    assert "edgeformer has no family of model_type 'llama'" in by_itself
    assert "pip install 'edgeformer[transformers]'" in by_itself
    assert not (tmp_path / "bundle").exists()


def test_layers_with_a_rotary_module_each_share_one_table():
    backend = plan_patches(sizes("moshi"))
    assert len(backend.plan.rotaries) == LAYERS
    assert [name for name in backend.model_spec.constants() if name.endswith("cos")] == [
        "model.layers.0.self_attn.rotary_emb.cos"
    ]


def test_tables_of_several_kinds_have_one_order_in_every_process():
    """transformers keeps the kinds of Olmo3's layers in a set."""
    kinds = plan_patches(sizes("olmo3")).plan.rotaries["model.rotary_emb"]
    assert list(kinds) == ["full_attention", "sliding_attention"]


# What the probes tell apart


@pytest.mark.parametrize(
    ("pattern", "window"),
    [
        (lambda b, h, q, k: k <= q, 0),
        (lambda b, h, q, k: (k <= q) & (k > q - 16), 16),
        (lambda b, h, q, k: (k <= q) & (k > q - 64), 0),  # no shorter than the context
        (lambda b, h, q, k: (k <= q) & (k >= q), 1),
    ],
)
def test_windows_are_found_by_asking_the_mask(pattern, window):
    assert window_of(pattern, 64) == window


@pytest.mark.parametrize(
    "pattern",
    [
        lambda b, h, q, k: (k <= q) & (k // 16 == q // 16),
        lambda b, h, q, k: (k <= q) & ((k > q - 16) | (k < 4)),
        lambda b, h, q, k: (k <= q) & (k % 2 == 0),
    ],
)
def test_masks_that_are_no_window_are_refused(pattern):
    with pytest.raises(ExportError, match="neither causal attention nor a window"):
        window_of(pattern, 64)


class NearlyRMSNorm(nn.Module):
    """The formula with ε outside the root."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(16))
        self.eps = 1e-5

    def forward(self, x):
        return self.weight * x / (x.square().mean(-1, keepdim=True).sqrt() + self.eps)


def test_norms_are_known_by_what_they_compute():
    from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    assert rms_norm_form(LlamaRMSNorm(16, eps=1e-3), 16).epsilon == 1e-3
    assert rms_norm_form(LlamaRMSNorm(16), 16).gain == "weight"
    assert rms_norm_form(GemmaRMSNorm(16), 16).gain == "1 + weight"
    assert rms_norm_form(nn.LayerNorm(16), 16) is None
    assert rms_norm_form(NearlyRMSNorm(), 16) is None
