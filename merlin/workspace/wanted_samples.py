"""The samples that an edited spec wants for an existing study: how many, and which have other values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from merlin.base.document.tokens import substitute
from merlin.base.ranges import Range, merged
from merlin.plan.plan import SamplesInfo
from merlin.workspace.new_samples import differing_rows
from merlin.workspace.options import StudyOptions
from merlin.workspace.same_samples import stamp
from merlin.workspace.samples import open_samples
from merlin.workspace.samples_table import JoinedRows, SamplesTable
from merlin.workspace.sampling import write_samples
from merlin.workspace.spec_samples import design_of, is_made, located_samples, run_generate, samples_path
from merlin.workspace.text_samples import DIALECTS
from merlin.workspace.used_samples import AsInText
from merlin.workspace.waiting_samples import waiting_samples

if TYPE_CHECKING:
    from merlin.spec.load import Spec
    from merlin.spec.model import Generate, Samples


class WantedSamples(Struct, frozen=True, kw_only=True):
    """The samples of a spec, compared with those of a study."""

    num: int
    table: SamplesTable | None  # None: the first of the study's samples, as many as both have
    changed: tuple[Range, ...]  # samples of the study that have other values now


class Origin(Struct, frozen=True):
    """What the samples of a study or an extension came from."""

    block: Samples | None  # of its spec, variables filled in; None: not known, or of no account
    variables: Mapping[str, str]  # that were filled in


class KnownSamples(Struct, frozen=True, kw_only=True):
    """The samples of a study."""

    info: SamplesInfo  # of the study itself
    table: SamplesTable  # with those of its extensions
    num_given: int  # those that a spec gave; what follows is from files of extensions, and no spec has it
    origins: tuple[Origin, ...]  # of those that a spec gave

    def in_all(self, num: int) -> int:
        """How many samples there are if a spec gives `num`: what files added stays where all before it stays."""
        return self.table.num if num == self.num_given else num


def wanted_samples(
    spec: Spec, options: StudyOptions, known: KnownSamples, variables: Mapping[str, str], folder: Path
) -> WantedSamples:
    """Find the samples of a spec. They are made, in `folder`, only if the study's own spec would make others.

    `variables` are those of the study. Raises SamplesError: there are no usable samples.
    """
    samples = spec.document.merlin.samples
    assert samples is not None
    moved = {**variables, "MERLIN_INFO": str(folder)}
    path = samples_path(samples, options, moved)
    if samples.generate is None or not is_made(samples, options, path):
        if options.samples_file is None and _is_untouched(path, samples, known.info):
            return WantedSamples(num=known.table.num, table=None, changed=())
        return _compared(located_samples(spec, options, path, check=True), known)
    if _all_make_the_same(samples, known):
        if samples.generate.method is not None:
            num = known.in_all(design_of(spec, samples).num_samples)
        else:
            waiting = waiting_samples(samples, options, variables, known.table)
            num = known.table.num if waiting is None else waiting.num
        return WantedSamples(num=num, table=None, changed=())
    folder.mkdir(parents=True, exist_ok=True)
    if samples.generate.cmd is None:
        path = folder / (path.name if path.suffix.lower() in DIALECTS else "samples.npy")
        write_samples(path, design_of(spec, samples), samples.column_labels)
        return _compared(open_samples(path, samples.column_labels), known)
    run_generate(spec, substitute(samples.generate.cmd, moved), path, folder)
    return _compared(located_samples(spec, options, path, check=True), known)


def _is_untouched(path: Path, samples: Samples, info: SamplesInfo) -> bool:
    """Whether the file is the one that the study was planned with, and nobody has written to it since."""
    is_same = str(path) == info.file and tuple(samples.column_labels) == info.labels
    return is_same and bool(info.stamp) and stamp(path) == info.stamp


def _all_make_the_same(samples: Samples, known: KnownSamples) -> bool:
    """Whether the spec makes all samples as they were made: an extension may have had other bounds than its study."""
    generate = samples.generate
    if generate is None or tuple(samples.column_labels) != known.info.labels:
        return False
    before = [(each.block.generate if each.block else None, each.variables) for each in known.origins]
    return all(was is not None and _makes_the_same(generate, was, variables) for was, variables in before)


def _makes_the_same(new: Generate, old: Generate, variables: Mapping[str, str]) -> bool:
    """Whether the samples are the same, as far as both have them: a design may have more or fewer points."""
    if new.cmd is not None or old.cmd is not None:
        return substitute(new.cmd or "", variables) == substitute(old.cmd or "", variables)
    if new.method == "grid" and new.num != old.num:
        return False
    return (new.method, dict(new.bounds), new.seed) == (old.method, dict(old.bounds), old.seed)


def _compared(table: SamplesTable, known: KnownSamples) -> WantedSamples:
    old = known.table
    if table.path.suffix.lower() == ".csv":
        old = AsInText([(old, 0, old.num)])
    if tuple(table.labels) != tuple(old.labels):
        return WantedSamples(num=table.num, table=table, changed=((0, min(table.num, old.num)),))
    if known.in_all(table.num) > table.num:
        table = JoinedRows([(table, 0, table.num), (old, table.num, old.num)])
    changed = tuple(merged(differing_rows(table, old, min(table.num, old.num))))
    is_same = not changed and table.num == old.num
    return WantedSamples(num=table.num, table=None if is_same else table, changed=changed)
