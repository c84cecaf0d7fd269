"""The record of a job, and what it has committed.

    OUTPUT/part-00000000.parquet      shards, one per piece of the input
    OUTPUT/_job/job.json              input, bundle, options: what every byte of the shards follows from
    OUTPUT/_job/commits/00000000.json rows, errors, tokens and hash of a shard, written after it

A shard counts once its commit is there. Names that begin with an underscore are hidden from readers of data sets.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any

from edgeformer.batch.options import BatchOptions, Verb
from edgeformer.batch.storage import Folder, digest_of
from edgeformer.errors import RequestError

SCHEMA_VERSION = 2
JOB = "_job/job.json"
COMMITS = "_job/commits"


@dataclass(frozen=True, kw_only=True)
class Job:
    """The record of everything that the bytes of all shards follow from.

    Attributes:
        bundle: SHA-256 of the bundle's manifest, which holds those of its files.
        column: that of the prompt; None with a template.
        media: that of its pictures or recordings; None without these.
        medium: what the bundle reads beside text, or instead of it: picture, recording, or None.
        threads: of one worker, on which sums may depend.
        files: of the input, with their hashes.
        columns: the input's, as `encode_schema` writes them.
    """

    bundle: str
    verb: Verb
    column: str | None
    media: str | None
    medium: str | None
    options: dict[str, Any]
    threads: int
    files: list[dict[str, Any]]
    rows: int
    shards: int
    columns: str
    schema_version: int = SCHEMA_VERSION

    @property
    def id(self) -> str:
        """The SHA-256 of the record."""
        return digest_of(json.dumps(asdict(self), sort_keys=True).encode())

    def batch_options(self) -> BatchOptions:
        """Return the options of the job."""
        return BatchOptions(**self.options)


@dataclass(frozen=True, kw_only=True)
class Commit:
    """A shard that is written: which rows, how many of them have errors, tokens, the file's size and hash."""

    index: int
    first_row: int
    rows: int
    errors: int
    prompt_tokens: int
    completion_tokens: int
    bytes: int
    sha256: str
    job: str


def shard_name(index: int, form: str) -> str:
    """Return the name of a shard's file."""
    return f"part-{index:08d}.{form}"


def open_job(folder: Folder, job: Job) -> None:
    """Write the record of a job, or see that a folder holds the record of the same job, which then goes on.

    Raises RequestError for the folder of another job, naming what differs, and for one with files of other origin.
    """
    found = folder.read_json(JOB)
    if found is None:
        strangers = sorted(folder.sizes())
        if strangers:
            raise RequestError(f"{folder.url} is not empty: it has {strangers[0]}. Give a folder of the job's own.")
        folder.write(JOB, json.dumps(asdict(job), indent=1).encode())
        return
    mine = json.loads(json.dumps(asdict(job)))
    differing = [name for name in {**mine, **found} if mine.get(name) != found.get(name)]
    if differing:
        raise RequestError(
            f"{folder.url} holds another job: {', '.join(map(_described, differing))} differ. Give the same bundle, "
            "input and options to go on with it, or another folder."
        )


def _described(name: str) -> str:
    return {"files": "the input's files", "bundle": "the bundle", "columns": "the input's columns"}.get(name, name)


def committed(folder: Folder, job: Job) -> dict[int, Commit]:
    """Return the commits of a job whose shards are there in full, by index."""
    form, sizes = job.options["format"], folder.sizes()
    found: dict[int, Commit] = {}
    for name in sorted(folder.sizes(COMMITS)):
        data = folder.read_json(f"{COMMITS}/{name}")
        if data is None:
            continue
        commit = Commit(**data)
        if commit.job == job.id and sizes.get(shard_name(commit.index, form)) == commit.bytes:
            found[commit.index] = commit
    return found


def write_commit(folder: Folder, commit: Commit) -> None:
    """Let a shard count, which is written already."""
    folder.write(f"{COMMITS}/{commit.index:08d}.json", json.dumps(asdict(commit)).encode())


def read_commit(folder: Folder, index: int) -> Commit | None:
    """Return the commit of a shard, None where there is none."""
    data = folder.read_json(f"{COMMITS}/{index:08d}.json")
    return None if data is None else Commit(**data)
