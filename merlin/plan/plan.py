"""The plan: what `merlin run` makes of a spec. Its size does not depend on the number of samples.

A plan is written once as ``merlin_info/plan.json`` and never changes; workers load it from the shared file system.
Paths of instances and files inside the workspace are relative to it, so a workspace may be moved.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import Literal

from msgspec import Struct, field

from merlin.base.field import Field
from merlin.base.records import FileFormat
from merlin.errors import UsageError
from merlin.plan.layout import SampleLayout
from merlin.plan.notify_rule import NotifyRule

FORMAT = FileFormat("merlin-plan", 1)

Scalar = str | int | float | bool


class StepKind(StrEnum):
    CMD = "cmd"  # a shell script per task
    FUNCTION = "function"  # one Python call per chunk
    AGGREGATE = "aggregate"  # one shard per task
    MANIFEST = "manifest"  # one task after the last shard of an aggregate: manifest.json and ensemble.h5

    @property
    def runs_user_code(self) -> bool:
        """True for steps that run what the author of the spec wrote, with the cores and devices it asks for."""
        return self in (StepKind.CMD, StepKind.FUNCTION)


class Edge(Struct, frozen=True, kw_only=True):
    """`target` waits for `source`.

    same   task i of the target waits for task i of the source, and is skipped if that one did not end ok
    all    every task of the target waits for every task of every source in the edge's group; the target is skipped
           when no task of the whole group ended ok
    block  task k of an aggregate waits for the rows of its shard (see `Aggregate`); it is never skipped
    """

    source: str  # StepInstance.id
    kind: Literal["same", "all", "block"]
    group: str  # the entry of `depends` that made it, e.g. "step_1_*"


class PlannedField(Field, frozen=True, kw_only=True):
    """A field, and where its values come from.

    `output` names a function's result, `file` is a glob inside the task's directory, `expression` makes a derived
    field. If it leaves out something about compression, the aggregate's choice counts.
    """

    output: str | None = None
    file: str | None = None
    key: str | None = None  # dotted path in JSON, member of an .npz, dataset path in HDF5, column of a CSV
    regex: str | None = None  # first group, on text files
    level: int | None = None  # of compression; None = the aggregate's


class Aggregate(Struct, frozen=True, kw_only=True):
    """What an aggregate step collects.

    Rows of the data set are numbered over all sources: row = first_row + source_index * num_tasks(source) + task.
    Task k of the aggregate writes shard first_shard + k, which holds rows [first_row + k * samples_per_shard,
    first_row + (k + 1) * samples_per_shard), less those whose task did not end ok and those that `valid` filters
    out. All sources are instances of one step, so they have the same number of tasks.
    """

    sources: tuple[str, ...]  # StepInstance.id, in plan order
    fields: tuple[PlannedField, ...]
    samples_per_shard: int = 1000
    compression: str = "none"  # one of merlin.base.compression
    shuffle: str = ""  # none | byte | bit, of compressed fields; "" = byte
    level: int | None = None  # of compression; None = the codec's usual one
    valid: tuple[str, ...] = ()  # expressions; a row for which one is not true is filtered
    cleanup: bool = False  # remove the samples' files once their shard is verified
    splits: tuple[tuple[str, float], ...] = (("train", 0.8), ("validation", 0.1), ("test", 0.1))
    seed: int = 0  # of the split hash
    # an extension's rows and shards follow those that the data set was planned with before
    first_row: int = 0
    first_shard: int = 0


class StepInstance(Struct, frozen=True, kw_only=True):
    """A step with one combination of global.parameters filled in."""

    id: str  # also its directory inside the workspace: "step" or "step/X2.0.5.Y.1"
    step: str
    kind: StepKind
    num_tasks: int
    per_sample: bool  # task i is sample i, in its own directory
    params: dict[str, Scalar] = field(default_factory=dict)  # the parameters it uses, values as in the spec
    label: str = ""  # "X2.0.5.Y.1", "" without parameters
    description: str = ""
    # cmd: filled in except column labels, $(MERLIN_SAMPLE_ID), $(MERLIN_SAMPLE_PATH), $(WORKSPACE) and
    # $(MERLIN_PATHS_ALL); $(<step>.workspace) is that step's directory, never one of its samples'
    command: str = ""
    restart: str | None = None
    shell: str = "/bin/bash"
    fresh_shell: bool = False
    function: str | None = None  # "module:callable"
    aggregate: Aggregate | None = None  # also on the manifest instance
    feeds: tuple[str, ...] = ()  # ids of aggregate instances that collect from this instance
    # step name -> instance id, for `same` edges
    same_workspaces: dict[str, str] = field(default_factory=dict)
    queue: str = "merlin"
    max_retries: int = 30
    retry_delay_s: float = 1.0
    timeout_s: float | None = None
    on_failure: Literal["skip", "continue"] = "skip"
    max_failures: float | None = None  # < 1: fraction of num_tasks; >= 1: count
    canary: int = 10  # if the first `canary` tasks to end have all failed, the study stops; 0 = off
    crash_limit: int = 3
    resources: dict[str, Scalar] = field(default_factory=dict)  # nodes, procs, cores per task, walltime, …
    edges: tuple[Edge, ...] = ()

    @property
    def script_name(self) -> str:
        """Stem of upstream's file names: "step" or "step_X2.0.5"."""
        return f"{self.step}_{self.label}" if self.label else self.step

    @property
    def finishes(self) -> str:
        """The id of the aggregate instance whose data set this manifest instance finishes."""
        return self.edges[0].source


