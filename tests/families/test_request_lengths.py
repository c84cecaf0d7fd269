"""LongRoPE: the factors of rotary embeddings follow from how long a request may become, in one graph.

The other reader is transformers' module. It takes the long factors once the tokens that it reads pass the original
length; given them in the place of the short ones, it takes them for every text.
"""

import copy
import shutil
from dataclasses import replace

import numpy as np
import onnx
import pytest
import torch
import transformers
from onnx import numpy_helper
from rows import FAMILIES, VOCABULARY, fields_of
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from edgeformer.checkpoints.found_model import find_model
from edgeformer.config import EncoderConfig
from edgeformer.errors import ContextLengthError
from edgeformer.export import export_model, verify
from edgeformer.export.parity.verify import open_subject, verify_graph
from edgeformer.families import read_model_config
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.providers import CPU
from edgeformer.runtime import Engine, load
from edgeformer.runtime.steps.decode_graph import DecodeGraph
from edgeformer.runtime.steps.new_decoder import device_runner

ABOVE, CONTEXT = 128, 256
"""The original length of the models here, and their context."""
LENGTHS = (20, ABOVE - 1, ABOVE, ABOVE + 1, ABOVE + 30)
WAIT = 60
NEW = {"ignore_eos": True, "logprobs": True}
MODELS = ("llama", "phi3", "phimoe")
MULTIPLIERS = {"short_mscale": 1.2, "long_mscale": 1.4}


@pytest.fixture(scope="module")
def folders(make_model):
    """Return a function that makes a model; that of phimoe has two factors of cosines and sines."""
    made = {}

    def of(family):
        if family not in made:
            fields = copy.deepcopy(fields_of(family, "longrope"))
            fields["rope_parameters"]["original_max_position_embeddings"] = ABOVE
            fields |= {"max_position_embeddings": CONTEXT, "num_hidden_layers": 2}
            if family != "llama":
                fields["original_max_position_embeddings"] = ABOVE
            made[family] = make_model(family, seed=7, **fields)
        return made[family]

    return of


@pytest.fixture(scope="module")
def bundles(folders, tmp_path_factory):
    made = {}

    def of(family, **options):
        key = family, *options.items()
        if key not in made:
            place = tmp_path_factory.mktemp("bundles") / "-".join(map(str, [family, *options.values()]))
            made[key] = export_model(folders(family), place, verify=None, **options).path
        return made[key]

    return of


@pytest.fixture(scope="module")
def llama(bundles):
    return load(bundles("llama"))


def transformers_model(folder, *, always_long=False):
    """Return transformers' module in float64; always_long: as it reads long texts."""
    config = transformers.AutoConfig.from_pretrained(folder)
    if always_long:
        config.rope_parameters["short_factor"] = config.rope_parameters["long_factor"]
        if "short_mscale" in config.rope_parameters:
            config.rope_parameters["short_mscale"] = config.rope_parameters["long_mscale"]
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager"
    ).eval()
    if config.model_type == "phimoe":
        # transformers 5.23 reads long texts by the short factors; the model's own code reads them by the long ones.
        rotary = model.model.rotary_emb
        forward = type(rotary).forward

        def by_length(x, position_ids=None):
            length = int(position_ids.max()) + 1
            rotary.rope_init_fn = lambda config: ROPE_INIT_FUNCTIONS["longrope"](config, seq_len=length)
            return forward(rotary, x, position_ids)

        rotary.forward = by_length
    return model


def logits_of(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens]), use_cache=False).logits[0].numpy()


