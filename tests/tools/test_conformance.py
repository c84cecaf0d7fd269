"""Clients load the same bundle and generate the same tokens; differences, failures and missing clients are reported.

transformers.js is taken from EDGEFORMER_NODE_MODULES or examples/node/node_modules, onnxruntime's C++ headers from
EDGEFORMER_ONNXRUNTIME, Optimum from the interpreter EDGEFORMER_OPTIMUM; tests of what is not there are skipped and say
what would install it.
"""

import functools
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from click.testing import CliRunner
from slow_rows import slow_after, slow_unless
from verification import conformance
from verification.client_programs.browser import STATUS, TEXT, open_page, write
from verification.client_programs.client import EXAMPLES, ClientError, Places
from verification.client_programs.programs import PythonClient, with_modules
from verification.client_programs.registry import CLIENTS

from edgeformer.export import export_model
from edgeformer.runtime import load

STEPS = 48
SIZES = {
    "vocab_size": 131, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "bos_token_id": 1, "eos_token_id": 130,
}  # fmt: skip
# Random models with tied embeddings repeat one token.
MODELS = {
    "llama": SIZES,
    "qwen3": SIZES | {"head_dim": 32},
    "gemma2": SIZES
    | {
        "head_dim": 16, "sliding_window": 8, "query_pre_attn_scalar": 16, "pad_token_id": 0,
        "tie_word_embeddings": False,
    },
    "gpt2": {
        "vocab_size": 131, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 256, "bos_token_id": 1,
        "eos_token_id": 130, "tie_word_embeddings": False,
    },
    "lfm2": SIZES
    | {
        "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"], "conv_L_cache": 4,
        "block_auto_adjust_ff_dim": False, "tie_word_embeddings": False,
    },
    "falcon_h1": SIZES
    | {
        "mamba_d_ssm": 128, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 12,
        "tie_word_embeddings": False,
    },
}  # fmt: skip
FAST = ("llama", "falcon_h1")
"""Attention alone, and with states beside it; the others are slow."""
START = {
    "vocab_size": 131, "d_model": 64, "decoder_start_token_id": 0, "pad_token_id": 0, "bos_token_id": 1,
    "eos_token_id": 130,
}  # fmt: skip
BART = START | {
    "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "max_position_embeddings": 64, "forced_eos_token_id": None,
    "tie_word_embeddings": False,
}  # fmt: skip
PAIRS = {
    "t5": START | {"d_kv": 16, "d_ff": 96, "num_layers": 2, "num_heads": 4},
    "marian": BART | {"share_encoder_decoder_embeddings": False, "scale_embedding": True},
    "bart": BART,
}
# Models that generate many different tokens, so that one wrong layer would show.
SEEDS = {"llama": 5, "qwen3": 6, "gemma2": 5, "gpt2": 8, "lfm2": 5, "falcon_h1": 5, "t5": 7, "marian": 4, "bart": 10}

NODE = "transformers.js (Node)"
OPTIMUM = "Optimum"
BROWSER = "transformers.js (browser)"
CPP = "onnxruntime (C++)"
IN_PYTHON = ("onnxruntime", "onnxruntime-genai")


@pytest.fixture(scope="session")
def places():
    modules = os.environ.get("EDGEFORMER_NODE_MODULES", EXAMPLES / "node" / "node_modules")
    headers, optimum = os.environ.get("EDGEFORMER_ONNXRUNTIME"), os.environ.get("EDGEFORMER_OPTIMUM")
    return Places(
        node_modules=Path(modules),
        onnxruntime=Path(headers) if headers else None,
        pythons={OPTIMUM: Path(optimum)} if optimum else {},
    )


def require(name, places):
    """Return the client, or skip with what is missing."""
    lacking = CLIENTS[name].missing(places)
    if lacking is not None:
        pytest.skip(f"2026-11-22: needs a client that pip does not install here: {lacking}")
    return CLIENTS[name]


@pytest.fixture(scope="module")
def checkpoints(make_model):
    """Return a function that returns a family's checkpoint, which is made once."""
    return functools.cache(lambda family: make_model(family, SEEDS[family], **MODELS[family]))


