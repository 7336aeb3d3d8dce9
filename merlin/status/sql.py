"""SQL over a study: DuckDB in memory over arrays of the ledger. `docs/status-and-sql.md` lists the views."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from merlin.base.document.findings import allowed
from merlin.base.ranges import Range, to_ranges
from merlin.base.reading_sql import require_reading
from merlin.errors import MissingExtraError, SamplesError, UsageError, WorkspaceError
from merlin.ledger.columns import TaskColumns, task_columns
from merlin.ledger.format import Kind
from merlin.ledger.replay import Replay, replay
from merlin.plan.plan import StepInstance
from merlin.plan.tasks import NO_OUTCOME, Outcome
from merlin.status.failures import exit_class
from merlin.workspace.directory import Workspace, shown_together

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection
    from pandas import DataFrame

# in the order in which they are made
VIEWS = ("instances", "samples", "tasks", "failures", "records", "events")
TASK_COLUMNS = (
    "instance", "step", "label", "task", "sample_id", "outcome", "exit_code", "seconds", "started", "host",
    "worker", "attempt", "tries", "queue", "extension",
)  # fmt: skip

# columns and kinds of their values: NumPy's, and `object` for texts
_INSTANCE_KINDS: dict[str, type] = {
    **dict.fromkeys(("instance", "step", "kind", "label", "queue"), object),
    **dict.fromkeys(("planned", "ok", "failed", "skipped", "missing"), np.int64),
    "extension": np.int32,
}
_RECORD_KINDS: dict[str, type] = {
    "instance": object, "lo": np.int64, "hi": np.int64, "attempt": np.int32, "kind": object, "_t": np.float64,
    "seconds": np.float32, "ok": np.int64, "failed": np.int64, "skipped": np.int64, "interrupted": np.int64,
    "worker": object, "host": object, "pid": np.int64, "session": object, "segment": object,
    "extension": np.int32,
}  # fmt: skip
_FAILURE_KINDS: dict[str, type] = {
    "instance": object, "step": object, "task": np.int64, "_s": np.int64, "exit_class": object,
    "cause": object, "signature": object, "exit_code": np.int16, "host": object, "worker": object,
    "attempt": np.int32, "tail": object, "extension": np.int32,
}  # fmt: skip
_EVENT_KINDS: dict[str, type] = {
    "_t": np.float64, "kind": object, "worker": object, "host": object, "data": object, "extension": np.int32,
}  # fmt: skip
_TIME = (
    "CASE WHEN _t > 0 THEN make_timestamp(CAST(_t * 1e6 AS BIGINT)) END"  # of the epoch seconds in column _t
)

_UNKNOWN_VIEW = re.compile(r"Catalog Error: Table with name (.+) does not exist!")

Array = np.ndarray[Any, np.dtype[Any]]


class Answer(Struct, frozen=True, kw_only=True):
    """The answer to a query."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]  # Python values; times are naive datetimes in UTC
    note: str = ""  # what the views lack


def query(workspace: Workspace, sql: str) -> Answer:
    """Answer one query; it can neither write nor read files.

    Where the samples cannot be read, the views lack their columns.

    Raises UsageError, often with DuckDB's message.
    """
    with _asked(workspace, sql) as (connection, note):
        columns = tuple(str(column[0]) for column in connection.description or ())
        return Answer(columns=columns, rows=connection.fetchall(), note=note)


def query_frame(workspace: Workspace, sql: str) -> DataFrame:
    """The answer as a data frame; times have no zone and are UTC. Raises as `query`, and MissingExtraError without
    pandas."""
    try:
        import pandas  # noqa: F401
    except ImportError as e:
        raise MissingExtraError("pandas", "pandas", "an answer as a data frame") from e
    with _asked(workspace, sql) as (connection, _):
        return connection.df()


