"""The runtime runs edgeformer's kernels where they are installed and fit, and a bundle is the same without them."""

import json
import shutil
import subprocess
import sys
from collections import Counter

import numpy as np
import onnx
import pytest
from build_kernels import install_into
from click.testing import CliRunner

from edgeformer.cli.main import cli
from edgeformer.errors import BundleError, RequestError
from edgeformer.export import export_model
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.quantization import VOCABULARY, Quantization, QuantizationRule, WeightFormat
from edgeformer.runtime import Engine, benchmark, load
from edgeformer.runtime.measure import prepack
from edgeformer.runtime.sessions import kernels, session
from edgeformer.runtime.sessions.graphs.packed_weights import with_packed_weights
from edgeformer.runtime.sessions.kernel_report import report_kernels
from edgeformer.runtime.sessions.kernels import KernelChoice, Library, choose_kernels
from edgeformer.runtime.sessions.session import open_session
from edgeformer.runtime.steps import memory

TOKENS = list(range(5, 45))


@pytest.fixture
def bundle(int4_bundle):
    return int4_bundle


def logits(bundle, **options):
    return load(bundle, "cpu", **options).forward(TOKENS)


def exact_logits(bundle):
    """The logits of the same weights when nothing rounds activations: those of a session that does not prepack."""
    session, count = open_session(bundle / "onnx" / "model.onnx", prepack=False), len(TOKENS)
    feeds = {"input_ids": np.array([TOKENS]), "attention_mask": np.ones((1, count), np.int64)}
    pasts = [each for each in session.get_inputs() if each.name.startswith("past")]
    feeds |= {each.name: np.zeros((1, each.shape[1], 0, each.shape[3]), np.float32) for each in pasts}
    return session.run(["logits"], feeds)[0][0]


def distance(logits, others):
    return np.sqrt(((logits - others) ** 2).mean() / (others**2).mean())


def test_kernels_run_and_can_be_left_out(bundle, installed, library, monkeypatch):
    installed(library)
    without = logits(bundle, kernels=False)
    monkeypatch.setenv(kernels.SWITCH, "0")
    np.testing.assert_array_equal(logits(bundle), without)
    monkeypatch.delenv(kernels.SWITCH)
    ours = logits(bundle)
    assert not np.array_equal(ours, without)
    # Both round activations alike. Scales as halves change which of them are rounded up, and not by how much they err.
    exact = exact_logits(bundle)
    assert 0 < distance(ours, exact) < 1.2 * distance(without, exact) < 0.1


def test_a_team_of_its_own_computes_the_same(bundle, installed, library, monkeypatch):
    """It is the default where kernels do all of the heavy work."""
    installed(library)
    monkeypatch.setattr(session, "usable_cores", lambda: 2)  # tests that run side by side have one each
    monkeypatch.setenv(kernels.SWITCH, "session")
    model = load(bundle, "cpu", threads=2)
    ours = model.forward(TOKENS)
    assert model.session.get_session_options().intra_op_num_threads == 2
    for switch in ("team", "1"):
        monkeypatch.setenv(kernels.SWITCH, switch)
        model = load(bundle, "cpu", threads=2)
        assert model.session.get_session_options().intra_op_num_threads == 1
        np.testing.assert_array_equal(model.forward(TOKENS), ours)


def test_a_graph_with_other_heavy_ops_keeps_its_threads(bundle, installed, library, tmp_path):
    installed(library)
    model = onnx.load(bundle / "onnx" / "model.onnx", load_external_data=False)
    graph, choice = tmp_path / "model.onnx", choose_kernels()
    onnx.save(model, graph)
    assert choice.has_team(graph)
    model.graph.node[-1].domain, model.graph.node[-1].op_type = "", "MatMul"
    onnx.save(model, graph)
    assert not choice.has_team(graph)


