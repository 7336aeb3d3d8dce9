"""Metrics for Prometheus: what they say of a study, that their labels are bounded, and who uses them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from ended_study import FAILED, add_outcomes, make_study
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families
from small_plans import step
from starlette.testclient import TestClient
from study_on_disk import make_workspace
from waiting import wait_until

from merlin.dashboard.ended_pages import EndedPages
from merlin.dashboard.listed_study import ListedStudy
from merlin.dashboard.measured import Details, DetailsReader, Measured
from merlin.dashboard.metric_families import METRICS, label_value
from merlin.dashboard.metrics import MAX_STUDIES, exposition
from merlin.dashboard.study_metrics import MAX_CLASSES, MAX_STEPS, REST
from merlin.execution.conductor import RunOptions
from merlin.execution.embedded import run_embedded
from merlin.execution.events import Observer
from merlin.execution.job_counts import StepJobCounts
from merlin.shards.format.counts import Counts
from merlin.status.eta import Eta
from merlin.views.at_work import QueueLine, WorkerLine
from merlin.views.step_lines import NOTHING, DataSetLine, StepLine
from merlin.views.study_page import StudyPage, StudyView
from merlin.views.worker_jobs import JobLine

ROOT = Path(__file__).resolve().parents[3]
Series = dict[tuple[str, frozenset[tuple[str, str]]], float]


def step_line(name: str, **more: Any) -> StepLine:
    usual: dict[str, Any] = {
        "planned": 100, "ok": 60, "failed": 4, "skipped": 6, "missing": 30, "running": 2, "rate": 5.0, "eta_s": 6.0,
        "busy_s": 90.0, "ended": 1200.0,
    }  # fmt: skip
    return replace(NOTHING, step=name, kind="cmd", **{**usual, **more})


WORKER = WorkerLine(
    name="w.node1", host="node1", node="", queues=("cpu",), slots=4, cores=4, gpus=(), running=(), started=0.0,
    age_s=0.0, job="7", ends=None, is_stopping=False,
)  # fmt: skip
JOB = JobLine(
    id="7", name="merlin-x", scheduler="slurm", state="running", reason="", num_nodes=1, hosts=("node1",), left_s=None,
    workers=(), num_chunks=0,
)  # fmt: skip


@pytest.fixture
def empty(tmp_path: Path) -> StudyPage:
    """The page of a study that cannot be read, which has every field."""
    return StudyView(tmp_path / "gone", id="gone").look(1000.0)


@pytest.fixture
def full(empty: StudyPage) -> StudyPage:
    """A study of which everything is known."""
    return replace(
        empty, id="square_20260102-030405", name="square", workspace="/w/square", state="running", executor="workers",
        started=1000.0, totals=step_line("", ok=60, failed=4), steps=(step_line("sim"),), rate=5.0,
        eta=Eta(low_s=1.0, mid_s=2.0, high_s=3.0), workers=(WORKER,), num_slots=4, num_failures=4, ledger_bytes=77,
        step_jobs=(StepJobCounts(instance="sim/P.1", scheduler="slurm", pending=1, running=2, ended=0, reasons=()),),
        data_sets=(DataSetLine(key="collect", aggregate="collect", path="/w/d", samples=Counts(10, 6, 1, 1, 1, 1)),),
        damage=("segment 1",),
    )  # fmt: skip


def measured(*pages: StudyPage, **more: Any) -> Measured:
    usual: dict[str, Any] = {
        "lines": [],
        "workers": [],
        "queues": [],
        "jobs": [],
        "details": {},
        "seconds": 0.25,
    }
    return Measured(pages=pages, **{**usual, **more})


def everything(full: StudyPage) -> Measured:
    return measured(
        full,
        workers=[WORKER],
        queues=[QueueLine(name="cpu", depth=3, num_workers=1, oldest_s=12.5)],
        jobs=[JOB],
        details={full.workspace: Details(failures={("sim", "exit code 3"): 4}, free_bytes=10**9)},
    )


def series(text: bytes) -> Series:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def value(found: Series, name: str, **labels: str) -> float:
    return found[name, frozenset(labels.items())]


def labels_of(found: Series, name: str, label: str) -> set[str]:
    return {dict(labels)[label] for known, labels in found if known == name}


def test_a_study_is_shown_with_all_that_is_known_of_it(full: StudyPage) -> None:
    found = series(exposition(everything(full)))
    study = {"study": full.id}
    assert value(found, "merlin_study_tasks", **study, outcome="failed") == 4
    assert value(found, "merlin_study_tasks_planned", **study) == 100
    assert value(found, "merlin_study_state", **study, state="running") == 1
    assert value(found, "merlin_study_state", **study, state="stalled") == 0
    assert value(found, "merlin_study_eta_seconds", **study, bound="high") == 3
    assert value(found, "merlin_step_tasks", **study, step="sim", outcome="missing") == 30
    assert value(found, "merlin_step_busy_seconds_total", **study, step="sim") == 90
    assert value(found, "merlin_step_failures", **study, step="sim", exit_class="exit code 3") == 4
    assert value(found, "merlin_step_jobs", **study, step="sim", state="running") == 2
    assert value(found, "merlin_data_set_samples", **study, data_set="collect", outcome="ok") == 6
    assert value(found, "merlin_study_free_bytes", **study) == 10**9
    assert value(found, "merlin_study_damaged_places", **study) == 1
    assert value(found, "merlin_queue_oldest_seconds", queue="cpu") == 12.5
    assert value(found, "merlin_worker_jobs", scheduler="slurm", state="running") == 1
    assert value(found, "merlin_worker_slots") == 4
    assert value(found, "merlin_scrape_duration_seconds") == 0.25


def series_name(name: str) -> str:
    """The name that a metric has in queries."""
    return name + {"info": "_info", "counter": "_total"}.get(METRICS[name].type, "")


def test_every_metric_of_the_table_is_exported(full: StudyPage) -> None:
    exported = {name for name, _ in series(exposition(everything(full)))}
    assert exported == {series_name(name) for name in METRICS}


def test_failures_of_another_kind_are_seen_although_there_are_as_many(tmp_path: Path) -> None:
    study, reader, kinds = make_study(tmp_path / "study_20260101-000000"), DetailsReader(), []
    for attempt, code in enumerate((3, 4)):
        add_outcomes(study, 0, [FAILED], attempt=attempt, code=code, started=1000.0 + attempt)
        page = StudyView(study.path).look()
        kinds.append(set(reader.read([page])[page.workspace].failures))
    assert kinds == [{("sim", "exit code 3")}, {("sim", "exit code 4")}]


def test_a_study_that_is_over_does_not_seem_to_work(full: StudyPage) -> None:
    found = series(exposition(measured(replace(full, state="stopped"))))
    assert value(found, "merlin_study_tasks_per_second", study=full.id) == 0
    assert value(found, "merlin_step_tasks_per_second", study=full.id, step="sim") == 0


def test_a_study_that_cannot_be_read_has_a_state_and_no_numbers(empty: StudyPage) -> None:
    found = series(exposition(measured(empty)))
    assert value(found, "merlin_study_state", study="gone", state="unreadable") == 1
    assert not labels_of(found, "merlin_study_tasks", "study")


def test_studies_that_run_have_series_first_and_the_rest_are_counted(full: StudyPage) -> None:
    old = [
        ListedStudy(id=f"old{n}", name="old", workspace=f"/w/old{n}", when="", state="finished")
        for n in range(MAX_STUDIES + 5)
    ]
    running = replace(full, id="mine", workspace="/w/mine")
    stopped = [replace(full, id=f"s{n}", workspace=f"/w/s{n}", state="stopped") for n in range(3)]
    found = series(exposition(measured(*stopped, running, lines=old)))
    shown = labels_of(found, "merlin_study_info", "study")
    assert len(shown) == MAX_STUDIES
    assert {"mine", "s0", "s1", "s2", "old0"} <= shown
    assert value(found, "merlin_studies_left_out") == 5 + 4
    assert value(found, "merlin_studies", state="finished") == MAX_STUDIES + 5
    many = [replace(full, id=f"r{n}", workspace=f"/w/r{n}") for n in range(MAX_STUDIES + 2)]
    found = series(exposition(measured(*many)))
    assert len(labels_of(found, "merlin_study_info", "study")) == MAX_STUDIES
    assert value(found, "merlin_studies_left_out") == 2


def test_many_steps_and_many_kinds_of_failures_share_a_series(full: StudyPage) -> None:
    steps = tuple(step_line(f"s{n}") for n in range(MAX_STEPS + 30))
    failures = {("s0", f"exit code {n}"): 100 - n for n in range(MAX_CLASSES + 3)} | {("s40", "timeout"): 7}
    page = replace(full, steps=steps)
    found = series(exposition(measured(page, details={page.workspace: Details(failures=failures)})))
    names = labels_of(found, "merlin_step_tasks", "step")
    assert len(names) == MAX_STEPS
    assert REST in names
    assert value(found, "merlin_step_tasks_planned", study=page.id, step=REST) == 31 * 100
    kinds = [dict(labels) for name, labels in found if name == "merlin_step_failures"]
    assert len([labels for labels in kinds if labels["step"] == "s0"]) == MAX_CLASSES + 1
    assert value(found, "merlin_step_failures", study=page.id, step="s0", exit_class=REST) == sum(
        100 - n for n in range(MAX_CLASSES, MAX_CLASSES + 3)
    )
    assert value(found, "merlin_step_failures", study=page.id, step=REST, exit_class="timeout") == 7


def test_no_label_breaks_the_format_or_grows_without_limit(full: StudyPage) -> None:
    evil = 'a"b\\c\nd\x00\ud800{}=,' + "x" * 500
    page = replace(full, name=evil, steps=(step_line(evil),))
    found = series(exposition(everything(page)))
    (name,) = labels_of(found, "merlin_study_info", "name")
    assert name.startswith('a"b\\c?d??{}=,')
    assert len(name) == len(label_value(evil)) == 100
    assert labels_of(found, "merlin_step_tasks", "step") == {name}


def test_no_label_holds_a_sample_a_host_or_a_message(full: StudyPage) -> None:
    labels = {label for kind in METRICS.values() for label in kind.labels}
    assert labels == {
        "version", "state", "study", "name", "executor", "outcome", "bound", "step", "exit_class", "data_set", "queue",
        "scheduler",
    }  # fmt: skip
    assert "node1" not in exposition(everything(full)).decode()


# ------------------------------------------------------------------ studies that end


def test_a_study_that_has_ended_keeps_its_last_numbers(full: StudyPage) -> None:
    looked: list[str] = []

    def look(path: Path, id: str) -> StudyPage:
        looked.append(id)
        return replace(full, state="finished")

    ended = EndedPages(look)
    assert ended.latest([full]) == []
    (page,) = wait_until(lambda: ended.latest([]))
    assert page.state == "finished"
    assert [page.state for page in ended.latest([])] == ["finished"]
    assert looked == [full.id], "it is read once"
    assert ended.latest([full]) == [], "it runs again"


# -------------------------------------------------------------- the dashboard's address


def test_the_dashboard_serves_the_metrics_to_who_has_the_token(
    tmp_path: Path, connect: Callable[..., TestClient], program: TestClient
) -> None:
    workspace = make_workspace(tmp_path, step("sim", 4, command="test $(MERLIN_SAMPLE_ID) -gt 0"))
    run_embedded(workspace, RunOptions(workers=1), Observer())
    assert connect().get("/metrics").status_code == 401

    def found() -> Series:
        answer = program.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=")
        return series(answer.content)

    key = ("merlin_study_tasks", frozenset({"study": workspace.path.name, "outcome": "ok"}.items()))
    assert wait_until(lambda: found().get(key)) == 3


# ---------------------------------------------------------------- who uses the metrics


def grafana() -> dict[str, Any]:
    document = json.loads((ROOT / "docs/grafana.json").read_text())
    assert isinstance(document, dict)
    return document


def expressions() -> Iterator[str]:
    """All PromQL of the Grafana dashboard and of the alert rules."""
    for panel in grafana()["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    for variable in grafana()["templating"]["list"]:
        yield variable.get("definition", "")
    for group in yaml.safe_load((ROOT / "docs/alerts.yaml").read_text())["groups"]:
        yield from (rule["expr"] for rule in group["rules"])


def used(expression: str) -> dict[str, set[str]]:
    """The metrics in an expression, each with the labels that it is asked for."""
    found: dict[str, set[str]] = {}
    for name, matchers in re.findall(r"\b(merlin_\w+)\b(?:\{([^}]*)\})?", expression):
        found.setdefault(name, set()).update(re.findall(r"(\w+)\s*=~?", matchers))
    return found


def test_grafana_and_the_alerts_use_metrics_and_labels_that_exist() -> None:
    labels = {series_name(name): set(kind.labels) for name, kind in METRICS.items()}
    asked: dict[str, set[str]] = {}
    for expression in expressions():
        for name, matchers in used(expression).items():
            asked.setdefault(name, set()).update(matchers)
    assert len(asked) > 20
    assert {
        name: asks - labels.get(name, set()) for name, asks in asked.items() if asks - labels.get(name, set())
    } == {}
    assert set(asked) <= set(labels)


def test_the_words_that_are_asked_for_exist(full: StudyPage) -> None:
    """A state that is spelled wrongly would never raise an alert."""
    known = {(label, text) for _, labels in series(exposition(everything(full))) for label, text in labels}
    known |= {("state", "pending"), ("state", "ended")}
    words = {
        (label, word)
        for expression in expressions()
        for label, word in re.findall(r'\b(outcome|state|bound)="(\w+)"', expression)
    }
    assert words <= known


def test_grafana_gets_a_dashboard_with_variables_for_its_source_studies_and_steps() -> None:
    document = grafana()
    assert document["schemaVersion"] >= 36
    assert [v["name"] for v in document["templating"]["list"]] == ["datasource", "study", "step"]
    panels = [panel for panel in document["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in document["panels"]}) == len(document["panels"])
    assert all(panel["datasource"]["uid"] == "${datasource}" for panel in panels)
    assert all(
        target["datasource"]["uid"] == "${datasource}" for panel in panels for target in panel["targets"]
    )
    assert len({(p["gridPos"]["x"], p["gridPos"]["y"]) for p in document["panels"]}) == len(
        document["panels"]
    )
    titles = " ".join(panel["title"].lower() for panel in panels)
    for word in (
        "progress",
        "outcome",
        "per second",
        "time left",
        "messages",
        "oldest",
        "workers",
        "failures",
    ):
        assert word in titles


def test_every_alert_says_for_how_long_how_bad_and_what() -> None:
    rules: list[Mapping[str, Any]] = [
        rule
        for group in yaml.safe_load((ROOT / "docs/alerts.yaml").read_text())["groups"]
        for rule in group["rules"]
    ]
    assert len({rule["alert"] for rule in rules}) == len(rules) >= 8
    for rule in rules:
        assert re.fullmatch(r"\d+[mh]", rule["for"])
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert rule["annotations"]["summary"]


def test_every_metric_is_in_the_documentation() -> None:
    text = (ROOT / "docs/metrics.md").read_text()
    assert {name for name in METRICS if f"`{series_name(name)}`" not in text} == set()
