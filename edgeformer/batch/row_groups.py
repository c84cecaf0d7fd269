"""Rows of a Parquet file by its row groups, which are what can be read and checked by itself."""

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from edgeformer.batch.storage import open_url
from edgeformer.errors import RequestError

BLOCK = 1 << 20
"""Bytes that are read at once."""


MAGIC = b"PAR1"
"""The first bytes of every Parquet file."""


def parquet_ends(file: Any, path: str, shard_rows: int, hasher: Any) -> list[tuple[int, int, str]]:
    """Return (end in rows, rows, SHA-256 of its row groups) of each piece of an open file, which is left at the end of
    its last group. hasher: is given all bytes up to there.

    Raises RequestError for a file that is no Parquet file, or has its groups in another order than their rows.
    """
    try:
        metadata = pq.ParquetFile(file).metadata
    except pa.ArrowInvalid as error:
        raise RequestError(f"{path} is no Parquet file: {error}.") from None
    hashes = []
    position = 0
    file.seek(0)
    for begin, end in (_span(metadata, group) for group in range(metadata.num_row_groups)):
        if begin < position:
            raise RequestError(f"{path} has row groups that are not one behind the other. Write it again with pyarrow.")
        for block in _blocks(file, begin - position):
            hasher.update(block)
        group = hashlib.sha256()
        for block in _blocks(file, end - begin):
            hasher.update(block)
            group.update(block)
        hashes.append(group.hexdigest())
        position = end
    total = metadata.num_rows
    spans = [(start, min(start + shard_rows, total)) for start in range(0, total, shard_rows)]
    return [
        (end, end - begin, _joined([hashes[group] for group in _groups(metadata, begin, end)[0]]))
        for begin, end in spans
    ]


def read_table(url: str, begin: int, end: int, sha256: str) -> pa.Table:
    """Return the rows from begin to end. The row groups that hold them are kept for the next call, which mostly needs
    the same. Raises RequestError if they are others than the scan saw.
    """
    files, path = open_url(url)
    try:
        with files.open(path, "rb") as file:
            groups, offset = _groups(pq.ParquetFile(file).metadata, begin, end)
    except pa.ArrowInvalid:
        raise _changed(path) from None
    return _read_groups(url, tuple(groups), sha256).slice(offset, end - begin)


@lru_cache(maxsize=1)
def _read_groups(url: str, groups: tuple[int, ...], sha256: str) -> pa.Table:
    """Return row groups as a table. Raises RequestError if their hash is another one."""
    files, path = open_url(url)
    with files.open(path, "rb") as file:
        parquet = pq.ParquetFile(file)
        hashes = []
        for group in groups:
            begin, end = _span(parquet.metadata, group)
            file.seek(begin)
            hasher = hashlib.sha256()
            for block in _blocks(file, end - begin):
                hasher.update(block)
            hashes.append(hasher.hexdigest())
        if not groups or _joined(hashes) != sha256:
            raise _changed(path)
        return parquet.read_row_groups(list(groups))


def _changed(path: str) -> RequestError:
    return RequestError(f"{path} has changed since the job began. Begin anew, in another folder.")


def _groups(metadata: Any, begin: int, end: int) -> tuple[list[int], int]:
    """Return the row groups that hold the rows from begin to end, and the place of begin in them."""
    groups, offset, first = list[int](), 0, 0
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group).num_rows
        if first < end and first + rows > begin:
            offset = offset if groups else begin - first
            groups.append(group)
        first += rows
    return groups, offset


def _span(metadata: Any, group: int) -> tuple[int, int]:
    """Return the first byte of a row group and the one behind its last."""
    row_group = metadata.row_group(group)
    columns = [row_group.column(index) for index in range(row_group.num_columns)]
    if not columns:
        return len(MAGIC), len(MAGIC)
    begins = [min(filter(None, (column.dictionary_page_offset, column.data_page_offset))) for column in columns]
    return min(begins), max(begin + each.total_compressed_size for begin, each in zip(begins, columns, strict=True))


def _blocks(file: Any, size: int) -> Iterator[bytes]:
    while size > 0 and (block := file.read(min(size, BLOCK))):
        size -= len(block)
        yield block


def _joined(hashes: list[str]) -> str:
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()
