"""SQL over a data set: DuckDB in memory, over the columns that a query mentions. See docs/reading.md."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from merlin.base.reading_sql import require_reading
from merlin.errors import UsageError
from merlin.shards.format.counts import OUTCOMES
from merlin.shards.format.segments import Array, numbers_of_runs
from merlin.shards.reading.planned import NO_CAUSE, absent_values, planned_rows
from merlin.shards.reading.reader import SampleReader
from merlin.shards.reading.sql_text import mentioned, quote, quote_dotted, quote_keywords, with_from
from merlin.shards.reading.store import OnProgress
from merlin.shards.reading.table import (
    ID_COLUMNS,
    PLANNED_COLUMNS,
    ResultTable,
    ambiguous_names,
    array_fields,
    column_values,
    complex_columns,
    split_codes,
    table_columns,
    unknown_column,
    usual_columns,
)

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

VIEW = "rows"

_UNKNOWN = re.compile(r'(?:Referenced column|column named|Table .* does not have a column named) "([^"]+)"')


def positions_where(
    reader: SampleReader, expression: str, on_progress: OnProgress = lambda done, total: None
) -> Array:
    """Indices into `reader` for which an expression is true. Raises UsageError if it cannot be answered."""
    if not expression.strip():
        raise UsageError("the expression is empty; try one such as \"yield > 1e14 and split = 'train'\"")
    frame = f"SELECT _at FROM {VIEW} WHERE (\n{{}}\n) ORDER BY _at"
    with _Engine(reader, expression, frame, on_progress) as engine:
        engine.make_present(with_place=True)
        return np.asarray(engine.run().fetchnumpy()["_at"], dtype=np.int64)


def answer(reader: SampleReader, sql: str, on_progress: OnProgress = lambda done, total: None) -> ResultTable:
    """The answer to one query over the view `rows`. Raises UsageError if it cannot be answered."""
    with _Engine(reader, with_from(sql, VIEW), on_progress=on_progress) as engine:
        if reader.is_whole:
            engine.make_planned()
        else:
            engine.make_present()
        result = engine.run()
        columns = tuple(str(column[0]) for column in result.description or ())
        return ResultTable(columns=columns, rows=result.fetchall())


def table_of(
    reader: SampleReader, num: int | None = None, on_progress: OnProgress = lambda done, total: None
) -> ResultTable:
    """The first `num` samples (None: all) with their ids, split, parameters, inputs, real scalars and texts."""
    left_out = complex_columns(reader.manifest)
    names = ", ".join(quote(name) for name in usual_columns(reader.manifest) if name not in left_out)
    return answer(reader.take(slice(num)), f"SELECT {names} FROM {VIEW}", on_progress)


def positions_of_ids(reader: SampleReader, ids: Any) -> Array:
    """Indices of the samples `ids`, in that order. Raises UsageError that names those which are not there."""
    wanted = np.asarray(ids)
    if wanted.size == 0:
        return np.zeros(0, np.int64)
    if wanted.ndim != 1 or wanted.dtype.kind not in "iu":
        raise UsageError(
            f"sample ids are a list of integers, not {wanted.dtype} of {wanted.ndim} axes; "
            "ens.take(…) takes indices and masks"
        )
    order = np.argsort(reader.sample_id, kind="stable")
    ascending = reader.sample_id[order]
    lo = np.searchsorted(ascending, wanted, side="left")
    num = np.searchsorted(ascending, wanted, side="right") - lo
    if not num.all():
        raise UsageError(_unknown_ids(reader, wanted[num == 0]))
    return np.asarray(order[numbers_of_runs(lo, num)])


def _unknown_ids(reader: SampleReader, ids: Array) -> str:
    """Which ids are not there, and what became of the first ones."""
    planned = planned_rows(reader.manifest)
    named = []
    for wanted in ids[:10].tolist():
        codes = planned.outcome[planned.sample_id == wanted]
        outcomes = sorted({OUTCOMES[code] for code in codes.tolist()} - {"ok"})
        why = "never planned" if not len(codes) else " and ".join(outcomes) or "not in this selection"
        named.append(f"{wanted} ({why})")
    more = f" and {len(ids) - 10:,} more" if len(ids) > 10 else ""
    return f"{reader.path} has no sample{'' if len(ids) == 1 else 's'} {', '.join(named)}{more}"


class _Engine:
    """A DuckDB in memory that holds what one query needs, and can reach nothing else."""

    def __init__(
        self,
        reader: SampleReader,
        written: str,
        frame: str = "{}",
        on_progress: OnProgress = lambda done, total: None,
    ) -> None:
        """`written` is a query; or an expression, where {} stands in the query `frame`."""
        import duckdb

        self._duckdb = duckdb
        self._reader, self._on_progress = reader, on_progress
        self._complex = complex_columns(reader.manifest)  # DuckDB has no such numbers
        known = table_columns(reader.manifest).items()
        self._paths = {name: path for name, path in known if name not in self._complex}
        self._names = [*ID_COLUMNS, *PLANNED_COLUMNS, *self._paths]
        others = (self._complex, ambiguous_names(reader.manifest), array_fields(reader.manifest))
        self._in_need_of_quotes = [*self._names, *(name for known in others for name in known)]
        self._frame, self._is_query = frame, frame == "{}"
        self._wanted = mentioned(written if self._is_query else f"SELECT {written}", self._names, VIEW)
        self._base: dict[str, Array] = {}  # DuckDB reads them in place
        config: dict[str, str | bool | int | float | list[str]] = {
            "autoinstall_known_extensions": False,
            "python_enable_replacements": False,
        }
        self._connection: DuckDBPyConnection = duckdb.connect(":memory:", config=config)
        try:
            self._sql = self._readable(quote_dotted(written, self._in_need_of_quotes))
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def _readable(self, written: str) -> str:
        """The query with the quotes that it needs; UsageError if it is no query, or does more than read."""
        sql = self._frame.replace("{}", written)
        try:
            self._require_reading(sql)
        except self._duckdb.Error as e:
            quoted = quote_keywords(written, self._in_need_of_quotes, is_query=self._is_query)
            sql = self._frame.replace("{}", quoted)
            try:
                self._require_reading(sql)
            except self._duckdb.Error:
                raise self._refusal(e) from e
        return sql

    def _require_reading(self, sql: str) -> None:
        require_reading(self._connection, sql, "a data set", "select * from rows limit 10")

    def _refusal(self, error: Exception) -> UsageError:
        text = str(error)
        unknown = _UNKNOWN.search(text)
        if unknown:
            name = unknown.group(1)
            stored = next((own for one, own in self._complex.items() if one.lower() == name.lower()), None)
            if stored is not None:
                return UsageError(
                    f"'{name}' in {self._reader.path} holds complex numbers, which SQL does not have: "
                    f"choose samples in Python, from the array ens['{stored}'][:]"
                )
            return unknown_column(self._reader, name, self._names)
        if text.startswith("Catalog Error: Table"):
            return UsageError(f"{text.splitlines()[0]} The one view is '{VIEW}': every planned row.")
        if not self._is_query:
            text = text.split("\n\nLINE")[0]  # it shows lines that the user did not write
        return UsageError(f"the query cannot be answered: {text}")

    def run(self) -> DuckDBPyConnection:
        self._connection.execute("SET enable_external_access = false")
        self._connection.execute("SET lock_configuration = true")
        try:
            return self._connection.execute(self._sql)
        except self._duckdb.Error as e:
            raise self._refusal(e) from e

    # the view

    def make_present(self, with_place: bool = False) -> None:
        """The view of the rows that the reader has, which are all ok; `_at` is their place in it."""
        reader = self._reader
        base = {"_at": np.arange(len(reader))}
        needs = {
            "row": {"row", "source", "task"}.intersection(self._wanted),
            "sample_id": {"sample_id", "split"}.intersection(self._wanted),
        }
        self._prepare([name for name, those in needs.items() if those])
        if "row" in self._wanted:
            base["row"] = reader.row
        if needs["sample_id"]:
            base["sample_id"] = reader.sample_id
        if "source" in self._wanted or "task" in self._wanted:
            planned = planned_rows(reader.manifest)
            mine = np.searchsorted(planned.row, reader.row)
            base |= {"source": planned.source[mine], "task": planned.task[mine]}
        base["outcome"] = np.full(len(reader), OUTCOMES.index("ok"), np.uint8)
        base["cause"] = np.full(len(reader), NO_CAUSE, np.int32)
        self._make(base, (), None, ["_at"] if with_place else [])

    def make_planned(self) -> None:
        """The view of all planned rows, whatever became of them."""
        self._prepare([])
        planned = planned_rows(self._reader.manifest)
        names = ("row", "sample_id", "source", "task", "outcome", "cause")
        base = {"_at": planned.index, **{name: getattr(planned, name) for name in names}}
        wanted = {name: path for name, path in self._paths.items() if name in self._wanted}
        absent = absent_values(self._reader.manifest, planned, wanted) if (base["_at"] < 0).any() else None
        self._make(base, planned.causes, absent, [])

    def _prepare(self, ids: Sequence[str]) -> None:
        stored = [path for name, path in self._paths.items() if name in self._wanted]
        self._reader.prepare([*ids, *stored], self._on_progress)

    def _make(
        self,
        base: dict[str, Array],
        causes: Sequence[str],
        absent: tuple[Array, dict[str, Array]] | None,
        more: Sequence[str],
    ) -> None:
        """The view: `base`, with codes in place of texts; the stored columns; what is known of `absent` rows."""
        data = self._reader.manifest
        if "split" in self._wanted:
            base["split"] = split_codes(data, base["sample_id"])[0]
        texts = {
            "split": list(data.splits.fractions),
            "source": [source.id for source in data.sources],
            "outcome": OUTCOMES,
            "cause": causes,
        }
        selected: dict[str, str] = {name: name for name in ("row", "sample_id", "task") if name in base}
        selected["index"] = "nullif(_at, -1)"
        for name, listed in texts.items():
            if name in self._wanted:  # a join would lose the order; the element at 0 is null
                selected[name] = f"([{', '.join(map(_text, listed))}]::VARCHAR[])[{name} + 1]"
        names = [name for name in self._paths if name in self._wanted]
        stored = column_values(self._reader, names)
        for i, (name, values) in enumerate(stored.items()):
            base[f"_c{i}"], selected[name] = values, f"_c{i}"
            if absent is not None:
                known = absent[1].get(name)
                base[f"_c{i}"] = _spread(values, base["_at"], absent[0], known)
                if known is None:
                    selected[name] = f"CASE WHEN _at >= 0 THEN _c{i} END"
        self._base = {name: np.ascontiguousarray(values) for name, values in base.items()}
        self._connection.register("_base", self._base)
        columns = [f"{selected[name]} AS {quote(name)}" for name in self._names if name in selected]
        self._connection.execute(f"CREATE VIEW {VIEW} AS SELECT {', '.join([*columns, *more])} FROM _base")


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _spread(values: Array, at: Array, absent_at: Array, absent: Array | None) -> Array:
    """Values of all planned rows: those of rows that are there (`at` >= 0), and of the absent ones if known."""
    out = np.empty(len(at), values.dtype)
    if values.dtype.kind == "O":
        out[:] = ""
    out[at >= 0] = values
    if absent is not None:
        out[absent_at] = absent
    return out
