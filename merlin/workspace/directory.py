"""A workspace: the directory one study lives in, and its plan."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from merlin.base.files import absolute_path
from merlin.base.locks import LockTaken, locked
from merlin.errors import ExecutionError, UsageError, WorkspaceError
from merlin.plan.layout import SampleLayout
from merlin.plan.plan import Plan, StepInstance
from merlin.plan.plan_io import plan_digest, read_plan, relocate
from merlin.workspace.same_samples import SameSamples

if TYPE_CHECKING:
    from merlin.spec.load import Spec
    from merlin.workspace.samples_table import SamplesTable

INFO_DIR = "merlin_info"
PLAN_NAME = "plan.json"
EXTENSIONS_DIR = "extensions"
REVISIONS_DIR = "revisions"
_NAME = re.compile(r"(.+)_(\d{8}-\d{6})")  # that `merlin run` gives to a workspace


def revision_dir(info: Path, number: int) -> Path:
    """What belongs to one revision of a study, below its merlin_info."""
    return info / REVISIONS_DIR / f"{number:03d}"


def ledger_of(info: Path, revision: int) -> Path:
    """The directory of the ledger that a revision writes to."""
    return revision_dir(info, revision) / "ledger" if revision else info / "ledger"


def ledgers_in(info: Path) -> list[Path]:
    """The ledgers of all revisions of a study."""
    try:
        names = sorted(entry.name for entry in (info / REVISIONS_DIR).iterdir())
    except OSError:
        names = []
    return [info / "ledger", *(info / REVISIONS_DIR / name / "ledger" for name in names)]


@dataclass(frozen=True)
class Workspace:
    """A study's directory with its plan; cheap to make, safe to share between threads."""

    path: Path
    plan: Plan = field(repr=False)

    def __reduce__(self) -> tuple[type[Workspace], tuple[Path, Plan]]:
        return Workspace, (self.path, self.plan)  # without what is cached, such as samples

    @property
    def info(self) -> Path:
        return self.path / INFO_DIR

    @property
    def ledger_dir(self) -> Path:
        return ledger_of(self.info, self.plan.revision)

    @property
    def plan_path(self) -> Path:
        return self.info / PLAN_NAME

    @cached_property
    def digest(self) -> str:
        """The digest of the plan, as it was when this was opened; the same wherever the workspace lies."""
        return plan_digest(self.plan)

    @cached_property
    def layout(self) -> SampleLayout:
        samples = self.plan.samples
        return SampleLayout(0) if samples is None else samples.layout

    @cached_property
    def _instances(self) -> dict[str, StepInstance]:
        return {instance.id: instance for instance in self.plan.instances}

    @cached_property
    def _table(self) -> SamplesTable:
        from merlin.workspace.samples import open_samples  # NumPy, which `merlin status` starts without

        info = self.plan.samples
        if info is None:
            raise WorkspaceError(f"the study in {self.path} has no samples")
        table = open_samples(self.path / info.file, info.labels)
        if table.num > info.num and (self.root / EXTENSIONS_DIR).is_dir():
            from merlin.workspace.samples_table import rows_of

            return rows_of(table, 0, info.num)  # a file of the user's that has grown with the study
        if table.num != info.num:
            raise WorkspaceError(
                f"{self.path / info.file} has {table.num} samples, but the study was planned with {info.num}"
            )
        return table

    @cached_property
    def _same_samples(self) -> SameSamples:
        info = self.plan.samples
        assert info is not None
        return SameSamples(self.path / info.file, info)

    def require_there(self) -> None:
        """Raise WorkspaceError if the directory was removed or moved since it was opened."""
        try:
            self.plan_path.stat()
        except (FileNotFoundError, NotADirectoryError):
            raise WorkspaceError(
                f"{self.path} was removed or moved while its study ran. If it was moved, go on there with: merlin "
                "restart NEW_PLACE. What tasks have written since is not used, and may lie in a new directory of the "
                "old name"
            ) from None
        except OSError:
            pass  # nobody can tell

    def spec_copy(self) -> bytes:
        """The spec that the study was made of, as its author wrote it; b"" if there is no copy. Raises OSError."""
        found = sorted(self.info.glob("*.orig.yaml"))
        return found[0].read_bytes() if found else b""

    def instance(self, instance_id: str) -> StepInstance:
        try:
            return self._instances[instance_id]
        except KeyError:
            raise WorkspaceError(f"no step instance {instance_id!r} in the plan of {self.path}") from None

    def instance_dir(self, instance: StepInstance) -> Path:
        return self.path / instance.id

    def task_dir(self, instance: StepInstance, task: int) -> Path:
        """Directory of one task: the sample's, or the instance's if it does not run per sample."""
        return self.path / instance.id / self.sample_path(instance, task)

    @property
    def root(self) -> Path:
        """The workspace of the study; for an extension, of the study that it extends."""
        return self.path.parents[1] if self.plan.extension else self.path

    @property
    def member(self) -> str:
        """The path of this workspace below `root`: "extensions/001", "" for the study itself."""
        return extension_name(self.plan.extension) if self.plan.extension else ""

    def below_root(self, name: str) -> str:
        """The path below `root` of what is called `name` in this workspace."""
        return f"{self.member}/{name}" if self.member else name

    def data_set_dir(self, aggregate: StepInstance) -> Path:
        """Directory of the data set with an aggregate's shards; an extension adds its shards to those of the study."""
        return self.root / aggregate.id

    @property
    def first_sample(self) -> int:
        """The id of this workspace's first sample."""
        return 0 if self.plan.samples is None else self.plan.samples.first

    def sample_id(self, instance: StepInstance, task: int) -> int | None:
        """The sample of a task; None if its step does not run per sample."""
        return self.first_sample + task if instance.per_sample else None

    def sample_path(self, instance: StepInstance, task: int) -> str:
        """The task's directory below its instance's: "00/01", "" if it does not run per sample."""
        return self.layout.path(task) if instance.per_sample else ""

    def samples(self) -> SamplesTable:
        """The study's samples, opened once; WorkspaceError if it has none, or others than it was planned with."""
        table = self._table
        if self.samples_may_change:
            self._same_samples.require(table)
        return table

    @property
    def samples_may_change(self) -> bool:
        """True if it can be told whether the samples are still the same; earlier plans have no digest of some."""
        return self.plan.samples is not None and bool(self.plan.samples.digest)


