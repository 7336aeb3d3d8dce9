"""How the commands print: JSON on stdout, tables by rich, files by their suffix."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from merlin.base.files import write_text
from merlin.errors import UsageError

MAX_WIDTH = 10_000

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from merlin.errors import Diagnostic


def console() -> Console:
    """A console on stdout that leaves words in [brackets] alone and never folds a line; terminals do that."""
    from rich.console import Console

    return Console(markup=False, highlight=False, emoji=False, width=MAX_WIDTH)


def jsonable(value: Any) -> Any:
    """For `json.dumps(default=…)`: dataclasses, enums, paths, NumPy scalars and arrays."""
    import dataclasses
    from enum import Enum

    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return str(value)


def to_json(document: Any) -> str:
    """Indented JSON; NaN and infinity, which JSON does not have, become null."""
    return json.dumps(
        _finite(json.loads(json.dumps(document, default=jsonable))), indent=2, ensure_ascii=False
    )


def _finite(value: Any) -> Any:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    return value


def print_json(document: Any) -> None:
    """Print one JSON document on stdout."""
    print(to_json(document))


def is_terminal() -> bool:
    """Whether a person reads stdout."""
    return sys.stdout is not None and sys.stdout.isatty()


def flush() -> None:
    """Write out what was printed, before the exit code is given; stdout is None where the caller closed it."""
    if sys.stdout is not None:
        sys.stdout.flush()


def table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()) -> Table:
    """A plain table; the columns named in `right` are right-aligned."""
    from rich import box
    from rich.table import Table

    out = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, header_style="bold")
    for name in columns:
        out.add_column(name, justify="right" if name in right else "left", no_wrap=True)
    for row in rows:
        out.add_row(*(cell(value) for value in row))
    return out


def cell(value: object) -> str:
    """A value as it stands in a table."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="milliseconds")
    return str(value)


def check_dump(path: Path | None) -> None:
    """Raise UsageError unless `path` ends in .csv or .json."""
    if path is not None and path.suffix not in (".csv", ".json"):
        raise UsageError(f"--dump writes .csv or .json, not {path.suffix or path.name!r}: {path}")


def dump_file(path: Path, rows: Sequence[dict[str, Any]], document: Any) -> None:
    """Write `rows` as CSV or `document` as JSON, as the suffix says, through a temporary name."""
    import csv
    import io

    if path.suffix == ".csv":
        text = io.StringIO()
        writer = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        content = text.getvalue()
    else:
        content = to_json(document) + "\n"
    write_text(path, content)


def warn(warnings: Iterable[Diagnostic]) -> None:
    """Tell findings that stop nothing, each with its place."""
    for warning in warnings:
        print(warning.render(), file=sys.stderr)
