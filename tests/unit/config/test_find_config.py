from __future__ import annotations

import os
from pathlib import Path

import pytest

from merlin.config.edit import use
from merlin.config.load import find_config, require_config
from merlin.errors import ConfigError


def app_file(path: Path, host: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"broker: {{name: redis, server: {host}}}\n")
    return path


@pytest.fixture
def here(tmp_path: Path) -> Path:
    folder = tmp_path / "here"
    folder.mkdir()
    return folder


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path / "home")}


def test_without_anything_there_is_no_configuration(env, here):
    assert find_config(env, cwd=here) is None
    with pytest.raises(ConfigError, match="merlin server start"):
        require_config(env, cwd=here)
    assert not Path(env["HOME"]).exists()  # looking makes nothing


def test_the_order_of_the_places(env, here, tmp_path):
    home = Path(env["HOME"]) / ".merlin"

    def found() -> tuple[str, str]:
        config = require_config(env, cwd=here)
        return config.broker.host, config.origin

    app_file(here / "merlin_server" / "app.yaml", "server-here")
    assert found() == ("server-here", "private server here")
    app_file(home / "app.yaml", "home")
    assert found() == ("home", "home directory")
    use(app_file(tmp_path / "used.yaml", "used"), env)
    assert found() == ("used", "merlin config use")
    env["MERLIN_CONFIG"] = str(app_file(tmp_path / "folder" / "app.yaml", "named").parent)
    assert found() == ("named", "MERLIN_CONFIG")
    env["MERLIN_CONFIG"] += "/app.yaml"
    assert found() == ("named", "MERLIN_CONFIG")
    env["MERLIN_BROKER_URL"] = "redis://url"
    assert found() == ("url", "MERLIN_BROKER_URL")
    env["MERLIN_BROKER_URL"] = env["MERLIN_CONFIG"] = ""  # empty is unset
    assert found() == ("used", "merlin config use")


def test_a_child_elsewhere_finds_the_same(env, here, tmp_path):
    app_file(here / "merlin_server" / "app.yaml", "server-here")
    config = require_config(env, cwd=here)
    again = require_config({**env, **config.child_environment()}, cwd=tmp_path)
    assert (again.broker, again.key_path) == (config.broker, config.key_path)


@pytest.mark.parametrize("chooser", ["MERLIN_CONFIG", "config_path.txt"])
def test_a_chosen_file_that_is_gone_is_an_error_and_never_a_silent_local_run(env, here, tmp_path, chooser):
    app_file(Path(env["HOME"]) / ".merlin" / "app.yaml", "home")
    if chooser == "MERLIN_CONFIG":
        env["MERLIN_CONFIG"] = str(tmp_path / "gone.yaml")
    else:
        use(tmp_path / "gone.yaml", env)
    with pytest.raises(ConfigError, match=r"gone\.yaml") as caught:
        find_config(env, cwd=here)
    undo = (
        "unset MERLIN_CONFIG" if chooser == "MERLIN_CONFIG" else f"rm {env['HOME']}/.merlin/config_path.txt"
    )
    assert all(words in str(caught.value) for words in (chooser, undo, "--local"))


def test_urls_of_the_environment(env, here):
    env |= {"MERLIN_BROKER_URL": "amqp://j:hunter2@h/v", "MERLIN_BACKEND_URL": "redis://:hunter2@r/1"}
    config = require_config(env, cwd=here)
    assert (config.broker.kind, config.backend.host, config.path) == ("amqp", "r", None)
    assert config.key_path == Path(env["HOME"]) / ".merlin" / "merlin.key"
    assert "hunter2" not in repr(config)
    assert "MERLIN_CONFIG" not in config.child_environment()


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        ({"MERLIN_BROKER_URL": "amqp://j:hunter2@h"}, "MERLIN_BACKEND_URL=redis"),
        ({"MERLIN_BROKER_URL": "redis://h", "MERLIN_BACKEND_URL": "amqp://j:hunter2@h"}, "kept in Redis"),
        ({"MERLIN_BACKEND_URL": "redis://:hunter2@h"}, "without MERLIN_BROKER_URL"),
        ({"MERLIN_BROKER_URL": "redis://:hunter2@h:x"}, "MERLIN_BROKER_URL: "),
        ({"MERLIN_BROKER_URL": "redis://h", "MERLIN_BACKEND_URL": "x:hunter2"}, "MERLIN_BACKEND_URL: "),
    ],
)
def test_wrong_urls_name_the_variable_and_not_the_password(env, here, variables, message):
    with pytest.raises(ConfigError, match=message) as caught:
        find_config({**env, **variables}, cwd=here)
    assert "hunter2" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_server_here_that_somebody_else_made_is_not_used_by_itself(env, here):
    path = app_file(here / "merlin_server" / "app.yaml", "trap")
    for trap in (path, path.parent):
        os.chown(trap, 12345, 12345)
        with pytest.raises(ConfigError, match="another user"):
            find_config(env, cwd=here)
        os.chown(path, 0, 0)
    use(path, env)  # an explicit choice
    assert require_config(env, cwd=here).broker.host == "trap"
