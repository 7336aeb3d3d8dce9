"""What a step asks of its scheduler: its own keys, else those that the study sets for all steps. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from merlin.base.document.findings import Findings, allowed
from merlin.base.document.scalars import Problem
from merlin.base.document.tree import Path
from merlin.base.document.validation import validate_as
from merlin.errors import SpecError
from merlin.plan.job_policy import LOCAL
from merlin.plan.plan import Scalar
from merlin.spec.checks.surroundings import check_walltime
from merlin.spec.run_block import BATCH_TYPES, RESOURCE_FIELDS, Run

if TYPE_CHECKING:
    from merlin.spec.load import Spec
    from merlin.spec.model import Batch

# the keys of the study's batch block that are for steps, too; the others are for workers
_OF_STEPS = ("type", "bank", "queue", "reservation", "qos", "flux_path")


def with_values(run: Run, fill: Callable[[str], str], spec: Spec, within: Path) -> Run:
    """The resources of the block at the path `within`, with tokens filled in and read as values in the spec are.

    Raises SpecError for what would be refused there.
    """
    if not any(isinstance(value, str) and "$(" in value for value in run.resources.values()):
        return run
    written = run.model_dump(include=set(RESOURCE_FIELDS), by_alias=True, exclude_none=True)
    findings = Findings(str(spec.path))
    read = validate_as(Run, _filled(written, fill), spec.expanded, findings, within=within)
    walltime = spec.expanded.get(*within, "walltime")
    check_walltime(replace(walltime, content=fill(walltime.text)), findings)
    if read is None or findings.failed:
        raise SpecError(findings.items)
    return read


def _filled(value: Any, fill: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(item, fill) for key, item in value.items()}
    return fill(value) if isinstance(value, str) else value


def step_resources(
    run: Run, batch: Batch, fill: Callable[[str], str], of_server: Mapping[str, Scalar]
) -> dict[str, Scalar]:
    """The resources by key; keys of a block have a dot ("batch.type"). `fill` fills in tokens. Raises Problem.

    `of_server` are the keys that the task server adds if the step does not set them (see
    `job_policy.task_server_keys`).
    """
    shared = {f"batch.{name}": getattr(batch, name) for name in _OF_STEPS if getattr(batch, name)}
    if shared["batch.type"] == LOCAL:
        del shared["batch.type"]
    asked = {**shared, **of_server, **run.resources}
    resources = {
        key: _number(fill(value)) if isinstance(value, str) else value for key, value in asked.items()
    }
    kind = str(resources.get("batch.type", LOCAL))
    if kind not in BATCH_TYPES:
        raise Problem(f"there is no scheduler {kind!r}", allowed(kind, BATCH_TYPES, "allowed"))
    return resources


def _number(text: str) -> Scalar:
    """The text, or the whole number that is written so: 7, not 007."""
    return int(text) if text.isdecimal() and str(int(text)) == text else text