def open_workspace(path: str | os.PathLike[str]) -> Workspace:
    """Open the workspace at `path`, which may have been moved since the study was planned.

    Raises:
        WorkspaceError: there is no plan at `path`, or it cannot be read.
    """
    root = absolute_path(path)
    plan_path = root / INFO_DIR / PLAN_NAME
    if not plan_path.is_file():
        if not root.is_dir():
            raise WorkspaceError(f"{root} is not a directory; give the workspace of a study")
        if (root / INFO_DIR).is_dir():
            raise WorkspaceError(
                f"{root} has no {INFO_DIR}/{PLAN_NAME}: its preparation did not finish, "
                "or another program made it; run the spec again"
            )
        raise WorkspaceError(f"{root} is not a workspace: it has no {INFO_DIR}/{PLAN_NAME}{_meant(root)}")
    try:
        plan = read_plan(plan_path)
    except WorkspaceError as error:
        if isinstance(error.__cause__, ValueError | RecursionError):  # it is damaged
            error.add_note(_without_plan(root))
        raise
    return Workspace(root, relocate(plan, str(root)))


def _without_plan(root: Path) -> str:
    """What can be done with a workspace whose plan is damaged."""
    spec = next((root / INFO_DIR).glob("*.orig.yaml"), None)
    todo = "put it back as it was" + (f", or run its spec again, of which {spec} is a copy" if spec else "")
    found = chain(root.glob("*/manifest.json"), root.glob("*/*/manifest.json"))
    data = next((manifest.parent for manifest in found), None)
    return todo + (f"; its data sets can be read by their own directories: {data}" if data else "")


def _meant(root: Path) -> str:
    """A hint which workspace may have been meant."""
    above = next((path for path in root.parents if is_workspace(path)), None)
    if above is not None:
        return f"; the study that it belongs to is {above}"
    inside = workspaces_in(root)
    return f"; the newest in it is {inside[0]}" if inside else ""


def open_same(path: str | os.PathLike[str], digest: str) -> Workspace:
    """Open a workspace whose plan somebody else has read before; `digest` is that of the plan.

    Raises:
        WorkspaceError: as `open_workspace`.
        ExecutionError: the plan has changed.
    """
    workspace = open_workspace(path)
    if workspace.digest != digest:
        raise ExecutionError(
            f"the plan in {workspace.path} is not the one that was published: it was altered, and nothing of it is "
            f"run; put {INFO_DIR}/{PLAN_NAME} back as it was, and restart the study"
        )
    return workspace


def extension_name(number: int) -> str:
    """Directory of a study's n-th extension, below its workspace."""
    return f"{EXTENSIONS_DIR}/{number:03d}"


def extension_paths(root: Path) -> list[Path]:
    """The workspaces of a study's extensions, oldest first; those whose preparation failed are left out."""
    folder = root / EXTENSIONS_DIR
    if not folder.is_dir():
        return []
    names = sorted((e.name for e in folder.iterdir() if e.name.isdecimal()), key=int)
    return [folder / name for name in names if is_workspace(folder / name)]


def extensions(workspace: Workspace) -> list[Workspace]:
    """The extensions of a study, oldest first; those whose preparation failed are left out."""
    return [open_workspace(path) for path in extension_paths(workspace.root)]


def members(workspace: Workspace) -> list[Workspace]:
    """The study that a workspace belongs to, and its extensions."""
    study = open_workspace(workspace.root) if workspace.plan.extension else workspace
    return [study, *extensions(study)]


