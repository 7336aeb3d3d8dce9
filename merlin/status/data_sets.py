"""What became of the samples of a study's data sets, in the words of their manifests. Light: no NumPy, no HDF5."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from merlin.plan.plan import StepKind
from merlin.plan.tasks import Outcome
from merlin.shards.format.counts import Counts, counts_of
from merlin.workspace.directory import Workspace


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSetStatus:
    """A finished data set, with the samples that extensions have added."""

    aggregate: str  # id of the step instance
    path: str
    samples: Counts


def data_sets_of(workspace: Workspace, counts: Mapping[str, Mapping[int, int]]) -> list[DataSetStatus]:
    """The finished data sets of a study, in the order of the plan; `counts`: tasks by outcome of every step instance.

    While samples run again, the manifest of before is still there, and not what the ledger says any more.
    """
    found = []
    for instance in workspace.plan.instances:
        if instance.kind is StepKind.MANIFEST and counts[instance.id].get(Outcome.OK) == instance.num_tasks:
            assert instance.finishes is not None
            directory = workspace.data_set_dir(workspace.instance(instance.finishes))
            if samples := counts_of(directory):
                found.append(DataSetStatus(aggregate=instance.finishes, path=str(directory), samples=samples))
    return found
