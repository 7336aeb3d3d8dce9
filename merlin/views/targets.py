"""What a word after `merlin explain WORKSPACE` names: a step, a sample or a worker."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from typing import Literal

from merlin.base.text import short_name
from merlin.errors import UsageError
from merlin.views.study_facts import StudyFacts
from merlin.views.worker_story import known_workers
from merlin.workspace.directory import Workspace


def kind_of(members: Sequence[Workspace], word: str) -> Literal["step", "sample", "worker"]:
    """What a word may name, by its form and the plan: if it is no step and no number, only a worker."""
    if any(word in (instance.step, instance.id) for study in members for instance in study.plan.instances):
        return "step"
    return "sample" if word.isdecimal() else "worker"


def worker_named(members: Sequence[StudyFacts], word: str) -> str:
    """The full name of a worker. Raises UsageError for a word that names no worker, and so nothing of the study."""
    workers = known_workers(members)
    name = short_name(word)
    if name in workers:
        return name
    longer = sorted((each for each in workers if each.startswith(f"{name}.")), key=len)
    if longer and all(each.startswith(longer[0]) for each in longer):  # without its host
        return longer[0]
    steps = sorted({i.step for facts in members for i in facts.workspace.plan.instances})
    known = [*steps, *workers]
    close = get_close_matches(word, known, n=1)
    hint = (
        f"did you mean {close[0]}?" if close else f"it has: {', '.join(known[:20])}, and samples by their id"
    )
    raise UsageError(f"the study has no step, sample or worker {word!r}; {hint}")
