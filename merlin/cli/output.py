"""How the commands print: JSON on stdout, tables by rich, files by their suffix, remarks on stderr."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import accumulate, zip_longest
from math import isfinite
from pathlib import Path
from shutil import get_terminal_size
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from merlin.base.files import write_text
from merlin.base.text import count, printable
from merlin.errors import UsageError

MAX_WIDTH = 10_000
_LEAST_FOLDED = 20  # characters in a line of a text that is folded

if TYPE_CHECKING:
    from rich.console import Console

    from merlin.errors import Diagnostic


def console() -> Console:
    """A console on stdout that leaves words in [brackets] alone and never folds a line; terminals do that."""
    from rich.console import Console

    return Console(markup=False, highlight=False, emoji=False, width=MAX_WIDTH)


def plain(value: Any) -> Any:
    """The value as objects that JSON knows: dataclasses, enums, paths, NumPy scalars and arrays become such."""
    import msgspec

    def other(value: Any) -> Any:
        return value.tolist() if hasattr(value, "tolist") else str(value)

    return msgspec.to_builtins(
        value, enc_hook=other, str_keys=True, builtin_types=(bytes, timedelta, Decimal)
    )


def to_json(document: Any, *, instead: Callable[[float], str | None] = lambda _: None) -> str:
    """Indented JSON; NaN and infinity, which JSON does not have, become null, or what `instead` makes of them."""
    return json.dumps(_finite(plain(document), instead), indent=2, ensure_ascii=False, default=str)


def _finite(value: Any, instead: Callable[[float], str | None]) -> Any:
    if isinstance(value, Decimal):
        value = float(value)
    if isinstance(value, float) and not isfinite(value):
        return instead(value)
    if isinstance(value, dict):
        return {k: _finite(v, instead) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(v, instead) for v in value]
    return value


def print_json(document: Any) -> None:
    """Print one JSON document on stdout."""
    print(to_json(document))


def remark(text: str) -> None:
    """Print a line for people on stderr, where no program looks for results."""
    print(text, file=sys.stderr)


def print_line(text: str) -> None:
    """Print a line on stdout at once, for a reader who follows the output."""
    print(text, flush=True)


def is_terminal() -> bool:
    """True if a person reads stdout."""
    return sys.stdout is not None and sys.stdout.isatty()


def stderr_is_terminal() -> bool:
    """True if a person reads stderr."""
    return sys.stderr is not None and sys.stderr.isatty()


def can_show(text: str) -> bool:
    """True if the encoding of stdout has these characters."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def can_ask() -> bool:
    """True if a person can answer on stdin."""
    return sys.stdin is not None and sys.stdin.isatty()


def local_time(at: float) -> str:
    """ "2026-01-02 03:04:05" of epoch seconds."""
    return f"{datetime.fromtimestamp(at):%Y-%m-%d %H:%M:%S}"


def flush() -> None:
    """Write out what was printed, before the exit code is given; stdout is None where the caller closed it."""
    if sys.stdout is not None:
        sys.stdout.flush()


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Sequence[str] = (),
    folded: str | None = None,
) -> None:
    """Print a plain table; the columns named in `right` are right-aligned. Quick also with thousands of rows.

    On a terminal that is too narrow, the texts in the column `folded` take several lines.
    """
    shown = [[_cell(value).splitlines() or [""] for value in row] for row in rows]
    widths = _widths(columns, shown)
    if folded is not None and (is_terminal() or "COLUMNS" in os.environ):
        column, more = columns.index(folded), sum(widths) + 3 * (len(widths) - 1)
        room = max(_LEAST_FOLDED, widths[column] + get_terminal_size().columns - more)
        for row in shown:
            row[column] = [part for text in row[column] for part in wrap(text, room) or [""]]
        widths = _widths(columns, shown)

    def line(cells: Sequence[str]) -> str:
        padded = (
            " " * (width - _width(cell)) + cell if name in right else cell + " " * (width - _width(cell))
            for name, cell, width in zip(columns, cells, widths, strict=True)
        )
        return "   ".join(padded).rstrip()

    head = line(columns)
    print(f"\x1b[1m{head}\x1b[0m" if is_terminal() and os.environ.get("TERM") != "dumb" else head)
    print(("─" if can_show("─") else "-") * (sum(widths) + 3 * (len(widths) - 1)))
    for row in shown:
        for pieces in zip_longest(*row, fillvalue=""):
            print(line(pieces))


def _widths(columns: Sequence[str], shown: Sequence[Sequence[Sequence[str]]]) -> list[int]:
    return [
        max([_width(name), *(_width(line) for row in shown for line in row[i])])
        for i, name in enumerate(columns)
    ]


def _width(text: str) -> int:
    """Columns that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="milliseconds")
    return printable(str(value))


def print_answer(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    as_json: bool,
    as_csv: bool,
    first: Sequence[str] | None = None,
) -> None:
    """Print the answer to a query as JSON, CSV or a table; in JSON, infinity is the text "inf" or "-inf".

    JSON has each name once: of two columns with the same name, the second is called NAME_1. With `first`, a terminal
    shows the columns that it has room for, those among `first` before others.
    """
    if as_json:
        names = _distinct(columns)
        print(to_json([dict(zip(names, row, strict=True)) for row in rows], instead=str))
    elif as_csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows([columns, *rows])
    elif first is None or not is_terminal():
        print_table(columns, rows)
    else:
        shown = _fitting(columns, rows, first)
        print_table([columns[i] for i in shown], [[row[i] for i in shown] for row in rows])
        if len(shown) < len(columns):
            print(f"and {count(len(columns) - len(shown), 'more column')}: --out FILE, --csv or --json")


def _fitting(columns: Sequence[str], rows: Sequence[Sequence[Any]], first: Sequence[str]) -> list[int]:
    """The columns, at least one, that a line of the terminal has room for."""
    widths = _widths(columns, [[_cell(value).splitlines() for value in row] for row in rows])
    order = sorted(range(len(columns)), key=lambda i: columns[i] not in first)
    ends = accumulate(widths[i] + 3 for i in order)
    num = sum(end <= get_terminal_size().columns + 3 for end in ends)
    return sorted(order[: max(1, num)])


def _distinct(columns: Sequence[str]) -> list[str]:
    """The names, with "_1" and so on behind those that come again."""
    names: list[str] = []
    for column in columns:
        name, n = column, 0
        while name in names or (n and name in columns):
            n += 1
            name = f"{column}_{n}"
        names.append(name)
    return names


def check_dump(path: Path | None) -> None:
    """Raise UsageError unless `path` ends in .csv or .json."""
    if path is not None and path.suffix not in (".csv", ".json"):
        raise UsageError(f"--dump writes .csv or .json, not {path.suffix or path.name!r}: {path}")


def dump_file(path: Path, rows: Sequence[dict[str, Any]], document: Any) -> None:
    """Write `rows` as CSV or `document` as JSON, as the suffix says, through a temporary name."""
    write_text(path, csv_text(rows) if path.suffix == ".csv" else to_json(document) + "\n")


def csv_text(rows: Sequence[dict[str, Any]]) -> str:
    """The rows as CSV, with a column for each of their keys; no text without rows."""
    text = io.StringIO()
    columns = dict.fromkeys(key for row in rows for key in row)
    if not columns:
        return ""
    writer = csv.DictWriter(text, fieldnames=list(columns), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def warn(warnings: Iterable[Diagnostic]) -> None:
    """Print findings that stop nothing, each with its place."""
    for warning in warnings:
        remark(warning.render())
