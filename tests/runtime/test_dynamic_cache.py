"""Graphs of every op set and form of a cache write what the graph of onnxruntime's own ops writes.

Rows of a dynamic cache, of any lengths and padding, are those that stand alone.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import tokenizers

from edgeformer.errors import RequestError
from edgeformer.export import export_model
from edgeformer.manifest.providers import CPU, CUDA
from edgeformer.runtime import load
from edgeformer.runtime.caches.cache_types import CacheTypes
from edgeformer.runtime.caches.dynamic_cache import DynamicCache
from edgeformer.runtime.sessions.session import choose_provider
from edgeformer.runtime.steps.memory import GrowingSteps, HostSteps

FORMS = [(ops, cache) for ops in ("standard", "portable") for cache in ("dynamic", "static")]
VOCABULARY = 97
CONTEXT = 64
TOLERANCE = 2e-5
WINDOW = 6

SIZES = {
    "llama": {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": CONTEXT,
    },
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4},
    "gemma2": {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 8, "sliding_window": WINDOW, "max_position_embeddings": CONTEXT,
    },
    "t5": {
        "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 16, "decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0,
    },
}  # fmt: skip

RANDOM = np.random.default_rng(0)
PROMPTS = [RANDOM.integers(3, VOCABULARY, length).tolist() for length in (3, 11, 8)]
NEXT = RANDOM.integers(3, VOCABULARY, (3, 20))
"""Tokens to feed to three rows, step by step."""


@pytest.fixture(scope="module")
def model(make_model, tmp_path_factory):
    """Return a function that gives a family's model in an op set and a form of cache; each is exported once."""
    folders, models = {}, {}

    def folder_of(family):
        if family not in folders:
            auto = "AutoModelForSeq2SeqLM" if family == "t5" else "AutoModelForCausalLM"
            folders[family] = make_model(family, 3, auto=auto, vocab_size=VOCABULARY, **SIZES[family])
            words = {f"w{index}": index for index in range(VOCABULARY)}
            backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, "w0"))
            backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
            backend.save(str(folders[family] / "tokenizer.json"))
        return folders[family]

    def get(family, ops="ort", cache=None):
        key = family, ops, cache
        if key not in models:
            bundle = tmp_path_factory.mktemp("bundles") / "-".join(map(str, key))
            options = {} if "max_position_embeddings" in SIZES[family] else {"context_length": CONTEXT}
            export_model(folder_of(family), bundle, ops=ops, cache=cache, verify=None, **options)
            models[key] = load(bundle)
        return models[key]

    return get


def alone(model, tokens):
    """Logits after every token of a text that is alone in its cache, in one run."""
    return model.new_decoder(1, CONTEXT).prefill_all(0, tokens, chunk=CONTEXT)


def assert_close(actual, expected):
    assert np.abs(actual - expected).max() <= TOLERANCE * max(1, np.abs(expected).max())


@pytest.fixture(params=FORMS, ids="-".join)
def form(request):
    return request.param


def test_every_form_writes_what_the_concat_graph_writes(model, form):
    theirs, ours = model("llama"), model("llama", *form)
    kind = GrowingSteps if form[1] == "dynamic" else HostSteps
    assert type(ours.new_decoder(1, 1).memory) is kind
    text = theirs.generate(PROMPTS[0], max_new_tokens=20).text
    for prompt, options in (
        (PROMPTS, {"max_new_tokens": 24}),
        (PROMPTS, {"max_new_tokens": 16, "temperature": 1.0, "seed": 5}),
        (PROMPTS[0], {"max_new_tokens": 20, "stop": text.split()[9]}),
    ):
        results = [each.generate(prompt, **options) for each in (theirs, ours)]
        if prompt is PROMPTS[0]:
            assert results[0].finish_reason == "stop"
            results = [[result] for result in results]
        expected, actual = ([(row.text, row.token_ids, row.finish_reason) for row in rows] for rows in results)
        assert actual == expected


def test_a_text_in_chunks_and_steps_is_the_text_in_one_run(model, form):
    ours, text = model("llama", *form), [*PROMPTS[1], *NEXT[0]]
    expected = alone(ours, text)
    decoder = ours.new_decoder(1, len(text))
    assert_close(decoder.prefill_all(0, text[:9], chunk=4), expected[:9])
    assert_close(decoder.prefill(0, text[9:14], chunk=2), expected[13])
    for place in range(14, len(text)):
        assert_close(decoder.decode_one_token([text[place]])[0], expected[place])
    with pytest.raises(ValueError, match="tokens do not fit a cache of 31"):
        decoder.decode_one_token([3])


def test_a_graph_that_multiplies_unread_slots_gets_zeros(model):
    decoder = model("llama", "standard", "static").new_decoder(2, 9)
    assert not any(part.any() for layer in decoder.cache.read(9) for part in layer)


