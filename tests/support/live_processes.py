"""The processes of this machine, with their command lines and working directories."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Live:
    pid: int
    line: str  # the command line
    folder: Path  # the working directory

    def __str__(self) -> str:
        return f"{self.pid} {self.line}"


def live_processes() -> Iterator[Live]:
    """The live processes, without zombies and without those that end meanwhile."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                folder = (entry / "cwd").readlink()
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if line:
                    yield Live(int(entry.name), line, folder)


def processes_inside(folder: Path) -> list[str]:
    """Number and command line of those that work inside a folder."""
    return [str(process) for process in live_processes() if process.folder.is_relative_to(folder)]
