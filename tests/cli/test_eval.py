"""The command `edgeformer eval`: its tables, its JSON, its errors.

The scores are tested with `edgeformer.runtime.measure.evaluation.exact_match`.
"""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from edgeformer.cli.main import cli
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.parts import Provenance
from edgeformer.runtime import load
from edgeformer.runtime.measure.evaluation.exact_match import evaluate
from edgeformer.runtime.measure.evaluation.perplexity import score_text
from edgeformer.runtime.measure.evaluation.questions import preset_questions, read_questions

TEXT = "Once upon a time, there was a dog. 12 + 30 = 42."


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def run(*arguments):
    return CliRunner().invoke(cli, ["eval", *map(str, arguments), "--threads", "1"])


def shown(*arguments):
    """Return the output; lines that name no folder have at most 80 characters."""
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""  # no terminal, no progress
    assert max(len(line) for line in result.stdout.splitlines() if ": " not in line) <= 80
    return result.stdout


@pytest.fixture(scope="module")
def others(tiny_llama_bundle, tmp_path_factory):
    """Return copies of the preset that claim three other precisions; the last has noise in its weights."""
    folders = []
    for precision in ("bf16", "int8", "int4"):
        folder = tmp_path_factory.mktemp("bundles") / f"tiny-llama-of-{precision}-weights"
        shutil.copytree(tiny_llama_bundle, folder)
        manifest = Manifest.read(folder)
        replace(manifest, plan=replace(manifest.plan, precision=precision)).write(folder)
        folders.append(folder)
    path = folders[-1] / "onnx" / "model.onnx_data"
    weights = np.fromfile(path, np.float32)
    (weights * (1 + 0.5 * np.random.default_rng(0).standard_normal(weights.shape, np.float32))).tofile(path)
    return folders


@pytest.fixture(scope="module")
def problems(tiny_llama_bundle, tmp_path_factory):
    """Return a file with ten problems of two skills; those of the second have wrong answers."""
    questions = read_questions(preset_questions(Manifest.read(tiny_llama_bundle)))
    dates = [each for each in questions if each.skill == "dates"][:5]
    rows = [vars(each) for each in dates]
    rows += [vars(replace(each, skill="no dates", answer=dates[place - 1].answer)) for place, each in enumerate(dates)]
    path = tmp_path_factory.mktemp("problems") / "problems.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "text.txt"
    path.write_text(TEXT)
    return path


def test_a_table_of_skills(tiny_llama_bundle, problems):
    dates, none = evaluate(load(tiny_llama_bundle, threads=1), read_questions(problems)).skills
    assert dates.right >= 4 and none.right == 0
    head, _, header, *rows = shown(tiny_llama_bundle, "--problems", problems).splitlines()
    assert head == f"{tiny_llama_bundle}: fp32, op set ort for CPU"
    assert header.split("  ")[0] == "skill" and header.rstrip().endswith(
        "problems  exact, %  95 % interval  perplexity"
    )
    low, high = dates.interval
    cells = ["dates", "5", f"{20 * dates.right:.1f}", f"{100 * low:.1f}–{100 * high:.1f}", f"{dates.perplexity:.4f}"]
    assert rows[0].split() == cells
    assert rows[1].split()[:5] == ["no", "dates", "5", "0.0", "0.0–43.4"]
    assert rows[2].split()[:3] == ["all", "10", f"{10 * dates.right:.1f}"]


def test_a_preset_brings_its_problems(tiny_llama_bundle):
    rows = [
        line.split() for line in shown(tiny_llama_bundle, "--limit", 1, "--seed", 3, "--batch-size", 4).splitlines()
    ]
    questions = read_questions(preset_questions(Manifest.read(tiny_llama_bundle)))
    skills = [skill.split() for skill in dict.fromkeys(each.skill for each in questions)]
    assert [row[:-4] for row in rows[3:-1]] == skills and len(skills) > 5
    assert rows[-1][:2] == ["all", str(len(skills))]


