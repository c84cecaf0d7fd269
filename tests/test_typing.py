"""`py.typed` holds: a small app that uses the public API passes `mypy --strict` as a project of its own would.

mypy sees the packages as they are installed, through links, and follows into their sources without reporting them.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent

APP = """
from pathlib import Path
from typing import assert_type

import numpy as np
from numpy.typing import NDArray

import edgeformer
from edgeformer.check import check
from edgeformer.errors import EdgeformerError, RequestError
from edgeformer.export import ExportOptions, Quantization, export_model, verify
from edgeformer.runtime import (
    BenchmarkResult,
    CausalLM,
    Class,
    Encoder,
    Generation,
    GenerationConfig,
    GenerationStream,
    LogitsProcessor,
    Manifest,
    Message,
    Seq2SeqLM,
    benchmark,
    load,
    load_causal_lm,
    load_encoder,
    load_seq2seq,
    optimize,
)


def without_digits(token_ids: NDArray[np.int64], logits: NDArray[np.float32]) -> NDArray[np.float32]:
    logits[token_ids[-1]] = -np.inf
    return logits


class Bias:
    def __call__(self, token_ids: NDArray[np.int64], logits: NDArray[np.float32]) -> NDArray[np.float32]:
        return logits + np.float32(1)


def write(path: Path) -> str:
    model = load_causal_lm(path, provider="cpu", threads=2)
    processors: list[LogitsProcessor] = [without_digits, Bias()]
    one = assert_type(model.generate("Once", max_new_tokens=8, temperature=0.7, seed=1), Generation)
    assert_type(model.generate([1, 2, 3], logits_processors=processors), Generation)
    many = assert_type(model.generate(["Once", "Twice"], stop=["."]), list[Generation])
    assert_type(model.generate([[1], [2, 3]], config=GenerationConfig(top_k=5)), list[Generation])
    assert_type(model.generate("Once", num_return_sequences=3, temperature=1.0, logprobs=True), list[Generation])
    assert_type(model.generate(["Once"], num_return_sequences=3, logit_bias={5: 1.0}), list[list[Generation]])
    own = GenerationConfig.from_folder(path)
    for piece in assert_type(model.stream("Once", config=own, min_p=0.1), GenerationStream):
        print(piece)
    messages: list[Message] = [{"role": "user", "content": "Hi"}]
    answer = model.chat(messages, max_new_tokens=4).finish()
    assert_type(model.forward([1, 2]), NDArray[np.float32])
    return (one.text or "") + (answer.text or "") + "".join(each.finish_reason for each in many)


def translate(path: str) -> list[str]:
    model = load_seq2seq(path)
    assert_type(model.translate("Hello", "eng_Latn", "fra_Latn", num_beams=4), str)
    best = assert_type(model.generate("Hello", num_beams=4, num_return_sequences=4), list[Generation])
    print([each.score for each in best])
    assert_type(model.generate("Hello", prompt=[0], early_stopping="never"), Generation)
    assert_type(model.transcribe(Path("speech.wav"), language="en"), str)
    assert_type(model.stream(np.zeros(16000, np.float32)).finish(), Generation)
    return assert_type(model.translate(["Hello", "Goodbye"]), list[str])


def embed(path: str) -> NDArray[np.float32]:
    model = load_encoder(path)
    assert_type(model.classify("good"), list[Class])
    assert_type(model.classify(["good", ("a", "b")]), list[list[Class]])
    print([filling.probability for filling in model.fill_mask("a [MASK]", top_k=3)])
    return assert_type(model.embed(["one", "two"], batch_size=2), NDArray[np.float32])


def run(path: str) -> None:
    match load(path):
        case CausalLM() as model:
            print(model.generate("Once").text)
        case Seq2SeqLM() as model:
            print(model.translate("Hello"))
        case Encoder() as model:
            print(model.embed("Hello").shape)


