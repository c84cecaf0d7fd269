"""The operators that execution providers publish."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

TABLE = Path(__file__).parent / "operators.json"


@dataclass(frozen=True, kw_only=True)
class OperatorTable:
    """The published operators of a provider.

    Attributes:
        title: its name in sentences.
        source: the file that lists them.
        commit: of the repository of that file.
        ops: what each operator must keep to, by name; empty where the list has no limit.
    """

    title: str
    source: str
    commit: str
    ops: Mapping[str, str]


OPERATOR_TABLES = {
    name: OperatorTable(**table) for name, table in json.loads(TABLE.read_text(encoding="utf-8")).items()
}
"""The tables by the names that `check` has for the providers."""
