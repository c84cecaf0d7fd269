"""Generation from a bundle: rows, chunks, limits, reasons to end, and the environment it needs."""

import json
import os
import subprocess
import sys

import numpy as np
import onnx
import pytest

from edgeformer.contract.tensors import LOGITS_START
from edgeformer.errors import RequestError
from edgeformer.manifest.manifest import Manifest
from edgeformer.runtime import load
from edgeformer.runtime.caches.cache_types import CacheTypes
from edgeformer.runtime.caches.static_cache import StaticCache
from edgeformer.runtime.sessions import session
from edgeformer.runtime.steps import decode_graph, memory
from edgeformer.runtime.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def model(tiny_llama_bundle):
    return load(tiny_llama_bundle)


def greedy_by_hand(model, prompt, steps):
    """The oracle: the whole text again for every token, to its end, and no cache carried over."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + steps and tokens[-1] not in model.manifest.tokens.eos:
        tokens.append(int(model.forward(tokens)[-1].argmax()))
    return tokens[len(prompt) :]


def test_greedy_generation_is_the_argmax_of_the_whole_text(model):
    prompt = model.tokenizer.encode("Once upon a time")
    assert model.generate(prompt, max_new_tokens=12).token_ids == greedy_by_hand(model, prompt, 12)


def test_each_row_of_a_batch_equals_its_solo_run(model):
    prompts = ["Once upon a time, there was a dog", "a", "12 + 30 = ", "The old bear walked to the river. " * 12]
    for options in ({}, {"temperature": 0.9, "top_k": 40, "seed": 5}):
        batch = model.generate(prompts, max_new_tokens=24, **options)
        solo = [model.generate(prompt, max_new_tokens=24, **options) for prompt in prompts]
        assert [row.token_ids for row in batch] == [row.token_ids for row in solo]
        assert [row.text for row in batch] == [row.text for row in solo]


def test_rows_of_a_batch_end_for_themselves(model):
    prompts = ["Once upon a time", "The day after 2 August 1990 is", "470 + 119 ="]
    options = {"max_new_tokens": 20, "stop": "gus"}
    batch = model.generate(prompts, **options)
    expected = [model.generate(prompt, **options) for prompt in prompts]
    assert [row.finish_reason for row in batch] == ["length", "stop", "eos"]
    assert [(row.text, row.token_ids, row.finish_reason) for row in batch] == [
        (row.text, row.token_ids, row.finish_reason) for row in expected
    ]


def test_a_prompt_longer_than_a_chunk_is_the_same_in_one_piece(model):
    tokens = np.random.default_rng(0).integers(3, 2048, 600).tolist()
    chunked = model.new_decoder(1, 600).prefill(0, tokens)
    whole = model.new_decoder(1, 600).prefill(0, tokens, chunk=600)
    assert np.abs(chunked - whole).max() <= 1e-5 * np.abs(whole).max()
    assert np.abs(model.forward(tokens)[-1] - whole).max() <= 1e-5 * np.abs(whole).max()


def test_the_end_of_text_token_ends_it_and_is_not_shown(model, monkeypatch):
    expected = model.generate("Once", max_new_tokens=10)
    token = expected.token_ids[4]
    first = expected.token_ids.index(token)
    monkeypatch.setattr(model, "manifest", _with_eos(model.manifest, token))
    result = model.generate("Once", max_new_tokens=10)
    assert result.finish_reason == "eos"
    assert result.token_ids == expected.token_ids[: first + 1]
    assert result.text == model.tokenizer.decode(expected.token_ids[:first])


def _with_eos(manifest: Manifest, token: int) -> Manifest:
    from dataclasses import replace

    return replace(manifest, tokens=replace(manifest.tokens, eos=(token,)))


def test_a_stream_is_the_text_in_pieces(model):
    expected = model.generate("Once upon a time", max_new_tokens=30)
    stream = model.stream("Once upon a time", max_new_tokens=30)
    pieces = list(stream)
    assert len(pieces) > 1
    assert "".join(pieces) == expected.text == stream.finish().text


def test_a_chat_is_the_prompt_of_its_template(model):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    text = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert model.tokenizer.render_chat(messages) == text
    prompt = model.tokenizer.encode(text)
    assert model.chat(messages, max_new_tokens=5).finish().token_ids == greedy_by_hand(model, prompt, 5)


def test_the_cache_is_sized_to_the_request(model, monkeypatch):
    asked = []
    new_decoder = model.new_decoder
    monkeypatch.setattr(model, "new_decoder", lambda *sizes: asked.append(sizes[:2]) or new_decoder(*sizes))
    model.generate([[3, 4, 5], [6]], max_new_tokens=10)
    assert asked == [(2, 3 + 10)]
    geometry = model.manifest.cache
    kept = geometry.key_value
    per_token = 2 * geometry.num_layers * kept.num_kv_heads * kept.head_dim * 4
    assert new_decoder(2, 13).cache.bytes == 2 * 13 * per_token


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([3] * 1000, {"max_new_tokens": 100}, "the prompt has 1000 tokens and 100 more are to come, but the model's"),
        ([3] * 1024, {}, "the prompt has 1024 tokens and 1 more are to come"),
        ("Hi", {"max_new_tokens": 0}, "max_new_tokens is 0; it must be at least 1"),
        ([], {}, "the prompt is empty; give at least one token"),
        ("", {}, "the prompt is empty"),
        ([2048], {}, "token ids outside 0 to 2047"),
        ([-1], {}, "token ids outside 0 to 2047"),
        ("Hi", {"temperature": -1.0}, "temperature is -1.0; it must be 0"),
    ],
)  # fmt: skip
def test_a_request_that_cannot_be_served_says_why(model, prompt, options, message):
    with pytest.raises(RequestError, match=message):
        model.generate(prompt, **options)


def test_a_bad_row_of_a_list_is_refused_by_number_and_token(tiny_llama_bundle, tmp_path):
    """As a tokenizer whose picture token has no row in the embedding makes them."""
    tokenizer = json.loads((tiny_llama_bundle / "tokenizer.json").read_text())
    added = {"id": 2048, "content": "<image_soft_token>", **dict.fromkeys(("single_word", "lstrip", "rstrip"), False)}
    tokenizer["added_tokens"].append(added | {"normalized": False, "special": True})
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    model, texts = load(tiny_llama_bundle), ["ok", "a <image_soft_token> b", "ok"]
    model.tokenizer = Tokenizer(tmp_path)
    said = r"vocabulary: 2048 \(<image_soft_token>\)\.$"
    with pytest.raises(RequestError, match=rf"^prompt 1 of the list, 'a <image_soft_token> b' .*0 to 2047.*{said}"):
        model.generate(texts, max_new_tokens=1)
    with pytest.raises(RequestError, match=rf"^the prompt has token ids outside 0 to 2047, the model's {said}"):
        model.generate(texts[1])


def test_an_unknown_option_is_not_ignored(model):
    with pytest.raises(TypeError, match="temprature"):
        model.generate("Hi", temprature=1.0)


def test_a_bundle_without_a_tokenizer_takes_ids_and_says_so(llama_bundle):
    model = load(llama_bundle)
    result = model.generate([3, 4], max_new_tokens=3)
    assert (result.text, len(result.token_ids)) == (None, 3)
    with pytest.raises(RequestError, match=r"has no tokenizer\.json, so it takes token ids, not text"):
        model.generate("Hi")
    with pytest.raises(RequestError, match="takes token ids"):
        model.generate([3], stop="x")


def test_a_cache_too_large_for_memory_is_refused_early(model):
    with pytest.raises(
        RequestError, match=r"the cache for 1 × 1000000000000 tokens takes [\d.]+ GB, and [\d.]+ GB of memory"
    ):
        StaticCache(model.manifest.cache, CacheTypes(np.float32, np.float32), 1, 10**12)


def test_cuda_where_there_is_none_is_an_error(tiny_llama_bundle):
    with pytest.raises(RequestError, match="has no CUDAExecutionProvider .*edgeformer.gpu.*or use provider cpu"):
        load(tiny_llama_bundle, provider="cuda")


def test_an_unknown_provider_is_an_error(tiny_llama_bundle):
    with pytest.raises(RequestError, match="provider is 'tpu'; it must be auto, cpu, cuda or webgpu"):
        load(tiny_llama_bundle, provider="tpu")


BLOCK = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
"""


