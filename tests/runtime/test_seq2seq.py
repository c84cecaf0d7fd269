"""Encoder-decoders write what `generate` of transformers writes, over memory that is allocated and bound once.

The oracle runs on the same checkpoint, in float32; scores are compared to 1e-4, which sums of log-probabilities of two
implementations reach.
"""

import json
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
import tokenizers
import torch
import transformers

from edgeformer.checkpoints.found_model import find_model
from edgeformer.contract.tensors import CacheGeometry, past_names, present_names
from edgeformer.errors import RequestError
from edgeformer.export import export_model
from edgeformer.runtime import Seq2SeqLM, load
from edgeformer.runtime.caches.cache_types import CacheTypes
from edgeformer.runtime.caches.static_cache import StaticCache

VOCABULARY = 97
CONTEXT = 48
TOLERANCE = 1e-4

# A random model would write one token forever, and hardly ever a given one, as the one that ends a text.
VARIED = {"max_new_tokens": 14, "no_repeat_ngram_size": 2}
ENDS = [1, 16, 31, 47]
SIZES = {
    "t5": {
        "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 16,
    },
    "bart": {
        "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": CONTEXT,
        "forced_eos_token_id": None,
    },
}  # fmt: skip
TOKENS = {"decoder_start_token_id": 0, "bos_token_id": None, "eos_token_id": ENDS, "pad_token_id": 0}


def sources_of(seed=0, lengths=(9, 4, 1)):
    random = np.random.default_rng(seed)
    return [random.integers(3, VOCABULARY, length).tolist() for length in lengths]


SOURCES = sources_of()


