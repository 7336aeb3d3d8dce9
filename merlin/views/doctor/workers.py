"""Workers, and what they and open studies have left in the broker and in Redis, as `merlin doctor` sees them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from merlin import __version__
from merlin.base.files import was_removed
from merlin.base.text import count, short_name, some_of
from merlin.batch.registry import installed
from merlin.config.model import Config
from merlin.errors import ExecutionError, command_line
from merlin.execution.distributed.queues import check_properties, queue_depths
from merlin.execution.distributed.redis_registry import RedisRegistry
from merlin.execution.distributed.registry import StudyInfo, WorkerInfo
from merlin.views.doctor.finding import Finding, Status, broken_if, warning_if

MAX_NAMES = 20  # of workers; anybody who can write into Redis can add some


def examine_queues(config: Config, studies: Sequence[StudyInfo]) -> Finding:
    """Tries to look at a queue of the broker, and to use those of open studies."""
    try:
        queue_depths(config, ["merlin"])
        check_properties(config, sorted({"merlin"}.union(*(study.queues for study in studies))))
    except ExecutionError as error:
        detail, _, hint = str(error).partition("\n")
        return Finding(component="queues", status="broken", detail=detail, hint=hint.strip())
    return broken_if("", "queues", f"named {config.queue_name('…')}")


def examine_workers(registry: RedisRegistry, studies: Sequence[StudyInfo]) -> Iterator[Finding]:
    """The workers, damage in their register, and messages that they have refused."""
    workers, refused = registry.workers(all=True), registry.counters().get("refused", 0)
    yield from judge_studies([study.workspace for study in studies])
    yield judge_workers(workers, [study.workspace for study in studies], has_scheduler=bool(installed()))
    if damaged := registry.damage.found:
        yield judge_damage(damaged)
    hint = "messages that were not sealed with your key: somebody else writes to your queues"
    yield warning_if(hint if refused else "", "messages", f"{refused} refused")


def judge_studies(workspaces: Sequence[str]) -> Iterator[Finding]:
    """A warning if workspaces of open studies are gone, although what they lay in can be seen from here."""
    if gone := [path for path in workspaces if was_removed(path)]:
        commands = "; ".join(command_line("cancel", path) for path in gone[:3])
        hint = f"workers try to open them; if they were deleted or moved: {commands}"
        shown = some_of(map(ascii, gone), 3, more=" …")
        yield warning_if(hint, "studies", f"no longer there: {shown}")


def judge_damage(found: Mapping[str, str]) -> Finding:
    """Entries of the registry that cannot be used: where -> why."""
    shown = "; ".join(f"{where[:100]!a}: {why[:100]!a}" for where, why in list(found.items())[:3])
    hint = "somebody else writes under your names in Redis, or a worker is of another version of Merlin"
    return warning_if(hint, "registry", f"{count(len(found), 'entry', 'entries')} left out: {shown}")


def judge_workers(
    workers: list[WorkerInfo], studies: Sequence[str], *, has_scheduler: bool = False
) -> Finding:
    """The live workers, and those that fell silent within the hour; `studies` are the workspaces of open ones."""
    alive = [worker for worker in workers if worker.is_alive]
    num_hosts = len({worker.host for worker in alive})
    other = sorted({worker.version for worker in alive} - {__version__})
    hints = []
    if other:
        hints.append(
            f"workers run Merlin {some_of(other, 3, more=' …')}, and this is {__version__}; restart them"
        )
    if studies and not alive:
        start = "; ".join(command_line("run-workers", workspace) for workspace in studies[:3])
        jobs = f", or in batch jobs: {command_line('workers', 'submit', studies[0])}" if has_scheduler else ""
        hints.append(f"studies wait, and no worker is alive; start some: {start}{jobs}")
    if silent := [short_name(worker.name) for worker in workers if not worker.is_alive]:
        more = f" and {len(silent) - MAX_NAMES:,} more" if len(silent) > MAX_NAMES else ""
        hints.append(f"silent: {', '.join(silent[:MAX_NAMES])}{more}; their work waits for other workers")
    detail = f"{len(alive)} alive on {count(num_hosts, 'host')}, {count(len(studies), 'open study', 'open studies')}"
    status: Status = "warning" if hints else "ok" if alive else "absent"
    return Finding(component="workers", status=status, detail=detail, hint="; ".join(hints))