def export(path: str) -> None:
    options = ExportOptions(precision="int4", cache_precision="int8", deployment="desktop")
    try:
        result = export_model(path, "bundle", options, verify="full", progress=lambda what, part: print(what, part))
        export_model(path, precision="int8", ops="standard", cache="static")
        print(result.path, result.report is not None and result.report.passed)
    except EdgeformerError as error:
        raise SystemExit(str(error)) from error
    print(verify("bundle").passed)


def inspect(path: str) -> None:
    manifest = assert_type(Manifest.read(Path(path)), Manifest)
    quantization = assert_type(manifest.plan.quantization, Quantization | None)
    print(quantization, manifest.task, edgeformer.Manifest.read(Path(path)).plan.precision)
    result = assert_type(benchmark(path, prompts=(128,), rounds=2), BenchmarkResult)
    print(result.workloads[0].prefill.tokens_per_second.median, optimize(path).bytes)
    print(check(Path(path)))
    try:
        write(Path(path))
    except RequestError:
        pass
"""

WRONG = {
    'load_causal_lm("x").stream("Once", max_new_tokens="8")': 'expected "int | None"',
    'load_causal_lm("x").stream("Once", temprature=0.7)': 'Unexpected keyword argument "temprature"',
    'load_causal_lm("x").generate("Once", temprature=0.7)': "No overload variant",
    'load_causal_lm("x").generate(3)': "No overload variant",
    'load_causal_lm("x").generate("Once")[0]': 'Value of type "Generation" is not indexable',
    'load_causal_lm("x").generate(["Once"]).text': '"list[Generation]" has no attribute "text"',
    'load_causal_lm("x").stream("Once", logits_processors=[len])': "List item 0 has incompatible type",
    'GenerationConfig(top_k="5")': 'expected "int"',
    "GenerationConfig().top_k = 5": 'Property "top_k" defined in "GenerationConfig" is read-only',
    'load_encoder("x").generate("Once")': '"Encoder" has no attribute "generate"',
    'load("x").generate("Once")': 'Encoder | VisionEncoder | DualEncoder" has no attribute "generate"',
    'export_model("x", precision="int5")': "\"Literal['int5']\"",
    'export_model("x", ExportOptions())': 'expected "str | Path | None"',
}
"""A wrong call, and what mypy must say about it."""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder with the packages as they are installed, an app, and mypy's cache, which all runs share."""
    folder = tmp_path_factory.mktemp("typing")
    (folder / "site").mkdir()
    typecheck().link_packages(folder / "site")
    (folder / "app.py").write_text(APP)
    lines = [line for line in APP.splitlines() if not line.startswith("def ")][: APP.splitlines().index(")") + 1]
    (folder / "wrong.py").write_text("\n".join([*lines, *WRONG]) + "\n")
    return folder


def typecheck() -> ModuleType:
    """tools/typecheck.py, which knows how the packages are installed."""
    spec = importlib.util.spec_from_file_location("typecheck", ROOT / "tools" / "typecheck.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def mypy(project, *files):
    """mypy's output in strict mode; errors in the packages themselves are those of tools/typecheck.py to find."""
    line = [sys.executable, "-P", "-m", "mypy", "--strict", "--follow-imports=silent", "--config-file=", *files]
    return subprocess.run(
        line, cwd=project, capture_output=True, text=True, check=False, env={"MYPYPATH": "site", "PATH": ""}
    )


@pytest.mark.slow
def test_an_app_passes_mypy_strict_and_wrong_calls_fail(project):
    # Both files in one run: to read the packages takes most of it.
    done = mypy(project, "app.py", "wrong.py")
    errors = done.stdout.splitlines()
    assert not [line for line in errors if not line.startswith("wrong.py:")][:-1], done.stdout + done.stderr
    first = len((project / "wrong.py").read_text().splitlines()) - len(WRONG) + 1
    for number, (call, message) in enumerate(WRONG.items(), first):
        found = [line for line in errors if line.startswith(f"wrong.py:{number}: error:")]
        assert any(message in line for line in found), f"{call}: {found}"
