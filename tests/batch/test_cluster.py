"""edgeformer.batch on a real Ray cluster of three nodes on this machine, whose workers and nodes are killed."""

import json
import os
import shutil
import signal
import tempfile
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner
from rows_of_jobs import read_parquet, shards, write_jsonl

from edgeformer.batch import BatchOptions, run_batch
from edgeformer.cli.main import cli
from edgeformer.errors import RequestError
from edgeformer.runtime import load

pytestmark = [
    pytest.mark.slow,  # a cluster starts within the seconds that Ray allows it only where the machine has nothing else
    pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning", "ignore::FutureWarning"),
]


@pytest.fixture(scope="module")
def cluster():
    folder = tempfile.mkdtemp(prefix="ef")
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_TMPDIR": folder, "RAY_BACKEND_LOG_LEVEL": "fatal"}
    import ray
    from ray.cluster_utils import Cluster

    os.mkdir(f"{folder}/ray")
    settings = {"num_cpus": 1, "object_store_memory": 80 << 20}
    cluster = Cluster()
    try:
        cluster.add_node(**{**settings, "num_cpus": 0, "include_dashboard": False})
        for _ in range(2):
            cluster.add_node(**settings)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)
        del os.environ["RAY_TMPDIR"]


def workers():
    """The processes below this one that hold a bundle."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "ShardActor" in " ".join(process.cmdline()):
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def test_no_row_is_lost_or_doubled_when_a_process_ends(cluster, translate, tmp_path):
    rows = write_jsonl(tmp_path / "rows.jsonl", 96)
    options = BatchOptions(shard_rows=8, generation={"num_beams": 1, "max_new_tokens": 16})
    done = []

    def disturb(count, total, errors):
        done.append(count)
        if len(done) == 2:
            victims = workers()
            assert victims, "there is a worker to kill"
            os.kill(victims[0].pid, signal.SIGKILL)
        if len(done) == 4:
            cluster.remove_node(sorted(cluster.worker_nodes, key=lambda node: node.unique_id)[0], allow_graceful=False)
        if len(done) == 6:
            raise KeyboardInterrupt

    arguments = (translate, str(tmp_path / "rows.jsonl"), str(tmp_path / "out"), options)
    with pytest.raises(KeyboardInterrupt):
        run_batch(*arguments, progress=disturb)
    cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
    result = run_batch(*arguments)
    assert result.rows == 96 and result.errors == 0 and result.resumed_rows >= 48
    found = read_parquet(tmp_path / "out")
    assert [row["id"] for row in found] == list(range(96))
    model = load(translate, "cpu", 1)
    alone = [model.generate(row["text"], num_beams=1, max_new_tokens=16).text for row in rows]
    assert [row["output"] for row in found] == alone
    calm = run_batch(translate, str(tmp_path / "rows.jsonl"), str(tmp_path / "calm"), options, workers=1)
    assert calm.resumed_rows == 0 and shards(tmp_path / "calm") == shards(tmp_path / "out"), "the same bytes"


def test_the_command_ships_the_bundle_and_stops_at_errors(cluster, embed, tmp_path, monkeypatch):
    write_jsonl(tmp_path / "rows.jsonl", 8)
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write("{broken\n" * 4)
    command = ["batch", str(embed), str(tmp_path / "rows.jsonl"), str(tmp_path / "out"), "--shard-rows", "6", "--ship"]
    failed = CliRunner().invoke(cli, [*command, "--max-errors", "3", "--workers", "1"])
    assert failed.exit_code == 1 and "4 of 12 rows have errors, and the job allows 3" in failed.stderr
    passed = CliRunner().invoke(cli, [*command, "--json"])
    assert passed.exit_code == 0, passed.stderr
    result = json.loads(passed.stdout)
    assert (result["rows"], result["errors"], result["resumed_rows"]) == (12, 4, 12)
    assert "4 rows have errors" in passed.stderr


def test_an_error_of_a_worker_reaches_the_user(cluster, embed, tmp_path, monkeypatch):
    write_jsonl(tmp_path / "rows.jsonl", 4)
    source = tmp_path / "rows.jsonl"

    def prepare(*arguments):
        job, found, rows = original(*arguments)
        source.write_text(source.read_text()[:-20])
        return job, found, rows

    import edgeformer.batch.run as module

    original = module._prepare
    monkeypatch.setattr(module, "_prepare", prepare)
    with pytest.raises(RequestError, match="rows.jsonl has changed since the job began"):
        run_batch(embed, str(source), str(tmp_path / "out"))
    assert not list(Path(tmp_path / "out").glob("part-*"))
