"""What a step asks of its scheduler: its own keys, else those that the study sets for all steps. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from merlin.base.document.findings import allowed
from merlin.base.document.scalars import Problem
from merlin.plan.plan import Scalar
from merlin.spec.run_block import BATCH_TYPES

if TYPE_CHECKING:
    from merlin.spec.model import Batch
    from merlin.spec.run_block import Run

# the keys of the study's batch block that are for steps, too; the others are for workers
_OF_STEPS = ("type", "bank", "queue", "reservation", "qos", "flux_path")
_LOCAL = "local"


def step_resources(
    run: Run, batch: Batch, fill: Callable[[str], str], of_server: Mapping[str, Scalar]
) -> dict[str, Scalar]:
    """The resources by key; keys of a block have a dot ("batch.type"). `fill` fills in tokens. Raises Problem.

    `of_server` are the keys that the task server adds if the step does not set them (see
    `job_policy.task_server_keys`).
    """
    shared = {f"batch.{name}": getattr(batch, name) for name in _OF_STEPS if getattr(batch, name)}
    if shared["batch.type"] == _LOCAL:
        del shared["batch.type"]
    asked = {**shared, **of_server, **run.resources}
    resources = {
        key: _number(fill(value)) if isinstance(value, str) else value for key, value in asked.items()
    }
    kind = str(resources.get("batch.type", _LOCAL))
    if kind not in BATCH_TYPES:
        raise Problem(f"there is no scheduler {kind!r}", allowed(kind, BATCH_TYPES, "allowed"))
    return resources


def _number(text: str) -> Scalar:
    """Turn the text of a resource that came from a parameter into a number, if it is one."""
    return int(text) if text.isdecimal() else text
