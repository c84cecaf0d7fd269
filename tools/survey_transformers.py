"""List which causal LMs of transformers edgeformer exports, which way each goes, and why it cannot export the others.

    python tools/survey_transformers.py --state FILE          all of them, into docs/reference/transformers-backend.md
    python tools/survey_transformers.py olmo3 glm4            some, on the terminal

For every architecture of the installed transformers a small random model is made offline and exported as `edgeformer
export` does it by default: by its family, by the family of the text model inside it, or through the backend. What a
family refuses is exported with `--backend transformers`, too. Every export runs the quick parity checks. A bundle that
passes is run by onnxruntime once more, over a text longer than the windows and then in single steps, and compared with
transformers' own module in float64.

A worker process does this; it is killed if it hangs. Outcomes are appended to the file of `--state` as JSON lines, and
what is in that file is not tried again, so that a survey can be stopped and resumed, or run in slices.
"""

import argparse
import json
import logging
import os
import platform
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

ROOT = Path(__file__).parent.parent
REPORT = ROOT / "docs" / "reference" / "transformers-backend.md"

LIMIT = 1e-5
"""Largest error of a logit over the largest logit, against transformers in float64: the limit of the family tests."""

OF_FLOAT32 = 2.0
"""Largest ratio of a larger error to that of transformers' own module in float32: some random models amplify any
rounding more than trained ones do."""

PROMPT, STEPS = 40, 8
"""Tokens of the prompt, and single steps after it."""

WAYS = ("family", "family of the text model", "backend", "backend, if asked")
"""How a model goes: the second with `--text-only`, because causal language models are surveyed, and the last for a
checkpoint that its family refuses, with `--backend transformers`."""


@dataclass
class Outcome:
    """The result for one architecture.

    Attributes:
        verdict: passes, refused, fails or untried.
        way: one of `WAYS`.
        ops: counts of our ops in the canonical graph.
        folded: rotations of queries and keys that become part of attention.
        error: of the bundle, as `compare` returns it.
        notes: of the export.
    """

    model_type: str
    verdict: str
    reason: str = ""
    way: str = ""
    ops: dict[str, int] = field(default_factory=dict)
    folded: int = 0
    notes: list[str] = field(default_factory=list)
    error: float = 0.0
    seconds: float = 0.0


def survey(model_type: str) -> Outcome:
    """Make a small model of one architecture, and export it by default; by the backend, where a family refuses it."""
    from checkpoints.tiny_transformers import make_model, tiny_config
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from edgeformer.checkpoints.found_model import find_model
    from edgeformer.checkpoints.source import lacks_family
    from edgeformer.families import text_config

    try:
        CONFIG_MAPPING[model_type]()
    except Exception as error:  # validation of transformers' own
        return Outcome(model_type, "untried", f"its default config is invalid: {error}")
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "model"
        try:
            make_model(CONFIG_MAPPING[model_type].from_dict(tiny_config(model_type)), folder)
        except Exception as error:  # the class of the model may refuse anything
            return without_weights(model_type, f"{type(error).__name__}: {error}")
        try:
            found = find_model(folder)
            inside = text_config(found.hf_config) is not None
            by_itself = lacks_family(found)
        except Exception as error:
            return Outcome(model_type, "refused", str(error))
        if by_itself:
            return attempt(model_type, folder, "backend")
        outcome = attempt(model_type, folder, "family of the text model" if inside else "family")
        if outcome.verdict != "refused":
            return outcome
        other = attempt(model_type, folder, "backend, if asked")
        return outcome if other.verdict == "refused" else other


def without_weights(model_type: str, reason: str) -> Outcome:
    """Return why edgeformer refuses the default config of a type of which transformers makes no small model."""
    from checkpoints.tiny_transformers import CONTEXT, tiny_config
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from edgeformer.errors import EdgeformerError
    from edgeformer.export.importers.from_transformers import plan_patches
    from edgeformer.families import text_config

    try:
        if text_config(tiny_config(model_type)) is None:
            plan_patches(CONFIG_MAPPING[model_type]().to_dict(), CONTEXT)
    except EdgeformerError as error:
        return Outcome(model_type, "refused", str(error))
    return Outcome(model_type, "untried", f"no small model of it could be made: {reason}")


