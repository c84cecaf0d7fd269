"""The commands: what they print on stdout and stderr, and their exit codes."""

import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

import edgeformer.checkpoints.found_model
from edgeformer.cli.main import COMMANDS, cli
from edgeformer.cli.make._explain import summarised
from edgeformer.contract.tensors import CacheGeometry, KeyValueState
from edgeformer.export.parity import find_checkpoint, open_subject
from edgeformer.manifest.manifest import FILE_NAME, Manifest
from edgeformer.runtime import load


def run(*arguments, input=None):
    return CliRunner().invoke(cli, [str(argument) for argument in arguments], input=input)


def test_export_says_what_it_made_and_what_to_do_next(tmp_path):
    result = run("export", "--model", "tiny-llama", "-o", tmp_path / "tiny")
    assert result.exit_code == 0, result.output
    assert f"exported preset tiny-llama to {tmp_path / 'tiny'}" in result.stdout
    assert "pack_qkv 6" in result.stdout
    assert "verified against float64 PyTorch" in result.stdout
    assert (
        result.stdout.splitlines()[-1]
        == f'next: edgeformer run {tmp_path / "tiny"} "Once upon a time, there was a little girl"'
    )
    assert "random" not in result.stderr


def test_random_weights_are_said_wherever_they_are_used(tmp_path, llama_folder, monkeypatch):
    trained, presets = edgeformer.checkpoints.found_model.PRESETS / "tiny-llama", tmp_path / "presets"
    (presets / "noise").mkdir(parents=True)
    shutil.copyfile(trained / "tokenizer.json", presets / "noise" / "tokenizer.json")
    tokens = json.loads((trained / "config.json").read_text())["vocab_size"]
    config = json.loads((llama_folder / "config.json").read_text()) | {"vocab_size": tokens}
    (presets / "noise" / "config.json").write_text(json.dumps(config))
    (presets / "noise" / "preset.json").write_text('{"description": "to try the tools", "random_weights": 7}')
    monkeypatch.setattr(edgeformer.checkpoints.found_model, "PRESETS", presets)
    assert json.loads(run("models", "--json").stdout)["presets"] == {"noise": "to try the tools"}
    result = run("export", "--model", "noise", "-o", tmp_path / "b", "--no-verify")
    assert "note: the weights of noise are random, not trained. Its text will be noise." in result.stderr
    assert load(tmp_path / "b").manifest.provenance.random_weights == 7
    assert "**The weights are random (seed 7), not trained:**" in (tmp_path / "b" / "README.md").read_text()
    assert "weights are random, not trained. Its text is noise." in run("run", tmp_path / "b", "Hi", "-n", 1).stderr


def test_export_as_json(tmp_path, llama_folder):
    result = run("export", "--model", llama_folder, "-o", tmp_path / "b", "--precision", "fp16", "--json")
    data = json.loads(result.stdout)
    assert data["bundle"] == str(tmp_path / "b")
    assert data["parity"]["passed"] is True
    assert data["passes"]["fuse_skip_norm"] == {"changed": 6, "missed": []}


def test_export_without_verification_says_so(tmp_path, llama_folder):
    result = run("export", "--model", llama_folder, "-o", tmp_path / "b", "--no-verify")
    assert "not verified; do it with: edgeformer verify" in result.stdout
    assert load(tmp_path / "b").manifest.parity is None


def test_export_names_a_slower_form(tmp_path, llama_folder):
    result = run("export", "--model", llama_folder, "-o", tmp_path / "b", "--provider", "cuda", "--no-verify")
    assert "slower form: GroupQueryAttention decomposed in 3 places: there is no float32 CUDA kernel" in result.stdout


def test_export_explains_itself(tmp_path, llama_folder, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    options = ["export", "--model", llama_folder, "--no-verify", "--overwrite", "-o", tmp_path / "b", "--explain"]
    result = run(*options, "--provider", "cuda")
    lines = result.stdout.splitlines()
    assert "  fold_rotary changed 3 places: blocks.0–2.attention/GroupQueryAttention" in lines
    assert "    not blocks.0–2.attention/GroupQueryAttention: there is no float32 CUDA" in lines
    assert "  CrossAttention found nothing to change" in lines
    assert all(len(line) <= 80 for line in lines if line.startswith("  "))
    result = run(*options, "--ops", "portable", "--functions", "--json")
    (rules,) = (graph["rules"] for graph in json.loads(result.stdout)["graphs"].values())
    functions = {rule["name"]: rule["places"] for rule in rules}["functions"]
    assert "blocks.1.attention/GroupQueryAttention" in functions


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--cache", "static"], "error: a graph of the op set ort takes a dynamic cache and a static one; leave"),
        (["--ops", "standard", "--functions"], "error: functions are for the op set portable; standard has ops of"),
    ],
)
def test_options_that_exclude_each_other(tmp_path, options, message):
    result = run("export", "--model", "tiny-llama", "-o", tmp_path / "b", *options)
    assert result.exit_code == 1
    assert result.stderr.startswith(message)
    assert not list(tmp_path.iterdir())


