"""The names of all metrics, what they mean, and the labels that they have."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from merlin.base.text import cut

MAX_LABEL_CHARS = 100


class MetricKind(NamedTuple):
    """A metric; its labels in the order in which they are written."""

    help: str
    labels: tuple[str, ...] = ()
    type: str = "gauge"


METRICS = {
    "merlin_build": MetricKind("The version of Merlin that made these numbers.", ("version",), "info"),
    "merlin_scrape_duration_seconds": MetricKind("How long it took to find these numbers out."),
    "merlin_studies": MetricKind("Studies, by state.", ("state",)),
    "merlin_studies_left_out": MetricKind("Studies without series of their own, because there are too many."),
    "merlin_study": MetricKind("What a study is.", ("study", "name", "executor"), "info"),
    "merlin_study_state": MetricKind("1 for the state that a study is in.", ("study", "state")),
    "merlin_study_tasks": MetricKind("Tasks of a study, by outcome.", ("study", "outcome")),
    "merlin_study_tasks_planned": MetricKind("All tasks of a study.", ("study",)),
    "merlin_study_tasks_per_second": MetricKind("Tasks that ended per second, lately.", ("study",)),
    "merlin_study_eta_seconds": MetricKind(
        "Time until a study ends: low, mid and high estimate.", ("study", "bound")
    ),
    "merlin_study_started_timestamp_seconds": MetricKind("When a study was started.", ("study",)),
    "merlin_study_last_record_timestamp_seconds": MetricKind(
        "When the last record of tasks was written.", ("study",)
    ),
    "merlin_study_workers": MetricKind("Workers, or worker processes, that serve a study.", ("study",)),
    "merlin_study_slots": MetricKind("Chunks that these can run at a time.", ("study",)),
    "merlin_study_obstacles": MetricKind("What keeps more of a study from running.", ("study",)),
    "merlin_study_ledger_bytes": MetricKind("Size of the ledger of a study.", ("study",)),
    "merlin_study_damaged_places": MetricKind("Places of the ledger that cannot be read.", ("study",)),
    "merlin_study_free_bytes": MetricKind("Free space where a study writes.", ("study",)),
    "merlin_step_tasks": MetricKind("Tasks of a step, by outcome.", ("study", "step", "outcome")),
    "merlin_step_tasks_planned": MetricKind("All tasks of a step.", ("study", "step")),
    "merlin_step_chunks_running": MetricKind("Chunks of a step that run now.", ("study", "step")),
    "merlin_step_tasks_per_second": MetricKind(
        "Tasks of a step that ended per second, lately.", ("study", "step")
    ),
    "merlin_step_eta_seconds": MetricKind("Time until a step ends.", ("study", "step")),
    "merlin_step_busy_seconds": MetricKind("Time that slots spent on a step.", ("study", "step"), "counter"),
    "merlin_step_failures": MetricKind(
        "Failed tasks of a step, by kind: exit code, signal, timeout.", ("study", "step", "exit_class")
    ),
    "merlin_step_jobs": MetricKind(
        "Batch jobs that a step has of its own, by state.", ("study", "step", "state")
    ),
    "merlin_data_set_samples": MetricKind(
        "Samples of a finished data set, by outcome.", ("study", "data_set", "outcome")
    ),
    "merlin_workers": MetricKind("Live workers that stay."),
    "merlin_worker_slots": MetricKind("Chunks that these can run at a time."),
    "merlin_worker_chunks_running": MetricKind("Chunks that workers run now."),
    "merlin_worker_jobs": MetricKind("Batch jobs in which workers live, by state.", ("scheduler", "state")),
    "merlin_queue_messages": MetricKind("Messages that wait in a queue.", ("queue",)),
    "merlin_queue_workers": MetricKind("Workers that serve a queue.", ("queue",)),
    "merlin_queue_oldest_seconds": MetricKind(
        "How long the oldest chunk has waited for a worker.", ("queue",)
    ),
}


class Families:
    """Collects the values of metrics."""

    def __init__(self) -> None:
        self._families: dict[str, Metric] = {}

    def add(self, name: str, value: float, /, **labels: str) -> None:
        """Add a series; each may be added once."""
        kind = METRICS[name]
        if (family := self._families.get(name)) is None:
            family = self._families[name] = _family(name, kind)
        values = [label_value(labels[label]) for label in kind.labels]
        assert len(labels) == len(values), f"{name} has the labels {kind.labels}"
        if isinstance(family, InfoMetricFamily):
            family.add_metric([], dict(zip(kind.labels, values, strict=True)))
        elif isinstance(family, GaugeMetricFamily | CounterMetricFamily):
            family.add_metric(values, float(value))

    def all(self) -> Iterator[Metric]:
        """The metrics that have a series, in the order of the table."""
        return (self._families[name] for name in METRICS if name in self._families)


def _family(name: str, kind: MetricKind) -> Metric:
    if kind.type == "info":
        return InfoMetricFamily(name, kind.help)
    if kind.type == "counter":
        return CounterMetricFamily(name, kind.help, labels=kind.labels)
    return GaugeMetricFamily(name, kind.help, labels=kind.labels)


@lru_cache(maxsize=4096)
def label_value(text: str) -> str:
    """The text without control characters and broken ones, and not too long."""
    clean = "".join("?" if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") else c for c in text)
    return cut(clean, MAX_LABEL_CHARS)