def attempt(model_type: str, folder: Path, way: str) -> Outcome:
    """Export a checkpoint one way, and compare it with transformers."""
    from checkpoints.tiny_transformers import CONTEXT

    from edgeformer.errors import ConfigError, ExportError, ParityError, WeightsError
    from edgeformer.export import export_model

    with tempfile.TemporaryDirectory() as work:
        bundle = Path(work) / "bundle"
        backend: Any = "transformers" if way.startswith("backend") else None
        try:
            with counted_ops() as ops:
                exported = export_model(
                    folder, bundle, backend=backend, context_length=CONTEXT, text_only=way == WAYS[1]
                )
        except ParityError as error:
            return Outcome(model_type, "fails", str(error), way)
        except (ConfigError, ExportError, WeightsError) as error:
            return Outcome(model_type, "refused", str(error), way)
        task = exported.manifest.task
        if task != "causal-lm":
            return Outcome(model_type, "refused", f"its family exports it for {task}, not as a causal LM", way)
        error, theirs = compare(folder, bundle)
        folded = {report.name: report.changed for report in exported.lowered.passes}["fold_rotary"]
        off = f"off from transformers by {error:.1e}; its own float32 is off by {theirs:.1e}"
        verdict, reason = ("passes", "") if error <= max(LIMIT, OF_FLOAT32 * theirs) else ("fails", off)
        return Outcome(model_type, verdict, reason, way, dict(ops), folded, exported.lowered.fallbacks, error)


@contextmanager
def counted_ops() -> Iterator[Counter[str]]:
    """Count our ops in the canonical graph of the export within a `with` block, the first one of several."""
    from edgeformer.export.graph.canonical import OPS
    from edgeformer.export.graph.editing import canonical_nodes
    from edgeformer.export.lower import lowering

    ops: Counter[str] = Counter()
    lower = lowering.lower

    def counting(model: Any, *arguments: Any) -> Any:
        if not ops:
            ops.update(node.op_type for node in canonical_nodes(model, *OPS))
        return lower(model, *arguments)

    lowering.lower = counting
    try:
        yield ops
    finally:
        lowering.lower = lower


