"""What is known of a followed study beyond its ledger: by servers, by the batch scheduler, and from other files.

Asking takes time, so it is done in threads, and the last answers are shown meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct, field

from merlin.config.load import require_config
from merlin.config.model import Config
from merlin.errors import ConfigError, ExecutionError, MerlinError
from merlin.execution.distributed.connect import make_client
from merlin.execution.distributed.redis_backend import RedisBackend, RedisMailbox
from merlin.execution.distributed.registry import OpenWork, WorkerInfo
from merlin.execution.job_counts import StepJobCounts, count_jobs
from merlin.execution.job_folder import all_jobs
from merlin.spec.load import load_spec
from merlin.views.at_work import QueueLine, queue_lines
from merlin.views.background import Background
from merlin.views.explain import obstacles_of
from merlin.views.obstacle import Obstacle
from merlin.views.study_facts import handed_out
from merlin.views.study_ledgers import Member
from merlin.views.training_runs import RunLine, training_runs
from merlin.views.worker_jobs import JobLine, clients, job_line, our_jobs
from merlin.workspace.directory import Workspace

if TYPE_CHECKING:
    from redis import Redis

SERVERS_S = 2.0  # between two questions to the servers
JOBS_S = 30.0  # … to the batch scheduler
FILES_S = 10.0  # between two searches for batch jobs of steps and training runs
OBSTACLES_S = 5.0
FIRST_S = 1.0  # so long the first look waits for the servers


class Held(Struct, frozen=True, kw_only=True):
    """A published study, as Redis holds it."""

    owner: str  # name of a worker, "" if none is at it
    work: tuple[OpenWork, ...]


class ServerFacts(Struct, frozen=True, kw_only=True):
    """What the servers said last."""

    config: Config | None = None
    error: ConfigError | ExecutionError | None = None  # they could not be asked
    workers: tuple[WorkerInfo, ...] = ()
    held: Mapping[str, Held] = field(default_factory=dict)  # by study id; only what Redis holds
    queues: tuple[QueueLine, ...] = ()


class FileFacts(Struct, frozen=True, kw_only=True):
    """What lies in a workspace beside the ledger."""

    description: str = ""  # of the study, by its spec
    step_jobs: Mapping[str, tuple[StepJobCounts, ...]] = field(default_factory=dict)  # by member
    runs: tuple[RunLine, ...] = ()


class Surroundings:
    """Asks for one study; `workspaces` are those of the study and of its extensions."""

    def __init__(self, workspaces: Sequence[Workspace]) -> None:
        self.workspaces = tuple(workspaces)
        self._client: tuple[Config, Redis] | None = None
        self._description: str | None = None
        # asking servers and schedulers costs waiting alone; what costs work on this machine is done more rarely
        self._servers = Background(self._ask_servers, every_s=SERVERS_S, times_as_long=1.0)
        self._jobs = Background(self._ask_jobs, every_s=JOBS_S, times_as_long=1.0)
        self._files = Background(self._look_at_files, every_s=FILES_S, times_as_long=10.0)
        self._obstacles = Background(
            lambda: obstacles_now(self.workspaces[0]), every_s=OBSTACLES_S, times_as_long=20.0
        )
        self._is_first = True  # nobody has seen an answer so far

    def are_of(self, members: Sequence[Member]) -> bool:
        """True if this object asks about exactly these members."""
        return len(members) == len(self.workspaces) and all(
            member.workspace is workspace for member, workspace in zip(members, self.workspaces, strict=True)
        )

    def servers(self) -> ServerFacts | None:
        """What the servers say of a published study; None if they have not answered yet."""
        return self._servers.latest(FIRST_S)

    def jobs(self) -> tuple[JobLine, ...]:
        """The batch jobs that workers live in, as far as the scheduler is known to say."""
        return self._jobs.latest() or ()

    def files(self) -> FileFacts:
        return self._files.latest(FIRST_S) or FileFacts()

    def obstacles(self) -> tuple[Obstacle, ...]:
        """What keeps more of the study from running; the first look waits for it."""
        return self._obstacles.latest(FIRST_S if self._is_first else 0.0) or ()

    def ask_again(self) -> None:
        """Ask anew, because the study's state has changed and earlier answers may be wrong."""
        self._servers.again()
        if self._is_first:  # what the first look has found is right, and a page with it is shown
            self._obstacles.again()
        else:
            self._obstacles.forget()
        self._is_first = False

    # in threads

    def _look_at_files(self) -> FileFacts:
        if self._description is None:
            self._description = _description(self.workspaces[0])
        return FileFacts(
            description=self._description,
            step_jobs={each.member: tuple(count_jobs(all_jobs(each))) for each in self.workspaces},
            runs=tuple(training_runs(self.workspaces)),
        )

    def _ask_jobs(self) -> tuple[JobLine, ...]:
        facts = self._servers.latest()
        workers = () if facts is None else facts.workers
        now, found = time.time(), []
        with suppress(MerlinError):  # no scheduler, or it does not answer: `obstacles` says it
            for client in clients():
                for job in our_jobs(client, workers):
                    found.append(job_line(job, client.scheduler.system, workers, now))
        return tuple(found)

    def _ask_servers(self) -> ServerFacts:
        config = None
        try:
            config = require_config()
            return self._facts(config)
        except (ConfigError, ExecutionError) as error:
            self._client = None
            return ServerFacts(config=config, error=error)

    def _facts(self, config: Config) -> ServerFacts:
        if self._client is None or self._client[0] != config:
            self._client = config, make_client(config.backend)
        backend = RedisBackend(config, self._client[1], lease_s=0.0)
        workers, work = backend.registry.workers(), backend.registry.open_work()
        held: dict[str, Held] = {}
        oldest_s: dict[str, float] = {}
        now = backend.time()
        for workspace in self.workspaces:
            study = workspace.plan.study_id
            mailbox = backend.mailbox(study)
            if mailbox.exists():
                held[study] = Held(owner=mailbox.holder(), work=tuple(work.get(study, ())))
                for queue, since in _oldest(mailbox, workspace, config.key).items():
                    oldest_s[queue] = max(oldest_s.get(queue, 0.0), now - since)
        queues = {instance.queue for each in self.workspaces for instance in each.plan.instances}
        lines = queue_lines(config, queues, workers, oldest_s)
        return ServerFacts(config=config, workers=tuple(workers), held=held, queues=lines)


def obstacles_now(workspace: Workspace) -> tuple[Obstacle, ...]:
    """`obstacles_of`, with what keeps it from an answer as an obstacle."""
    try:
        return obstacles_of(workspace)
    except MerlinError as error:
        return (Obstacle(what=str(error)),)


def _oldest(mailbox: RedisMailbox, workspace: Workspace, key: bytes) -> dict[str, float]:
    """Since when the oldest chunk of each queue that nobody has taken is offered, by the server's clock."""
    queues = {instance.id: instance.queue for instance in workspace.plan.instances}
    oldest: dict[str, float] = {}
    for each in handed_out(mailbox, workspace.plan.study_id, key):
        queue = queues.get(each.chunk.instance)
        if queue is not None and not each.worker:
            oldest[queue] = min(oldest.get(queue, each.since), each.since)
    return oldest


def _description(workspace: Workspace) -> str:
    """What the spec says of the study; "" if its copy in the workspace cannot be read."""
    for path in workspace.info.glob("*.expanded.yaml"):
        with suppress(MerlinError):
            return load_spec(path, allow_undefined=True).document.description.description
    return ""
