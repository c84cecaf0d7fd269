"""Verify and measure on an NVIDIA GPU, with onnxruntime-gpu.

    python tools/verification/check_cuda.py --full --output cuda-check.json
    python tools/verification/check_cuda.py --full --wheels FOLDER
    python tools/verification/check_cuda.py --dry-run

For each model the tool exports float16, bfloat16, int8, int4 and float32 for CUDA (float32 attention has no CUDA kernel
and is decomposed into primitives), some also with an int8 or fp8 cache, and, to compare speeds, float32 for the CPU.
Each bundle for CUDA is audited: every node of a layer needs a CUDA kernel. Each is verified against float64 PyTorch
on the provider that it was exported for, profiled, to tell which nodes onnxruntime runs on the CPU, and timed there
and, but in bfloat16, on the CPU (prefill and decode throughput in tokens/s). On CUDA it is also timed with CUDA graphs,
which must give the same logits, and many requests run in an `Engine` and one by one.

`--full` also checks the geometry of SmolLM2-135M, and times models of 135M, 1.1B and 8B parameters beside
onnxruntime-genai and transformers, eager and compiled, with the fractions of the GPU's bandwidth and FLOP/s.

Everything is written to one JSON file, including failures: a machine with a GPU is rarely available, so the failure of
one case does not stop the others. The file is written after every case, and a run that was cut off goes on behind the
cases that passed, if the machine, the versions and the options are the same. A page and a plot of it are written beside
it. Exits with 1 unless every bundle passes where it was meant to run. If CUDA is not available, the file says
`"available": false` and why. `--work` keeps the checkpoints and bundles whose speed is measured for such a next run.

`--dry-run` takes no GPU: it does all of this but what CUDA's kernels compute. Bundles for CUDA are audited, and float32
twins of their graphs are verified on the CPU.

`--wheels` names a folder of wheels (of onnxruntime-gpu and of CUDA's libraries), some of them perhaps in pieces
(`wheel_folder.py` says how). They are installed once, into a folder beside the output, and the check runs in a process
that finds its packages there first. Where Python has nothing installed, run `wheel_folder.py` by itself before this.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import click
import onnx

from edgeformer.check import check
from edgeformer.errors import EdgeformerError
from edgeformer.export import export_model
from edgeformer.export.parity import verify
from edgeformer.manifest.parts import Arithmetic, CachePrecision, Precision
from edgeformer.manifest.providers import CUDA, ProviderName
from edgeformer.runtime.sessions.providers.cuda_machine import driver
from edgeformer.runtime.sessions.session import onnxruntime, open_session

sys.path.insert(0, str(Path(__file__).parents[1]))  # the folders of tools/ are packages

from benchmarks.environment import environment
from checkpoints.random_checkpoint import write_checkpoint

from verification.cuda import cuda_runs
from verification.cuda.cuda_report import write_report
from verification.cuda.cuda_speed import GEOMETRIES, PRECISIONS, measure, peaks
from verification.cuda.wheel_folder import WheelError, install


class Case(NamedTuple):
    """One export of a model. arithmetic, cache: None for the default of the precision."""

    precision: Precision
    provider: ProviderName
    arithmetic: Arithmetic | None = None
    cache: CachePrecision | None = None

    def __str__(self) -> str:
        """Name the case in keys and in the summary."""
        arithmetic = f" in {self.arithmetic}" if self.arithmetic else ""
        cache = f" with an {self.cache} cache" if self.cache else ""
        return f"{self.precision}{arithmetic}{cache} for {self.provider}"


# The last case is what a user without a GPU would run.
CASES = (
    Case("fp16", "cuda"), Case("bf16", "cuda"), Case("int8", "cuda"), Case("int4", "cuda"),
    Case("int4", "cuda", "bf16"), Case("fp16", "cuda", cache="int8"), Case("int4", "cuda", "bf16", "int8"),
    Case("fp16", "cuda", cache="fp8"),
    Case("fp32", "cuda"), Case("fp32", "cpu"),
)  # fmt: skip


def unavailable(folder: Path) -> str | None:
    """Return what is missing to run on CUDA, or None."""
    ort = onnxruntime()
    missing = []
    available = ort.get_available_providers()
    if "CUDAExecutionProvider" not in available:
        missing.append(
            f"onnxruntime {ort.__version__} has no CUDAExecutionProvider (it has {', '.join(available)}): install "
            "onnxruntime-gpu in the place of onnxruntime; both are one module, and the last one installed wins"
        )
    if problem := driver().problem:
        missing.append(problem)
    if missing:
        return "; ".join(missing)
    # Both are installed; only a session shows whether their versions are compatible.
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in ("x", "y"))
    graph = onnx.helper.make_graph([onnx.helper.make_node("Neg", ["x"], ["y"])], "probe", [x], [y])
    opsets = [onnx.helper.make_opsetid("", 18)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10), folder / "probe.onnx")
    try:
        open_session(folder / "probe.onnx", CUDA)
    except EdgeformerError as error:
        return str(error)
    return None


def gpus() -> list[str]:
    """Return name and driver version of each GPU according to `nvidia-smi`; empty if that is not installed."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return answer.stdout.strip().splitlines()