@pytest.fixture(scope="module")
def bundles(checkpoints, tmp_path_factory):
    """Return a function that returns a family's bundle, which is made once."""
    folder = tmp_path_factory.mktemp("bundles")
    return functools.cache(lambda family: export_model(checkpoints(family), folder / family, verify=None).path)


PROMPTS = np.random.default_rng(3).integers(3, 130, (1, 11)).tolist()


def of_torch(checkpoint):
    """Return the greedy tokens of transformers."""
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    prompt = torch.tensor(PROMPTS)
    with torch.no_grad():
        mask = torch.ones_like(prompt)
        tokens = model.generate(prompt, attention_mask=mask, max_new_tokens=STEPS, do_sample=False)
    return tokens[:, prompt.shape[1] :].tolist()


# The same tokens


@pytest.mark.parametrize("family", slow_unless(FAST, MODELS))
def test_clients_in_python_find_the_tokens_of_transformers(family, bundles, checkpoints, places):
    clients = {name: CLIENTS[name] for name in IN_PYTHON}
    results = conformance.compare(clients, bundles(family), PROMPTS, STEPS, places)
    assert {name: result["note"] for name, result in results.items()} == dict.fromkeys(results, "")
    assert all(result["versions"] for result in results.values())
    tokens = results["edgeformer"]["tokens"]
    assert tokens == [conformance.until_end(row, [130]) for row in of_torch(checkpoints(family))]
    assert len(set(tokens[0])) > 5, "a model that says few words would hide much"


@pytest.mark.parametrize("family", slow_unless(FAST, MODELS))
def test_transformers_js_in_node_finds_the_same(family, bundles, places):
    results = conformance.compare({NODE: require(NODE, places)}, bundles(family), PROMPTS, STEPS, places)
    assert results[NODE]["note"] == ""
    assert results[NODE]["status"] == "same"


@pytest.mark.parametrize("options", [{"ops": "standard", "cache": "static"}, {"ops": "portable", "precision": "fp16"}])
def test_every_form_of_cache_runs_in_plain_onnxruntime(options, checkpoints, tmp_path, places):
    bundle = export_model(checkpoints("llama"), tmp_path / "bundle", verify=None, **options).path
    results = conformance.compare({"onnxruntime": CLIENTS["onnxruntime"]}, bundle, PROMPTS, STEPS, places)
    assert results["onnxruntime"]["note"] == ""


@pytest.mark.parametrize("family", slow_after(1, ["falcon_h1", "llama", "lfm2"]))
def test_the_cpp_example_compiles_and_finds_the_same(family, bundles, places):
    results = conformance.compare({CPP: require(CPP, places)}, bundles(family), PROMPTS, STEPS, places)
    assert results[CPP]["note"] == ""
    assert results[CPP]["status"] == "same"


# Encoder-decoders


@pytest.fixture(scope="module")
def pair(make_model, tmp_path_factory):
    """Return a function that returns bundle and checkpoint of a random model that does not repeat itself."""

    @functools.cache
    def of_family(family, precision="fp32"):
        checkpoint = make_model(family, SEEDS[family], auto="AutoModelForSeq2SeqLM", **PAIRS[family])
        generation = checkpoint / "generation_config.json"
        generation.write_text(json.dumps(json.loads(generation.read_text()) | {"no_repeat_ngram_size": 2}))
        place = tmp_path_factory.mktemp("pairs") / family
        return export_model(checkpoint, place, context_length=64, precision=precision, verify=None).path, checkpoint

    return of_family


@pytest.mark.parametrize("family", slow_after(1, ["t5", "bart", "marian"]))
def test_our_runtime_writes_of_a_source_what_transformers_writes(family, pair):
    bundle, checkpoint = pair(family)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(checkpoint, dtype=torch.float32).eval()
    source = torch.tensor(PROMPTS)
    with torch.no_grad():
        options = {"max_new_tokens": STEPS, "do_sample": False, "num_beams": 1}
        tokens = model.generate(source, attention_mask=torch.ones_like(source), **options)
    (found,) = conformance.ours(bundle, PROMPTS, STEPS)
    assert found == tokens[0, 1:].tolist()
    assert len(set(found)) > 10, "a model that says few words would hide much"