def test_bundles_side_by_side(tiny_llama_bundle, others, problems):
    printed = shown(tiny_llama_bundle, *others, "--problems", problems)
    exact, costs = (part.splitlines() for part in printed.split("\n\n")[1:3])
    assert exact[0] == "exact match, % (95 % interval)"
    assert exact[1].split() == ["skill", "problems", "fp32", "bf16", "int8", "int4"]
    first, *same, noisy = exact[2].replace("dates", "").split()[1::2]
    assert same == [first, first] and float(first) >= 80 > 20 >= float(noisy)
    assert costs[0] == "perplexity of the right answers"
    first, *same, noisy = map(float, costs[-1].replace(",", "").split()[2:])
    assert same == [first, first] and noisy > 2 * first
    changes = printed.splitlines()[-3:]
    assert changes[0] == "bf16: wrong where fp32 is right 0 times, right where it is wrong 0 times"
    assert changes[2].startswith("int4: wrong where fp32 is right ") and not changes[2].startswith(changes[0][5:40], 5)


def test_bundles_of_one_precision_are_called_by_their_folders(tiny_llama_bundle, others, problems, tmp_path):
    fifth = tmp_path / "fifth"
    shutil.copytree(others[0], fifth)
    printed = shown(tiny_llama_bundle, *others, fifth, "--problems", problems, "--limit", 1)
    exact = printed.split("\n\n")[1]
    header, second = (line.split() for line in exact.splitlines() if line.startswith("skill"))
    assert header[:3] == ["skill", "problems", "tiny-llama"] and second == ["skill", "problems", "fifth"]
    assert exact.count("(21–100)") + exact.count("(0–79)") == 10
    assert printed.splitlines()[-1] == "fifth: wrong where tiny-llama is right 0 times, right where it is wrong 0 times"
    printed = shown(fifth, fifth, "--problems", problems, "--limit", 1)
    assert printed.splitlines()[-1].startswith(f"{fifth}: wrong where {fifth} is right 0 times")


def test_json(tiny_llama_bundle, others, problems, text):
    options = ("--problems", problems, "--text", text, "--window", 8, "--show-wrong", 2, "--json")
    data = json.loads(run(tiny_llama_bundle, others[2], *options).stdout)
    assert (data["problems"], data["text"]) == (str(problems), str(text))
    for path, found in zip((tiny_llama_bundle, others[2]), data["bundles"], strict=True):
        model = load(path, threads=1)
        result, score = evaluate(model, read_questions(problems)), score_text(model, TEXT, 8)
        assert (found["bundle"], found["precision"], found["ops"]) == (str(path), model.manifest.plan.precision, "ort")
        assert found["all"] == {
            "skill": "all", "right": result.total.right, "problems": 10, "nats": pytest.approx(result.total.nats),
            "tokens": result.total.tokens, "exact": result.total.exact, "interval": list(result.total.interval),
            "perplexity": pytest.approx(result.total.perplexity),
        }  # fmt: skip
        assert [each["right"] for each in found["skills"]] == [each.right for each in result.skills]
        assert found["text"]["bits_per_byte"] == pytest.approx(score.bits_per_byte)
        assert (found["text"]["tokens"], found["text"]["window"]) == (score.tokens, 8)
        assert sum(each["skill"] == "no dates" for each in found["wrong"]) == 2


def test_wrong_answers_are_shown(tiny_llama_bundle, problems):
    printed = run(tiny_llama_bundle, "--problems", problems, "--show-wrong", 2).stdout
    wrong = [each for each in read_questions(problems) if each.skill == "no dates"][:2]
    written = load(tiny_llama_bundle, threads=1).generate([each.prompt for each in wrong], max_new_tokens=24)
    for question, result in zip(wrong, written, strict=True):
        lines = [f"  {'prompt':<10}{json.dumps(question.prompt)}", f"  {'expected':<10}{json.dumps(question.answer)}"]
        assert "\n".join([*lines, f"  {'got':<10}{json.dumps(result.text)}"]) in printed
    assert printed.count("no dates\n  prompt") == 2


