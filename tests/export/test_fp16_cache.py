"""A float16 cache of a float32 graph: who gets it, what the graph is made of, and that faults of it are found."""

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime as ort
import onnxruntime_genai as og
import pytest
from faulty_graph import cast_through_bfloat16, faulty
from onnx import TensorProto
from test_int8_cache import FAMILIES, PROMPT

from edgeformer.checkpoints.source import open_source
from edgeformer.errors import ExportError
from edgeformer.export import ExportOptions, export_model
from edgeformer.export.parity.block_products import BlockProducts
from edgeformer.export.parity.feeding import Graph
from edgeformer.export.parity.trials.half_cache import judge_half_cache, open_float_products
from edgeformer.export.parity.verify import open_subject, verify_graph
from edgeformer.export.plan import make_plan
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.providers import CPU
from edgeformer.runtime import load

NUMBERS, LOGITS = "fp16 cache, numbers: differing", "fp16 cache, logits: differing"


@pytest.fixture(scope="module")
def bundle(llama_folder, tmp_path_factory):
    place = tmp_path_factory.mktemp("bundles") / "llama"
    return export_model(llama_folder, place, precision="int4", cache_precision="fp16", verify=None).path


def keys_for_values(graph):
    """One layer reads the keys of the past as values."""
    node = [each for each in graph.node if each.op_type == "GroupQueryAttention"][1]
    node.input[4] = node.input[3]


@pytest.mark.parametrize(
    ("model", "options", "expected"),
    [
        ("tiny-llama", {"deployment": "server"}, "fp16"),
        ("tiny-llama", {"deployment": "desktop", "precision": "int8"}, "fp16"),
        ("tiny-llama", {"deployment": "desktop", "precision": "fp32"}, None),
        ("tiny-llama", {"deployment": "desktop", "cache_precision": "fp32"}, None),
        ("tiny-llama", {"deployment": "desktop", "cache_precision": "int8"}, "int8"),
        ("tiny-llama", {"deployment": "server", "provider": "cuda"}, None),
        ("tiny-llama", {"deployment": "server", "ops": "standard"}, None),
        ("tiny-llama", {"deployment": "server", "adapters": {"a": "b"}}, None),
        ("tiny-llama", {"deployment": "web"}, None),
        ("tiny-llama", {"deployment": "mobile"}, None),
        ("tiny-llama", {"precision": "int4"}, None),
        ("tiny-llama", {"precision": "int4", "cache_precision": "fp16"}, "fp16"),
        ("tiny-llama", {"precision": "fp16", "cache_precision": "fp16"}, None),
        ("tiny-translate", {"deployment": "server"}, None),
        ("tiny-embed", {"deployment": "server"}, None),
    ],
)
def test_who_gets_it(model, options, expected):
    plan = make_plan(ExportOptions(**options), open_source(model).config)
    assert plan.cache_precision == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache_precision": "fp16"}, "is for int4 and int8 weights on the CPU"),
        ({"cache_precision": "fp16", "precision": "int4", "provider": "webgpu"}, "on the CPU"),
        ({"cache_precision": "fp32", "precision": "fp16", "provider": "cuda"}, "computes in fp16"),
        ({"cache_precision": "fp16", "precision": "int4", "adapters": {"a": "b"}}, "no check runs adapters"),
    ],
)  # fmt: skip
def test_what_it_is_refused_for(options, message):
    with pytest.raises(ExportError, match=message):
        make_plan(ExportOptions(**options), open_source("tiny-llama").config)


@pytest.mark.parametrize("family", ["gemma2", "phi"])
def test_it_is_at_parity_over_every_kind_of_attention(make_model, tmp_path, family):
    folder = make_model(family, 3, vocab_size=131, bos_token_id=1, eos_token_id=2, **FAMILIES[family])
    result = export_model(folder, tmp_path / "bundle", precision="int4", cache_precision="fp16")
    assert {NUMBERS, LOGITS} <= {check.name for check in result.report.checks}
    for file in result.manifest.graph_files:
        graph = onnx.load(tmp_path / "bundle" / file, load_external_data=False).graph
        declared = [value for value in (*graph.input, *graph.output) if value.name.startswith(("past", "present"))]
        assert {value.type.tensor_type.elem_type for value in declared} == {TensorProto.FLOAT16}
    assert ("windowed" in result.manifest.graphs) == (family == "gemma2")


def test_a_wrong_node_is_found(bundle, llama_folder, tmp_path):
    subject = open_subject(bundle, llama_folder)
    place = faulty(bundle, tmp_path / "faulty", keys_for_values)
    report = verify_graph(place, subject.manifest, subject.model_spec, subject.weights)
    assert "chunks: max error" in {check.name for check in report.failures()}


def test_another_rounding_is_found(bundle, tmp_path):
    """Which the trial over a float32 cache cannot see."""
    manifest, name = Manifest.read(bundle), "onnx/model.onnx"
    place = faulty(bundle, tmp_path / "faulty", cast_through_bfloat16)
    wide, right, wrong = (
        Graph(open_float_products(folder / name, manifest, CPU, BlockProducts(), widened=widened), manifest, CPU)
        for folder, widened in ((bundle, True), (bundle, False), (place, False))
    )
    wide = replace(wide, manifest=replace(manifest, plan=replace(manifest.plan, cache_precision=None)))
    passed = [{check.name: check.passed for check in judge_half_cache(half, wide)} for half in (right, wrong)]
    numbers, logits = "numbers: differing", "logits: differing"
    assert passed == [{numbers: True, logits: True}, {numbers: False, logits: True}]


def test_plain_onnxruntime_writes_the_same_text(bundle):
    """Over a dynamic cache, of which a present is longer than its past."""
    ours = load(bundle).generate(PROMPT, max_new_tokens=12).token_ids
    session = ort.InferenceSession(bundle / "onnx/model.onnx")
    names = [f"past_key_values.{layer}.{part}" for layer in range(3) for part in ("key", "value")]
    past = dict.fromkeys(names, np.zeros((1, 2, 0, 16), np.float16))
    ids, text = np.array([PROMPT]), []
    for step in range(12):
        mask = np.ones((1, len(PROMPT) + step), np.int64)
        logits, *presents = session.run(None, {"input_ids": ids, "attention_mask": mask, **past})
        past = dict(zip(past, presents, strict=True))
        text.append(int(logits[0, -1].argmax()))
        ids = np.array([text[-1:]])
    assert text == ours


def test_the_runtime_keeps_half_of_the_bytes(bundle):
    model = load(bundle)
    cache = model.new_decoder(2, 40).cache
    assert cache.bytes == 2 * (2 * 3 * 2 * 2 * 40 * 16)
    assert {part.dtype for layer in cache.read(3) for part in layer} == {np.dtype(np.float16)}
    plain, drafted = (model.generate(PROMPT, max_new_tokens=12, prompt_lookup_num_tokens=n).token_ids for n in (0, 4))
    assert drafted == plain


def test_genai_writes_the_same_text(bundle):
    """Over one buffer in place, which the function's body casts as a whole."""
    ours = load(bundle).generate(PROMPT, max_new_tokens=12).token_ids
    parameters = og.GeneratorParams(model := og.Model(str(bundle)))
    parameters.set_search_options(max_length=len(PROMPT) + 12, min_length=len(PROMPT) + 12, do_sample=False)
    generator = og.Generator(model, parameters)
    generator.append_tokens(np.array([PROMPT], np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    assert list(generator.get_sequence(0)[len(PROMPT) :]) == ours