@pytest.mark.parametrize("ops", ["standard", "portable"])
@pytest.mark.parametrize("family", ["llama", "bloom", "gemma2"])
def test_rows_of_unequal_lengths_are_those_that_stand_alone(model, family, ops):
    ours = model(family, ops, "dynamic")
    assert_close(alone(ours, PROMPTS[1]), alone(model(family), PROMPTS[1]))
    expected = [alone(ours, [*prompt, *tokens]) for prompt, tokens in zip(PROMPTS, NEXT, strict=True)]
    lengths = [len(prompt) for prompt in PROMPTS]
    for pad in (pad_right, pad_left, scatter):
        tokens, mask = pad()
        decoder = ours.new_decoder(3, CONTEXT)
        right = pad is pad_right
        first = decoder.prefill_batch(tokens, lengths) if right else decoder.prefill_padded(tokens, mask)
        for row, length in enumerate(lengths):
            assert_close(first[row, mask[row]], expected[row][:length])
        follow(decoder, expected)
    decoder = ours.new_decoder(3, CONTEXT)
    for row, prompt in enumerate(PROMPTS):
        decoder.prefill(row, prompt)
    follow(decoder, expected)


def follow(decoder, expected, steps=2 * WINDOW):
    """Feed what comes next to all rows, further than a window reaches."""
    for step in range(steps):
        logits = decoder.decode_one_token(NEXT[:, step])
        for row, prompt in enumerate(PROMPTS):
            assert_close(logits[row], expected[row][len(prompt) + step])


def padded(mask):
    tokens = np.zeros(mask.shape, np.int64)
    for row, prompt in enumerate(PROMPTS):
        tokens[row, mask[row]] = prompt
    return tokens, mask


def pad_right():
    return padded(np.arange(11) < np.array([[3], [11], [8]]))


def pad_left():
    return padded(np.arange(11) >= np.array([[8], [0], [3]]))


def scatter():
    """Padding anywhere, in a batch whose rows have none in common."""
    empty = [0, 2, 3, 4, 5, 7, 8, 9, 10, 12], [0, 7], [1, 4, 5, 9, 12]
    return padded(np.stack([np.isin(np.arange(13), row, invert=True) for row in empty]))


@pytest.mark.parametrize("ops", ["standard", "portable"])
def test_finished_rows_stand_still_and_may_go_on(model, ops):
    ours = model("llama", ops, "dynamic")
    decoder = ours.new_decoder(3, CONTEXT)
    texts = [list(prompt) for prompt in PROMPTS]
    for row, prompt in enumerate(PROMPTS):
        decoder.prefill(row, prompt)
    for step, active in enumerate(([1, 1, 1], [1, 0, 1], [1, 0, 1], [0, 0, 1], [1, 1, 1])):
        active = np.array(active, bool)
        logits = decoder.decode_rows(0, NEXT[:, step], active=active)
        for row in np.flatnonzero(active):
            texts[row].append(int(NEXT[row, step]))
            assert_close(logits[row], alone(ours, texts[row])[-1])
    assert decoder.lengths.tolist() == [len(text) for text in texts]
    # One row by itself again, then all.
    for row, more in ((1, [5, 6, 7]), (1, [8]), (0, [9, 10])):
        texts[row] += more
        assert_close(decoder.prefill(row, more), alone(ours, texts[row])[-1])
    logits = decoder.decode_one_token([20, 21, 22])
    for row, text in enumerate(texts):
        assert_close(logits[row], alone(ours, [*text, 20 + row])[-1])


