"""What `merlin doctor` makes of what it finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from merlin.config.load import find_config
from merlin.config.model import Endpoint
from merlin.config.reach import Reach
from merlin.errors import ConfigError
from merlin.execution.distributed.registry import WorkerInfo
from merlin.views.doctor import examine, machine, servers, workers


@pytest.mark.parametrize(
    ("found", "status"), [(None, "broken"), ("5.3.9", "broken"), ("5.4.0rc1", "ok"), ("6.0", "ok")]
)
def test_packages_have_a_least_version(found, status):
    finding = machine.judge_package("celery", found, (5, 4))
    assert finding.status == status
    assert ("celery>=5.4" in finding.hint) == (status == "broken")


def test_no_configuration_is_no_fault_and_the_findings_end_there(tmp_path):
    findings = list(examine.examine(lambda: None, tmp_path))
    assert findings[-1].component == "configuration"
    assert findings[-1].status == "absent"


def test_a_wrong_configuration_is_broken(tmp_path):
    def fail():
        raise ConfigError("app.yaml:3:1: error: no such key")

    finding = list(examine.examine(fail, tmp_path))[-1]
    assert finding.status == "broken"
    assert "app.yaml:3:1" in finding.detail


def test_a_server_that_is_not_there_is_broken_and_the_rest_is_not_asked(tmp_path):
    environment = {"MERLIN_BROKER_URL": "redis://:geheim@127.0.0.1:1/0", "HOME": str(tmp_path)}
    findings = list(examine.examine(lambda: find_config(environment), tmp_path))
    assert [f.component for f in findings[-2:]] == ["broker", "backend"]
    assert {f.status for f in findings[-2:]} == {"broken"}
    assert "127.0.0.1:1" in findings[-1].detail
    assert "geheim" not in repr(findings)


def test_a_key_that_others_can_read_is_broken(tmp_path):
    config = find_config({"MERLIN_BROKER_URL": "redis://127.0.0.1:1/0", "HOME": str(tmp_path)})
    assert config is not None
    assert examine.examine_key(config).status == "ok"
    config.key_path.chmod(0o644)
    fresh = find_config({"MERLIN_BROKER_URL": "redis://127.0.0.1:1/0", "HOME": str(tmp_path)})
    assert fresh is not None
    assert examine.examine_key(fresh).status == "broken"


def reach(**more) -> Reach:
    return Reach(**{"ok": True, "version": "7.0.15", "latency_ms": 0.2, "detail": "answers", **more})


@pytest.mark.parametrize(
    ("host", "answer", "status", "hint"),
    [
        ("127.0.0.1", {}, "ok", ""),
        ("far.lab", {}, "warning", "not encrypted"),
        ("127.0.0.1", {"latency_ms": 80.0}, "warning", "80 ms"),
        ("127.0.0.1", {"version": "6.0.16"}, "broken", "Redis 6.2"),
        ("127.0.0.1", {"ok": False, "version": "", "hint": "start it"}, "broken", "start it"),
    ],
)
def test_servers_are_judged_by_version_distance_and_encryption(host, answer, status, hint):
    finding = servers.judge_reach("broker", Endpoint(kind="redis", host=host, port=1), reach(**answer))
    assert finding.status == status
    assert hint in finding.hint


@pytest.mark.parametrize(
    ("memory", "statuses"),
    [
        ({}, ["warning"]),
        ({"used_memory": 5, "maxmemory": 0, "maxmemory_policy": "allkeys-lru"}, ["ok", "ok"]),
        ({"used_memory": 5, "maxmemory": 100, "maxmemory_policy": "noeviction"}, ["ok", "ok"]),
        ({"used_memory": 95, "maxmemory": 100, "maxmemory_policy": "noeviction"}, ["warning", "ok"]),
        ({"used_memory": 5, "maxmemory": 100, "maxmemory_policy": "volatile-lru"}, ["ok", "broken"]),
    ],
)
def test_redis_must_not_throw_keys_away(memory, statuses):
    assert [finding.status for finding in servers.judge_memory(memory)] == statuses


@pytest.mark.parametrize(
    ("info", "save", "status", "detail"),
    [
        ({"aof_enabled": 1}, "", "ok", "append-only file"),
        ({"aof_enabled": 0}, "3600 1", "warning", "snapshots"),
        ({"aof_enabled": 0}, "", "warning", "none"),
        ({"aof_enabled": 1, "aof_last_write_status": "err"}, "", "broken", "aof_last_write_status"),
    ],
)
def test_persistence_is_judged_by_what_a_restart_would_cost(info, save, status, detail):
    finding = servers.judge_persistence(info, save)
    assert finding.status == status
    assert detail in finding.detail


def test_a_clock_that_is_off_is_worth_a_word():
    assert servers.judge_clock(-0.2).status == "ok"
    assert servers.judge_clock(3600.0).status == "warning"
    assert "ahead of" in servers.judge_clock(3600.0).detail


def test_a_full_disk_and_a_slow_one_are_worth_a_word():
    assert machine.judge_directory(Path("/w"), 10**12, 0.01).status == "ok"
    assert "only 5.0 MB" in machine.judge_directory(Path("/w"), 5 * 10**6, 0.01).hint
    assert "3.0 s" in machine.judge_directory(Path("/w"), 10**12, 3.0).hint


def test_a_directory_that_cannot_be_written_is_broken(tmp_path):
    assert machine.examine_directory(tmp_path).status == "ok"
    assert machine.examine_directory(tmp_path / "missing").status == "broken"
    assert list(tmp_path.iterdir()) == []


def worker(name: str, **more) -> WorkerInfo:
    from merlin import __version__

    fields = {"host": "h", "pid": 1, "queues": [], "concurrency": 1, "started": 0.0, "version": __version__}
    return WorkerInfo(name=name, **{**fields, **more})


@pytest.mark.parametrize(
    ("found", "studies", "status", "hint"),
    [
        ([], [], "absent", ""),
        ([], ["/w/a", "/w/b"], "warning", "no worker is alive; start some: merlin run-workers /w/a; merlin"),
        ([worker("a")], ["/w/a"], "ok", ""),
        ([worker("a", version="0.0.1")], [], "warning", "Merlin 0.0.1"),
        ([worker("a"), worker("celery@b.node2", age_s=99.0)], [], "warning", "silent: b.node2"),
    ],
)
def test_workers_are_judged_by_version_and_silence(found, studies, status, hint):
    finding = workers.judge_workers(found, studies)
    assert finding.status == status
    assert hint in finding.hint


def test_where_a_scheduler_is_installed_jobs_are_offered():
    hint = workers.judge_workers([], ["/w/a"], has_scheduler=True).hint
    assert hint.endswith("merlin run-workers /w/a, or in batch jobs: merlin workers submit /w/a")


def test_of_many_silent_workers_some_are_named():
    finding = workers.judge_workers([worker(f"w{k}", age_s=99.0) for k in range(20_000)], [])
    assert "w19 and 19,980 more; their work" in finding.hint
    assert "w20," not in finding.hint
