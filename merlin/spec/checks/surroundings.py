"""Blocks around the study: its description, workers, batch; and checks that these share with steps."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Collection
from pathlib import Path

from merlin.base.document.findings import Findings, allowed, did_you_mean
from merlin.base.document.scalars import shown
from merlin.base.document.tokens import substitute
from merlin.base.document.tree import Entry
from merlin.batch.walltime import walltime_seconds
from merlin.spec.checks.steps import StepGraph, shell_of_study
from merlin.spec.defaults import MAX_FILE_NAME
from merlin.spec.quoting import is_bourne_shell, is_shell

_SHELLS = ("/bin/bash", "/bin/sh", "bash", "sh", "zsh", "/usr/bin/env python3", "python3")


def check_surroundings(tree: Entry, graph: StepGraph, findings: Findings) -> None:
    """The study's name, the steps that workers name, and keys that look like slips."""
    from merlin.spec.model import Batch, Description  # see load.check_spec
    from merlin.spec.run_block import Run, StepBatch

    name = tree.get("description", "name")
    if "/" in name.text:
        message = f"the study's name {name.text!r} has a '/' in it, and its workspace is called so"
        hint = "set the directory with the variable OUTPUT_PATH"
        findings.error(name.place, message, text=name.text, hint=hint, code="bad-name")
    study, workers = tree.get("study").items, tree.get("merlin", "resources", "workers").mapping
    for worker_name, worker in workers.items():
        for item in worker.get("steps").items:
            if item.text and item.text != "all" and item.text not in graph.steps:
                message = f"worker {worker_name!r} serves step {item.text!r}, which does not exist"
                hint = allowed(item.text, [*graph.steps, "all"], "steps")
                findings.error(item.place, message, text=item.text, hint=hint, code="missing-step")
        whose = f"batch of worker {worker_name!r}"
        _check_free_keys(whose, worker.get("batch"), Batch.model_fields, findings)
        check_walltime(worker.get("batch", "walltime"), findings)
    for described in (tree.get("description"), *study):
        _check_description(described.get("description"), findings)
    for block in (tree.get("batch"), *(step.get("run") for step in study)):
        check_walltime(block.get("walltime"), findings)
    for shell in (tree.get("batch", "shell"), *(step.get("run", "shell") for step in study)):
        _check_shell(shell, findings)
    _check_sources(tree, findings)
    for item in tree.get("env", "dependencies", "paths").items:
        _check_path(item.get("path"), findings)
    _check_free_keys("description", tree.get("description"), Description.model_fields, findings)
    _check_free_keys("batch", tree.get("batch"), Batch.model_fields, findings)
    for step in study:
        whose = f"batch of step {step.get('name').text!r}"
        _check_free_keys(whose, step.get("run", "batch"), StepBatch.model_fields, findings, Run.model_fields)


def _check_description(entry: Entry, findings: Findings) -> None:
    """Report an empty description; the key may be left out."""
    if isinstance(entry.content, str) and not entry.text.strip():
        message = "description is empty"
        hint = "say in a line what it is, or leave the key out"
        findings.error(entry.key_place, message, text="description", hint=hint, code="empty")


def check_walltime(entry: Entry, findings: Findings) -> None:
    """Report a walltime that no scheduler takes; one with tokens is not known yet."""
    text = entry.text.strip()
    if not text or "$" in text:
        return
    try:
        walltime_seconds(text)
    except ValueError:
        message = f"walltime {shown(text)} is not a time"
        findings.error(entry.place, message, text=entry.text, hint='write "HH:MM:SS"', code="value")


def _check_shell(entry: Entry, findings: Findings) -> None:
    """Warn about an interpreter that is not here; machines with workers may have it."""
    try:
        program = next(iter(shlex.split(entry.text)), "")
    except ValueError:
        return
    if program and "$" not in program and shutil.which(program) is None:
        hint = did_you_mean(program, _SHELLS) or "workers of other machines may have it"
        message = f"this machine has no program {shown(program)} to run scripts with"
        findings.warning(entry.place, message, text=entry.text, hint=hint, code="shell")


def _check_sources(tree: Entry, findings: Findings) -> None:
    """Warn about files of env.sources that are not there, and about steps whose scripts do not read these."""
    entries = [entry for entry in tree.get("env", "sources").items if entry.text]
    root = Path(findings.file).absolute().parent
    for entry in entries:
        text = substitute(entry.text, {"SPECROOT": str(root)}).strip()
        if len(text.split()) == 1 and "$" not in text and not os.path.exists(root / text):  # noqa: PTH110 - long names
            message = f"the file {shown(text)} of env.sources does not exist"
            hint = "" if text.startswith("/") else "a relative name counts from the directory of the spec"
            findings.warning(entry.place, message, text=entry.text, hint=hint, code="sources")
    shells = {
        step.get("name").text: step.get("run", "shell").text or shell_of_study(tree)
        for step in tree.get("study").items
        if not step.get("run", "cmd").is_null
    }
    without = [
        name
        for name, shell in shells.items()
        if "$" not in shell and is_shell(shell) and not is_bourne_shell(shell)
    ]
    if entries and without:
        steps = ", ".join(map(repr, without))
        message = f"the scripts of {steps} do not read env.sources, because their shell is no Bourne shell"
        hint = "sh, bash, dash, ksh, zsh and ash are"
        findings.warning(entries[0].place, message, hint=hint, code="sources")


def _check_path(entry: Entry, findings: Findings) -> None:
    if any(len(name.encode()) > MAX_FILE_NAME for name in entry.text.split("/")):
        message = f"a name in this path is longer than the {MAX_FILE_NAME} bytes that a file's name may have"
        findings.error(entry.place, message, code="value")


def _check_free_keys(
    name: str, block: Entry, known: Collection[str], findings: Findings, above: Collection[str] = ()
) -> None:
    """Warn about unknown keys that look like mistyped ones; other unknown keys are allowed here.

    Also warn about keys of the block `above`, where they would have a meaning.
    """
    absent = [key for key in known if key not in block.mapping]
    for key, item in block.mapping.items():
        if key in known:
            continue
        hint = "write it one level higher, under run" if key in above else did_you_mean(key, absent)
        if hint:
            message = f"key {key!r} in {name} has no meaning here"
            findings.warning(item.key_place, message, text=key, hint=hint, code="unknown-key")
