"""From a spec to its plan: pure, and independent of the number of samples."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from merlin.base.document.scalars import Problem
from merlin.base.document.tokens import find_tokens, substitute, substitute_in_names
from merlin.base.text import path_safe
from merlin.errors import ExecutionError, SpecError
from merlin.plan.aggregates import plan_aggregate
from merlin.plan.cleanup import wait_before_cleanup
from merlin.plan.dependencies import Dependency, StepNeeds, analyse, shell_of, sources_of
from merlin.plan.growing import Extends, continued, settled_steps
from merlin.plan.instance_names import NO_COMBINATION, combinations_of, instance_id
from merlin.plan.job_policy import LOCAL, job_policy, job_request, task_server_keys
from merlin.plan.launch import Launchers, declare_vlauncher, fill_launchers
from merlin.plan.notify_rule import notify_rules
from merlin.plan.parameters import Combination, filled
from merlin.plan.plan import Edge, Plan, SamplesInfo, Scalar, StepInstance, StepKind
from merlin.plan.step_resources import step_resources, with_values
from merlin.plan.study_variables import runtime_variables
from merlin.spec.variables import sample_names

if TYPE_CHECKING:
    from merlin.spec.data_set_blocks import AggregateBlock
    from merlin.spec.load import Spec
    from merlin.spec.run_block import Run

MANIFEST_SUFFIX = ".manifest"
_NO_LAUNCHERS = Launchers()
# The task's directory in upstream, where $(WORKSPACE) is the step's.
_TASK_IN_UPSTREAM = "$(WORKSPACE)/$(MERLIN_SAMPLE_PATH)"


def make_plan(
    spec: Spec,
    *,
    workspace: Path,
    num_samples: int | None,
    samples_file: str | None,
    combos: Sequence[Combination],
    created: str,
    study_id: str,
    seed: int = 0,
    launchers: Launchers = _NO_LAUNCHERS,
    code_version: str = "",
    extending: Extends | None = None,
    laid_out: SamplesInfo | None = None,
) -> Plan:
    """Decide every step instance of a study.

    Args:
        spec: A checked spec.
        workspace: Absolute path that the study lives in; its name ends in the timestamp.
        num_samples: Rows of the samples file; None if there is none, or their number is not known yet, which
            plans zero samples.
        samples_file: Absolute, or relative to the workspace.
        combos: From `merlin.plan.parameters.combinations`.
        created: ISO 8601 with zone.
        study_id: Unique name of the study.
        seed: Of everything random in the study's functions.
        launchers: What $(LAUNCHER) becomes; without any, programs start as one process each.
        code_version: Version of this program.
        extending: For an extension: the study that gets its samples. Steps that the new samples do not change are
            left out; their directories, and those of the data sets, are the study's.
        laid_out: The samples whose directories are there already, where a study is planned anew.
    """
    study = None if extending is None else extending.root
    variables = runtime_variables(spec, workspace, study)
    samples = _samples_info(spec, num_samples, samples_file, extending, laid_out)
    combos = filled(combos, variables, variables if study is None else runtime_variables(spec, study))
    planner = _Planner(spec, workspace, variables, samples, combos, launchers, extending)
    return Plan(
        name=spec.document.description.name,
        study_id=study_id,
        workspace=str(workspace),
        spec_path=str(spec.path),
        spec_root=variables["SPECROOT"],
        spec_digest=spec.digest,
        created=created,
        seed=seed,
        samples=samples,
        variables={
            name: substitute(value, variables) if isinstance(value, str) else value
            for name, value in spec.variables.items()
        },
        instances=planner.plan(),
        code_version=code_version,
        extension=0 if extending is None else extending.number,
        notify=notify_rules(spec.document.notify, lambda text: substitute(text, variables)),
    )


def _samples_info(
    spec: Spec, num: int | None, file: str | None, extending: Extends | None, laid_out: SamplesInfo | None
) -> SamplesInfo | None:
    block = spec.document.merlin.samples
    if block is None:
        return None
    return SamplesInfo(
        file=file or "",
        num=num or 0,
        labels=tuple(block.column_labels),
        level_max_dirs=block.level_max_dirs if laid_out is None else laid_out.level_max_dirs,
        first=0 if extending is None else extending.first_sample,
        room=0 if laid_out is None else laid_out.room,
    )


class _Planner(Struct):
    """Makes the instances of one step after the other, in topological order."""

    spec: Spec
    workspace: Path
    variables: Mapping[str, str]
    samples: SamplesInfo | None
    combos: tuple[Combination, ...]
    launchers: Launchers
    extending: Extends | None = None
    settled: frozenset[str] = frozenset()  # steps that an extension leaves out
    needs: dict[str, StepNeeds] = field(default_factory=dict)
    made: dict[str, list[StepInstance]] = field(default_factory=dict)  # by step, without manifests
    by_id: dict[str, StepInstance] = field(default_factory=dict)

    def plan(self) -> tuple[StepInstance, ...]:
        names = self.combos[0].values if self.combos else {}
        self.needs = {needs.name: needs for needs in analyse(self.spec.document, names)}
        if self.extending is not None:
            self.settled = settled_steps(self.needs)
        for needs in self.needs.values():
            self.made[needs.name] = []
            for combo in combinations_of(self.spec, needs, self.combos):
                self._add(self._instance(needs, combo))
        instances = tuple(self.by_id.values())
        if self.extending is not None:
            instances = continued(instances, self.extending, self.settled)
        return wait_before_cleanup(instances, str(self.workspace))

    def _add(self, instance: StepInstance) -> None:
        self.made[instance.step].append(instance)
        self._name(instance)
        if instance.aggregate is None:
            return
        for source in instance.aggregate.sources:
            fed = self.by_id[source]
            self.by_id[source] = replace(fed, feeds=(*fed.feeds, instance.id))
        manifest = replace(
            instance,
            id=instance.id + MANIFEST_SUFFIX,
            kind=StepKind.MANIFEST,
            num_tasks=1,
            edges=(Edge(source=instance.id, kind="all", group=instance.step),),
        )
        self._name(manifest)

    def _name(self, instance: StepInstance) -> None:
        """Raises SpecError if a step is called as the end of a data set is: X.manifest."""
        if instance.id in self.by_id:
            message = f"{instance.id!r} is a step, and is the end of the data set that a step makes"
            raise SpecError([self.spec.finding(("study",), message, "duplicate-step", "rename the step")])
        self.by_id[instance.id] = instance

    def _instance(self, needs: StepNeeds, combo: Combination) -> StepInstance:
        run = needs.step.run
        fill = self._filler(needs, combo)
        edges = self._edges(needs, combo)
        num_tasks = self.samples.num if needs.per_sample and self.samples is not None else 1
        common = StepInstance(
            id=instance_id(needs, combo),
            step=needs.name,
            kind=StepKind.CMD,
            num_tasks=num_tasks,
            per_sample=needs.per_sample,
            params={name: combo.values[name] for name in sorted(needs.parameters)},
            label=path_safe(combo.label(needs.parameters)),
            description=fill(needs.step.description).strip(),
            same_workspaces={self.by_id[e.source].step: e.source for e in edges if e.kind == "same"},
            queue=_queue(fill(run.task_queue)),
            max_retries=run.max_retries,
            retry_delay_s=run.retry_delay,
            timeout_s=run.timeout,
            on_failure=self._on_failure(run),
            max_failures=run.max_failures,
            canary=run.canary,
            crash_limit=run.crash_limit,
            fresh_shell=run.fresh_shell,
            resources=self._resources(needs, fill, num_tasks),
            edges=edges,
        )
        self._require_job(needs, common)
        if run.aggregate is not None:
            return self._aggregate(needs, combo, common, run.aggregate, fill)
        if run.function is not None:
            return replace(common, kind=StepKind.FUNCTION, function=fill(run.function))
        return self._shell_step(needs, common, fill)

    def _require_job(self, needs: StepNeeds, instance: StepInstance) -> None:
        """Raise SpecError for a step to submit whose numbers, with its parameters filled in, make no job."""
        try:
            if job_policy(instance) is not None:
                job_request(instance, name="step", output="")
        except (ExecutionError, ValueError) as error:
            raise SpecError([self.spec.finding(self._in_run(needs, "batch"), str(error), "value")]) from error

    def _on_failure(self, run: Run) -> Literal["skip", "continue"]:
        """The step's own key, else that of the block merlin, which is not for aggregates: a data set needs all its
        shards."""
        is_said = run.aggregate is not None or "on_failure" in run.model_fields_set
        return run.on_failure if is_said else self.spec.document.merlin.on_failure

    def _resources(self, needs: StepNeeds, fill: Callable[[str], str], num_tasks: int) -> dict[str, Scalar]:
        server = self.spec.document.merlin.resources.task_server
        run = with_values(needs.step.run, fill, self.spec, self._in_run(needs, "")[:-1])
        of_server = task_server_keys(server, num_tasks) if run.aggregate is None else {}
        try:
            resources = step_resources(run, self.spec.document.batch, fill, of_server)
        except Problem as problem:
            message = f"step {needs.name!r}: {problem}"
            finding = self.spec.finding(("batch", "type"), message, "batch-type", problem.hint)
            raise SpecError([finding]) from problem
        if run.aggregate is None and resources.get("batch.type", LOCAL) != LOCAL:
            self._require_values(needs, resources)
        return resources

    def _require_values(self, needs: StepNeeds, resources: Mapping[str, Scalar]) -> None:
        """Raise SpecError if the study's batch block has parameters that the step does not use."""
        known = NO_COMBINATION if not self.combos else self.combos[0]
        for key, value in resources.items():
            unknown = [t.name for t in find_tokens(str(value)) if t.name in known.tokens()]
            if unknown and key.startswith("batch."):
                message = f"{key} is {value!r}, and step {needs.name!r} does not use this parameter"
                hint = f"let the step use $({unknown[0]}), or give it a {key} of its own"
                raise SpecError([self.spec.finding(tuple(key.split(".")), message, "batch-type", hint)])

    # ------------------------------------------------------------------ commands

    def _shell_step(self, needs: StepNeeds, common: StepInstance, fill: Callable[[str], str]) -> StepInstance:
        run = needs.step.run
        shell = shell_of(self.spec.document, needs.step)
        sources = [self._source_line(fill(entry)) for entry in sources_of(self.spec.document, needs.step)]

        def script(text: str) -> str:
            text = declare_vlauncher(fill(text), common.resources, shell)
            text = "\n".join([*sources, text])
            if common.per_sample:
                text = text.replace(_TASK_IN_UPSTREAM, "$(WORKSPACE)")
            try:
                return fill_launchers(text, common.resources, self.launchers)
            except ValueError as error:
                message = f"step {needs.name!r}: {error}"
                hint = error.hint if isinstance(error, Problem) else ""
                where = self._in_run(needs, "cmd")
                raise SpecError([self.spec.finding(where, message, "launcher", hint)]) from error

        return replace(
            common,
            command=script(run.cmd or ""),
            restart=script(run.restart) if run.restart and run.restart.strip() else None,
            shell=fill(shell),
        )

    def _in_run(self, needs: StepNeeds, key: str) -> tuple[str | int, ...]:
        """Where the spec has this key of the step."""
        return ("study", list(self.spec.document.study).index(needs.step), "run", key)

    def _source_line(self, entry: str) -> str:
        """A script line for an entry of env.sources: a lone file name is sourced, the rest are commands."""
        if len(entry.split()) != 1:
            return entry
        path = os.path.expanduser(entry)  # noqa: PTH111 - leaves ~NAME if nobody has that name
        return f". {shlex.quote(str(Path(self.variables['SPECROOT']) / path))}"

    def _filler(self, needs: StepNeeds, combo: Combination) -> Callable[[str], str]:
        """A function that fills in all that is known now; tokens of the sample stay."""
        known = {**self.variables, **combo.tokens(), **self._sample_tokens(needs)}

        def fill(text: str) -> str:
            mapping = known
            tokens = find_tokens(substitute_in_names(text, known))
            refers = {t.name for t in tokens if t.name.endswith(".workspace")} - known.keys()
            if refers:
                mapping = {**known, **{name: self._workspace_of(needs, combo, name) for name in refers}}
            return substitute(text, mapping)

        return fill

    def _sample_tokens(self, needs: StepNeeds) -> dict[str, str]:
        if self.samples is None:
            return {}
        out = {}
        if self.samples.num:
            out["MERLIN_GLOB_PATH"] = "*/" * self.samples.layout.depth
        if needs.per_sample:
            names = sample_names(self.samples.labels)
            for text in needs.step.run.scripts:
                for token in find_tokens(text):
                    name = names.get(token.name)
                    if name is not None and name != token.name:
                        out[token.name] = self.variables.get(name, f"$({name})")
        return out

    def _workspace_of(self, needs: StepNeeds, combo: Combination, token: str) -> str:
        """Directory that $(step.workspace) means: of a funnelled step the parent of its instances."""
        name = token.removesuffix(".workspace")
        other = self.needs.get(name)
        if other is None or not (name in needs.funnels or other.parameters <= combo.values.keys()):
            return f"$({token})"
        home = self.workspace
        if self.extending is not None and (other.step.run.aggregate is not None or name in self.settled):
            home = self.extending.root  # an extension leaves these to the study that it extends
        return str(home / (path_safe(name) if name in needs.funnels else instance_id(other, combo)))

    # --------------------------------------------------------------------- edges

    def _sources(self, needs: StepNeeds, combo: Combination, dependency: Dependency) -> list[StepInstance]:
        """Instances that a dependency stands for."""
        instances = self.made[dependency.step]
        if dependency.funnel:
            return instances
        wanted = instance_id(self.needs[dependency.step], combo)
        return [instance for instance in instances if instance.id == wanted]

    def _edges(self, needs: StepNeeds, combo: Combination) -> tuple[Edge, ...]:
        edges: dict[tuple[str, str], Edge] = {}
        collected = self._collected(needs)
        for dependency in needs.depends:
            for source in self._sources(needs, combo, dependency):
                kind: Literal["same", "all", "block"] = "all"
                source_id = source.id
                if dependency.step == collected:
                    kind = "block"
                elif source.kind is StepKind.AGGREGATE:
                    source_id += MANIFEST_SUFFIX
                elif needs.per_sample and source.per_sample and not dependency.funnel:
                    kind = "same"
                edges.setdefault((source_id, kind), Edge(source=source_id, kind=kind, group=dependency.entry))
        return tuple(edges.values())

    # ---------------------------------------------------------------- aggregates

    def _collected(self, needs: StepNeeds) -> str | None:
        """The step whose outputs an aggregate step collects."""
        block = needs.step.run.aggregate
        if block is None:
            return None
        if block.from_ is not None:
            return Dependency.parse(block.from_).step
        names = {dependency.step for dependency in needs.depends}
        if len(names) != 1:
            raise self._aggregate_error(needs, "does not say which step it collects", "from: STEP")
        return names.pop()

    def _aggregate_error(self, needs: StepNeeds, message: str, hint: str) -> SpecError:
        message = f"aggregate step {needs.name} {message}"
        where = self._in_run(needs, "aggregate")
        return SpecError([self.spec.finding(where, message, "aggregate-source", hint)])

    def _aggregate(
        self,
        needs: StepNeeds,
        combo: Combination,
        common: StepInstance,
        block: AggregateBlock,
        fill: Callable[[str], str],
    ) -> StepInstance:
        sources = [self.by_id[edge.source] for edge in common.edges if edge.kind == "block"]
        labels = self.samples.labels if self.samples is not None else ()
        try:
            aggregate = plan_aggregate(block, fill, sources, labels)
        except Problem as problem:
            raise self._aggregate_error(needs, str(problem), problem.hint) from problem
        rows = len(sources) * sources[0].num_tasks
        num_shards = max(1, -(-rows // block.samples_per_shard))
        return replace(common, kind=StepKind.AGGREGATE, num_tasks=num_shards, aggregate=aggregate)


def _queue(name: str) -> str:
    return "merlin" if name.strip().lower() in ("", "none") else name.strip()