@pytest.mark.parametrize("packed", [True, False])
def test_six_bits_of_a_head_are_a_matter_of_kernels(llama_folder, installed, library, tmp_path, packed):
    """Bits that a file leaves out are no work of a run, so kernels have a team; and they keep fewer of a head."""
    installed(library)
    sizes, texts = {}, {}
    for bits in (6, 8):
        form = WeightFormat(bits=bits, block=32, rounding="mse", packed=packed)
        rules = [QuantizationRule(pattern=pattern, format=form) for pattern in (*VOCABULARY, "*.weight")]
        made = export_model(llama_folder, tmp_path / f"{bits}", precision="int8", verify=None,
                            quantization=Quantization(rules=tuple(rules)))  # fmt: skip
        assert choose_kernels().has_team(made.path / "onnx" / "model.onnx")
        model = load(made.path, "cpu")
        assert not model.kernels.bodies
        texts[bits] = model.generate(TOKENS[:9], max_new_tokens=4).token_ids
        without = load(made.path, "cpu", kernels=False)
        assert distance(model.forward(TOKENS), without.forward(TOKENS)) < 0.05
        graph = onnx.load(prepack.optimize(made.path).folder / "model.onnx", load_external_data=False).graph
        head = next(node for node in graph.node if node.op_type == "MatMulNBits" and "logits" in node.output)
        (sizes[bits],) = [each.dims[0] for each in graph.initializer if each.name in head.input[1:]]
        assert load(made.path, "cpu").generate(TOKENS[:9], max_new_tokens=4).token_ids == texts[bits]
    assert sizes[6] / sizes[8] == pytest.approx(6.5 / 8.5, rel=0.03)


@pytest.mark.parametrize("tied", [True, False])
def test_products_read_packed_integers_as_they_are(make_llama, installed, library, tmp_path, tied):
    """They come to the same as bytes, bit for bit; a table that is read by rows, too, is unpacked for these alone."""
    installed(library)
    checkpoint, logits = make_llama(6, num_hidden_layers=2, tie_word_embeddings=tied), {}
    for packed in (True, False):
        rules = [
            QuantizationRule(pattern=pattern, format=WeightFormat(bits=bits, block=32, rounding="mse", packed=packed))
            for pattern, bits in (("*down*", 3), ("*attention*", 5), ("*.weight", 6))
        ]
        made = export_model(checkpoint, tmp_path / f"{packed}", precision="int8", verify=None,
                            quantization=Quantization(rules=tuple(rules)))  # fmt: skip
        logits[packed] = load(made.path, "cpu").forward(TOKENS)
    np.testing.assert_array_equal(logits[True], logits[False])
    assert distance(logits[True], load(tmp_path / "True", "cpu", kernels=False).forward(TOKENS)) < 0.05

    path, ops = tmp_path / "True" / "onnx" / "model.onnx", choose_kernels().library.ops
    before, after = (
        onnx.load(path, load_external_data=False),
        onnx.load_from_string(with_packed_weights(path, ops, None)),
    )
    unpacking = [node for node in after.graph.node if node.op_type.startswith("Unpack")]
    assert [node.input[0] for node in unpacking] == ["embedding.weight.integers"]
    stored = {tensor.name: tensor.dims for tensor in after.graph.initializer}
    found = Counter()
    for node in after.graph.node:
        if node.op_type.startswith("MatMulNBits"):
            attributes = {each.name: each.i for each in node.attribute}
            bits, (outputs, blocks, parts, size) = attributes["packed_bits"], stored[node.input[1]]
            assert outputs * blocks * parts * size * 8 == outputs * blocks * 32 * bits
            found[bits] += 1
    assert set(found) == {3, 5, 6} and sum(found.values()) == len(
        [node for node in before.graph.node if node.op_type.startswith("MatMulNBits")]
    )
    assert with_packed_weights(tmp_path / "False" / "onnx" / "model.onnx", ops, None) is None


def test_steps_agree_with_the_prompt(bundle, installed, library):
    installed(library)
    model, tokens = load(bundle, "cpu"), TOKENS[:20]
    decoder = model.new_decoder(1, len(tokens))
    steps = [decoder.prefill(0, tokens[:1]).reshape(1, -1).copy()]
    steps += [decoder.decode_one_token([token]).copy() for token in tokens[1:]]
    prompt = model.forward(tokens)
    assert distance(np.concatenate(steps).reshape(prompt.shape), prompt) < 0.05


