"""`merlin run-workers`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from merlin.cli.argv import ManyCommand, ManyOption
from merlin.cli.options import json_option, parse_assignments, spec_or_workspace_argument, vars_option

if TYPE_CHECKING:
    from merlin.config.model import Config
    from merlin.execution.distributed.launch import Launch, Queues, Selection, SpecWorker
    from merlin.execution.distributed.registry import WorkerInfo
    from merlin.execution.distributed.start import Started
    from merlin.spec.model import Document

QUIET_LEVEL = "ERROR"


@click.command(cls=ManyCommand)
@spec_or_workspace_argument
@click.option("--echo", is_flag=True, help="Print the command lines, start nothing.")
@click.option(
    "--worker-args", default="", metavar='"ARGS"', help='For the Celery workers, e.g. "--concurrency 4".'
)
@click.option(
    "--steps",
    cls=ManyOption,
    leaves_last=True,
    metavar="STEP …",
    help="Only workers, and queues, of these steps.",
)
@vars_option
@click.option("--disable-logs", is_flag=True, help="Log errors only.")
@click.option("--foreground", is_flag=True, help="Stay until the workers have ended, and end with them.")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=0), default=60.0, show_default=True, metavar="SECONDS",
    help="How long to wait until the workers have reported.",
)  # fmt: skip
@json_option
@click.pass_context
def run_workers(
    context: click.Context,
    spec_or_workspace: Path,
    echo: bool,
    worker_args: str,
    steps: tuple[str, ...],
    assignments: tuple[str, ...],
    disable_logs: bool,
    foreground: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Start the workers that the spec asks for on this machine, in the background.

    They serve every study of yours with the same queues. Output goes to ./merlin_logs. Exits with 0 once all
    have reported, with 1 if one has not.
    """
    from merlin.cli.servers import load_workers
    from merlin.config.load import find_config, require_config

    document, by_step = load_workers(spec_or_workspace, parse_assignments(assignments))
    config = find_config() if echo else require_config()
    level = QUIET_LEVEL if disable_logs else str(context.obj or "INFO")
    lines = _Lines(
        document=document, by_step=by_step, config=config, steps=steps, worker_args=worker_args, level=level
    )
    if echo:
        sys.exit(_echo(lines, as_json))
    assert config is not None
    sys.exit(_start(lines, config, timeout_s, foreground, as_json))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lines:
    """The lines to execute, once it is known which workers this host has already."""

    document: Document
    by_step: Queues
    config: Config | None
    steps: tuple[str, ...]
    worker_args: str
    level: str

    def make(self, alive: list[WorkerInfo]) -> tuple[Selection, list[tuple[SpecWorker, Launch]]]:
        """What to start beside the workers of this host that are `alive`."""
        import os
        import shutil
        import socket

        from merlin.execution.distributed import launch

        environment = {**os.environ, **{k: str(v) for k, v in self.document.env.variables.items()}}
        names = {w.name: w.name.removeprefix("celery@") for w in alive}
        served = {launch.plain_queue(self.config, q): names[w.name] for w in alive for q in w.queues}
        selection = launch.select_workers(
            self.document,
            self.by_step,
            host=socket.gethostname(),
            steps=self.steps,
            served=served,
            environment=environment,
        )
        taken = {name.removesuffix(f".{socket.gethostname()}") for name in names.values()}
        allocated = launch.num_allocated_nodes(os.environ)
        lines = []
        for worker in selection.start:
            named = launch.with_free_name(worker, taken)
            taken.add(named.name)
            command = launch.worker_command(
                self.config,
                named,
                extra_args=launch.split_args(self.worker_args, environment),
                level=self.level,
                num_cores=len(os.sched_getaffinity(0)) if worker.batch.type == "local" else None,
            )
            lines.append(
                (named, launch.launch_line(named, command, which=shutil.which, num_allocated=allocated))
            )
        return selection, lines