def write_tokenizer(folder, words=VOCABULARY):
    """Token 7 is the word w7, and a text ends with </s>."""
    vocabulary = {"<pad>": 0, "</s>": 1, "<unk>": 2} | {f"w{index}": index for index in range(3, words)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, "<unk>"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    backend.post_processor = tokenizers.processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 1)])
    backend.add_special_tokens(["<pad>", "</s>", "<unk>"])
    backend.save(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module", params=["t5", "bart"])
def pair(request, make_model, tmp_path_factory):
    """One checkpoint, as a bundle (`ours`) and in transformers (`theirs`); the bundle of T5 has a tokenizer."""
    family = request.param
    folder = make_model(
        family, 3, auto="AutoModelForSeq2SeqLM", vocab_size=VOCABULARY, **SIZES[family], **TOKENS | {"eos_token_id": 1}
    )
    (folder / "generation_config.json").write_text(json.dumps(TOKENS))
    if family == "t5":
        write_tokenizer(folder)
    bundle = tmp_path_factory.mktemp("bundles") / family
    export_model(folder, bundle, context_length=CONTEXT, verify=None)
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    return SimpleNamespace(ours=load(bundle), theirs=theirs, folder=folder, bundle=bundle)


only_t5 = pytest.mark.parametrize("pair", ["t5"], indirect=True)
only_bart = pytest.mark.parametrize("pair", ["bart"], indirect=True)


def of_transformers(model, sources, *, prompt=None, **options):
    """(token ids, score) of what transformers generates: a list of each source's, best first; no score if greedy."""
    longest = max(map(len, sources))
    options = options | {"return_dict_in_generate": True, "output_scores": True}
    if prompt is not None:
        options["decoder_input_ids"] = torch.tensor([prompt] * len(sources))
    output = model.generate(
        input_ids=torch.tensor([source + [0] * (longest - len(source)) for source in sources]),
        attention_mask=torch.tensor([[1] * len(source) + [0] * (longest - len(source)) for source in sources]),
        **options,
    )
    written = [until_end(row) for row in output.sequences[:, len(prompt or [0]) :].tolist()]
    scores = [None] * len(written) if output.get("sequences_scores") is None else output.sequences_scores.tolist()
    each = len(written) // len(sources)
    pairs = list(zip(written, scores, strict=True))
    return [pairs[start : start + each] for start in range(0, len(pairs), each)]


def until_end(tokens):
    ends = [place for place, token in enumerate(tokens) if token in ENDS]
    return tokens[: ends[0] + 1] if ends else tokens


def assert_same(found, expected):
    found = [each if isinstance(each, list) else [each] for each in found]
    assert [[each.token_ids for each in row] for row in found] == [[ids for ids, _ in row] for row in expected]
    for each, (_, score) in zip(chain(*found), chain(*expected), strict=True):
        assert (each.score is None) == (score is None)
        assert score is None or abs(each.score - score) <= TOLERANCE * abs(score)
        assert each.finish_reason == ("eos" if each.token_ids[-1] in ENDS else "length")


OPTIONS = [
    {},
    {"no_repeat_ngram_size": 1, "min_new_tokens": 6},
    {"repetition_penalty": 1.3, "suppress_tokens": list(range(30, 50)), "begin_suppress_tokens": [60, 61, 62]},
    {"forced_bos_token_id": 7, "forced_eos_token_id": 1, "bad_words_ids": [[5], [6, 7]]},
    {"prompt": [0, 17, 23], "no_repeat_ngram_size": 1},
    {"num_beams": 4},
    {"num_beams": 4, "num_return_sequences": 4, "length_penalty": 2.0},
    {"num_beams": 4, "num_return_sequences": 2, "length_penalty": -1.0, "early_stopping": True},
    {"num_beams": 3, "early_stopping": "never", "length_penalty": 0.4, "no_repeat_ngram_size": 0},
    {"num_beams": 4, "prompt": [0, 17, 23], "min_new_tokens": 4, "forced_eos_token_id": 1},
    {"encoder_no_repeat_ngram_size": 1},
    {"num_beams": 4, "suppress_tokens": list(range(30, 50)), "renormalize_logits": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_texts_and_scores_are_those_of_transformers(pair, options):
    options = VARIED | options
    expected = of_transformers(pair.theirs, SOURCES, **options)
    found = pair.ours.generate(SOURCES, **options)
    assert_same(found, expected)
    # Nor does a row depend on its neighbours, or on how far they are padded.
    alone = [pair.ours.generate(source, **options) for source in SOURCES]
    assert_same(alone, expected)


def test_the_options_and_sources_of_these_tests_matter(pair):
    # Negative control: no two of the comparisons above are the same one.
    results = [pair.ours.generate(SOURCES, **VARIED | options) for options in OPTIONS]
    results.append(pair.ours.generate(sources_of(9), **VARIED))
    texts = [[row[0] if isinstance(row, list) else row for row in rows] for rows in results]
    assert len({str([(row.token_ids, row.score) for row in rows]) for rows in texts}) == len(texts)
    assert {row.finish_reason for row in chain(*texts)} == {"eos", "length"}


def test_rows_that_have_ended_leave_the_others_alone(pair):
    sources = sources_of(1, (5, 8, 3, 6, 2, 7))
    for options in ({}, {"num_beams": 3}, {"temperature": 1.5, "seed": 3, "top_k": 20}):
        rows = pair.ours.generate(sources, **VARIED | options)
        assert len({len(row.token_ids) for row in rows}) > 1
        alone = [pair.ours.generate(source, **VARIED | options) for source in sources]
        assert [row.token_ids for row in rows] == [row.token_ids for row in alone]


def test_draws_are_repeated_by_their_seed(pair):
    options = {"temperature": 1.0, "max_new_tokens": 20, "min_new_tokens": 20}
    drawn = [pair.ours.generate(SOURCES[0], seed=seed, **options).token_ids for seed in (7, 7, 8)]
    assert drawn[0] == drawn[1] != drawn[2]
    greedy = pair.ours.generate(SOURCES[0], max_new_tokens=20, min_new_tokens=20).token_ids
    assert pair.ours.generate(SOURCES[0], seed=1, top_k=1, **options).token_ids == greedy != drawn[0]
    banned = list(range(3, 60))
    ruled = pair.ours.generate(SOURCES[0], seed=7, suppress_tokens=banned, **options).token_ids
    assert not set(ruled) & set(banned)


@pytest.mark.parametrize("options", [{}, {"temperature": 1.0, "seed": 5}, {"no_repeat_ngram_size": 1}], ids=str)
def test_a_stream_ends_as_generate_does(pair, options):
    expected = pair.ours.generate(SOURCES[0], max_new_tokens=20, **options)
    stream = pair.ours.stream(SOURCES[0], max_new_tokens=20, **options)
    pieces = list(stream)
    result = stream.finish()
    assert (result.token_ids, result.finish_reason) == (expected.token_ids, expected.finish_reason)
    assert "".join(pieces) == (expected.text or "") == (result.text or "")
    assert (len(pieces) > 1) == (pair.ours.tokenizer is not None)


@only_t5
def test_a_text_is_its_tokens_and_tokens_are_their_text(pair):
    [ids] = pair.ours.generate([[17, 23, 40, 1]], max_new_tokens=12)
    text = pair.ours.generate("w17 w23 w40", max_new_tokens=12)
    assert text.token_ids == ids.token_ids
    assert text.text == " ".join(f"w{token}" for token in ids.token_ids if token > 2)
    assert text.prompt_tokens == 4
    assert pair.ours.generate(["w17 w23 w40"], num_beams=2, max_new_tokens=12)[0].text.startswith("w")


@only_t5
def test_stop_texts_end_a_row_and_are_no_part_of_it(pair):
    whole = pair.ours.generate("w17 w23 w40", max_new_tokens=12, no_repeat_ngram_size=1)
    stop = whole.text[5:8]
    batch = pair.ours.generate(["w17 w23 w40", "w5"], max_new_tokens=12, stop=["nowhere", stop], no_repeat_ngram_size=1)
    assert (batch[0].text, batch[0].finish_reason) == (whole.text[: whole.text.find(stop)], "stop")
    stream = pair.ours.stream("w17 w23 w40", max_new_tokens=12, stop=stop, no_repeat_ngram_size=1)
    assert "".join(stream) == batch[0].text


# What models' makers ask for in generation_config.json; BART's for news and for headlines among them.
DEFAULTS = [
    {"max_length": 9},
    {"max_length": 30, "max_new_tokens": 5},
    {"max_length": 20, "num_beams": 3, "length_penalty": 0.3, "early_stopping": True},
    {
        "max_length": 14, "min_length": 8, "num_beams": 4, "length_penalty": 2.0, "no_repeat_ngram_size": 3,
        "early_stopping": True, "forced_bos_token_id": 7, "forced_eos_token_id": 1,
    },
    {"max_length": 12, "suppress_tokens": [28, 63], "begin_suppress_tokens": [7, 40], "bad_words_ids": [[11], [5, 6]]},
    {"max_length": 12, "repetition_penalty": 1.2, "min_new_tokens": 9},
]  # fmt: skip


@contextmanager
def makers_options(pair, folder, options):
    """Both models with a generation_config.json that holds some options."""
    for name in ("config.json", "model.safetensors"):
        (folder / name).symlink_to(pair.folder / name)
    (folder / "generation_config.json").write_text(json.dumps(TOKENS | options))
    found, manifest = find_model(folder), pair.ours.manifest
    pair.ours.manifest = replace(manifest, generation=found.generation_defaults(), tokens=found.special_tokens())
    try:
        yield transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    finally:
        pair.ours.manifest = manifest


@pytest.mark.parametrize("options", DEFAULTS, ids=str)
@pytest.mark.parametrize("prompt", [None, [0, 17, 23]], ids=str)
def test_what_the_models_makers_set_is_the_default(pair, tmp_path, options, prompt):
    with makers_options(pair, tmp_path, options) as theirs:
        expected = of_transformers(theirs, SOURCES, prompt=prompt)
        assert_same(pair.ours.generate(SOURCES, prompt=prompt), expected)


def test_what_a_call_sets_overrules_the_default(pair, tmp_path):
    makers = DEFAULTS[3]
    own = {
        "max_new_tokens": 10, "num_beams": 2, "length_penalty": 0.0, "no_repeat_ngram_size": 0, "early_stopping": False,
        "min_length": 0, "forced_bos_token_id": None, "forced_eos_token_id": None,
    }  # fmt: skip
    plain = {"max_new_tokens": 10, "num_beams": 2, "length_penalty": 0.0}
    with makers_options(pair, tmp_path, makers):
        assert_same(pair.ours.generate(SOURCES, **own), of_transformers(pair.theirs, SOURCES, **plain))
        greedy = pair.ours.generate(SOURCES, num_beams=1, forced_bos_token_id=11)
        assert [row.score for row in greedy] == [None] * 3
        assert {row.token_ids[0] for row in greedy} == {11}


def test_a_draw_and_a_stream_are_no_search_whatever_the_default(pair, tmp_path):
    with makers_options(pair, tmp_path, {"num_beams": 4, "max_length": 9}):
        assert pair.ours.generate(SOURCES[0]).score is not None
        assert pair.ours.uses_beam_search() and not pair.ours.uses_beam_search(num_beams=1, max_new_tokens=3)
        assert not pair.ours.uses_beam_search(temperature=1.0, stop="x")
        drawn = pair.ours.generate(SOURCES[0], temperature=1.0, seed=1)
        assert (drawn.score, len(drawn.token_ids) <= 8) == (None, True)
        greedy = pair.ours.generate(SOURCES[0], num_beams=1)
        assert pair.ours.stream(SOURCES[0]).finish().token_ids == greedy.token_ids


def test_a_prompt_beyond_the_makers_limit_says_so(pair, tmp_path):
    # transformers refuses it too.
    with makers_options(pair, tmp_path, {"max_length": 5}):
        with pytest.raises(RequestError, match="^the prompt has 6 tokens, .* 5, .*, or give max_new_tokens.$"):
            pair.ours.generate(SOURCES[0], prompt=[0] * 6)
        assert len(pair.ours.generate(SOURCES[0], prompt=[0] * 6, max_new_tokens=2, min_new_tokens=2).token_ids) == 2


def test_the_bundle_holds_what_the_makers_set(pair):
    assert isinstance(pair.ours, Seq2SeqLM)
    assert not pair.ours.is_speech
    assert pair.ours.manifest.generation == {"decoder_start_token_id": 0}
    assert pair.ours.manifest.tokens.eos == tuple(ENDS)
    assert pair.ours.manifest.context_length == CONTEXT


def test_without_a_limit_a_text_is_as_long_as_the_model_allows(pair):
    row = pair.ours.generate(SOURCES[0], suppress_tokens=ENDS)
    assert (len(row.token_ids), row.finish_reason) == (CONTEXT - 1, "length")
    row = pair.ours.generate(SOURCES[0], prompt=[0] * (CONTEXT - 2), suppress_tokens=ENDS)
    assert len(row.token_ids) == 2
    row = pair.ours.generate(SOURCES[0], max_new_tokens=CONTEXT - 1, suppress_tokens=ENDS, num_beams=2)
    assert len(row.token_ids) == CONTEXT - 1


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ([], {}, "the source is empty; give at least one token."),
        ([[5], []], {}, "the source is empty"),
        ([VOCABULARY], {}, "the source has token ids outside 0 to 96, the model's vocabulary."),
        ([[5], [-1]], {}, "the source has token ids outside 0 to 96"),
        ([5] * 49, {}, "^the source has 49 tokens, and the model takes 48 at most. Shorten it or split it."),
        ([5], {"prompt": []}, "^the prompt is empty"),
        ([5], {"prompt": [0, 97]}, "^the prompt has token ids outside 0 to 96"),
        ([5], {"prompt": [0] * 48}, "^the prompt has 48 tokens, and the model generates 48, the prompt included."),
        ([5], {"prompt": [0] * 60}, "^the prompt has 60 tokens, and the model generates 48, the prompt included."),
        ([5], {"max_new_tokens": 0}, r"^max_new_tokens is 0; it must be at least 1\.$"),
        ([5], {"max_new_tokens": 48}, "^max_new_tokens is 48; .* at most 47: the model generates 48 tokens."),
        ([5], {"max_new_tokens": 46, "prompt": [0, 1, 2]}, "^max_new_tokens is 46; .* prompt of 3, at most 45"),
        ([5], {"num_beam": 3}, "^there is no option num_beam; there are bad_words_ids, .*, num_beams, .*, stop. Did"),
        ([5], {"num_beams": 0}, r"^num_beams is 0; it must be between 1 \(greedy\) and 65,536\.$"),
        ([5], {"num_beams": 2, "num_return_sequences": 3}, "^num_return_sequences is 3; it must be between 1 and"),
        ([5], {"num_beams": 2, "temperature": 0.5}, "^num_beams searches and temperature draws; give only one"),
        ([5], {"num_beams": 2, "stop": "x"}, "^stop texts do not work with beams; use num_beams=1."),
        ([5], {"temperature": -1.0}, "^temperature is -1.0; it must be 0"),
        ([5], {"repetition_penalty": 0}, "^repetition_penalty is 0; it must be above 0"),
        ([5], {"forced_bos_token_id": 97}, "^forced_bos_token_id has the token id 97, outside 0 to 96"),
        ([5], {"suppress_tokens": range(97), "num_beams": 2}, "^no token can follow: the rules ban every one"),
    ],
)  # fmt: skip
def test_a_request_that_cannot_be_served_says_why(pair, source, options, message):
    with pytest.raises(RequestError, match=message):
        pair.ours.generate(source, **options)


def test_a_stream_is_of_one_row(pair):
    with pytest.raises(RequestError, match="^beams cannot be streamed; use generate, or num_beams=1."):
        pair.ours.stream(SOURCES[0], num_beams=2)
    with pytest.raises(RequestError, match="^num_return_sequences is 3; it must be between 1 and num_beams"):
        pair.ours.stream(SOURCES[0], num_return_sequences=3)
    with pytest.raises(RequestError, match="^a stream is of one source; for several, use generate."):
        pair.ours.stream(SOURCES)


@only_bart
def test_a_bundle_without_a_tokenizer_takes_ids_and_says_so(pair):
    assert pair.ours.generate(SOURCES[0], max_new_tokens=3).text is None
    assert pair.ours.generate(SOURCES[0], max_new_tokens=3, num_beams=2).text is None
    for call in (
        lambda: pair.ours.generate("Hi"),
        lambda: pair.ours.generate([5], stop="x"),
        lambda: pair.ours.translate("Hi"),
    ):
        with pytest.raises(RequestError, match=r"has no tokenizer\.json, so it takes token ids, not text"):
            call()
    with pytest.raises(RequestError, match="^this model takes text, not speech. Use generate or translate."):
        pair.ours.transcribe(np.zeros(9, np.float32))


# How it is done: the encoder runs once, the decoder works in place.


class Recording:
    """A session that counts its runs, and remembers at which addresses tensors were bound, by name."""

    def __init__(self, session):
        self._session = session
        self.runs = 0
        self.inputs, self.outputs = {}, {}

    def __getattr__(self, name):
        return getattr(self._session, name)

    def io_binding(self):
        binding = self._session.io_binding()
        return SimpleNamespace(
            bind_cpu_input=binding.bind_cpu_input,
            bind_input=lambda name, *rest: self.inputs.update({name: rest[-1]}) or binding.bind_input(name, *rest),
            bind_output=lambda name, *rest: self.outputs.update({name: rest[-1]}) or binding.bind_output(name, *rest),
            inner=binding,
        )

    def run_with_iobinding(self, binding):
        self.runs += 1
        self._session.run_with_iobinding(binding.inner)


@pytest.mark.parametrize("options", [{}, {"num_beams": 4}, {"temperature": 1.0}, {"prompt": [0, 5, 6]}], ids=str)
def test_the_encoder_runs_once_for_a_request(pair, monkeypatch, options):
    encoder, decoder = Recording(pair.ours._encoder), Recording(pair.ours.session)
    monkeypatch.setattr(pair.ours, "_encoder", encoder)
    monkeypatch.setattr(pair.ours, "session", decoder)
    rows = pair.ours.generate(SOURCES, max_new_tokens=12, suppress_tokens=ENDS, **options)
    assert encoder.runs == 1
    assert {len(row.token_ids) for row in rows} == {12}
    assert decoder.runs == 12, "the prompt is fed in one run, and every token but the last in one of its own"


def test_the_decoder_reuses_the_source_and_copies_no_cache(pair):
    manifest = pair.ours.manifest
    graph = onnx.load(pair.bundle / manifest.graph, load_external_data=False).graph
    across = manifest.model.decoder.cross_geometry
    inputs = {value.name for value in graph.input}
    assert set(past_names(manifest.cache, "decoder.") + past_names(across, "encoder.")) < inputs
    assert not any("hidden_state" in name for name in inputs)
    weights = [manifest.weights[tensor.name] for tensor in graph.initializer if tensor.name in manifest.weights]
    across_weights = {name.split(".")[-2] for weight in weights for name in weight.parameters if ".cross_at" in name}
    assert across_weights == {"query", "output", "cross_attention_norm"}

    def readers(name):
        return [node for node in graph.node if name in node.input and node.op_type != "Shape"]

    for past, present in zip(
        past_names(manifest.cache, "decoder."), present_names(manifest.cache, "decoder."), strict=True
    ):
        [node] = readers(past)
        assert node.op_type == "CachedAttention"
        assert present in node.output
        assert not readers(present)
    for name in past_names(across, "encoder."):
        assert [node.op_type for node in readers(name)] == ["SourceAttention"]


def test_past_and_present_share_memory_and_sources_are_read(pair, monkeypatch):
    session = Recording(pair.ours.session)
    monkeypatch.setattr(pair.ours, "session", session)
    decoder = pair.ours.new_decoder(pair.ours.run_encoder(SOURCES), CONTEXT)
    decoder.decode_one_token([0, 0, 0])
    first = dict(session.inputs)
    decoder.decode_one_token([5, 6, 7])
    cache, across = pair.ours.manifest.cache, pair.ours.manifest.model.decoder.cross_geometry
    pasts, presents = past_names(cache, "decoder."), present_names(cache, "decoder.")
    assert [session.inputs[name] for name in pasts] == [session.outputs[name] for name in presents]
    kept = pasts + past_names(across, "encoder.")
    assert len({session.inputs[name] for name in kept}) == len(kept)
    assert {name: session.inputs[name] for name in kept} == {name: first[name] for name in kept}
    assert session.outputs.keys() == {"logits", *presents}, "no output takes the place of a source"


def bits(array):
    return array.view(np.uint32)


def test_a_step_changes_one_slot_of_each_row(pair):
    sources = pair.ours.run_encoder(SOURCES)
    decoder = pair.ours.new_decoder(sources, CONTEXT)
    decoder.cache.fill(np.nan)
    for row, prompt in enumerate(([0], [0, 11, 12, 13], [0, 5])):
        decoder.prefill(row, prompt)
    for tokens in ([20, 21, 22], [30, 31, 32]):
        before, read = decoder.cache.read(CONTEXT), sources.read()
        decoder.decode_one_token(tokens)
        for layer, new in zip(before, decoder.cache.read(CONTEXT), strict=True):
            for old_part, new_part in zip(layer, new, strict=True):
                changed = (bits(old_part) != bits(new_part)).any(3)  # [B, K, C]
                slots = np.arange(CONTEXT) == decoder.lengths[:, None, None] - 1
                assert (changed == slots).all()
        for layer, new in zip(read, sources.read(), strict=True):
            assert all((bits(part) == bits(other)).all() for part, other in zip(layer, new, strict=True))
    assert decoder.lengths.tolist() == [3, 6, 4]


def test_rows_fed_by_themselves_are_those_fed_together(pair):
    prompts = [[0, 17, 23], [0, 40, 41], [0, 5, 6]]
    together = pair.ours.new_decoder(pair.ours.run_encoder(SOURCES), 8).prefill_batch(np.array(prompts), [3, 3, 3])
    decoder = pair.ours.new_decoder(pair.ours.run_encoder(SOURCES), 8)
    for row, prompt in enumerate(prompts):
        alone = pair.ours.new_decoder(pair.ours.run_encoder([SOURCES[row]]), 8)
        logits = [alone.decode_one_token([token])[0].copy() for token in prompt]
        assert np.abs(np.stack(logits) - together[row]).max() <= TOLERANCE
        assert np.abs(decoder.prefill_all(row, prompt) - together[row]).max() <= TOLERANCE


def test_each_source_is_read_by_as_many_rows_as_it_has_copies(pair):
    once, twice = pair.ours.run_encoder(SOURCES), pair.ours.run_encoder(SOURCES, copies=2)
    assert twice.bytes == 2 * once.bytes
    assert once.bytes == sum(part.nbytes for layer in once.read() for part in layer)
    assert twice.mask.tolist() == np.repeat(once.mask, 2, 0).tolist()
    assert once.mask.sum(1).tolist() == [9, 4, 1]
    for layer, repeated in zip(once.read(), twice.read(), strict=True):
        for part, other in zip(layer, repeated, strict=True):
            assert (bits(other) == bits(np.repeat(part, 2, 0))).all()
    states = pair.theirs.get_encoder()(input_ids=torch.tensor(SOURCES[:1])).last_hidden_state
    assert np.abs(once.states[0] - states[0].detach().numpy()).max() <= TOLERANCE


GEOMETRY = CacheGeometry.of_attention(num_layers=2, num_kv_heads=3, head_dim=4)
TOKEN_BYTES = 2 * 2 * 3 * 4 * 4
"""Of one token of one row: keys and values of two layers, three heads of four float32."""


@pytest.mark.parametrize(
    ("parents", "moved"),
    [([0, 1, 2, 3], 0), ([1, 0, 3, 2], 4), ([1, 1, 0, 3], 2), ([2, 2, 2, 2], 3), ([3, 0, 1, 2], 4), ([0, 0, 2, 3], 1)],
)
def test_rows_of_a_cache_take_the_places_of_their_parents(parents, moved):
    cache = StaticCache(GEOMETRY, CacheTypes(np.float32, np.float32), 4, 9)
    random = np.random.default_rng(0)
    content = [random.standard_normal((2, 4, 3, 9, 4)).astype(np.float32) for _ in range(2)]
    cache.write(9, lambda layer: tuple(content[layer]))
    assert cache.reorder(np.array(parents), 5) == moved * 5 * TOKEN_BYTES
    for layer, before in zip(cache.read(9), content, strict=True):
        for part, old in zip(layer, before, strict=True):
            assert (part[:, :, :5] == old[parents, :, :5]).all()
            assert (part[:, :, 5:] == old[:, :, 5:]).all(), "what is no token yet is not copied"


def test_a_cache_that_is_in_order_is_not_touched():
    cache = StaticCache(GEOMETRY, CacheTypes(np.float32, np.float32), 2, 9)
    cache.fill(np.nan)
    before = cache.read(9)
    assert cache.reorder(np.array([0, 1]), 9) == 0
    for layer, old in zip(cache.read(9), before, strict=True):
        assert all((bits(part) == bits(other)).all() for part, other in zip(layer, old, strict=True))


def test_rows_go_on_from_their_parents(pair):
    prompts = [[0, 17], [0, 40], [0, 5]]
    parents = np.array([2, 0, 0])
    decoder = pair.ours.new_decoder(pair.ours.run_encoder([SOURCES[0]], copies=3), 8)
    decoder.prefill_batch(np.array(prompts), [2, 2, 2])
    assert decoder.reorder(parents) == 3 * 2 * decoder.cache.bytes // (3 * 8)
    first = decoder.decode_one_token([50, 51, 52]).copy()
    # Once more, with a row that stays.
    assert decoder.reorder(np.array([0, 2, 1])) == 2 * 3 * decoder.cache.bytes // (3 * 8)
    second = decoder.decode_one_token([60, 61, 62]).copy()
    for row, (tokens, place) in enumerate((([50, 60], 0), ([52, 61], 2), ([51, 62], 1))):
        alone = pair.ours.new_decoder(pair.ours.run_encoder([SOURCES[0]]), 8)
        logits = alone.prefill_all(0, prompts[parents[place]] + tokens)
        assert np.abs(first[place] - logits[-2]).max() <= TOLERANCE
        assert np.abs(second[row] - logits[-1]).max() <= TOLERANCE


def test_rows_of_unequal_lengths_are_reordered(pair):
    decoder = pair.ours.new_decoder(pair.ours.run_encoder([SOURCES[0]], copies=2), 8)
    decoder.prefill(0, [0])
    decoder.prefill(1, [0, 17, 23])
    assert decoder.reorder(np.array([1, 0])) == 2 * 3 * decoder.cache.bytes // (2 * 8)
    assert decoder.lengths.tolist() == [3, 1]
    logits = decoder.decode_one_token([30, 31]).copy()
    for row, tokens in enumerate(([0, 17, 23, 30], [0, 31])):
        alone = pair.ours.new_decoder(pair.ours.run_encoder([SOURCES[0]]), 8).prefill(0, tokens)
        assert np.abs(logits[row] - alone).max() <= TOLERANCE


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ({"a": [2]}, r"decoder_start_token_id\[0\] is \{'a': \[2\]\} \(dict\); it must be a whole number"),
        (10**6, "the decoder_start_token_id has token ids outside 0 to"),
    ],
)
def test_a_start_that_is_no_token_is_refused_by_name(pair, monkeypatch, start, message):
    manifest = replace(pair.ours.manifest, generation={"decoder_start_token_id": start})
    monkeypatch.setattr(pair.ours, "manifest", manifest)
    with pytest.raises(RequestError, match=message):
        pair.ours.generate([5, 6], max_new_tokens=2)
