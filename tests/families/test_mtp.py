"""Multi-token prediction: what a checkpoint's layer drafts is what the formula of the paper drafts, in every part.

The oracle is `mtp_models.Formula`, around transformers' own modules.
"""

import json
import re
from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch
from mtp_models import BEHIND, COPIES, MODELS, SIZES, Formula, make_folder
from safetensors.torch import load_file, save_file
from slow_rows import slow_unless
from transformers.modeling_layers import MtpLayer

from edgeformer.checkpoints.source import open_source
from edgeformer.errors import BundleError, ConfigError, ExportError, RequestError, WeightsError
from edgeformer.export import export_model
from edgeformer.export.parity.verify import open_subject, verify_graph
from edgeformer.export.reference.reference import Reference
from edgeformer.families import load_family
from edgeformer.layers.mtp import MultiTokenPrediction as Layer
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.providers import CUDA
from edgeformer.models.model_spec import model_spec_of
from edgeformer.runtime import load
from edgeformer.runtime.generation.generate import run_rows
from edgeformer.runtime.generation.speculation import DraftLength, MultiTokenPrediction, keep_states
from edgeformer.runtime.generation.speculation.row_drafts import RowDrafts
from edgeformer.runtime.sessions.graphs import first_tokens
from edgeformer.runtime.steps.decode_graph import BoundStates
from edgeformer.runtime.steps.new_decoder import new_decoder
from edgeformer.runtime.steps.runner import StepRunner
from edgeformer.server.service.served import load_models
from edgeformer.transformers_backend.float64 import computing_in_float64

NEW = 30
TEXT = [11, 57, 3, 99, 20, 76, 76, 41, 8, 120, 64, 19]

FAST = {"qwen3_5_text", "mimo", "deepseek_v3", "glm4_moe", "glm4_moe_lite", "ernie4_5_moe"}
"""Families whose layers differ from each other."""
AS_DEEPSEEK = {"glm4_moe", "glm4_moe_lite"}
"""Families whose layer is stored and built as DeepSeek-V3's, so that the runtime drafts with it as with that one."""


@pytest.fixture(scope="module")
def folders(make_model):
    """Return a function that makes the checkpoint of a family."""
    made = {}

    def of(family):
        return made.setdefault(family, None) or made.update({family: make_folder(make_model, family)}) or made[family]

    return of


@pytest.fixture(scope="module")
def bundles(folders, tmp_path_factory):
    """Return a function that exports a family with its layer."""
    made = {}

    def of(family, **options):
        key = family, *options.values()
        if key not in made:
            place = tmp_path_factory.mktemp("bundles") / "-".join(map(str, key))
            made[key] = export_model(folders(family), place, mtp=True, verify=None, **options).path
        return made[key]

    return of


@pytest.mark.parametrize("family", slow_unless(FAST, MODELS))
def test_the_layer_computes_what_the_paper_says(folders, family):
    source = open_source(folders(family), mtp=True)
    reference, ids = Reference(model_spec_of(source.config), source.weights()), torch.tensor([TEXT])
    geometry = source.config.mtp.cache_geometry
    empty = geometry.by_layer([torch.zeros(tensor.shape(1, 0)).double() for tensor in geometry.tensors()])
    with reference.loaded():
        module = reference.module
        _, states, _ = module.forward_with_states(ids, torch.ones_like(ids), reference.empty_caches(1))
        read = ids[:, 1:], torch.ones_like(ids[:, 1:]), states[:, :-1], empty
        logits, predicted, _ = module.predict(*read)
        config, wrong = module.mtp.config, {}
        module.mtp.config = replace(config, hidden_first=not config.hidden_first)
        wrong["halves are swapped"] = module.predict(*read)[1]
        module.mtp.config = replace(config, normalized=not config.normalized)
        wrong["the state behind the block"] = module.predict(*read)[1]
        module.mtp.config = config
        for norm in ("token_norm", "state_norm"):
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(getattr(module.mtp, norm), "forward", lambda x: x)
                wrong[f"no {norm}"] = module.predict(*read)[1]
        if not config.normalized:
            read = *read[:2], module.final_norm(states[:, :-1]), empty
            wrong["the state behind the final norm"] = module.predict(*read)[1]
    with computing_in_float64():
        formula = Formula(folders(family), family)
        expected = formula.states(TEXT)
        states_after, logits_after = formula.run(TEXT[1:], expected[:-1])
    assert torch.allclose(states[0], expected, rtol=0, atol=1e-11)
    assert torch.allclose(predicted[0], states_after, rtol=0, atol=1e-11)
    assert torch.allclose(logits[0], logits_after, rtol=0, atol=1e-11)
    for what, states_of_another in wrong.items():
        assert not torch.allclose(states_of_another[0], states_after, rtol=0, atol=1e-3), what


