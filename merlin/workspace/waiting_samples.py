"""Samples that generate.cmd made for an update, and that wait until the study has ended what it has to run again."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from merlin.base.document.tokens import substitute
from merlin.workspace.directory import REVISIONS_DIR, revision_dir
from merlin.workspace.new_samples import first_difference
from merlin.workspace.options import StudyOptions
from merlin.workspace.revisions import BEGUN, numbered
from merlin.workspace.samples import open_samples
from merlin.workspace.samples_table import SamplesTable
from merlin.workspace.spec_samples import samples_path

if TYPE_CHECKING:
    from merlin.spec.model import Samples


def waiting_samples(
    samples: Samples, options: StudyOptions, variables: Mapping[str, str], old: SamplesTable
) -> SamplesTable | None:
    """The table that the same generate.cmd made last for a revision, if it goes on from all samples so far, `old`.

    To run the command again could give other values. `variables` are those of the study. Raises SamplesError if the
    file cannot be read.
    """
    info = Path(variables["MERLIN_INFO"])
    for number in reversed(numbered(info / REVISIONS_DIR)):
        folder = revision_dir(info, number)
        made_by = ""
        with suppress(OSError):
            made_by = (folder / "cmd.sh").read_bytes().decode("utf-8", "surrogateescape")
        if not made_by or not (folder / BEGUN).exists():
            continue
        moved = {**variables, "MERLIN_INFO": str(folder)}
        path = samples_path(samples, options, moved)
        generate = samples.generate
        if generate is None or made_by != substitute(generate.cmd or "", moved) or not path.is_file():
            return None
        table = open_samples(path, samples.column_labels)
        goes_on = table.num > old.num and first_difference(old, table, old.num) is None
        return table if goes_on else None
    return None