def check_case(model: Path, folder: Path, case: Case, *, dry: bool = False) -> dict[str, Any]:
    """Export a bundle into `folder`; audit, verify, profile and time it on its provider, and time it on the CPU.

    dry: leave out what takes a GPU. Returns plain data. An exception becomes the field `error`; fields found before it
    are kept.
    """
    provider = case.provider
    found: dict[str, Any] = {"case": str(case), "exported_for": provider, "dry": dry and provider == "cuda"}
    try:
        result = export_model(
            model, folder, precision=case.precision, provider=provider, arithmetic=case.arithmetic,
            cache_precision=case.cache, verify=None,
        )  # fmt: skip
        found["model"] = result.manifest.provenance.source
        found["slower_forms"] = result.lowered.fallbacks
        if provider == "cuda":
            audit = check(folder, "cuda").audit
            assert audit is not None
            found["audit"] = audit.to_json()
        # Verification runs on the provider that the manifest names.
        found["parity"] = verify(folder, against=model).to_json()
        if found["dry"]:
            return found
        found["nodes"] = cuda_runs.profile(folder, provider)
        # The CPU has no kernels for bfloat16.
        others: tuple[ProviderName, ...] = () if result.manifest.plan.arithmetic == "bf16" else ("cpu",)
        found["speeds"] = {name: cuda_runs.speeds(folder, name) for name in dict.fromkeys((provider, *others))}
        if provider == "cuda" and result.manifest.plan.cache_form != "dynamic":
            found["cuda_graphs"] = cuda_runs.cuda_graphs(folder)
            found["engine"] = cuda_runs.engine(folder, graphs="refused" not in found["cuda_graphs"])
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"
        found["traceback"] = traceback.format_exc()
    return found


def passed(case: dict[str, Any]) -> bool:
    """Return whether a case ran without an error, has its kernels, is at parity, and ran on its provider if it may."""
    if "error" in case or not case["parity"]["passed"]:
        return False
    if case["exported_for"] == "cuda" and case["audit"]["verdict"] != "loads":
        return False
    if case["dry"] or case["exported_for"] == "cpu":
        return True
    same = case.get("cuda_graphs", {}).get("same_logits", True)
    return same and "CUDAExecutionProvider" in case["nodes"]["by_provider"]


def summary(case: dict[str, Any]) -> str:
    """Return a case as a few lines of text."""
    lines = [f"{'ok  ' if passed(case) else 'FAIL'} {case['case']}, {case.get('model')}"]
    if "audit" in case:
        lines.append(f"kernels: {case['audit']['verdict']}, by the table of onnxruntime {case['audit']['onnxruntime']}")
    if "parity" in case:
        failed = [check["name"] for check in case["parity"]["checks"] if not check["passed"]]
        errors = f"failed: {', '.join(failed)}" if failed else f"{len(case['parity']['checks'])} checks passed"
        lines.append(f"parity on {case['parity']['environment']['provider']}: {errors}")
    if "nodes" in case:
        lines.append(f"nodes: {case['nodes']['by_provider']}, on the CPU {case['nodes']['on_the_cpu']}")
    measurements = dict(case.get("speeds", {}))
    if "same_logits" in case.get("cuda_graphs", {}):
        lines.append(f"logits with CUDA graphs: {'the same' if case['cuda_graphs']['same_logits'] else 'OTHERS'}")
        measurements["cuda graphs"] = case["cuda_graphs"]["speeds"]
    if "engine" in case:
        alone, together = (case["engine"][f"{name}_tokens_per_second"] for name in ("alone", "engine"))
        lines.append(
            f"engine of {cuda_runs.REQUESTS // 2} rows: {together:,.0f} tokens/s, one by one {alone:,.0f}; "
            f"{case['engine']['same_requests']:.0%} of the requests get the same tokens"
        )
    for provider, measured in measurements.items():
        for prompt, speed in measured.items():
            if prompt.startswith("prompt_"):
                prefill, decode = speed["prefill_tokens_per_second"], speed["decode_tokens_per_second"]
                lines.append(f"{provider}, {prompt}: prefill {prefill:,.0f}, decode {decode:,.1f} tokens/s")
    if "error" in case:
        lines.append(case["error"])
    return "\n     ".join(lines)


