"""A piece and its results as the bytes of a Parquet or JSONL file."""

import base64
import io
import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from edgeformer.batch.options import Format, Verb
from edgeformer.batch.pieces import BROKEN, Piece, Row, table_of
from edgeformer.errors import RequestError

SCALARS = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}


def output_fields(verb: Verb, prefix: str) -> list[pa.Field]:
    """Return the new columns of a verb, with the prefix of the job before their names."""
    kinds = {"embed": pa.list_(pa.float32()), "perplexity": pa.float64()}
    fields = {"output": kinds.get(verb, pa.string())}
    if verb == "chat":
        fields["reasoning_content"] = pa.string()
    if verb in ("generate", "chat", "translate"):
        fields |= {"finish_reason": pa.string(), "prompt_tokens": pa.int64(), "completion_tokens": pa.int64()}
    else:
        fields |= {"prompt_tokens": pa.int64()}
    if verb in ("classify", "fill-mask"):
        fields["scores"] = pa.list_(pa.struct([("label", pa.string()), ("score", pa.float64())]))
    fields["error"] = pa.string()
    return [pa.field(prefix + name, kind) for name, kind in fields.items()]


def input_schema(piece: Piece, rows: Sequence[Row]) -> pa.Schema:
    """Return the columns of an input, from its first piece.

    Of JSONL these are the fields of its rows, in the order in which they appear; one that is not of one simple type
    everywhere becomes a text, which is JSON.
    """
    if piece.kind == "parquet":
        return table_of(piece).schema.remove_metadata()
    types: dict[str, set[type]] = {}
    for row in rows:
        for name, value in row.items():
            if name != BROKEN:
                types.setdefault(name, set()).update([] if value is None else [type(value)])
    return pa.schema([pa.field(name, _simple(found)) for name, found in types.items()])


def _simple(found: set[type]) -> pa.DataType:
    if found == {int, float}:
        return pa.float64()
    return SCALARS.get(next(iter(found)), pa.string()) if len(found) == 1 else pa.string()


def check_names(schema: pa.Schema, fields: Sequence[pa.Field]) -> None:
    """Raise RequestError where a new column has the name of one of the input."""
    taken = [each.name for each in fields if each.name in schema.names]
    if taken:
        raise RequestError(
            f"the input has a column {taken[0]!r} already. Give the new ones other names: --prefix model_"
        )


def encode_schema(schema: pa.Schema) -> str:
    """Return a schema as text, for the record of a job."""
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def decode_schema(text: str) -> pa.Schema:
    """Return what `encode_schema` was given."""
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def misfit(row: Row, schema: pa.Schema) -> str | None:
    """Return why a row cannot stand under these columns, None where it can."""
    for name, value in row.items():
        if name == BROKEN:
            continue
        if name not in schema.names:
            return f"the row has a field {name!r}, which the first rows of the input do not have"
        kind = schema.field(name).type
        if value is None or kind == pa.string():
            continue
        fits = isinstance(value, bool) == (kind == pa.bool_()) and isinstance(
            value, int | float if kind == pa.float64() else int
        )
        if not fits:
            return f"its field {name!r} is {json.dumps(value)[:40]}, which is no {kind}"
    return None


def shard_bytes(
    piece: Piece, rows: Sequence[Row], results: Sequence[dict[str, Any]], schema: pa.Schema, fields: list[pa.Field],
    form: Format,
) -> bytes:  # fmt: skip
    """Return the file of a shard: rows of the input with their results beside them, in the order of the input."""
    if form == "jsonl":
        names = [each.name for each in fields]
        lines = [
            json.dumps(
                _kept(row) | dict(zip(names, result.values(), strict=True)), ensure_ascii=False, default=_as_json
            )
            for row, result in zip(rows, results, strict=True)
        ]
        return ("\n".join(lines) + "\n").encode()
    if piece.kind == "parquet":
        table = table_of(piece).cast(schema)
    else:
        columns = {each.name: [_cell(row.get(each.name), each.type) for row in rows] for each in schema}
        table = pa.table(columns, schema=schema)
    for position, each in enumerate(fields):
        values = [list(result.values())[position] for result in results]
        table = table.append_column(each, pa.array(values, each.type))
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


def _as_json(value: Any) -> str:
    """Return a value that JSON has no form for: bytes, as of a picture, in base64."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)


def _kept(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != BROKEN}


def _cell(value: Any, kind: pa.DataType) -> Any:
    """Return a cell as its column stores it; one that does not fit is empty, and its row has an error."""
    if value is None or kind == pa.string():
        return value if value is None or isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if isinstance(value, bool) != (kind == pa.bool_()):
        return None
    return value if isinstance(value, int | float if kind == pa.float64() else int) else None
