"""The list of studies, and the looks at one of them."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Coroutine
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from ended_study import FAILED, OK, add_outcomes, end_study, let_pass, make_study
from starlette.testclient import TestClient
from waiting import wait_until

from merlin.dashboard.followed import FollowedStudy
from merlin.dashboard.hub import Hub
from merlin.dashboard.places import Place
from merlin.errors import WorkspaceError
from merlin.views.study_page import StudyPage, StudyView


def run(work: Coroutine[Any, Any, Any]) -> Any:
    async def limited() -> Any:
        async with asyncio.timeout(60):
            return await work

    return asyncio.run(limited())


async def listed(hub: Hub) -> dict[str, str]:
    """The studies and their states, once all were looked at."""
    while True:
        studies = (await hub.listing.studies()).studies
        if all(study.state != "reading" for study in studies):
            return {study.id: study.state for study in studies}
        await asyncio.sleep(0.01)


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """A finished study, a failed one, and one that was never run."""
    end_study(make_study(tmp_path / "one_20260101-000000"), [OK] * 20)
    end_study(make_study(tmp_path / "two_20260103-000000"), [OK] * 19 + [FAILED])
    make_study(tmp_path / "three_20260102-000000")
    return tmp_path


# the list


def test_the_studies_of_a_directory_are_listed_the_newest_first(three: Path) -> None:
    (three / "no_study").mkdir()
    (three / "unprepared_20260101-000000").mkdir()
    hub = Hub([three])
    states = run(listed(hub))
    assert list(states.items()) == [
        ("two_20260103-000000", "failed"),
        ("three_20260102-000000", "new"),
        ("one_20260101-000000", "finished"),
    ]
    first = hub.listing.seen().studies[0]
    assert (first.name, first.when, first.planned, first.ok, first.failed) == (
        "study", "2026-01-03 00:00:00", 20, 19, 1
    )  # fmt: skip
    assert first.size_bytes and first.size_bytes > 100


def test_a_study_whose_workspace_was_renamed_is_listed_by_the_time_of_its_plan(three: Path) -> None:
    renamed = (three / "one_20260101-000000").rename(three / "the good one")
    when = datetime(2026, 1, 2, 12)
    os.utime(renamed / "merlin_info/plan.json", (when.timestamp(),) * 2)
    hub = Hub([three])
    assert list(run(listed(hub))) == ["two_20260103-000000", "the good one", "three_20260102-000000"]
    assert hub.listing.seen().studies[1].when == "2026-01-02 12:00:00"


def test_a_study_that_cannot_be_read_is_a_line_with_its_problem(three: Path) -> None:
    (three / "one_20260101-000000/merlin_info/plan.json").write_text("{")
    hub = Hub([three])
    assert run(listed(hub))["one_20260101-000000"] == "unreadable"
    (line,) = [study for study in hub.listing.seen().studies if study.problem]
    assert "plan.json" in line.problem


def test_studies_of_the_same_name_in_two_places_have_addresses_of_their_own(tmp_path: Path) -> None:
    name = "study_20260101-000000"
    for folder in ("b", "a", "c"):
        make_study(tmp_path / folder / name)
    hub = Hub([tmp_path / "b", tmp_path / "c"], named=[tmp_path / "a" / name])
    assert set(run(listed(hub))) == {name, f"{name}~2", f"{name}~3"}

    async def places() -> list[Path]:
        return [(await hub.study(id)).path for id in (name, f"{name}~2", f"{name}~3")]

    assert run(places()) == [tmp_path / folder / name for folder in "abc"]


def test_new_studies_appear_and_removed_ones_go(three: Path) -> None:
    place = Place(three)
    assert len(place.find()) == 3
    make_study(three / "four_20260104-000000")
    shutil.rmtree(three / "one_20260101-000000")
    assert {path.name for path in place.find()} == {
        "two_20260103-000000",
        "three_20260102-000000",
        "four_20260104-000000",
    }


def test_a_directory_that_is_not_there_any_more_is_a_problem_and_not_an_error(tmp_path: Path) -> None:
    hub = Hub([tmp_path / "gone"])
    assert run(listed(hub)) == {}
    assert "No such file" in hub.listing.seen().problems[0]


def test_a_study_that_has_ended_is_not_read_again_until_its_ledger_gains_something(three: Path) -> None:
    place = Place(three)
    ids = {path: path.name for path in place.find()}
    ended = three / "one_20260101-000000"

    def line() -> object:
        place._rests_until = 0.0
        place.read(ids, lambda path: None)
        return next(line for line in place.lines(ids) if line.workspace == str(ended))

    before = line()
    assert line() is before
    add_outcomes(_open(ended), 3, [FAILED], worker="w9", attempt=2)
    after = line()
    assert after is not before and after.failed == 1  # type: ignore[attr-defined]


def _open(path: Path) -> Any:
    from merlin.workspace.directory import open_workspace

    return open_workspace(path)


def test_what_was_noted_of_ended_studies_is_read_in_place_of_their_ledgers(
    three: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = run(listed(Hub([three])))
    monkeypatch.setattr(StudyView, "look", lambda self: pytest.fail(f"{self.path} was read again"))
    noted = {"one_20260101-000000", "two_20260103-000000"}
    place = Place(three)
    ids = {path: path.name for path in place.find() if path.name in noted}
    place.read(ids, lambda path: None)
    assert {line.id: line.state for line in place.lines(ids)} == {id: states[id] for id in noted}


# one study


class CountedView(StudyView):
    """Counts its looks."""

    num_looks = 0

    def look(self, now: float | None = None) -> StudyPage:
        type(self).num_looks += 1
        return super().look(now)


def test_a_hundred_who_ask_at_once_cost_one_look(three: Path) -> None:
    CountedView.num_looks = 0

    async def ask() -> list[bytes]:
        followed = FollowedStudy(three / "one_20260101-000000", "one", CountedView)
        return await asyncio.gather(*(followed.study() for _ in range(100)))

    answers = run(ask())
    assert CountedView.num_looks == 1
    assert msgspec.json.decode(answers[0])["totals"]["ok"] == 20


def test_what_happens_reaches_all_who_listen(three: Path) -> None:
    study = make_study(three / "live_20260104-000000")
    add_outcomes(study, 0, [OK])

    async def check() -> None:
        followed = FollowedStudy(study.path, "live")
        streams = [followed.events() for _ in range(3)]
        first = [await anext(stream) for stream in streams]
        assert all(b'"ok":1,' in frame for frame in first)
        add_outcomes(study, 1, [OK, FAILED], worker="w1")
        for stream in streams:
            while b'"ok":2,' not in (frame := await anext(stream)):
                pass
            assert frame.startswith(b"event: study\n")

    run(check())


def test_an_ended_study_is_sent_once_and_its_throughput_too(three: Path) -> None:
    async def check() -> None:
        followed = FollowedStudy(three / "one_20260101-000000", "one", CountedView)
        stream = followed.events()
        got = b""
        while got.count(b"event:") < 2:
            got += await anext(stream)
        assert got.count(b"event: study") == got.count(b"event: throughput") == 1
        before = CountedView.num_looks
        waiting = asyncio.create_task(anext(stream))
        while CountedView.num_looks < before + 2:
            await asyncio.sleep(0.01)
        assert not waiting.done()

    run(check())


def test_a_workspace_that_is_removed_ends_its_streams_and_is_unknown_from_then_on(three: Path) -> None:
    path = three / "one_20260101-000000"

    async def check() -> None:
        hub = Hub([three])
        followed = await hub.study(path.name)
        stream = followed.events()
        await anext(stream)
        shutil.rmtree(path)
        rest = [frame async for frame in stream]
        assert rest[-1].startswith(b"event: gone\n")
        with pytest.raises(WorkspaceError, match="no study"):
            await hub.study(path.name)
        with pytest.raises(WorkspaceError, match="not there any more"):
            await followed.study()

    run(check())


def test_nobody_looks_at_a_study_when_all_have_left(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("merlin.dashboard.followed.ASKED_S", 0.0)
    monkeypatch.setattr("merlin.dashboard.followed.PERIOD_S", 0.01)

    async def check() -> None:
        followed = FollowedStudy(three / "one_20260101-000000", "one", CountedView)
        stream = followed.events()
        await anext(stream)
        assert not followed.is_resting
        await stream.aclose()
        while not followed.is_resting:
            await asyncio.sleep(0.01)
        looks = CountedView.num_looks
        for _ in range(20):
            await asyncio.sleep(0.01)
        assert CountedView.num_looks == looks

    run(check())


class StuckView(StudyView):
    """A study on a file system that hangs."""

    released = threading.Event()

    def look(self, now: float | None = None) -> StudyPage:
        self.released.wait()
        return super().look(now)


def test_a_study_that_hangs_holds_up_no_other(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("merlin.dashboard.followed.LIMIT_S", 0.1)

    def follow(path: Path, id: str) -> FollowedStudy:
        return FollowedStudy(path, id, StuckView if path.name.startswith("one") else StudyView)

    async def check() -> None:
        from merlin.dashboard.lanes import SlowError

        hub = Hub([three], follow=follow)
        stuck, other = await hub.study("one_20260101-000000"), await hub.study("two_20260103-000000")
        with pytest.raises(SlowError):
            await stuck.study()
        assert msgspec.json.decode(await other.study())["totals"]["failed"] == 1
        assert len(await listed(hub)) == 3
        StuckView.released.set()
        while True:
            try:
                await stuck.study()
                return
            except SlowError:
                pass

    run(check())


# what the addresses of a study answer


@pytest.fixture
def two(three: Path, program: TestClient) -> str:
    return "/api/study/two_20260103-000000"


def test_every_address_of_a_study_answers_with_its_read_model(two: str, program: TestClient) -> None:
    def get(address: str) -> Any:
        answer = program.get(f"{two}{address}")
        assert answer.status_code == 200, answer.text
        return answer.json()

    assert get("")["state"] == "failed"
    assert get("/throughput")["steps"]["sim"]["failed"][-1] == 1
    assert [cell[2:4] for cell in get("/heat?step=sim")["cells"]][-1] == [0, 1]
    page = get("/tasks?step=sim&outcome=failed&limit=5")
    assert page["total"] == 1 and page["rows"][0]["task"] == 19
    task = get("/task?instance=sim&task=19")
    assert (task["outcome"], task["tail"], task["inputs"]) == ("failed", "no luck with 19\n", {"X": 19.0})
    (group,) = get("/failures")["groups"]
    assert group["count"] == 1
    assert get("/explain") == {"obstacles": []}


def test_the_report_of_a_study_is_a_document_that_can_do_nothing_here(two: str, program: TestClient) -> None:
    answer = program.get(f"{two}/report")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"].startswith("sandbox; default-src 'none'")
    assert "exit code 3" in answer.text and "<script" not in answer.text


def test_groups_of_failures_are_new_as_soon_as_a_task_fails_again_in_another_way(
    two: str, three: Path, program: TestClient
) -> None:
    def groups() -> list[tuple[str, int]]:
        found = program.get(f"{two}/failures").json()["groups"]
        return [(group["log_tail"], group["count"]) for group in found]

    assert groups() == groups() == [("no luck with 19", 1)]
    add_outcomes(_open(three / "two_20260103-000000"), 19, [FAILED], worker="w9", attempt=2, tail="no disk")
    wait_until(lambda: groups() == [("no disk", 1)], groups)
    add_outcomes(_open(three / "two_20260103-000000"), 19, [OK], worker="w10", attempt=3)
    wait_until(lambda: groups() == [], groups)


@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("/heat", 400),
        ("/heat?step=none", 404),
        ("/tasks?outcome=perfect", 400),
        ("/task?instance=sim&task=20", 404),
        ("/task?instance=../sim&task=1", 404),
        ("/task?instance=sim", 400),
        ("/file?instance=sim&task=1&name=../../merlin_info/plan.json", 404),
        ("/raw?instance=sim&task=1&name=/etc/passwd", 404),
        ("/raw?instance=sim&task=1&name=", 404),
        ("/data/none", 404),
        ("/data/none/image?field=x&row=0", 404),
        ("/training/none", 404),
    ],
)
def test_a_wrong_question_gets_the_status_that_fits(
    two: str, program: TestClient, address: str, status: int
) -> None:
    answer = program.get(f"{two}{address}")
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error"}


def test_files_of_a_task_are_sent_so_that_a_browser_runs_none_of_them(
    two: str, three: Path, program: TestClient
) -> None:
    folder = three / "two_20260103-000000/sim/00/03"
    if not folder.is_dir():
        folder = _open(three / "two_20260103-000000").task_dir(
            _open(three / "two_20260103-000000").instance("sim"), 3
        )
        folder.mkdir(parents=True)
    (folder / "page.html").write_text("<script>alert(1)</script>")
    (folder / "x.svg").write_text("<svg onload='alert(1)'/>")
    (folder / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(600_000))
    (folder / 'odd "name\n.bin').write_bytes(bytes(10))
    (folder / "link").symlink_to("/etc/passwd")

    def get(name: str) -> Any:
        return program.get(f"{two}/raw", params={"instance": "sim", "task": 3, "name": name})

    for name in ("page.html", "x.svg"):
        answer = get(name)
        assert answer.status_code == 200
        assert answer.headers["content-type"] in ("text/plain; charset=utf-8", "application/octet-stream")
        assert answer.headers["content-security-policy"] == "sandbox; default-src 'none'"
        assert answer.headers["x-content-type-options"] == "nosniff"
    (folder / "long.log").write_text("first\nlast\n")
    end = program.get(f"{two}/file?instance=sim&task=3&name=long.log&offset=-5").json()
    assert (end["text"], end["offset"], end["next_offset"]) == ("last\n", 6, None)
    picture = get("picture.png")
    assert (picture.headers["content-type"], len(picture.content)) == ("image/png", 600_008)
    odd = get('odd "name\n.bin')
    assert odd.headers["content-disposition"] == "attachment; filename*=UTF-8''odd%20%22name%0A.bin"
    assert get("link").status_code == 404
    assert program.head(f"{two}/raw?instance=sim&task=3&name=picture.png").content == b""


def test_names_that_are_no_utf8_do_not_break_an_answer(two: str, three: Path, program: TestClient) -> None:
    study = _open(three / "two_20260103-000000")
    folder = study.task_dir(study.instance("sim"), 4)
    folder.mkdir(parents=True)
    Path(f"{folder}/caf\udce9.txt").write_text("x")
    answer = program.get(f"{two}/task?instance=sim&task=4")
    assert answer.status_code == 200
    assert [file["name"] for file in answer.json()["files"]] == ["caf?.txt"]


@pytest.mark.parametrize("plan", ["{}", "[" * 100_000, ""])
def test_a_damaged_study_has_a_page_that_says_so(three: Path, program: TestClient, plan: str) -> None:
    (three / "one_20260101-000000/merlin_info/plan.json").write_text(plan)
    below = "/api/study/one_20260101-000000"
    answer = program.get(below)
    assert (answer.status_code, answer.json()["state"]) == (200, "unreadable")
    for address in ("/heat?step=sim", "/tasks", "/throughput", "/failures", "/task?instance=sim&task=1"):
        assert program.get(f"{below}{address}").status_code in (404, 422), address


def test_a_ledger_that_somebody_cuts_while_it_is_looked_at_breaks_no_answer(
    three: Path, program: TestClient, two: str
) -> None:
    assert program.get(f"{two}/tasks").json()["total"] == 20
    for path in (three / "two_20260103-000000/merlin_info/ledger").iterdir():
        os.truncate(path, path.stat().st_size // 2)
    for address in ("/tasks", "/task?instance=sim&task=19", "/failures", "/throughput"):
        assert program.get(f"{two}{address}").status_code in (200, 422), address
    assert program.get(f"{two}/tasks").status_code == 200


def test_a_study_that_nobody_touched_is_left_as_it_was(three: Path, program: TestClient, two: str) -> None:
    study = _open(three / "two_20260103-000000")
    let_pass(study)
    before = sorted((path, path.stat().st_mtime_ns) for path in study.path.rglob("*"))
    for address in ("", "/heat?step=sim", "/tasks", "/failures", "/task?instance=sim&task=1", "/throughput"):
        program.get(f"{two}{address}")
    assert sorted((path, path.stat().st_mtime_ns) for path in study.path.rglob("*")) == before


class StuckPlace(Place):
    """A directory on a file system that hangs."""

    released = threading.Event()

    def find(self) -> list[Path]:
        if self.root is not None and self.root.name == "stuck":
            self.released.wait()
        return super().find()


def test_a_directory_that_hangs_holds_up_no_other(three: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("merlin.dashboard.listing.Place", StuckPlace)
    monkeypatch.setattr("merlin.dashboard.listing.PATIENCE_S", 0.05)
    monkeypatch.setattr("merlin.dashboard.listing.SURE_S", 0.05)
    monkeypatch.setattr("merlin.dashboard.listing.PERIOD_S", 0.05)
    make_study(three / "stuck/late_20260105-000000")

    async def check() -> None:
        hub = Hub([three / "stuck", three])
        while len(await listed(hub)) < 3:
            await asyncio.sleep(0.01)
        assert (
            msgspec.json.decode(await (await hub.study("one_20260101-000000")).study())["state"] == "finished"
        )
        with pytest.raises(WorkspaceError):
            await hub.study("late_20260105-000000")
        StuckPlace.released.set()
        while "late_20260105-000000" not in await listed(hub):
            await asyncio.sleep(0.01)

    run(check())
