"""Lets one reading statement through to DuckDB, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from merlin.errors import UsageError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_READING = ("SELECT", "EXPLAIN", "MULTI", "PRAGMA", "CALL")  # types of statements; MULTI: PIVOT


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
    if kind not in _READING:
        raise UsageError(f"this would be a {kind} statement; {what} can only be read: select …")
