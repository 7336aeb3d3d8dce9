"""SQL over a study: DuckDB in memory over arrays of the ledger. `docs/status-and-sql.md` lists the views."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

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

VIEWS = ("tasks", "instances", "samples", "failures", "records", "events")

TASK_COLUMNS = (
    "instance", "step", "label", "task", "sample_id", "outcome", "exit_code", "seconds", "started", "host",
    "worker", "attempt", "tries", "queue", "extension",
)  # fmt: skip

INSTANCE_COLUMNS = (
    "instance", "step", "kind", "label", "queue", "planned", "ok", "failed", "skipped", "missing", "extension",
)  # fmt: skip


Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The result of a query."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]  # Python values; times are naive datetimes in UTC
    note: str = ""  # what the views lack


def query(workspace: Workspace, sql: str) -> Table:
    """Answer one query; it can neither write nor read files.

    Where the samples cannot be read, the views lack their columns.

    Raises UsageError, often with DuckDB's message.
    """
    try:
        import duckdb
    except ImportError as e:
        raise MissingExtraError("duckdb", "sql", "merlin sql") from e
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
            columns = tuple(str(column[0]) for column in connection.description or ())
            return Table(columns=columns, rows=connection.fetchall(), note=views.note)
        except duckdb.Error as e:
            why = f"\n{views.note}" if views.note else ""
            raise UsageError(f"the query cannot be answered: {e}{why}") from e


@dataclass(frozen=True, slots=True)
class _Instance:
    """A step instance of the study or of one of its extensions."""

    spec: StepInstance
    study: Workspace
    state: Replay

    @property
    def extension(self) -> int:
        return self.study.plan.extension


class _Views:
    """Makes the views that a query mentions; all of them if it mentions none.

    They are about the study and its extensions, which the column `extension` tells apart: 0 is the study.
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
        words = set(re.findall(r"\w+", sql.lower()))
        wanted = [view for view in VIEWS if view in words] or list(VIEWS)
        self._make_instances()
        if "samples" in wanted or "tasks" in wanted:
            self._make_samples()
        if "tasks" in wanted:
            self._make_tasks()
        if "records" in wanted:
            self._make_records()
        if "failures" in wanted:
            self._make_failures()
        if "events" in wanted:
            self._make_events()

    def _register(self, name: str, columns: Mapping[str, Array]) -> None:
        contiguous = {label: np.ascontiguousarray(values) for label, values in columns.items()}
        self._arrays.append(contiguous)
        self._connection.register(name, contiguous)

    def _table(self, name: str, schema: str, rows: Sequence[Sequence[object]]) -> None:
        """A small table from Python values."""
        self._connection.execute(f"CREATE TABLE {name} ({schema})")
        if rows:
            marks = ", ".join("?" * len(rows[0]))
            self._connection.executemany(f"INSERT INTO {name} VALUES ({marks})", [list(row) for row in rows])

    # views

    def _params(self) -> list[str]:
        return sorted({name for instance in self._instances for name in instance.spec.params})

    def _make_instances(self) -> None:
        params = self._params()
        self._param_names = _free_names(params, {*INSTANCE_COLUMNS, *TASK_COLUMNS}, "param_")
        counts = {id(state): state.counts() for _, state in self._studies}
        rows = [
            (
                i, each.spec.id, each.spec.step, str(each.spec.kind), each.spec.label, each.spec.queue,
                each.spec.num_tasks, *_ended(counts[id(each.state)][each.spec.id], each.spec.num_tasks),
                each.extension,
            )
            for i, each in enumerate(self._instances)
        ]  # fmt: skip
        self._table(
            "_instances",
            "_i INTEGER, instance VARCHAR, step VARCHAR, kind VARCHAR, label VARCHAR, queue VARCHAR, "
            "planned BIGINT, ok BIGINT, failed BIGINT, skipped BIGINT, missing BIGINT, extension INTEGER",
            rows,
        )
        given = [instance.spec.params for instance in self._instances]
        types = [_sql_type(values[p] for values in given if p in values) for p in params]
        schema = "".join(f", _p{k} {sql_type}" for k, sql_type in enumerate(types))
        self._table(
            "_params",
            f"_i INTEGER{schema}",
            [
                (i, *(_as_sql(values.get(p), t) for p, t in zip(params, types, strict=True)))
                for i, values in enumerate(given)
            ],
        )
        self._view(
            "instances",
            f"SELECT {', '.join(INSTANCE_COLUMNS)}"
            f"{_aliases('_p', self._param_names)} FROM _instances JOIN _params USING (_i) ORDER BY _i",
        )

    def _make_samples(self) -> None:
        studies = [study for study, _ in self._studies if study.plan.samples is not None]
        parts = self._read_samples(studies)
        self._labels = list(parts[0]) if parts else []
        columns = {
            f"_c{k}": _joined([_plain(part[label]) for part in parts]) for k, label in enumerate(self._labels)
        }
        num = sum(study.plan.samples.num for study in studies if study.plan.samples is not None)
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
        self._table("_outcomes", "_o UTINYINT, outcome VARCHAR", outcomes + missing)
        writers, indices = _merge_writers(parts)
        self._table("_writers", "_w INTEGER, worker VARCHAR, host VARCHAR", writers)
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
            f"{_timestamp('_t')} AS started, host, worker, attempt, tries, queue, extension"
            f"{_aliases('_p', self._param_names)}{_aliases('_c', labels)} FROM _tasks "
            "JOIN _instances USING (_i) JOIN _params USING (_i) JOIN _outcomes USING (_o) "
            "LEFT JOIN _writers USING (_w) LEFT JOIN _samples ON _samples.sample_id = _tasks._s",
        )

    def _make_records(self) -> None:
        found = [(study, entry) for study, state in self._studies for entry in state.entries()]
        entries = [entry for _, entry in found]
        headers = [e.header for e in entries]
        writers = [e.writer for e in entries]
        kinds = {int(kind): kind.name.lower() for kind in Kind}
        columns: dict[str, Array] = {
            "instance": _texts(h.instance for h in headers),
            "lo": np.array([h.lo for h in headers], np.int64),
            "hi": np.array([h.hi for h in headers], np.int64),
            "attempt": np.array([h.attempt for h in headers], np.int32),
            "kind": _texts(kinds[h.kind] for h in headers),
            "_t": np.array([h.started for h in headers], np.float64),
            "seconds": np.array([h.elapsed_s for h in headers], np.float32),
        }
        for i, name in enumerate(("ok", "failed", "skipped", "interrupted")):
            columns[name] = np.array([h.counts[i] for h in headers], np.int64)
        columns["worker"] = _texts(w.worker for w in writers)
        columns["host"] = _texts(w.host for w in writers)
        columns["pid"] = np.array([w.pid for w in writers], np.int64)
        columns["session"] = _texts(w.session for w in writers)
        columns["segment"] = _texts(e.segment.path.name for e in entries)
        columns["extension"] = np.array([study.plan.extension for study, _ in found], np.int32)
        self._register("_records", columns)
        self._view("records", f"SELECT * EXCLUDE (_t), {_timestamp('_t')} AS started FROM _records")

    def _make_failures(self) -> None:
        steps = {instance.spec.id: instance.spec.step for instance in self._instances}
        pairs = [(study, failed) for study, state in self._studies for failed in state.failures()]
        found = [failed for _, failed in pairs]
        tasks = [f.failure.task for f in found]
        ids = [study.sample_id(study.instance(f.instance), f.failure.task) for study, f in pairs]
        self._register(
            "_failures",
            {
                "instance": _texts(f.instance for f in found),
                "step": _texts(steps[f.instance] for f in found),
                "task": np.array(tasks, np.int64),
                "_s": np.array([-1 if number is None else number for number in ids], np.int64),
                "exit_class": _texts(exit_class(f.failure.cause, f.failure.exit_code) for f in found),
                "cause": _texts(f.failure.cause for f in found),
                "signature": _texts(f.failure.signature for f in found),
                "exit_code": np.array([f.failure.exit_code for f in found], np.int16),
                "host": _texts(f.host for f in found),
                "worker": _texts(f.worker for f in found),
                "attempt": np.array([f.attempt for f in found], np.int32),
                "tail": _texts(f.failure.tail for f in found),
                "extension": np.array([study.plan.extension for study, _ in pairs], np.int32),
            },
        )
        self._view("failures", "SELECT * EXCLUDE (_s), nullif(_s, -1) AS sample_id FROM _failures")

    def _make_events(self) -> None:
        rows = [
            (e.time, e.kind, e.worker, e.host, json.dumps(e.data), study.plan.extension)
            for study, state in self._studies
            for e in state.events()
        ]
        schema = "_t DOUBLE, kind VARCHAR, worker VARCHAR, host VARCHAR, data VARCHAR, extension INTEGER"
        self._table("_events", schema, rows)
        columns = "kind, worker, host, data, extension"
        self._view("events", f"SELECT {_timestamp('_t')} AS time, {columns} FROM _events")

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
    return (
        np.arange(first, first + num, dtype=np.int64) if each.spec.per_sample else np.full(num, -1, np.int64)
    )