def _echo(lines_of: _Lines, as_json: bool) -> int:
    import shlex

    from merlin.cli.output import print_json

    selection, lines = lines_of.make([])
    if as_json:
        print_json(
            {"workers": [_planned(*line) for line in lines], "skipped": selection.skipped, "exit_code": 0}
        )
        return 0
    _say_skipped(selection, lines)
    for _, launch in lines:
        print(shlex.join(launch.argv))
    return 0


def _planned(worker: SpecWorker, launch: Launch) -> dict[str, Any]:
    return {"name": worker.name, "queues": worker.queues, "command": launch.argv}


def _say_skipped(selection: Selection, lines: list[tuple[SpecWorker, Launch]]) -> None:
    for skipped in selection.skipped:
        print(f"worker {skipped.name} is not started: {skipped.reason}", file=sys.stderr)
    for _, launch in lines:
        if launch.note:
            print(launch.note, file=sys.stderr)


def _start(lines_of: _Lines, config: Config, timeout_s: float, foreground: bool, as_json: bool) -> int:
    from merlin.cli.servers import open_registry, require_reachable, workers_here
    from merlin.execution.distributed.start import LOGS_DIR, start, wait_until_alive

    for warning in require_reachable(config):
        print(f"merlin: warning: {warning}", file=sys.stderr)
    registry = open_registry(config)
    selection, lines = lines_of.make(workers_here(registry))
    if not as_json:
        _say_skipped(selection, lines)
    # it leads a worker to our configuration and key wherever it starts
    environment = {**os.environ, **config.child_environment()}
    logs = Path.cwd() / LOGS_DIR
    known = registry.workers()
    started: list[Started] = []
    stay = _pass_signals_on(started) if foreground else None
    for line in lines:
        started.append(start(*line, logs=logs, environment=environment, known=known))
    in_time = wait_until_alive(started, registry.workers, timeout_s=timeout_s)
    code = 0 if in_time and not any(entry.died for entry in started) else 1
    _report(started, selection, config, timeout_s, code, as_json)
    return code if stay is None else stay(code)


def _report(
    started: list[Started], selection: Selection, config: Config, timeout_s: float, code: int, as_json: bool
) -> None:
    from merlin.base.text import count
    from merlin.cli.choose_workers import short_name
    from merlin.cli.output import console, print_json, table

    if as_json:
        print_json(
            {
                "workers": [{**_planned(e.worker, e.launch), "log": e.log, "pid": e.process.pid,
                             "alive": e.alive, "died": e.died} for e in started],
                "skipped": selection.skipped,
                "exit_code": code,
            }
        )  # fmt: skip
        return
    rows = [
        (
            short_name(w),
            w.host,
            w.pid,
            w.concurrency,
            ", ".join(config.display_queue(q) for q in w.queues),
            e.log,
        )
        for e in started
        for w in e.alive
    ]
    if rows:
        console().print(
            table(("worker", "host", "pid", "at once", "queues", "log"), rows, right=("pid", "at once"))
        )
        print(f"\n{count(len(rows), 'worker')} started")
    if not started:
        print("nothing to start")
    for e in started:
        if e.died:
            print(f"worker {e.worker.name} did not start: {e.died}", file=sys.stderr)
        elif not e.is_settled:
            print(
                f"worker {e.worker.name} (pid {e.process.pid}) has not reported within {timeout_s:g} s; it goes on "
                f"trying. Its log: {e.log}",
                file=sys.stderr,
            )


def _pass_signals_on(started: list[Started]) -> Callable[[int], int]:
    """From now on SIGTERM and Ctrl-C become the workers' SIGTERM, which lets them finish their chunks.

    Returns what waits for the workers and makes an exit code of theirs and the one it is given.
    """
    import signal
    from contextlib import suppress
    from types import FrameType

    is_told = False

    def tell() -> None:
        for entry in started:
            with suppress(ProcessLookupError):
                entry.process.send_signal(signal.SIGTERM)

    def pass_on(number: int, frame: FrameType | None) -> None:
        nonlocal is_told
        is_told = True
        tell()

    def stay(code: int) -> int:
        if is_told:  # perhaps before all of them were there
            tell()
        codes = [entry.process.wait() for entry in started]
        return code or int(any(codes))

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    return stay