def in_fresh_interpreter(code, blocked):
    program = BLOCK.format(blocked=blocked) + code
    # Not from the repository's root, where the folders of the packages lie about.
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=os.path.dirname(__file__), check=False
    )


def test_the_runtime_needs_no_torch_onnx_or_transformers(tiny_llama_bundle, model):
    code = f"""
from edgeformer.runtime import load
model = load({str(tiny_llama_bundle)!r})
print(model.generate("Once upon a time", max_new_tokens=8).token_ids)
print(model.chat([{{"role": "user", "content": "Hi"}}], max_new_tokens=2).finish().finish_reason)
"""
    blocked = {"torch", "onnx", "onnx_ir", "onnxscript", "transformers", "safetensors", "huggingface_hub"}
    done = in_fresh_interpreter(code, blocked)
    assert done.returncode == 0, done.stderr
    expected = model.generate("Once upon a time", max_new_tokens=8).token_ids
    assert done.stdout.splitlines() == [str(expected), "length"]


@pytest.mark.parametrize(
    ("code", "blocked", "message"),
    [
        ("from edgeformer.export import verify", {"torch"}, "torch is not installed, and this needs it."),
        ("from edgeformer.runtime import load; load({bundle!r})", {"onnxruntime"}, "onnxruntime is not installed"),
    ],
)
def test_a_missing_package_names_the_extra_to_install(tiny_llama_bundle, code, blocked, message):
    done = in_fresh_interpreter(code.format(bundle=str(tiny_llama_bundle)), blocked)
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("edgeformer.errors.MissingDependencyError: ")
    assert message in last
    assert "pip install 'edgeformer[" in last


