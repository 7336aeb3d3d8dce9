"""Shows the studies of one or more directories, one line each."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from merlin.base.text import count, duration, rate, size
from merlin.cli.output import dump_file, flush, plain, print_json, print_table, remark
from merlin.plan.outcome_counts import OUTCOMES
from merlin.views.disk_use import size_on_disk
from merlin.views.studies import studies_in
from merlin.views.study_line import StudyLine


def list_studies(
    folders: Sequence[Path],
    *,
    as_json: bool,
    dump: Path | None,
    newest: int | None = None,
    with_size: bool = False,
) -> None:
    """Print the studies in `folders`, or the `newest` ones of them, or write them into the file `dump`."""
    studies = studies_in(*folders, newest=newest)
    sizes = [size_on_disk(Path(study.workspace)) for study in studies] if with_size else []
    rows = [plain(study) | ({"size_bytes": sizes[i]} if sizes else {}) for i, study in enumerate(studies)]
    places = [folder.absolute() for folder in folders]
    document = {"directory": places[0], "directories": places, "studies": rows}
    if dump is not None:
        dump_file(dump, [_flat(row) for row in rows], document)
        print(f"status written to {dump}")
    elif as_json:
        print_json(document)
    elif studies:
        _show(studies, sizes, places)
    else:
        remark(f"no study directly in {', '.join(map(str, places))}; merlin list --root DIR looks elsewhere")


def _show(studies: Sequence[StudyLine], sizes: Sequence[int], places: Sequence[Path]) -> None:
    is_alive = any(study.rate or study.eta for study in studies)
    columns = ["study", "when", "state", *OUTCOMES]
    columns += ["pace", "left"] if is_alive else []
    columns += ["size"] if sizes else []
    rows = []
    for i, study in enumerate(studies):
        row = [study.name, study.when, f"{study.state} (dry run)" if study.is_dry else study.state]
        row += ["" if study.problem else f"{getattr(study, kind):,}" for kind in OUTCOMES]
        row += [rate(study.rate), duration(study.eta.mid_s) if study.eta else ""] if is_alive else []
        row += [size(sizes[i])] if sizes else []
        rows.append([*row, study.problem or _shown(study.workspace)])
    print_table([*columns, "workspace"], rows, right=(*OUTCOMES, "pace", "left", "size"))
    flush()
    stalled = [study for study in studies if study.state_reason]
    for study in stalled:
        remark(f"{_shown(study.workspace)} is {study.state}: {study.state_reason}")
    if len(places) > 1:
        remark(
            f"{count(len(studies), 'study', 'studies')} in {count(len(places), 'directory', 'directories')}"
        )


def _shown(workspace: str) -> str:
    """The path, short if it lies below the current directory."""
    here = f"{os.getcwd()}/"  # noqa: PTH109 - as text
    return workspace.removeprefix(here)


def _flat(row: dict[str, object]) -> dict[str, object]:
    eta = row.pop("eta")
    return row | {"eta_s": eta["mid_s"] if isinstance(eta, dict) else None}
