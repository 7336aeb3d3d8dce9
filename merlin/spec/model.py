"""The spec as frozen, typed objects; the one place that knows every key.

Field names are Python's, aliases are the YAML keys. Descriptions feed the JSON Schema and the reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PlainValidator, WithJsonSchema

from merlin.base.document.field_types import (
    Base,
    Block,
    Count,
    Flag,
    Name,
    OpenBlock,
    Positive,
    ResourceCount,
    ResourcePositive,
    Seconds,
    Text,
    TextList,
    Typed,
    optional,
)
from merlin.base.document.scalars import Problem, to_float, to_int
from merlin.base.document.validation import known_keys
from merlin.spec.defaults import Method
from merlin.spec.notify_block import Notify
from merlin.spec.run_block import BATCH_TYPES, BatchType, Run


def _as_label(value: Any) -> str | tuple[str, ...]:
    if isinstance(value, list | tuple):
        return tuple(str(item) for item in value)
    if isinstance(value, Mapping):
        raise Problem("must be text with %% in it, or a list of labels", "e.g. label: SIZE.%%")
    return str(value)


def _as_num(value: Any) -> int | tuple[int, ...]:
    if isinstance(value, list | tuple):
        return tuple(to_int(item, 1) for item in value)
    return to_int(value, 1)


def _as_bounds(value: Any) -> tuple[float, float]:
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise Problem("bounds are a pair of numbers", "e.g. X0: [0.0, 1.0]")
    return to_float(value[0]), to_float(value[1])


Bounds = Annotated[
    tuple[float, float],
    PlainValidator(_as_bounds),
    WithJsonSchema({"type": "array", "items": {"type": ["number", "string"]}, "minItems": 2, "maxItems": 2}),
]


class Description(OpenBlock):
    """What the study is; further keys are free metadata."""

    name: Name = Field(description="Name of the study; its workspaces are called <name>_YYYYMMDD-HHMMSS.")
    description: Text = optional("One line or more about the study.", "")


class PathDependency(Block):
    name: Name = Field(description="Name of the token that stands for the path.")
    path: Name = Field(description="An existing file or directory.")


class GitDependency(Block):
    name: Name = Field(description="Name of the token that stands for the checkout.")
    path: Name = Field(description="Directory to clone into.")
    url: Name = Field(description="Address of the repository.")
    tag: Text | None = optional("Tag, branch or commit to check out.")
    hash: Text | None = optional("Commit to check out.")


class Dependencies(Block):
    """What the study needs from outside."""

    paths: tuple[PathDependency, ...] = optional("Files and directories that must exist.", ())
    git: tuple[GitDependency, ...] = optional("Repositories.", ())
    spack: Typed = optional("Spack packages; kept, not acted upon.")


class Env(Block):
    """Variables and what else the study takes from its surroundings."""

    variables: dict[str, Typed] = Field(
        default_factory=dict, description="Values for $(NAME), anywhere in the spec."
    )
    labels: dict[str, Typed] = Field(default_factory=dict, description="As variables; may use parameters.")
    sources: TextList = optional("Files that step scripts source first.", ())
    dependencies: Dependencies = Field(
        default_factory=lambda: Dependencies(), description="Paths and repositories."
    )


class Autoscale(Block):
    """When `merlin workers autoscale` submits and ends worker jobs."""

    max: Positive | None = optional("Nodes at a time, in all jobs, those that wait included; default: nodes.")
    min: Count = optional("Nodes to keep while a study is open.", 0)
    jobs: Positive | None = optional("Jobs at a time, those that wait included.")
    nodes: Positive | None = optional("Nodes of one job, at most; default: batch.nodes, else 1.")
    walltime: Text | None = optional("Time limit of one job, at most; default: batch.walltime.")
    backlog: Seconds | None = optional(
        "No new job for work that the present ones finish in this time; default: by how fast jobs start."
    )
    idle: Seconds = optional("End a job whose workers had nothing to do for so long.", 60.0)


class Batch(OpenBlock):
    """How the cluster is used; further keys are kept for the scheduler."""

    type: BatchType = optional(f"Scheduler: {', '.join(BATCH_TYPES)}.", "local")
    bank: Text | None = optional("Account to charge.")
    queue: Text | None = optional("Partition or queue.")
    nodes: ResourcePositive | None = optional("Number of nodes of the allocation.")
    walltime: Text | None = optional("Time limit of the allocation, HH:MM:SS.")
    shell: Text = optional("Shell of every step that names none.", "/bin/bash")
    dry_run: Flag = optional("Write scripts, run nothing.", False)
    launch_pre: Text | None = optional("Text before the launch command.")
    launch_args: Text | None = optional("Extra arguments of the launch command.")
    worker_launch: Text | None = optional("Replaces the launch command of workers.")
    flux_path: Text | None = optional("Directory of the flux command.")
    flux_start_opts: Text | None = optional("Options of flux start.")
    flux_exec: Text | None = optional("Replaces flux exec.")
    flux_exec_workers: Flag | None = optional("Start workers with flux exec on all nodes.")
    reservation: Text | None = optional("Reservation to use.")
    qos: Text | None = optional("Quality of service.")
    host: Text | None = optional("Cluster name, as Maestro.")
    gpus: ResourceCount | None = optional("GPUs per node of worker jobs.")
    autoscale: Autoscale | None = optional("When merlin workers autoscale submits and ends jobs.")


class Step(Block):
    """One step of the study."""

    name: Name = Field(description="Name of the step, and of its directory.")
    description: Text = optional("What the step does.", "")
    run: Run = Field(description="What to do, and with which resources.")


class Parameter(Block):
    """A global parameter: the i-th values of all parameters make the i-th combination."""

    values: tuple[Typed, ...] = Field(description="Values; all parameters have the same number.")
    label: Annotated[
        str | tuple[str, ...],
        PlainValidator(_as_label),
        WithJsonSchema(
            {
                "anyOf": [
                    {"type": "string", "pattern": "%%|\\$\\("},
                    {"type": "array", "items": {"type": "string"}},
                ]
            }
        ),
    ] = optional("Names directories: %% stands for the value, e.g. SIZE.%%. Default: <name>.%%.", "")


class Worker(Block):
    """A group of workers and the steps that they serve."""

    args: Text = optional("Arguments of the worker command.", "")
    steps: TextList = optional("Steps that it serves, or [all].", ("all",))
    nodes: ResourcePositive | None = optional("Nodes to start it on.")
    batch: Batch | None = optional("Replaces the batch block for these workers.")
    machines: TextList = optional("Host names that may start it; none: all.", ())


class Resources(Block):
    """Who runs the tasks."""

    task_server: Text = optional("Who runs chunks: celery (workers), or flux (jobs of Flux).", "celery")
    overlap: Flag = optional("Let workers share queues.", False)
    workers: dict[str, Worker] = Field(default_factory=dict, description="Workers by name.")


class Generate(Block):
    """Where samples come from: a command, or a built-in method."""

    cmd: Text | None = optional("Command that writes samples.file.")
    method: Method | None = optional("Built-in sampling method.")
    num: (
        Annotated[
            int | tuple[int, ...],
            PlainValidator(_as_num),
            WithJsonSchema(
                {
                    "anyOf": [
                        {"type": "integer", "minimum": 1},
                        {"type": "array", "items": {"type": "integer", "minimum": 1}},
                        {"type": "string", "pattern": "\\$\\("},
                    ]
                }
            ),
        ]
        | None
    ) = optional("Number of samples; for grid also a list, points per column.")
    bounds: dict[str, Bounds] = Field(
        default_factory=dict,
        description="[low, high] of every column; for normal: [mean, standard deviation].",
    )
    seed: Count = optional("Seed; the same seed gives the same samples.", 0)


class Samples(Block):
    """The samples: row i of the file is sample i."""

    generate: Generate | None = optional("How to make the file if it does not exist.")
    file: Text | None = optional("File with one row per sample: .npy, .csv, .tab or .parquet.")
    column_labels: TextList = Field(description="Names of the columns; $(LABEL) is the sample's value.")
    level_max_dirs: Base = optional("Entries of one directory level of the sample hierarchy.", 25)


class MerlinBlock(Block):
    """Samples, workers, and what all steps share."""

    on_failure: Literal["skip", "continue"] = optional(
        "on_failure of every step with a cmd or a function that has none.", "skip"
    )
    resources: Resources = Field(default_factory=lambda: Resources(), description="Workers.")
    samples: Samples | None = optional("Samples; none: steps run once per parameter combination.")


class Document(Block):
    """A complete spec."""

    document_name: ClassVar[str] = "the spec"

    description: Description = Field(description="Name and purpose.")
    env: Env = Field(default_factory=lambda: Env(), description="Variables, labels, sources, dependencies.")
    batch: Batch = Field(default_factory=lambda: Batch(), description="Scheduler settings.")
    study: tuple[Step, ...] = Field(description="The steps, in any order.")
    parameters: dict[str, Parameter] = Field(
        default_factory=dict,
        alias="global.parameters",
        description="Parameters; steps that use one run once per value.",
    )
    merlin: MerlinBlock = Field(
        default_factory=lambda: MerlinBlock(), description="Samples, workers, on_failure of all steps."
    )
    notify: tuple[Notify, ...] = optional(
        "Who is told when the study ends, fails, stalls or gets no nodes.", ()
    )
    user: Typed = optional("Yours: anchors and anything else.")

    @classmethod
    def home_of_key(cls, key: str, block: tuple[str | int, ...]) -> str:
        if len(block) == 2 and block[0] == "study" and key in known_keys(("study", 0, "run"), cls):
            return "it belongs one level deeper, under run"
        homes = [".".join(path) for path in _SINGLE_BLOCKS if key in known_keys(path, cls)]
        return f"it belongs under {homes[0]}" if len(homes) == 1 else ""


_SINGLE_BLOCKS = (
    ("env",),
    ("batch",),
    ("merlin",),
    ("merlin", "resources"),
    ("merlin", "samples"),
    ("merlin", "samples", "generate"),
)
