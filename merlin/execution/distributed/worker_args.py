"""Looks at the workers' arguments in a spec, which Celery reads when the workers start."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from merlin.base.document.findings import did_you_mean
from merlin.errors import Diagnostic, UsageError
from merlin.execution.distributed.launch import split_args

if TYPE_CHECKING:
    from merlin.spec.load import Spec

# known without Celery, whose options take a tenth of a second to load
_COMMON = frozenset({"--concurrency", "--autoscale", "--pool", "--loglevel", "--prefetch-multiplier"})


def worker_args_findings(spec: Spec) -> list[Diagnostic]:
    """Warnings about options that Celery does not have: a run without workers does not need them."""
    document, found = spec.document, list[Diagnostic]()
    environment = {**os.environ, **{name: str(value) for name, value in document.env.variables.items()}}
    for name, worker in document.merlin.resources.workers.items():
        where = ("merlin", "resources", "workers", name, "args")
        try:
            words = split_args(worker.args, environment)
        except UsageError as error:
            message = f"worker {name!r} cannot start: {error}"
            found.append(spec.finding(where, message, "worker-args", severity="warning"))
            continue
        for word in {word.partition("=")[0]: None for word in words if word.startswith("--")}:
            if word not in ("--", *_COMMON) and word not in (known := _options_of_celery()):
                message = f"worker {name!r} cannot start: Celery has no option {word}"
                hint = did_you_mean(word, known) or "celery worker --help lists them"
                found.append(spec.finding(where, message, "worker-args", hint, text=word, severity="warning"))
    return found


def _options_of_celery() -> list[str]:
    from celery.bin.worker import worker

    return [
        name
        for option in worker.params
        for name in (*option.opts, *option.secondary_opts)
        if name[:2] == "--"
    ] + ["--help"]