@click.command(help=(__doc__ or "").split("\n")[0])
@click.option(
    "--model",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A model folder. [default: random weights of the geometry tiny]",
)
@click.option(
    "--full", is_flag=True, help="Also check random weights of the geometry smollm2-135m, and time 135M, 1.1B and 8B."
)
@click.option(
    "--work",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the models that are timed, about 60 GB. [default: a temporary one]",
)
@click.option("--dry-run", is_flag=True, help="Do all that takes no GPU.")
@click.option(
    "--wheels",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A folder of wheels, whole or in pieces NAME.whl.aa, …, to run with; they are installed beside the output.",
)
@click.option(
    "--output", type=click.Path(path_type=Path), default="cuda-check.json", show_default=True, help="File to write."
)
@click.pass_context
def main(
    context: click.Context,
    model: Path | None,
    full: bool,
    work: Path | None,
    dry_run: bool,
    wheels: Path | None,
    output: Path,
) -> None:
    """Check this machine."""
    options: dict[str, Any] = {"model": str(model), "full": full, "dry_run": dry_run}
    if wheels is not None:
        packages = output.resolve().with_suffix(".packages")
        try:
            options["wheels"] = install(wheels, packages)
        except WheelError as error:
            raise click.ClickException(str(error)) from error
        if str(packages) not in sys.path:
            sys.exit(run_with(packages, context))
    build = onnxruntime().get_build_info()
    here = environment() | {"gpus": gpus(), "onnxruntime_build": build}
    with tempfile.TemporaryDirectory(prefix="check_cuda.") as name:
        folder = Path(name)
        reason = unavailable(folder)
        data: dict[str, Any] = {"environment": here, "options": options, "available": reason is None, "reason": reason}
        done, timed = resumed(output, data)
        data["cases"] = []
        if reason is None or dry_run:
            models = [model or make(folder, "tiny")] + ([make(folder, "smollm2-135m")] if full else [])
            for source, case in product(models, CASES):
                key = f"{source.name}, {case}"
                found = done.get(key) or check_case(source, folder / key, case, dry=dry_run)
                click.echo(summary(found))
                data["cases"].append(found | {"key": key, "passed": passed(found)})
                write(output, data)
            if full and not dry_run and reason is None:
                time_models(work or folder, data, timed, output)
    data["passed"] = bool(data["cases"]) and all(map(passed, data["cases"]))
    write(output, data)
    for path in write_report(data, output):
        click.echo(f"written to {path}", err=True)
    if reason is not None:
        click.echo(f"CUDA is not available: {reason}.", err=True)
    click.echo(f"written to {output}", err=True)
    sys.exit(0 if data["passed"] else 1)


def run_with(packages: Path, context: click.Context) -> int:
    """Run this command again in a process that imports from `packages` first, and return its exit status."""
    arguments: list[str] = []
    for option in context.command.params:
        value = context.params[option.name or ""]
        if value is True:
            arguments.append(option.opts[0])
        elif value not in (None, False):
            arguments += [option.opts[0], str(value)]
    path = os.pathsep.join(filter(None, (str(packages), os.environ.get("PYTHONPATH"))))
    environ = os.environ | {"PYTHONPATH": path}
    return subprocess.run([sys.executable, __file__, *arguments], env=environ, check=False).returncode


def time_models(work: Path, data: dict[str, Any], timed: dict[str, Any], output: Path) -> None:
    """Add `peaks` and `speed` to the data, model by model; timed: the models of an earlier run."""
    data["peaks"], data["speed"] = peaks(), {}
    for geometry, precision in product(GEOMETRIES, PRECISIONS):
        key = f"{geometry}, {precision}"
        if key in timed:
            data["speed"][key] = timed[key]
            continue
        try:
            checkpoint = work / geometry
            if not (checkpoint / "config.json").is_file():
                shutil.rmtree(checkpoint, ignore_errors=True)  # one that is not complete
                write_checkpoint(geometry, checkpoint, dtype="fp16")
            data["speed"][key] = measure(checkpoint, work / f"{geometry}-{precision}", precision)
        except Exception as error:
            data["speed"][key] = {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
        write(output, data)
        click.echo(f"timed: {key}: {json.dumps(data['speed'][key])[:200]}")


def resumed(output: Path, data: dict[str, Any]) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Return the cases of an earlier run that passed, and the models that it timed, by key.

    Both are empty if anything else in the file, except the date, differs from `data`.
    """
    if not output.is_file():
        return {}, {}
    earlier = json.loads(output.read_text(encoding="utf-8"))
    now = json.loads(json.dumps(data))
    now["environment"] |= {key: value for key, value in earlier["environment"].items() if key == "date"}
    if any(earlier.get(name) != value for name, value in now.items()):
        return {}, {}
    timed = {key: case for key, case in earlier.get("speed", {}).items() if "error" not in case}
    return {case["key"]: case for case in earlier["cases"] if passed(case)}, timed


def write(output: Path, data: dict[str, Any]) -> None:
    """Replace the file in one step, so that a run that is cut off leaves the cases before."""
    output.parent.mkdir(parents=True, exist_ok=True)
    part = output.with_name(f"{output.name}.part")
    part.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    part.replace(output)


def make(folder: Path, geometry: str) -> Path:
    """Write a checkpoint of random weights below `folder`."""
    write_checkpoint(geometry, folder / geometry)
    return folder / geometry


if __name__ == "__main__":
    main()
