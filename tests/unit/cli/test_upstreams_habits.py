"""What people's scripts for upstream's command line look at: exit codes, files, short messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from in_process import merlin

SPEC = """\
description: {name: demo, description: d}
env: {variables: {SUB: plain, OUTPUT_PATH: out_$(SUB)}}
study: [{name: a, description: d, run: {cmd: "echo $(X) $(P)"}}]
global.parameters: {P: {values: [0.5], label: P.%%}}
merlin: {samples: {file: samples.npy, column_labels: [X]}}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo.yaml").write_text(SPEC)
    np.save(tmp_path / "samples.npy", [[1.0], [2.0]])
    return tmp_path


def app(path: Path, block: str) -> dict[str, object]:
    return dict(yaml.safe_load(path.read_text())[block])


def test_config_with_test_notes_the_choice_beside_the_file_and_leaves_the_home_alone(here: Path) -> None:
    first, second = here / "conf/app.yaml", here / "conf/second.yaml"
    assert merlin("config", "--test", "create", "-o", "./conf/app.yaml") == 0
    assert (here / "conf/config_path.txt").read_text() == f"{first}\n"
    assert merlin("config", "--test", "create", "-o", "./conf/second.yaml") == 0
    assert (here / "conf/config_path.txt").read_text() == f"{second}\n"
    assert merlin("config", "-t", "use", "./conf/app.yaml") == 0
    assert (here / "conf/config_path.txt").read_text() == f"{first}\n"
    assert not (here / "home").exists()


def test_config_without_test_notes_it_in_the_home(here: Path) -> None:
    assert merlin("config", "create", "-o", "./conf/app.yaml") == 0
    assert (here / "home/.merlin/config_path.txt").read_text() == f"{here / 'conf/app.yaml'}\n"