def greedy(model, prompt, count):
    """Return greedy tokens of a module that reads the whole text in every step."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(logits_of(model, tokens)[-1].argmax()))
    return tokens[len(prompt) :]


def error(actual, expected):
    return np.abs(actual - expected).max() / np.abs(expected).max()


def tokens_of(length, seed=0):
    return np.random.default_rng(seed).integers(3, VOCABULARY, length).tolist()


@pytest.mark.parametrize("family", MODELS)
def test_both_sides_of_the_border_are_those_of_transformers(folders, bundles, family):
    theirs, long, ours = (
        transformers_model(folders(family)),
        transformers_model(folders(family), always_long=True),
        load(bundles(family)),
    )
    assert (ours.manifest.short_context, ours.manifest.context_length) == (ABOVE, CONTEXT)
    found = {length: error(ours.forward(tokens_of(length)), logits_of(theirs, tokens_of(length))) for length in LENGTHS}
    assert max(found.values()) < 5e-6, found
    # Negative control: the other factors are seen, on the last token before the border, too.
    for length in LENGTHS[:3]:
        assert error(ours.forward(tokens_of(length)), logits_of(long, tokens_of(length))) > 1e-2


def test_a_request_across_the_border_has_long_factors_at_once(folders, llama):
    """transformers begins with the short ones, and reads all tokens again once they are too many."""
    prompt = tokens_of(ABOVE - 6)
    short, long = (transformers_model(folders("llama"), always_long=each) for each in (False, True))
    within = llama.generate(prompt, max_new_tokens=6, **NEW).token_ids
    across = llama.generate(prompt, max_new_tokens=12, **NEW).token_ids
    assert within == greedy(short, prompt, 6)
    assert across == greedy(long, prompt, 12)
    text = [*prompt, *across]
    assert across[6:] == [int(each.argmax()) for each in logits_of(short, text)[len(prompt) + 5 : -1]]
    assert within != across[:6], "the prompt tells the factors apart"


def test_rows_of_one_batch_have_factors_of_their_own(llama):
    prompts = [tokens_of(40, 1), tokens_of(ABOVE, 2), tokens_of(ABOVE - 8, 3), tokens_of(40, 4)]
    alone = [llama.generate(prompt, max_new_tokens=8, **NEW).token_ids for prompt in prompts]
    together = llama.generate(prompts, max_new_tokens=8, **NEW)
    assert [each.token_ids for each in together] == alone


def test_rows_of_an_engine_have_their_own_prefixes(llama):
    prompt = tokens_of(60, 5)
    requests = [(prompt, 8), (prompt, ABOVE), (prompt, 10), ([*prompt, 4, 5], ABOVE), ([*prompt, 6], 5)]
    alone = [llama.generate(text, max_new_tokens=new, **NEW) for text, new in requests]
    with Engine(llama, max_rows=3) as engine:
        streams = [engine.submit(text, max_new_tokens=new, **NEW) for text, new in requests]
        found = [stream.finish(WAIT) for stream in streams]
        again = [engine.submit(text, max_new_tokens=new, **NEW).finish(WAIT) for text, new in requests]
    for results in found, again:
        assert [each.token_ids for each in results] == [each.token_ids for each in alone]
    assert all(each.cached_tokens > 0 for each in again), "prefixes of both kinds are kept"


def test_prefixes_of_the_other_factors_would_be_seen(llama, monkeypatch):
    """Negative control of the test above."""
    monkeypatch.setattr(DecodeGraph, "kind_of", lambda self, adapter, request_length: "")
    prompt = tokens_of(60, 5)
    alone = llama.generate(prompt, max_new_tokens=ABOVE, **NEW)
    with Engine(llama, max_rows=1) as engine:
        engine.submit(prompt, max_new_tokens=8, **NEW).finish(WAIT)
        mixed = engine.submit(prompt, max_new_tokens=ABOVE, **NEW).finish(WAIT)
    assert mixed.cached_tokens > 0 and mixed.token_ids != alone.token_ids


def test_steps_on_a_device_follow_the_requests(llama):
    graph = DecodeGraph(llama.session, llama.manifest)
    rows, expected = device_runner(graph, 2, 200, CPU, None), []
    for row, length in enumerate((ABOVE, ABOVE + 1)):
        rows.expect(length, row)
        rows.prefill(row, tokens_of(20))
        alone = llama.new_decoder(1, length)
        alone.prefill(0, tokens_of(20))
        expected.append(alone.decode_one_token([7])[0].copy())
    np.testing.assert_allclose(rows.decode_one_token([7, 7]), expected, atol=1e-4)
    assert error(expected[0], expected[1]) > 1e-2
    for row in range(2):
        rows.cut(row, 20)
    rows.move(0, 1)
    np.testing.assert_allclose(rows.decode_one_token([7, 7]), [expected[0]] * 2, atol=1e-4)


FORMS = [{"ops": "standard"}, {"ops": "portable", "cache": "static"}, {"deployment": "web"}]


@pytest.mark.parametrize("options", FORMS, ids=str)
def test_graphs_of_every_form_pass(folders, bundles, options):
    bundle = bundles("llama", **options)
    report = verify(bundle, folders("llama"), mode="quick")
    assert report.passed, report.describe()
    if "deployment" in options:  # its weights are integers
        return
    theirs, ours = transformers_model(folders("llama")), load(bundle)
    for length in (ABOVE, ABOVE + 1):
        assert error(ours.forward(tokens_of(length)), logits_of(theirs, tokens_of(length))) < 5e-6


def test_other_clients_read_everything_by_the_long_factors(folders, bundles):
    """They need not know of the border, and no text of theirs is read by both."""
    import onnxruntime

    bundle = bundles("llama")
    options = onnxruntime.SessionOptions()
    session = onnxruntime.InferenceSession(bundle / Manifest.read(bundle).graph, options)
    assert "request_length" not in {each.name for each in session.get_inputs()}
    assert not session.get_overridable_initializers()
    tokens = np.array([tokens_of(30)])
    feeds = {each.name: np.zeros((1, each.shape[1], 0, each.shape[3]), np.float32) for each in session.get_inputs()[2:]}
    feeds |= {"input_ids": tokens, "attention_mask": np.ones_like(tokens)}
    assert f"Requests of up to {ABOVE} tokens" in (bundle / "README.md").read_text()
    long = transformers_model(folders("llama"), always_long=True)
    assert error(session.run(["logits"], feeds)[0][0], logits_of(long, tokens[0].tolist())) < 5e-6


def test_a_context_within_the_border_has_a_plain_graph(folders, tmp_path):
    bundle = export_model(folders("llama"), tmp_path / "b", verify=None, context_length=ABOVE).path
    graph = onnx.load(bundle / Manifest.read(bundle).graph, load_external_data=False).graph
    assert not {"request_length"} & {tensor.name for tensor in graph.initializer}
    assert not [node for node in graph.node if node.op_type == "RotaryEmbedding"]
    assert Manifest.read(bundle).short_context is None


@pytest.mark.parametrize("family", ["phi3", "minicpm3"])
def test_the_trial_runs_both_kinds_of_requests(make_model, tmp_path, family):
    folder = make_model(family, seed=1, **fields_of(family, "longrope"))
    result = export_model(folder, tmp_path / "b", verify="quick")
    runs = {check.name.split(":")[0] for check in result.report.checks}
    above = result.manifest.short_context
    for length in (above, above + 1):
        assert runs >= {f"{run} of {length}" for run in ("prefill, request", "steps, request", "end of a request")}
    assert "requests of both lengths" in runs


def initializer(graph, name):
    return next(tensor for tensor in graph.initializer if tensor.name == name)


def border(by):
    """Return a fault: the graph takes the long factors beyond another length."""

    def plant(graph, data):
        node = next(node for node in graph.node if node.op_type == "Greater" and "request_length" in node.input)
        graph.initializer.append(numpy_helper.from_array(np.array(ABOVE + by), "other_border"))
        node.input[1] = "other_border"

    return plant


def in_tables(change):
    """Return a fault: other numbers in the tables of cosines and sines [positions, pairs]."""

    def plant(graph, data):
        for name in ("rotary.0.cos", "rotary.0.sin"):
            tensor = initializer(graph, name)
            entries = {entry.key: entry.value for entry in tensor.external_data}
            start, shape = int(entries.get("offset", 0)), tuple(tensor.dims)
            table = np.frombuffer(data, np.float32, int(np.prod(shape)), start).reshape(shape).copy()
            change(table)
            data[start : start + table.nbytes] = table.tobytes()

    return plant


def other_multiplier(table):
    table[ABOVE:] *= MULTIPLIERS["short_mscale"] / MULTIPLIERS["long_mscale"]


def multiplier_for_short_requests(table):
    table[:ABOVE] *= MULTIPLIERS["long_mscale"] / MULTIPLIERS["short_mscale"]


def tables_exchanged(table):
    table[:ABOVE], table[ABOVE : 2 * ABOVE] = table[ABOVE : 2 * ABOVE].copy(), table[:ABOVE].copy()


def long_table_late(table):
    table[ABOVE + 1 :] = table[ABOVE:-1].copy()


def last_of_the_short_table(table):
    table[ABOVE - 1] = table[ABOVE]


FAULTS = {
    "border one too low": (border(-1), {f"prefill, request of {ABOVE}", "requests of both lengths"}),
    "border one too high": (border(1), {f"prefill, request of {ABOVE + 1}", "requests of both lengths"}),
    "the short multiplier for long requests": (in_tables(other_multiplier), {"prefill", "requests of both lengths"}),
    "the long multiplier for short requests": (
        in_tables(multiplier_for_short_requests), {f"steps, request of {ABOVE}", "requests of both lengths"},
    ),
    "tables exchanged": (in_tables(tables_exchanged), {"prefill", f"prefill, request of {ABOVE}"}),
    "the long table a row late": (in_tables(long_table_late), {"prefill", f"end of a request of {ABOVE + 1}"}),
    "the last row of the short table": (in_tables(last_of_the_short_table), {f"end of a request of {ABOVE}"}),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_table_is_refused(bundles, tmp_path, name):
    fault, runs = FAULTS[name]
    subject = open_subject(bundles("phimoe"))
    folder = shutil.copytree(bundles("phimoe"), tmp_path / "b")
    path = folder / subject.manifest.graph
    model = onnx.load(path, load_external_data=False)
    file = path.with_name("model.onnx_data")
    data = bytearray(file.read_bytes())
    fault(model.graph, data)
    path.write_bytes(model.SerializeToString())
    file.write_bytes(data)
    report = verify_graph(folder, subject.manifest, subject.model_spec, subject.weights)
    assert runs <= {check.name.split(":")[0] for check in report.failures()}


def test_only_decoders_of_text_follow_the_length(folders):
    _, config = read_model_config(find_model(str(folders("phi3"))).hf_config)
    assert config.short_context == ABOVE
    with pytest.raises(ContextLengthError, match=f"longer than {ABOVE} tokens.*--context-length {ABOVE} or less"):
        EncoderConfig.of_decoder(config)
    attention = config.attentions[0]
    scaling = attention.rotary.scaling
    other = replace(scaling, long=replace(scaling.long, above=64))
    block = replace(config.blocks[0], attention=replace(attention, rotary=replace(attention.rotary, scaling=other)))
    with pytest.raises(Exception, match="all with long factors above the same length"):
        replace(config, blocks=(block, *config.blocks[1:]))


def test_equal_factors_need_no_border():
    fields = fields_of("phi3", "longrope")
    parameters = fields["rope_parameters"]
    same = fields | {"rope_parameters": parameters | {"long_factor": parameters["short_factor"]}}
    config = read_model_config({"model_type": "phi3"} | FAMILIES["phi3"].sizes | same)[1]
    assert config.short_context is None
