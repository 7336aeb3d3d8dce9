"""An edited spec for a study that has run: the plans that it makes, and what they change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from merlin.base.ranges import Range, total
from merlin.errors import MerlinError, SpecError, UsageError
from merlin.ledger.collect_again import badly_collected, ever_taken, to_collect_again
from merlin.ledger.replay import Replay, replay
from merlin.plan.code_changes import code_changes
from merlin.plan.parameters import as_block
from merlin.plan.plan import Plan, SamplesInfo, StepKind
from merlin.plan.revise import Change, find_change
from merlin.plan.revise_collection import Before, Holds
from merlin.plan.revise_extension import because_of_study
from merlin.plan.study_variables import runtime_variables
from merlin.spec.load import Spec, load_spec
from merlin.spec.model import Samples
from merlin.spec.variables import OUTPUT_PATH
from merlin.views.rerunning import HasFiles
from merlin.workspace.acquire import missing_paths
from merlin.workspace.code_files import require_files, with_code
from merlin.workspace.directory import REVISIONS_DIR, Workspace, members, revision_dir
from merlin.workspace.options import StudyOptions
from merlin.workspace.prepare import code_version
from merlin.workspace.provenance import NAME as PROVENANCE_NAME
from merlin.workspace.provenance import find_provenance, has_given_samples, read_provenance
from merlin.workspace.replan import Replanning
from merlin.workspace.revisions import next_number, numbered
from merlin.workspace.samples_table import JoinedRows, SamplesTable, rows_of
from merlin.workspace.spec_samples import refuse_unsafe_text, stored_path
from merlin.workspace.text_values import column_uses
from merlin.workspace.used_samples import has_its_samples, samples_of_plan, used_name
from merlin.workspace.variables_read import variables_read, with_variables, without_own_values
from merlin.workspace.wanted_samples import KnownSamples, Origin, WantedSamples, wanted_samples


class UpdateOptions(Struct, frozen=True, kw_only=True):
    """What the user decides about an update."""

    keep: tuple[str, ...] = ()  # steps whose results are taken as they are
    rerun_code: bool = False  # steps whose functions or files have changed run again


class MemberUpdate(Struct, frozen=True, kw_only=True):
    """What an edited spec makes of a study, or of one of its extensions."""

    workspace: Workspace  # as it is
    plan: Plan  # as it will be, in the new revision
    change: Change
    state: Replay
    rows: SamplesTable | None  # its samples, if they have changed

    @property
    def num_to_run(self) -> int:
        return sum(each.num_to_run for each in self.change.instances if not each.is_gone)


class Update(Struct, frozen=True, kw_only=True):
    """A study as an edited spec wants it."""

    study: Workspace
    spec: Spec
    number: int  # of the revision
    members: tuple[MemberUpdate, ...]
    gone: tuple[str, ...]  # extensions that lose all of their samples, and are put aside as a whole
    samples: str  # what has changed in the samples, in words; "" if nothing has
    has_other_values: bool  # some samples of the study have other values
    keep: tuple[str, ...]  # steps whose results are taken as they are
    reruns_code: bool  # steps whose functions or files have changed run again
    num_more: int  # samples that the spec has beyond those of the study: an extension gets them
    num_fewer: int  # samples that the study loses
    parameters: Mapping[str, Any] | None  # of a generator
    code: Mapping[str, list[str]]  # by step: which files have changed that it uses
    versions: tuple[str, ...]  # what else has changed: of this program, Python and packages

    @property
    def grows(self) -> bool:
        """An extension follows the revision, and adds its rows to the data sets."""
        return bool(self.num_more) and not self.is_nothing

    @property
    def has_only_more(self) -> bool:
        """The samples are those of the study, and more."""
        return bool(self.num_more) and all(each.rows is None for each in self.members)

    @property
    def is_nothing(self) -> bool:
        """The study is what the spec wants, except for additional samples."""
        return (not self.samples or self.has_only_more) and all(
            _is_same(each.workspace.plan, each.plan) for each in self.members
        )


def plan_update(
    spec: Spec,
    options: StudyOptions,
    study: Workspace,
    how: UpdateOptions,
    folder: Path | None = None,
) -> Update:
    """Compare an edited spec with a study; nothing of the study changes.

    Args:
        spec: A checked spec.
        options: The options of the command line.
        study: The study, not one of its extensions.
        how: What the user decides.
        folder: Where changed samples are made; by default, where the revision will have them.

    Raises:
        SamplesError: the spec's samples cannot be used.
        SpecError: a path or a file that the spec depends on does not exist.
        UsageError: the study cannot become what the spec says.
        LedgerError: the ledger cannot be read.
    """
    return _Planning(spec, options, study, how, folder).update()


class _Planning:
    def __init__(
        self, spec: Spec, options: StudyOptions, study: Workspace, how: UpdateOptions, folder: Path | None
    ) -> None:
        self.spec, self.options, self.study, self.how = spec, options, study, how
        self.number = next_number(study)
        self.folder = folder or revision_dir(study.info, self.number)
        self.variables = runtime_variables(spec, study.path)
        self.code: dict[str, dict[str, str]] = {}  # of the steps as they are now
        self.changes: dict[str, list[str]] = {}  # of that code, by step
        self.read: dict[str, set[str]] = {}  # by step of a function: the variables that it reads
        names = {step.name for step in spec.document.study}
        if unknown := sorted(set(how.keep) - names):
            raise UsageError(
                f"--keep {unknown[0]}: the spec has no such step; it has: {', '.join(sorted(names))}"
            )
        self.replanning = Replanning(spec, options)

    def update(self) -> Update:
        if findings := missing_paths(self.spec, self.variables):
            raise SpecError(findings)
        require_files(self.spec, self.variables, self.replanning.combos)
        studies = members(self.study)
        wanted = self._wanted(studies)
        sizes = self._sizes(studies, wanted)
        updates: list[MemberUpdate] = []
        for member, num in zip(studies, sizes, strict=False):
            updates.append(self._member(member, num, wanted, updates))
        gone = tuple(member.member for member in studies[len(sizes) :])
        num = _num_samples(studies)
        update = Update(
            study=self.study,
            spec=self.spec,
            number=self.number,
            members=tuple(updates),
            gone=gone,
            samples=_in_words(studies, wanted, gone),
            has_other_values=wanted is not None and bool(wanted.changed),
            keep=self.how.keep,
            reruns_code=self.how.rerun_code,
            num_more=0 if wanted is None else max(0, wanted.num - num),
            num_fewer=0 if wanted is None else max(0, num - wanted.num),
            parameters=as_block(self.replanning.combos) if self.options.pgen else None,
            code=self.changes,
            versions=tuple(_other_versions(self.study)),
        )
        if not update.grows and not gone:
            return update
        return replace(update, members=(*updates[:-1], _with_manifests(updates[-1])))

    # ------------------------------------------------------------------ samples

    def _wanted(self, studies: list[Workspace]) -> WantedSamples | None:
        """None if the spec has no samples."""
        block, info = self.spec.document.merlin.samples, self.study.plan.samples
        if (block is None) != (info is None):
            raise UsageError(
                f"the spec has {'no ' if block is None else ''}samples, and {self.study.path} has "
                f"{'no' if info is None else info.num}; that is another study: merlin run {self.spec.path}"
            )
        if block is None or info is None:
            return None
        given = [studies[0], *(each for each in studies[1:] if not self._is_of_a_file(each, block))]
        last = studies.index(given[-1])  # a spec that gave its samples also had those before them
        known = KnownSamples(
            info=info,
            table=_rows_of(studies),
            num_given=_num_samples(studies[: last + 1]),
            origins=tuple(self._origin(member, member.info) for member in given if block.generate),
        )
        return wanted_samples(self.spec, self.options, known, self.variables, self.folder)

    def _is_of_a_file(self, extension: Workspace, block: Samples) -> bool:
        """Whether an extension was begun with a file of its own: by --new-rows, --samplesfile or merlin.run."""
        folder = _begun_with(extension)
        words = read_provenance(folder).command.split()
        if any(word.startswith(("--new-rows", "--samplesfile")) for word in words):
            return True
        first = self._origin(extension, folder).block if block.generate else None
        return has_given_samples(folder) or (first is not None and first.generate is None)

    def _origin(self, member: Workspace, folder: Path) -> Origin:
        """What the spec says of a member's samples of which `folder` has the copy."""
        variables = runtime_variables(self.spec, member.path, member.root)
        for path in folder.glob("*.expanded.yaml"):
            with suppress(MerlinError):
                return Origin(load_spec(path, allow_undefined=True).document.merlin.samples, variables)
        return Origin(None, variables)

    def _sizes(self, studies: list[Workspace], wanted: WantedSamples | None) -> list[int]:
        """How many samples each workspace has after the update; the last ones, which would have none, are left out."""
        if wanted is None:
            return [0 for _ in studies]
        left, sizes = wanted.num, []
        for member in studies:
            assert member.plan.samples is not None
            sizes.append(min(left, member.plan.samples.num))
            left -= sizes[-1]
        return [size for size in sizes if size]

    # ------------------------------------------------------------------ plans

    def _member(
        self, member: Workspace, num: int, wanted: WantedSamples | None, before: list[MemberUpdate]
    ) -> MemberUpdate:
        samples, rows = self._samples(member, num, wanted)
        first = member.first_sample
        moved = [] if wanted is None else _within(wanted.changed, first, first + num)
        state = replay(member.ledger_dir, member.plan)
        plan = self.replanning.plan(member, samples, [each.plan for each in before])
        self._refuse_unsafe_text(member, plan, rows)
        if not self.code:
            self.code = with_code(self.spec, plan, self.variables, self.replanning.combos).code
            self.read = variables_read(plan, self.code)
        old, new = (with_variables(each, self.read) for each in (member.plan, replace(plan, code=self.code)))
        self.changes |= (again := code_changes(old, new))
        change = find_change(
            Before(
                plan=member.plan,
                outcomes=state.outcomes,
                has_files=HasFiles(member, state.outcomes),
                badly_collected=badly_collected(state),
                pending=to_collect_again(state, member.plan),
                taken=ever_taken(state, member.plan),
                holds=_data_sets_before(member, state),
            ),
            plan,
            changed_samples=moved,
            changed_inputs=_changed_inputs(plan, before),
            changed_code=again if self.how.rerun_code else {},
            keep=self.how.keep,
        )
        plan = replace(plan, revision=self.number, code=self._recorded(old, new, again, change))
        return MemberUpdate(workspace=member, plan=plan, change=change, state=state, rows=rows)

    def _samples(
        self, member: Workspace, num: int, wanted: WantedSamples | None
    ) -> tuple[SamplesInfo | None, SamplesTable | None]:
        """What the new plan of a member says about its samples; and the samples, if they have changed."""
        old, first = member.plan.samples, member.first_sample
        if wanted is None or old is None:
            return old, None
        has_new_labels = wanted.table is not None and tuple(wanted.table.labels) != old.labels
        is_other = bool(_within(wanted.changed, first, first + num)) or has_new_labels or num != old.num
        if not is_other and has_its_samples(member):
            return old, None
        if wanted.table is None:
            rows = rows_of(samples_of_plan(member), 0, num)
        else:
            rows = rows_of(wanted.table, first, first + num)
        file = stored_path(revision_dir(member.info, self.number) / used_name(rows), member.path)
        return replace(old, file=file, num=num, digest="", stamp="", room=max(old.num, old.room)), rows

    def _refuse_unsafe_text(self, member: Workspace, plan: Plan, rows: SamplesTable | None) -> None:
        """Raise SamplesError for text that a shell acts on, if changed samples or scripts would bring it to a shell."""
        if plan.samples is None or (rows is None and column_uses(plan) == column_uses(member.plan)):
            return
        refuse_unsafe_text(self.spec, self.options, plan, samples_of_plan(member) if rows is None else rows)

    def _recorded(
        self, old: Plan, new: Plan, changes: Mapping[str, list[str]], change: Change
    ) -> dict[str, dict[str, str]]:
        """The code that the steps' results come from: the old code, where code has changed and results are kept."""
        here = [each for each in change.instances if not each.is_gone]
        renewed = {each.step for each in here} - {each.step for each in here if each.num_kept}
        is_old = set() if self.how.rerun_code else changes.keys() - renewed
        code = {step: old.code[step] if step in is_old else files for step, files in new.code.items()}
        return without_own_values(code, new)


