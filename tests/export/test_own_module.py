"""A module of the user: the example of the documentation exported word for word, and every way to break the contract.

The module of most tests here is the documentation's own, so that what people copy is what is tested.
"""

import copy
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime_genai as og
import pytest
import torch
from click.testing import CliRunner
from slow_rows import slow_after
from torch import nn

from edgeformer import ops
from edgeformer.cli.main import cli
from edgeformer.errors import BundleError, ExportError, ParityError
from edgeformer.export import export_module, verify, verify_module
from edgeformer.export.importers.own_module import ModuleWeights, module_spec
from edgeformer.export.parity import judge, tolerances
from edgeformer.export.parity.locate.locator import describe, locate
from edgeformer.manifest.manifest import Manifest
from edgeformer.runtime import load

ROOT = Path(__file__).parent.parent.parent
SIZES = {"vocab_size": 300, "context_length": 512, "num_layers": 2, "num_kv_heads": 2, "head_dim": 16}


def documentation() -> str:
    """The example: the first block of code of docs/tutorials/your-own-module.md."""
    text = (ROOT / "docs" / "tutorials" / "your-own-module.md").read_text(encoding="utf-8")
    return re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """What the example defines, after it has run, and the folder that it ran in."""
    folder = tmp_path_factory.mktemp("example")
    names = {"__name__": "example"}
    torch.manual_seed(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        exec(documentation(), names)
    return names, folder


@pytest.fixture(scope="module")
def decoder(example):
    """The class of the example."""
    return example[0]["Decoder"]


@pytest.fixture
def module(decoder):
    torch.manual_seed(1)
    return decoder()


@pytest.fixture(scope="module")
def exported(decoder, tmp_path_factory):
    """Bundles of one module in both precisions, by precision, and the module."""
    torch.manual_seed(1)
    module = decoder()
    with torch.no_grad():
        module.embedding.weight.mul_(0.05)  # or the tied head would repeat the last token for ever
    folder = tmp_path_factory.mktemp("exported")
    results = {
        precision: export_module(module, folder / precision, precision=precision, eos=(2, 299), bos=1, **SIZES)
        for precision in ("fp32", "fp16")
    }
    return results, module


def eager_greedy(module: nn.Module, prompt: list[int], steps: int) -> list[int]:
    """Greedy tokens by the module alone, the whole text again for every token."""
    tokens = list(prompt)
    with torch.no_grad():
        for _ in range(steps):
            empty = torch.zeros(1, SIZES["num_kv_heads"], 0, SIZES["head_dim"])
            ids = torch.tensor([tokens])
            logits, _ = module(ids, torch.ones_like(ids), [(empty, empty)] * SIZES["num_layers"])
            tokens.append(int(logits[0, -1].argmax()))
    return tokens[len(prompt) :]


def test_the_documented_example_makes_a_verified_bundle(example):
    assert documentation().count("\n") < 60
    manifest = Manifest.read(example[1] / "own-bundle")
    assert manifest.certifies(example[1] / "own-bundle")
    assert (manifest.name, manifest.provenance.source) == ("own-bundle", "module Decoder")
    assert (manifest.model, manifest.provenance.backend, manifest.tokens.eos) == (None, None, (2,))


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_module_is_at_parity_in_both_precisions(exported, precision):
    results, module = exported
    result = results[precision]
    assert result.report is not None
    assert result.report.passed
    assert result.report.hashes == result.manifest.graph_hashes()
    assert result.lowered.fallbacks == []
    report = verify_module(result.path, module)
    assert report.passed, report.describe()
    assert {"far", "batch of 8"} <= {check.name.split(":")[0] for check in report.checks}
    assert report.reference == "float64 PyTorch, module Decoder"


@pytest.mark.parametrize(
    ("target", "precision", "files"),
    slow_after(
        1,
        [
            ("mobile", "int4", {"onnx/model.ort"}),
            ("desktop", "int4", {"onnx/model.onnx"}),
            ("web", "int8", {"onnx/model.onnx"}),
        ],
    ),
)
def test_a_module_is_exported_for_a_target(module, tmp_path, target, precision, files):
    result = export_module(module, tmp_path / "bundle", deployment=target, **SIZES)

    assert result.report is not None and result.report.passed
    assert (result.manifest.plan.deployment, result.manifest.plan.precision) == (target, precision)
    assert {name for name in result.manifest.files if name.endswith((".onnx", ".ort"))} == files
    assert verify_module(tmp_path / "bundle", module, mode="quick").passed
    assert load(tmp_path / "bundle").generate([5, 7, 9], max_new_tokens=8).token_ids


def test_the_runtime_writes_what_the_module_writes(exported):
    results, module = exported
    model = load(results["fp32"].path)
    prompt = [5, 200, 31, 7, 7, 90]
    generated = model.generate(prompt, max_new_tokens=24).token_ids
    expected = eager_greedy(module, prompt, 24)
    assert len(set(expected)) > 1
    assert generated == expected[: len(generated)]
    assert model.generate([prompt, [9]], max_new_tokens=4)[0].token_ids == generated[:4]


def test_genai_takes_the_bundle_of_a_module(exported):
    path = exported[0]["fp32"].path
    params = og.GeneratorParams(og.Model(str(path)))
    params.set_search_options(max_length=14, min_length=14, do_sample=False)
    generator = og.Generator(og.Model(str(path)), params)
    prompt = [5, 200, 31, 7, 7, 90]
    generator.append_tokens(np.array([prompt], np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    expected = eager_greedy(exported[1], prompt, 8)
    assert not {2, 299}.intersection(expected)  # with min_length it bans the end of text
    assert list(generator.get_sequence(0)) == [*prompt, *expected]


def test_a_tied_weight_is_stored_once(exported):
    result, module = exported[0]["fp32"], exported[1]
    data = (result.path / "onnx" / "model.onnx_data").stat().st_size
    assert [name for name, stored in result.manifest.weights.items() if "embedding" in str(stored)] == [
        "embedding.weight"
    ]
    tensors = sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))
    assert tensors <= data < tensors + 300 * 64 * 4 / 2


def test_an_export_leaves_the_module_as_it_was(module, tmp_path):
    module.train()
    before = {name: (id(tensor), tensor.clone()) for name, tensor in module.named_parameters()}
    export_module(module, tmp_path / "bundle", precision="fp16", verify=None, **SIZES)
    assert module.training
    for name, tensor in module.named_parameters():
        assert (id(tensor), tensor.dtype, tensor.requires_grad) == (before[name][0], torch.float32, True)
        assert torch.equal(tensor, before[name][1])


def test_weights_of_another_float_type_are_taken(module, tmp_path):
    half = module.bfloat16()
    path = export_module(half, tmp_path / "bundle", verify=None, **SIZES).path
    report = verify_module(path, copy.deepcopy(half).float(), mode="quick")
    assert report.passed, report.describe()


def test_another_module_is_not_at_parity_with_the_bundle(exported):
    """Negative control: one weight of a thousand parts changed."""
    results, module = exported
    other = copy.deepcopy(module)
    with torch.no_grad():
        other.blocks[1].output.weight.mul_(1.001)
    report = verify_module(results["fp32"].path, other, mode="quick")
    assert not report.passed
    assert {"prefill", "decode", "steps", "chunks", "batch of 3"} <= {
        check.name.split(":")[0] for check in report.failures()
    }


def test_a_graph_that_fails_the_gate_leaves_nothing(module, tmp_path, monkeypatch):
    impossible = replace(tolerances.LIMITS["median ratio"], floor={"fp32": 0.0, "fp16": 0.0})
    monkeypatch.setitem(tolerances.LIMITS, "median ratio", impossible)
    monkeypatch.setattr(judge, "RATIOS", ())
    with pytest.raises(
        ParityError, match=r"(?s)FAIL decode: median.*report it with the model's code\. .* verify=None\."
    ):
        export_module(module, tmp_path / "bundle", **SIZES)
    assert list(tmp_path.iterdir()) == []


def test_a_fault_in_the_graph_of_a_module_is_located(exported, tmp_path):
    results, module = exported
    result = results["fp32"]
    model_spec, weights = module_spec(module, result.manifest), ModuleWeights(module)
    clean = locate(result.path, result.manifest, model_spec, weights)
    assert clean.first is None, describe(clean)
    assert {"embedding", "blocks.0", "blocks.1"} <= set(clean.graphs[0].blocks)

    (tmp_path / "onnx").mkdir()
    for name in ("model.onnx", "model.onnx_data"):
        (tmp_path / "onnx" / name).write_bytes((result.path / "onnx" / name).read_bytes())
    graph = onnx.load(tmp_path / "onnx/model.onnx", load_external_data=False)
    node = next(node for node in graph.graph.node if node.name == "blocks.1/GroupQueryAttention")
    next(each for each in node.attribute if each.name == "scale").f *= 1.01
    (tmp_path / "onnx/model.onnx").write_bytes(graph.SerializeToString())
    found = locate(tmp_path, result.manifest, model_spec, weights)
    assert found.first is not None
    assert (found.first.node, found.first.block) == ("blocks.1/GroupQueryAttention", "blocks.1")
    assert "has scale 1.01 where a fresh lowering has 1" in describe(found)


@pytest.mark.parametrize("against", [None, "tiny-llama"])
def test_verify_says_that_a_bundle_has_no_code(exported, against):
    path = exported[0]["fp32"].path
    message = (
        f"{path} was exported from a module of your own (module Decoder), and a bundle holds no code. Verify it in "
        f"Python, where the module is: edgeformer.export.verify_module({str(path)!r}, module)"
    )
    with pytest.raises(BundleError, match=f"^{re.escape(message)}$"):
        verify(path, against)


def test_a_changed_file_is_found_before_the_module_runs(exported, tmp_path):
    folder = tmp_path / "bundle"
    for path in exported[0]["fp32"].path.rglob("*"):
        if path.is_file():
            (folder / path.relative_to(exported[0]["fp32"].path)).parent.mkdir(parents=True, exist_ok=True)
            (folder / path.relative_to(exported[0]["fp32"].path)).write_bytes(path.read_bytes())
    data = folder / "onnx" / "model.onnx_data"
    data.write_bytes(data.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(BundleError, match=r"model\.onnx_data was changed after the export"):
        verify_module(folder, exported[1])


def test_info_tells_what_a_bundle_without_a_config_knows(exported):
    path = exported[0]["fp16"].path
    data = json.loads(CliRunner().invoke(cli, ["info", str(path), "--json"]).stdout)
    assert (data["layers"], data["num_kv_heads"], data["head_dim"]) == (2, 2, 16)
    assert (data["vocab_size"], data["context_length"]) == (300, 512)
    assert data["cache_bytes_per_token"] == 2 * 2 * 2 * 16 * 2
    assert data["total_bytes"] == data["files"]["onnx/model.onnx_data"]
    shown = CliRunner().invoke(cli, ["info", str(path)])
    assert shown.exit_code == 0
    assert "module Decoder: 2 layers, 2 kv heads of 16, vocabulary 300" in shown.stdout


def test_the_card_and_the_files_of_a_bundle_without_a_config(exported):
    path = exported[0]["fp32"].path
    card = (path / "README.md").read_text(encoding="utf-8")
    assert "| key-value heads / head size | 2 / 16 |" in card
    assert "| cache | 512 bytes a token |" in card
    assert not (path / "config.json").exists()
    genai = json.loads((path / "genai_config.json").read_text())["model"]
    assert (genai["bos_token_id"], genai["eos_token_id"], genai["vocab_size"]) == (1, [2, 299], 300)


def test_a_tokenizer_goes_along(module, tmp_path):
    preset = ROOT / "edgeformer" / "presets" / "tiny-llama"
    sizes = SIZES | {"vocab_size": 2048}
    module.embedding = nn.Embedding(2048, 64)
    module.head.weight = module.embedding.weight
    result = export_module(module, tmp_path / "bundle", tokenizer_folder=preset, verify=None, **sizes)
    assert isinstance(load(result.path).generate("Once", max_new_tokens=3).text, str)
    with pytest.raises(ExportError, match=r"onnx has no tokenizer\.json\. Give the folder that has one, or leave"):
        export_module(module, tmp_path / "other", tokenizer_folder=result.path / "onnx", verify=None, **sizes)


# Everything that breaks the contract, as a decoder around the example's, and what is said about it.


def broken(name):
    """Register a forward under the name of the test."""

    def register(forward):
        BROKEN[name] = type(name, (nn.Module,), {"__init__": keep_inner, "forward": forward})
        return forward

    return register


def keep_inner(self, inner):
    nn.Module.__init__(self)
    self.inner = inner


BROKEN: dict[str, type] = {}


@broken("two arguments")
def _(self, input_ids, attention_mask):
    return self.inner(input_ids, attention_mask, [])


@broken("logits alone")
def _(self, *arguments):
    return self.inner(*arguments)[0]


@broken("last logits alone")
def _(self, *arguments):
    logits, caches = self.inner(*arguments)
    return logits[:, -1:], caches


@broken("tokens for logits")
def _(self, *arguments):
    logits, caches = self.inner(*arguments)
    return logits.argmax(-1), caches


@broken("one cache missing")
def _(self, *arguments):
    logits, caches = self.inner(*arguments)
    return logits, caches[:-1]


@broken("stacked caches")
def _(self, *arguments):
    logits, caches = self.inner(*arguments)
    return logits, [torch.stack(cache) for cache in caches]


@broken("only the new keys")
def _(self, input_ids, *arguments):
    logits, caches = self.inner(input_ids, *arguments)
    return logits, [(key[:, :, -input_ids.shape[1] :], value) for key, value in caches]


@broken("caches in another type")
def _(self, *arguments):
    logits, caches = self.inner(*arguments)
    return logits, [(key.double(), value.double()) for key, value in caches]


@broken("the past forgotten")
def _(self, input_ids, attention_mask, caches):
    empty = [(key[:, :, :0], value[:, :, :0]) for key, value in caches]
    new = torch.ones_like(input_ids)
    logits, presents = self.inner(input_ids, new, empty)
    pasts = zip(caches, presents, strict=True)
    return logits, [tuple(torch.cat(pair, 2) for pair in zip(past, new, strict=True)) for past, new in pasts]


@broken("padding counted")
def _(self, input_ids, attention_mask, caches):
    return self.inner(input_ids, torch.ones_like(attention_mask), caches)


@broken("caches changed on their way")
def _(self, input_ids, attention_mask, caches):
    return self.inner(input_ids, attention_mask, [(key * 1, value) for key, value in caches])


@broken("caches copied on their way out")
def _(self, *arguments):
    logits, caches = self.inner(*arguments)
    return logits, [(key, value * 1) for key, value in caches]


@broken("another function in float32")
def _(self, *arguments):
    logits, caches = self.inner(*arguments)
    return logits + 0.1 * logits.abs() * (logits.dtype == torch.float32), caches


@broken("a branch on a value")
def _(self, input_ids, *arguments):
    logits, caches = self.inner(input_ids, *arguments)
    return (logits if input_ids.sum() > 0 else -logits), caches


MESSAGES = {
    "two arguments": r"^the module fails on 2 × 3 tokens after a past of 0, in float32: TypeError: .*\nA module is",
    "logits alone": r"given 2 × 3 tokens after a past of 0, in float32, returns a float32 tensor \[2, 3, 300\]; it "
    r"must return two things, \(logits, caches\)\.\nA module is called with input_ids",
    "last logits alone": r"returns a float32 tensor \[2, 1, 300\] as logits; they must be a float tensor \[2, 3, 300\]",
    "tokens for logits": r"returns a int64 tensor \[2, 3\] as logits; they must be a float tensor",
    "one cache missing": r"returns a list of 1 as caches; they must be a list of 2, one for each layer",
    "stacked caches": r"returns a float32 tensor \[2, 2, 2, 3, 16\] as the cache of layer 0; it must be a pair",
    "only the new keys": r"given 2 × 1 tokens after a past of 3, .* returns a float32 tensor \[2, 2, 1, 16\] as the "
    r"key of layer 0; it must be a float32 tensor \[2, 2, 4, 16\]",
    "caches in another type": r"returns a float64 tensor \[2, 2, 3, 16\] as the key of layer 0; it must be a float32",
    "the past forgotten": r"contradicts itself: tokens that are fed one by one after a past have logits .* off those",
    "padding counted": r"contradicts itself: tokens that are fed one by one after a past have logits",
    "caches changed on their way": r"^past_key_values\.0\.key is read by Mul\S* instead of edgeformer",
    "caches copied on their way out": r"^present\.0\.value is made by Mul\S* instead of edgeformer\.ops\.group_query",
    "another function in float32": r"^the module computes something else in float32 than in float64: logits are 0\.1 ",
    "a branch on a value": r"^torch\.export cannot trace the module: ",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_contract_is_told_before_anything_is_written(module, tmp_path, name):
    with pytest.raises(ExportError, match=MESSAGES[name]):
        export_module(BROKEN[name](module), tmp_path / "bundle", **SIZES)
    assert list(tmp_path.iterdir()) == []


class PlainAttention(nn.Module):
    """Right by itself, but with attention of its own: its cache only grows, and a static buffer means nothing to it."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(30, 16)

    def forward(self, input_ids, attention_mask, caches):
        x = self.embedding(input_ids)
        key = torch.cat((caches[0][0], x.unsqueeze(1)), 2)
        value = torch.cat((caches[0][1], x.unsqueeze(1)), 2)
        return (x @ self.embedding.weight.t()), [(key, value)]


def test_attention_of_ones_own_is_refused(tmp_path):
    sizes = {"vocab_size": 30, "context_length": 32, "num_layers": 1, "num_kv_heads": 1, "head_dim": 16}
    message = r"^past_key_values\.0\.key is read by Concat\S* instead of edgeformer\.ops\.group_query_attention\. A"
    with pytest.raises(ExportError, match=message):
        export_module(PlainAttention(), tmp_path / "bundle", verify=None, **sizes)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("attribute", "where"),
    [
        (torch.ones(3), r"^table of the module holds a tensor that is neither a parameter nor a buffer"),
        ([torch.ones(3)], r"^table of the module holds"),
        ({"cos": torch.ones(3)}, r"^table of the module holds .* Register it: self\.register_buffer\('table', …, "),
    ],
    ids=["tensor", "list", "dict"],
)
def test_a_tensor_that_is_no_buffer_is_named(module, tmp_path, attribute, where):
    module.table = attribute
    with pytest.raises(ExportError, match=where):
        export_module(module, tmp_path / "bundle", **SIZES)


def test_a_forward_around_the_example_is_taken(module, tmp_path):
    """Negative control of the broken ones: the same frame, and nothing broken."""

    def forward(self, *arguments):
        logits, caches = self.inner(*arguments)
        return logits * torch.tensor(0.25), caches

    scaled = type("Scaled", (nn.Module,), {"__init__": keep_inner, "forward": forward})(module)
    path = export_module(scaled, tmp_path / "bundle", verify=None, **SIZES).path
    report = verify_module(path, scaled, mode="quick")
    assert report.passed, report.describe()
    assert not verify_module(path, module, mode="quick").passed


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 0}, r"^vocab_size is 0; it must be at least 1\.$"),
        ({"context_length": 3}, r"^context_length is 3; it must be at least 4\.$"),
        ({"num_layers": 3}, r"^the module fails|as caches; they must be a list of 3, one for each layer"),
        ({"vocab_size": 299}, r"as logits; they must be a float tensor \[2, 3, 299\]"),
        ({"num_kv_heads": 4}, r"^the module fails on 2 × 3 tokens after a past of 0"),
        ({"precision": "fp8"}, r"^precision is 'fp8'; it must be one of fp32, fp16, bf16, int8, int4, or None\.$"),
    ],
    ids=str,
)
def test_sizes_that_are_not_the_modules_are_told(module, tmp_path, changes, message):
    with pytest.raises(ExportError, match=message):
        export_module(module, tmp_path / "bundle", **(SIZES | changes))
    assert list(tmp_path.iterdir()) == []


def test_a_module_without_values_is_told(decoder, tmp_path):
    with torch.device("meta"):
        empty = decoder()
    with pytest.raises(ExportError, match=r"^the module has no values \(it is on meta\): embedding\.weight, "):
        export_module(empty, tmp_path / "bundle", **SIZES)


def test_a_module_that_cannot_be_copied_is_told(module, tmp_path):
    module.log = (line for line in ())
    with pytest.raises(ExportError, match=r"^the module cannot be copied: TypeError: cannot pickle 'generator' object"):
        export_module(module, tmp_path / "bundle", **SIZES)


def test_a_place_that_is_taken_is_told_before_the_module_runs(module, tmp_path):
    (tmp_path / "bundle").mkdir()
    with pytest.raises(ExportError, match="exists and is not a bundle; it is left alone"):
        export_module(BROKEN["two arguments"](module), tmp_path / "bundle", **SIZES)


class Smallest(nn.Module):
    """The smallest decoder that there is: one head of attention to embeddings."""

    def __init__(self, head_dim, window=0, detour=False):
        super().__init__()
        torch.manual_seed(2)
        self.embedding = nn.Embedding(40, head_dim)
        self.window, self.detour = window, detour

    def forward(self, input_ids, attention_mask, caches):
        x = self.embedding(input_ids)
        if self.detour:  # to heads and back
            x = x.unflatten(-1, (1, -1)).transpose(1, 2).contiguous().transpose(1, 2).flatten(-2)
        y, *cache = ops.group_query_attention(x, x, x, *caches[0], attention_mask, 1, 1, 1.0, window=self.window)
        return y @ self.embedding.weight.t(), [cache]


def export_smallest(module, output, **options):
    head_dim = module.embedding.weight.shape[1]
    sizes = {"vocab_size": 40, "context_length": 64, "num_layers": 1, "num_kv_heads": 1, "head_dim": head_dim}
    return export_module(module, output, **sizes, **options)


def test_a_head_size_without_a_kernel_is_written_out(tmp_path):
    result = export_smallest(Smallest(head_dim=12), tmp_path / "bundle")
    assert result.report.passed
    assert len(result.lowered.fallbacks) == 1


def test_a_window_of_a_module_gets_its_view(tmp_path):
    result = export_smallest(Smallest(head_dim=16, window=8), tmp_path / "bundle")
    assert result.manifest.windows == (8,)
    assert any(check.name.startswith("windowed") for check in result.report.checks)


def test_locate_lowers_a_module_as_its_export_did(tmp_path):
    """Passes that only modules of others need must run there too, or right nodes would count as differences."""
    module = Smallest(head_dim=16, detour=True)
    result = export_smallest(module, tmp_path / "bundle", verify=None)
    assert sum(done.changed for done in result.lowered.passes if done.name == "simplify_layout") > 0
    found = locate(result.path, result.manifest, module_spec(module, result.manifest), ModuleWeights(module))
    assert (found.first, found.differences) == (None, ()), describe(found)
