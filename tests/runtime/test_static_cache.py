"""The static cache in int8: a quarter of the memory, and everything that a request does over it."""

import shutil

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from edgeformer.contract.tensors import CacheGeometry
from edgeformer.errors import BundleError, RequestError
from edgeformer.export import export_model
from edgeformer.manifest.accounting import cache_element_bytes
from edgeformer.runtime import load
from edgeformer.runtime.caches.cache_types import CacheTypes
from edgeformer.runtime.caches.static_cache import StaticCache
from edgeformer.runtime.measure.benchmarking.costs import Costs
from edgeformer.runtime.steps.decode_graph import DecodeGraph
from edgeformer.runtime.steps.new_decoder import new_row_runner

PROMPTS = [np.random.default_rng(row).integers(3, 130, length).tolist() for row, length in enumerate((23, 9, 14))]


@pytest.fixture(scope="module")
def bundle(llama_folder, tmp_path_factory):
    place = tmp_path_factory.mktemp("bundles") / "int8"
    return export_model(llama_folder, place, cache_precision="int8", verify=None).path


@pytest.fixture(scope="module")
def model(bundle):
    return load(bundle)


def test_it_takes_a_quarter_of_the_memory(model, llama_folder, tmp_path):
    plain = load(export_model(llama_folder, tmp_path / "plain", verify=None).path)
    small, large = model.new_decoder(2, 40).cache, plain.new_decoder(2, 40).cache
    assert large.bytes == 4 * small.bytes == 4 * (2 * 3 * 2 * 2 * 40 * 16)
    assert {part.dtype for layer in small.read(3) for part in layer} == {np.dtype(np.int8)}
    assert cache_element_bytes(plain.manifest) == (4, 4)
    assert cache_element_bytes(model.manifest) == (1, 4)
    read = [Costs(each.manifest).decode(1000, 1, 2).bytes for each in (plain, model)]
    assert read[0] - read[1] == 3 * 1001 * 2 * 3 * 2 * 16


def test_chunks_batches_and_rows_alone_come_to_the_same_text(model):
    alone = [model.generate(prompt, max_new_tokens=12).token_ids for prompt in PROMPTS]
    together = [each.token_ids for each in model.generate(PROMPTS, max_new_tokens=12)]
    assert together == alone
    decoder, text = model.new_decoder(1, 40), []
    logits = decoder.prefill(0, PROMPTS[0], chunk=5)
    for _ in range(12):
        text.append(int(logits.argmax()))
        logits = decoder.decode_one_token(text[-1:])[0]
    assert text == alone[0]


def test_a_batch_of_chunks_behind_a_past_is_refused(model):
    decoder = model.new_decoder(3, 40)
    first = np.array([prompt[:9] for prompt in PROMPTS])
    decoder.prefill_batch(first, [9, 9, 9])
    with pytest.raises(RequestError, match=r"^the rows have 9, 9, 9 tokens, and a batch of 4 tokens a row goes into"):
        decoder.prefill_batch(first[:, :4], [4, 4, 4])
    for row in range(3):  # what it says to do instead
        decoder.prefill(row, first[row, :4])
    assert decoder.lengths.tolist() == [13, 13, 13]


def test_onnxruntime_refuses_such_a_batch_itself(model):
    """If this fails, the sentence in the model card and the refusal above have no reason any more."""
    decoder = model.new_decoder(3, 40)
    first = np.array([prompt[:9] for prompt in PROMPTS])
    decoder.prefill_batch(first, [9, 9, 9])
    with pytest.raises(BundleError, match="GroupQueryAttention.*batch_size must be 1"):
        decoder.memory.run_batch(first, np.ones(first.shape, bool), np.array([18, 18, 18]))


def test_rows_move_and_go_back(model):
    decoder = model.new_decoder(3, 40)
    for row, prompt in enumerate(PROMPTS):
        decoder.prefill(row, prompt)
    first = decoder.decode_one_token([5, 6, 7]).copy()
    decoder.lengths -= 1  # as if the step had not been: what it wrote is behind the valid tokens again
    np.testing.assert_array_equal(decoder.decode_one_token([5, 6, 7]), first)
    before = decoder.cache.read(40)
    lengths = decoder.lengths.copy()
    assert (
        decoder.reorder(
            np.array([2, 1, 1]),
        )
        == 2 * 3 * 2 * 2 * lengths.max() * 16
    )
    np.testing.assert_array_equal(decoder.lengths, lengths[[2, 1, 1]])
    for old, new in zip(before, decoder.cache.read(40), strict=True):
        for was, moved in zip(old, new, strict=True):
            for row, parent in enumerate((2, 1, 1)):
                np.testing.assert_array_equal(moved[row, :, : lengths[parent]], was[parent, :, : lengths[parent]])
    stepped = decoder.decode_one_token([9, 9, 9])
    np.testing.assert_array_equal(stepped[1], stepped[2])
    assert np.abs(stepped[0] - stepped[1]).max() > 0.1


