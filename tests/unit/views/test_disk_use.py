"""What a workspace takes on the disk."""

from __future__ import annotations

from pathlib import Path

from merlin.views.disk_use import size_on_disk


def test_blocks_are_counted_and_links_are_not_followed(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    (inside / "deep").mkdir(parents=True)
    outside.mkdir()
    (outside / "large").write_bytes(b"x" * 1_000_000)
    before = size_on_disk(inside)
    (inside / "link").symlink_to(outside)
    (inside / "deep" / "file").write_bytes(b"x" * 100_000)
    assert 100_000 <= size_on_disk(inside) - before < 200_000


def test_what_is_not_there_takes_nothing(tmp_path: Path) -> None:
    assert size_on_disk(tmp_path / "gone") == 0
