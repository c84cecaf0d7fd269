"""Run a bundle over more rows than fit into memory, on one machine or on many, with Ray Data (extra `batch`).

    from edgeformer.batch import BatchOptions, run_batch
    result = run_batch("tiny-translate", "rows.jsonl", "translated", BatchOptions(column="text"))

options.py     options of a job, checked
storage.py     files and folders by local paths or fsspec URLs; files that appear whole or not at all
pieces.py      an input as pieces of consecutive rows, and the rows of a piece
row_groups.py  rows of a Parquet file by its row groups
job.py         the record of a job, and what it has committed
prompts.py     what the model is given for a row
media.py       and its pictures or recordings
verbs.py       rows through a loaded bundle
shards.py      a piece and its results as a Parquet or JSONL file
attempts.py    rows that kill the process which runs them
bundles.py     a bundle on every node, checked before it is used
worker.py      one process that holds a bundle and turns pieces into shards
run.py         Ray: plan a job, run it, count what it did
"""

from edgeformer.batch.options import BatchOptions
from edgeformer.batch.run import BatchPlan, BatchResult, plan_batch, run_batch

__all__ = ["BatchOptions", "BatchPlan", "BatchResult", "plan_batch", "run_batch"]