def _changed_inputs(plan: Plan, before: list[MemberUpdate]) -> dict[str, list[Range]]:
    """The tasks of an extension whose inputs change with the study and the extensions before it; none of the study."""
    if not before:
        return {}
    study = before[0]
    made = [each.change.made_anew for each in before]
    return because_of_study(plan, study.workspace.plan, study.plan, made)


def _data_sets_before(member: Workspace, state: Replay) -> Holds:
    """A function that knows the earlier data sets. It reads them at its first call: few updates need them."""

    @cache
    def found() -> Holds:
        from merlin.shards.recollecting.before import DataSetsBefore  # with HDF5

        return DataSetsBefore(member, state.outcomes)

    return lambda *asked: found()(*asked)


def _other_versions(study: Workspace) -> Iterator[str]:
    """Programs and packages that have another version here than when the study was made."""
    then, now = read_provenance(study.info), find_provenance(Path(study.plan.spec_path).parent)
    pairs = {"Merlin": (study.plan.code_version, code_version()), "Python": (then.python, now.python)}
    pairs |= {name: (then.packages.get(name, ""), version) for name, version in now.packages.items()}
    for name, (was, is_) in pairs.items():
        if was and is_ and was != is_:
            yield f"{name} {was}, now {is_}"


def _is_same(old: Plan, new: Plan) -> bool:
    """Whether the plans are the same, whoever made them, when, where, and from which file."""
    if old.code != new.code and old.code:
        return False
    return _made_by_nobody(old) == _made_by_nobody(new)