def shown_together(workspace: Workspace) -> list[Workspace]:
    """What a workspace that was named stands for: a study and its extensions, or that extension alone."""
    return [workspace] if workspace.plan.extension else members(workspace)


def workspace_stem(name: str) -> str:
    """What comes before the timestamp in the name of a study's workspace."""
    stem = name.strip().replace(" ", "_")
    if not stem or "/" in stem or stem in (".", ".."):
        raise UsageError(
            f"description.name {name!r} cannot name a directory; use letters, digits, '_', '-' and '.'"
        )
    return stem


def output_path(spec: Spec) -> Path:
    """Directory that holds the spec's workspaces: its OUTPUT_PATH, by default the current directory.

    Variables in env blocks may refer to it, so it is read from the loaded spec's variables; ``~`` and
    ``$HOME`` expand, a relative path counts from the current directory.
    """
    text = str(spec.variables.get("OUTPUT_PATH", "") or ".")
    for dependency in spec.document.env.dependencies.paths:
        text = text.replace(f"$({dependency.name})", dependency.path)
    text = text.replace("$(SPECROOT)", str(Path(spec.path).absolute().parent))
    return absolute_path(os.path.expandvars(text))


def find_workspaces(spec: Spec, also_in: Iterable[Path] = ()) -> list[Workspace]:
    """The workspaces that `workspace_paths` finds, opened."""
    return [open_workspace(path) for path in workspace_paths(spec, also_in)]


def workspace_paths(spec: Spec, also_in: Iterable[Path] = ()) -> list[Path]:
    """The workspaces of a spec's study, newest first; those whose preparation failed are left out.

    They are looked for in the spec's OUTPUT_PATH, and in the directories `also_in`.
    """
    stem = workspace_stem(spec.document.description.name)
    folders = dict.fromkeys([output_path(spec), *also_in])
    paths = [
        path
        for folder in folders
        for path in workspaces_in(folder)
        if has_given_name(path) and study_name_of(path) == stem
    ]
    return sorted(paths, key=begin_of, reverse=True)


def workspaces_in(folder: Path, *, also_closed: bool = False) -> list[Path]:
    """The workspaces that lie in a directory, newest first; those whose preparation failed are left out.

    With `also_closed`, those are among them that this user may not read.
    """
    if not folder.is_dir():
        return []
    is_wanted = _may_be_workspace if also_closed else is_workspace
    found = [entry for entry in folder.iterdir() if is_wanted(entry)]
    return sorted(found, key=lambda path: (begin_of(path), path.name), reverse=True)


def holds_workspaces(path: Path) -> bool:
    """True if this is a directory of workspaces, and none itself."""
    return not (path / INFO_DIR).is_dir() and bool(workspaces_in(path))


def is_workspace(path: Path) -> bool:
    """True if a study was prepared in the directory, whatever its name."""
    return os.path.isfile(path / INFO_DIR / PLAN_NAME)  # noqa: PTH113 - Path.is_file raises where nobody may look


def _may_be_workspace(path: Path) -> bool:
    """The same; also true if it looks like a workspace from outside, and this user may not see its plan."""
    try:
        return stat.S_ISREG(os.stat(path / INFO_DIR / PLAN_NAME).st_mode)  # noqa: PTH116 - as above
    except PermissionError:
        return has_given_name(path) or os.path.isdir(path / INFO_DIR)  # noqa: PTH112
    except OSError:
        return False


def has_given_name(path: Path) -> bool:
    """True if `merlin run` could have given this name to a workspace."""
    return _NAME.fullmatch(path.name) is not None


def study_name_of(path: Path) -> str:
    """The name of the study by that of its workspace, which may have been renamed."""
    name = _NAME.fullmatch(path.name)
    return name[1] if name else path.name


def begin_of(path: Path) -> str:
    """When a study was begun, "20260102-030405": by the name of its workspace, else by the time of its plan.

    "" if that is not there.
    """
    if name := _NAME.fullmatch(path.name):
        return name[2]
    with suppress(OSError):
        return time.strftime("%Y%m%d-%H%M%S", time.localtime((path / INFO_DIR / PLAN_NAME).stat().st_mtime))
    return ""


def begin_shown(path: Path) -> str:
    """The same for people: "2026-01-02 03:04:05"."""
    begin = begin_of(path)
    return begin and f"{begin[:4]}-{begin[4:6]}-{begin[6:8]} {begin[9:11]}:{begin[11:13]}:{begin[13:]}"


@contextmanager
def lock_file(path: Path, taken: str) -> Iterator[None]:
    """Hold a lock; WorkspaceError, which begins with `taken`, if another process holds it."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(path, required=True))
        except LockTaken as holder:
            raise WorkspaceError(f"{taken} ({holder}); stop that one first, or wait for it") from None
        except OSError as error:
            raise WorkspaceError(f"cannot lock {path}: {error.strerror}") from error
        yield
