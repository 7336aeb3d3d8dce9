"""What each step needs of the others: order, parameters and samples; decided from the spec alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from merlin.base.document.tokens import find_tokens
from merlin.spec.defaults import funnel_base
from merlin.spec.quoting import is_bourne_shell
from merlin.spec.variables import uses_samples

if TYPE_CHECKING:
    from merlin.spec.model import Document, Step

_WORKSPACE = ".workspace"


class Dependency(Struct, frozen=True):
    """An entry of `depends`; a funnel (``step_*``) waits for all of the step and takes no parameters on."""

    step: str
    funnel: bool
    entry: str  # as written

    @classmethod
    def parse(cls, entry: str) -> Dependency:
        return cls(funnel_base(entry).strip(), "*" in entry, entry)


class StepNeeds(Struct, frozen=True):
    """A step with what follows from the spec for it."""

    step: Step
    depends: tuple[Dependency, ...]
    parameters: frozenset[str]  # its own and those of the steps it follows
    per_sample: bool

    @property
    def name(self) -> str:
        return self.step.name

    @property
    def funnels(self) -> frozenset[str]:
        return frozenset(dependency.step for dependency in self.depends if dependency.funnel)


def analyse(document: Document, parameters: Iterable[str]) -> list[StepNeeds]:
    """Every step in topological order; steps that do not depend on each other keep the order of the spec.

    The spec has been checked before: `depends` names existing steps and has no cycle.
    """
    steps = {step.name: step for step in document.study}
    depends = {name: tuple(map(Dependency.parse, step.run.depends)) for name, step in steps.items()}
    texts = {name: [*_texts(step.model_dump()), *sources_of(document, step)] for name, step in steps.items()}
    used = _used_parameters(steps, texts, depends, frozenset(parameters))
    samples = document.merlin.samples
    labels = None if samples is None else samples.column_labels
    return [
        StepNeeds(steps[name], depends[name], used[name], _is_per_sample(steps[name], labels))
        for name in topological_order({name: [d.step for d in entries] for name, entries in depends.items()})
    ]


def shell_of(document: Document, step: Step) -> str:
    """The interpreter of the step's scripts."""
    return step.run.shell if "shell" in step.run.model_fields_set else document.batch.shell


def sources_of(document: Document, step: Step) -> tuple[str, ...]:
    """The entries of env.sources, with which the step's scripts begin; none for other scripts than a shell's."""
    is_shell = step.run.cmd is not None and is_bourne_shell(shell_of(document, step))
    return document.env.sources if is_shell else ()


def topological_order(depends: Mapping[str, Sequence[str]]) -> list[str]:
    """Names, each after those it depends on, otherwise in the given order; ValueError on a cycle."""
    waiting = dict(depends)
    done: dict[str, None] = {}
    while waiting:
        # one at a time, so that each comes as early as the given order allows
        ready = next((name for name, needs in waiting.items() if all(need in done for need in needs)), None)
        if ready is None:
            raise ValueError(f"{', '.join(waiting)} depend on each other in a circle")
        done[ready] = None
        del waiting[ready]
    return list(done)


def _is_per_sample(step: Step, labels: Sequence[str] | None) -> bool:
    """Shell steps run per sample if their own text uses a sample; functions always map over the samples.

    Depending on a step that runs per sample is not enough: such a step runs once, after the last sample, as
    the steps of upstream's iterative studies expect.
    """
    if labels is None or step.run.aggregate is not None:
        return False
    if step.run.function is not None:
        return True
    return any(uses_samples(text, labels) for text in step.run.scripts)


def _used_parameters(
    steps: Mapping[str, Step],
    texts: Mapping[str, Iterable[str]],
    depends: Mapping[str, tuple[Dependency, ...]],
    parameters: frozenset[str],
) -> dict[str, frozenset[str]]:
    """Parameters that each step uses itself, takes on by `depends`, or needs for another step's workspace.

    A step uses those whose tokens are anywhere in its texts, description included. A function step that names
    none uses all: its code reads them.
    """
    own: dict[str, set[str]] = {}
    sources: dict[str, set[str]] = {}
    for name, step in steps.items():
        tokens = {token.name for text in texts[name] for token in find_tokens(text)}
        own[name] = {p for p in parameters if p in tokens or any(t.rpartition(".")[0] == p for t in tokens)}
        if step.run.function is not None and not own[name]:
            own[name] = set(parameters)  # it cannot write $(NAME) in a script, so it gets every parameter
        funnels = {d.step for d in depends[name] if d.funnel}
        referred = {t.removesuffix(_WORKSPACE) for t in tokens if t.endswith(_WORKSPACE)}
        plain = {d.step for d in depends[name] if not d.funnel}
        sources[name] = (plain | (referred - funnels)) & steps.keys()
    changed = True
    while changed:
        changed = False
        for name, used in own.items():
            inherited = set().union(*(own[source] for source in sources[name])) - used
            if inherited:
                used |= inherited
                changed = True
    return {name: frozenset(used) for name, used in own.items()}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
