"""Rows of a job, a job in this process, and the shards that it wrote."""

import json
import random

import pyarrow.parquet as pq

from edgeformer.batch import BatchOptions
from edgeformer.batch.job import open_job
from edgeformer.batch.run import _prepare
from edgeformer.batch.storage import Folder
from edgeformer.batch.worker import Assignment, ShardWriter

WORDS = ["one", "two", "cat", "dog", "bird", "sees", "likes", "the", "a", "red", "old", "house", "friend", "runs"]


def write_jsonl(path, count, seed=0):
    draw = random.Random(seed)
    rows = [{"id": index, "text": " ".join(draw.choices(WORDS, k=draw.randint(2, 9)))} for index in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows


def run(bundle, source, output, **options):
    """Write all shards of a job in this process; return the job and its commits."""
    job, found, _ = _prepare(bundle, str(source), BatchOptions(**options))
    open_job(Folder(str(output)), job)
    writer = ShardWriter(Assignment(job=job, bundle=str(bundle), output=str(output)))
    commits = [writer.write(piece) for piece in found.pieces]
    return job, commits


def shards(folder):
    """The content of each shard, by name; nothing else may stand beside them."""
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*")) if path.name != "_job"}


def read_parquet(folder):
    return [row for path in sorted(folder.glob("part-*.parquet")) for row in pq.read_table(path).to_pylist()]
