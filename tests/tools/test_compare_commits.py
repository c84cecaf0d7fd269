"""The comparison of two commits: each contender runs its own tree, and what cannot be compared is said."""

import json
import subprocess
import sys

import pytest
from benchmarks import compare_commits
from benchmarks.commits import trees
from click.testing import CliRunner


def test_a_program_imports_a_tree_before_all_others(tmp_path, monkeypatch):
    monkeypatch.delenv("EDGEFORMER_KERNELS", raising=False)
    tree = tmp_path / "it's a tree"
    (tree / "edgeformer").mkdir(parents=True)
    (tree / "edgeformer" / "__init__.py").write_text(
        "import os\nprint('the tree', os.environ.get('EDGEFORMER_KERNELS'))"
    )
    for kernels, says in ((True, "None"), (False, "0")):
        python = trees.interpreter(tmp_path, [tree], kernels)
        done = subprocess.run(
            [python, "-c", "import edgeformer"], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert done.stdout == f"the tree {says}\n"


def test_an_unknown_commit_is_refused_and_leaves_nothing(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 9}))
    done = CliRunner().invoke(compare_commits.main, ["no-such-commit", str(tmp_path)])
    assert done.exit_code == 1
    assert "git does not check out no-such-commit" in done.output
    listed = subprocess.run(
        ["git", "worktree", "list"], cwd=trees.ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert "compare_commits." not in listed


def test_kernels_that_are_not_built_say_how_to_go_on(tmp_path):
    with pytest.raises(trees.click.ClickException, match="--no-kernels leaves them out"):
        trees.build_kernels(tmp_path / "no tree", tmp_path / "kernels")


@pytest.mark.slow
def test_a_tree_is_compared_with_its_last_commit(tmp_path):
    from checkpoints.random_checkpoint import main as make_checkpoint

    made = CliRunner().invoke(make_checkpoint, ["tiny", "--output", str(tmp_path / "checkpoint")])
    assert made.exit_code == 0, made.output
    options = ["--no-kernels", "--precision", "fp32", "--prompt", "16", "--new", "8", "--rounds", "2", "--threads", "1"]
    command = [sys.executable, compare_commits.__file__, "HEAD", tmp_path / "checkpoint", *options]
    done = subprocess.run([*command, "--json", tmp_path / "run.json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    run = json.loads((tmp_path / "run.json").read_text())
    [result] = run["results"]
    assert result["same_leading_tokens"] == {"HEAD": 8}
    assert set(result["figures"]) == {"edgeformer", "HEAD"}
    assert result["edgeformer_over"]["HEAD"]["decode"]["median"] > 0
