"""The door of the dashboard: tokens, cookies, names, and requests of other sites' pages."""

from __future__ import annotations

from collections.abc import Callable
from http.cookies import SimpleCookie

import pytest
from dashboard_client import BEARER, TOKEN
from starlette.testclient import TestClient

from merlin.dashboard.hosts import host_names
from merlin.dashboard.tokens import Ticket, Token

SECRETS = ("/api/studies", "/api/session", "/api/events", "/api/workers", "/metrics", "/static/index.html")
Connect = Callable[..., TestClient]
COOKIE = "merlin_dashboard_8765"


@pytest.mark.parametrize("path", SECRETS)
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST", "DELETE", "TRACE"])
def test_without_a_token_no_program_gets_anything(connect: Connect, path: str, method: str) -> None:
    answer = connect().request(method, path)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert method == "HEAD" or set(answer.json()) == {"error"}


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Bearer {TOKEN}x"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Authorization": "Bearer ü"},
        {"Authorization": "Bearer"},
        {"Cookie": f"{COOKIE}={TOKEN}"},
        {"Cookie": f"{COOKIE}="},
        {"Cookie": f"merlin_dashboard_1={Token(TOKEN).cookie}"},
        {"Cookie": f"{COOKIE}={Token(TOKEN).csrf}"},
        {"Cookie": "=;;=; \x80"},
    ],
)
def test_a_wrong_token_or_cookie_is_refused(connect: Connect, headers: dict[str, str]) -> None:
    raw = {name: value.encode("latin-1") for name, value in headers.items()}
    assert connect().get("/api/session", headers=raw).status_code == 401


def test_the_token_opens_everything_to_a_program(program: TestClient) -> None:
    assert program.get("/api/session").json()["actions"] is False
    assert program.get("/api/studies").json()["studies"] == []


def test_the_address_with_the_token_leaves_a_cookie_and_leads_to_the_clean_address(connect: Connect) -> None:
    client = connect()
    answer = client.get("/study/a%20b", params={"token": TOKEN, "step": "one&two"})
    assert answer.status_code == 303
    assert answer.headers["location"] == "/study/a%20b?step=one%26two"
    cookie = SimpleCookie(answer.headers["set-cookie"])[COOKIE]
    assert cookie["httponly"] and cookie["samesite"] == "strict" and cookie["path"] == "/"
    assert not cookie["secure"] and not cookie["domain"]
    assert TOKEN not in answer.headers["set-cookie"]
    assert client.get("/api/session").status_code == 200


def test_a_ticket_opens_once_and_not_for_long(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    ticket = Ticket()
    text = ticket.issue()
    assert [connect(ticket=ticket).get("/", params={"token": text}).status_code for _ in range(2)] == [
        303,
        401,
    ]
    assert connect(ticket=Ticket()).get("/", params={"token": ""}).status_code == 401
    monkeypatch.setattr("merlin.dashboard.tokens.TICKET_S", -1.0)
    assert connect(ticket=ticket).get("/", params={"token": ticket.issue()}).status_code == 401


def test_a_wrong_token_in_the_address_gets_a_page_and_no_cookie(connect: Connect) -> None:
    answer = connect().get("/", params={"token": "guess"})
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers
    assert "not the dashboard's" in answer.text


def test_the_token_in_an_address_opens_no_api(connect: Connect) -> None:
    assert connect().get("/api/studies", params={"token": TOKEN}).status_code == 401


def test_a_person_without_a_token_gets_a_page_that_says_what_to_open(connect: Connect) -> None:
    answer = connect().get("/study/x")
    assert (answer.status_code, answer.headers["content-type"]) == (401, "text/html; charset=utf-8")
    assert "merlin dashboard" in answer.text and "http-equiv" not in answer.text


def test_a_link_of_another_site_asks_again_by_itself_because_the_cookie_was_kept_back(
    connect: Connect,
) -> None:
    answer = connect().get("/study/x", headers={"Sec-Fetch-Site": "cross-site"})
    assert answer.status_code == 401
    assert '<meta http-equiv="refresh" content="0">' in answer.text
    assert "http-equiv" not in connect().get("/", headers={"Sec-Fetch-Site": "same-origin"}).text


@pytest.mark.parametrize(
    "path",
    ["//evil.example/", "/\\evil.example", "/%0d%0aSet-Cookie:%20a=b", "///evil.example", "/%5Cevil.example"],
)
def test_the_way_to_the_clean_address_never_leaves_the_dashboard(connect: Connect, path: str) -> None:
    answer = connect().get(f"http://127.0.0.1:8765{path}?token={TOKEN}")
    location = answer.headers["location"]
    assert location.startswith("/") and location[1:2] not in ("/", "\\")
    assert "\r" not in location and "\n" not in location
    assert len(answer.headers.get_list("set-cookie")) == 1


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8765", "10.0.0.1", "[::2]", "", "a b"],
)
def test_a_foreign_name_is_refused_even_with_the_token(program: TestClient, host: str) -> None:
    answer = program.get("/api/studies", headers={"Host": host})
    assert answer.status_code == 400
    assert "--allow-host" in answer.json()["error"]
    assert program.get("/healthz", headers={"Host": host}).status_code == 400


