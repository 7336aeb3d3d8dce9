"""`--dump FILE` of the status commands: as in upstream, each call adds to the file what was true then."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from merlin.base.files import replacing, write_text
from merlin.cli.output import local_time, to_json
from merlin.errors import UsageError

TIME = "time_of_status"
NO_DUMP = "{} is no file of --dump, so nothing is added to it; name another one"
_BLOCK = 1 << 20


def add_to_dump(path: Path, rows: Iterable[Mapping[str, object]], document: Any, *, moment: str = "") -> None:
    """Add `rows` to a CSV file, or `document` to an object in a JSON file, under the time of now.

    Raises UsageError if the file holds something else, which stays as it is.
    """
    moment = moment or local_time(time.time())
    if path.suffix == ".csv":
        _add_rows(path, ({TIME: moment, **row} for row in rows))
    else:
        _add_document(path, moment, document() if callable(document) else document)


def _add_document(path: Path, moment: str, document: Any) -> None:
    before: Any = {}
    if path.is_file():
        try:
            before = json.loads(path.read_bytes())
        except ValueError:
            before = None
        if not isinstance(before, dict):
            raise UsageError(NO_DUMP.format(path))
    with replacing(path) as temporary:
        temporary.write_text(to_json({**before, moment: document}) + "\n", encoding="utf-8")


def _add_rows(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Copy what is there, and write the rows behind it; one by one, for there may be millions."""
    every = iter(rows)
    first = next(every, None)
    if first is None:
        if not path.exists():
            write_text(path, "")
        return
    columns = list(first)
    head = io.StringIO()
    csv.writer(head, lineterminator="\n").writerow(columns)
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8", newline="") as out:
        if path.is_file() and path.stat().st_size:
            with path.open(encoding="utf-8", newline="") as before:
                if before.readline() != head.getvalue():
                    raise UsageError(
                        f"{path} has other columns, so nothing is added to it; name another file"
                    )
                before.seek(0)
                while block := before.read(_BLOCK):
                    out.write(block)
        else:
            out.write(head.getvalue())
        writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
        writer.writerows(chain([first], every))