def test_a_text(tiny_llama_bundle, others, text):
    printed = shown(tiny_llama_bundle, others[2], "--text", text)
    head, header, *rows = printed.split("\n\n")[1].splitlines()
    score = score_text(load(tiny_llama_bundle, threads=1), TEXT)
    assert head == f"text of {score.bytes} bytes"
    assert header.split() == ["tokens", "window", "perplexity", "bits", "per", "byte"]
    assert rows[0].split()[:3] == ["fp32", str(score.tokens), "1,024"]
    assert rows[0].split()[4] == f"{score.bits_per_byte:.4f}" < rows[1].split()[4]
    assert "exact" not in printed  # no problems unless they are requested
    assert "exact" in shown(tiny_llama_bundle, "--text", text, "--problems", preset_questions(
        Manifest.read(tiny_llama_bundle)), "--limit", 1)  # fmt: skip


@pytest.fixture
def foreign(tiny_llama_bundle, tmp_path):
    """Return the preset with a manifest as if it had been exported from a folder."""
    folder = tmp_path / "foreign"
    shutil.copytree(tiny_llama_bundle, folder)
    provenance = Provenance(source="folder mine", random_weights=7)
    replace(Manifest.read(folder), provenance=provenance).write(folder)
    return folder


def test_a_bundle_without_problems(foreign, problems):
    result = run(foreign)
    assert result.exit_code == 1
    assert result.stderr == (
        "error: this bundle was exported from folder mine, and only presets come with problems to score. Give your own "
        "with --problems FILE (a JSON object with skill, prompt and answer on each line), or measure the perplexity of "
        "a text with --text FILE.\n"
    )
    result = run(foreign, "--problems", problems, "--limit", 1)
    assert result.exit_code == 0
    assert result.stderr == f"note: the weights of {foreign} are random, not trained.\n"


def test_presets_with_problems_of_their_own_are_not_compared(tiny_llama_bundle, others, monkeypatch):
    from edgeformer.runtime.measure.evaluation import questions as questions

    files = iter(["first.jsonl", "second.jsonl"])
    monkeypatch.setattr(questions, "preset_questions", lambda manifest: next(files))
    result = run(tiny_llama_bundle, others[0])
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: {tiny_llama_bundle} and {others[0]} were made from different presets")


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--problems", "nowhere.jsonl"], 1, "error: cannot read nowhere.jsonl: No such file or directory."),
        (["--text", "nowhere.txt"], 1, "error: cannot read nowhere.txt: No such file or directory."),
        (["--text", "TEXT", "--window", "2000"], 1, "error: the window is 2000 tokens; it must be 2 to 1024"),
        (["--text", "TEXT", "--limit", "3", "--stop", "x"], 2, "--limit, --stop: only with problems"),
        (["--text", "TEXT", "--show-wrong", "3"], 2, "--show-wrong: only with problems"),
        (["--window", "8"], 2, "--window: only with a text: give --text FILE"),
        (["--limit", "0"], 2, "0 is not in the range x>=1"),
    ],
)
def test_what_makes_no_sense_is_refused(tiny_llama_bundle, text, options, code, message):
    result = run(tiny_llama_bundle, *(str(text) if each == "TEXT" else each for each in options))
    assert (result.exit_code, result.stdout) == (code, "")
    assert message in result.stderr


def test_a_malformed_line_is_named(tiny_llama_bundle, tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"skill": "a", "prompt": "b", "answer": "c"}\n{"skill": "a", "prompt": "b"}\n')
    result = run(tiny_llama_bundle, "--problems", path)
    assert (result.exit_code, result.stderr) == (1, f"error: {path}, line 2: answer is None; it must be a text.\n")
    assert "Missing argument 'BUNDLE...'" in run().stderr


def test_neither_torch_nor_onnx_is_needed(tiny_llama_bundle, text):
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['torch', 'onnx', 'onnx_ir', 'transformers', 'safetensors']))\n"
        "from edgeformer.cli.main import cli; cli()"
    )
    options = [
        "--problems",
        str(preset_questions(Manifest.read(tiny_llama_bundle))),
        "--limit",
        "1",
        "--text",
        str(text),
    ]
    line = [sys.executable, "-c", code, "eval", str(tiny_llama_bundle), "--threads", "1", *options]
    done = subprocess.run(line, capture_output=True, text=True, env=os.environ | {"COLUMNS": "80"}, check=False)
    assert done.returncode == 0, done.stderr
    assert "95 % interval" in done.stdout and "bits per byte" in done.stdout
