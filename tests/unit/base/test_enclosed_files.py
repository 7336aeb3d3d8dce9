from __future__ import annotations

import os
from pathlib import Path

import pytest

from merlin.base.enclosed_files import list_enclosed, open_enclosed


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """A folder `top` with a/b/file, and a secret beside it."""
    (tmp_path / "secret").write_text("secret")
    folder = tmp_path / "top" / "a" / "b"
    folder.mkdir(parents=True)
    (folder / "file").write_text("content")
    return tmp_path / "top"


def content(top: Path, folders: list[str], name: str) -> str:
    with os.fdopen(open_enclosed(top, folders, name)) as file:
        return file.read()


def test_a_file_is_reached_by_its_folders_and_by_its_name(top: Path) -> None:
    assert content(top, ["a", "b"], "file") == "content"
    assert content(top, ["a"], "b/file") == "content"


@pytest.mark.parametrize(
    "name",
    [
        "../secret", "../../secret", "a/../../secret", "..", ".", "", "/", "//", "/etc/passwd",
        "a//b/file", "./a/b/file", "a/b/", "a/b/file/", "a/b/file\0.png", "x" * 300, "/".join("x" * 100),
        "..\\secret", "a/b",
    ],
)  # fmt: skip
def test_no_name_leads_out_or_to_anything_but_a_file(top: Path, name: str) -> None:
    with pytest.raises((OSError, ValueError)):
        open_enclosed(top, [], name)


@pytest.mark.parametrize("target", ["../../../secret", "/etc/passwd", "file"])
def test_no_link_is_followed_be_it_the_file_or_a_folder(top: Path, target: str) -> None:
    (top / "a" / "b" / "link").symlink_to(target)
    (top / "out").symlink_to(top.parent)
    (top / "c").symlink_to("a")
    for name in ("a/b/link", "out/secret", "c/b/file"):
        with pytest.raises(OSError):
            open_enclosed(top, [], name)
    with pytest.raises(OSError):
        open_enclosed(top, ["c", "b"], "file")


def test_pipes_devices_and_sockets_are_not_opened(top: Path) -> None:
    os.mkfifo(top / "pipe")
    os.mknod(top / "unix", 0o600 | 0o140000)
    (top / "null").symlink_to("/dev/null")
    for name in ("pipe", "unix", "null"):
        with pytest.raises(OSError):
            open_enclosed(top, [], name)
    assert [file.name for file in list_enclosed(top, [], most=9, max_depth=5, max_entries=99).files] == [
        "a/b/file"
    ]


def test_a_list_has_regular_files_alone_and_does_not_leave_the_folder(top: Path) -> None:
    (top / "a" / "z").symlink_to(top.parent)
    (top / "a" / "y").symlink_to(top.parent / "secret")
    (top / "a" / "first").write_text("12345")
    found = list_enclosed(top, ["a"], most=9, max_depth=5, max_entries=99)
    assert [(file.name, file.size) for file in found.files] == [("first", 5), ("b/file", 7)]
    with pytest.raises(OSError):
        list_enclosed(top, ["a", "z"], most=9, max_depth=5, max_entries=99)


def test_long_lists_and_deep_folders_are_cut(top: Path) -> None:
    for i in range(20):
        (top / f"f{i:02}").touch()
    found = list_enclosed(top, [], most=5, max_depth=0, max_entries=99)
    assert [file.name for file in found.files] == ["f00", "f01", "f02", "f03", "f04"]
    assert found.num_left_out == 15
    assert len(list_enclosed(top, [], most=50, max_depth=9, max_entries=10).files) <= 10
    assert "a/b/file" not in {
        file.name for file in list_enclosed(top, [], most=50, max_depth=1, max_entries=99).files
    }


def test_no_descriptor_is_left_open(top: Path) -> None:
    def num_open() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = num_open()
    for name in ("a/b/file", "../secret", "a/b", "a/nothing/file"):
        try:
            os.close(open_enclosed(top, [], name))
        except (OSError, ValueError):
            pass
    list_enclosed(top, [], most=5, max_depth=5, max_entries=99)
    assert num_open() == before
