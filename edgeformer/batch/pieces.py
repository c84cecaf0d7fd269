"""An input as pieces of consecutive rows, and the rows of a piece.

The driver reads an input once, to find out where each piece begins and what the input's fingerprint is; it keeps no
row. Workers then read their own pieces: bytes of a JSONL or CSV file, rows of a Parquet file, files of a folder.
"""

import csv
import hashlib
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from edgeformer.batch.row_groups import BLOCK, parquet_ends, read_table
from edgeformer.batch.storage import open_url
from edgeformer.documents.json_document import parse
from edgeformer.errors import RequestError

if TYPE_CHECKING:
    import pyarrow as pa

SOUND = (".wav", ".flac", ".mp3", ".ogg", ".opus", ".aiff")
KINDS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet", ".txt": "text"} | dict.fromkeys(
    SOUND, "audio"
)
"""Kinds of input files, by the ends of their names."""

BROKEN = "\0broken"
"""Key of a row that could not be read, with the reason. No column of a file can have this name."""

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Consecutive rows of one input. begin, end: bytes of a JSONL or CSV file, or rows of a Parquet file.

    Attributes:
        index: which piece.
        first_row, rows: its rows in the whole input.
        paths: one file, or a file per row of a folder.
        header: the names of the columns of a CSV file.
        sha256: of the bytes from begin to end; of Parquet, of the row groups that hold its rows.
    """

    index: int
    kind: str
    paths: tuple[str, ...]
    first_row: int
    rows: int
    begin: int = 0
    end: int = 0
    header: tuple[str, ...] = ()
    sha256: str = ""


@dataclass(frozen=True, kw_only=True)
class Scan:
    """An input: its kind, its pieces, and its files with their sizes, hashes and rows."""

    kind: str
    pieces: list[Piece]
    files: list[dict[str, Any]]

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(piece.rows for piece in self.pieces)

    @property
    def bytes(self) -> int:
        """The bytes of all files."""
        return sum(file["bytes"] for file in self.files)


def scan(url: str, shard_rows: int) -> Scan:
    """Read an input once and return its pieces of up to shard_rows rows; a piece lies in one file, except of a folder
    of texts or recordings. Raises RequestError for an input that is missing, empty or of no known kind.
    """
    files, paths, kind = _files(url)
    pieces: list[Piece] = []
    records: list[dict[str, Any]] = []
    row = 0
    for path in paths:
        hasher, size = hashlib.sha256(), 0
        with files.open(path, "rb") as file:
            match kind:
                case "jsonl" | "csv":
                    ends = list(_piece_ends(file, kind, shard_rows, hasher))
                case "parquet":
                    ends = parquet_ends(file, path, shard_rows, hasher)
                case _:
                    ends = []
            while block := file.read(BLOCK):
                hasher.update(block)
            size = file.tell()
        begin = 0
        header: tuple[str, ...] = ()
        if kind == "csv" and ends:
            begin, header = ends[0][0], _header(files, path, ends.pop(0)[0])
        url_of = files.unstrip_protocol(path)
        for end, count, sha256 in ends:
            pieces.append(Piece(index=len(pieces), kind=kind, paths=(url_of,), first_row=row, rows=count, begin=begin,
                                end=end, header=header, sha256=sha256))  # fmt: skip
            begin, row = end, row + count
        rows = sum(count for _, count, _ in ends) if kind in ("jsonl", "csv", "parquet") else 1
        records.append({"path": url_of, "bytes": size, "sha256": hasher.hexdigest(), "rows": rows})
    if kind in ("text", "audio"):
        urls = [record["path"] for record in records]
        starts = range(0, len(urls), shard_rows)
        pieces = [
            Piece(index=index, kind=kind, paths=tuple(urls[start : start + shard_rows]), first_row=start,
                  rows=len(urls[start : start + shard_rows]))
            for index, start in enumerate(starts)
        ]  # fmt: skip
    if not pieces:
        raise RequestError(f"{url} has no rows. Give an input with at least one.")
    return Scan(kind=kind, pieces=pieces, files=records)


def _files(url: str) -> tuple[Any, list[str], str]:
    """Return the file system, the files and the kind of an input, which is a file, a folder or a pattern."""
    files, path = open_url(url)
    if any(character in path for character in "*?["):
        try:
            paths = sorted(files.glob(path))
        except ValueError as error:
            raise RequestError(f"the pattern {url} cannot be read: {error}.") from None
    elif _kind(path) is not None and files.isfile(path):
        paths = [path]  # before `isdir`, for which fsspec reads all of a file that a web server has
    else:
        paths = sorted(name for name in files.find(path) if not name.rpartition("/")[2].startswith((".", "_")))
    if not paths:
        raise RequestError(f"there is no input {url}. Give a file, a folder or a pattern such as 'rows-*.jsonl'.")
    kinds = {path: _kind(path) for path in paths}
    unknown = [path for path, kind in kinds.items() if kind is None]
    if unknown or len(set(kinds.values())) > 1:
        wrong = unknown[0] if unknown else paths[-1]
        raise RequestError(f"{wrong} does not fit: an input's files all end in one of {', '.join(KINDS)}.")
    return files, paths, str(kinds[paths[0]])


def _kind(path: str) -> str | None:
    return KINDS.get("." + path.rpartition(".")[2].lower())


def _piece_ends(file: Any, kind: str, shard_rows: int, hasher: Any) -> Iterator[tuple[int, int, str]]:
    """Yield (end in bytes, rows, SHA-256) of each piece; of a CSV file first the end of its header.

    A line break between quotation marks does not end a row of CSV (RFC 4180); empty lines are no rows.
    """
    rows, position, quotes, header, blank, piece = 0, 0, 0, kind == "csv", True, hashlib.sha256()
    for line in file:
        hasher.update(line)
        piece.update(line)
        position += len(line)
        blank = blank and not line.strip()
        if kind == "csv":
            quotes += line.count(b'"')
            if quotes % 2:
                continue
        if not blank:
            rows += 1
            if header or rows == shard_rows:
                yield position, rows, piece.hexdigest()
                rows, header, piece = 0, False, hashlib.sha256()
        blank = True
    if rows or not blank:
        yield position, rows + (not blank), piece.hexdigest()


def _header(files: Any, path: str, end: int) -> tuple[str, ...]:
    [names] = csv.reader(io.StringIO(files.cat_file(path, 0, end).decode("utf-8-sig"), newline=""))
    if len(set(names)) < len(names):
        raise RequestError(f"{path} has two columns of one name: {', '.join(names)}. Rename one.")
    return tuple(names)


def read_rows(piece: Piece) -> list[Row]:
    """Return the rows of a piece. A line that cannot be read becomes {BROKEN: reason}."""
    files, path = open_url(piece.paths[0])
    match piece.kind:
        case "jsonl":
            return [_json_row(line) for line in _bytes(files, path, piece).split(b"\n") if line.strip()]
        case "csv":
            text = _bytes(files, path, piece).decode("utf-8", "replace")
            return [_csv_row(cells, piece.header) for cells in csv.reader(io.StringIO(text, newline="")) if cells]
        case "parquet":
            rows: list[Row] = table_of(piece).to_pylist()
            return rows
        case "text":
            return [_text_row(each) for each in piece.paths]
        case _:
            return [{"path": open_url(each)[1]} for each in piece.paths]


def _bytes(files: Any, path: str, piece: Piece) -> bytes:
    """Return the bytes of a piece of a file. Raises RequestError if they are others than the scan saw."""
    content: bytes = files.cat_file(path, piece.begin, piece.end)
    if hashlib.sha256(content).hexdigest() != piece.sha256:
        raise RequestError(f"{path} has changed since the job began. Begin anew, in another folder.")
    return content


def table_of(piece: Piece) -> "pa.Table":
    """Return the rows of a piece of a Parquet file as a table. Raises RequestError for rows that have changed."""
    return read_table(piece.paths[0], piece.begin, piece.end, piece.sha256)


def _json_row(line: bytes) -> Row:
    try:
        row = parse(line.decode("utf-8"))
    except ValueError as error:
        return {BROKEN: f"the line is not JSON: {error}"}
    return row if isinstance(row, dict) else {BROKEN: f"the line is no JSON object, but {json.dumps(row)[:60]}"}


def _csv_row(cells: list[str], header: tuple[str, ...]) -> Row:
    if len(cells) != len(header):
        return {BROKEN: f"the row has {len(cells)} cells, and the header {len(header)}"}
    return dict(zip(header, cells, strict=True))


def _text_row(url: str) -> Row:
    files, path = open_url(url)
    try:
        return {"path": path, "text": files.cat_file(path).decode("utf-8")}
    except UnicodeDecodeError as error:
        return {"path": path, "text": None, BROKEN: f"the file is not UTF-8 (byte {error.start:,})"}
