"""Addresses of the dashboard: unknown ones, hostile ones, and the files that a browser loads."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from merlin.dashboard.assets import Assets


def test_an_unknown_address_is_a_404_as_json_for_programs(program: TestClient) -> None:
    for path in ("/api/", "/api/nothing", "/api/study/none", "/api/study/none/tasks", "/static/none.js"):
        answer = program.get(path)
        assert answer.status_code == 404, path
        assert set(answer.json()) == {"error"}


def test_every_page_is_the_shell_with_the_base_of_all_links(browser: TestClient) -> None:
    for path in ("/", "/workers", "/study/a", "/study/a/task/b%2Fc/7", "/study/a/failures"):
        answer = browser.get(path)
        assert answer.status_code == 200 and '<base href="/">' in answer.text
        assert "{{" not in answer.text
    assert browser.get("/no/such/page").status_code == 404


def test_a_method_that_an_address_does_not_have_is_refused(program: TestClient) -> None:
    assert program.post("/api/studies").status_code == 405
    assert program.delete("/").status_code == 405
    assert program.options("/api/studies").status_code == 405
    assert program.get("/api/study/x/actions/cancel").status_code == 404


def test_head_has_the_headers_of_get_and_no_body(program: TestClient) -> None:
    for path in ("/", "/api/studies", "/api/session", "/healthz"):
        answer = program.head(path)
        assert (answer.status_code, answer.content) == (200, b"")


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e/app.py",
        "/static/..%2fapp.py",
        "/static//etc/passwd",
        "/static/%2Fetc%2Fpasswd",
        "/static/base/../../app.py",
        "/static/index.html%00.js",
        "/api/study/..%2F..",
        "/api/study/%2e%2e/task",
        "/api/study/%2Fetc",
        "/api/study/a%00b",
        "/api/study/\udcff/heat".encode("utf-8", "surrogateescape").decode("latin-1"),
    ],
)
def test_no_address_leads_out_of_what_is_shown(program: TestClient, path: str) -> None:
    answer = program.get(f"http://127.0.0.1:8765{path}")
    assert answer.status_code in (400, 404)
    assert b"root:" not in answer.content and b"import" not in answer.content


def test_a_huge_or_senseless_query_is_refused_and_breaks_nothing(program: TestClient) -> None:
    for query in (
        f"limit={'9' * 5000}",
        "limit=-1",
        "limit=1e3",
        "limit=٣",
        "after=0x10",
        "step=%00",
        "limit=500",
    ):
        answer = program.get(f"/api/study/none/tasks?{query}")
        assert answer.status_code in (400, 404), query
        assert set(answer.json()) == {"error"}
    assert program.get("/api/studies?" + "a=b&" * 10_000).status_code == 200


def test_assets_are_kept_for_ever_at_an_address_that_names_their_content(tmp_path: Path) -> None:
    from starlette.datastructures import Headers

    (tmp_path / "parts").mkdir()
    (tmp_path / "index.html").write_text(
        '<base href="{{base}}"><script src="static/{{version}}/app.js"></script>'
    )
    (tmp_path / "parts/table.js").write_text("export const a = 1;" * 100)
    assets = Assets(tmp_path)
    shell = assets.shell('/a"b/')
    version = assets.version
    assert bytes(shell.body).decode() == (
        f'<base href="/a&quot;b/"><script src="static/{version}/app.js"></script>'
    )
    found = assets.file(f"{version}/parts/table.js", Headers({"Accept-Encoding": "gzip"}))
    assert "immutable" in found.headers["cache-control"]
    assert found.headers["content-encoding"] == "gzip" and len(found.body) < 100
    assert found.headers["content-type"].startswith("text/javascript")
    old = assets.file("0123456789abcdef/parts/table.js", Headers({}))
    assert old.headers["cache-control"] == "no-cache" and len(old.body) == 1900
    tag = Headers({"If-None-Match": str(old.headers["etag"])})
    assert assets.file("parts/table.js", tag).status_code == 304


def test_another_file_makes_another_version(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("a")
    first, second = Assets(tmp_path), Assets(tmp_path)
    first.shell("/")
    (tmp_path / "index.html").write_text("b")
    second.shell("/")
    assert first.version != second.version
