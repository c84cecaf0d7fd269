"""Ray: plan a job, run it, count what it did."""

import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from edgeformer.batch.bundles import bundle_hash, check_bundle, chunks
from edgeformer.batch.job import Commit, Job, committed, open_job
from edgeformer.batch.media import find_media, medium_of
from edgeformer.batch.options import BatchOptions
from edgeformer.batch.pieces import Piece, Scan, read_rows, scan
from edgeformer.batch.prompts import find_column, prompt_of
from edgeformer.batch.shards import check_names, encode_schema, input_schema, output_fields
from edgeformer.batch.storage import Folder
from edgeformer.batch.verbs import choose_verb
from edgeformer.batch.worker import Assignment, ShardActor
from edgeformer.errors import EdgeformerError, RequestError
from edgeformer.manifest.manifest import Manifest
from edgeformer.manifest.providers import PROVIDERS

OBJECT_STORE = 150 << 20
"""Bytes of Ray's object store on one machine. It holds pieces and commits alone, about 1 kB each."""

Progress = Callable[[int, int, int], None]
"""Called with rows done, rows in all, and errors."""


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """The size of a job before it runs.

    prompt_tokens: estimated from the first piece; None where nothing is tokenized.
    """

    rows: int
    shards: int
    bytes: int
    verb: str
    column: str | None
    prompt_tokens: int | None
    threads: int
    committed_rows: int


@dataclass(frozen=True, kw_only=True)
class BatchResult:
    """The counts of a job that has ended.

    resumed_rows: those that were committed before this run. seconds: of this run. startup_seconds: to its first commit.
    """

    rows: int
    resumed_rows: int
    errors: int
    prompt_tokens: int
    completion_tokens: int
    shards: int
    seconds: float
    startup_seconds: float


def plan_batch(bundle: str | Path, input_url: str, output_url: str, options: BatchOptions | None = None) -> BatchPlan:
    """Return what a job would do, without Ray and without loading the model; nothing is written."""
    folder = Path(bundle)
    job, found, rows = _prepare(folder, input_url, options or BatchOptions())
    done = committed(Folder(output_url), job)
    return BatchPlan(
        rows=found.rows,
        shards=len(found.pieces),
        bytes=found.bytes,
        verb=job.verb,
        column=job.column,
        prompt_tokens=_estimate(folder, job, rows, found.rows),
        threads=job.threads,
        committed_rows=sum(commit.rows for commit in done.values()),
    )


def run_batch(
    bundle: str | Path,
    input_url: str,
    output_url: str,
    options: BatchOptions | None = None,
    *,
    address: str | None = None,
    workers: int | None = None,
    ship: bool = False,
    max_errors: int | None = None,
    progress: Progress | None = None,
) -> BatchResult:
    """Run all rows of an input through a bundle and write shards; go on with a job that was interrupted.

    address: of a Ray cluster, such as `auto`; None for this machine alone. workers: processes that each hold the
    bundle, None for as many as the cores allow. ship: send the bundle to the nodes, where they do not see its path.
    max_errors: stop once more rows than that have errors. Raises RequestError for a job that cannot be done as asked.
    """
    began = time.perf_counter()
    folder, output = Path(bundle).resolve(), Folder(output_url)
    job, found, _ = _prepare(folder, input_url, options or BatchOptions())
    check_bundle(folder, job.bundle)
    open_job(output, job)
    if address is None:
        output.remove_temporary()
    commits = committed(output, job)
    resumed = sum(commit.rows for commit in commits.values())
    missing = [piece for piece in found.pieces if piece.index not in commits]
    watch = _Watch(job.rows, max_errors, progress, list(commits.values()))
    first = 0.0
    if missing:
        with _ray(address, output_url):
            for commit in _commits(missing, folder, output_url, job, workers, ship):
                first = first or time.perf_counter() - began
                watch.add(commit)
    return BatchResult(
        rows=watch.rows,
        resumed_rows=resumed,
        errors=watch.errors,
        prompt_tokens=sum(commit.prompt_tokens for commit in watch.commits),
        completion_tokens=sum(commit.completion_tokens for commit in watch.commits),
        shards=len(watch.commits),
        seconds=time.perf_counter() - began,
        startup_seconds=first,
    )


class _Watch:
    """Counts commits, and stops a job with too many errors."""

    def __init__(self, total: int, max_errors: int | None, progress: Progress | None, commits: list[Commit]):
        self.commits: list[Commit] = []
        self.rows = self.errors = 0
        self._total, self._most, self._progress = total, max_errors, progress
        for commit in commits:
            self.add(commit)

    def add(self, commit: Commit) -> None:
        """Count a commit. Raises RequestError if more rows have errors than may have."""
        self.commits.append(commit)
        self.rows += commit.rows
        self.errors += commit.errors
        if self._progress is not None:
            self._progress(self.rows, self._total, self.errors)
        if self._most is not None and self.errors > self._most:
            raise RequestError(
                f"{self.errors} of {self.rows:,} rows have errors, and the job allows {self._most}. Look at the column "
                "`error` of the shards; the same command with a higher --max-errors goes on."
            )


