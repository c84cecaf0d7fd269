"""A view for prompts beside a decoder's graph: what it is made of, when it is used, and what it computes."""

import json
import shutil

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from click.testing import CliRunner
from onnx import numpy_helper

from edgeformer.cli.main import cli
from edgeformer.errors import ExportError
from edgeformer.export import export_model, verify
from edgeformer.export import prefill_graph as prefill
from edgeformer.export.graph.outlining import inline_functions
from edgeformer.export.parity.verify import open_subject, verify_graph
from edgeformer.export.passes import PassReport
from edgeformer.export.prefill_graph import measure_crossover
from edgeformer.manifest.manifest import Manifest
from edgeformer.runtime import load

VIEW = "onnx/model_prefill.onnx"
FAMILIES = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    "gemma2": {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "sliding_window": 6, "max_position_embeddings": 64,
    },
    "cohere": {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 64, "logit_scale": 0.3,
    },
    "phi": {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "max_position_embeddings": 64,
    },
}  # fmt: skip
"""Tables of positions and a tied head; soft-caps and windows; a scale on the logits; a head with a bias."""
PROMPT = np.random.default_rng(0).integers(3, 130, 40).tolist()


@pytest.fixture(scope="module")
def crossover():
    """The view is used from 8 tokens on, whatever is measured here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edgeformer.export.prefill_graph.measure_crossover", lambda *arguments: 8)
        yield


@pytest.fixture(scope="module", params=["int4", "fp32"])
def bundle(request, crossover, llama_folder, tmp_path_factory):
    place = tmp_path_factory.mktemp("bundles") / request.param
    return export_model(llama_folder, place, precision=request.param, prefill="int8").path


def test_what_other_clients_read_is_the_same_without_it(bundle, llama_folder, tmp_path):
    precision = Manifest.read(bundle).plan.precision
    plain = export_model(llama_folder, tmp_path / "plain", precision=precision, verify=None).path
    for name in ("onnx/model.onnx", "onnx/model.onnx_data", "genai_config.json", "config.json"):
        assert (plain / name).read_bytes() == (bundle / name).read_bytes(), name
    assert Manifest.read(plain).prefill is None


def external(graph):
    """Where the weights of a graph are: (file, dtype, shape) by name."""
    return {
        tensor.name: (tensor.external_data[0].value, tensor.data_type, list(tensor.dims))
        for tensor in onnx.load(graph, load_external_data=False).graph.initializer
        if tensor.external_data
    }


def test_it_has_its_own_products_and_shares_the_rest(bundle):
    view, whole = external(bundle / VIEW), external(bundle / "onnx/model.onnx")
    own = {name for name, (file, *_) in view.items() if file == "model_prefill.onnx_data"}
    assert own == {name for name in view if ".by_output." in name}
    assert {name: place for name, place in view.items() if name not in own}.items() <= whole.items()
    integers = [(dtype, shape) for name, (_, dtype, shape) in view.items() if name in own and "integers" in name]
    # Of each of three layers: query, key and value in one, output, gate, up, down.
    assert len(integers) == 3 * 5
    assert {dtype for dtype, _ in integers} == {onnx.TensorProto.INT8}
    expected = sum(inputs * outputs + 4 * outputs for _, (inputs, outputs) in integers)
    assert expected <= (bundle / f"{VIEW}_data").stat().st_size <= expected + 4096 * len(own)


def test_it_declares_logits_of_one_token(bundle):
    logits = onnx.load(bundle / VIEW, load_external_data=False).graph.output[0]
    sizes = [each.dim_param or each.dim_value for each in logits.type.tensor_type.shape.dim]
    assert (logits.name, sizes) == ("logits", ["batch_size", 1, 131])


class Counted:
    """A session that notes how many tokens each run has."""

    def __init__(self, session, runs):
        self._session, self._runs = session, runs

    def __getattr__(self, name):
        return getattr(self._session, name)

    def io_binding(self):
        binding, runs = self._session.io_binding(), self._runs

        class Binding:
            _iobinding = binding._iobinding

            def __getattr__(self, name):
                return getattr(binding, name)

            def bind_input(self, name, *arguments):
                if name == "input_ids":
                    self.shape = arguments[3]
                binding.bind_input(name, *arguments)

        made = Binding()
        made.ran = lambda: runs.append(tuple(made.shape))
        return made

    def run_with_iobinding(self, binding):
        binding.ran()
        self._session.run_with_iobinding(binding)


def test_prompts_and_large_batches_run_over_it_and_steps_do_not(bundle):
    model, steps, prompts = load(bundle), [], []
    model.session = Counted(model.session, steps)
    model.prefill_session = type(model.prefill_session)(
        Counted(model.prefill_session.session, prompts), model.prefill_session.from_tokens
    )
    model.generate(PROMPT, max_new_tokens=3)
    assert (prompts, steps) == ([(1, 40)], [(1, 1)] * 2)
    steps.clear(), prompts.clear()
    model.generate(PROMPT[:7], max_new_tokens=2)
    assert (prompts, steps) == ([], [(1, 7), (1, 1)])
    steps.clear()
    model.generate([PROMPT[:3]] * 8, max_new_tokens=3)
    assert (prompts, steps) == ([(8, 1)] * 2, [(1, 3)] * 8)
    steps.clear(), prompts.clear()
    decoder = model.new_decoder(1, 40)
    decoder.prefill(0, PROMPT, chunk=18)
    assert (prompts, steps) == ([(1, 18)] * 2, [(1, 4)]), "a short rest of a prompt"
    steps.clear(), prompts.clear()
    assert model.forward(PROMPT).shape == (40, 131)
    assert (prompts, steps) == ([], [(1, 40)]), "logits of every token are the other graph's"


def test_a_plain_client_writes_the_same_text_over_the_two_graphs(bundle):
    graphs = [ort.InferenceSession(bundle / name) for name in (VIEW, "onnx/model.onnx")]
    names = [f"past_key_values.{layer}.{part}" for layer in range(3) for part in ("key", "value")]
    caches = dict.fromkeys(names, np.zeros((1, 2, 0, 16), np.float32))
    ids, text = np.array([PROMPT]), []
    for step in range(12):
        mask = np.ones((1, len(PROMPT) + step), np.int64)
        logits, *presents = graphs[min(step, 1)].run(None, {"input_ids": ids, "attention_mask": mask, **caches})
        caches = dict(zip(caches, presents, strict=True))
        text.append(int(logits[0, -1].argmax()))
        ids = np.array([text[-1:]])
    assert load(bundle).generate(PROMPT, max_new_tokens=12).token_ids == text


def test_its_logits_are_near_those_of_the_other_graph(bundle):
    model = load(bundle)
    whole, decoder = model.forward(PROMPT), model.new_decoder(1, 40)
    last = decoder.prefill(0, PROMPT)
    error = np.linalg.norm(last - whole[-1]) / np.linalg.norm(whole[-1])
    # Between two ways to round weights and activations.
    assert 1e-3 < error < (0.1 if model.manifest.plan.precision == "fp32" else 0.5)


def test_a_token_of_zeros_stays_a_number(bundle, tmp_path):
    shutil.copytree(bundle, tmp_path / "zeros")
    path = tmp_path / "zeros" / VIEW
    model = onnx.load(path, load_external_data=False)
    name = next(node.output[0] for node in model.graph.node if node.op_type in ("Gather", "GatherBlockQuantized"))
    for node in model.graph.node:
        for place, read in enumerate(node.input):
            if read == name:
                node.input[place] = "zeros"
    model.graph.initializer.append(numpy_helper.from_array(np.float32(0), "zero"))
    first = next(index for index, node in enumerate(model.graph.node) if name in node.output)
    model.graph.node.insert(first + 1, onnx.helper.make_node("Mul", [name, "zero"], ["zeros"]))
    path.write_bytes(model.SerializeToString())
    session = ort.InferenceSession(path)
    feeds = {"input_ids": np.array([[5, 6]]), "attention_mask": np.ones((1, 2), np.int64)}
    feeds |= {each.name: np.zeros((1, 2, 0, 16), np.float32) for each in session.get_inputs()[2:]}
    assert all(np.isfinite(output).all() for output in session.run(None, feeds))


@pytest.mark.parametrize("family", FAMILIES)
def test_heads_of_every_kind_are_cut(make_model, crossover, tmp_path, family):
    folder = make_model(family, 3, vocab_size=131, bos_token_id=1, eos_token_id=2, **FAMILIES[family])
    result = export_model(folder, tmp_path / "bundle", precision="int8", prefill="int8")
    [cut] = (done for done in result.graphs[VIEW].passes if done.name == "last_token")
    assert {"head/MatMul", "blocks.1.attention.output/MatMul"} < set(cut.places)
    assert not any(place.startswith("blocks.0.") for place in cut.places)
    assert any(check.name.startswith("prefill graph, prompts") for check in result.report.checks)
    manifest = Manifest.read(tmp_path / "bundle")
    assert "windowed" not in manifest.graphs, "both graphs run over the same caches, which are whole"
    load(tmp_path / "bundle").generate(PROMPT[:20], max_new_tokens=8)


def test_logits_that_are_no_product_cannot_have_it(make_model, crossover, tmp_path, monkeypatch):
    def found_none(graph):
        report = PassReport("last_token")
        report.miss(graph.graph.outputs[0].producer(), "no product with a weight makes the logits")
        return report

    monkeypatch.setattr(prefill, "last_token", found_none)
    folder = make_model("gpt2", 3, vocab_size=131, bos_token_id=1, eos_token_id=2, **FAMILIES["gpt2"])
    with pytest.raises(ExportError, match="no prefill graph: .*: no product .* makes the logits. Leave prefill out"):
        export_model(folder, tmp_path / "bundle", precision="int8", prefill="int8")
    assert not any(tmp_path.glob("bundle*"))


def scales_of_another_column(model):
    for tensor in model.graph.initializer:
        if tensor.name.endswith("down.weight.by_output.scales"):
            tensor.external_data[1].value = str(int(tensor.external_data[1].value) + 4)


def cut_at(model, start, end):
    """What the last projection reads of attention."""
    node = next(node for node in model.graph.node if node.op_type == "Slice" and "/last/" in node.name)
    for place, value in ((1, start), (2, end)):
        node.input[place] = f"planted_{place}"
        model.graph.initializer.append(numpy_helper.from_array(np.array([value]), node.input[place]))


def first_token(model):
    cut_at(model, 0, 1)


def no_token(model):
    """Which onnxruntime does not even run."""
    cut_at(model, -1, -1)


def zero_point(model):
    for node in model.graph.node:
        if node.op_type == "MatMulIntegerToFloat":
            del node.input[4:]


def layers_exchanged(model):
    names = [f"blocks.{layer}.attention.output.weight.by_output.integers" for layer in (0, 1)]
    for node in model.graph.node:
        for place, read in enumerate(node.input):
            if read in names:
                node.input[place] = names[1 - names.index(read)]


@pytest.mark.parametrize("fault", [scales_of_another_column, first_token, no_token, zero_point, layers_exchanged])
def test_faults_in_it_are_found(bundle, llama_folder, tmp_path, fault):
    subject = open_subject(bundle, llama_folder)
    shutil.copytree(bundle, tmp_path / "faulty")
    path = tmp_path / "faulty" / VIEW
    model = inline_functions(onnx.load(path, load_external_data=False))
    before = model.SerializeToString()
    fault(model)
    assert model.SerializeToString() != before
    path.write_bytes(model.SerializeToString())
    report = verify_graph(tmp_path / "faulty", subject.manifest, subject.model_spec, subject.weights)
    failed = {check.name for check in report.failures()}
    assert failed
    assert all(name.startswith("prefill graph, ") for name in failed)


def test_a_clean_bundle_passes_against_its_checkpoint(bundle, llama_folder):
    report = verify(bundle, llama_folder, mode="quick")
    assert report.passed, report.describe()
    assert "prefill graph, weights: block error" in {check.name for check in report.checks}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ops": "standard"}, "made of onnxruntime's ops for the CPU"),
        ({"provider": "cuda", "precision": "fp16"}, "made of onnxruntime's ops for the CPU"),
        ({"prefill": "int2"}, "prefill is 'int2'; it must be one of int8, none, or None"),
    ],
)
def test_what_cannot_be_is_refused(llama_folder, tmp_path, options, message):
    with pytest.raises(ExportError, match=message):
        export_model(llama_folder, tmp_path / "bundle", verify=None, **{"prefill": "int8", **options})
    assert not any(tmp_path.iterdir())


def test_encoder_decoders_have_none(make_model, tmp_path):
    folder = make_model(
        "t5", 1, auto="AutoModelForSeq2SeqLM", vocab_size=97, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=4
    )
    with pytest.raises(ExportError, match="a prefill graph is for decoders, and this model has an encoder"):
        export_model(folder, tmp_path / "bundle", prefill="int8", verify=None)


@pytest.mark.parametrize(
    ("slower_until", "found"), [(0, 1), (3, 4), (16, 32), (1000, 128)], ids=["always", "some", "many", "never"]
)
def test_the_crossover_is_where_the_view_becomes_faster(monkeypatch, slower_until, found):
    clock = [0.0]
    monkeypatch.setattr(prefill.time, "perf_counter", lambda: clock[0])

    def timed(path, geometry):
        def run(tokens):
            slow = tokens <= slower_until
            clock[0] += tokens if path == "graph" else (2 * tokens if slow else tokens / 2)

        return run

    monkeypatch.setattr(prefill, "_run", timed)
    assert measure_crossover("graph", "view", None) == found


def test_the_command_makes_it_and_says_so(crossover, llama_folder, tmp_path):
    place = str(tmp_path / "bundle")
    line = ["export", "--model", str(llama_folder), "-o", place, "--precision", "int4", "--prefill", "int8"]
    done = CliRunner().invoke(cli, [*line, "--no-verify"])
    assert done.exit_code == 0, done.output
    assert "prefill from 8 tokens: model_prefill.onnx" in done.output
    stored = json.loads((tmp_path / "bundle" / "edgeformer.json").read_text())
    assert (stored["graphs"]["prefill"]["file"], stored["graphs"]["prefill"]["from_tokens"]) == (VIEW, 8)
