"""Finds the broker for a study, and says what was published and what to type next; `run` and `restart` share it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from merlin.base.text import count
from merlin.cli.output import flush, remark
from merlin.config.load import find_config
from merlin.config.model import Config
from merlin.errors import ConfigError, UsageError, command_line

if TYPE_CHECKING:
    from merlin.api.publishing import Published


def broker_for(target: Path, *, local: bool, num_workers: int | None) -> Config | None:
    """The configured broker, reachable; None where none is configured or `local` is asked for.

    `target` is the spec or workspace that workers are for.

    Raises:
        ConfigError: the configuration is wrong.
        ExecutionError: a server cannot be used; found out within ten seconds.
        UsageError: `num_workers` of a local run is given, and the run would not be local.
    """
    try:
        config = None if local else find_config()
    except ConfigError as error:
        if error.diagnostics:
            remark(
                "the configuration cannot be used; to run on this machine alone, add --local; "
                "to use another one: merlin config use FILE"
            )
        raise
    if config is None:
        return None
    if num_workers is not None:
        raise UsageError(
            f"--workers is for runs on this machine, and a broker is configured ({config.path or config.origin}); "
            f"add --local, or start workers: {command_line('run-workers', target)}"
        )
    from merlin.views.servers import require_reachable  # runs on this machine do not need it

    _ = config.key  # before a workspace is made: without a key that is safe to use nothing can be published
    require_reachable(config, hint="To run on this machine alone, add --local.")
    return config


def show_report(report: Published, *, names_workers: bool = True) -> None:
    """Print a report for people, on stdout; with the commands that start workers, unless they come by themselves."""
    print(f"workspace {report.workspace}")
    if report.complete:
        print(report.note)
        if report.exit_code:
            print(
                f"run those that failed again with: {command_line('restart', report.workspace, '--failed')}"
            )
        return
    if report.resumed:
        print(report.note)
    else:
        done = f" ({report.ok:,} of them ok)" if report.ok else ""
        sent = f"{count(report.planned, 'task')}{done} in {count(report.published, 'message')}"
        print(f"published {report.name}: {sent}, to {report.broker}")
    if names_workers:
        _show_ways(report)
    print(f"to watch:\n  {report.next['monitor']}")
    flush()


def _show_ways(report: Published) -> None:
    if report.unserved_queues:
        print(f"no worker serves {', '.join(report.unserved_queues)}; start some:")
    else:
        print("workers are there; for more, on another machine:")
    print(f"  {report.next['run-workers']}")
    if "workers" in report.next:
        print(f"or in batch jobs:\n  {report.next['workers']}")
