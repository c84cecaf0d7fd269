"""A cache in int8 with a scale for each key and value, over bundles that were exported with one of floats."""

import shutil

import numpy as np
import onnx
import pytest
import torch
from click.testing import CliRunner
from mtp_models import make_folder

from edgeformer.batch import BatchOptions
from edgeformer.cli.main import cli
from edgeformer.contract.ops import PER_TOKEN_ATTENTION
from edgeformer.contract.tensors import ElementBytes
from edgeformer.errors import RequestError
from edgeformer.export import export_model, verify
from edgeformer.export.parity.verify import open_subject
from edgeformer.export.reference.quantized_caches import CacheEntrance
from edgeformer.export.reference.reference import Reference
from edgeformer.runtime import Engine, load
from edgeformer.runtime.generation.speculation import DraftLength, MultiTokenPrediction
from edgeformer.runtime.measure.benchmarking.costs import Costs
from edgeformer.runtime.measure.benchmarking.workloads import Source
from edgeformer.runtime.sessions.graphs import int8_cache
from edgeformer.runtime.sessions.graphs.int8_cache import graph_with_int8_cache, with_int8_cache
from edgeformer.runtime.sessions.kernels import KernelChoice, Library
from edgeformer.server import ServerOptions
from edgeformer.server.http.run import open_models

SMALL = {
    "vocab_size": 131, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 64,
}  # fmt: skip
SLIDING, FULL = "sliding_attention", "full_attention"
FAMILIES = {
    "qwen3": SMALL,
    "gemma2": {**SMALL, "sliding_window": 6},
    "gemma3n_text": {
        **SMALL, "vocab_size_per_layer_input": 131, "sliding_window": 8, "num_hidden_layers": 3,
        "num_kv_shared_layers": 1, "layer_types": [SLIDING, FULL, SLIDING], "laurel_rank": 12, "altup_num_inputs": 2,
        "hidden_size_per_layer_input": 24, "activation_sparsity_pattern": [0.9, 0.0, 0.5],
    },
    "lfm2": {**SMALL, "layer_types": ["conv", FULL], "conv_L_cache": 3, "block_auto_adjust_ff_dim": False},
}  # fmt: skip
"""Norms of heads; soft-caps and windows; layers that read an earlier layer's cache; layers without keys."""

TOKENS = np.random.default_rng(0).integers(3, 130, 40).tolist()
PROMPT = 30


class PerToken(CacheEntrance):
    """Round each key and value by its largest magnitude over 127, as the cache does."""

    def __init__(self, kv_heads):
        super().__init__()
        self._kv_heads = kv_heads

    def store(self, layer, key, value, rotation):
        return self._rounded(key), self._rounded(value)

    def _rounded(self, x):
        heads = x.unflatten(-1, (self._kv_heads, -1))
        scale = heads.abs().amax(-1, keepdim=True) / 127
        return ((heads / scale).round() * scale).flatten(-2)


@pytest.fixture(autouse=True)
def kernels_are_installed(installed, library):
    installed(library)


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, make_model, tmp_path_factory):
    folder = make_model(request.param, **FAMILIES[request.param])
    return export_model(folder, tmp_path_factory.mktemp("bundles") / request.param, verify=None).path


def steps(model, tokens, prompt):
    """The logits of a prompt, a chunk behind it, and single tokens."""
    decoder = model.new_decoder(1, len(tokens))
    parts = [decoder.prefill_all(0, tokens[start:end]) for start, end in ((0, prompt), (prompt, prompt + 5))]
    parts += [decoder.decode_one_token([token]).copy() for token in tokens[prompt + 5 :]]
    return np.concatenate([np.reshape(part, (-1, part.shape[-1])) for part in parts]), decoder.cache


