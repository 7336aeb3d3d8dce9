"""The spec as frozen, typed objects; the one place that knows every key.

Field names are Python's, aliases are the YAML keys. Descriptions feed the JSON Schema and the reference.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    BeforeValidator,
    Field,
    PlainValidator,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, core_schema

from merlin.base.codecs.shuffles import SHUFFLES
from merlin.base.compression import CODECS
from merlin.base.compression import NAMES as CODEC_NAMES
from merlin.base.document.field_types import (
    Base,
    Block,
    Count,
    FailureLimit,
    Flag,
    Name,
    Number,
    OpenBlock,
    Positive,
    ResourceCount,
    ResourceFlag,
    ResourcePositive,
    Seconds,
    Shape,
    Text,
    TextList,
    Typed,
)
from merlin.base.document.findings import allowed
from merlin.base.document.scalars import Problem, Scalar, shown, to_float, to_int, typed
from merlin.base.document.validation import known_keys
from merlin.base.kinds import KINDS, ROLES

_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")

METHODS = ("latin_hypercube", "sobol", "halton", "uniform", "normal", "grid")
BATCH_TYPES = ("local", "slurm", "flux", "lsf", "lsf-srun", "pbs")
Method = Literal["latin_hypercube", "sobol", "halton", "uniform", "normal", "grid"]


class OneOf:
    """A text that is one of the words of a registry."""

    def __init__(self, *words: str) -> None:
        self.words = words

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._checked)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {"enum": list(self.words), "type": "string"}

    def _checked(self, value: Any) -> str:
        if value not in self.words:
            known = [word for word in self.words if word]
            raise Problem(f"{shown(value)} is not allowed", allowed(str(value), known, "allowed"))
        return self.words[self.words.index(value)]


Codec: TypeAlias = Annotated[str, OneOf(*CODEC_NAMES)]
CodecOrDefault: TypeAlias = Annotated[str, OneOf("", *CODEC_NAMES)]
Shuffle: TypeAlias = Annotated[str, OneOf("", *SHUFFLES)]
FieldKind: TypeAlias = Annotated[str, OneOf(*KINDS)]
GraphRole: TypeAlias = Annotated[str, OneOf(*ROLES)]


def _as_function(value: Any) -> Any:
    if not isinstance(value, str) or not _FUNCTION.fullmatch(value.strip()):
        raise Problem(
            f"{shown(value)} does not name a function", 'write "module:callable", e.g. "simulate:run"'
        )
    return value.strip()


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
    description: Text = Field(default="", description="One line or more about the study.")


class PathDependency(Block):
    name: Name = Field(description="Name of the token that stands for the path.")
    path: Name = Field(description="An existing file or directory.")


class GitDependency(Block):
    name: Name = Field(description="Name of the token that stands for the checkout.")
    path: Name = Field(description="Directory to clone into.")
    url: Name = Field(description="Address of the repository.")
    tag: Text | None = Field(default=None, description="Tag, branch or commit to check out.")
    hash: Text | None = Field(default=None, description="Commit to check out.")


class Dependencies(Block):
    """What the study needs from outside."""

    paths: tuple[PathDependency, ...] = Field(
        default=(), description="Files and directories that must exist."
    )
    git: tuple[GitDependency, ...] = Field(default=(), description="Repositories.")
    spack: Typed = Field(default=None, description="Spack packages; kept, not acted upon.")


class Env(Block):
    """Variables and what else the study takes from its surroundings."""

    variables: dict[str, Typed] = Field(
        default_factory=dict, description="Values for $(NAME), anywhere in the spec."
    )
    labels: dict[str, Typed] = Field(default_factory=dict, description="As variables; may use parameters.")
    sources: TextList = Field(default=(), description="Files that step scripts source first.")
    dependencies: Dependencies = Field(
        default_factory=lambda: Dependencies(), description="Paths and repositories."
    )


def _as_batch_type(value: Any) -> Any:
    if isinstance(value, str) and "$(" not in value and value not in BATCH_TYPES:
        raise Problem(f"{shown(value)} is not allowed", allowed(value, BATCH_TYPES, "allowed"))
    return value


BatchType = Annotated[
    Text,
    AfterValidator(_as_batch_type),
    WithJsonSchema({"anyOf": [{"enum": list(BATCH_TYPES)}, {"type": "string", "pattern": "\\$\\("}]}),
]


class Batch(OpenBlock):
    """How the cluster is used; further keys are kept for the scheduler."""

    type: BatchType = Field(
        default="local", description="Scheduler: local, slurm, flux, lsf, lsf-srun or pbs."
    )
    bank: Text | None = Field(default=None, description="Account to charge.")
    queue: Text | None = Field(default=None, description="Partition or queue.")
    nodes: ResourcePositive | None = Field(default=None, description="Number of nodes of the allocation.")
    walltime: Text | None = Field(default=None, description="Time limit of the allocation, HH:MM:SS.")
    shell: Text = Field(default="/bin/bash", description="Shell of every step that names none.")
    dry_run: Flag = Field(default=False, description="Write scripts, run nothing.")
    launch_pre: Text | None = Field(default=None, description="Text before the launch command.")
    launch_args: Text | None = Field(default=None, description="Extra arguments of the launch command.")
    worker_launch: Text | None = Field(default=None, description="Replaces the launch command of workers.")
    flux_path: Text | None = Field(default=None, description="Directory of the flux command.")
    flux_start_opts: Text | None = Field(default=None, description="Options of flux start.")
    flux_exec: Text | None = Field(default=None, description="Replaces flux exec.")
    flux_exec_workers: Flag | None = Field(
        default=None, description="Start workers with flux exec on all nodes."
    )
    reservation: Text | None = Field(default=None, description="Reservation to use.")
    qos: Text | None = Field(default=None, description="Quality of service.")
    host: Text | None = Field(default=None, description="Cluster name, as Maestro.")


class Values(Block):
    """Where the values of a field come from, and how they are kept."""

    dtype: Text = Field(
        default="float64", description="NumPy type, little-endian: float64, float32, int32, …"
    )
    shape: Shape = Field(
        default=(),
        description='Shape of one sample, e.g. [64, 64, 4]; none for a scalar; "*" first: any number of items.',
    )
    output: Text | None = Field(
        default=None, description="Name in the function's result; default: the field's name."
    )
    file: Text | None = Field(default=None, description="Glob inside the task's directory, e.g. out.json.")
    key: Text | None = Field(
        default=None,
        validation_alias=AliasChoices("key", "path", "column"),
        description="Dotted path in JSON, member of .npz, path in HDF5, column of CSV. Or: path, column.",
    )
    regex: Text | None = Field(default=None, description="First group is the value, on text files.")
    expression: Text | None = Field(
        default=None, description="Derived from other fields, inputs and parameters, e.g. log10(energy)."
    )
    finite: Flag = Field(default=True, description="NaN or infinity fails the sample.")
    units: Text = Field(default="", description="Units, kept as an attribute.")
    description: Text = Field(default="", description="Kept as an attribute.")
    compression: CodecOrDefault = Field(default="", description="Default: the aggregate's.")
    shuffle: Shuffle = Field(
        default="", description="What is done to bytes before compression; default: the aggregate's."
    )
    level: Count | None = Field(default=None, description="Level of compression; default: the aggregate's.")
    keep_bits: Positive | None = Field(
        default=None, description="Round floats to so many bits of mantissa, to compress better."
    )
    axes: TextList = Field(default=(), description="Names of the sample's axes, e.g. [y, x, channel].")


class FieldBlock(Values):
    """One field of a data set."""

    kind: FieldKind = Field(default="scalar", description="What one sample of it is.")
    layout: Text = Field(
        default="", description="Of an image or volume, a letter per axis of its shape: hwc, chw, dhwc, …"
    )
    channels: TextList = Field(default=(), description="Names of the channels, along the axis c.")
    members: dict[GraphRole, Values] = Field(
        default_factory=dict,
        description=f"Of a graph: {', '.join(ROLES)}.",
    )


class AggregateBlock(Block):
    """Collects the outputs of another step into shards."""

    from_: Text | None = Field(
        default=None, alias="from", description="Step to collect; default: the only one in depends."
    )
    fields: dict[str, FieldBlock] = Field(description="What to collect, by field name.")
    samples_per_shard: Positive = Field(default=1000, description="Rows of one shard file.")
    valid: TextList = Field(
        default=(), description="Expressions; a sample for which one is not true is left out as filtered."
    )
    compression: Codec = Field(
        default="none", description="Of all fields; uncompressed data can be memory-mapped."
    )
    shuffle: Shuffle = Field(
        default="", description="What is done to bytes before compression; default: byte."
    )
    level: Count | None = Field(
        default=None,
        description="Level of compression; default: "
        + ", ".join(f"{codec.name} {codec.usual_level}" for codec in CODECS.values())
        + ".",
    )
    splits: dict[str, Number] = Field(
        default_factory=lambda: {"train": 0.8, "validation": 0.1, "test": 0.1},
        description="Fractions of the samples; they sum to 1.",
    )
    seed: Count = Field(
        default=0, description="Seed of the split; the same sample always falls into the same split."
    )
    cleanup: Flag = Field(
        default=False, description="Remove the samples' files once the shard that holds them is verified."
    )


class StepBatch(OpenBlock):
    type: BatchType | None = Field(default=None, description="Scheduler of this step.")


class Exclusive(Block):
    allocation: ResourceFlag | None = Field(default=None, description="Allocation without other jobs.")
    launcher: ResourceFlag | None = Field(
        default=None, description="Launched program without others on its nodes."
    )


def _as_exclusive(value: Any) -> Any:
    return value if isinstance(value, Mapping | Exclusive) else {"allocation": value}


def _as_priority(value: Any) -> str | float:
    text = str(value)
    if text.upper() in ("HELD", "MINIMAL", "LOW", "MEDIUM", "HIGH", "EXPEDITED") or text.startswith("$("):
        return text
    number = to_float(value, 0.0)
    if number > 1:
        raise Problem(
            f"priority {number:g} is above 1", "write 0 to 1, or held, minimal, low, medium, high, expedited"
        )
    return number


ANY_SCALAR = WithJsonSchema({"type": ["string", "number", "boolean"]})


class Run(Block):
    """What a step does (exactly one of cmd, function, aggregate), with what, and how failures are treated."""

    cmd: Text | None = Field(default=None, description="Shell script, run once per sample if it uses one.")
    function: Annotated[Text, BeforeValidator(_as_function)] | None = Field(
        default=None, description='"module:callable", called with arrays of samples.'
    )
    aggregate: AggregateBlock | None = Field(
        default=None, description="Collect another step's outputs into shards."
    )
    restart: Text | None = Field(default=None, description="Script that replaces cmd after exit code 100.")
    depends: TextList = Field(
        default=(), description="Steps to wait for: name (per sample) or name_* (all of it)."
    )
    shell: Text = Field(default="/bin/bash", description="Interpreter of cmd; default: batch.shell.")
    task_queue: Name = Field(default="merlin", description="Queue whose workers run the step.")
    max_retries: Count = Field(
        default=30, description="How often a task may ask to run again (exit codes 100, 104)."
    )
    retry_delay: Seconds = Field(default=1.0, description="Seconds before a task runs again.")
    timeout: Seconds | None = Field(
        default=None, description='Time limit of one task: seconds or "HH:MM:SS".'
    )
    on_failure: Literal["skip", "continue"] = Field(
        default="skip",
        description="What later steps do with samples that fail here: skip them, or run them all the same "
        "(`continue`); default: merlin.on_failure.",
    )
    max_failures: FailureLimit = Field(
        default=None, description='Stop the study beyond this many failures: 12 or "5%".'
    )
    canary: Count = Field(
        default=10, description="Stop if this many first tasks all fail, none of them softly; 0: never."
    )
    crash_limit: Positive = Field(
        default=3, description="Give up on a sample that killed its worker this often."
    )
    fresh_shell: Flag = Field(default=False, description="Start a new shell process for every task.")

    nodes: ResourcePositive | None = Field(default=None, description="Nodes per task.")
    procs: ResourcePositive | None = Field(default=None, description="Processes (MPI ranks) per task.")
    gpus: ResourceCount | None = Field(default=None, description="GPUs per task.")
    cores_per_task: ResourcePositive | None = Field(
        default=None, alias="cores per task", description="Cores per process."
    )
    gpus_per_task: ResourceCount | None = Field(
        default=None, alias="gpus per task", description="GPUs per process."
    )
    walltime: Text | None = Field(
        default=None, description="Time limit of the batch job or launch, HH:MM:SS or seconds."
    )
    exclusive: Annotated[Exclusive, BeforeValidator(_as_exclusive)] | None = Field(
        default=None, description="Nodes without other jobs: true, or allocation and launcher apart."
    )
    reservation: Text | None = Field(default=None, description="Reservation to use.")
    slurm: Text | None = Field(default=None, description="Extra arguments of srun.")
    flux: Text | None = Field(default=None, description="Extra arguments of flux run.")
    lsf: Text | None = Field(default=None, description="Extra arguments of jsrun.")
    pbs: Text | None = Field(default=None, description="Extra arguments of mpiexec under PBS.")
    bind: Text | None = Field(default=None, description="Binding of processes to cores (jsrun).")
    bind_gpus: Text | None = Field(
        default=None, alias="bind gpus", description="Binding of processes to GPUs."
    )
    num_resource_set: ResourcePositive | None = Field(
        default=None, alias="num resource set", description="Number of resource sets (jsrun)."
    )
    tasks_per_rs: ResourcePositive | None = Field(
        default=None, alias="tasks per rs", description="Processes per set (jsrun)."
    )
    rs_per_node: ResourcePositive | None = Field(
        default=None, alias="rs per node", description="Sets per node (jsrun)."
    )
    cpus_per_rs: ResourcePositive | None = Field(
        default=None, alias="cpus per rs", description="Cores per set (jsrun)."
    )
    launch_distribution: Text | None = Field(
        default=None,
        validation_alias=AliasChoices("launch_distribution", "launch distribution"),
        description="Order of processes over sets (jsrun).",
    )
    exit_on_error: ResourceCount | None = Field(
        default=None, description="1: jsrun stops at the first failing process."
    )
    batch: StepBatch | None = Field(default=None, description="Scheduler settings of this step alone.")
    nested: ResourceFlag | None = Field(default=None, description="Flux: start a nested instance.")
    waitable: ResourceFlag | None = Field(default=None, description="Flux: submit as waitable.")
    priority: Annotated[float | str, PlainValidator(_as_priority), ANY_SCALAR] | None = Field(
        default=None, description="Flux urgency: held, minimal, low, medium, high, expedited, or 0 to 1."
    )
    qos: Text | None = Field(default=None, description="Quality of service.")
    pre: Text | None = Field(default=None, description="Script before cmd, as Maestro; kept, not run.")
    post: Text | None = Field(default=None, description="Script after cmd, as Maestro; kept, not run.")

    @property
    def resources(self) -> dict[str, Scalar]:
        """What the step asks of the scheduler, by YAML key; nested keys joined with a dot ("batch.type")."""
        out: dict[str, Scalar] = {}
        for name in RESOURCE_FIELDS:
            value = getattr(self, name)
            if isinstance(value, BaseModel):
                inner = {key: item for key, item in value.model_dump().items() if item is not None}
                if name == "exclusive" and set(inner) == {"allocation"}:
                    out["exclusive"] = inner["allocation"]
                else:
                    out.update({f"{name}.{key}": typed(item) for key, item in inner.items()})
            elif value is not None:
                out[Run.model_fields[name].alias or name] = value
        return out


RESOURCE_FIELDS = tuple(Run.model_fields)[list(Run.model_fields).index("nodes") :]


class Step(Block):
    """One step of the study."""

    name: Name = Field(description="Name of the step, and of its directory.")
    description: Text = Field(default="", description="What the step does.")
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
    ] = Field(
        default="",
        description="Names directories: %% stands for the value, e.g. SIZE.%%. Default: <name>.%%.",
    )


class Worker(Block):
    """A group of workers and the steps that they serve."""

    args: Text = Field(default="", description="Arguments of the worker command.")
    steps: TextList = Field(default=("all",), description="Steps that it serves, or [all].")
    nodes: ResourcePositive | None = Field(default=None, description="Nodes to start it on.")
    batch: Batch | None = Field(default=None, description="Replaces the batch block for these workers.")
    machines: TextList = Field(default=(), description="Host names that may start it; none: all.")


class Resources(Block):
    """Who runs the tasks."""

    task_server: Text = Field(default="celery", description="Task server.")
    overlap: Flag = Field(default=False, description="Let workers share queues.")
    workers: dict[str, Worker] = Field(default_factory=dict, description="Workers by name.")


class Generate(Block):
    """Where samples come from: a command, or a built-in method."""

    cmd: Text | None = Field(default=None, description="Command that writes samples.file.")
    method: Method | None = Field(default=None, description="Built-in sampling method.")
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
    ) = Field(default=None, description="Number of samples; for grid also a list, points per column.")
    bounds: dict[str, Bounds] = Field(
        default_factory=dict,
        description="[low, high] of every column; for normal: [mean, standard deviation].",
    )
    seed: Count = Field(default=0, description="Seed; the same seed gives the same samples.")


class Samples(Block):
    """The samples: row i of the file is sample i."""

    generate: Generate | None = Field(default=None, description="How to make the file if it does not exist.")
    file: Text | None = Field(
        default=None, description="File with one row per sample: .npy, .csv, .tab or .parquet."
    )
    column_labels: TextList = Field(description="Names of the columns; $(LABEL) is the sample's value.")
    level_max_dirs: Base = Field(
        default=25, description="Entries of one directory level of the sample hierarchy."
    )


class MerlinBlock(Block):
    """Samples, workers, and what all steps share."""

    on_failure: Literal["skip", "continue"] = Field(
        default="skip", description="on_failure of every step with a cmd or a function that has none."
    )
    resources: Resources = Field(default_factory=lambda: Resources(), description="Workers.")
    samples: Samples | None = Field(
        default=None, description="Samples; none: steps run once per parameter combination."
    )


class Document(Block):
    """A whole spec."""

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
    user: Typed = Field(default=None, description="Yours: anchors and anything else.")

    def step(self, name: str) -> Step:
        """The step of this name; KeyError if there is none."""
        for step in self.study:
            if step.name == name:
                return step
        raise KeyError(name)

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
