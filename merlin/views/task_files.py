"""The files of a task, for readers that are not trusted: nothing outside of its directory is ever opened."""

from __future__ import annotations

import base64
import codecs
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal

from msgspec import Struct

from merlin.base.enclosed_files import list_enclosed, open_enclosed
from merlin.errors import WorkspaceError
from merlin.plan.layout import FINISHED, LOGS
from merlin.plan.plan import StepInstance, StepKind
from merlin.shards.format.shard_info import info_name, shard_name
from merlin.views.study_ledgers import Member
from merlin.views.study_page import StudyView

MAX_FILES = 200  # that are listed
MAX_DEPTH = 3
MAX_ENTRIES = 5000
MAX_PART_BYTES = 1 << 20
_FEW = 0.1  # the share of characters in a text that may be no UTF-8, such as names in an old encoding

FileKind = Literal["script", "log", "text", "image", "data"]

_KINDS: dict[str, FileKind] = {
    **dict.fromkeys((".sh", ".py", ".slurm", ".flux", ".lsf", ".pbs"), "script"),
    **dict.fromkeys((".out", ".err", ".log"), "log"),
    **dict.fromkeys((".txt", ".json", ".jsonl", ".yaml", ".yml", ".csv", ".tsv", ".md", ".toml"), "text"),
    **dict.fromkeys((".xml", ".svg", ".html", ".cfg", ".ini", ".in", ".inp", ".tex"), "text"),
    # without those that may hold a program
    **dict.fromkeys((".png", ".jpg", ".jpeg", ".gif", ".webp", ".bmp"), "image"),
}


class TaskFile(Struct, frozen=True, kw_only=True):
    """A regular file; `name` is relative to the task's directory ("sim.err", "out/image.png")."""

    name: str
    size: int  # bytes
    kind: FileKind


class FilePart(Struct, frozen=True, kw_only=True):
    """Bytes [offset, next_offset) of a file: text, or base64 of what is no text."""

    name: str
    size: int  # of the whole file
    offset: int
    next_offset: int | None  # None: the file ends here
    text: str | None
    base64: str | None
    is_text: bool


class OpenFile(Struct, frozen=True, kw_only=True):
    """A regular file that was opened safely; who gets it closes it."""

    name: str
    size: int
    kind: FileKind
    file: BinaryIO


class TaskFolder(Struct, frozen=True):
    """Where a task's files are: below the workspace of its study, by names of directories."""

    top: Path
    folders: tuple[str, ...]
    only: tuple[str, ...] = ()  # names of the files that are the task's; () for all

    @property
    def path(self) -> Path:
        return self.top.joinpath(*self.folders)


def read_file(
    study: StudyView, instance: str, task: int, name: str, offset: int = 0, limit: int = 65536
) -> FilePart:
    """A part of a file of a task; a negative offset counts from the end of the file.

    Raises WorkspaceError if there is no such task, or no regular file with this name in its directory.
    """
    found = open_file(study, instance, task, name)
    with found.file as file:
        first = max(0, found.size + offset) if offset < 0 else min(offset, found.size)
        num = max(1, min(limit, MAX_PART_BYTES))
        try:
            data = os.pread(file.fileno(), num, first)
        except OSError as error:
            raise WorkspaceError(f"cannot read {name}: {error.strerror}") from error
    is_end = first + len(data) >= found.size or not data
    text, used = _as_text(data, is_end=is_end)
    return FilePart(
        name=name,
        size=found.size,
        offset=first,
        next_offset=None if is_end else first + used,
        text=text,
        base64=base64.b64encode(data).decode("ascii") if text is None else None,
        is_text=text is not None,
    )


def _as_text(data: bytes, *, is_end: bool) -> tuple[str | None, int]:
    """The text (None: it is none) and how many bytes it takes: a character cut in two is left for the next part."""
    if b"\0" in data:
        return None, len(data)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data, final=is_end)
    used = len(data) - len(decoder.getstate()[0])
    if (data and not used) or text.count("\ufffd") > _FEW * len(text) + 1:
        return None, len(data)
    return text, used


def open_file(study: StudyView, instance: str, task: int, name: str) -> OpenFile:
    """The whole file, to be sent on. Raises as `read_file`."""
    with study.ledgers() as ledgers:
        folder = folder_of(*ledgers.find_task(instance, task), task)
    try:
        if folder.only and name not in folder.only:
            raise OSError(f"{name} is not the task's")
        fd = open_enclosed(folder.top, folder.folders, name)
    except (OSError, ValueError) as error:
        raise WorkspaceError(
            f"task {task} of {instance} has no regular file {name[:200]!r} in its directory"
        ) from error
    return OpenFile(name=name, size=os.fstat(fd).st_size, kind=kind_of(name), file=os.fdopen(fd, "rb"))


def list_files(folder: TaskFolder) -> tuple[tuple[TaskFile, ...], int]:
    """The task's files, and how many more there are; none if it has no directory."""
    if folder.only:
        return tuple(_named(folder)), 0
    try:
        found = list_enclosed(
            folder.top, folder.folders, most=MAX_FILES, max_depth=MAX_DEPTH, max_entries=MAX_ENTRIES
        )
    except OSError:
        return (), 0
    shown = (
        TaskFile(name=file.name, size=file.size, kind=kind_of(file.name))
        for file in found.files
        if file.name != FINISHED
    )
    return tuple(shown), found.num_left_out


def _named(folder: TaskFolder) -> Iterator[TaskFile]:
    for name in folder.only:
        with suppress(OSError):
            fd = open_enclosed(folder.top, folder.folders, name)
            size = os.fstat(fd).st_size
            os.close(fd)
            yield TaskFile(name=name, size=size, kind=kind_of(name))


def kind_of(name: str) -> FileKind:
    """What a file holds, by its name."""
    return _KINDS.get(PurePosixPath(name).suffix.lower(), "data")


def folder_of(member: Member, instance: StepInstance, task: int) -> TaskFolder:
    """The directory of a task; of a shard, that of its data set; of a function, that of workers' logs."""
    workspace = member.workspace
    if instance.kind is StepKind.AGGREGATE and instance.aggregate is not None:
        shard = instance.aggregate.first_shard + task
        return _below(workspace.root, workspace.data_set_dir(instance), shard_name(shard), info_name(shard))
    if instance.kind is StepKind.MANIFEST:
        directory = workspace.data_set_dir(workspace.instance(instance.finishes))
        return _below(workspace.root, directory, "manifest.json", "ensemble.h5")
    own = workspace.task_dir(instance, task)
    if instance.kind is StepKind.FUNCTION and not own.is_dir():
        return _below(workspace.path, workspace.instance_dir(instance) / LOGS)
    return _below(workspace.path, own)


def _below(top: Path, directory: Path, *only: str) -> TaskFolder:
    return TaskFolder(top, directory.relative_to(top).parts, only)