def compare(folder: Path, bundle: Path) -> tuple[float, float]:
    """Run a bundle's graph on a prompt, then in single steps, and compare with transformers in float64.

    Returns the largest error of a logit over the largest logit, of the bundle and of transformers in float32.
    """
    import numpy as np
    import onnxruntime as ort
    import torch
    import transformers

    from edgeformer.transformers_backend.float64 import computing_in_float64

    plain: Any = {"attn_implementation": "eager", "experts_implementation": "eager"}
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **plain)
    vocabulary = model.get_input_embeddings().num_embeddings
    # Other modalities have tokens of their own at the beginning of the vocabulary of the small models.
    tokens = np.random.default_rng(0).integers(vocabulary // 2, vocabulary, (1, PROMPT + STEPS))
    with torch.no_grad():
        rounded = model(torch.from_numpy(tokens), use_cache=False).logits.numpy()
    with torch.no_grad(), computing_in_float64():
        expected = model.double()(torch.from_numpy(tokens), use_cache=False).logits.numpy()
    session = ort.InferenceSession(str(bundle / "onnx" / "model.onnx"))
    # Keys and values start without tokens, and states of fixed size with zeros.
    pasts = {
        tensor.name: np.zeros((1, *(0 if isinstance(size, str) else size for size in tensor.shape[1:])), np.float32)
        for tensor in session.get_inputs()[2:]
    }
    logits, end = [], 0
    for piece in np.split(tokens, range(PROMPT, PROMPT + STEPS), axis=1):
        end += piece.shape[1]
        feeds = {"input_ids": piece, "attention_mask": np.ones((1, end), np.int64), **pasts}
        first, *presents = session.run(None, feeds)
        logits.append(first)
        pasts = dict(zip(pasts, presents, strict=True))
    largest = np.abs(expected).max()
    ours, theirs = (float(np.abs(found - expected).max() / largest) for found in (np.concatenate(logits, 1), rounded))
    return ours, theirs


def work(pipe: Any) -> None:
    """Survey the model types that come through a pipe, until None comes."""
    import warnings

    import transformers

    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    transformers.utils.logging.disable_progress_bar()
    while (model_type := pipe.recv()) is not None:
        start = time.perf_counter()
        try:
            outcome = survey(model_type)
        except Exception as error:  # a survey reports every failure
            outcome = Outcome(model_type, "fails", f"{type(error).__name__}: {error}")
        outcome.seconds = time.perf_counter() - start
        pipe.send(outcome)


class Worker:
    """A process that surveys one architecture after the other; it is replaced when it hangs or dies."""

    def __init__(self, timeout: float):
        self._timeout = timeout
        self._start()

    def _start(self) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=work, args=(theirs,))
        self._process.start()

    def survey(self, model_type: str) -> Outcome:
        """Survey one architecture, within the timeout in seconds."""
        self._pipe.send(model_type)
        if self._pipe.poll(self._timeout):
            try:
                return self._pipe.recv()  # type: ignore[no-any-return]
            except EOFError:
                reason = "the process that exported it died"
        else:
            reason = f"it took longer than {self._timeout:.0f} s"
        self._process.kill()
        self._process.join()
        self._start()
        return Outcome(model_type, "fails", reason)

    def stop(self) -> None:
        """End the process."""
        self._pipe.send(None)
        self._process.join()


def causal_lms() -> list[str]:
    """Return all model types that transformers has a causal language model for."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


ABOUT = """# transformers backend

`edgeformer export --model FOLDER` exports a checkpoint whose model_type has no family file through the module that
transformers has for it, where transformers is installed; `--backend transformers` asks for that (extra `transformers`).
Its attention, RMSNorm, RoPE, experts, causal convolutions and scans (the gated delta rule, Mamba-2) are patched to call
our ops. The bundle is like any other, and it passes the same gates.

1. The module runs on shapes alone, without weights, to see how it attends: heads, scale, soft-cap, sinks, and which
   tokens its own masks show. What its norms, rotations and experts compute is found by running them on random numbers;
   nothing is decided by a name. What cannot be patched is refused, with the reason.
2. The patched module is compared with transformers' own, in float64 on the real weights: a ragged batch and single
   steps against one run over the text. Where they differ nothing is exported, and the error names the layer.
3. From there on the patched module is the reference of verification.

