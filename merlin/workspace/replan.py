"""Plans a spec in the place of an existing study: to compare both, or for the next revision of the study."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from merlin.base.clock import local_now
from merlin.plan.expand import make_plan
from merlin.plan.growing import extends
from merlin.plan.launch import Launchers, has_launcher
from merlin.plan.plan import Plan, SamplesInfo
from merlin.plan.revise import num_changed
from merlin.workspace.directory import Workspace
from merlin.workspace.launchers import launchers_here, possible_launchers
from merlin.workspace.options import StudyOptions
from merlin.workspace.prepare import code_version, combinations_for

if TYPE_CHECKING:
    from merlin.spec.load import Spec


class Replanning:
    """Plans a spec for studies and extensions that have a plan."""

    def __init__(self, spec: Spec, options: StudyOptions) -> None:
        self.spec, self.options = spec, options
        self.combos = combinations_for(spec, options)

    def plan(self, member: Workspace, samples: SamplesInfo | None, before: Sequence[Plan] = ()) -> Plan:
        """The plan with these samples, and with the same launchers as the member's plan, if these can be found out.

        `before` are the plans of the study and of the extensions before this one, as the spec makes them.
        """
        here = launchers_here(self.spec, is_dry=self.options.is_dry)
        best = self._plan(member, samples, before, here)
        fewest = num_changed(member.plan, best)
        scripts = [text for step in self.spec.document.study for text in step.run.scripts]
        for launchers in possible_launchers() if any(map(has_launcher, scripts)) else ():
            if not fewest:
                break
            plan = self._plan(member, samples, before, launchers)
            if (num := num_changed(member.plan, plan)) < fewest:
                best, fewest = plan, num
        return best

    def _plan(
        self, member: Workspace, samples: SamplesInfo | None, before: Sequence[Plan], launchers: Launchers
    ) -> Plan:
        plan = make_plan(
            self.spec,
            workspace=member.path,
            num_samples=None if samples is None else samples.num,
            samples_file=None if samples is None else samples.file,
            combos=self.combos,
            created=local_now(),
            study_id=member.plan.study_id,
            seed=member.plan.seed,
            launchers=launchers,
            code_version=code_version(),
            extending=extends(member.plan.extension, member.root, before) if member.plan.extension else None,
            laid_out=samples,
        )
        if samples is None or plan.samples is None:
            return plan
        return replace(plan, samples=replace(plan.samples, digest=samples.digest, stamp=samples.stamp))