def test_places_that_differ_in_their_block_alone_are_said_once():
    places = ["a/X", *(f"blocks.{block}.b/Y" for block in (0, 1, 2, 5)), "decoder.blocks.3.c/Z"]
    assert summarised(places) == ["a/X", "blocks.0–2,5.b/Y", "decoder.blocks.3.c/Z"]


def test_an_error_is_one_message_and_exit_code_1(tmp_path):
    result = run("export", "--model", "nowhere", "-o", tmp_path / "b")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.startswith("error: there is no model 'nowhere'")
    assert "Traceback" not in result.stderr


def test_debug_shows_the_traceback(tmp_path):
    result = run("--debug", "export", "--model", "nowhere")
    assert type(result.exception).__name__ == "ConfigError"


@pytest.mark.parametrize("arguments", [["export"], ["run"], ["export", "--model", "x", "--precision", "fp8"], ["nope"]])
def test_usage_errors_exit_with_2(arguments):
    assert run(*arguments).exit_code == 2


@pytest.fixture
def greedy(tiny_llama_bundle):
    return load(tiny_llama_bundle).generate("Once upon a time", max_new_tokens=12)


def test_run_prints_the_text_on_stdout_and_the_rest_on_stderr(tiny_llama_bundle, greedy):
    result = run("run", tiny_llama_bundle, "Once upon a time", "-n", 12)
    assert result.stdout == greedy.text + "\n"
    assert "random" not in result.stderr
    assert "12 tokens; ended by length; prefill" in result.stderr


def test_run_reads_the_prompt_from_standard_input(tiny_llama_bundle, greedy):
    assert run("run", tiny_llama_bundle, "-n", 12, input="Once upon a time\n").stdout == greedy.text + "\n"


def test_run_as_json(tiny_llama_bundle, greedy):
    data = json.loads(run("run", tiny_llama_bundle, "Once upon a time", "-n", 12, "--json").stdout)
    assert (data["text"], data["token_ids"], data["finish_reason"]) == (greedy.text, greedy.token_ids, "length")


def test_run_samples_repeatably(tiny_llama_bundle):
    options = ["-n", 20, "--temperature", 1, "--top-k", 50, "--seed", 7]
    first, second = (run("run", tiny_llama_bundle, "A", *options).stdout for _ in range(2))
    assert first == second != run("run", tiny_llama_bundle, "A", *options[:-1], 8).stdout


def test_run_takes_the_options_of_other_samplers(tiny_llama_bundle):
    options = [
        "-n", 6, "--temperature", 1, "--typical-p", 0.9, "--xtc-probability", 0.5, "--xtc-threshold", 0.2,
        "--presence-penalty", 0.5, "--frequency-penalty", 0.5, "--dry-multiplier", 0.8, "--logit-bias", "300=2.5",
        "--logit-bias", "301=-inf", "--ignore-eos", "--seed", 3, "--top-logprobs", 2, "--json",
    ]  # fmt: skip
    data = json.loads(run("run", tiny_llama_bundle, "Once upon a time", *options).stdout)
    expected = load(tiny_llama_bundle).generate(
        "Once upon a time", max_new_tokens=6, temperature=1.0, typical_p=0.9, xtc_probability=0.5, xtc_threshold=0.2,
        presence_penalty=0.5, frequency_penalty=0.5, dry_multiplier=0.8, logit_bias={300: 2.5, 301: float("-inf")},
        ignore_eos=True, seed=3, logprobs=True, top_logprobs=2,
    )  # fmt: skip
    assert data["token_ids"] == expected.token_ids
    assert [each["logprob"] for each in data["logprobs"]] == [each.logprob for each in expected.logprobs]
    assert [len(each["top"]) for each in data["logprobs"]] == [2] * 6
    refused = run("run", tiny_llama_bundle, "Hi", "--logit-bias", "x=1")
    assert refused.exit_code == 2 and "'x=1' is no ID=VALUE, such as 42=-3.5." in refused.stderr