def _made_by_nobody(plan: Plan) -> Plan:
    variables = {name: value for name, value in plan.variables.items() if name != OUTPUT_PATH}
    return replace(
        plan,
        created="",
        revision=0,
        spec_path="",
        spec_digest="",
        code_version="",
        code={},
        variables=variables,
    )


def _within(ranges: Iterable[Range], lo: int, hi: int) -> list[Range]:
    """The parts of the ranges in [lo, hi), counted from lo."""
    return [(max(a, lo) - lo, min(b, hi) - lo) for a, b in ranges if max(a, lo) < min(b, hi)]


def _rows_of(studies: Iterable[Workspace]) -> SamplesTable:
    tables = [samples_of_plan(member) for member in studies]
    return JoinedRows([(table, 0, table.num) for table in tables])


def _begun_with(member: Workspace) -> Path:
    """The folder that tells how a study or an extension was begun; each revision has one of its own."""
    numbers = numbered(member.info / REVISIONS_DIR)
    folders = [*(revision_dir(member.info, number) for number in numbers), member.info]
    return next((folder for folder in folders if (folder / PROVENANCE_NAME).is_file()), member.info)


def _num_samples(studies: Iterable[Workspace]) -> int:
    return sum(member.plan.num_samples for member in studies)


def _with_manifests(member: MemberUpdate) -> MemberUpdate:
    """The update with all manifests made anew, because later rows come or go, and data sets are put aside for that."""
    manifests = {each.id for each in member.plan.instances if each.kind is StepKind.MANIFEST}
    instances = (
        replace(each, again=((0, 1),), num_kept=0) if each.id in manifests and each.num_kept else each
        for each in member.change.instances
    )
    return replace(member, change=Change(instances=tuple(instances)))


def _in_words(studies: list[Workspace], wanted: WantedSamples | None, gone: tuple[str, ...]) -> str:
    if wanted is None:
        return ""
    num, changed = _num_samples(studies), total(wanted.changed)
    words = [f"{changed:,} with other values"] if changed else []
    if wanted.num < num:
        words.append(
            f"{num - wanted.num:,} fewer" + (f", among them all of {' and '.join(gone)}" if gone else "")
        )
    if wanted.num > num:
        words.append(f"{wanted.num - num:,} new")
    return ", ".join(words)