class SamplesInfo(Struct, frozen=True, kw_only=True):
    """The samples of a study; row i of `file` is sample first + i."""

    file: str  # absolute, or relative to the workspace
    num: int
    labels: tuple[str, ...]  # column_labels
    level_max_dirs: int = 25
    first: int = 0  # the samples of an extension follow those that were there before
    # of the rows: the file may get more, but the old ones must stay; "" in earlier plans, if it was in the workspace
    digest: str = ""
    stamp: str = ""  # of that file: while it stays the same, the rows need no check
    room: int = 0  # samples that the directories are laid out for, if there were more in an earlier revision

    @property
    def layout(self) -> SampleLayout:
        return SampleLayout(max(self.num, self.room), self.level_max_dirs)


class Plan(Struct, frozen=True, kw_only=True):
    name: str
    study_id: str  # random, unique
    workspace: str  # absolute at planning time; loaders replace it by where they found the plan
    spec_path: str
    spec_root: str
    spec_digest: str  # sha256 of the expanded spec
    created: str  # ISO 8601 with zone
    seed: int
    samples: SamplesInfo | None
    variables: dict[str, Scalar]
    instances: tuple[StepInstance, ...]  # topological order
    env: dict[str, str] = field(default_factory=dict)  # exported to every task, if any
    code_version: str = ""
    extension: int = 0  # n: in <study>/extensions/<n>, and adds samples to that study; 0: a study of its own
    notify: tuple[NotifyRule, ...] = ()
    revision: int = 0  # how often the study was updated with another spec before
    code: dict[str, dict[str, str]] = field(default_factory=dict)  # step -> file -> SHA-256, see code_changes

    @property
    def has_functions(self) -> bool:
        """Whether code of the user runs in worker processes."""
        return any(instance.kind is StepKind.FUNCTION for instance in self.instances)

    @property
    def num_samples(self) -> int:
        return 0 if self.samples is None else self.samples.num

    def by_step(self) -> dict[str, list[StepInstance]]:
        """The instances of each step, in the order of the plan."""
        found: dict[str, list[StepInstance]] = {}
        for instance in self.instances:
            found.setdefault(instance.step, []).append(instance)
        return found

    def check_steps(self, steps: Collection[str], *, also: Collection[str] = ()) -> None:
        """Raise UsageError for a step that the study does not have; the words of `also` will do, too."""
        known = dict.fromkeys(instance.step for instance in self.instances)
        for step in steps:
            if step not in known and step not in also:
                raise UsageError(f"the study has no step {step!r}; it has: {', '.join(known)}")