def test_logits_are_those_of_eager_pytorch_that_rounds(family):
    subject, ids = open_subject(family), torch.tensor([TOKENS])
    exact, rounded = (
        Reference(subject.model_spec, subject.weights, torch.float64, entrance).run(ids)[0][0].numpy()
        for entrance in (None, PerToken(2))
    )
    found, cache = steps(load(family, cache_precision="int8"), TOKENS, PROMPT)
    size = np.abs(exact).max()
    assert np.abs(rounded - exact).max() > 1e-3 * size, "a comparison that cannot fail"
    # A key in the middle between two integers may become either, in float32 and float64.
    assert np.quantile(np.abs(found - rounded), 0.9) < 1e-5 * size
    assert np.abs(found - rounded).max() < 0.3 * np.abs(rounded - exact).max()
    model = load(family)
    plain, windows = model.manifest.cache, model.manifest.windows or ()
    kept = plain.with_scales_per_token().size_in_bytes(ElementBytes(1, 4), 1, len(TOKENS), windows)
    assert cache.bytes == kept < plain.size_in_bytes(ElementBytes(4, 4), 1, len(TOKENS), windows)


@pytest.mark.parametrize("cache", ["fp32", "fp16"])
def test_bundles_of_integers_have_it_too(llama_folder, tmp_path, cache):
    folder = export_model(llama_folder, tmp_path / "b", precision="int4", cache_precision=cache, verify=None).path
    plain, rounded = (steps(load(folder, cache_precision=each), TOKENS, PROMPT)[0] for each in (None, "int8"))
    assert 0 < np.abs(plain - rounded).max() < 0.05 * np.abs(plain).max()


def test_rows_of_an_engine_write_what_each_writes_alone(tiny_llama_bundle):
    prompts = ["Once upon a time", "Tom saw a big dog. He", "The sun was warm, and"]
    model = load(tiny_llama_bundle, cache_precision="int8")
    alone = [model.generate(prompt, max_new_tokens=20).token_ids for prompt in prompts]
    with Engine(model, max_rows=3) as engine:
        streams = [engine.submit(prompt, max_new_tokens=20) for prompt in prompts]
        assert [stream.finish(60).token_ids for stream in streams] == alone


def test_a_session_is_for_the_cache_that_wrote_it(tiny_llama_bundle, tmp_path):
    model, other = load(tiny_llama_bundle, cache_precision="int8"), load(tiny_llama_bundle)
    messages, files = [{"role": "user", "content": "Tell me a story about a dog and a little cat."}], []
    for each in (model, other):
        files.append(tmp_path / f"{len(files)}.session")
        each.chat(messages, max_new_tokens=40).finish()
        each.save_session(files[-1], messages)
    again = load(tiny_llama_bundle, cache_precision="int8")
    assert again.load_session(files[0]) == messages
    answer = again.chat(messages, max_new_tokens=8).finish()
    assert answer.cached_tokens == answer.prompt_tokens - 1
    assert answer.token_ids == model.chat(messages, max_new_tokens=8).finish().token_ids
    with pytest.raises(RequestError, match="a session of a cache in int8. Load the model with cache_precision."):
        other.load_session(files[0])
    with pytest.raises(RequestError, match="of the bundle's own cache. Load the model without cache_precision."):
        again.load_session(files[1])


def test_drafts_change_no_token(tiny_llama_mtp_bundle):
    model = load(tiny_llama_mtp_bundle, draft=tiny_llama_mtp_bundle, cache_precision="int8")
    assert model.draft.manifest.cache == load(tiny_llama_mtp_bundle).manifest.cache, "it keeps its own cache"
    written = []
    for draft in (model.draft, "mtp", None):
        model.use_draft(draft)
        written.append(model.generate("Once upon a time", max_new_tokens=40))
    assert written[0].token_ids == written[1].token_ids == written[2].token_ids
    assert [each.speculation is not None for each in written] == [True, True, False]