def test_masks_of_steps_follow_the_lengths(model):
    """A step that follows another one adds to its mask, unless anything else has changed a length."""
    decoder = new_row_runner(DecodeGraph(model.session, model.manifest), 4, 100, model.provider)
    draw = np.random.default_rng(0).integers
    for row in range(4):
        decoder.prefill(row, PROMPTS[row % 3])
    for _ in range(300):
        first = int(draw(2))
        rows = slice(first, first + int(draw(1, 3)))
        row, other = draw(4, size=2).tolist()
        change = draw(6)
        if decoder.lengths.max() > 80 or change == 0:
            decoder.cut(int(decoder.lengths.argmax()), 5)
        elif change == 1 and row != other:
            decoder.move(row, other)
        elif change == 2:
            decoder.decode_tokens(row, [5, 6])
            decoder.cut(row, int(decoder.lengths[row]) - 2)
        active = draw(2, size=rows.stop - first) > 0 if draw(2) else None
        for _ in range(3):
            before = decoder.lengths[rows, None].copy()
            decoder.decode_rows(first, [7] * len(before), None, active)
            mask = decoder.memory._last.mask
            assert mask.shape == (len(before), -(-(before.max() + 1) // 32) * 32)
            np.testing.assert_array_equal(mask, np.arange(mask.shape[1]) <= before)


def test_runs_of_any_number_of_tokens_follow_each_other(model):
    """A row has one binding for them, and for its prompts: the next run changes what its number of tokens changes."""
    decoder, texts = new_row_runner(DecodeGraph(model.session, model.manifest), 2, 80, model.provider), [[], []]
    fresh = new_row_runner(DecodeGraph(model.session, model.manifest), 1, 80, model.provider)
    random = np.random.default_rng(0)
    for _ in range(80):
        row, count = int(random.integers(2)), int(random.integers(1, 6))
        if len(texts[row]) > 60:
            texts[row] = texts[row][:5]
            decoder.cut(row, 5)
        tokens = random.integers(3, 130, count).tolist()
        run = (decoder.decode_tokens, decoder.decode_last, decoder.prefill)[random.integers(3)]
        logits = run(row, tokens)
        texts[row] += tokens
        fresh.take(0)
        expected = fresh.prefill_all(0, texts[row])
        expected = expected[-count:] if run == decoder.decode_tokens else expected[-1]
        np.testing.assert_allclose(logits, expected, atol=1e-5)


def test_what_stands_behind_the_tokens_is_not_read(model):
    results = []
    for filling in (-128, 0, 127):
        decoder = model.new_decoder(2, 50)
        decoder.cache.fill(filling)
        decoder.prefill(0, PROMPTS[0]), decoder.prefill(1, PROMPTS[1])
        results.append(decoder.decode_one_token([5, 6]).copy())
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_array_equal(results[1], results[2])


def test_integers_are_written_as_they_are():
    cache = StaticCache(
        CacheGeometry.of_attention(num_layers=2, num_kv_heads=2, head_dim=8), CacheTypes(np.int8, np.float32), 1, 6
    )
    content = np.random.default_rng(0).integers(-128, 128, (2, 2, 1, 2, 4, 8)).astype(np.int8)
    cache.write(4, lambda layer: tuple(content[layer]))
    for layer, read in enumerate(cache.read(4)):
        np.testing.assert_array_equal(np.stack(read), content[layer])


def test_the_text_depends_on_the_scales(bundle, model, tmp_path):
    shutil.copytree(bundle, tmp_path / "other")
    path = tmp_path / "other" / "onnx" / "model.onnx"
    graph = onnx.load(path, load_external_data=False)
    names = {name for node in graph.graph.node if node.op_type == "GroupQueryAttention" for name in node.input[12:14]}
    for tensor in graph.graph.initializer:
        if tensor.name in names:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) * np.float32(20), tensor.name))
    path.write_bytes(graph.SerializeToString())
    other = load(tmp_path / "other")
    assert np.abs(other.forward(PROMPTS[0]) - model.forward(PROMPTS[0])).max() > 0.1