def _prepare(bundle: Path, input_url: str, options: BatchOptions) -> tuple[Job, Scan, list[dict[str, Any]]]:
    """Return the job, its input, and the rows of its first piece."""
    manifest = Manifest.read(bundle)
    verb = choose_verb(manifest, options.verb)
    found = scan(input_url, options.shard_rows)
    rows = read_rows(found.pieces[0])
    schema = input_schema(found.pieces[0], rows)
    column = find_column(options, verb, schema.names)
    check_names(schema, output_fields(verb, options.prefix))
    weights = sum(entry.bytes for entry in manifest.files.values())
    job = Job(
        bundle=bundle_hash(bundle),
        verb=verb,
        column=column,
        media=find_media(options, verb, manifest, schema.names),
        medium=None if (medium := medium_of(manifest)) is None else medium.name,
        options=options.to_json(),
        threads=options.threads or threads_for(weights),
        files=found.files,
        rows=found.rows,
        shards=len(found.pieces),
        columns=encode_schema(schema),
    )
    return job, found, rows


def threads_for(weight_bytes: int) -> int:
    """Return the threads of a worker for a bundle of this size.

    A small bundle gains more from a second process than from a second thread; a large one would take its memory again
    in each process.
    """
    return 1 if weight_bytes < 256 << 20 else 4 if weight_bytes < 2 << 30 else 8


def _estimate(bundle: Path, job: Job, rows: list[dict[str, Any]], total: int) -> int | None:
    """Return the tokens of all prompts, from the mean of the first rows."""
    from tokenizers import Tokenizer

    path = bundle / "tokenizer.json"
    if job.verb == "transcribe" or not path.is_file():
        return None
    prompt, tokenizer, counts = prompt_of(job.options["template"], job.column), Tokenizer.from_file(str(path)), []
    for row in rows:
        try:
            text = prompt(row)
        except EdgeformerError:
            continue  # it will be an error row
        counts.append(len(tokenizer.encode(text if isinstance(text, str) else json.dumps(text, default=str)).ids))
    return round(sum(counts) / len(counts) * total) if counts else 0


@contextmanager
def _ray(address: str | None, output_url: str) -> Iterator[None]:
    """Have Ray: a cluster by its address, a session that runs already, or one of this process's own, which is ended.

    Its usage statistics and dashboard are off, and its folder in the system's temporary one is removed.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # the native log of this process, which users cannot act on
    import ray

    if ray.is_initialized():
        yield
        return
    quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    temporary = tempfile.mkdtemp(prefix="ef") if address is None else None
    try:
        if temporary is None:
            ray.init(address=address, **quiet)
        else:
            from edgeformer.runtime.sessions.session import usable_cores

            ray.init(num_cpus=usable_cores(), include_dashboard=False, object_store_memory=OBJECT_STORE,
                     _temp_dir=temporary, **quiet)  # fmt: skip
        yield
    except (ConnectionError, ValueError) as error:
        raise RequestError(f"there is no Ray cluster at {address}: {error}.") from error
    finally:
        ray.shutdown()
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)


def _commits(
    pieces: list[Piece], bundle: Path, output_url: str, job: Job, workers: int | None, ship: bool
) -> Iterator[Commit]:
    """Yield the commits of pieces as workers write them, in any order; workers and nodes that die are replaced."""
    import ray
    from ray.data import ActorPoolStrategy, DataContext

    context = DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    most = min(workers or max(1, int(ray.cluster_resources().get("CPU", 1)) // job.threads), len(pieces))
    parts = chunks(bundle, ray.put) if ship else None
    assignment = Assignment(job=job, bundle=str(bundle), output=_absolute(output_url), parts=parts)
    items = [{"piece": asdict(piece)} for piece in pieces]
    dataset = ray.data.from_items(items, override_num_blocks=len(items)).map_batches(
        ShardActor,
        fn_constructor_args=(assignment,),
        batch_size=1,
        # Without an initial size Ray begins with one worker and adds others slowly, in jobs of a minute none. A
        # minimum of one lets the job go on with the nodes that are left.
        compute=ActorPoolStrategy(min_size=1, max_size=most, initial_size=most, max_tasks_in_flight_per_actor=2),
        num_cpus=job.threads,
        num_gpus=1 if PROVIDERS[job.options["provider"]].on_device else None,
    )
    try:
        for row in dataset.iter_rows():
            yield Commit(**row)
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, EdgeformerError):
            raise cause from error
        raise RequestError(f"the job stopped: {error}. The same command goes on with it.") from error


def _absolute(url: str) -> str:
    return url if "://" in url else str(Path(url).resolve())


def summary(result: BatchResult) -> dict[str, Any]:
    """Return a result as JSON, with rows per second of this run."""
    new = result.rows - result.resumed_rows
    rounded = replace(result, seconds=round(result.seconds, 3), startup_seconds=round(result.startup_seconds, 3))
    return asdict(rounded) | {"rows_per_second": round(new / max(result.seconds, 1e-9), 1)}