@contextmanager
def _asked(workspace: Workspace, sql: str) -> Iterator[tuple[DuckDBPyConnection, str]]:
    """A connection on which the query was run, and what the views lacked. Raises UsageError."""
    import duckdb

    with duckdb.connect(":memory:", config={"autoinstall_known_extensions": False}) as connection:
        try:
            require_reading(
                connection, sql, "the views", "select outcome, count(*) from tasks group by outcome"
            )
        except duckdb.Error as e:
            raise UsageError(f"the query cannot be answered: {e}") from e
        views = _Views(workspace, connection)
        views.make(sql)
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        try:
            connection.execute(sql)
            yield connection, views.note
        except duckdb.Error as e:
            if unknown := _UNKNOWN_VIEW.match(str(e)):
                raise UsageError(
                    f"there is no view {unknown[1]}; {allowed(unknown[1], VIEWS, 'views')}"
                ) from e
            why = f"\n{views.note}" if views.note else ""
            raise UsageError(f"the query cannot be answered: {e}{why}") from e


def select_tasks(workspace: Workspace, condition: str) -> dict[int, dict[str, list[Range]]]:
    """The tasks for which a condition over the view `tasks` is true: by extension (0: the study) and step instance.

    Raises UsageError for one that cannot be decided.
    """
    if not condition.strip():
        raise UsageError("the condition is empty; one would be: step = 'simulate' and seconds > 600")
    sql = f"SELECT extension, instance, task FROM tasks WHERE (\n{condition}\n) ORDER BY ALL"
    found: dict[int, dict[str, list[Range]]] = {}
    for (extension, instance), group in groupby(query(workspace, sql).rows, key=lambda row: row[:2]):
        tasks = np.fromiter((row[2] for row in group), np.int64)
        found.setdefault(extension, {})[instance] = list(to_ranges(tasks))
    return found


class _Instance(Struct, frozen=True):
    """A step instance of the study or of one of its extensions."""

    spec: StepInstance
    study: Workspace
    state: Replay


