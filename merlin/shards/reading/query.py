"""SQL over a data set: DuckDB in memory, over the columns that a query mentions. docs/reading.md has the words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from merlin.base.reading_sql import require_reading
from merlin.errors import MissingExtraError, UsageError
from merlin.shards.format.counts import OUTCOMES
from merlin.shards.reading.absent import absent_values
from merlin.shards.reading.fates import NO_CAUSE, fates_of
from merlin.shards.reading.sql_text import mentioned, quote, quote_dotted, quote_keywords, with_from
from merlin.shards.reading.table import (
    FATE_COLUMNS,
    ID_COLUMNS,
    Table,
    column_values,
    did_you_mean,
    split_codes,
    table_columns,
)

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from merlin.shards.reading.reader import Ensemble

Array = np.ndarray[Any, Any]

VIEW = "rows"

__all__ = ["VIEW", "Table", "answer", "positions_of_ids", "positions_where", "table_of"]

_UNKNOWN = re.compile(r'(?:Referenced column|column named|Table .* does not have a column named) "([^"]+)"')


def positions_where(ensemble: Ensemble, expression: str) -> Array:
    """Indices into `ensemble` for which an expression is true. Raises UsageError if it cannot be answered."""
    if not expression.strip():
        raise UsageError("the expression is empty; try one such as \"yield > 1e14 and split = 'train'\"")
    with _Engine(ensemble, expression, f"SELECT _at FROM {VIEW} WHERE (\n{{}}\n) ORDER BY _at") as engine:
        engine.make_present(with_place=True)
        return np.asarray(engine.run().fetchnumpy()["_at"], dtype=np.int64)


def answer(ensemble: Ensemble, sql: str) -> Table:
    """The answer to one query over the view `rows`. Raises UsageError if it cannot be answered."""
    with _Engine(ensemble, with_from(sql, VIEW), "") as engine:
        if ensemble.is_whole:
            engine.make_planned()
        else:
            engine.make_present()
        result = engine.run()
        columns = tuple(str(column[0]) for column in result.description or ())
        return Table(columns=columns, rows=result.fetchall())


def table_of(ensemble: Ensemble, num: int | None = None) -> Table:
    """The first `num` samples (None: all) with their ids, split, parameters, inputs, scalars and texts."""
    known = table_columns(ensemble.manifest).items()
    names = [*ID_COLUMNS, *(name for name, path in known if not path.startswith("provenance/"))]
    return answer(ensemble.take(slice(num)), f"SELECT {', '.join(map(quote, names))} FROM {VIEW}")


def positions_of_ids(ensemble: Ensemble, ids: Any) -> Array:
    """Indices of the samples `ids`, in that order. Raises UsageError that names those which are not there."""
    wanted = np.asarray(ids)
    if wanted.size == 0:
        return np.zeros(0, np.int64)
    if wanted.ndim != 1 or wanted.dtype.kind not in "iu":
        raise UsageError(
            f"sample ids are a list of integers, not {wanted.dtype} of {wanted.ndim} axes; "
            "ens.take(…) takes indices and masks"
        )
    order = np.argsort(ensemble.sample_id, kind="stable")
    ascending = ensemble.sample_id[order]
    lo = np.searchsorted(ascending, wanted, side="left")
    num = np.searchsorted(ascending, wanted, side="right") - lo
    if not num.all():
        raise UsageError(_unknown_ids(ensemble, wanted[num == 0]))
    ends = np.cumsum(num)
    return np.asarray(order[np.repeat(lo - ends + num, num) + np.arange(int(ends[-1]))])


def _unknown_ids(ensemble: Ensemble, ids: Array) -> str:
    """Which ids are not there, and what became of the first ones."""
    fates = fates_of(ensemble.manifest)
    told = []
    for wanted in ids[:10].tolist():
        codes = fates.outcome[fates.sample_id == wanted]
        outcomes = sorted({OUTCOMES[code] for code in codes.tolist()} - {"ok"})
        why = "never planned" if not len(codes) else " and ".join(outcomes) or "not in this selection"
        told.append(f"{wanted} ({why})")
    more = f" and {len(ids) - 10:,} more" if len(ids) > 10 else ""
    one = len(ids) == 1
    return f"{ensemble.path} has no sample{'' if one else 's'} {', '.join(told)}{more}"


class _Engine:
    """A DuckDB in memory that holds what one query needs, and can reach nothing else."""

    def __init__(self, ensemble: Ensemble, written: str, around: str) -> None:
        """`written` is a query; or an expression, where {} stands in the query `around`."""
        try:
            import duckdb
        except ImportError as e:
            raise MissingExtraError("duckdb", "sql", "a query over a data set") from e
        self._duckdb = duckdb
        self._ensemble = ensemble
        self._paths = table_columns(ensemble.manifest)
        self._names = [*ID_COLUMNS, *FATE_COLUMNS, *self._paths]
        self._wanted = mentioned(f"SELECT {written}" if around else written, self._names)
        self._around = around
        self._arrays: list[object] = []  # DuckDB reads them in place
        config: dict[str, str | bool | int | float | list[str]] = {
            "autoinstall_known_extensions": False,
            "python_enable_replacements": False,
        }
        self._connection: DuckDBPyConnection = duckdb.connect(":memory:", config=config)
        try:
            self._sql = self._readable(quote_dotted(written, self._names))
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> _Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def _whole(self, written: str) -> str:
        return self._around.replace("{}", written) if self._around else written

    def _readable(self, written: str) -> str:
        """The query with the quotes that it needs; UsageError if it is none, or more than a question."""
        sql = self._whole(written)
        try:
            self._require_reading(sql)
        except self._duckdb.Error as e:
            sql = self._whole(quote_keywords(written, self._names, is_query=not self._around))
            try:
                self._require_reading(sql)
            except self._duckdb.Error:
                raise self._refusal(e) from e
        return sql

    def _require_reading(self, sql: str) -> None:
        require_reading(self._connection, sql, "a data set", "select * from samples limit 10")

    def _refusal(self, error: Exception) -> UsageError:
        text = str(error)
        unknown = _UNKNOWN.search(text)
        if unknown:
            name = unknown.group(1)
            return UsageError(f"no column '{name}' in {self._ensemble.path}{did_you_mean(name, self._names)}")
        if text.startswith("Catalog Error: Table"):
            return UsageError(f"{text.splitlines()[0]} The one view is '{VIEW}': every planned row.")
        if self._around:
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
        """The view of the rows that the ensemble holds, which are all ok; `_at` is their place in it."""
        ensemble = self._ensemble
        at = np.arange(len(ensemble))
        base = {"_at": at}
        for name in ("row", "sample_id"):
            if name in self._wanted:
                base[name] = getattr(ensemble, name)
        if "split" in self._wanted:
            base["split"] = split_codes(ensemble.manifest, ensemble.sample_id)[0]
        if "source" in self._wanted or "task" in self._wanted:
            fates = fates_of(ensemble.manifest)
            mine = np.searchsorted(fates.row, ensemble.row)
            base |= {"source": fates.source[mine], "task": fates.task[mine]}
        base["outcome"] = np.full(len(at), OUTCOMES.index("ok"), np.uint8)
        if "cause" in self._wanted:
            base["cause"] = np.full(len(at), NO_CAUSE, np.int32)
        self._make(base, (), None, with_place)

    def make_planned(self) -> None:
        """The view of all planned rows, whatever became of them."""
        data = self._ensemble.manifest
        fates = fates_of(data)
        base = {
            name: getattr(fates, name) for name in ("row", "sample_id", "source", "task", "outcome", "cause")
        }
        base["_at"] = fates.index
        if "split" in self._wanted:
            base["split"] = split_codes(data, fates.sample_id)[0]
        if "cause" not in self._wanted:
            del base["cause"]
        wanted = {name: path for name, path in self._paths.items() if name in self._wanted}
        absent = absent_values(data, fates, wanted) if (base["_at"] < 0).any() else None
        self._make(base, fates.causes, absent, with_place=False)

    def _make(
        self,
        base: dict[str, Array],
        causes: Sequence[str],
        absent: tuple[Array, dict[str, Array]] | None,
        with_place: bool,
    ) -> None:
        """The view: `base`, with codes in place of texts; the stored columns; what is known of `absent` rows."""
        stored = {name: f"_c{i}" for i, name in enumerate(self._paths) if name in self._wanted}
        columns = column_values(self._ensemble, list(stored))
        selected: dict[str, str] = {name: name for name in ("row", "sample_id", "task") if name in base}
        selected["index"] = "nullif(_at, -1)"
        for name, listed in self._texts_of(causes).items():
            if name in base:  # a join would lose the order; the element at 0 is null
                selected[name] = f"([{', '.join(map(_text, listed))}]::VARCHAR[])[{name} + 1]"
        for name, column in stored.items():
            known = None if absent is None else absent[1].get(name)
            base[column] = (
                columns[name] if absent is None else _spread(columns[name], base["_at"], absent[0], known)
            )
            selected[name] = (
                column if absent is None or known is not None else f"CASE WHEN _at >= 0 THEN {column} END"
            )
        self._register("_base", base)
        listed = [f"{selected[name]} AS {quote(name)}" for name in self._names if name in selected]
        place = ", _at" if with_place else ""
        self._connection.execute(f"CREATE VIEW {VIEW} AS SELECT {', '.join(listed)}{place} FROM _base")

    def _texts_of(self, causes: Sequence[str]) -> dict[str, Sequence[str]]:
        """The texts that codes in the base columns stand for."""
        data = self._ensemble.manifest
        sources = [source.id for source in data.sources]
        return {"split": list(data.splits.fractions), "source": sources, "outcome": OUTCOMES, "cause": causes}

    def _register(self, name: str, columns: Mapping[str, Array]) -> None:
        contiguous = {label: np.ascontiguousarray(values) for label, values in columns.items()}
        self._arrays.append(contiguous)
        self._connection.register(name, contiguous)


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
