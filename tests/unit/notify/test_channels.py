"""Messages on their way: a command, a web server on loopback, a fake sendmail at the PATH, and apprise."""

from __future__ import annotations

import json
import os
import ssl
import threading
from collections.abc import Iterator
from email import message_from_string, policy
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from servers import throwaway_ca

from merlin.errors import ConfigError, NotifyError
from merlin.notify.channels import CHANNELS, channel_of
from merlin.notify.deliver import deliver
from merlin.notify.notice import Notice, message_of
from merlin.plan.notify_rule import NotifyRule

LIMIT_S = 60.0
ENVIRONMENT = dict(os.environ)


def notice(**more: Any) -> Notice:
    usual: dict[str, Any] = {
        "event": "failed", "study": "Zündung", "study_id": "abc", "workspace": "", "reason": "", "time": 1.5,
        "host": "here", "planned": 10, "ok": 7, "failed": 2, "skipped": 1, "seconds": 61.0,
    }  # fmt: skip
    return Notice(**{**usual, **more})


def rule(channel: str, *to: str) -> NotifyRule:
    return NotifyRule(when=("failed",), channel=channel, to=to)


def send(channel: str, *to: str, environment: dict[str, str] = ENVIRONMENT, **more: Any) -> None:
    deliver(rule(channel, *to), notice(**more), environment, num_tries=1, limit_s=LIMIT_S)