class _Views:
    """Makes the views that a query mentions; all of them if it mentions none.

    They are about the study and its extensions, which the column `extension` keeps apart: 0 is the study.
    """

    def __init__(self, workspace: Workspace, connection: DuckDBPyConnection) -> None:
        self._connection = connection
        self._studies = [(study, replay(study.ledger_dir, study.plan)) for study in shown_together(workspace)]
        self._instances = [
            _Instance(instance, study, state)
            for study, state in self._studies
            for instance in study.plan.instances
        ]
        self._arrays: list[object] = []  # DuckDB reads them in place
        self.note = ""  # what the views lack

    def make(self, sql: str) -> None:
        wanted = set(VIEWS) & set(re.findall(r"\w+", sql.lower())) or set(VIEWS)
        wanted |= {"instances"} | ({"samples"} if "tasks" in wanted else set())
        for view in VIEWS:
            if view in wanted:
                getattr(self, f"_make_{view}")()

    def _register(self, name: str, columns: Mapping[str, Array]) -> None:
        contiguous = {label: np.ascontiguousarray(values) for label, values in columns.items()}
        self._arrays.append(contiguous)
        self._connection.register(name, contiguous)

    def _register_rows(self, name: str, kinds: Mapping[str, type], rows: Iterable[Sequence[Any]]) -> None:
        """A table of Python values; `kinds` are NumPy's, and `object` for texts."""
        listed = list(rows)
        columns = zip(*listed, strict=True) if listed else ((),) * len(kinds)
        pairs = zip(kinds.items(), columns, strict=True)
        self._register(name, {label: _array(values, kind) for (label, kind), values in pairs})

    def _make_instances(self) -> None:
        params = sorted({name for instance in self._instances for name in instance.spec.params})
        self._param_names = _free_names(params, {*_INSTANCE_KINDS, *TASK_COLUMNS}, "param_")
        counts = {id(state): state.counts() for _, state in self._studies}
        self._register_rows(
            "_instances",
            {"_i": np.int32, **_INSTANCE_KINDS},
            (
                (
                    i, each.spec.id, each.spec.step, str(each.spec.kind), each.spec.label, each.spec.queue,
                    each.spec.num_tasks, *_ended(counts[id(each.state)][each.spec.id], each.spec.num_tasks),
                    each.study.plan.extension,
                )
                for i, each in enumerate(self._instances)
            ),
        )  # fmt: skip
        given = [instance.spec.params for instance in self._instances]
        types = [_sql_type(values[p] for values in given if p in values) for p in params]
        schema = "".join(f", _p{k} {sql_type}" for k, sql_type in enumerate(types))
        self._connection.execute(f"CREATE TABLE _params (_i INTEGER{schema})")
        insert = f"INSERT INTO _params VALUES ({', '.join('?' * (1 + len(params)))})"
        for i, values in enumerate(given):
            row = [_as_sql(values.get(p), t) for p, t in zip(params, types, strict=True)]
            self._connection.execute(insert, [i, *row])
        self._view(
            "instances",
            f"SELECT {', '.join(_INSTANCE_KINDS)}"
            f"{_aliases('_p', self._param_names)} FROM _instances JOIN _params USING (_i) ORDER BY _i",
        )

    def _make_samples(self) -> None:
        studies = [study for study, _ in self._studies if study.plan.samples is not None]
        parts = self._read_samples(studies)
        self._labels = list(parts[0]) if parts else []
        columns = {
            f"_c{k}": _joined([_plain(part[label]) for part in parts]) for k, label in enumerate(self._labels)
        }
        num = sum(study.plan.num_samples for study in studies)
        first = self._studies[0][0].first_sample
        ids = np.arange(first, first + num, dtype=np.int64)
        self._register("_samples", {"sample_id": ids, **columns})
        names = _free_names(self._labels, {"sample_id"}, "sample_")
        self._view("samples", f"SELECT sample_id{_aliases('_c', names)} FROM _samples")

    def _read_samples(self, studies: Sequence[Workspace]) -> list[dict[str, Array]]:
        """The columns of each study; none at all, and a note, if one of the files cannot be read."""
        try:
            tables = [study.samples() for study in studies]
            return [table.rows(0, table.num) for table in tables]
        except (SamplesError, WorkspaceError) as e:
            self.note = f"the columns of the samples are left out: {e}"
            return []

    def _make_tasks(self) -> None:
        parts = [task_columns(each.state, each.spec.id, each.spec.num_tasks) for each in self._instances]
        outcomes = [(int(o), o.name.lower()) for o in (Outcome.OK, Outcome.FAILED, Outcome.SKIPPED)]
        missing = [(int(Outcome.INTERRUPTED), "missing"), (NO_OUTCOME, "missing")]
        self._register_rows("_outcomes", {"_o": np.uint8, "outcome": object}, outcomes + missing)
        writers, indices = _merge_writers(parts)
        self._register_rows("_writers", {"_w": np.int32, "worker": object, "host": object}, writers)
        self._register(
            "_tasks",
            {
                "_i": _joined([np.full(len(p.outcomes), i, np.int32) for i, p in enumerate(parts)]),
                "task": _joined([np.arange(len(p.outcomes), dtype=np.int64) for p in parts]),
                "_s": _joined([_sample_ids(i, p) for i, p in zip(self._instances, parts, strict=True)]),
                "_o": _joined([p.outcomes for p in parts]),
                "exit_code": _joined([p.exit_codes for p in parts]),
                "seconds": _joined([p.seconds for p in parts]),
                "_t": _joined([p.started for p in parts]),
                "_w": _joined(indices),
                "attempt": _joined([p.attempts for p in parts]),
                "tries": _joined([p.tries for p in parts]),
            },
        )
        labels = _free_names(self._labels, {*TASK_COLUMNS, *self._param_names}, "sample_")
        self._view(
            "tasks",
            "SELECT instance, step, label, task, nullif(_s, -1) AS sample_id, outcome, "
            "CASE WHEN _o <= 1 THEN exit_code END AS exit_code, "
            "CASE WHEN _o <= 1 THEN seconds END AS seconds, "
            f"{_TIME} AS started, host, worker, attempt, tries, queue, extension"
            f"{_aliases('_p', self._param_names)}{_aliases('_c', labels)} FROM _tasks "
            "JOIN _instances USING (_i) JOIN _params USING (_i) JOIN _outcomes USING (_o) "
            "LEFT JOIN _writers USING (_w) LEFT JOIN _samples ON _samples.sample_id = _tasks._s",
        )

    def _make_records(self) -> None:
        kinds = {int(kind): kind.name.lower() for kind in Kind}
        rows = []
        for study, state in self._studies:
            for entry in state.entries():
                h, w = entry.header, entry.writer
                what = (h.instance, h.lo, h.hi, h.attempt, kinds[h.kind], h.started, h.elapsed_s)
                who = (w.worker, w.host, w.pid, w.session, entry.segment.name)
                rows.append((*what, *h.counts[:4], *who, study.plan.extension))
        self._register_rows("_records", _RECORD_KINDS, rows)
        self._view("records", f"SELECT * EXCLUDE (_t), {_TIME} AS started FROM _records")

    def _make_failures(self) -> None:
        rows = []
        for study, state in self._studies:
            for f in state.failures():
                failure, instance = f.failure, study.instance(f.instance)
                sample_id = study.sample_id(instance, failure.task)
                rows.append(
                    (
                        f.instance, instance.step, failure.task, -1 if sample_id is None else sample_id,
                        exit_class(failure.cause, failure.exit_code), failure.cause, failure.signature,
                        failure.exit_code, f.host, f.worker, f.attempt, failure.tail, study.plan.extension,
                    )
                )  # fmt: skip
        self._register_rows("_failures", _FAILURE_KINDS, rows)
        self._view("failures", "SELECT * EXCLUDE (_s), nullif(_s, -1) AS sample_id FROM _failures")

    def _make_events(self) -> None:
        rows = (
            (e.time, e.kind, e.worker, e.host, json.dumps(e.data), study.plan.extension)
            for study, state in self._studies
            for e in state.events()
        )
        self._register_rows("_events", _EVENT_KINDS, rows)
        columns = "kind, worker, host, data, extension"
        self._view("events", f"SELECT {_TIME} AS time, {columns} FROM _events")

    def _view(self, name: str, select: str) -> None:
        self._connection.execute(f"CREATE VIEW {name} AS {select}")


