"""The tables of benchmarks.md and README.md are those that page.py writes from the runs."""

import json

import pytest
from benchmarks import page

RUN = {
    "tool": "compare_peers",
    "checkpoint": "SmolLM2-135M",
    "new_tokens": 64,
    "rounds": 3,
    "peers": {"llama.cpp": {"versions": {"llama-cpp-python": "0.3"}}},
    "environment": {"date": "2026-01-02", "processor": "a processor", "onnxruntime": "1.31"},
    "results": [
        {
            "precision": "int4",
            "prompt_tokens": 128,
            "figures": {
                "edgeformer": {"prefill": {"median": 1000}, "decode": {"median": 50}},
                "llama.cpp": {"prefill": {"median": 500}, "decode": {"median": 40.04}},
            },
            "edgeformer_over": {
                "llama.cpp": {"prefill": {"median": 2, "low": 1.5, "high": 2.5}, "decode": {"median": 1.25}}
            },
        }
    ],
}


@pytest.mark.parametrize("path", page.PAGES, ids=lambda path: path.name)
def test_a_page_has_the_tables_of_its_runs(path):
    text = path.read_text(encoding="utf-8")
    assert page.MARKED.search(text)
    assert page.with_tables(text, page.read_runs(page.RUNS)) == text, "python tools/benchmarks/page.py --write"


def test_every_run_is_on_the_page():
    names = {found["name"] for found in page.MARKED.finditer(page.PAGES[0].read_text(encoding="utf-8"))}
    assert {run["tool"] for run in page.read_runs(page.RUNS)} == names


def test_every_run_names_its_machine_and_date():
    for run in page.read_runs(page.RUNS):
        assert run["environment"]["processor"]
        assert "date" in run["environment"]


def test_a_run_becomes_a_table():
    lines = page.section("compare_peers", [RUN]).splitlines()
    assert lines[0] == "**2026-01-02**: a processor; onnxruntime 1.31."
    assert lines[2] == "64 new tokens, 3 rounds."
    assert lines[4] == "| SmolLM2-135M, int4 | prefill 128 | ratio | decode after 128 | ratio |"
    assert lines[6] == "| edgeformer | 1,000 |  | 50 |  |"
    assert lines[7] == "| llama.cpp (llama-cpp-python 0.3) | 500 | 2.00 (1.50–2.50) | 40.0 | 1.25 |"


def test_the_newest_run_is_first_and_one_without_a_date_last(tmp_path):
    for name, date in (("a", None), ("b", "2026-01-02"), ("c", "2026-03-04")):
        data = {"tool": "x", "environment": {"date": date, "processor": "p"}}
        (tmp_path / f"{name}.json").write_text(json.dumps(data))
    assert [run["environment"]["date"] for run in page.read_runs(tmp_path)] == ["2026-03-04", "2026-01-02", None]


def test_another_figure_makes_another_page():
    text = page.PAGES[0].read_text(encoding="utf-8")
    runs = page.read_runs(page.RUNS)
    assert page.with_tables(text, [*runs, {**RUN, "checkpoint": "another"}]) != text


def test_readme_has_the_run_of_a_day_with_the_most_peers():
    few = {**RUN, "checkpoint": "TinyLlama-1.1B and SmolLM2-135M"}
    few["results"] = [{**RUN["results"][0], "prompt_tokens": prompt} for prompt in page.README_PROMPTS]
    many = {**few, "peers": {**few["peers"], "another": {"versions": {}, "precisions": {}}}}
    assert page.readme([few, many]) == page.readme([many, few]) == page.readme([many]) != page.readme([few])
    assert "| edgeformer |" not in page.readme([many])


def test_readme_has_no_run_beside_busy_processes():
    quiet = {**RUN, "checkpoint": "TinyLlama-1.1B and SmolLM2-135M"}
    quiet["results"] = [{**RUN["results"][0], "prompt_tokens": prompt} for prompt in page.README_PROMPTS]
    busy = {**quiet, "busy_processes": 1, "environment": {**RUN["environment"], "date": "2026-01-03"}}
    assert page.readme([busy, quiet]) == page.readme([quiet])
    assert "2026-01-03" in page.readme([{**busy, "busy_processes": 0}, quiet])