What no op of ours computes (LayerNorms, activations, embeddings, routers of experts) is exported as it is. Checkpoints
whose tensors are quantized are refused.
"""


def report(outcomes: list[Outcome], line: str) -> str:
    """Return the page with all outcomes, in Markdown."""
    from importlib.metadata import version

    groups = {
        verdict: [each for each in outcomes if each.verdict == verdict]
        for verdict in ("passes", "refused", "fails", "untried")
    }
    ways = Counter(each.way for each in groups["passes"])
    packages = ", ".join(f"{name} {version(name)}" for name in ("transformers", "torch", "onnx", "onnxruntime"))
    verdicts = {verdict: len(group) for verdict, group in groups.items()}
    worst = max((each.error for each in groups["passes"]), default=0.0)
    lines = [
        *ABOUT.splitlines(),
        "",
        "## What passes",
        "",
        "All causal language models of transformers were tried, as small random models",
        "(`tools/checkpoints/tiny_transformers.py`), with",
        "",
        "```sh",
        line,
        "```",
        "",
        f"and {packages}, Python {platform.python_version()}.",
        "",
        f"**{verdicts['passes']} of {len(outcomes)} pass**: {ways['family']} by a family, "
        f"{ways['family of the text model']} by the family of the text model inside,",
        f"{ways['backend']} without a family through the backend by itself, and {ways['backend, if asked']} whose "
        "checkpoint its family does not read",
        f"with `--backend transformers`. {verdicts['refused']} are refused, {verdicts['fails']} fail, "
        f"{verdicts['untried']} cannot be tried.",
        "",
        "Each model was exported with the quick verification, and its graph was compared with the untouched module in",
        f"float64 by running it in onnxruntime: a prompt of {PROMPT} tokens, then {STEPS} single steps. *Error* is the",
        f"largest difference of a logit over the largest logit, {worst:.1e} at most. The other numbers count our ops",
        "in the canonical graph: attention, RMSNorm, RoPE (of which those *in attention* become part of its kernel),",
        "experts, and convolutions and linear attentions with a state.",
        "",
        "| model_type | way | attention | RMSNorm | RoPE | in attention | experts | recurrent | error | notes |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for each in groups["passes"]:
        counts = " | ".join(
            str(number)
            for number in (
                each.ops.get("GroupQueryAttention", 0), each.ops.get("RMSNorm", 0), each.ops.get("RotaryEmbedding", 0),
                2 * each.folded, each.ops.get("MixtureOfExperts", 0),
                each.ops.get("CausalConv", 0) + each.ops.get("LinearAttention", 0),
            )
        )  # fmt: skip
        notes = _cell("; ".join(each.notes))
        lines.append(f"| {each.model_type} | {each.way} | {counts} | {each.error:.1e} | {notes} |")
    for verdict, title in (("refused", "What is refused"), ("fails", "What fails"), ("untried", "What was not tried")):
        if groups[verdict]:
            lines += ["", f"## {title}", "", "| model_type | reason |", "|---|---|"]
            lines += [f"| {each.model_type} | {_cell(each.reason)} |" for each in groups[verdict]]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def known_outcomes(state: Path | None) -> dict[str, Outcome]:
    """Return the outcomes in a file by model type; the last of each type counts."""
    if state is None or not state.is_file():
        return {}
    outcomes = [Outcome(**json.loads(line)) for line in state.read_text(encoding="utf-8").splitlines()]
    return {outcome.model_type: outcome for outcome in outcomes}


def survey_all(model_types: list[str], state: Path | None, timeout: float) -> Iterator[Outcome]:
    """Survey model types one after the other, and append each outcome to the file `state`."""
    worker = Worker(timeout)
    for model_type in model_types:
        outcome = worker.survey(model_type)
        if state is not None:
            with state.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(outcome)) + "\n")
        what = outcome.reason.splitlines()[0] if outcome.reason else f"error {outcome.error:.1e}, {outcome.ops}"
        told = f"{outcome.verdict} ({outcome.way}, {outcome.seconds:.1f} s): {what}"
        print(f"{model_type}: {told}", file=sys.stderr, flush=True)
        yield outcome
    worker.stop()


def main() -> None:
    """Survey the architectures that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_types", nargs="*")
    parser.add_argument("--state", type=Path, help="file of outcomes, to resume a survey")
    parser.add_argument("--slice", default="0/1", help="I/N: every Nth architecture from the Ith on, without a page")
    parser.add_argument("--timeout", type=float, default=180, help="seconds for one architecture")
    options = parser.parse_args()
    index, slices = map(int, options.slice.split("/"))
    wanted = (options.model_types or causal_lms())[index::slices]
    known = {} if options.model_types else known_outcomes(options.state)
    left = [model_type for model_type in wanted if model_type not in known]
    known |= {outcome.model_type: outcome for outcome in survey_all(left, options.state, options.timeout)}
    text = report([known[model_type] for model_type in wanted], "python tools/survey_transformers.py --state FILE")
    if options.model_types:
        print(text)
    elif slices == 1:
        REPORT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