class Hook(HTTPServer):
    """Keeps what is posted to it, and answers as it is told."""

    def __init__(self) -> None:
        self.posted: list[tuple[str, dict[str, str], bytes]] = []
        self.answers: list[int] = []
        super().__init__(("127.0.0.1", 0), _Answer)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Answer(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.posted.append((self.path, dict(self.headers), body))
        code = self.server.answers.pop(0) if self.server.answers else 200
        self.send_response(code)
        if code == 302:
            self.send_header("Location", f"{self.server.url}/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hook() -> Iterator[Hook]:
    server = Hook()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


# ------------------------------------------------------------------------- words


def test_a_message_says_what_has_happened_and_what_to_type() -> None:
    message = message_of(notice(workspace="/w/my study"), ["sim: 2 tasks failed: exit code 3"])
    assert message.title == "study Zündung has ended: 3 of 10 tasks did not end ok"
    assert message.text.splitlines() == [
        message.title,
        "tasks: planned 10 = ok 7 + failed 2 + skipped 1 + missing 0   (1 min 01 s)",
        "sim: 2 tasks failed: exit code 3",
        "workspace: /w/my study",
        "see: merlin failures '/w/my study'",
        "see: merlin status '/w/my study'",
        "noticed on here",
    ]


@pytest.mark.parametrize(
    ("event", "more", "title"),
    [
        ("finished", {"ok": 10}, "study x has finished: all 10 tasks ended ok"),
        (
            "failed",
            {"missing": 3, "reason": "ExecutionError: gone"},
            "study x has failed: ExecutionError: gone",
        ),
        ("stopped", {"reason": "canary:\n the first 10"}, "study x has stopped: canary: the first 10"),
        ("failures", {}, "study x: 2 of 10 tasks have failed"),
        ("stall", {"reason": "no task has ended"}, "study x stalls: no task has ended"),
        ("refused", {"reason": "over the limit"}, "study x gets no batch jobs: over the limit"),
        ("test", {}, "study x: a test of its notifications"),
    ],
)
def test_every_event_has_a_title_of_one_line(event: str, more: dict[str, Any], title: str) -> None:
    assert message_of(notice(event=event, study="x", **more)).title == title


def test_the_most_frequent_failures_are_left_out_where_the_workspace_cannot_be_read(tmp_path: Path) -> None:
    send("cmd", f"cat > {tmp_path}/facts", workspace=str(tmp_path / "gone"))
    assert "did not end ok" in json.loads((tmp_path / "facts").read_text())["text"]


# ----------------------------------------------------------------------- command


def test_a_command_gets_the_facts_in_its_environment_and_on_its_input(tmp_path: Path) -> None:
    send(
        "cmd", f'cat > {tmp_path}/facts; echo "$MERLIN_EVENT $MERLIN_STUDY $MERLIN_FAILED" > {tmp_path}/seen'
    )
    facts = json.loads((tmp_path / "facts").read_text())
    assert (tmp_path / "seen").read_text() == "failed Zündung 2\n"
    assert (facts["format"], facts["version"]) == ("merlin-notice", 1)
    assert (facts["event"], facts["ok"], facts["host"]) == ("failed", 7, "here")


def test_no_text_of_the_study_is_read_by_the_shell_of_a_command(tmp_path: Path) -> None:
    evil = f"$(touch {tmp_path}/gotcha); `touch {tmp_path}/gotcha`\n'\"\0"
    send("cmd", f'echo "$MERLIN_REASON" > {tmp_path}/reason', reason=evil, study=evil)
    assert not (tmp_path / "gotcha").exists()
    assert "$(touch" in (tmp_path / "reason").read_text()


def test_a_command_runs_in_the_workspace(tmp_path: Path) -> None:
    send("cmd", "pwd > where", workspace=str(tmp_path))
    assert (tmp_path / "where").read_text().strip() == str(tmp_path)


def test_a_command_that_fails_says_why() -> None:
    with pytest.raises(NotifyError, match="ended with 3: no such room"):
        send("cmd", "echo no such room >&2; exit 3")


def test_a_command_that_takes_too_long_is_killed() -> None:
    with pytest.raises(NotifyError, match=r"took longer than 0\.1 s"):
        deliver(rule("cmd", "sleep 600"), notice(), ENVIRONMENT, num_tries=1, limit_s=0.1)


# ----------------------------------------------------------------------- webhook


def test_a_webhook_gets_the_facts_as_json(hook: Hook) -> None:
    send("webhook", f"{hook.url}/hooks/$TOKEN", environment={"TOKEN": "s3cret"})
    ((path, headers, body),) = hook.posted
    assert path == "/hooks/s3cret"
    assert headers["Content-Type"].startswith("application/json")
    assert json.loads(body)["text"].startswith("study Zündung has ended")


def test_a_webhook_is_tried_again_once(hook: Hook) -> None:
    hook.answers, pauses = [503, 200], []
    deliver(rule("webhook", hook.url), notice(), {}, pause=pauses.append)
    assert (len(hook.posted), pauses) == (2, [2.0])
    hook.answers = [500, 500, 200]
    with pytest.raises(NotifyError, match=r"127\.0\.0\.1 answered with HTTP 500"):
        deliver(rule("webhook", hook.url), notice(), {}, pause=pauses.append)
    assert len(hook.posted) == 4


def test_a_webhook_is_not_redirected(hook: Hook) -> None:
    hook.answers = [302]
    with pytest.raises(NotifyError, match="HTTP 302; redirects are not followed"):
        send("webhook", hook.url)
    assert [path for path, _, _ in hook.posted] == ["/"]


@pytest.mark.parametrize("scheme", ["file", "ftp", "data", "unix"])
def test_a_webhook_that_a_variable_makes_something_else_is_refused(scheme: str) -> None:
    with pytest.raises(NotifyError, match="does not begin with https"):
        send("webhook", "$URL", environment={"URL": f"{scheme}://localhost/etc/passwd"})


def test_the_certificate_of_a_webhook_is_verified(
    tmp_path: Path, hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = throwaway_ca(tmp_path / "ca")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.cert, authority.key)
    hook.socket = context.wrap_socket(hook.socket, server_side=True)
    with pytest.raises(NotifyError, match="CERTIFICATE_VERIFY_FAILED"):
        send("webhook", f"https://127.0.0.1:{hook.server_port}/x")
    assert hook.posted == []
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.ca))
    send("webhook", f"https://127.0.0.1:{hook.server_port}/x")
    assert len(hook.posted) == 1


