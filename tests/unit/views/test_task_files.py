from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest
from growing_study import make_study

from merlin.errors import WorkspaceError
from merlin.views.study_page import StudyView
from merlin.views.task_files import MAX_PART_BYTES, kind_of, open_file, read_file
from merlin.views.task_page import task_page


@pytest.fixture
def task_dir(tmp_path: Path) -> Path:
    """That of the task 5 of sim/P.1."""
    study = make_study(tmp_path / "study_20260101-000000")
    directory = study.task_dir(study.instance("sim/P.1"), 5)
    directory.mkdir(parents=True)
    (tmp_path / "secret").write_text("secret")
    return directory


@pytest.fixture
def view(task_dir: Path, tmp_path: Path) -> StudyView:
    return StudyView(tmp_path / "study_20260101-000000")


def test_a_long_log_is_read_in_parts_that_cut_no_character(task_dir: Path, view: StudyView) -> None:
    text = "Druck ≥ 3 µbar 😀\n" * 5000
    (task_dir / "sim.err").write_text(text, encoding="utf-8")
    read, offset = "", 0
    while offset is not None:
        part = read_file(view, "sim/P.1", 5, "sim.err", offset, limit=1001)
        assert part.is_text
        read += part.text or ""
        assert part.next_offset is None or part.next_offset > offset
        offset = part.next_offset
    assert read == text


def test_the_end_of_a_file_is_read_by_a_negative_offset(task_dir: Path, view: StudyView) -> None:
    (task_dir / "sim.out").write_text("0123456789")
    part = read_file(view, "sim/P.1", 5, "sim.out", -4)
    assert (part.text, part.offset, part.size, part.next_offset) == ("6789", 6, 10, None)
    assert read_file(view, "sim/P.1", 5, "sim.out", -400).text == "0123456789"
    assert read_file(view, "sim/P.1", 5, "sim.out", 10**30).text == ""


def test_what_is_no_text_comes_as_base64(task_dir: Path, view: StudyView) -> None:
    content = os.urandom(3000) + b"\0"
    (task_dir / "data.bin").write_bytes(content)
    part = read_file(view, "sim/P.1", 5, "data.bin")
    assert (part.is_text, part.text) == (False, None)
    assert base64.b64decode(part.base64 or "") == content


def test_a_log_in_an_old_encoding_is_still_text(task_dir: Path, view: StudyView) -> None:
    (task_dir / "sim.out").write_bytes(
        "Übergröße: the solver gave up after 300 steps\n".encode("latin-1") * 9
    )
    assert read_file(view, "sim/P.1", 5, "sim.out").is_text


def test_a_huge_file_costs_no_more_than_the_part_that_is_asked_for(task_dir: Path, view: StudyView) -> None:
    with (task_dir / "huge").open("wb") as file:
        file.truncate(1 << 40)  # it takes no room on the disk
    part = read_file(view, "sim/P.1", 5, "huge", offset=1 << 39, limit=1 << 60)
    assert part.size == 1 << 40
    assert part.next_offset == (1 << 39) + MAX_PART_BYTES


def test_a_file_is_opened_whole_to_be_sent_on(task_dir: Path, view: StudyView) -> None:
    (task_dir / "out").mkdir()
    (task_dir / "out" / "picture.PNG").write_bytes(b"png")
    found = open_file(view, "sim/P.1", 5, "out/picture.PNG")
    with found.file as file:
        assert (found.size, found.kind, file.read()) == (3, "image", b"png")


@pytest.mark.parametrize(
    "name",
    [
        "../04/sim.err", "../../../../secret", "/etc/passwd", "link", "folder/secret", "pipe", "", ".", "..",
        "nothing", "out", "../../../../merlin_info/plan.json", "x\0y",
    ],
)  # fmt: skip
def test_nothing_but_regular_files_of_the_task_is_ever_read(
    task_dir: Path, view: StudyView, name: str
) -> None:
    neighbour = task_dir.parent / "04"
    neighbour.mkdir()
    (neighbour / "sim.err").write_text("another task's")
    (task_dir / "out").mkdir()
    (task_dir / "link").symlink_to("/etc/passwd")
    (task_dir / "folder").symlink_to(task_dir.parents[3])
    os.mkfifo(task_dir / "pipe")
    with pytest.raises(WorkspaceError):
        read_file(view, "sim/P.1", 5, name)
    assert task_page(view, "sim/P.1", 5).files == ()


def test_a_task_directory_that_was_replaced_by_a_link_is_not_followed(
    task_dir: Path, view: StudyView
) -> None:
    task_dir.rmdir()
    task_dir.symlink_to(task_dir.parents[4])
    with pytest.raises(WorkspaceError):
        read_file(view, "sim/P.1", 5, "secret")
    assert task_page(view, "sim/P.1", 5).files == ()


def test_very_many_files_are_counted_and_not_listed(task_dir: Path, view: StudyView) -> None:
    for i in range(230):
        (task_dir / f"{i:03}.txt").touch()
    task = task_page(view, "sim/P.1", 5)
    assert (len(task.files), task.num_files_left_out) == (200, 30)


def test_pictures_that_may_hold_programs_are_text() -> None:
    assert {name: kind_of(name) for name in ("a.svg", "a.html", "a.PNG", "a.h5", "a", "a.sh", "a.restart.err")} == {
        "a.svg": "text", "a.html": "text", "a.PNG": "image", "a.h5": "data", "a": "data", "a.sh": "script",
        "a.restart.err": "log",
    }  # fmt: skip
