"""One process that holds a bundle and turns pieces into shards."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from edgeformer.batch.attempts import Attempts
from edgeformer.batch.bundles import bundle_on_node
from edgeformer.batch.job import JOB, Commit, Job, read_commit, shard_name, write_commit
from edgeformer.batch.media import MEDIA, with_media
from edgeformer.batch.pieces import Piece, Row, read_rows
from edgeformer.batch.prompts import prompt_of
from edgeformer.batch.shards import decode_schema, misfit, output_fields, shard_bytes
from edgeformer.batch.storage import Folder, digest_of
from edgeformer.batch.verbs import Runner, as_columns
from edgeformer.errors import EdgeformerError, RequestError
from edgeformer.runtime import load


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """The job that every worker is told about, and where its parts are.

    bundle: its path. parts: its chunks in Ray's store, None for a path that all see.
    """

    job: Job
    bundle: str
    output: str
    parts: Mapping[str, list[Any]] | None = None


class ShardWriter:
    """A loaded bundle that turns pieces into shards."""

    def __init__(self, assignment: Assignment):
        self.job, self._folder = assignment.job, Folder(assignment.output)
        if self._folder.read_json(JOB) is None:
            raise RequestError(
                f"this node does not see {assignment.output}. Give a folder or URL that all nodes share."
            )
        options = self.job.batch_options()
        self._schema = decode_schema(self.job.columns)
        self._fields = output_fields(self.job.verb, options.prefix)
        self._prompt = prompt_of(options.template, self.job.column)
        self._bundle = bundle_on_node(Path(assignment.bundle), self.job.bundle, assignment.parts, _get)
        model = load(self._bundle, options.provider, self.job.threads, cache_precision=options.cache_precision)
        self._runner = Runner(model, self.job.verb, options)

    def write(self, piece: Piece) -> Commit:
        """Write the shard of a piece and commit it, unless it is committed already; return the commit."""
        done = read_commit(self._folder, piece.index)
        if done is not None and done.job == self.job.id:
            return done
        rows = read_rows(piece)
        if len(rows) != piece.rows:
            raise RequestError(f"{piece.paths[0]} has changed since the job began. Begin anew, in another folder.")
        form = self.job.options["format"]
        typed = piece.kind == "jsonl" and form == "parquet"
        attempts = Attempts(self._folder, piece.index, self.job.id)
        prompts = [self._prompt_of(row, typed, piece) for row in rows]
        prompts = attempts.replace_deadly(
            prompts, lambda place: self._run_alone(prompts[place], piece.first_row + place)
        )
        results = self._runner.run(prompts, piece.first_row)
        columns = [as_columns(result, self.job.verb) for result in results]
        content = shard_bytes(piece, rows, columns, self._schema, self._fields, form)
        self._folder.write(shard_name(piece.index, form), content)
        commit = Commit(
            index=piece.index,
            first_row=piece.first_row,
            rows=len(rows),
            errors=sum(result.error is not None for result in results),
            prompt_tokens=sum(result.prompt_tokens or 0 for result in results),
            completion_tokens=sum(result.completion_tokens or 0 for result in results),
            bytes=len(content),
            sha256=digest_of(content),
            job=self.job.id,
        )
        write_commit(self._folder, commit)
        attempts.end()
        return commit

    def _run_alone(self, prompt: Any, row: int) -> None:
        self._runner.run([prompt], row)

    def _prompt_of(self, row: Row, typed: bool, piece: Piece) -> Any:
        """Return the prompt of a row, or the error that it becomes. typed: whether its fields must fit the columns."""
        try:
            problem = misfit(row, self._schema) if typed else None
            if problem is not None:
                raise RequestError(f"{problem}.")
            job = self.job
            return with_media(self._prompt(row), row, job.media, job.verb, piece.paths[0], MEDIA.get(job.medium or ""))
        except EdgeformerError as error:
            return error


def _get(reference: Any) -> bytes:
    import ray

    content: bytes = ray.get(reference)
    return content


class ShardActor:
    """A `ShardWriter` as Ray Data calls it: batches of pieces in, their commits out, as columns."""

    def __init__(self, assignment: Assignment):
        self._writer = ShardWriter(assignment)

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, list[Any]]:
        """Return the commits of the pieces in a batch, column by column."""
        pieces = [Piece(**_plain(each)) for each in batch["piece"]]
        commits = [asdict(self._writer.write(piece)) for piece in pieces]
        return {name: [commit[name] for commit in commits] for name in commits[0]}


def _plain(piece: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a piece, whose tuples became arrays on the way."""
    return {name: tuple(value) if name in ("paths", "header") else value for name, value in piece.items()}