@pytest.mark.parametrize(
    ("family", "precision"), slow_after(1, [("t5", "fp32"), ("bart", "fp32"), ("marian", "fp32"), ("t5", "int8")])
)
@pytest.mark.parametrize("name", [NODE, OPTIMUM])
def test_other_clients_write_the_same_of_a_source(name, family, precision, pair, places):
    bundle, _ = pair(family, precision)
    results = conformance.compare({name: require(name, places)}, bundle, PROMPTS, STEPS, places)
    assert results[name]["note"] == ""
    assert results[name]["status"] == "same"


def test_a_text_is_translated_in_node_as_by_us(tiny_translate_bundle, places):
    require(NODE, places)
    text = "translate English to German: The old man does not draw the young cat."
    with with_modules(EXAMPLES / "node", places) as folder:
        done = subprocess.run(
            ["node", "translate.mjs", tiny_translate_bundle, text], cwd=folder, capture_output=True, text=True
        )
    assert done.stdout == load(tiny_translate_bundle).generate(text, num_beams=1).text + "\n", done.stderr
    assert done.stdout == "Der alte Mann zeichnet die junge Katze nicht.\n"


def test_the_javascript_of_a_seq2seq_card_writes_what_ours_does(tiny_translate_bundle, run_card):
    expected = load(tiny_translate_bundle).generate("A text to translate or to shorten.", num_beams=1).text
    assert run_card(tiny_translate_bundle) == f"{expected}\n"


def test_only_clients_that_know_seq2seq_are_asked_about_it(pair, tmp_path, monkeypatch):
    bundle, _ = pair("t5")
    decoders = stand_in(tmp_path, "decoders", "raise ValueError('asked')")
    both = replace(stand_in(tmp_path, "both", "raise ValueError('asked')"), tasks=("causal-lm", "seq2seq-lm"))
    monkeypatch.setattr(conformance, "CLIENTS", {"decoders": decoders, "both": both})
    run = CliRunner().invoke(conformance.main, [str(bundle), "--new-tokens", "3"])
    assert run.exit_code == 1, run.output
    assert "both failed: ValueError: asked" in run.output
    assert "decoders" not in run.output


# Texts


def program(name, places):
    """Return the command that runs an example, and its working directory."""
    if name == NODE:
        require(NODE, places)
        return ["node", "main.mjs"], with_modules(EXAMPLES / "node", places)
    return [sys.executable, CLIENTS[name].file], with_modules(EXAMPLES / "node", places)


@pytest.mark.parametrize("name", [*IN_PYTHON, NODE])
def test_an_example_writes_the_runtimes_text_and_stops(name, tiny_llama_bundle, places):
    line, folder = program(name, places)
    with folder as place:
        for prompt in ("470 + 119 =", "Once upon a time"):
            expected = prompt + load(tiny_llama_bundle).generate(prompt, max_new_tokens=64).text
            done = subprocess.run([*line, tiny_llama_bundle, prompt], cwd=place, capture_output=True, text=True)
            assert done.stdout == expected + "\n", done.stderr


def test_the_page_streams_the_text_of_our_runtime(tiny_llama_bundle, places):
    require(BROWSER, places)
    with open_page(tiny_llama_bundle, places) as page:
        assert page.value(f"{STATUS}.textContent") == "Ready."
        page.value(
            f"window.states = []; new MutationObserver(() => states.push({TEXT}.textContent))"
            f".observe({TEXT}, {{childList: true}})"
        )
        ids = [int(word) for word in write(page, "Once upon a time").split()]
        states, text = page.value("states"), page.value(f"{TEXT}.textContent")
        assert page.screenshot().startswith(b"\x89PNG")
    expected = load(tiny_llama_bundle).generate("Once upon a time", max_new_tokens=64)
    assert ids == expected.token_ids
    assert text == states[-1] == expected.text  # the page has the beginning before it
    assert len(set(states)) > 20
    assert all(after.startswith(before) for before, after in itertools.pairwise(states))


