"""`merlin.run`: a study from a spec, run by this machine to its end."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

from merlin.api.beginning import check_machine, new_study, study_warnings
from merlin.api.extending import next_extension
from merlin.api.running import run_here
from merlin.api.study import Study
from merlin.base.files import absolute_path
from merlin.errors import Diagnostic, SamplesError, UsageError, command_line
from merlin.execution.conductor import RunOptions
from merlin.execution.events import Progress
from merlin.spec.load import read_samples_block
from merlin.workspace.checking import load_checked
from merlin.workspace.holding import open_root
from merlin.workspace.options import StudyOptions

if TYPE_CHECKING:
    import numpy as np
    from pandas import DataFrame

    from merlin.workspace.directory import Workspace

_LOG = logging.getLogger("merlin")
Value = str | int | float | bool | os.PathLike[str]


def run(
    spec: str | os.PathLike[str],
    *,
    workers: int | None = None,
    vars: Mapping[str, Value] | None = None,
    output: str | os.PathLike[str] | None = None,
    samples: str | os.PathLike[str] | np.ndarray[Any, Any] | DataFrame | None = None,
    extend: str | os.PathLike[str] | Study | None = None,
    new_rows: bool = False,
    progress: Callable[[Progress], object] | None = None,
) -> Study:
    """Run the study that a spec describes on this machine, to its end; a notebook shows how it goes.

    Tasks that fail raise nothing: see `Study.failures`. Worker processes are new ones, which do not import the program
    that calls this. Warnings and notes go to the logger "merlin".

    Args:
        spec: The YAML file.
        workers: Worker processes; by default one for each core.
        vars: Variables of the spec to override, as `--vars`.
        output: The directory for the workspace, as `--output`.
        samples: A samples file, an array with a row for each sample, or a DataFrame that has the spec's column_labels
            among its columns; in place of the spec's.
        extend: A study that gets the samples which the spec has and it does not, as `--extend`. It is returned.
        new_rows: With `extend`: the samples are the new ones alone, as `--new-rows`.
        progress: Called a few times per second with the number of tasks by state, in this thread.

    Raises:
        SpecError: the spec or its samples are wrong; `diagnostics` lists every finding with its place.
        UsageError: the arguments contradict the spec or each other.
        WorkspaceError: no workspace can be made, or the study to extend cannot be.
        ExecutionError: the run itself broke; `Study(…).restart()` goes on.
        KeyboardInterrupt: after Ctrl-C, when the study has stopped; `Study(…).restart()` goes on.
    """
    if workers is not None and (not isinstance(workers, int | Integral) or workers < 1):
        raise UsageError(f"workers must be a whole number, at least 1, not {workers!r}")
    if extend is not None and output is not None:
        raise UsageError("output says where a new study is made; one that is extended stays where it is")
    if new_rows and extend is None:
        raise UsageError("new_rows says what the samples of extend=STUDY are; give both")
    variables = {name: _text(value) for name, value in (vars or {}).items()}
    if output is not None:
        variables["OUTPUT_PATH"] = str(absolute_path(output))
    with _samples_file(_by_labels(samples, spec, variables)) as file:
        workspace = _begin(Path(spec), variables, StudyOptions(samples_file=file), extend, only_new=new_rows)
    if workspace is None:
        return _study(extend)
    cell = run_here(workspace, RunOptions(workers=workers, may_fork=False), progress)
    study = Study(workspace.root) if extend is None else _study(extend)
    study.shown_in = cell
    return study


def _text(value: Value) -> str:
    """Write a value as it would be typed after --vars."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _by_labels(samples: Any, spec: str | os.PathLike[str], variables: Mapping[str, str]) -> Any:
    """The columns of a DataFrame with names, in the order of the spec's column_labels; other samples as they are."""
    names = list(getattr(samples, "columns", ()))
    if not any(isinstance(name, str) for name in names):
        return samples
    block = read_samples_block(spec, variables=variables)
    if block is None:  # which is told when the spec is loaded
        return samples
    if missing := [label for label in block.labels if label not in names]:
        raise UsageError(f"samples has no column {missing[0]}; its columns are: {', '.join(map(str, names))}")
    return samples[list(block.labels)]


@contextmanager
def _samples_file(samples: Any) -> Iterator[str | None]:
    """The path of the samples; an array is written to a file, which the workspace gets a copy of."""
    if samples is None or isinstance(samples, str | os.PathLike):
        yield None if samples is None else os.fspath(samples)
        return
    import numpy as np

    if np.ma.is_masked(samples):
        raise UsageError("samples has masked values, and every sample needs a value in every column")
    rows = np.asarray(samples)
    if rows.ndim != 2:
        raise UsageError(f"samples must have rows and columns; this array has the shape {rows.shape}")
    with tempfile.TemporaryDirectory(prefix="merlin-") as folder:
        path = Path(folder) / "samples.npy"
        np.save(path, rows)
        try:
            yield str(path)
        except SamplesError as error:  # the file is nothing that the caller knows
            named = {str(path): "samples"}
            raise SamplesError([d.but(file=named.get(d.file, d.file)) for d in error.diagnostics]) from None


def _begin(
    path: Path,
    variables: Mapping[str, str],
    options: StudyOptions,
    extend: str | os.PathLike[str] | Study | None,
    *,
    only_new: bool,
) -> Workspace | None:
    """Prepare the study or its extension; None if there is nothing to add."""
    loaded = load_checked(path, variables, options)
    if loaded.document.batch.dry_run:
        raise UsageError(
            f"{path} says batch.dry_run: true; its scripts are written by: {command_line('run', path)}"
        )
    _warn(loaded.warnings)
    _warn(check_machine(loaded, is_elsewhere=False))
    if extend is None:
        made: Workspace | None = new_study(
            loaded, options, is_moved="OUTPUT_PATH" in variables, note=_LOG.info
        )
    else:
        study = open_root(_study(extend).path, _LOG.warning)
        made = next_extension(loaded, options, study, only_new=only_new, note=_LOG.info)
    if made is not None:
        _warn(study_warnings(loaded, made))
    return made


def _warn(found: list[Diagnostic]) -> None:
    for diagnostic in found:
        _LOG.warning(diagnostic.render())


def _study(given: str | os.PathLike[str] | Study | None) -> Study:
    assert given is not None
    return given if isinstance(given, Study) else Study(given)
