"""The block `run` of a step: what it does, with which resources, and how its failures are treated."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, PlainValidator, WithJsonSchema

from merlin.base.document.field_types import (
    Block,
    Count,
    FailureLimit,
    Flag,
    Name,
    OpenBlock,
    Positive,
    ResourceAmount,
    ResourceCount,
    ResourceFlag,
    ResourcePositive,
    Seconds,
    Text,
    TextList,
    as_list,
    optional,
)
from merlin.base.document.findings import allowed
from merlin.base.document.scalars import Problem, Scalar, shown, to_float, typed
from merlin.batch.registry import SCHEDULERS
from merlin.spec.data_set_blocks import AggregateBlock

BATCH_TYPES = tuple(SCHEDULERS)
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


def _as_function(value: Any) -> Any:
    if not isinstance(value, str) or not _FUNCTION.fullmatch(value.strip()):
        raise Problem(
            f"{shown(value)} does not name a function", 'write "module:callable", e.g. "simulate:run"'
        )
    return value.strip()


def _as_batch_type(value: Any) -> Any:
    if isinstance(value, str) and "$(" not in value and value not in BATCH_TYPES:
        raise Problem(f"{shown(value)} is not allowed", allowed(value, BATCH_TYPES, "allowed"))
    return value


BatchType = Annotated[
    Text,
    AfterValidator(_as_batch_type),
    WithJsonSchema({"anyOf": [{"enum": list(BATCH_TYPES)}, {"type": "string", "pattern": "\\$\\("}]}),
]


class StepBatch(OpenBlock):
    """Whether the step is submitted as jobs of its own; what it leaves out is taken from the study's block."""

    type: BatchType | None = optional("Scheduler of this step.")
    bank: Text | None = optional("Account to charge.")
    queue: Text | None = optional("Partition or queue.")
    reservation: Text | None = optional("Reservation to use.")
    qos: Text | None = optional("Quality of service.")
    flux_path: Text | None = optional("Directory of the flux command.")
    launch_pre: Text | None = optional("Text before the launch command of this step.")
    launch_args: Text | None = optional("Extra arguments of the launch command of this step.")
    submit: ResourceFlag | None = optional("Run the step in batch jobs of its own.")
    tasks_per_job: ResourcePositive | None = optional(
        "Tasks of one such job, one after the other; default 1."
    )
    max_jobs: ResourcePositive | None = optional("Such jobs at a time; default 100.")


class Exclusive(Block):
    allocation: ResourceFlag | None = optional("Allocation without other jobs.")
    launcher: ResourceFlag | None = optional("Launched program without others on its nodes.")


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


def _as_limit(value: float) -> float:
    if not value:
        raise Problem("must be more than 0", "for no limit, leave it out")
    return value


FileList = Annotated[tuple[Name, ...], BeforeValidator(as_list)]
ANY_SCALAR = WithJsonSchema({"type": ["string", "number", "boolean"]})


class Run(Block):
    """What a step does (exactly one of cmd, function, aggregate), with what, and how failures are treated."""

    cmd: Text | None = optional("Shell script, run once per sample if it uses one.")
    function: Annotated[Text, BeforeValidator(_as_function)] | None = optional(
        '"module:callable", called with arrays of samples.'
    )
    aggregate: AggregateBlock | None = optional("Collect another step's outputs into shards.")
    restart: Text | None = optional("Script that replaces cmd after exit code 100.")
    depends: TextList = optional("Steps to wait for: name (per sample) or name_* (all of it).", ())
    files: FileList = optional("Code and inputs of the step: paths or globs, from the spec's directory.", ())
    shell: Text = optional("Interpreter of cmd; default: batch.shell.", "/bin/bash")
    task_queue: Name = optional("Queue whose workers run the step.", "merlin")
    max_retries: Count = optional("How often a task may ask to run again (exit codes 100, 104).", 30)
    retry_delay: Seconds = optional("Seconds before a task runs again.", 1.0)
    timeout: Annotated[Seconds, AfterValidator(_as_limit)] | None = optional(
        'Time limit of one task: seconds or "HH:MM:SS".'
    )
    on_failure: Literal["skip", "continue"] = optional(
        "What later steps do with samples that fail here: skip them, or run them all the same "
        "(`continue`); default: merlin.on_failure.",
        "skip",
    )
    max_failures: FailureLimit = optional('Stop the study beyond this many failures: 12 or "5%".')
    canary: Count = optional("Stop if this many first tasks all fail, none of them softly; 0: never.", 10)
    crash_limit: Positive = optional(
        "Give up on a sample that killed its worker this often when it ran alone.", 3
    )
    fresh_shell: Flag = optional("Start a new shell process for every task.", False)

    nodes: ResourcePositive | None = optional("Nodes per task.")
    procs: ResourcePositive | None = optional("Processes (MPI ranks) per task.")
    gpus: ResourceAmount | None = optional("GPUs per task; below 1, a share of one.")
    cores_per_task: ResourcePositive | None = optional("Cores per process.", alias="cores per task")
    gpus_per_task: ResourceCount | None = optional("GPUs per process.", alias="gpus per task")
    walltime: Text | None = optional("Time limit of the batch job or launch, HH:MM:SS or seconds.")
    exclusive: Annotated[Exclusive, BeforeValidator(_as_exclusive)] | None = optional(
        "Nodes without other jobs: true, or allocation and launcher apart."
    )
    reservation: Text | None = optional("Reservation to use.")
    slurm: Text | None = optional("Extra arguments of srun.")
    flux: Text | None = optional("Extra arguments of flux run.")
    lsf: Text | None = optional("Extra arguments of jsrun.")
    pbs: Text | None = optional("Extra arguments of mpiexec under PBS.")
    bind: Text | None = optional("Binding of processes to cores (jsrun).")
    bind_gpus: Text | None = optional("Binding of processes to GPUs.", alias="bind gpus")
    num_resource_set: ResourcePositive | None = optional(
        "Number of resource sets (jsrun).", alias="num resource set"
    )
    tasks_per_rs: ResourcePositive | None = optional("Processes per set (jsrun).", alias="tasks per rs")
    rs_per_node: ResourcePositive | None = optional("Sets per node (jsrun).", alias="rs per node")
    cpus_per_rs: ResourcePositive | None = optional("Cores per set (jsrun).", alias="cpus per rs")
    launch_distribution: Text | None = optional(
        "Order of processes over sets (jsrun).",
        validation_alias=AliasChoices("launch_distribution", "launch distribution"),
    )
    exit_on_error: ResourceCount | None = optional("1: jsrun stops at the first failing process.")
    batch: StepBatch | None = optional("Scheduler settings of this step alone.")
    nested: ResourceFlag | None = optional("Flux: start a nested instance.")
    waitable: ResourceFlag | None = optional("Flux: submit as waitable.")
    priority: Annotated[float | str, PlainValidator(_as_priority), ANY_SCALAR] | None = optional(
        "Flux urgency: held, minimal, low, medium, high, expedited, or 0 to 1."
    )
    qos: Text | None = optional("Quality of service.")
    pre: Text | None = optional("Script before cmd, as Maestro; kept, not run.")
    post: Text | None = optional("Script after cmd, as Maestro; kept, not run.")

    @property
    def scripts(self) -> tuple[str, ...]:
        """Its cmd and its restart, as far as it has them."""
        return tuple(text for text in (self.cmd, self.restart) if text)

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
