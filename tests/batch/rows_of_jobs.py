"""Rows of a job, and the shards that it wrote."""

import json
import random

import pyarrow.parquet as pq

WORDS = ["one", "two", "cat", "dog", "bird", "sees", "likes", "the", "a", "red", "old", "house", "friend", "runs"]


def write_jsonl(path, count, seed=0):
    draw = random.Random(seed)
    rows = [{"id": index, "text": " ".join(draw.choices(WORDS, k=draw.randint(2, 9)))} for index in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return rows


def shards(folder):
    """The content of each shard, by name; nothing else may stand beside them."""
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*")) if path.name != "_job"}


def read_parquet(folder):
    return [row for path in sorted(folder.glob("part-*.parquet")) for row in pq.read_table(path).to_pylist()]