def test_prompts_of_a_team_are_run_in_longer_pieces(bundle, installed, library, monkeypatch):
    installed(library)
    prompt, pieces = [5 + each % 40 for each in range(600)], {}
    run_prompt = memory.HostSteps.run_prompt
    for wanted in (True, False):
        runs = pieces[wanted] = []
        monkeypatch.setattr(
            memory.HostSteps,
            "run_prompt",
            lambda self, *given, to=runs: to.append(given[2]) or run_prompt(self, *given),
        )
        model = load(bundle, "cpu", kernels=wanted)
        alone = model.generate(prompt, max_new_tokens=8).token_ids
        with Engine(model, max_rows=2) as engine:
            assert engine.submit(prompt, max_new_tokens=8).finish().token_ids == alone
    assert pieces[True] == [512, 600, 256, 512, 600]
    assert pieces[False] == [256, 512, 600, 256, 512, 600]


def test_sessions_have_no_kernels_unless_they_are_given(bundle):
    assert open_session(bundle / "onnx" / "model.onnx").get_inputs()
    nowhere = KernelChoice(Library("/nowhere", "9.9", (), ("plain",), "plain"))
    with pytest.raises(BundleError, match="onnxruntime cannot load .*nowhere"):
        open_session(bundle / "onnx" / "model.onnx", kernels=nowhere)


def test_a_model_says_what_runs(bundle, installed, library, monkeypatch):
    nodes = onnx.load(bundle / "onnx" / "model.onnx", load_external_data=False).graph.node
    calls = dict(sorted(Counter(node.op_type for node in nodes if node.domain == "edgeformer").items()))
    assert calls.keys() == {"AddRMSNorm", "CachedAttention", "MatMulNBits", "MatMulNBitsSwiGLU"}
    assert calls["MatMulNBits"] > 12
    functions = ", ".join(f"{name} ×{count}" for name, count in calls.items())
    installed(library)
    ours = load(bundle, "cpu").kernels
    assert (ours.kernels, ours.bodies, ours.reason) == (calls, {}, "")
    version, level = ours.version, ours.level
    text = f"{functions} by edgeformer-kernels {version} ({level}, threads of their own)"
    assert ours.describe() == text
    monkeypatch.setenv(kernels.SWITCH, "session")
    assert load(bundle, "cpu").kernels.describe() == text.replace("threads of their own", "the session's threads")
    monkeypatch.setenv(kernels.SWITCH, "0")
    off = load(bundle, "cpu").kernels
    assert (off.kernels, off.bodies, off.version, off.level, off.threads) == ({}, calls, None, None, None)
    assert off.describe() == f"{functions} by onnxruntime: EDGEFORMER_KERNELS=0 turns kernels off"
    monkeypatch.delenv(kernels.SWITCH)
    assert load(bundle, "cpu", kernels=False).kernels.reason == "kernels were not asked for"


def test_commands_say_what_runs(bundle, installed, library):
    installed(library)
    expected = load(bundle, "cpu").kernels

    def said(*arguments):
        result = CliRunner().invoke(cli, [str(each) for each in arguments])
        assert result.exit_code == 0, result.output
        return " ".join(result.stdout.split())

    assert expected.describe() in said("info", bundle)
    assert json.loads(said("info", bundle, "--json"))["kernels"]["kernels"] == expected.kernels
    quick = benchmark(bundle, prompts=(8,), new_tokens=2, rounds=1, threads=1)
    assert quick.kernels == expected


def test_a_library_without_an_op_leaves_it_to_its_body(bundle, installed, library_that_says):
    installed(library_that_says())
    report = report_kernels(bundle, Manifest.read(bundle), choose_kernels())
    assert (report.kernels, len(report.bodies)) == ({}, 4)
    assert report.describe().endswith("by onnxruntime: edgeformer-kernels 9.9 has no kernel for it")


