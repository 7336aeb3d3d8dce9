"""Steps: their names, what they run, and the graph of what waits for what."""

from __future__ import annotations

from msgspec import Struct

from merlin.base.document.findings import Findings, allowed
from merlin.base.document.scalars import Problem, shown
from merlin.base.document.tokens import find_tokens
from merlin.base.document.tree import MISSING, Entry
from merlin.base.text import path_safe
from merlin.spec.allocation import allocated, allocations
from merlin.spec.defaults import BATCH, KINDS, funnel_base

MAX_NAME_BYTES = 200  # a file's name has at most 255, and more is added to it
_TAKEN_NAMES = frozenset({"", ".", "..", "merlin_info", "extensions"})


class StepGraph(Struct, frozen=True):
    """The steps by name (the first one of each name) and what each depends on."""

    steps: dict[str, Entry]
    parents: dict[str, tuple[str, ...]]

    @classmethod
    def of(cls, tree: Entry) -> StepGraph:
        steps: dict[str, Entry] = {}
        for step in tree.get("study").items:
            if name := step.get("name").text:
                steps.setdefault(name, step)
        parents = {
            name: tuple(
                dict.fromkeys(
                    base
                    for item in step.get("run", "depends").items
                    if (base := funnel_base(item.text)) in steps and base != name
                )
            )
            for name, step in steps.items()
        }
        return cls(steps, parents)

    def ancestors(self, name: str) -> set[str]:
        """Every step that ends before this one starts, or is in a circle with it."""
        found: set[str] = set()
        todo = list(self.parents.get(name, ()))
        while todo:
            parent = todo.pop()
            if parent not in found:
                found.add(parent)
                todo.extend(self.parents[parent])
        return found

    def kind(self, name: str) -> str:
        """cmd, function or aggregate; "" if the step says none of them."""
        run = self.steps[name].get("run") if name in self.steps else MISSING
        return next((kind for kind in KINDS if run.get(kind).content), "")

    def scripts(self, name: str) -> str:
        """The text of its cmd and restart, one after the other."""
        run = self.steps[name].get("run")
        return "\n".join(run.get(key).text for key in ("cmd", "restart"))

    def cycles(self) -> list[tuple[str, ...]]:
        """Circles of steps, each once: ("a", "b", "a") where a depends on b."""
        found: list[tuple[str, ...]] = []
        done: set[str] = set()
        for root in self.parents:
            if root in done:
                continue
            path = [root]
            branches = [iter(self.parents[root])]
            while path:
                parent = next(branches[-1], None)
                if parent is None:
                    done.add(path.pop())
                    branches.pop()
                elif parent in path:
                    found.append((*path[path.index(parent) :], parent))
                elif parent not in done:
                    path.append(parent)
                    branches.append(iter(self.parents[parent]))
        return found


def check_steps(tree: Entry, graph: StepGraph, findings: Findings) -> None:
    """Names, commands and dependencies of all steps."""
    study = tree.get("study")
    if isinstance(study.content, list) and not study.content:
        findings.error(study.key_place, "study has no steps", code="empty", hint="add at least one step")
    named: dict[str, list[Entry]] = {}
    for step in study.items:
        if (name := step.get("name")).text:
            named.setdefault(name.text, []).append(name)
    for names in named.values():
        _check_name(names, findings)
    _check_directories([names[0] for names in named.values()], findings)
    for step in study.items:
        if isinstance(step.get("run").content, dict):
            _check_kind(step, shell_of_study(tree), findings)
            _check_queue(step.get("run", "task_queue"), findings)
            is_alone = len(named.get(step.get("name").text, ())) == 1
            _check_depends(step, graph, findings, is_alone=is_alone)
    for cycle in graph.cycles():
        _report_cycle(cycle, graph, findings)


def _check_name(names: list[Entry], findings: Findings) -> None:
    """Report a name that several steps have, or that no directory can have."""
    name, text = names[0], names[0].text
    if len(names) > 1:
        lines = ", ".join(str(other.place[0]) for other in names[:1] + names[2:])
        message = f"step {text!r} is there {'twice' if len(names) == 2 else f'{len(names)} times'}"
        hint = f"also on line {lines}; a step's directory is called so: rename all but one"
        findings.error(names[1].place, message, text=text, hint=hint, code="duplicate-step")
    if len(text.encode()) > MAX_NAME_BYTES:
        message = (
            f"the name of a step has {len(text.encode())} bytes; the step's directory and files are called so"
        )
        findings.error(name.place, message, hint=f"{MAX_NAME_BYTES} are allowed", code="bad-name")
    elif any(mark in text for mark in "/*\0\n") or path_safe(text) in _TAKEN_NAMES:
        message = f"{shown(text)} cannot name a step, because the step's directory is called so"
        hint = "use letters from a to z, digits, '_', '-' and '.'"
        findings.error(name.place, message, text=text, hint=hint, code="bad-name")
    for token in find_tokens(text):
        message = f"the name of a step cannot use $({token.name}), which has no value yet"
        hint = "use a variable of env.variables"
        findings.error(name.place, message, text=text, hint=hint, code="bad-name")


