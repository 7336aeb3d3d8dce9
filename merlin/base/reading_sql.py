"""Lets one reading statement through to DuckDB, and nothing else."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from merlin.errors import UsageError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_READING = ("SELECT", "MULTI", "PRAGMA", "CALL")  # types of statements; MULTI: PIVOT
_EXPLAIN = re.compile(r"explain\b\s*(?:analyze\b|\(\s*(?:analyze|format)\b[^)]*\))?\s*", re.IGNORECASE)


def require_reading(connection: DuckDBPyConnection, sql: str, what: str, example: str) -> None:
    """Pass if `sql` is one statement that only reads; `what` can only be read, and `example` shows how.

    Raises:
        UsageError: it is empty, several statements, or one that would write.
        duckdb.Error: it cannot be parsed.
    """
    statements = connection.extract_statements(sql)
    if not statements:
        raise UsageError(f'the query is empty; try "{example}"')
    if len(statements) > 1:
        raise UsageError(f"one query at a time; these are {len(statements)}")
    kind = statements[0].type.name
    if kind == "EXPLAIN":  # EXPLAIN ANALYZE runs what it explains
        require_reading(connection, _EXPLAIN.sub("", statements[0].query, count=1), what, example)
    elif kind not in _READING:
        raise UsageError(f"this would be a {kind} statement; {what} can only be read: select …")
