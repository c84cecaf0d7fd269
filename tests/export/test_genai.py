"""onnxruntime-genai loads the bundles as they are and finds the same greedy tokens."""

import json

import numpy as np
import onnxruntime_genai as og
import pytest
from slow_rows import slow_after, slow_unless

from edgeformer.export import export_model
from edgeformer.runtime import load

STEPS = 48


def genai_greedy(bundle, prompts, steps):
    """Tokens that onnxruntime-genai adds to a batch of prompts of equal length."""
    model = og.Model(str(bundle))
    params = og.GeneratorParams(model)
    length = len(prompts[0]) + steps
    params.set_search_options(max_length=length, min_length=length, do_sample=False, batch_size=len(prompts))
    generator = og.Generator(model, params)
    generator.append_tokens(np.array(prompts, np.int32))
    while not generator.is_done():
        generator.generate_next_token()
    return [list(generator.get_sequence(row)[len(prompts[0]) :]) for row in range(len(prompts))]


def ours_greedy(bundle, prompts, steps):
    """The same through our decoder. As genai does for `min_length`, it never chooses an end of text."""
    model = load(bundle)
    ends = list(model.manifest.tokens.eos)
    chosen = []
    for prompt in prompts:
        decoder = model.new_decoder(1, len(prompt) + steps)
        logits, tokens = decoder.prefill(0, prompt), []
        for _ in range(steps):
            logits[ends] = -np.inf
            tokens.append(int(logits.argmax()))
            logits = decoder.decode_one_token(tokens[-1:])[0]
        chosen.append(tokens)
    return chosen


LLAMAS = [{}, {"tie_word_embeddings": True, "attention_bias": True}, {"head_dim": 32, "num_key_value_heads": 1}]
TYPED = [(options, precision) for options in LLAMAS for precision in ("fp32", "fp16")]


@pytest.mark.parametrize(("options", "precision"), slow_unless([TYPED[2], TYPED[5]], TYPED))
def test_genai_finds_the_same_tokens(make_llama, tmp_path, options, precision):
    folder = make_llama(seed=3, eos_token_id=130, **options)
    bundle = export_model(folder, tmp_path / "bundle", precision=precision, verify=None).path
    prompts = np.random.default_rng(0).integers(3, 128, (2, 11)).tolist()
    expected = ours_greedy(bundle, prompts, STEPS)
    assert genai_greedy(bundle, prompts, STEPS) == expected


LFM2 = {
    "vocab_size": 131, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 130,
    "layer_types": ["conv", "full_attention", "conv", "full_attention"], "tie_word_embeddings": False,
}  # fmt: skip


@pytest.mark.parametrize(
    "options",
    slow_after(2, [
        {"deployment": "desktop"}, {"ops": "portable", "cache": "dynamic"}, {}, {"precision": "fp16"},
        {"ops": "standard", "cache": "static"}, {"precision": "int4"},
    ]),
)  # fmt: skip
def test_genai_keeps_the_states_of_convolutions(make_model, tmp_path, options):
    bundle = export_model(make_model("lfm2", 4, **LFM2), tmp_path / "bundle", verify=None, **options).path
    prompts = np.random.default_rng(0).integers(3, 128, (2, 11)).tolist()
    expected = ours_greedy(bundle, prompts, STEPS)
    assert len(set(expected[0])) > 3
    assert expected[0] != expected[1]
    assert genai_greedy(bundle, prompts, STEPS) == expected


MAMBA2 = {
    "vocab_size": 131, "hidden_size": 64, "num_hidden_layers": 3, "num_heads": 8, "head_dim": 16, "state_size": 12,
    "n_groups": 2, "conv_kernel": 4, "expand": 2, "bos_token_id": 1, "eos_token_id": 130, "pad_token_id": 0,
    "time_step_limit": [0.001, 0.1],
}  # fmt: skip


@pytest.mark.parametrize("options", slow_after(1, [{}, {"ops": "portable", "cache": "dynamic"}]))
def test_genai_runs_a_model_without_attention(make_model, tmp_path, options):
    folder = make_model("mamba2", 3, **MAMBA2)
    bundle = export_model(folder, tmp_path / "bundle", context_length=128, verify=None, **options).path
    prompts = np.random.default_rng(0).integers(3, 128, (2, 11)).tolist()
    expected = ours_greedy(bundle, prompts, STEPS)
    assert len(set(expected[0])) > 3
    assert expected[0] != expected[1]
    assert genai_greedy(bundle, prompts, STEPS) == expected


GROWN = [(ops, cache) for ops in ("standard", "portable") for cache in ("dynamic", "static")]


@pytest.mark.parametrize(("ops", "cache"), slow_unless(GROWN[1:3], GROWN))
def test_genai_finds_the_same_tokens_over_every_form_of_cache(tiny_llama_bundle, tmp_path, ops, cache):
    bundle = export_model("tiny-llama", tmp_path / "bundle", ops=ops, cache=cache, verify=None).path
    config = json.loads((bundle / "genai_config.json").read_text())
    assert config["search"]["past_present_share_buffer"] is (cache == "static")
    prompts = np.random.default_rng(0).integers(3, 2048, (2, 11)).tolist()
    expected = ours_greedy(tiny_llama_bundle, prompts, STEPS)
    assert ours_greedy(bundle, prompts, STEPS) == expected
    assert genai_greedy(bundle, prompts, STEPS) == expected


def test_genai_ends_where_the_model_does(tiny_llama_bundle):
    ours = load(tiny_llama_bundle).generate("470 + 119 =", max_new_tokens=STEPS)
    assert (ours.text, ours.finish_reason) == (" 589", "eos")
    model = og.Model(str(tiny_llama_bundle))
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=STEPS, do_sample=False)
    generator, tokenizer = og.Generator(model, params), og.Tokenizer(model)
    generator.append_tokens(tokenizer.encode("470 + 119 ="))
    while not generator.is_done():
        generator.generate_next_token()
    assert tokenizer.decode(generator.get_sequence(0)) == "470 + 119 = 589"


def test_genai_reads_tokenizer_and_template_of_a_bundle(tiny_llama_bundle):
    model = load(tiny_llama_bundle)
    tokenizer = og.Tokenizer(og.Model(str(tiny_llama_bundle)))
    text = "Once upon a time, 12 + 30 = 42."
    assert tokenizer.encode(text).tolist() == model.tokenizer.encode(text)
    rendered = tokenizer.apply_chat_template('[{"role": "user", "content": "Hi"}]', add_generation_prompt=True)
    assert rendered == model.tokenizer.render_chat([{"role": "user", "content": "Hi"}])