@pytest.mark.parametrize("joined", [False, True])
def test_rows_go_on_from_their_parents(model, joined):
    ours, texts = model("llama", "standard", "dynamic"), [list(prompt) for prompt in PROMPTS]
    decoder = ours.new_decoder(3, CONTEXT)
    for row, prompt in enumerate(PROMPTS):
        decoder.prefill(row, prompt)
    if joined:
        decoder.decode_one_token([3, 4, 5])
        texts = [[*text, 3 + row] for row, text in enumerate(texts)]
    parents = np.array([1, 1, 0])
    copied = decoder.reorder(parents)
    # Row 1 stays; the others have all slots of the longest.
    assert copied == (2 * 12 * decoder.cache.bytes // (3 * CONTEXT) if joined else 0)
    texts = [texts[parent] for parent in parents]
    assert decoder.lengths.tolist() == [len(text) for text in texts]
    for tokens in ([30, 31, 32], [40, 41, 42]):
        texts = [[*text, token] for text, token in zip(texts, tokens, strict=True)]
        logits = decoder.decode_one_token(tokens)
        for row, text in enumerate(texts):
            assert_close(logits[row], alone(ours, text)[-1])


def test_a_cache_is_read_without_its_padding(model):
    ours, theirs = model("llama", "portable", "dynamic"), model("llama")
    decoder = ours.new_decoder(3, CONTEXT)
    decoder.prefill_padded(*pad_left())
    decoder.decode_rows(0, NEXT[:, 0], active=np.array([True, False, True]))
    caches = decoder.cache.read(13)
    for row, length in enumerate(decoder.lengths):
        reference = theirs.new_decoder(1, CONTEXT)
        reference.prefill(0, [*PROMPTS[row], NEXT[row, 0]][:length])
        for layer, expected in zip(caches, reference.cache.read(length), strict=True):
            for part, truth in zip(layer, expected, strict=True):
                assert_close(part[row, :, :length], truth[0])
                assert not part[row, :, length:].any()


def test_a_past_that_is_written_is_read(model):
    ours, text = model("llama", "standard", "dynamic"), [*PROMPTS[1], *NEXT[0]]
    before = ours.new_decoder(1, CONTEXT)
    before.prefill(0, PROMPTS[1])
    caches = before.cache.read(len(PROMPTS[1]))
    decoder = ours.new_decoder(2, CONTEXT)
    decoder.cache.write(len(PROMPTS[1]), lambda layer: tuple(np.repeat(part, 2, 0) for part in caches[layer]))
    decoder.lengths[:] = len(PROMPTS[1])
    assert_close(decoder.prefill_all(0, NEXT[0]), alone(ours, text)[len(PROMPTS[1]) :])
    assert_close(decoder.decode_one_token([7, 8])[1], alone(ours, [*PROMPTS[1], 8])[-1])


def test_a_cache_that_does_not_fit_says_so(model):
    with pytest.raises(RequestError, match=r"the cache for 1 × 1000000000000 tokens takes [\d.]+ GB, and"):
        DynamicCache(
            model("llama", "standard", "dynamic").manifest.cache, CacheTypes(np.float32, np.float32), 1, 10**12
        )


SOURCES = [RANDOM.integers(3, VOCABULARY, length).tolist() for length in (9, 4, 1)]


def test_beams_find_what_they_find_over_onnxruntimes_ops(model, form):
    theirs, ours = model("t5"), model("t5", *form)
    # A random model would write one token forever.
    options = {"max_new_tokens": 14, "no_repeat_ngram_size": 2, "num_beams": 4, "num_return_sequences": 3}
    expected, actual = (each.generate(SOURCES, **options) for each in (theirs, ours))
    for wanted, found in zip(expected, actual, strict=True):
        assert [each.token_ids for each in found] == [each.token_ids for each in wanted]
        assert np.allclose([each.score for each in found], [each.score for each in wanted], atol=1e-4)
    greedy = {"max_new_tokens": 12, "num_beams": 1, "prompt": [0, 5, 9]}
    expected, actual = ([row.token_ids for row in each.generate(SOURCES, **greedy)] for each in (theirs, ours))
    assert actual == expected


def test_targets_of_unequal_lengths_are_those_that_stand_alone(model):
    ours = model("t5", "standard", "dynamic")
    decoder = ours.new_decoder(ours.run_encoder(SOURCES), CONTEXT)
    for row, prompt in enumerate(PROMPTS):
        decoder.prefill(row, prompt)
    for step in range(3):
        logits = decoder.decode_one_token(NEXT[:, step])
        for row, prompt in enumerate(PROMPTS):
            text = [*prompt, *NEXT[row, : step + 1]]
            assert_close(logits[row], ours.new_decoder(ours.run_encoder([SOURCES[row]]), CONTEXT).prefill(0, text))


def test_standard_ops_have_float32_kernels_on_cuda(model, monkeypatch):
    standard = [model("llama", ops, cache).manifest for ops, cache in FORMS]
    ort = model("llama").manifest
    providers = SimpleNamespace(get_available_providers=lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"])
    monkeypatch.setattr("edgeformer.runtime.sessions.session.onnxruntime", lambda: providers)
    monkeypatch.setattr("edgeformer.runtime.sessions.providers.cuda.driver", lambda: SimpleNamespace(absent=False))
    monkeypatch.setattr(
        "edgeformer.runtime.sessions.providers.cuda.cuda_machine", lambda ort: SimpleNamespace(problem=None)
    )
    for manifest in standard:
        assert (manifest.plan.precision, manifest.plan.provider) == ("fp32", "cpu")
        assert choose_provider("auto", manifest) is choose_provider("cuda", manifest) is CUDA
    with pytest.raises(RequestError, match="this bundle is fp32 for the CPU.* or with --ops standard"):
        choose_provider("cuda", ort)
    with pytest.warns(UserWarning, match="this bundle is fp32 for the CPU"):
        assert choose_provider("auto", ort) is CPU