def _ended(counts: Mapping[int, int], planned: int) -> tuple[int, int, int, int]:
    ok, failed, skipped = (counts.get(o, 0) for o in (Outcome.OK, Outcome.FAILED, Outcome.SKIPPED))
    return ok, failed, skipped, planned - ok - failed - skipped


def _merge_writers(parts: list[TaskColumns]) -> tuple[list[tuple[int, str, str]], list[Array]]:
    """One table of (number, worker, host) for all parts, and each part's indices into it."""
    table: dict[tuple[str, str], int] = {}
    indices: list[Array] = []
    for part in parts:
        numbers = [table.setdefault((w.worker, w.host), len(table)) for w in part.writer_table]
        indices.append(np.array([*numbers, -1], np.int32)[part.writers])  # index -1: the last, "none"
    return [(i, worker, host) for (worker, host), i in table.items()], indices


def _sample_ids(each: _Instance, part: TaskColumns) -> Array:
    num, first = len(part.outcomes), each.study.first_sample
    if not each.spec.per_sample:
        return np.full(num, -1, np.int64)
    return np.arange(first, first + num, dtype=np.int64)


def _joined(parts: list[Array]) -> Array:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _plain(values: Array) -> Array:
    """What DuckDB can read: native numbers, or Python strings."""
    if values.dtype.kind in "USO":
        return values.astype(object)
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def _array(values: Sequence[Any], kind: type) -> Array:
    """Values as DuckDB reads them; texts as objects, so that NumPy does not store them equally long."""
    if kind is not object:
        return np.array(values, kind)
    return np.fromiter(values, object, len(values)) if values else np.array([], "U1")


def _free_names(names: list[str], taken: set[str], prefix: str) -> list[str]:
    """The names; one that SQL (which ignores case) would confuse with a taken name gets the prefix."""
    used = {name.lower() for name in taken}
    free: list[str] = []
    for name in names:
        while name.lower() in used:
            name = prefix + name
        used.add(name.lower())
        free.append(name)
    return free


def _sql_type(values: Iterable[Any]) -> str:
    found = list(values)
    kinds = {type(v) for v in found}
    if kinds == {bool}:
        return "BOOLEAN"
    if kinds == {int}:
        return "BIGINT" if all(-(2**63) <= v < 2**63 for v in found) else "HUGEINT"
    return "DOUBLE" if kinds and kinds <= {int, float} else "VARCHAR"


def _as_sql(value: object, sql_type: str) -> object:
    return str(value) if sql_type == "VARCHAR" and value is not None else value


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _aliases(prefix: str, names: list[str]) -> str:
    """Select the columns _p0, _p1 … under the names given by the user."""
    return "".join(f", {prefix}{k} AS {_quote(name)}" for k, name in enumerate(names))