@pytest.mark.parametrize("family", slow_after(1, ["qwen3", "gemma2"]))
def test_a_browser_finds_the_same(family, bundles, places):
    results = conformance.compare({BROWSER: require(BROWSER, places)}, bundles(family), PROMPTS, STEPS, places)
    assert results[BROWSER]["note"] == ""
    assert results[BROWSER]["status"] == "same"


@pytest.fixture
def run_card(places, tmp_path):
    """Return a function that runs the JavaScript of a bundle's card and returns what it prints."""
    require(NODE, places)

    def run(bundle):
        code = re.search(r"```js\n(.*?)```", (bundle / "README.md").read_text(), re.DOTALL)[1]
        (tmp_path / "card.mjs").write_text(code)
        (tmp_path / "node_modules").symlink_to(places.node_modules.resolve())
        # A module finds its packages from where it stands, and the bundle from where it was started.
        done = subprocess.run(["node", tmp_path / "card.mjs"], cwd=bundle, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_the_javascript_of_a_card_writes_what_ours_writes(tiny_llama_bundle, run_card):
    expected = load(tiny_llama_bundle).generate("Once upon a time", max_new_tokens=64).text
    assert run_card(tiny_llama_bundle) == f"Once upon a time{expected}\n"


# Encoders


@pytest.fixture(scope="module")
def encoders(make_model, tmp_path_factory):
    from tokenizers import Tokenizer, models, pre_tokenizers

    config = {
        "vocab_size": 40, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "max_position_embeddings": 48,
    }  # fmt: skip
    made = {}
    for name, auto, options in (("masked", "AutoModelForMaskedLM", {}), ("vectors", "AutoModel", {"pooling": "mean"})):
        folder = make_model("bert", 11, auto=auto, **config)
        words = ["[PAD]", "[UNK]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]
        backend = Tokenizer(models.WordLevel({word: id for id, word in enumerate(words)}, "[UNK]"))
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        backend.add_special_tokens(words[:3])
        backend.save(str(folder / "tokenizer.json"))
        special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}
        (folder / "tokenizer_config.json").write_text(json.dumps(special))
        made[name] = export_model(folder, tmp_path_factory.mktemp(name) / name, verify=None, **options).path
    return made


TEXTS = ["a b c", "d e f g h"]


def test_the_vectors_of_an_encoder_are_ours_in_node(encoders, places):
    require(NODE, places)
    with with_modules(EXAMPLES / "node", places) as folder:
        line = ["node", "embed.mjs", encoders["vectors"], *TEXTS]
        done = subprocess.run(line, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    expected = load(encoders["vectors"]).embed(TEXTS)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(json.loads(done.stdout), expected, atol=1e-5)
    assert np.abs(expected[0] - expected[1]).max() > 0.1, "texts with one vector would hide much"


def test_the_javascript_of_an_encoders_card_runs(encoders, run_card):
    assert "dims: [ 2, 32 ]" in run_card(encoders["vectors"])


def test_a_masked_word_is_filled_in_node_as_by_us(encoders, places):
    require(NODE, places)
    code = """
        import { env, pipeline } from "@huggingface/transformers";
        env.allowRemoteModels = false;
        const fill = await pipeline("fill-mask", process.argv[1]);
        const found = await fill("a [MASK] c");
        console.log(JSON.stringify(found.map(({ token, score }) => [token, score])));
    """
    with with_modules(EXAMPLES / "node", places) as folder:
        line = ["node", "--input-type=module", "--eval", code, encoders["masked"]]
        done = subprocess.run(line, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    expected = [(row.token_id, row.probability) for row in load(encoders["masked"]).fill_mask("a [MASK] c")]
    np.testing.assert_allclose(json.loads(done.stdout), expected, atol=1e-5)


# Faults are found


def test_a_damaged_weight_gives_other_tokens(bundles, tmp_path, places):
    damaged = shutil.copytree(bundles("llama"), tmp_path / "damaged")
    data = damaged / "onnx" / "model.onnx_data"
    values = np.fromfile(data, np.float32)
    values[len(values) // 2 :] *= -1
    values.tofile(data)
    expected = conformance.ours(bundles("llama"), PROMPTS, STEPS)
    found = CLIENTS["onnxruntime"].generate(damaged, PROMPTS, STEPS, places)
    assert "tokens agree, then" in conformance.difference(expected, found)


def test_a_client_with_a_wrong_config_does_not_find_the_graph(tiny_llama_bundle, tmp_path, places):
    client = require(BROWSER, places)
    bundle = shutil.copytree(tiny_llama_bundle, tmp_path / "bundle")
    config = json.loads((bundle / "config.json").read_text())
    config["transformers.js_config"]["dtype"] = "q8"
    size = (bundle / "config.json").stat().st_size  # the page refuses a file of another size
    (bundle / "config.json").write_text(json.dumps(config).ljust(size))
    with pytest.raises(ClientError, match="model_quantized.onnx"):
        client.generate(bundle, PROMPTS, STEPS, places)


def test_where_tokens_part_is_told():
    assert conformance.difference([[1, 2], [3, 4]], [[1, 2], [3, 4]]) is None
    assert conformance.difference([[1, 2], [3, 4]], [[1, 2], [3, 5]]) == "prompt 2: 1 tokens agree, then 5 instead of 4"
    said = "prompt 1: 2 tokens agree, then the end instead of 3"
    assert conformance.difference([[1, 2, 3]], [[1, 2]]) == said
    assert conformance.until_end([4, 2, 5], [2, 3]) == [4]


STAND_IN = "import sys; assert '--ids' in sys.argv and sys.argv[-1] == '3'; {}"


def stand_in(tmp_path, name, code, module="json"):
    file = tmp_path / f"{name}.py"
    file.write_text(STAND_IN.format(code))
    return PythonClient(name, file, (module,), ("numpy",), f"pip install {name}")


def test_the_report_tells_same_from_different_failed_and_missing(llama_bundle, tmp_path, monkeypatch):
    prompts = conformance.random_prompts(load(llama_bundle).manifest)
    answers = {" ".join(map(str, prompt)): load(llama_bundle).generate(prompt, max_new_tokens=3) for prompt in prompts}
    right = {prompt: answer.token_ids for prompt, answer in answers.items()}
    clients = {
        "good": stand_in(tmp_path, "good", f"print(*{right!r}[sys.argv[2]])"),
        "wrong": stand_in(tmp_path, "wrong", "print(1, 7, 1)"),
        "chatty": stand_in(tmp_path, "chatty", "print('Hello')"),
        "broken": stand_in(tmp_path, "broken", "raise ValueError('no such tensor')"),
        "absent": stand_in(tmp_path, "absent", "", module="no_such_module"),
    }
    monkeypatch.setattr(conformance, "CLIENTS", clients)
    report = tmp_path / "report.json"
    run = CliRunner().invoke(conformance.main, [str(llama_bundle), "--new-tokens", "3", "--json", str(report)])
    assert run.exit_code == 1, run.output
    data = json.loads(report.read_text())["clients"]
    statuses = {"edgeformer": "same", "good": "same", "wrong": "differs", "chatty": "failed", "broken": "failed"}
    assert {name: result["status"] for name, result in data.items()} == statuses | {"absent": "missing"}
    assert "absent missing: no_such_module; install with: pip install absent" in run.output
    assert "broken failed: ValueError: no such tensor" in run.output
    assert "chatty failed: it printed no token ids but 'Hello'" in run.output
    assert f"numpy {np.__version__}" in run.output
    monkeypatch.setattr(conformance, "CLIENTS", {name: clients[name] for name in ("good", "absent")})
    run = CliRunner().invoke(conformance.main, [str(llama_bundle), "--new-tokens", "3"])
    assert run.exit_code == 0, run.output


def test_what_cannot_be_compared_is_refused(encoders, llama_bundle):
    run = CliRunner().invoke(conformance.main, [str(encoders["masked"])])
    assert run.exit_code == 2
    assert "is an encoder, which generates no tokens to compare" in run.output
    run = CliRunner().invoke(conformance.main, [str(llama_bundle), "--python", "Optimum=/nowhere"])
    assert run.exit_code == 2
    assert "is not CLIENT=INTERPRETER" in run.output
