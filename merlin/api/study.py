"""`merlin.Study`: a study that runs, has run, or will."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Self

from merlin.api import notebook
from merlin.api.cancelling import cancel_study
from merlin.api.extending import waits_for
from merlin.api.left_to_run import refuse_changed_samples, refuse_failed_before, refuse_published, with_work
from merlin.api.running import run_here
from merlin.api.study_html import page_html
from merlin.errors import UsageError
from merlin.execution.conductor import RunOptions
from merlin.plan.reopen import Again
from merlin.status.failures import FailureGroup, group_failures
from merlin.status.live import is_live
from merlin.status.snapshot import is_published, read_facts
from merlin.status.sql import query_frame
from merlin.views.live import has_left_jobs
from merlin.views.study_page import StudyPage, StudyView
from merlin.workspace.directory import members
from merlin.workspace.holding import open_finished

if TYPE_CHECKING:
    from pandas import DataFrame

    from merlin.execution.events import Progress
    from merlin.shards.ensemble import Ensemble

_LOG = logging.getLogger("merlin")
_POLL_S = 0.5


class Study:
    """A study with its extensions, in its workspace; a notebook shows it, and follows it while it runs."""

    def __init__(self, workspace: str | os.PathLike[str]) -> None:
        """Open a workspace. Raises WorkspaceError if there is none."""
        self._workspace = members(open_finished(workspace, _LOG.warning))[0]
        self._view = StudyView(self._workspace.path)
        self.shown_in: int | None = None  # the notebook's cell that shows it already

    @property
    def path(self) -> Path:
        """The workspace."""
        return self._workspace.path

    @property
    def name(self) -> str:
        return self._workspace.plan.name

    def status(self) -> StudyPage:
        """How far it is: `state`, `totals`, `steps`, `workers`, `eta` … Reads only what is new since the last call."""
        return self._view.look()

    def failures(self) -> list[FailureGroup]:
        """Failures that still count, grouped by step, kind of end and message; the largest group first."""
        groups = [group for study in members(self._workspace) for group in group_failures(study)]
        return sorted(groups, key=lambda group: -group.count)

    def tasks(self, where: str | None = None) -> DataFrame:
        """A row for each task, or only for tasks that meet an SQL condition: "outcome = 'failed' and X0 > 3".

        Columns: see the view `tasks` of `merlin sql`. Raises UsageError for a condition that cannot be decided.
        """
        return self.sql("select * from tasks" + (f" where ({where})" if where else ""))

    def sql(self, query: str) -> DataFrame:
        """The answer to a query, as of `merlin sql`. Raises UsageError, often with DuckDB's message."""
        return query_frame(self._workspace, query)

    @property
    def data(self) -> Ensemble | dict[str, Ensemble]:
        """The finished data set, opened; several as a dictionary by step instance. UsageError if there is none."""
        from merlin.shards.ensemble import open_shards

        found = {line.aggregate: line.path for line in self.status().data_sets}
        if not found:
            raise UsageError(f"the study in {self.path} has no finished data set")
        opened = {name: open_shards(path) for name, path in found.items()}
        return next(iter(opened.values())) if len(opened) == 1 else opened

    def wait(self, timeout: float | None = None) -> Self:
        """Wait as long as the study runs, here or on workers. Raises TimeoutError after `timeout` seconds."""
        until = None if timeout is None else time.monotonic() + timeout
        # a study that ends between the questions to ledger and Redis seems to have stopped: so it is looked at twice
        while any((page := self.status()).state not in notebook.OVER for _ in range(2)):
            if until is not None and time.monotonic() > until:
                raise TimeoutError(f"the study in {self.path} is {page.state} after {timeout:g} s")
            time.sleep(_POLL_S)
        return self

    def restart(
        self,
        *,
        failed: bool = False,
        steps: Collection[str] | None = None,
        workers: int | None = None,
        progress: Callable[[Progress], object] | None = None,
    ) -> Self:
        """Run what is missing on this machine; with `failed` also what failed and what was skipped because of it, of
        `steps` if some are given. Its extensions follow.

        Raises:
            UsageError: the study has no such step.
            WorkspaceError: somebody else runs it, or what has failed stops it, by max_failures or its canary.
            ExecutionError, KeyboardInterrupt: as `merlin.run`.
        """
        if steps is not None and not failed:
            raise UsageError("steps says which failed tasks run again; give failed=True, too")
        plan = self._workspace.plan
        plan.check_steps(steps or (), also={instance.id for instance in plan.instances})
        again = Again(failed=failed, steps=None if steps is None else tuple(steps))
        options = RunOptions(workers=workers, again=again, may_fork=False)
        studies = with_work(self._workspace, again)
        refuse_changed_samples(studies)
        if not again:
            refuse_failed_before(studies)
        for study in studies:
            if missing := waits_for(study):
                _LOG.warning(f"{study.path} needs {missing}, which has not ended ok")
                continue
            refuse_published(study, _LOG.warning)
            self.shown_in = run_here(study, options, progress)
        return self

    def cancel(self) -> Self:
        """End the study, whatever process runs it; what has ended stays. Returns when nothing runs any more.

        Raises WorkspaceError if a command on another machine runs it, ExecutionError if something survives.
        """
        for study in members(self._workspace):
            if is_live(study) or is_published(read_facts(study)) or has_left_jobs(study):
                cancel_study(study, _LOG.info)
        return self

    def report(self, path: str | os.PathLike[str] = "report.html", *, pictures: bool = True) -> Path:
        """Write the report, one HTML page; returns its path."""
        from merlin.report.page import write_report

        return write_report(self._workspace, Path(path), pictures=pictures)

    # ------------------------------------------------------------------------------------ in notebooks

    def __repr__(self) -> str:
        page = self.status()
        totals = page.totals
        return f"<merlin.Study {self.name}: {page.state}, {totals.ok:,} of {totals.planned:,} tasks ok, {self.path}>"

    def _repr_html_(self) -> str:
        return page_html(self.status())

    def _ipython_display_(self) -> None:
        """Show the study, and follow it while it runs; but not a second time in the cell that ran it."""
        shell = notebook.notebook()
        if shell is None:
            raise NotImplementedError  # says to IPython in a terminal: take `repr`
        if self.shown_in is None or shell.execution_count != self.shown_in:
            notebook.follow(self.status, self.status())
