"""lm-evaluation-harness: a task of local data, by log-likelihoods of completions and by answers of chats."""

import json
import os
import sys
import tempfile
from pathlib import Path

url, model, tokenizer = sys.argv[1:]
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_DATASETS_CACHE": tempfile.mkdtemp()}

import lm_eval  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

SUMS = [(345, 278), (12, 30), (100, 7), (250, 250)]
CHOICE = """\
task: sums_choice
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}} ="
doc_to_choice: "{{choices}}"
doc_to_target: "{{gold}}"
metric_list: [{metric: acc}]
"""
WRITTEN = """\
task: sums_written
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: generate_until
doc_to_text: "What is {{question}}?"
doc_to_target: "{{question}} = {{sum}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 24, do_sample: false}
metric_list: [{metric: exact_match}]
"""

with tempfile.TemporaryDirectory() as folder:
    rows = [
        {"question": f"{a} + {b}", "sum": a + b, "choices": [str(a + b), str(a + b + 11), str(a)], "gold": 0}
        for a, b in SUMS
    ]
    data = Path(folder) / "sums.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for text in (CHOICE, WRITTEN):
        name = text.split()[1]
        (Path(folder) / f"{name}.yaml").write_text(text.replace("DATA", str(data)))
    tasks = TaskManager(include_path=folder, include_defaults=False)
    arguments = f"model={model},base_url={url}/v1/completions,tokenizer={tokenizer},num_concurrent=2,max_length=1024"
    for batch in (1, 4):
        found = lm_eval.simple_evaluate(
            model="local-completions", model_args=f"{arguments},batch_size={batch}", tasks=["sums_choice"],
            task_manager=tasks, bootstrap_iters=0,
        )  # fmt: skip
        print("log-likelihoods", json.dumps(found["results"]["sums_choice"]["acc,none"]))
    found = lm_eval.simple_evaluate(
        model="local-completions", model_args=arguments, tasks=["sums_written"], task_manager=tasks, bootstrap_iters=0
    )
    print("completions", json.dumps(found["results"]["sums_written"]["exact_match,none"]))
    found = lm_eval.simple_evaluate(
        model="local-chat-completions", model_args=f"model={model},base_url={url}/v1/chat/completions",
        tasks=["sums_written"], task_manager=tasks, bootstrap_iters=0, apply_chat_template=True,
    )  # fmt: skip
    print("chats", json.dumps(found["results"]["sums_written"]["exact_match,none"]))