@pytest.mark.parametrize("family", ["deepseek_v3", "glm4_moe"])
def test_the_oracle_is_the_layer_of_transformers(folders, family):
    """transformers has the layer of these types, whose block is read as `Formula` reads it."""
    formula, stored = Formula(folders(family), family), load_file(folders(family) / "model.safetensors")
    config = formula.model.config
    layer = MtpLayer(config.get_mtp_config(), type(formula.block), type(formula.model.model.norm), 0).double()
    names = {"enorm": "enorm", "hnorm": "hnorm", "eh_proj": "eh_proj", "post_norm": "shared_head.norm"}
    parts = {f"{ours}.weight": stored[f"{BEHIND}{theirs}.weight"] for ours, theirs in names.items()}
    layer.load_state_dict(parts | {f"mtp_block.{name}": each for name, each in formula.block.state_dict().items()})
    with computing_in_float64(), torch.no_grad():
        states, positions = formula.states(TEXT)[:-1], torch.arange(1, len(TEXT))[None]
        embedded = formula.model.model.embed_tokens(torch.tensor([TEXT[1:]]))
        mask = torch.full((len(states), len(states)), -torch.inf, dtype=torch.float64).triu(1)[None, None]
        found = layer(
            embedded, states[None], formula.model.model.rotary_emb(embedded, positions), mask, positions, None
        )
        expected, _ = formula.run(TEXT[1:], states)
    assert torch.allclose(found[0], expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("family", slow_unless(FAST - AS_DEEPSEEK, MODELS))
def test_the_runtime_drafts_what_the_paper_says(folders, bundles, family, monkeypatch):
    """Drafts all over a text, each behind others that were taken back, and the tokens are those without drafts."""
    monkeypatch.setattr(DraftLength, "choose", lambda self, pending=0: 4)
    formula, drafts, draft = Formula(folders(family), family), [], MultiTokenPrediction.draft

    def recorded(self, count):
        drafts.append((list(self._text), draft(self, count)))
        return drafts[-1][1]

    monkeypatch.setattr(MultiTokenPrediction, "draft", recorded)
    model, plain = load(bundles(family), threads=1, draft="mtp"), load(bundles(family), threads=1)
    wanted = {"max_new_tokens": NEW, "ignore_eos": True}
    for options in ({}, {"temperature": 1.0, "seed": 4}):
        found = model.generate(TEXT, **wanted, **options)
        assert found.token_ids == plain.generate(TEXT, **wanted, **options).token_ids
        assert found.speculation.drafted > NEW
    assert len(drafts) > NEW
    for text, drafted in drafts[::5]:
        assert drafted == formula.draft(text, len(drafted))[0], "random models have no ties"


class Wavering(MultiTokenPrediction):
    """The drafter of a model, which is told what the model writes, and is wrong at some places of it."""

    def __init__(self, answer, wrong, *parts):
        super().__init__(*parts)
        self._answer, self._wrong = answer, wrong

    def draft(self, count):
        self._place = len(self._text)
        return super().draft(count)

    def choose(self, logits):
        place, self._place = self._place, self._place + 1
        token = self._answer[place] if place < len(self._answer) else 0
        return (token + (place in self._wrong)) % len(logits)


FORMS = {
    "recurrent": ("qwen3_5_text", {}),
    "static": ("mimo", {}),
    "int4": ("mimo", {"precision": "int4"}),
    "dynamic": ("mimo", {"ops": "portable", "cache": "dynamic"}),
    "standard": ("mimo", {"ops": "standard", "cache": "static"}),
    "latent": ("deepseek_v3", {}),
    "latent, portable": ("deepseek_v3", {"ops": "portable", "cache": "dynamic"}),
    "latent, int4": ("deepseek_v3", {"precision": "int4"}),
    "states of the block": ("ernie4_5_moe", {"ops": "standard", "cache": "static"}),
    "states of the block, int4": ("ernie4_5_moe", {"precision": "int4"}),
}


@pytest.mark.parametrize("form", FORMS)
def test_tokens_are_those_without_drafts(bundles, form, monkeypatch):
    """Drafts come true and are taken back over every form of cache; tokens and log-probabilities stay the same."""
    family, options = FORMS[form]
    model = load(bundles(family, **options), threads=1, draft="mtp")
    monkeypatch.setattr(DraftLength, "choose", lambda self, pending=0: 3)
    wanted = {"max_new_tokens": NEW, "ignore_eos": True, "logprobs": True}
    plain = load(bundles(family, **options), threads=1).generate(TEXT, **wanted)
    row = model.new_row(TEXT, **wanted)
    decoder = model.new_decoder(1, len(TEXT) + NEW)
    mtp, states = model.manifest.model.mtp, keep_states(decoder, 64)
    layer = new_decoder(model.mtp_session, model.manifest, 1, len(TEXT) + NEW, cache=mtp.cache_geometry)
    wrong = {len(TEXT) + place for place in (4, 5, 12, 19, 20, 21)}
    drafter = Wavering([*TEXT, *plain.token_ids], wrong, layer, states, 0, model.manifest.vocab_size)
    run_rows(decoder, [row], drafts=RowDrafts(row, lambda: drafter, DraftLength(3)))
    assert row.tokens == plain.token_ids and row.speculation.accepted >= 15
    assert row.speculation.drafted > row.speculation.accepted
    atol = 0.2 if "int4" in form else 1e-4  # kernels may round activations of several tokens otherwise
    found, expected = ([each.logprob for each in logprobs] for logprobs in (row.logprobs, plain.logprobs))
    np.testing.assert_allclose(found, expected, atol=atol)


def test_weights_are_stored_once(bundles):
    folder = bundles("qwen3_5_text")
    places = {}
    for name in ("model", "model_mtp"):
        graph = onnx.load(folder / "onnx" / f"{name}.onnx", load_external_data=False).graph
        places[name] = {
            each.name: tuple((entry.key, entry.value) for entry in each.external_data)
            for each in graph.initializer
            if each.external_data
        }
    shared = places["model"].keys() & places["model_mtp"].keys()
    assert any("embedding" in name for name in shared) and any("head" in name for name in shared)
    assert all(places["model"][name] == places["model_mtp"][name] for name in shared)
    assert [path.name for path in (folder / "onnx").glob("*_data")] == ["model.onnx_data"]


@pytest.mark.parametrize("family", ["qwen3_5_text", "ernie4_5_moe"])
def test_without_the_option_a_bundle_is_what_it_was(folders, family, tmp_path):
    """The graph, its weights and its manifest do not know of the layer that the checkpoint has."""
    path = export_model(folders(family), tmp_path / "plain", verify=None).path
    manifest, graph = Manifest.read(path), onnx.load(path / "onnx" / "model.onnx", load_external_data=False).graph
    assert list(manifest.graphs) == ["model"] and manifest.model.mtp is None
    assert "hidden_states" not in {each.name for each in graph.output}
    assert not any("mtp" in name for name in (*manifest.weights, *(each.name for each in graph.initializer)))
    with pytest.raises(RequestError, match=r"^.*plain has no layer of multi-token prediction, .* leave draft out\.$"):
        load(path, draft="mtp")


def test_a_chat_goes_on_without_the_states_of_what_was_kept(bundles, monkeypatch):
    """Tokens that were kept from an earlier request have no states: the layer begins behind them, and drafts still."""
    monkeypatch.setattr(DraftLength, "choose", lambda self, pending=0: 2)
    model = load(bundles("mimo"), threads=1, draft="mtp")
    for begun in (0, 5, len(TEXT)):
        row = model.new_row(TEXT, max_new_tokens=NEW, ignore_eos=True)
        decoder = model.new_decoder(1, len(TEXT) + NEW)
        drafts = model.new_drafts(row, model.generation_config, decoder=decoder)
        row.cached_tokens = begun
        decoder.graph.token_states[0].rows[0][:begun] = np.nan  # nobody computed them
        decoder.prefill(0, TEXT[:begun]) if begun else None
        decoder.graph.token_states[0].rows[0][:begun] = np.nan
        first = decoder.prefill(0, TEXT[begun:])[None] if begun < len(TEXT) else None
        if first is None:
            decoder.cut(0, begun - 1)
            first = decoder.prefill(0, TEXT[-1:])[None]
            decoder.graph.token_states[0].rows[0][:begun] = np.nan
        run_rows(decoder, [row], first, drafts)
        assert row.tokens == model.generate(TEXT, max_new_tokens=NEW, ignore_eos=True, num_assistant_tokens=0).token_ids
        assert row.speculation.drafted > NEW and not row.speculation.accepted > row.speculation.drafted


FORWARD = Layer.forward


def swapped(self, *read):
    """The state of a MiMo stands behind the embedding, that of the others before it."""
    self.config = replace(self.config, hidden_first=not self.config.hidden_first)
    try:
        return FORWARD(self, *read)
    finally:
        self.config = replace(self.config, hidden_first=not self.config.hidden_first)


def without_norm(self, *read):
    """The state is read as it is."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(self.state_norm, "forward", lambda states: states)
        return FORWARD(self, *read)


def other_states(self, *read):
    """The state behind the block is not normalized, or that of ERNIE is."""
    self.config = replace(self.config, normalized=not self.config.normalized)
    try:
        return FORWARD(self, *read)
    finally:
        self.config = replace(self.config, normalized=not self.config.normalized)


LAYER_FAULTS = {
    "the halves are swapped": swapped,
    "a norm is left out": without_norm,
    "the last norm is elsewhere": other_states,
}


@pytest.mark.parametrize("family", slow_unless({"mimo", "ernie4_5_moe"}, ["mimo", "deepseek_v3", "ernie4_5_moe"]))
@pytest.mark.parametrize("fault", ["the halves are swapped", "a norm is left out", "the last norm is elsewhere"])
def test_verification_refuses_another_layer(bundles, family, fault, monkeypatch):
    """The graph is that of another layer than the one of the references."""
    made = bundles(family)  # before the fault: others read what is made here
    monkeypatch.setattr(Layer, "forward", LAYER_FAULTS[fault])
    report = verify_graph(*verified(made))
    failed = [check.name for check in report.failures()]
    assert failed and all(name.startswith("mtp, ") and "drafts" in name for name in failed)


def verified(path):
    """The arguments of `verify_graph` for a bundle."""
    subject = open_subject(path)
    return subject.folder, subject.manifest, subject.model_spec, subject.weights


def late_states(monkeypatch):
    """The layer reads the state of the token before."""

    def late(self, first, lengths):
        for states, bound in self._inputs:
            bound[0] = np.roll(states.rows[0], 1, 0)[lengths[0] : lengths[0] + bound.shape[1]]

    monkeypatch.setattr(BoundStates, "load", late)


def rejected_kept(monkeypatch):
    """The layer keeps one of the tokens that were taken back."""
    follow = MultiTokenPrediction._follow

    def kept(self, text):
        cut, decoder = StepRunner.cut, self.decoder
        decoder.cut = lambda row, length: cut(decoder, row, min(length + 1, int(decoder.lengths[0])))
        return follow(self, text)

    monkeypatch.setattr(MultiTokenPrediction, "_follow", kept)


def not_fed_back(monkeypatch):
    """A further token is drafted with a state of zeros."""
    draft = MultiTokenPrediction.draft

    def forgotten(self, count):
        predicted, self._predicted = self._predicted, np.zeros_like(self._predicted)
        try:
            return draft(self, count)
        finally:
            self._predicted = predicted

    monkeypatch.setattr(MultiTokenPrediction, "draft", forgotten)


RUNTIME_FAULTS = {
    "states are late": late_states,
    "rejected tokens are kept": rejected_kept,
    "no state is fed back": not_fed_back,
}


@pytest.mark.parametrize("fault", ["states are late", "rejected tokens are kept", "no state is fed back"])
@pytest.mark.parametrize("family", slow_unless({"mimo"}, ["mimo", "deepseek_v3", "ernie4_5_moe"]))
def test_verification_refuses_another_runtime(bundles, family, fault, monkeypatch):
    """Its tokens would be the same, since the model chooses them."""
    RUNTIME_FAULTS[fault](monkeypatch)
    report = verify_graph(*verified(bundles(family)))
    failed = [check.name for check in report.failures()]
    assert failed and all(name.startswith("mtp, ") for name in failed), failed


RIGHT = {
    **{family: (family, {}) for family in ("mimo", "deepseek_v3", "glm4_moe", "glm4_moe_lite", "ernie4_5_moe")},
    **{form: FORMS[form] for form in ("dynamic", "latent, portable", "latent, int4", "states of the block, int4")},
}


@pytest.mark.parametrize("form", slow_unless({"mimo", "deepseek_v3", "ernie4_5_moe", "dynamic"}, RIGHT))
def test_verification_passes_what_is_right(bundles, form):
    family, options = RIGHT[form]
    report = verify_graph(*verified(bundles(family, **options)))
    assert not report.failures() and any(check.name.startswith("mtp, ") for check in report.checks)


REFUSED = {
    "no such layer": (
        lambda config: config | {"mtp_num_hidden_layers": 0}, {},
        r"^mtp is for models with a layer of .* config.json has mtp_num_hidden_layers = 0: no such layer. Leave mtp",
    ),
    "two layers": (
        lambda config: config | {"mtp_num_hidden_layers": 2}, {},
        "has mtp_num_hidden_layers = 2: 2 of them, and edgeformer runs one. Leave mtp out.$",
    ),
    "embeddings of its own": (
        lambda config: config | {"mtp_use_dedicated_embeddings": True}, {},
        "^config.json has mtp_use_dedicated_embeddings = true, and .* share the model's embeddings. Leave mtp out.$",
    ),
    "a GPU": (None, {"provider": "cuda", "precision": "fp16"}, "not for CUDA. Leave mtp out.$"),
    "phones": (None, {"deployment": "mobile"}, "^drafts by mtp are for .* the deployment mobile. Leave mtp out.$"),
    "an int8 cache": (None, {"cache_precision": "int8"}, "^no check runs drafts by mtp over int8 caches."),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_has_no_drafts_is_refused_by_name(folders, tmp_path, what):
    change, options, message = REFUSED[what]
    folder = folders("mimo")
    if change is not None:
        folder = tmp_path / "changed"
        folder.mkdir()
        config = json.loads((folders("qwen3_5_text") / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(change(config)))
    with pytest.raises((ConfigError, ExportError), match=message):
        export_model(folder, tmp_path / "none", mtp=True, verify=None, **options)


def test_a_family_without_such_layers_is_refused(make_model, tmp_path):
    with pytest.raises(ConfigError, match="^mtp is for .* not know of qwen2. Leave mtp out.$"):
        export_model(make_model("qwen2", 0, **SIZES), tmp_path / "none", mtp=True)
    with pytest.raises(ConfigError, match="has mtp_num_hidden_layers = 0: no such layer. Leave mtp out.$"):
        export_model(make_model("llama", 0, **SIZES), tmp_path / "none", mtp=True)


def test_a_checkpoint_that_lost_its_layer_is_refused(folders, tmp_path):
    """transformers saves no such tensors, so that a finetuned checkpoint may lack what its config.json says."""
    tensors = load_file(folders("qwen3_5_text") / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith("mtp.")}
    save_file(kept | {"mtp.layers.1.input_layernorm.weight": torch.zeros(64)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((folders("qwen3_5_text") / "config.json").read_bytes())
    message = r"missing: mtp.fc.weight \[64, 128\]\n[\s\S]*unexpected: mtp.layers.1"
    with pytest.raises(WeightsError, match=message) as caught:
        export_model(tmp_path, tmp_path / "none", mtp=True, verify=None)
    assert "missing: mtp.layers.0.self_attn.q_norm.weight" in str(caught.value)


def test_a_server_drafts_by_it(bundles):
    served = load_models([bundles("mimo")], "cpu", 1, draft="mtp")
    found = served.bases[0].engine.submit(TEXT, max_new_tokens=NEW, ignore_eos=True).finish()
    served.close(drain=True)
    assert found.speculation.drafted > 0
    assert found.token_ids == load(bundles("mimo")).generate(TEXT, max_new_tokens=NEW, ignore_eos=True).token_ids


def test_a_model_on_a_gpu_does_not_draft_by_it(bundles, monkeypatch):
    model = load(bundles("mimo"), threads=1)
    monkeypatch.setattr(model, "provider", CUDA)
    with pytest.raises(
        RequestError, match="^drafts by mtp are for the CPU, and the model runs on CUDA. Leave draft out"
    ):
        model.use_draft("mtp")
    assert not model.drafts_by_mtp


def test_a_manifest_says_of_both_or_of_none(bundles, tmp_path):
    data = json.loads((bundles("mimo") / "edgeformer.json").read_text())
    del data["model"]["mtp"]
    (tmp_path / "edgeformer.json").write_text(json.dumps(data))
    with pytest.raises(BundleError, match="graph of drafts"):
        Manifest.read(tmp_path)


def test_copies_of_embedding_and_head_must_be_equal(folders, tmp_path):
    """DeepSeek's and GLM's checkpoints store both beside the layer; equal ones are read past, as in all tests above."""
    tensors = load_file(folders("glm4_moe") / "model.safetensors")
    assert all(torch.equal(tensors[copy], tensors[name]) for copy, name in COPIES.items())
    (tmp_path / "config.json").write_bytes((folders("glm4_moe") / "config.json").read_bytes())
    for copy, name in COPIES.items():
        changed = tensors[copy].clone()
        changed[7, 3] += 0.5
        save_file({**tensors, copy: changed}, tmp_path / "model.safetensors")
        message = (
            f"hold {re.escape(name)} and {re.escape(copy)}, which differ, and .* share the model's. Leave mtp out.$"
        )
        with pytest.raises(WeightsError, match=message):
            export_model(tmp_path, tmp_path / "none", mtp=True, verify=None)
        without = {name: tensor for name, tensor in tensors.items() if name != copy}
        save_file(without, tmp_path / "model.safetensors")
        assert (
            open_source(tmp_path, mtp=True).weights().keys()
            == open_source(folders("glm4_moe"), mtp=True).weights().keys()
        )


def test_without_the_option_the_layer_is_passed_over():
    for family, layers in (("deepseek_v3", [61]), ("glm4_moe", [46, 92]), ("glm4_moe_lite", [47])):
        for layer in layers:
            assert load_family(family).ignores(f"model.layers.{layer}.mlp.experts.0.up_proj.weight")
            assert load_family(family).ignores(f"model.layers.{layer}.eh_proj.weight")
            for other in (f"{layer - 1}", f"{layer}1", f"1{layer}"):
                assert not load_family(family).ignores(f"model.layers.{other}.eh_proj.weight")


def test_two_layers_or_none_of_deepseek_are_refused(folders, tmp_path):
    config = json.loads((folders("deepseek_v3") / "config.json").read_text())
    for count, message in ((0, "no such layer"), (2, "2 of them, and edgeformer runs one")):
        (tmp_path / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": count}))
        with pytest.raises(ConfigError, match=f"has num_nextn_predict_layers = {count}: {message}. Leave mtp out.$"):
            export_model(tmp_path, tmp_path / "none", mtp=True, verify=None)


def test_the_layer_inside_a_model_that_reads_pictures_is_found(folders, tmp_path):
    """Checkpoints of Qwen3.5 on the hub have a tower, and the layer beside their text model."""
    folder = folders("qwen3_5_text")
    stored, inner = load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())
    named = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in stored.items()}
    save_file(named | {"model.visual.merger.norm.weight": torch.ones(8)}, tmp_path / "model.safetensors")
    outer = {"model_type": "qwen3_5", "text_config": inner, "vision_config": {"model_type": "qwen3_5"}}
    (tmp_path / "config.json").write_text(json.dumps(outer))
    alone, inside = open_source(folder, mtp=True), open_source(tmp_path, text_only=True, mtp=True)
    weights, expected = inside.weights(), alone.weights()
    assert inside.config == alone.config and weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    with pytest.raises(ConfigError, match="^mtp drafts tokens of texts, and .* Leave mtp out. Its .*: --text-only.$"):
        open_source(tmp_path, mtp=True)


STORIES = ["Once upon a time", "Tom was", "Long ago, a clever fox", "There once was a brave boy named"]
"""Beginnings of which tiny-llama makes stories."""


def test_the_preset_drafts_its_own_stories(tiny_llama_mtp_bundle, monkeypatch):
    """Its layer was trained: most of its drafts come true, three tokens deep, and no token is another one."""
    report = json.loads((tiny_llama_mtp_bundle / "parity" / "report.json").read_text())
    judged = [each for each in report["checks"] if each["name"].startswith("mtp, ")]
    assert judged and all(each["passed"] for each in judged)
    monkeypatch.setattr(DraftLength, "choose", lambda self, pending=0: 3)
    plain = load(tiny_llama_mtp_bundle, threads=1)
    model = load(tiny_llama_mtp_bundle, threads=1, draft="mtp")
    drafted = accepted = 0
    for prompt in STORIES:
        found = model.generate(prompt, max_new_tokens=192)
        assert found.token_ids == plain.generate(prompt, max_new_tokens=192).token_ids
        assert found.finish_reason == "eos" and len(found.token_ids) > 60
        drafted, accepted = drafted + found.speculation.drafted, accepted + found.speculation.accepted
    assert accepted > 0.7 * drafted


FIRST = 64
"""Tokens of a short head, of the 131 of these models."""


class Seen(MultiTokenPrediction):
    """The drafter of a model, which keeps the logits that it chose from."""

    def choose(self, logits):
        self.logits = logits.copy()
        return super().choose(logits)


def logits_of(model, session, text, states):
    mtp = model.manifest.model.mtp
    decoder = new_decoder(session, model.manifest, 1, len(states), cache=mtp.cache_geometry)
    drafter = Seen(decoder, states, 0, model.manifest.vocab_size)
    drafter.extend(text)
    drafter.draft(1)
    return drafter.logits


@pytest.mark.parametrize("form", ["int4", "latent, int4", "states of the block, int4", "the embedding is the head"])
def test_a_short_head_has_the_first_logits(bundles, tiny_llama_mtp_bundle, form, monkeypatch):
    monkeypatch.setattr(first_tokens, "FIRST_TOKENS", FIRST)
    family, options = FORMS.get(form, ("", {}))
    model = load(bundles(family, **options) if family else tiny_llama_mtp_bundle, threads=1, draft="mtp")
    states = np.random.default_rng(0).normal(size=(len(TEXT) + 1, model.hidden_size)).astype(np.float32)
    for length in (2, 5, len(TEXT)):
        short, every = (
            logits_of(model, session, TEXT[:length], states)
            for session in (model.first_tokens_session, model.mtp_session)
        )
        assert short.shape == (FIRST,) and every.shape == (model.manifest.vocab_size,)
        np.testing.assert_allclose(short, every[:FIRST], rtol=1e-5, atol=1e-6)
        assert not np.allclose(short, every[-FIRST:], rtol=1e-2), "other rows are not so near"


def test_texts_of_other_tokens_have_drafts_of_all(bundles, monkeypatch):
    monkeypatch.setattr(first_tokens, "FIRST_TOKENS", FIRST)
    monkeypatch.setattr(DraftLength, "choose", lambda self, pending=0: 3)
    drafted, draft = [], MultiTokenPrediction.draft
    monkeypatch.setattr(
        MultiTokenPrediction, "draft", lambda self, count: drafted.append(draft(self, count)) or drafted[-1]
    )
    path = bundles("mimo", precision="int4")
    plain = load(path, threads=1)
    wanted = {"max_new_tokens": NEW, "ignore_eos": True}
    for text, opened, largest in (
        ([3, 9, 63, 100], "first_tokens_session", FIRST),
        ([3, 99, 70, 100], "mtp_session", 131),
    ):
        model = load(path, threads=1, draft="mtp")
        drafted.clear()
        assert model.generate(text, **wanted).token_ids == plain.generate(text, **wanted).token_ids
        assert {"first_tokens_session", "mtp_session"} & vars(model).keys() == {opened}
        chosen = [token for each in drafted for token in each]
        assert len(chosen) > NEW and largest // 2 < max(chosen) < largest


@pytest.mark.parametrize("form", ["static", "standard", "a small vocabulary"])
def test_other_heads_and_small_vocabularies_stay_whole(bundles, form, monkeypatch):
    """A matrix of floats whose rows are inputs, one that is dequantized, and tokens that are few."""
    if form in FORMS:
        monkeypatch.setattr(first_tokens, "FIRST_TOKENS", FIRST)
    family, options = FORMS.get(form, FORMS["int4"])
    model = load(bundles(family, **options), threads=1, draft="mtp")
    assert model.first_tokens_session is None
    model.generate([3, 9, 63], max_new_tokens=4, ignore_eos=True)
    assert "mtp_session" in vars(model)


def test_a_damaged_graph_is_left_to_onnxruntime(bundles, tmp_path, monkeypatch):
    monkeypatch.setattr(first_tokens, "FIRST_TOKENS", FIRST)
    graph = (bundles("mimo", precision="int4") / "onnx/model_mtp.onnx").read_bytes()
    file = tmp_path / "model_mtp.onnx"
    for size in (0, 1, 7, 100, len(graph) // 2, len(graph) - 3):
        file.write_bytes(graph[:size])
        assert first_tokens.with_first_tokens(file, 131) is None
    file.write_bytes(graph)
    assert first_tokens.with_first_tokens(file, 131) is not None
    assert first_tokens.with_first_tokens(file.rename(tmp_path / "model_mtp.ort"), 131) is None


@pytest.mark.parametrize("what", ["integers that another node makes", "numbers in the graph itself"])
def test_matrices_that_are_no_piece_of_a_file_stay_whole(bundles, tmp_path, what, monkeypatch):
    monkeypatch.setattr(first_tokens, "FIRST_TOKENS", FIRST)
    model = onnx.load(bundles("mimo", precision="int4") / "onnx/model_mtp.onnx", load_external_data=False)
    head = next(node for node in model.graph.node if "logits" in node.output)
    if what.startswith("integers"):
        model.graph.node.insert(0, onnx.helper.make_node("Identity", [head.input[1]], ["made"]))
        head.input[1] = "made"
    else:
        tensor = next(each for each in model.graph.initializer if each.name == head.input[2])
        del tensor.external_data[:]
        tensor.data_location = onnx.TensorProto.DEFAULT
    onnx.save(model, tmp_path / "model_mtp.onnx")
    assert first_tokens.with_first_tokens(tmp_path / "model_mtp.onnx", 131) is None