def test_an_error_never_holds_what_a_variable_stands_for() -> None:
    environment = {**ENVIRONMENT, "TOKEN": "s3cret"}
    with pytest.raises(NotifyError) as webhook:
        send("webhook", "http://127.0.0.1:1/$TOKEN", environment=environment)
    with pytest.raises(NotifyError) as apprise:
        send("apprise", "json://user:${TOKEN}@127.0.0.1:1", environment=environment)
    with pytest.raises(NotifyError) as scheme:
        send("webhook", "$TOKEN", environment=environment)
    with pytest.raises(NotifyError) as bare:
        send("apprise", "$TOKEN", environment=environment)
    with pytest.raises(
        NotifyError
    ) as cut:  # 300 characters of what it printed are shown, from within the secret on
        send("command", "printf '%s%0298d' $TOKEN 0 >&2; exit 1", environment=environment)
    assert "no ://" in str(bare.value) and "et0" not in str(cut.value)
    assert "s3cret" not in f"{webhook.value}{apprise.value}{scheme.value}{bare.value}"


def test_a_variable_that_is_not_set_is_named_and_not_tried_again() -> None:
    with pytest.raises(ConfigError, match="environment variable SLACK is not set on"):
        deliver(rule("webhook", "${SLACK}"), notice(), {}, pause=lambda _: pytest.fail("it was tried again"))


# -------------------------------------------------------------------------- mail


def test_mail_goes_through_the_sendmail_of_the_path(tmp_path: Path) -> None:
    program = tmp_path / "sendmail"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/options\ncat > {tmp_path}/letter\n')
    program.chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    send("mail", "me@site", "you@site", environment=path)
    letter = message_from_string((tmp_path / "letter").read_text(), policy=policy.default)
    assert (tmp_path / "options").read_text() == "-t -i\n"
    assert letter["To"] == "me@site, you@site"
    assert letter["Subject"] == "[merlin] study Zündung has ended: 3 of 10 tasks did not end ok"
    assert letter["Auto-Submitted"] == "auto-generated"
    assert "planned 10 = ok 7" in letter.get_content()


def test_a_name_cannot_add_headers_to_mail(tmp_path: Path) -> None:
    program = tmp_path / "sendmail"
    program.write_text(f"#!/bin/sh\ncat > {tmp_path}/letter\n")
    program.chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "WHO": "me@site\nBcc: all@site"}
    send("mail", "me@site", environment=path, study="x\r\nBcc: all@site")
    letter = message_from_string((tmp_path / "letter").read_text(), policy=policy.default)
    assert letter["Bcc"] is None
    with pytest.raises(NotifyError, match="cannot be addressed"):
        send("mail", "$WHO", environment=path)


def test_a_sendmail_that_refuses_says_why(tmp_path: Path) -> None:
    program = tmp_path / "sendmail"
    program.write_text("#!/bin/sh\necho mailbox full >&2\nexit 75\n")
    program.chmod(0o755)
    with pytest.raises(NotifyError, match="ended with 75: mailbox full"):
        send("mail", "me@site", environment={"PATH": f"{tmp_path}:/bin"})


# ----------------------------------------------------------------------- apprise


def test_apprise_delivers_to_its_services(hook: Hook) -> None:
    pytest.importorskip("apprise")
    send(
        "apprise", f"json://127.0.0.1:{hook.server_port}/$TOKEN", environment={**ENVIRONMENT, "TOKEN": "room"}
    )
    ((path, _, body),) = hook.posted
    assert path.startswith("/room")
    assert json.loads(body)["title"] == "study Zündung has ended: 3 of 10 tasks did not end ok"


def test_an_address_that_apprise_does_not_know_is_an_error() -> None:
    pytest.importorskip("apprise")
    with pytest.raises(NotifyError, match="begins with nosuchthing://"):
        send("apprise", "nosuchthing://x/y")


def test_every_way_of_the_spec_is_there() -> None:
    from merlin.spec.notify_words import CHANNELS as WORDS

    assert set(CHANNELS) == set(WORDS)
    assert all(channel_of(name).send for name in CHANNELS)
    with pytest.raises(NotifyError, match="no way to notify called 'pigeon'"):
        channel_of("pigeon")