def _check_directories(names: list[Entry], findings: Findings) -> None:
    """Report steps of different names that have the same directory."""
    first: dict[str, Entry] = {}
    for name in names:
        other = first.setdefault(path_safe(name.text), name)
        if other is not name:
            message = (
                f"steps {other.text!r} and {name.text!r} have the same directory {path_safe(name.text)!r}"
            )
            hint = "give them names that differ in letters, digits or one of -_.()"
            findings.error(name.place, message, text=name.text, hint=hint, code="duplicate-step")


def _check_queue(queue: Entry, findings: Findings) -> None:
    if "," in queue.text:  # Celery would listen to two queues, and nobody to this one
        message = f"{shown(queue.text)} cannot name a queue, because a comma divides the names of queues"
        hint = "a step has one queue; leave out the comma"
        findings.error(queue.place, message, text=queue.text, hint=hint, code="bad-name")


def shell_of_study(tree: Entry) -> str:
    """The interpreter of the steps that name none."""
    return tree.get("batch", "shell").text or str(BATCH["shell"])


def _check_kind(step: Entry, study_shell: str, findings: Findings) -> None:
    run = step.get("run")
    name = step.get("name").text or "without a name"
    given = [kind for kind in KINDS if kind in run.mapping and not run.get(kind).is_null]
    if len(given) > 1:
        message = f"step {name!r} has both {given[0]} and {given[1]}"
        hint = f"a step has exactly one of {', '.join(KINDS)}; make it two steps"
        findings.error(run.get(given[1]).key_place, message, text=given[1], hint=hint, code="step-kind")
    if not given:
        empty = next((run.get(kind) for kind in KINDS if kind in run.mapping), None)
        place = empty.key_place if empty else run.key_place
        hint = 'give run one of cmd, function ("module:callable") and aggregate'
        findings.error(place, f"step {name!r} has nothing to run", hint=hint, code="step-kind")
    for kind in ("cmd", "restart"):
        entry = run.get(kind)
        if isinstance(entry.content, str) and not entry.content.strip():
            findings.error(entry.key_place, f"{kind} of step {name!r} is empty", text=kind, code="empty")
        _check_allocations(entry, name, findings)
    if "aggregate" in given and run.get("batch", "submit").text.lower() in ("true", "yes", "on"):
        message = f"batch.submit is for steps with cmd or function, and step {name!r} has aggregate"
        findings.error(run.get("batch", "submit").key_place, message, text="submit", code="step-kind")
    if given and "cmd" not in given:
        _check_keys_of_cmd(name, given[0], run, study_shell, findings)


def _check_allocations(entry: Entry, name: str, findings: Findings) -> None:
    for allocation in allocations(entry.text):
        try:
            allocated(allocation)
        except Problem as problem:
            text, message = f"$(LAUNCHER)[{allocation}]", f"step {name!r}: {problem}"
            findings.error(entry.place, message, text=text, hint=problem.hint, code="launcher")


def _check_keys_of_cmd(name: str, kind: str, run: Entry, study_shell: str, findings: Findings) -> None:
    """Report keys without an effect on a function or an aggregate, except the study's shell: archived steps have it."""
    for key in ("restart", "timeout", "shell"):
        entry = run.get(key)
        if entry.is_null or (key == "shell" and entry.text == study_shell):
            continue
        message = f"{key} goes with cmd, and step {name!r} has {kind}"
        findings.error(entry.key_place, message, text=key, code="step-kind")


def _check_depends(step: Entry, graph: StepGraph, findings: Findings, *, is_alone: bool) -> None:
    """Check `depends`. `is_alone`: no other step has this step's name; else `depends` may mean the other one."""
    name = step.get("name").text
    seen: dict[str, str] = {}
    for item in step.get("run", "depends").items:
        text = item.text
        base = funnel_base(text)
        if not text:
            if item.content == "" and not item.plain:  # an unquoted one counts as left out
                message = f"step {name!r} depends on a step without a name"
                findings.error(item.place, message, hint="name a step, or leave it out", code="missing-step")
            continue
        if base == name:
            if not is_alone:
                continue
            findings.error(item.place, f"step {name!r} depends on itself", text=text, code="cycle")
        elif base not in graph.steps:
            message = f"step {name!r} depends on {base!r}, which does not exist"
            hint = allowed(base, [step for step in graph.steps if step != name], "steps")
            findings.error(item.place, message, text=text, hint=hint, code="missing-step")
        elif seen.get(base) == text or (base in seen and "*" in text and "*" in seen[base]):
            findings.error(
                item.place, f"step {name!r} depends on {text!r} twice", text=text, code="duplicate-depends"
            )
        elif base in seen:
            message = f"step {name!r} depends on both {seen[base]!r} and {text!r}"
            hint = f"{base}_* already waits for all of {base}"
            findings.warning(item.place, message, text=text, hint=hint, code="duplicate-depends")
        seen.setdefault(base, text)


def _report_cycle(cycle: tuple[str, ...], graph: StepGraph, findings: Findings) -> None:
    first, second = cycle[0], cycle[1]
    items = graph.steps[first].get("run", "depends").items
    place = next((item.place for item in items if funnel_base(item.text) == second), (0, 0))
    message = f"steps depend on each other in a circle: {' -> '.join(cycle)}"
    hint = "a -> b means that a waits for b; remove one of these"
    findings.error(place, message, text=second, hint=hint, code="cycle")
