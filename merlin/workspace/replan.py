"""Plans a spec in the place of an existing study: to compare both, or for the next revision of the study."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec.structs import replace

from merlin.plan.expand import make_plan
from merlin.plan.growing import extends
from merlin.plan.launch import Launchers, has_launcher
from merlin.plan.parameters import Combination, combinations
from merlin.plan.plan import Plan, SamplesInfo
from merlin.plan.revise import num_changed
from merlin.workspace.directory import Workspace
from merlin.workspace.launchers import launchers_here, possible_launchers
from merlin.workspace.options import StudyOptions
from merlin.workspace.prepare import code_version

if TYPE_CHECKING:
    from merlin.spec.load import Spec


@dataclass(slots=True)
class Replanning:
    """Plans a spec for studies and extensions that have a plan."""

    spec: Spec
    options: StudyOptions
    combos: tuple[Combination, ...] = field(init=False)

    def __post_init__(self) -> None:
        options = self.options
        self.combos = combinations(self.spec.document, options.pgen, options.pargs, self.spec.variables)

    def plan(self, member: Workspace, samples: SamplesInfo | None, before: Sequence[Plan] = ()) -> Plan:
        """The plan with these samples, and with the same launchers as the member's plan, if these can be found out.

        `before` are the plans of the study and of the extensions before this one, as the spec makes them.
        """
        best, fewest = None, 0
        for launchers in self._launchers():
            plan = self._plan(member, samples, before, launchers)
            num = num_changed(member.plan, plan)
            if best is None or num < fewest:
                best, fewest = plan, num
            if not num or not any(map(has_launcher, self._scripts())):
                break
        assert best is not None
        return best

    def _launchers(self) -> Iterator[Launchers]:
        yield launchers_here(self.spec, is_dry=self.options.is_dry)
        yield from possible_launchers()

    def _scripts(self) -> Iterator[str]:
        for step in self.spec.document.study:
            yield step.run.cmd or ""
            yield step.run.restart or ""

    def _plan(
        self, member: Workspace, samples: SamplesInfo | None, before: Sequence[Plan], launchers: Launchers
    ) -> Plan:
        plan = make_plan(
            self.spec,
            workspace=member.path,
            num_samples=None if samples is None else samples.num,
            samples_file=None if samples is None else samples.file,
            combos=self.combos,
            created=datetime.now(UTC).astimezone().isoformat(timespec="seconds"),
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