def why_not(match):
    with pytest.warns(UserWarning, match=match):
        choice = choose_kernels()
    assert (choice.library, choice.reason) == (None, "edgeformer-kernels 9.9 does not fit")
    assert choose_kernels() == choice, "warned once"


def test_a_package_for_another_contract_is_not_used(installed, library_that_says):
    ours = kernels.CONTRACT
    installed(library_that_says(contract=ours + 1))
    why_not(f"version {ours + 1} of the contract between graphs and kernels, and this edgeformer has version {ours}. ")


def test_a_package_for_a_newer_onnxruntime_is_not_used(installed, library_that_says):
    installed(library_that_says(onnxruntime="1.999"))
    why_not(r"it needs onnxruntime 1\.999 or newer, and 1\.\d+\.\d+ is installed")


def test_a_library_that_was_changed_is_not_used(installed, library):
    copy = installed(library)
    copy.write_bytes(copy.read_bytes() + b"0")
    why_not("libedgeformer_kernels.so is not the file that was installed, by its SHA-256. Install it again with: pip")


def test_a_package_without_its_library_is_not_used(installed, library):
    installed(library).unlink()
    why_not("its library is missing")


def test_a_package_that_could_not_be_built_has_no_library(installed, library):
    """pip installs it all the same, and nobody is warned at every start."""
    copy = installed(library)
    record = copy.parent.parent / "edgeformer_kernels-9.9.dist-info" / "RECORD"
    copy.unlink()
    record.write_text("edgeformer_kernels/__init__.py,,\n")
    assert choose_kernels().reason == "edgeformer-kernels 9.9 could not build its library where it was installed"


def test_a_library_that_cannot_be_opened_is_not_used(installed, tmp_path):
    (tmp_path / "text").write_text("no library")
    installed(tmp_path / "text")
    why_not("its library cannot be opened: .*Install it again")


@pytest.mark.parametrize("cwd", ["working directory", "elsewhere"])
def test_a_library_is_not_taken_from_a_bundle_or_the_cwd(bundle, library, tmp_path, cwd):
    """A bundle with a whole package in it, in the working directory or importable, is data."""
    planted = tmp_path / "bundle"
    shutil.copytree(bundle, planted)
    copy = install_into(planted, library)
    shutil.copyfile(copy, planted / copy.name)
    if cwd == "elsewhere":  # a folder with modules, and no package that pip installed
        shutil.rmtree(next(planted.glob("*.dist-info")))
    (planted / "edgeformer_kernels" / "__init__.py").write_text("raise SystemExit('imported')")
    code = f"""if True:
        from edgeformer.runtime import load
        model = load({str(planted)!r}, "cpu", threads=1)
        print(model.kernels.reason)
        print(sum({copy.name!r} in line and {str(planted)!r} in line for line in open("/proc/self/maps")))"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=planted if cwd == "working directory" else tmp_path,
        env={"PYTHONPATH": str(planted), "PATH": "", "ORT_DISABLE_TELEMETRY": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reason, mapped = done.stdout.splitlines()
    assert mapped == "0"
    assert reason in ("edgeformer-kernels is not installed", "") or "does not fit" in reason


def test_without_the_package_there_is_no_library(monkeypatch, tmp_path):
    monkeypatch.setattr(kernels.sys, "path", [str(tmp_path)])
    kernels.find_library.cache_clear()
    assert kernels.find_library() == "edgeformer-kernels is not installed"
    kernels.find_library.cache_clear()


def test_a_switch_that_means_nothing_is_an_error(bundle, monkeypatch):
    monkeypatch.setenv(kernels.SWITCH, "off")
    with pytest.raises(
        RequestError, match="EDGEFORMER_KERNELS is 'off'; it must be 0 .no kernels., 1, team .* or session"
    ):
        load(bundle, "cpu")


def test_the_package_of_this_repository_fits(installed, library):
    installed(library)
    found = kernels.find_library()
    assert isinstance(found, Library), found
    assert "MatMulNBits" in found.ops