def test_what_changes_the_configuration_tells_programs_so(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def told(*words: str) -> dict[str, Any]:
        assert merlin(*words, "--json") == 0
        return dict(json.loads(capsys.readouterr().out))

    path, redis = str(here / "app.yaml"), ("-t", "redis", "-s", "host", "--no-tls", "--pf", "pw")
    (here / "pw").write_text("secret")
    assert told("config", "create", "-o", "app.yaml") == {"path": path, "made": True}
    assert told("config", "create", "-o", "app.yaml") == {"path": path, "made": False}
    changed = told("config", "update-broker", "--cf", "app.yaml", *redis)
    assert (changed["path"], changed["changed"]) == (path, "broker") and changed["to_do"][0]["message"]
    assert told("config", "update-backend", "--cf", "app.yaml", *redis)["to_do"] == []
    monkeypatch.setenv("MERLIN_BROKER_URL", "redis://host")
    assert told("config", "use", "app.yaml") == {"path": path, "hidden_by": ["MERLIN_BROKER_URL"]}
    server = {"folder": str(here / "server")}
    assert told("server", "init", "--dir", "server") == {**server, "made": True}
    wanted = {**server, "changed": ["port"], "needs_restart": False}
    assert told("server", "config", "--dir", "server", "-p", "7000") == wanted
    assert told("server", "stop", "--dir", "server") == {**server, "stopped": False}


def test_config_names_the_file_before_the_errors_in_it(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    merlin("config", "create", "-o", "app.yaml")
    for command in ("show", "check"):
        capsys.readouterr()
        assert merlin("config", command) == 2
        first, *_, last = capsys.readouterr().err.splitlines()
        assert str(here / "app.yaml") in first and "merlin config use" in first
        assert last == "merlin: 6 errors"


def test_a_run_with_a_template_that_is_not_filled_in_says_how_to_do_without(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    merlin("config", "create")
    assert "--local" in capsys.readouterr().out
    assert merlin("run", "demo.yaml") == 2
    assert "add --local" in capsys.readouterr().err.splitlines()[0]


@pytest.mark.parametrize(
    ("words", "url"),
    [("config create", ""), ("config use app.yaml", ""), ("run demo.yaml", ""), ("config show", "redis://h")],
)
def test_in_a_home_that_cannot_be_used_another_one_is_the_remedy(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: str, url: str
) -> None:
    (here / "home").touch()
    (here / "app.yaml").write_text("broker: {name: redis, server: h}\n")
    monkeypatch.setenv("MERLIN_BROKER_URL", url)
    assert merlin(*words.split()) == 2
    assert (
        f"\n  Make {here}/home/.merlin yours, or name another home: export HOME=DIR\n"
        in capsys.readouterr().err
    )


def test_update_broker_takes_a_password_file_that_does_not_exist_yet(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    merlin("config", "--test", "create", "-o", "app.yaml")
    words = "-t rabbitmq --cf app.yaml -u joe --pf joes_password -s host -p 5672 -v joes"
    assert merlin("config", "update-broker", *words.split()) == 0
    told = capsys.readouterr()
    assert "does not exist" in told.err and "joes_password" not in told.err + told.out
    broker = app(here / "app.yaml", "broker")
    expected = {
        "name": "rabbitmq", "username": "joe", "password": "joes_password", "server": "host", "port": 5672,
        "vhost": "joes",
    }  # fmt: skip
    assert expected.items() <= broker.items()


def test_update_backend_writes_redis_with_tls(here: Path) -> None:
    merlin("config", "--test", "create", "-o", "app.yaml")
    (here / "pw").write_text("secret\n")
    words = "-t redis --cf app.yaml --pf pw -s host -p 6379"
    assert merlin("config", "update-backend", *words.split()) == 0
    backend = app(here / "app.yaml", "results_backend")
    assert {
        "name": "rediss",
        "server": "host",
        "port": 6379,
        "password": str(here / "pw"),
    }.items() <= backend.items()


@pytest.mark.parametrize(
    ("variables", "place"),
    [([], "out_plain"), (["--vars", "SUB=x"], "out_x"), (["--vars", "OUTPUT_PATH=there"], "there")],
)
def test_run_says_where_it_writes_and_how_many_samples_it_has(
    here: Path, capsys: pytest.CaptureFixture[str], variables: list[str], place: str
) -> None:
    assert merlin("run", "demo.yaml", "--local", "--dry", *variables) == 0
    told = capsys.readouterr().err.splitlines()
    assert f"OUTPUT_PATH: {place}" in told
    assert "2 samples loaded." in told
    assert list((here / place).glob("demo_*"))


def test_one_sample_is_one_sample(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "one.csv").write_text("42.0\n")
    assert merlin("run", "demo.yaml", "--local", "--dry", "--samplesfile", "one.csv") == 0
    assert "1 sample loaded." in capsys.readouterr().err


def test_run_workers_echo_prints_a_line_for_celery(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert merlin("-lvl", "debug", "run-workers", "demo.yaml", "--echo") == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert "celery -A merlin worker " in line
    assert "-Q '[merlin]_merlin'" in line


def test_an_invalid_spec_exits_with_2(here: Path) -> None:
    """Upstream's 1; see docs/from-merlin.md."""
    (here / "no_study.yaml").write_text("description: {name: demo, description: d}\n")
    assert merlin("run", "no_study.yaml", "--local") == 2


def test_a_dry_run_writes_the_scripts_of_restarts_too(here: Path) -> None:
    (here / "demo.yaml").write_text(SPEC.replace('run: {cmd: "', 'run: {restart: "echo again $(X)", cmd: "'))
    assert merlin("run", "demo.yaml", "--local", "--dry") == 0
    scripts = {p.name: p.read_text() for p in here.glob("out_plain/demo_*/a/P.0.5/01/*")}
    assert scripts == {
        "a_P.0.5.sh": "#!/bin/bash\n\necho 2.0 0.5\n",
        "a_P.0.5.restart.sh": "#!/bin/bash\n\necho again 2.0\n",
    }
