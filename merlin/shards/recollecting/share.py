"""What is to be collected again: the share of a study, and of each of its extensions, in the data set."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from merlin.base.files import absolute_path
from merlin.base.records import to_plain
from merlin.errors import ShardError, UsageError
from merlin.plan.plan import Aggregate, PlannedField, StepInstance, StepKind
from merlin.shards.format.digest import combine
from merlin.shards.format.rows import RowMap, aggregate_of, row_map
from merlin.shards.recollecting.definition import given_fields, kept_filters, stored_fields
from merlin.workspace.directory import EXTENSIONS_DIR, INFO_DIR, Workspace


class Share(Struct, frozen=True, dict=True):
    """The rows that one study gives to a data set, by a new definition."""

    workspace: Workspace  # its plan has the new definition
    new: StepInstance
    old: StepInstance | None  # aggregate of the study's own data set of this name, if it has one
    old_workspace: Workspace
    aside: Path | None = None  # the directory in which the old data set lies, if it was put aside

    @property
    def definition(self) -> Aggregate:
        return aggregate_of(self.new)

    @cached_property
    def rows(self) -> RowMap:
        return row_map(self.workspace, self.new)

    @cached_property
    def old_rows(self) -> RowMap:
        """The rows of the data set that the study has made."""
        assert self.old is not None
        return row_map(self.old_workspace, self.old)

    @property
    def old_definition(self) -> Aggregate | None:
        return self.old.aggregate if self.old is not None else None

    @cached_property
    def stored(self) -> dict[str, PlannedField]:
        """The old field that has the values of a new field, by the name of the new one."""
        return stored_fields(self.old_definition, self.definition)

    @cached_property
    def kept_filters(self) -> frozenset[str]:
        return kept_filters(self.old_definition, self.definition)

    @property
    def old_directory(self) -> Path | None:
        """The directory of the data set that the study has made; None if it has made none."""
        if self.old is None:
            return None
        return self.old_workspace.data_set_dir(self.old) if self.aside is None else self.aside / self.old.id

    def ways(self, source: StepInstance) -> tuple[tuple[PlannedField, ...], tuple[PlannedField, ...]]:
        """The fields that are read from a task's files while they are there, and those that only shards have."""
        given = given_fields(self.definition)
        if source.kind is StepKind.CMD:
            return given, ()
        from_files = tuple(field for field in given if field.file and not field.output)
        return from_files, tuple(field for field in given if field not in from_files)


class Recollection(Struct, frozen=True, dict=True):
    """A data set to make again in the directory `out`."""

    shares: tuple[Share, ...]  # in the order of their rows
    out: Path

    @cached_property
    def definition(self) -> str:
        """Digest of everything that decides what is in its shards, except what became of the tasks."""
        parts = []
        for share in self.shares:
            plain = to_plain(share.definition)
            del plain["cleanup"]
            parts.append([share.workspace.plan.study_id, share.workspace.member, plain])
        return combine(self.shares[0].new.id, parts)

    @property
    def study(self) -> Workspace:
        return self.shares[0].old_workspace


def recollection(
    studies: Sequence[Workspace], aggregate: StepInstance, out: str | os.PathLike[str], spec_digest: str = ""
) -> Recollection:
    """What it takes to collect the outputs of a study and its extensions by the definition of `aggregate`.

    Args:
        studies: The study and its extensions, as `workspace.directory.members` gives them.
        aggregate: An aggregate instance as a plan for the study has it.
        out: The directory of the new data set.
        spec_digest: Of the spec with the definition, if that is not the study's.

    Raises:
        UsageError: the study does not have what the definition collects, or `out` is a place of the study's own.
    """
    shares: list[Share] = []
    num_rows, num_shards = 0, 0
    for study in studies:
        known = {instance.id for instance in study.plan.instances}
        if shares and not known.issuperset(aggregate_of(aggregate).sources):
            continue  # an extension does not run again what new samples do not change
        share = _share(study, aggregate, num_rows, num_shards, spec_digest)
        num_rows, num_shards = num_rows + share.rows.num_rows, num_shards + share.rows.num_shards
        shares.append(share)
    _require_no_gap(shares)
    for share in shares:
        _require_stored(share)
    directory = absolute_path(out)
    _require_apart(studies[0], directory)
    return Recollection(tuple(shares), directory)


def _share(study: Workspace, given: StepInstance, row: int, shard: int, spec_digest: str) -> Share:
    definition = aggregate_of(given)
    known = {instance.id: instance for instance in study.plan.instances}
    sources = [known.get(source) for source in definition.sources]
    for name, source in zip(definition.sources, sources, strict=True):
        if source is None or not source.kind.runs_user_code:
            raise UsageError(
                f"'{given.id}' collects from '{name}', which is no step of the study in {study.path}"
            )
    num_rows = sum(source.num_tasks for source in sources if source is not None)
    new = replace(
        given,
        num_tasks=max(1, -(-num_rows // definition.samples_per_shard)),
        aggregate=replace(definition, first_row=row, first_shard=shard, cleanup=False),
    )
    old = known.get(given.id)
    if old is not None and old.kind is not StepKind.AGGREGATE:
        raise UsageError(f"'{given.id}' is no aggregate step of the study in {study.path}")
    others = (instance for instance in study.plan.instances if instance.id != new.id)
    plan = replace(study.plan, instances=(*others, new), spec_digest=spec_digest or study.plan.spec_digest)
    return Share(Workspace(study.path, plan), new, old, study)


def _require_stored(share: Share) -> None:
    """Raise UsageError for an output of a function that no shard has: it lies nowhere else."""
    for id in share.definition.sources:
        _, only_stored = share.ways(share.workspace.instance(id))
        lacking = [field for field in only_stored if field.name not in share.stored]
        if lacking:
            raise UsageError(
                f"{describe_fields(lacking)} of function step '{id}' cannot be collected again: the outputs of "
                f"functions are kept in shards alone, and {where_stored(share)}; leave it out, or run the spec again"
            )


def describe_fields(fields: Sequence[PlannedField]) -> str:
    """The names of fields, in a sentence."""
    names = ", ".join(f"'{field.name}'" for field in fields)
    return f"field {names}" if len(fields) == 1 else f"fields {names}"


def where_stored(share: Share) -> str:
    """Why shards do not have a field."""
    if share.old_directory is None:
        return f"the study has no data set '{share.new.id}'"
    return f"those in {share.old_directory} do not have it as it is defined now"


def _require_apart(study: Workspace, out: Path) -> None:
    """Raise UsageError for a place that is the study's own."""
    inside = (INFO_DIR, EXTENSIONS_DIR, *(i.id for i in study.plan.instances))
    own = [study.path, *(study.path / name for name in inside)]
    place = out.resolve()
    for path in own:
        inner = path.resolve()
        if place == inner or (path != study.path and inner in place.parents):
            raise UsageError(f"{out} belongs to the study in {study.path}; name another directory with --out")
    for instance in study.plan.instances:
        if place in (study.path / instance.id).resolve().parents:
            raise UsageError(f"{out} holds a step of the study; name another directory with --out")


def _require_no_gap(shares: Sequence[Share]) -> None:
    """Raise ShardError if an extension between others is gone: its samples would be missing unnoticed."""
    num = 0
    for share in shares:
        samples = share.workspace.plan.samples
        if samples is not None and share.rows.per_sample:
            if samples.first != num:
                raise ShardError(
                    f"{share.workspace.path} begins with sample {samples.first}, and there are {num} before it; "
                    "put the extension back that is missing there"
                )
            num += samples.num
