"""`verify` judges graphs of every op set, form of a cache and kind of model, and finds what is wrong with them."""

import shutil

import onnx
import pytest
from onnx import helper
from slow_rows import slow_unless

from edgeformer.export import export_model, verify
from edgeformer.export.parity.verify import open_subject, verify_graph

FORMS = [(ops, cache) for ops in ("standard", "portable") for cache in ("dynamic", "static")]
T5 = {
    "vocab_size": 97, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4,
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 16, "decoder_start_token_id": 0,
}  # fmt: skip
LEARNED = {"vocab_size": 97, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}

EVERYWHERE = {"decode", "prefill", "steps", "chunks", "batch of 3"}


@pytest.fixture(scope="module")
def bundle(make_model, make_llama, tmp_path_factory):
    """Return a function that gives a family's bundle in an op set and a form of cache; each is exported once."""
    folders, bundles = {}, {}
    makers = {
        "llama": lambda: make_llama(num_hidden_layers=2, max_position_embeddings=300),
        "gpt2": lambda: make_model("gpt2", 1, bos_token_id=1, eos_token_id=2, **LEARNED),
        "t5": lambda: make_model("t5", 1, auto="AutoModelForSeq2SeqLM", **T5),
    }

    def get(family, ops, cache, precision="fp32"):
        key = family, ops, cache, precision
        if key not in bundles:
            if family not in folders:
                folders[family] = makers[family]()
            place = tmp_path_factory.mktemp("bundles") / "-".join(key)
            length = {"context_length": 64} if family == "t5" else {}
            result = export_model(
                folders[family], place, ops=ops, cache=cache, precision=precision, verify=None, **length
            )
            bundles[key] = result.path
        return bundles[key]

    return get


def runs_of(checks):
    return {check.name.split(":")[0] for check in checks}


RIGHT = [(family, form) for family in ("llama", "gpt2", "t5") for form in FORMS]


@pytest.mark.parametrize(
    ("family", "form"), slow_unless([row for row in RIGHT if row[0] == "t5" or row[1] == FORMS[0]], RIGHT), ids=str
)
def test_a_right_graph_passes(bundle, family, form):
    report = verify(bundle(family, *form), mode="quick")
    assert report.passed, report.describe()
    names = runs_of(report.checks)
    assert names >= EVERYWHERE | {"batch of 3 against solo", "repeat"}
    left = {"batch of 3, padded on the left", "batch of 3, padded on the left against solo", "left padding"}
    assert names & {*left, "unused cache"} == (left if form[1] == "dynamic" else {"unused cache"})


@pytest.mark.parametrize("ops", ["standard", "portable"])
def test_a_full_verification_reaches_the_end_of_the_context(bundle, ops):
    report = verify(bundle("llama", ops, "dynamic"), mode="full")
    assert report.passed, report.describe()
    assert runs_of(report.checks) >= {"batch of 8", "batch of 8, padded on the left", "far"}
    assert "batch of 1, padded on the left" not in runs_of(report.checks)


@pytest.mark.parametrize("form", FORMS, ids="-".join)
def test_a_graph_of_half_precision_passes(bundle, form):
    report = verify(bundle("llama", *form, "fp16"), mode="quick")
    assert report.passed, report.describe()


def failures(clean, folder, fault):
    """Runs that fail once a fault is planted in a copy of a bundle."""
    subject = open_subject(clean)
    shutil.copytree(clean, folder)
    path = folder / subject.manifest.graph
    model = onnx.load(path, load_external_data=False)
    fault(model.graph)
    path.write_bytes(model.SerializeToString())
    return runs_of(verify_graph(folder, subject.manifest, subject.model_spec, subject.weights).failures())


def values_of_another_layer(graph):
    """The second layer reads the values that the first one kept."""
    wrong = "past_key_values.1.value"
    reads = [(node, place) for node in graph.node for place, name in enumerate(node.input) if name == wrong]
    assert reads
    for node, place in reads:
        node.input[place] = "past_key_values.0.value"


@pytest.mark.parametrize("form", FORMS, ids="-".join)
def test_a_graph_that_reads_another_layers_cache_is_found(bundle, tmp_path, form):
    found = failures(bundle("llama", *form), tmp_path / "faulty", values_of_another_layer)
    assert found >= {"decode", "steps", "chunks", "batch of 3"}
    assert "prefill" not in found or form[1] == "static", "without a past there is nothing to mistake"


def padding_seen(graph):
    """Queries see all slots in front of them, whatever the mask says."""
    changed = [node for node in graph.node if node.op_type == "And"]
    assert changed
    for node in changed:
        node.input[1] = node.input[0]


def positions_by_slot(graph):
    """Tokens are counted from the first slot, padding or not."""
    count = next(node for node in graph.node if node.op_type == "CumSum")
    ones = [
        helper.make_node("Equal", [count.input[0], count.input[0]], ["planted_true"]),
        helper.make_node("Cast", ["planted_true"], ["planted_ones"], to=onnx.TensorProto.INT64),
    ]
    count.input[0] = "planted_ones"
    for place, node in enumerate(ones):
        graph.node.insert(place, node)


LEFT = {"batch of 3, padded on the left", "batch of 3, padded on the left against solo"}


@pytest.mark.parametrize("ops", ["standard", "portable"])
def test_padding_that_is_read_is_found(bundle, tmp_path, ops):
    found = failures(bundle("gpt2", ops, "dynamic"), tmp_path / "seen", padding_seen)
    assert found >= {"left padding", *LEFT}
    assert not found & {"prefill", "steps", "chunks", "repeat"}, "where there is no padding nothing is wrong"


@pytest.mark.parametrize("ops", ["standard", "portable"])
def test_padding_that_is_counted_is_found(bundle, tmp_path, ops):
    found = failures(bundle("gpt2", ops, "dynamic"), tmp_path / "counted", positions_by_slot)
    assert found >= LEFT
    assert not found & {"prefill", "steps", "chunks", "repeat"}


def one_slot_too_many(graph):
    """Queries see one slot behind their own, and no op hides what is behind a row's tokens."""
    graph.initializer.append(helper.make_tensor("planted", onnx.TensorProto.INT64, [], [-1]))
    compared = [node for node in graph.node if node.op_type == "GreaterOrEqual"]
    attention = [node for node in graph.node if node.op_type == "Attention"]
    assert compared and attention
    for node in compared:
        node.input[1] = "planted"
    for node in attention:
        del node.input[4:]


def test_a_slot_without_a_token_is_found_when_it_is_read(bundle, tmp_path):
    found = failures(bundle("llama", "standard", "static"), tmp_path / "faulty", one_slot_too_many)
    assert found >= {"prefill", "steps", "chunks", "unused cache"}
