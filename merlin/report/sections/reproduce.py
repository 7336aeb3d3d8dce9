"""How to run the study again, go on with it, and see that the data are the same."""

from __future__ import annotations

import shlex
from html import escape
from pathlib import Path

from merlin.errors import MerlinError, command_line
from merlin.report.facts import ReportFacts
from merlin.report.spec_text import spec_html
from merlin.shards.format.manifest_file import read_manifest

_MOST_CHARACTERS = 200_000  # of a spec


def reproduce(facts: ReportFacts) -> str:
    """Steps, with commands to copy."""
    plan, known = facts.study.plan, facts.provenance
    steps = []
    if known.spec_commit.id:
        command = shlex.join(["git", "-C", plan.spec_root, "checkout", known.spec_commit.id])
        changed = (
            " Files differed from it, so this alone may not be enough."
            if known.spec_commit.is_changed
            else ""
        )
        steps.append((f"Take the spec, and what it calls, as they were.{changed}", command))
    if plan.code_version:
        commit = f" (commit {known.code_commit})" if known.code_commit.id else ""
        command = f"pip install merlin-ensembles=={plan.code_version}"
        steps.append((f"Take the same version of Merlin{escape(commit)}.", command))
    steps.append(("Run the study.", _run_command(facts)))
    if facts.page.totals.missing:
        steps.append(("Or finish this one.", command_line("restart", facts.study.path)))
    elif facts.page.totals.failed:
        again = command_line("restart", facts.study.path, "--failed")
        steps.append(("Or run what failed in this one again.", again))
    for found in facts.page.data_sets:
        text = f"Prove that the data set {escape(found.aggregate)} is whole.{_digest(Path(found.path))}"
        steps.append((text, command_line("shards", "verify", found.path)))
    items = "\n".join(f"<li><p>{text}</p><pre>{escape(command)}</pre></li>" for text, command in steps)
    return f'<ol class="recipe">\n{items}\n</ol>'


def _run_command(facts: ReportFacts) -> str:
    known = facts.provenance
    if not known.command:
        return command_line("run", facts.study.plan.spec_path)
    return f"cd {shlex.quote(known.directory)}\n{known.command}"


def _digest(path: Path) -> str:
    """The digest that the data must have to be the same."""
    try:
        return (
            f" Equal data have the content digest <code>{escape(read_manifest(path).content_digest)}</code>."
        )
    except MerlinError:
        return ""


def spec(facts: ReportFacts) -> str:
    """The spec as it was written."""
    if not facts.spec_text:
        return ""
    cut = facts.spec_text[:_MOST_CHARACTERS]
    more = "" if len(cut) == len(facts.spec_text) else '<p class="note">The rest is left out.</p>'
    return spec_html(cut) + more