def test_layers_that_draft_have_it_too(make_model, tmp_path, monkeypatch):
    """Latent attention caches keys and values of different widths; drafts are those over floats where texts agree."""
    path = export_model(make_folder(make_model, "deepseek_v3"), tmp_path / "b", mtp=True, verify=None).path
    monkeypatch.setattr(DraftLength, "choose", lambda self, pending=0: 2)
    drafts, draft = {}, MultiTokenPrediction.draft

    def recorded(self, count):
        found = draft(self, count)
        drafts[key][tuple(self._text)] = found
        return found

    monkeypatch.setattr(MultiTokenPrediction, "draft", recorded)
    for key in (None, "int8"):
        drafts[key] = {}
        model, plain = (load(path, threads=1, draft=each, cache_precision=key) for each in ("mtp", None))
        for start in range(8):
            wanted = {"prompt": TOKENS[start : start + 12], "max_new_tokens": 6, "ignore_eos": True}
            assert model.generate(**wanted).token_ids == plain.generate(**wanted).token_ids
    both = drafts[None].keys() & drafts["int8"].keys()
    same = [drafts[None][text] == drafts["int8"][text] for text in both]
    assert len(same) >= 8 and np.mean(same) > 0.8
    assert verify(path, mode="quick", cache_precision="int8").passed


def test_models_that_see_and_hear_have_it_too(smolvlm_bundle, voxtral_bundle):
    """The graph that reads embeddings fills the cache, and the one that reads tokens goes on over it."""
    picture = np.random.default_rng(0).integers(0, 255, (24, 32, 3)).astype(np.uint8)
    sound = np.random.default_rng(0).standard_normal(16000).astype(np.float32)
    for bundle, prompt, media in (
        (smolvlm_bundle, "<image> What is this?", {"images": [picture]}),
        (voxtral_bundle, "[AUDIO] What was said?", {"sounds": [sound]}),
    ):
        options = {"max_new_tokens": 6, "logprobs": True, "ignore_eos": True} | media
        plain, rounded = (load(bundle, cache_precision=each).generate(prompt, **options) for each in (None, "int8"))
        first = [each.logprobs[0].logprob for each in (plain, rounded)]
        assert 0 < abs(first[0] - first[1]) < 0.1, bundle


def test_a_bundle_that_was_optimized_has_it_too(tiny_llama_bundle, tmp_path):
    folder = shutil.copytree(tiny_llama_bundle, tmp_path / "b")
    before = load(folder, cache_precision="int8").forward(TOKENS)
    assert CliRunner().invoke(cli, ["optimize", str(folder)]).exit_code == 0
    np.testing.assert_array_equal(load(folder, cache_precision="int8").forward(TOKENS), before)


def test_commands_pass_it_on(tiny_llama_bundle):
    run = CliRunner().invoke(cli, ["run", str(tiny_llama_bundle), "Once upon", "--cache-precision", "int8", "--json"])
    assert run.exit_code == 0, run.output
    models = open_models([tiny_llama_bundle], ServerOptions(cache_precision="int8"), "cpu")
    assert [each.model.manifest.has_scales_per_token for each in models.bases] == [True]
    models.close(drain=False)
    with pytest.raises(RequestError, match="cache_precision is 'int4'; it must be one of None, int8"):
        BatchOptions(cache_precision="int4")
    source = Source(str(tiny_llama_bundle), "cpu", 1, "int8")
    assert source.load().manifest.has_scales_per_token
    floats, integers = (Costs(each.manifest).decode(64, 1, 8).bytes for each in (load(source.bundle), source.load()))
    kept = load(source.bundle).manifest.cache
    assert floats - integers == 68 * (4 * kept.elements_per_token - kept.with_scales_per_token().elements_per_token)


def keys_for_values(graph, caches, content):
    """Layer 1 reads keys where its values should be, and values where its keys should be."""
    names = {
        f"past_key_values.1.{one}": f"past_key_values.1.{other}" for one, other in (("key", "value"), ("value", "key"))
    }
    model = onnx.load_from_string(graph_with_int8_cache(graph, caches, content))
    for node in model.graph.node:
        if node.op_type in PER_TOKEN_ATTENTION.values():
            node.input[:] = [names.get(each, each) for each in node.input]
    return model.SerializeToString()


