"""How to run the study again, go on with it, and see that the data are the same."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from html import escape
from pathlib import Path

from merlin.errors import MerlinError, command_line
from merlin.report.facts import ReportFacts
from merlin.report.spec_text import spec_html
from merlin.shards.format.manifest_file import read_manifest
from merlin.views.after_stop import next_commands
from merlin.workspace.provenance import read_provenance

_MOST_CHARACTERS = 200_000  # of a spec
_OF_UPDATE = ("--update", "--keep", "--changed-code", "--yes", "-y")  # options


def reproduce(facts: ReportFacts) -> str:
    """Steps, with commands to copy."""
    plan, known = facts.study.plan, facts.provenance
    steps = []
    if known.spec_commit.id:
        command = shlex.join(["git", "-C", plan.spec_root, "checkout", known.spec_commit.id])
        changed = ""
        if known.spec_commit.is_changed:
            changed = " Files differed from it, so this alone may not be enough."
        steps.append((f"Take the spec, and what it calls, as they were.{changed}", command))
    if plan.code_version:
        commit = f" (commit {known.code_commit})" if known.code_commit.id else ""
        command = f"pip install merlin-ensembles=={plan.code_version}"
        steps.append((f"Take the same version of Merlin{escape(commit)}.", command))
    steps.append(("Run the study.", _run_command(facts)))
    steps += _extend_commands(facts)
    if facts.page.totals.missing:
        steps += _finish(facts)
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
    return _given_in(known.directory, without_update(known.command, facts.spec_name))


def _given_in(directory: str, command: str) -> str:
    return f"cd {shlex.quote(directory)}\n{command}"


def without_update(command: str, spec_name: str) -> str:
    """The command that makes anew what an update has made of a study: one like it has all of the study's options."""
    words = shlex.split(command)
    if words[:2] != ["merlin", "run"]:
        return command
    kept, option = words[:2], ""
    for word in words[2:]:
        if word.startswith("-"):
            option, has_value, _ = word.partition("=")
            if option not in _OF_UPDATE:
                kept.append(word)
            option = "" if has_value else option
        elif option == "--update":
            option = ""
        elif option != "--keep" or Path(word).name == spec_name:
            kept.append(word)
    return shlex.join(kept)


def _extend_commands(facts: ReportFacts) -> Iterator[tuple[str, str]]:
    """What has added the samples of extensions, unless a later update has the number of all samples."""
    for study in facts.studies[1:]:
        known = read_provenance(study.info)
        if "--extend" in known.command:
            text = f"Add the samples of {escape(study.member)}; after --extend, name the new workspace."
            yield text, _given_in(known.directory, known.command)


def _finish(facts: ReportFacts) -> Iterator[tuple[str, str]]:
    """The commands that go on with the study, by the reason why it has stopped."""
    page = facts.page
    lines = next_commands(page.workspace, page.state_reason, has_failed=page.totals.failed > 0)
    for i, line in enumerate(lines):
        text, _, command = line.partition(": ")
        yield f"{'' if i else 'Or finish this one. '}{escape(text[0].upper() + text[1:])}:", command


def _digest(path: Path) -> str:
    """The digest that the data must have to be the same."""
    try:
        digest = read_manifest(path).content_digest
    except MerlinError:
        return ""
    return f" Equal data have the content digest <code>{escape(digest)}</code>."


def spec(facts: ReportFacts) -> str:
    """The spec as it was written."""
    if not facts.spec_text:
        return ""
    cut = facts.spec_text[:_MOST_CHARACTERS]
    more = "" if len(cut) == len(facts.spec_text) else '<p class="note">The rest is left out.</p>'
    return spec_html(cut) + more