def test_a_prompt_takes_the_logits_of_its_last_token_alone(model, monkeypatch):
    """They are those that a run of all logits has, and no others are computed."""
    sizes, bind = [], decode_graph.bind_output
    for module in (decode_graph, memory):
        monkeypatch.setattr(module, "bind_output", lambda *given: sizes.append(given[2].shape) or bind(*given))
    tokens = list(range(3, 40))
    decoder = model.new_decoder(1, 64)
    sizes.clear()
    last = decoder.prefill(0, tokens, chunk=16).copy()
    assert sizes == [(1, 1, model.manifest.vocab_size)] * 3
    sizes.clear()
    whole = model.new_decoder(1, 64).prefill_all(0, tokens, chunk=16)
    assert [shape[1] for shape in sizes if shape[1] > 1] == [16, 16, 5]
    np.testing.assert_allclose(last, whole[-1], atol=1e-5)


def test_without_the_optional_input_all_logits_are_returned(tiny_llama_bundle, monkeypatch):
    """As a graph of another exporter: what it returns is cut here."""
    whole = load(tiny_llama_bundle)
    monkeypatch.setattr(session, "with_optional_inputs", lambda graph, options, content: str(graph))
    plain = load(tiny_llama_bundle)
    assert [each.name for each in plain.session.get_overridable_initializers()] == []
    assert [each.name for each in whole.session.get_overridable_initializers()] == [LOGITS_START]
    found = [each.generate("Once upon a time", max_new_tokens=20).token_ids for each in (plain, whole)]
    assert found[0] == found[1]


def test_a_plain_client_opens_the_graph_without_a_warning(tiny_llama_bundle):
    """onnxruntime warns, at its default level, of an input with a default; the runtime's own sessions have it."""
    graph = tiny_llama_bundle / "onnx" / "model.onnx"
    listed = {each.name for each in onnx.load(graph, load_external_data=False).graph.input}
    code = f"""if True:
        import onnxruntime
        session = onnxruntime.InferenceSession({str(graph)!r}, providers=["CPUExecutionProvider"])
        assert {{each.name for each in session.get_inputs()}} == {listed!r}"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_an_error_in_one_row_ends_the_call_at_once(model):
    seen = []

    def third(ids, logits):
        seen.append(len(ids))
        if len(seen) == 5:  # two rows: in the second step behind the prompts
            raise ZeroDivisionError
        return logits

    with pytest.raises(ZeroDivisionError):
        model.generate(["Once", "The old bear"], max_new_tokens=50, ignore_eos=True, logits_processors=[third])
    assert len(seen) <= 6
