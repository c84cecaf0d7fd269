"""List the causal LMs of transformers that `--backend transformers` exports, and why it cannot export the others.

    python tools/survey_transformers.py                      all of them, into docs/reference/transformers-backend.md
    python tools/survey_transformers.py olmo3 glm4           some, on the terminal

For every architecture of the installed transformers a small random model is made offline and exported with the quick
parity checks. A bundle that passes is run by onnxruntime once more, over a text longer than the windows and then token
by token, and compared with transformers' own module in float32. A worker process does this; it is killed if it hangs.
"""

import argparse
import logging
import os
import platform
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

ROOT = Path(__file__).parent.parent
REPORT = ROOT / "docs" / "reference" / "transformers-backend.md"

LIMIT = 1e-5
"""Largest error of a logit over the largest logit, against transformers in float32: the limit of the family tests."""

PROMPT, STEPS = 40, 8
"""Tokens of the prompt, and single steps after it."""


@dataclass
class Outcome:
    """The result for one architecture.

    verdict: passes, refused, fails or untried. ops: counts of our ops in the canonical graph. folded: rotations of
    queries and keys that become part of attention. error: as `compare` returns it.
    """

    model_type: str
    verdict: str
    reason: str = ""
    ops: dict[str, int] = field(default_factory=dict)
    folded: int = 0
    fallbacks: list[str] = field(default_factory=list)
    error: float = 0.0
    seconds: float = 0.0


def survey(model_type: str) -> Outcome:
    """Make a small model of one architecture, export it, and compare it with transformers."""
    from checkpoints.tiny_transformers import CONTEXT, make_model, tiny_config
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from edgeformer.errors import ConfigError, ExportError, ParityError, WeightsError
    from edgeformer.export import export_model
    from edgeformer.export.adapters.from_transformers import plan_patches

    with tempfile.TemporaryDirectory() as work:
        folder, bundle = Path(work) / "model", Path(work) / "bundle"
        try:
            CONFIG_MAPPING[model_type]()
        except Exception as error:  # validation of transformers' own
            return Outcome(model_type, "untried", f"its default config is invalid: {error}")
        try:
            try:
                fields = tiny_config(model_type)
                plan_patches(fields, CONTEXT)  # most refusals need no weights
            except ConfigError:
                # The config class takes no such sizes; its default config is refused for the same reasons, if for any.
                plan_patches(CONFIG_MAPPING[model_type]().to_dict(), CONTEXT)
                raise
            make_model(CONFIG_MAPPING[model_type].from_dict(fields), folder)
            with counted_ops() as ops:
                exported = export_model(folder, bundle, backend="transformers", context_length=CONTEXT)
        except ParityError as error:
            return Outcome(model_type, "fails", str(error))
        except (ConfigError, ExportError, WeightsError) as error:
            return Outcome(model_type, "refused", str(error))
        error = compare(folder, bundle)
        folded = {report.name: report.changed for report in exported.lowered.passes}["fold_rotary"]
        verdict, reason = ("passes", "") if error <= LIMIT else ("fails", f"off from transformers by {error:.1e}")
        return Outcome(model_type, verdict, reason, dict(ops), folded, exported.lowered.fallbacks, error)


@contextmanager
def counted_ops() -> Iterator[Counter[str]]:
    """Count our ops in the canonical graphs of the exports within a `with` block."""
    from edgeformer.export.graph.canonical import OPS
    from edgeformer.export.graph.editing import canonical_nodes
    from edgeformer.export.lower import lowering as captured

    ops: Counter[str] = Counter()
    canonicalize = captured.canonicalize

    def counting(model: Any) -> Any:
        reports = canonicalize(model)
        ops.update(node.op_type for node in canonical_nodes(model, *OPS))
        return reports

    captured.canonicalize = counting
    try:
        yield ops
    finally:
        captured.canonicalize = canonicalize


def compare(folder: Path, bundle: Path) -> float:
    """Run a bundle's graph on a prompt, then token by token; return the largest logit error over the largest logit."""
    import numpy as np
    import onnxruntime as ort
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    tokens = np.random.default_rng(0).integers(0, model.config.vocab_size, (1, PROMPT + STEPS))
    with torch.no_grad():
        expected = model(torch.from_numpy(tokens), use_cache=False).logits.numpy()
    session = ort.InferenceSession(str(bundle / "onnx" / "model.onnx"))
    pasts = {
        tensor.name: np.zeros((1, tensor.shape[1], 0, tensor.shape[3]), np.float32)
        for tensor in session.get_inputs()[2:]
    }
    logits, end = [], 0
    for piece in np.split(tokens, range(PROMPT, PROMPT + STEPS), axis=1):
        end += piece.shape[1]
        feeds = {"input_ids": piece, "attention_mask": np.ones((1, end), np.int64), **pasts}
        first, *presents = session.run(None, feeds)
        logits.append(first)
        pasts = dict(zip(pasts, presents, strict=True))
    difference = np.abs(np.concatenate(logits, 1) - expected).max()
    return float(difference / np.abs(expected).max())


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