@pytest.mark.parametrize("host", ["localhost:9999", "127.0.0.1", "[::1]:8765", "LOCALHOST", "127.9.9.9:1"])
def test_the_names_of_this_machine_do_whatever_port_a_tunnel_has(program: TestClient, host: str) -> None:
    assert program.get("/api/studies", headers={"Host": host}).status_code == 200


def test_a_name_that_was_allowed_will_do(connect: Connect) -> None:
    client = connect(hosts=host_names("127.0.0.1", ["Proxy.site"]))
    assert client.get("/healthz", headers={"Host": "proxy.site"}).json() == {"ok": True}


def test_on_a_network_addresses_will_do_and_foreign_names_will_not(connect: Connect) -> None:
    client = connect(hosts=host_names("0.0.0.0"))
    assert client.get("/healthz", headers={"Host": "10.1.2.3:8765"}).status_code == 200
    assert client.get("/healthz", headers={"Host": "evil.example"}).status_code == 400


def test_whether_it_lives_is_said_to_everybody_and_nothing_else(connect: Connect) -> None:
    answer = connect().get("/healthz")
    assert answer.json() == {"ok": True}
    assert "server" not in answer.headers


@pytest.mark.parametrize(
    "path", ["/", "/healthz", "/api/studies", "/api/nothing", "/static/index.html", "/nowhere"]
)
@pytest.mark.parametrize("headers", [{}, BEARER])
def test_every_answer_carries_the_headers_that_tie_a_browser(
    connect: Connect, path: str, headers: dict[str, str]
) -> None:
    found = connect().get(path, headers=headers).headers
    policy = found["content-security-policy"]
    assert "default-src 'self'" in policy and "frame-ancestors 'none'" in policy and "unsafe" not in policy
    assert found["x-content-type-options"] == "nosniff"
    assert found["referrer-policy"] == "no-referrer"
    assert "access-control-allow-origin" not in found
    assert not path.startswith("/api") or found["cache-control"] == "no-store"


def test_the_token_is_shown_by_no_repr(connect: Connect) -> None:
    assert TOKEN not in repr(Token(TOKEN))


# requests that change something


def act(client: TestClient, **headers: str) -> int:
    """The status of an action on a study that is not there."""
    found = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.post("/api/study/none/actions/cancel", json={}, headers=found).status_code


@pytest.fixture
def acting(connect: Connect) -> TestClient:
    client = connect(allows_actions=True)
    client.get("/", params={"token": TOKEN})
    return client