def test_run_drafts_by_prompt_lookup(tiny_llama_bundle):
    options = ["-n", 12, "--prompt-lookup-num-tokens", 4, "--max-matching-ngram-size", 1]
    plain, drafts = (run("run", tiny_llama_bundle, "A dog. A dog. A dog", *given) for given in (options[:2], options))
    assert plain.stdout == drafts.stdout and "drafted" not in plain.stderr
    assert re.search(r"; \d+ of \d+ drafted tokens came true; no kernels: ", drafts.stderr)
    data = json.loads(run("run", tiny_llama_bundle, "A dog. A dog. A dog", *options, "--json").stdout)
    assert data["speculation"]["runs"] + data["speculation"]["accepted"] == len(data["token_ids"]) - 1


def test_run_as_a_chat(tiny_llama_bundle):
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]
    expected = load(tiny_llama_bundle).chat(messages, max_new_tokens=8).finish()
    result = run("run", tiny_llama_bundle, "Hi", "--chat", "--system", "Be kind.", "-n", 8, "--json")
    assert json.loads(result.stdout)["token_ids"] == expected.token_ids


def test_run_without_a_bundle_says_how_to_make_one(tmp_path):
    result = run("run", tmp_path / "none", "Hi")
    assert result.exit_code == 1
    assert "Make a bundle with: edgeformer export --model MODEL --output" in result.stderr


def test_verify_prints_a_table_and_exits_with_0(tiny_llama_bundle):
    result = run("verify", tiny_llama_bundle, "--against", "tiny-llama")
    assert result.exit_code == 0
    assert "prefill: worst ratio" in result.stdout
    assert "256 free-running greedy tokens: all are those of float64" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("verified (")


def test_verify_finds_a_preset_by_itself(tiny_llama_bundle, llama_bundle):
    preset = run("verify", tiny_llama_bundle, "--quick")
    assert "reference: float64 PyTorch, preset tiny-llama;" in preset.stdout
    assert "not compared" not in preset.stdout
    assert "checkpoint: tiny-llama, as the manifest says; --against names another" in preset.stdout
    other = run("verify", llama_bundle, "--quick")
    assert "reference: float64 PyTorch, the bundle's own weights;" in other.stdout
    last = other.stdout.splitlines()[-1]
    assert last.startswith("verified (")
    assert last.endswith("its weights were not compared with a checkpoint, which --against MODEL does")


def test_the_checkpoint_is_found_where_the_manifest_says(llama_bundle, llama_folder, make_llama, tmp_path, monkeypatch):
    name = llama_folder.name
    bundle = Path(shutil.copytree(llama_bundle, tmp_path / "bundle"))
    assert find_checkpoint(bundle) is None
    shutil.copytree(make_llama(hidden_size=32), tmp_path / name)
    assert find_checkpoint(bundle) is None, "it is another model"
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    shutil.copytree(llama_folder, tmp_path / "here" / name)
    assert find_checkpoint(bundle) == str(tmp_path / "here" / name)
    shutil.copytree(llama_folder, tmp_path / name, dirs_exist_ok=True)
    assert find_checkpoint(bundle) == str(tmp_path / name)
    assert open_subject(bundle, find_checkpoint(bundle)).reference == f"folder {name}"
    manifest = json.loads((bundle / FILE_NAME).read_text())
    for source in ("folder ..", "folder a/b", "hub no/such-model", "hub ../x", "module Mine", "preset none", ""):
        provenance = manifest["provenance"] | {"source": source}
        (bundle / FILE_NAME).write_text(json.dumps(manifest | {"provenance": provenance}))
        assert find_checkpoint(bundle) is None
    assert find_checkpoint(tmp_path / "nowhere") is None


def test_verifying_an_encoder_speaks_of_no_written_text(tmp_path):
    run("export", "--model", "tiny-embed", "--output", tmp_path / "bundle", "--no-verify")
    result = run("verify", tmp_path / "bundle", "--quick")
    assert result.exit_code == 0
    assert "sentence_embedding" in result.stdout
    assert "greedy" not in result.stdout


def test_verify_exits_with_1_where_the_graph_is_another(llama_bundle, make_llama):
    result = run("verify", llama_bundle, "--against", make_llama(seed=5))
    assert result.exit_code == 1
    assert "FAIL" in result.stdout
    assert result.stdout.splitlines()[-1].startswith("NOT verified: ")


