"""`merlin dashboard` up to the moment when it serves: its words, its port, its token, and what it prints."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from ended_study import make_study
from starlette.responses import PlainTextResponse
from uvicorn.server import ServerState
from waiting import wait_until

from merlin.cli.dashboards import DashboardOptions, _announce, run_dashboard
from merlin.cli.study_places import StudyPlaces
from merlin.dashboard import serve
from merlin.dashboard.addresses import Address
from merlin.dashboard.hosts import host_names
from merlin.dashboard.security import Door
from merlin.dashboard.serve import Tls, listen
from merlin.dashboard.tokens import Token, read_or_make_token
from merlin.errors import ConfigError, ExecutionError, MerlinError, UsageError

TOKEN = "x" * 43


def options(**given: Any) -> DashboardOptions:
    usual: dict[str, Any] = {
        "workspaces": (), "roots": (), "port": 0, "host": "127.0.0.1", "allow_actions": False, "opens": False,
        "ssh_hint": False, "token_file": None, "root_path": "", "trust_proxy": False, "allowed_hosts": (),
        "certfile": None, "keyfile": None, "as_json": False,
    }  # fmt: skip
    return DashboardOptions(**{**usual, **given})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"root_path": "//evil"}, "--root-path"),
        ({"root_path": "merlin"}, "--root-path"),
        ({"root_path": "/a;b"}, "--root-path"),
        ({"certfile": Path("a.pem")}, "--keyfile"),
        ({"keyfile": Path("a.key")}, "--certfile"),
        ({"certfile": Path("no.pem"), "keyfile": Path("no.key")}, "cannot be used"),
        ({"host": "no.such.host.invalid"}, "--host"),
        ({"host": "192.0.2.1"}, "cannot listen"),
    ],
)
def test_a_wrong_word_is_explained_before_anything_is_served(
    tmp_path: Path, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(MerlinError, match=said) as caught:
        run_dashboard(options(roots=(tmp_path,), **given))
    assert caught.value.exit_code == 2


def test_a_directory_without_studies_is_refused_as_a_workspace_and_welcome_as_a_root(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--root"):
        options(workspaces=(tmp_path,)).places()
    study = make_study(tmp_path / "one_20260101-000000").path
    assert options(workspaces=(study,)).places() == StudyPlaces([], [study])
    assert options(workspaces=(tmp_path,), roots=(tmp_path,)).places() == StudyPlaces([tmp_path], [])


def test_without_words_it_shows_what_merlin_list_lists_or_the_workspace_it_stands_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = make_study(tmp_path / "one_20260101-000000").path
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # of somebody who has run nothing
    monkeypatch.chdir(tmp_path)
    assert options().places() == StudyPlaces([tmp_path], [])
    monkeypatch.chdir(study)
    assert options().places() == StudyPlaces([], [study])


def test_a_port_that_is_taken_leads_to_the_next_one_and_one_that_was_asked_for_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr("merlin.dashboard.serve.FIRST_PORT", port)
        with listen("127.0.0.1", None) as opened:
            assert port < opened.getsockname()[1] < port + 100
        monkeypatch.setattr("merlin.dashboard.serve.NUM_PORTS", 1)
        for asked in (None, port):
            with pytest.raises(ExecutionError, match=f"{port}.* taken.*--port N"):
                listen("127.0.0.1", asked)


def test_half_a_certificate_is_explained(tmp_path: Path) -> None:
    for name in ("a.pem", "a.key"):
        (tmp_path / name).write_text("no certificate")
    with pytest.raises(ConfigError, match=r"a\.pem"):
        Tls(certfile=tmp_path / "a.pem", keyfile=tmp_path / "a.key").check()


# the token


def test_a_token_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "home/.merlin/dashboard-token"
    first = read_or_make_token(path)
    assert read_or_make_token(path) == first
    assert len(first.text) == 43 and first.text != read_or_make_token(tmp_path / "other").text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert len({first.text, first.cookie, first.csrf}) == 3


def test_a_token_that_others_can_read_or_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    read_or_make_token(path)
    path.chmod(0o640)
    with pytest.raises(ConfigError, match="0640"):
        read_or_make_token(path)
    path.chmod(0o600)
    for text in ("short", "a b" * 20, "x" * 200, ""):
        path.write_text(text)
        with pytest.raises(ConfigError, match="holds no token"):
            read_or_make_token(path)
    path.unlink()
    path.mkdir()
    with pytest.raises(ConfigError, match="no plain file"):
        read_or_make_token(path)


# what is printed


def printed(capsys: pytest.CaptureFixture[str], address: Address, **given: Any) -> tuple[list[str], str]:
    """The lines on stdout, and stderr."""
    door = Door(token=Token(TOKEN), hosts=host_names(address.host), port=address.port)
    _announce(options(host=address.host, **given), address, door, StudyPlaces([Path("/data/studies")], []))
    out, err = capsys.readouterr()
    return out.splitlines(), err


HERE = Address(host="127.0.0.1", port=8765, is_secure=False, root="/")


@pytest.fixture(autouse=True)
def _at_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SSH_CONNECTION", "SLURM_JOB_ID", "SLURM_SUBMIT_HOST", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("socket.getfqdn", lambda: "login3.site.example")


def test_at_the_machine_itself_the_address_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    lines, _ = printed(capsys, HERE)
    assert lines == [
        "the studies in /data/studies",
        f"open http://127.0.0.1:8765/?token={TOKEN}",
        "read-only; Ctrl-C ends the dashboard",
    ]


def test_through_ssh_the_line_for_a_tunnel_comes_first(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("getpass.getuser", lambda: "ada")
    asked, _ = printed(capsys, HERE, ssh_hint=True)
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.1 50000 10.0.0.2 22")
    assert printed(capsys, HERE)[0] == asked
    assert asked[1].endswith(" ssh -N -L 8765:127.0.0.1:8765 ada@login3.site.example")
    monkeypatch.setenv("SLURM_SUBMIT_HOST", "login1.site.example")
    assert " -J ada@login1.site.example ada@login3.site.example" in printed(capsys, HERE)[0][1]


def test_programs_get_one_line_of_json(capsys: pytest.CaptureFixture[str]) -> None:
    (line,), _ = printed(capsys, HERE, as_json=True)
    facts = json.loads(line)
    assert (facts["url"], facts["port"], facts["pid"]) == (
        f"http://127.0.0.1:8765/?token={TOKEN}",
        8765,
        os.getpid(),
    )


def test_a_dashboard_on_the_network_comes_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    lines, warning = printed(capsys, Address(host="0.0.0.0", port=8765, is_secure=False, root="/lab/"))
    assert f"open http://login3.site.example:8765/lab/?token={TOKEN}" in lines
    assert "opens the dashboard to the network" in warning and "--certfile" in warning
    _, warning = printed(capsys, Address(host="0.0.0.0", port=8765, is_secure=True, root="/"))
    assert "--certfile" not in warning


def test_a_browser_is_opened_only_where_there_is_a_display(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "no display" in printed(capsys, HERE, opens=True)[1]
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setenv("DISPLAY", ":0")
    printed(capsys, HERE, opens=True)
    wait_until(lambda: opened)
    assert TOKEN not in opened[0]  # every user sees the command line of a browser
    assert opened[0].startswith("http://127.0.0.1:8765/?token=")


def test_a_connection_that_sends_no_request_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "FIRST_REQUEST_S", 0.05)

    async def ask(text: bytes) -> bytes:
        config = uvicorn.Config(PlainTextResponse("hello"), timeout_keep_alive=0)
        config.load()
        made = partial(serve._Connection, config=config, server_state=ServerState(), app_state={})
        server = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(text)
            answer = await reader.read()
            writer.close()
        return answer

    assert asyncio.run(ask(b"GET / HTTP/1.1\r\nHost: ")) == b""
    assert asyncio.run(ask(b"GET / HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")).endswith(b"hello")


def test_without_the_extra_the_command_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("merlin.cli.dashboards.PACKAGES", ("uvicorn", "starlette_that_nobody_has"))
    with pytest.raises(
        MerlinError, match=r"needs starlette_that_nobody_has; .*merlin-ensembles\[dashboard\]"
    ):
        run_dashboard(options(roots=(tmp_path,)))