def test_verification_runs_it_and_finds_faults(llama_folder, tmp_path, monkeypatch):
    folder = export_model(llama_folder, tmp_path / "b", precision="int4", verify=None).path
    plain, rounded = (verify(folder, mode="quick", cache_precision=each) for each in (None, "int8"))
    assert plain.passed and rounded.passed
    added = {check.name for check in rounded.checks} - {check.name for check in plain.checks}
    assert added and all(name.startswith("kernels ") and ", int8 cache, " in name for name in added)
    monkeypatch.setattr(int8_cache, "graph_with_int8_cache", keys_for_values)
    failures = {check.name for check in verify(folder, mode="quick", cache_precision="int8").failures()}
    assert failures and failures <= added


REFUSED = {
    "another precision": ({}, {"cache_precision": "int4"}, "cache_precision is 'int4' .str.; it must be int8, or None"),
    "no kernels": ({}, {"kernels": False}, "only edgeformer's own kernels .* kernels were not asked for"),
    "scales of its own": ({"cache_precision": "int8"}, {}, "was exported with an int8 cache, which has its own scales"),
    "ops that kernels lack": ({"ops": "standard"}, {}, "kernels do not compute .* which reads past_key_values.0.key"),
    "a file for phones": ({"deployment": "mobile"}, {}, "cannot be int8: it is no ONNX file of nodes alone"),
    "half precision": ({"precision": "fp16"}, {}, "kernels do not compute .* which reads past_key_values.0.key"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_where_it_cannot_be_the_reason_is_said(llama_folder, tmp_path, case):
    options, given, message = REFUSED[case]
    folder = export_model(llama_folder, tmp_path / "b", verify=None, **options).path
    with pytest.raises(RequestError, match=message):
        load(folder, "cpu", **({"cache_precision": "int8"} | given))


def test_kernels_that_lack_it_are_named(tiny_llama_bundle):
    older = KernelChoice(Library("/nowhere", "0.0.9", ("CachedAttention",), ("plain",), "plain"))
    with pytest.raises(RequestError, match="edgeformer-kernels 0.0.9 keeps no cache in int8. Install the version that"):
        with_int8_cache(tiny_llama_bundle, load(tiny_llama_bundle).manifest, "int8", older)


def test_other_tasks_have_no_such_cache(tiny_embed_bundle):
    for call in (load, verify):
        with pytest.raises(RequestError, match="cache_precision is for decoders, and .* for encoder"):
            call(tiny_embed_bundle, cache_precision="int8")


def test_the_graph_differs_in_the_cache_alone(family):
    model = load(family, cache_precision="int8")
    path = family / model.manifest.step_graphs[-1]
    before = onnx.load(path, load_external_data=False)
    after = onnx.load_from_string(graph_with_int8_cache(path, [model.manifest.cache]))
    changed = [
        (one.op_type, other.op_type)
        for one, other in zip(before.graph.node, after.graph.node, strict=True)
        if one != other and not (setattr(one, "op_type", other.op_type) or one != other)
    ]
    assert changed and all(PER_TOKEN_ATTENTION.get(one, other) == other for one, other in changed)
    assert [each.name for each in after.graph.input] == [each.name for each in before.graph.input]
    assert after.functions == before.functions and after.graph.initializer == before.graph.initializer


def test_windows_shared_caches_and_states_are_verified_over_it(family):
    report = verify(family, mode="quick", cache_precision="int8")
    assert report.passed, report.failures()


def test_what_sees_and_hears_is_verified_over_it(smolvlm_bundle, voxtral_bundle):
    for bundle in (smolvlm_bundle, voxtral_bundle):
        report = verify(bundle, mode="quick", cache_precision="int8")
        assert report.passed and any(", int8 cache, " in check.name for check in report.checks)