def test_verify_against_a_model_of_another_shape_is_refused(llama_bundle):
    result = run("verify", llama_bundle, "--against", "tiny-llama")
    assert result.exit_code == 1
    assert "tiny-llama is another model than the one that" in result.stderr


def test_info_counts_what_transformers_counts(llama_folder):
    import transformers

    data = json.loads(run("info", llama_folder, "--json").stdout)
    model = transformers.LlamaForCausalLM.from_pretrained(llama_folder)
    assert data["parameters"] == model.num_parameters()
    assert data["total_bytes"] == 4 * data["parameters"]
    assert data["cache_bytes_per_token"] == 2 * 3 * 2 * 16 * 4
    linear = [module.weight.numel() for module in model.modules() if type(module).__name__ == "Linear"]
    assert data["flops_per_token"] == 2 * sum(linear)


def test_info_of_seq2seq_counts_what_transformers_counts(make_model):
    import transformers

    sizes = {"vocab_size": 131, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    folder = make_model("t5", auto="AutoModelForSeq2SeqLM", **sizes, num_decoder_layers=3)
    data = json.loads(run("info", folder, "--json").stdout)
    model = transformers.T5ForConditionalGeneration.from_pretrained(folder)
    assert data["parameters"] == model.num_parameters()
    assert (data["kind"], data["layers"], data["encoder"]["layers"]) == ("seq2seq", 3, 2)
    assert data["cache_bytes_per_token"] == data["source"]["cache_bytes_per_token"] == 2 * 3 * 4 * 8 * 4
    linear = [(name, module) for name, module in model.named_modules() if type(module).__name__ == "Linear"]
    products = [(name, module.weight.numel()) for name, module in linear]
    # Keys and values of the source are projected once per source token, for any number of generated tokens.
    once = ("EncDecAttention.k", "EncDecAttention.v")
    of_source = sum(size for name, size in products if name.startswith("encoder") or name.endswith(once))
    assert data["source"]["flops_per_token"] == 2 * of_source
    assert data["flops_per_token"] == 2 * (sum(size for _, size in products) - of_source)
    text = run("info", folder).stdout
    title = " ".join(text.split())
    assert "encoder of 2 layers of 32, 4 heads of 8, vocabulary 131; decoder of 3 layers of 32" in title
    assert "cache bytes per source token" in text


def test_info_of_an_encoder_counts_what_transformers_counts(make_model):
    import transformers

    sizes = {"vocab_size": 131, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    folder = make_model("bert", auto="AutoModelForMaskedLM", **sizes, num_attention_heads=4)
    data = json.loads(run("info", folder, "--json").stdout)
    model = transformers.BertForMaskedLM.from_pretrained(folder)
    assert data["parameters"] == model.num_parameters()
    assert (data["kind"], data["head"], data["cache_bytes_per_token"]) == ("encoder", "masked_lm", 0)
    linear = [module.weight.numel() for module in model.modules() if type(module).__name__ == "Linear"]
    assert data["flops_per_token"] == 2 * sum(linear)
    text = run("info", folder).stdout
    assert "2 layers of 32, 4 heads of 8, vocabulary 131, masked-LM head" in " ".join(text.split())
    assert "plus, per token in the text" in text


def test_info_of_layers_with_states_tells_what_they_keep(make_model):
    sizes = {"vocab_size": 131, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
    sizes |= {"num_key_value_heads": 2, "mamba_n_heads": 8, "mamba_d_head": 16, "mamba_d_state": 12}
    sizes |= {"mamba_n_groups": 2, "mamba_d_ssm": 128, "intermediate_size": 96, "max_position_embeddings": 256}
    folder = make_model("falcon_h1", **sizes)
    text = run("info", folder, "--precision", "fp16").stdout
    assert max(map(len, text.splitlines())) <= 80
    assert "3 layers of 64, 4 heads of 16 (2 kv heads), 3 recurrent layers" in " ".join(text.split())
    # The convolution has the precision of the graph, 2 bytes; recurrent states have 4.
    per_token, conv, recurrent = 3 * 2 * 2 * 16 * 2, 3 * 176 * 3 * 2, 3 * 8 * 12 * 16 * 4
    for label, size in (
        ("cache bytes per token", per_token),
        ("plus convolution states, 176 × 3 in 3 layers", conv),
        ("plus recurrent states, 8 × 12 × 16 in 3 layers", recurrent),
        ("at the full context of 256", 256 * per_token + conv + recurrent),
    ):
        assert re.search(f" *{re.escape(label)} +{size:,}\n", text), (label, text)


def test_info_of_a_module_tells_every_size_of_a_cache(llama_bundle, tmp_path):
    """Layers of a module that is not ours may keep keys and values of different sizes."""
    folder = shutil.copytree(llama_bundle, tmp_path / "bundle")
    wide, plain = KeyValueState(num_kv_heads=1, head_dim=32), KeyValueState(num_kv_heads=2, head_dim=16)
    geometry = CacheGeometry(layers=((plain,), (wide,), (plain,)))
    replace(Manifest.read(folder), model=None, cache=geometry).write(folder)
    assert "3 layers, 2 kv heads of 16 or 1 kv heads of 32" in " ".join(run("info", folder).stdout.split())
    data = json.loads(run("info", folder, "--json").stdout)
    assert (data["num_kv_heads"], data["head_dim"]) == ([2, 1], [16, 32])


def test_info_of_a_bundle_lists_its_files(llama_bundle, llama_folder):
    data = json.loads(run("info", llama_bundle, "--json").stdout)
    assert data["files"]["onnx/model.onnx_data"] == (llama_bundle / "onnx" / "model.onnx_data").stat().st_size
    assert data["parameters"] == json.loads(run("info", llama_folder, "--json").stdout)["parameters"]


def test_models_lists_presets_and_families():
    data = json.loads(run("models", "--json").stdout)
    assert "adds, sorts, counts and tells stories" in data["presets"]["tiny-llama"]
    assert "llama" in data["families"]
    assert "tiny-llama" in run("models").stdout


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_help_fits_80_columns(command):
    result = CliRunner().invoke(cli, [*command, "--help"], terminal_width=80)
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_tables_fit_80_columns(tiny_llama_bundle):
    line = [sys.executable, "-m", "edgeformer"]
    for arguments in (["info", "tiny-llama"], ["models"]):
        environment = {**os.environ, "COLUMNS": "80"}
        done = subprocess.run([*line, *arguments], capture_output=True, text=True, env=environment, check=True)
        assert max(map(len, done.stdout.splitlines()[1:])) <= 80


def in_terminal(line, words):
    """Run a command on a pseudo-terminal and type `words`; return all that appeared.

    The command is started by `subprocess`, not by `pty.fork`: other tests leave threads behind, and the copy that a
    fork makes of a process with threads may wait forever for a lock that one of them held.
    """
    terminal, other = pty.openpty()
    process = subprocess.Popen(line, stdin=other, stdout=other, stderr=other, start_new_session=True)
    os.close(other)
    shown, typed = b"", 0
    try:
        for word in [*words, None]:
            while word is None or not shown[typed:].endswith(b"> "):  # another prompt than the one that was answered
                assert select.select([terminal], [], [], 240)[0], f"nothing in 240 s behind {shown!r}"
                try:
                    shown += os.read(terminal, 4096)
                except OSError:  # the process has closed its end
                    break
            if word is not None:
                typed = len(shown)
                os.write(terminal, word)
        return shown.decode().replace("\r\n", "\n"), process.wait(timeout=240)
    finally:
        os.close(terminal)
        process.kill()
        process.wait()


def test_a_conversation_in_a_terminal_remembers_its_turns(tiny_llama_bundle):
    line = [sys.executable, "-m", "edgeformer", "run", str(tiny_llama_bundle), "--chat", "-n", "6"]
    shown, code = in_terminal(line, [b"Hi\n", b"And then?\n", b"\x04"])
    assert code == 0
    model = load(tiny_llama_bundle)
    messages = [{"role": "user", "content": "Hi"}]
    first = model.chat(messages, max_new_tokens=6).finish()
    messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "And then?"}]
    second = model.chat(messages, max_new_tokens=6).finish()
    assert first.text.strip() in shown
    assert f"{second.prompt_tokens} + {len(second.token_ids)} tokens" in shown


def test_progress_is_shown_on_a_terminal_only(tiny_llama_bundle):
    line = [sys.executable, "-m", "edgeformer", "verify", "--quick", str(tiny_llama_bundle)]
    shown, code = in_terminal(line, [])
    assert code == 0
    assert "hashing" in shown or "reference" in shown or "running" in shown
    assert run("verify", "--quick", tiny_llama_bundle).stderr == ""