`edgeformer export --model FOLDER --backend transformers` exports the module that transformers has for a checkpoint, for
models without a family file (extra `transformers`). Its attention, RMSNorm and RoPE are patched to call our ops. The
bundle is like any other, and it passes the same gates.

1. The module runs on shapes alone, without weights, to see how it attends: heads, scale, soft-cap, sinks, and which
   tokens its own masks show. What its norms and rotations compute is found by running them on random numbers; nothing
   is decided by a name. What cannot be patched is refused, with the reason.
2. The patched module is compared with transformers' own, in float64 on the real weights: a ragged batch and single
   steps against one run over the text. Where they differ nothing is exported, and the error names the layer.
3. From there on the patched module is the reference of verification.

What no op of ours computes (LayerNorms, activations, embeddings) is exported as it is. Checkpoints whose tensors are
quantized, or which transformers rearranges when it loads them, are refused.
"""


def report(outcomes: list[Outcome], line: str) -> str:
    """Return the page with all outcomes, in Markdown."""
    from importlib.metadata import version

    from edgeformer.families import family_names

    families = set(family_names())
    groups = {
        verdict: [each for each in outcomes if each.verdict == verdict]
        for verdict in ("passes", "refused", "fails", "untried")
    }
    new = [each for each in groups["passes"] if each.model_type not in families]
    complete = [each for each in new if {"RMSNorm", "RotaryEmbedding", "GroupQueryAttention"} <= each.ops.keys()]
    packages = ", ".join(f"{name} {version(name)}" for name in ("transformers", "torch", "onnx", "onnxruntime"))
    verdicts = {verdict: len(group) for verdict, group in groups.items()}
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
        f"**{verdicts['passes']} of {len(outcomes)} pass; {len(new)} of them have no family file here, and in "
        f"{len(complete)} of those",
        f"RMSNorm, RoPE and attention are all our ops.** {verdicts['refused']} are refused, {verdicts['fails']} fail, "
        f"{verdicts['untried']} cannot be tried.",
        "",
        "Each model was exported with the quick verification, and its graph was compared with the untouched module in",
        f"float32 by running it in onnxruntime: a prompt of {PROMPT} tokens, then {STEPS} single steps. *Error* is the",
        "largest difference of a logit over the largest logit. *attention*, *RMSNorm* and *RoPE* count our ops in the",
        "canonical graph; the rotations *in attention* become part of its kernel. Models with a family file are",
        "marked; they are exported by it unless `--backend` is given.",
        "",
        "| model_type | family | attention | RMSNorm | RoPE | in attention | error | notes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for each in groups["passes"]:
        ops = each.ops
        family = "yes" if each.model_type in families else ""
        lines.append(
            f"| {each.model_type} | {family} | {ops.get('GroupQueryAttention', 0)} | {ops.get('RMSNorm', 0)} | "
            f"{ops.get('RotaryEmbedding', 0)} | {2 * each.folded} | {each.error:.1e} | {'; '.join(each.fallbacks)} |"
        )
    for verdict, title in (("refused", "What is refused"), ("fails", "What fails"), ("untried", "What was not tried")):
        if groups[verdict]:
            lines += ["", f"## {title}", "", "| model_type | reason |", "|---|---|"]
            lines += [f"| {each.model_type} | {_cell(each.reason)} |" for each in groups[verdict]]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main() -> None:
    """Survey the architectures that are named, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_types", nargs="*")
    parser.add_argument("--output", type=Path, help=f"[default: {REPORT.relative_to(ROOT)}, where all are surveyed]")
    parser.add_argument("--timeout", type=float, default=180, help="seconds for one architecture")
    options = parser.parse_args()
    output = options.output or (None if options.model_types else REPORT)
    worker, outcomes = Worker(options.timeout), []
    for model_type in options.model_types or causal_lms():
        outcome = worker.survey(model_type)
        outcomes.append(outcome)
        what = outcome.reason.splitlines()[0] if outcome.reason else f"error {outcome.error:.1e}, {outcome.ops}"
        print(f"{model_type}: {outcome.verdict} ({outcome.seconds:.1f} s): {what}", file=sys.stderr, flush=True)
    worker.stop()
    text = report(outcomes, " ".join(["python tools/survey_transformers.py", *options.model_types]))
    if output is None:
        print(text)
    else:
        output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