def test_our_own_pages_may_act(acting: TestClient) -> None:
    csrf = acting.get("/api/session").json()["csrf"]
    assert act(acting, X_Merlin_CSRF=csrf) == 404  # there is no such study
    assert (
        act(acting, X_Merlin_CSRF=csrf, Sec_Fetch_Site="same-origin", Origin="http://127.0.0.1:8765") == 404
    )
    assert act(acting, X_Merlin_CSRF=csrf, Origin="http://127.0.0.1:8765") == 404


def test_a_foreign_page_may_not_act_whatever_it_sends(acting: TestClient) -> None:
    csrf = acting.get("/api/session").json()["csrf"]
    assert act(acting) == 403
    assert act(acting, X_Merlin_CSRF="guess") == 403
    assert act(acting, X_Merlin_CSRF=csrf, Sec_Fetch_Site="cross-site") == 403
    assert act(acting, X_Merlin_CSRF=csrf, Sec_Fetch_Site="same-site") == 403
    assert act(acting, X_Merlin_CSRF=csrf, Origin="http://evil.example") == 403
    assert act(acting, X_Merlin_CSRF=csrf, Origin="http://127.0.0.1:1") == 403
    assert act(acting, X_Merlin_CSRF=csrf, Origin="null") == 403


def test_a_program_with_the_token_may_act_without_the_header(connect: Connect) -> None:
    client = connect(allows_actions=True)
    assert act(client, **BEARER) == 404


def test_a_dashboard_that_only_shows_refuses_every_action(program: TestClient) -> None:
    answer = program.post("/api/study/none/actions/cancel", json={})
    assert answer.status_code == 403
    assert "--allow-actions" in answer.json()["error"]


# behind a proxy


def test_below_a_sub_path_pages_cookies_and_addresses_have_it(connect: Connect) -> None:
    client = connect(root_path="/merlin/x")
    answer = client.get("/merlin/x/study/a", params={"token": TOKEN})  # a proxy that leaves the path as it is
    assert answer.headers["location"] == "/merlin/x/study/a"
    assert SimpleCookie(answer.headers["set-cookie"])[COOKIE]["path"] == "/merlin/x/"
    assert client.get("/merlin/x/api/session", headers=BEARER).json()["root"] == "/merlin/x/"
    assert '<base href="/merlin/x/">' in client.get("/study/a", headers=BEARER).text  # one that cuts it off
    assert '<base href="/merlin/x/">' in client.get("/merlin/x", headers=BEARER).text


def test_a_prefix_is_believed_only_of_a_proxy_that_is_trusted(connect: Connect) -> None:
    headers = {**BEARER, "X-Forwarded-Prefix": "/lab/", "X-Forwarded-Proto": "https"}
    assert connect().get("/api/session", headers=headers).json()["root"] == "/"
    client = connect(trusts_proxy=True)
    assert client.get("/api/session", headers=headers).json()["root"] == "/lab/"
    answer = client.get("/", params={"token": TOKEN}, headers=headers)
    assert SimpleCookie(answer.headers["set-cookie"])[COOKIE]["secure"]
    for prefix in ("//evil.example", '/a"><script>', "http://evil.example", "/a;b=c"):
        assert (
            client.get("/api/session", headers={**headers, "X-Forwarded-Prefix": prefix}).json()["root"]
            == "/"
        )


def test_the_name_that_a_trusted_proxy_passes_on_must_be_allowed_too(connect: Connect) -> None:
    names = host_names("127.0.0.1", ["proxy.site"])
    client = connect(trusts_proxy=True, hosts=names, allows_actions=True)
    assert client.get("/healthz", headers={"X-Forwarded-Host": "proxy.site"}).status_code == 200
    assert client.get("/healthz", headers={"X-Forwarded-Host": "evil.example"}).status_code == 400
    csrf = Token(TOKEN).csrf
    client.cookies.set(COOKIE, Token(TOKEN).cookie)
    headers = {"X-Forwarded-Host": "proxy.site", "Origin": "https://proxy.site", "X-Merlin-CSRF": csrf}
    assert act(client, **headers) == 404
    assert act(connect(hosts=names, allows_actions=True), **headers) == 401