def _joined(parts: list[Array]) -> Array:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _plain(values: Array) -> Array:
    """What DuckDB can read: native numbers, or Python strings."""
    if values.dtype.kind in "USO":
        return values.astype(object)
    return values.astype(values.dtype.newbyteorder("="), copy=False)


def _texts(values: Iterable[str]) -> Array:
    listed = list(values)
    out = np.empty(len(listed), object)
    out[:] = listed
    return out if listed else np.array([], "U1")


def _free_names(names: list[str], taken: set[str], prefix: str) -> list[str]:
    """The names, prefixed where SQL (which ignores case) would confuse them with those taken."""
    used = {name.lower() for name in taken}
    free: list[str] = []
    for name in names:
        while name.lower() in used:
            name = prefix + name
        used.add(name.lower())
        free.append(name)
    return free


def _sql_type(values: Iterable[object]) -> str:
    kinds = {type(v) for v in values}
    if kinds == {bool}:
        return "BOOLEAN"
    if kinds == {int}:
        return "BIGINT"
    return "DOUBLE" if kinds and kinds <= {int, float} else "VARCHAR"


def _as_sql(value: object, sql_type: str) -> object:
    return str(value) if sql_type == "VARCHAR" and value is not None else value


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _aliases(prefix: str, names: list[str]) -> str:
    """Select the columns _p0, _p1 … under the names given by the user."""
    return "".join(f", {prefix}{k} AS {_quote(name)}" for k, name in enumerate(names))


def _timestamp(column: str) -> str:
    return f"CASE WHEN {column} > 0 THEN make_timestamp(CAST({column} * 1e6 AS BIGINT)) END"
