"""A study and its workers in one process: real engines, owners and ledger; server, broker and processes in memory."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from study_on_disk import make_workspace
from thread_processes import ThreadProcess, Work
from waiting import wait_until

from merlin.config.load import find_config
from merlin.execution.conductor import CONTROLLER
from merlin.execution.distributed.contracts import Mailbox
from merlin.execution.distributed.engine import Engine
from merlin.execution.distributed.leaving import Leaving
from merlin.execution.distributed.messages import open_notice
from merlin.execution.distributed.study import Study
from merlin.execution.distributed.tools import Tools
from merlin.execution.walltime import Walltime
from merlin.ledger.records import EventRecord
from merlin.ledger.replay import Replay, replay
from merlin.ledger.session import next_session
from merlin.ledger.writer import LedgerWriter
from merlin.plan.notify_rule import NotifyRule
from merlin.plan.plan import StepInstance
from merlin.plan.tasks import ChunkResult, Outcome
from merlin.testing.memory import MemoryBackend, MemoryCarrier, MemoryServer

LEASE_S = 60.0
RunChunk = Callable[[Work], ChunkResult | None]


def run_ok(work: Work) -> ChunkResult:
    return work.finish(busy_s=0.05)


class Staying(Leaving):
    """Ends no process: that is the one in which the tests run."""

    def __init__(self, walltime: Walltime | None = None) -> None:
        super().__init__(walltime or Walltime())
        self.shut_down: Callable[[], None] = lambda: None
        self.has_ended = threading.Event()
        self.num_left = 0

    def leave(self) -> None:
        self.num_left += 1
        self.shut_down()

    def end(self) -> None:
        self.has_ended.set()


class Worker:
    """An engine, and the threads that hand messages to it, as Celery's do."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        run: RunChunk,
        concurrency: int,
        at_start: Callable[[], object],
        walltime: Walltime | None = None,
        **more: Any,
    ) -> None:
        self.name, self.cluster = name, cluster
        self.run, self.at_start = run, at_start
        self.trouble: dict[str, list[BaseException]] = {}  # of calls of the server and the broker, by name
        self.lost_replies: dict[str, list[BaseException]] = {}
        self.awake = threading.Event()  # not: every call waits
        self.awake.set()
        self.is_dead = False
        self.num_sent = 0  # messages
        self.processes: list[ThreadProcess] = []
        self.backend = MemoryBackend(cluster.server, lease_s=LEASE_S, trouble=self._meddle)
        self.leaving = Staying(walltime)
        self.engine = Engine(
            cluster.config,
            self.backend,
            self,
            name=name,
            concurrency=concurrency,
            queues=[cluster.config.queue_name("merlin")],
            leaving=self.leaving,
            walltime=walltime,
            **more,
            start_process=self._start_process,
        )
        self.leaving.shut_down = self.engine.shut_down
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._consume, daemon=True) for _ in range(concurrency)]

    def _meddle(self, name: str, is_done: bool) -> None:
        self.awake.wait()
        if self.is_dead:
            raise SystemExit(0)
        found = (self.lost_replies if is_done else self.trouble).get(name)
        if found:
            raise found.pop(0)

    def _start_process(self, *args: Any, **options: Any) -> ThreadProcess:
        if found := self.trouble.get("start"):
            raise found.pop(0)
        process = ThreadProcess(
            lambda work: self.cluster.note(self.name, work, self.run(work)),
            *args,
            start=self.at_start,
            **options,
        )
        self.processes.append(process)
        return process

    def send(self, queue: str, envelopes: Sequence[Mapping[str, str]], *, is_retry: bool = False) -> None:
        self._meddle("send message", False)
        self.num_sent += len(envelopes)
        self.cluster.carrier.send(queue, envelopes, is_retry=is_retry)

    def empty(self, queues: Any) -> list[str]:
        self._meddle("empty", False)
        return self.cluster.carrier.empty(queues)

    def start(self) -> Worker:
        self.engine.start()
        for thread in self._threads:
            thread.start()
        return self

    def _consume(self) -> None:
        while not (self._stop.is_set() or self.leaving.is_leaving or self.is_dead):
            self.awake.wait()
            if envelope := self.cluster.carrier.receive("merlin", 0.01):
                self.engine.handle(envelope)

    def vanish(self) -> None:
        """Die without a word, and with it its processes."""
        self.is_dead = True
        for process in self.processes:
            process.kill()

    @property
    def num_running(self) -> int:
        return len(self.engine.info().running)

    def close(self) -> None:
        """It ends, and leaves no process and no descriptor."""
        self._stop.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(60)
        with suppress(SystemExit):  # of a worker that has vanished
            self.engine.close()
        if not self.is_dead:
            assert not self.num_running
            assert all(process.is_closed for process in self.processes), "a process was forgotten"


class Cluster:
    """A study in a workspace, a server, a broker, and workers."""

    def __init__(
        self,
        root: Path,
        *instances: StepInstance,
        carrier: MemoryCarrier | None = None,
        notify: tuple[NotifyRule, ...] = (),
    ) -> None:
        self.workspace = make_workspace(root, *instances, notify=notify)
        config = find_config({"MERLIN_BROKER_URL": "redis://localhost:1/0", "HOME": str(root)})
        assert config is not None
        self.config = config
        self.server, self.carrier = MemoryServer(), carrier or MemoryCarrier()
        self.workers: list[Worker] = []
        self.ran: list[tuple[str, str, int, int]] = []  # worker, and the chunk that it has run to its end
        self.study = Study(self.workspace)
        self.session = ""

    def note(self, name: str, work: Work, result: ChunkResult | None) -> ChunkResult | None:
        self.ran.append((name, work.chunk.instance, work.chunk.lo, work.chunk.hi))
        return result

    def tools(self) -> Tools:
        backend = MemoryBackend(self.server, lease_s=LEASE_S)
        return Tools(config=self.config, backend=backend, carrier=self.carrier, lease_s=LEASE_S)

    def mailbox(self) -> Mailbox:
        """The mailbox of somebody else."""
        return self.tools().backend.mailbox(self.study.id)

    def publish(self) -> Cluster:
        backend = self.tools().backend
        self.session = next_session(self.workspace.ledger_dir, backend.time())
        with LedgerWriter(
            self.workspace.ledger_dir, CONTROLLER, session=self.session, study_id=self.study.id
        ) as ledger:
            ledger.append(EventRecord(kind="run_started", data={"executor": "celery"}))
        backend.registry.advertise(self.study.info(self.session, backend.time()))
        mailbox = backend.mailbox(self.study.id)
        mailbox.open(self.session)
        mailbox.release()
        return self

    def worker(
        self,
        run: RunChunk = run_ok,
        *,
        name: str = "",
        concurrency: int = 2,
        at_start: Callable[[], object] = lambda: None,
        walltime: Walltime | None = None,
        **more: Any,
    ) -> Worker:
        """One that has not started yet."""
        name = name or f"celery@{len(self.workers)}"
        self.workers.append(Worker(self, name, run, concurrency, at_start, walltime, **more))
        return self.workers[-1]

    # ---------------------------------------------------------------- results

    def ledger(self) -> Replay:
        return replay(self.workspace.ledger_dir, self.workspace.plan)

    def outcomes(self, instance: str = "sim") -> Counter[str]:
        """Tasks by outcome, as the ledger tells."""
        counts = self.ledger().counts()[instance]
        return Counter({Outcome(k).name: n for k, n in counts.items() if n and k in list(Outcome)})

    def num_committed(self) -> int:
        """Tasks that workers have written down as ok: each task once, or a fence leaks."""
        entries = self.ledger().entries()
        return sum(e.header.counts[Outcome.OK] for e in entries if e.writer.worker != CONTROLLER)

    def events(self) -> list[str]:
        return [event.kind for event in self.ledger().events() if event.kind != "memory"]

    def data_of(self, kind: str) -> list[dict[str, Any]]:
        return [event.data for event in self.ledger().events() if event.kind == kind]

    def is_over(self) -> bool:
        return not self.server.open_studies and not self.mailbox().exists()

    def wait_until_over(self, pass_s: float = 0.0) -> None:
        """With `pass_s`, time passes on the server meanwhile, in such steps."""

        def is_over() -> bool:
            self.server.advance(pass_s)
            return self.is_over()

        wait_until(is_over, self.show)

    def expect_all_ok(self) -> None:
        assert self.is_over()
        planned = {i.id: i.num_tasks for i in self.workspace.plan.instances}
        assert {id: self.outcomes(id) for id in planned} == {id: {"OK": n} for id, n in planned.items()}
        assert self.num_committed() == sum(planned.values())
        assert not self.server.open_studies

    def messages(self) -> list[Any]:
        """What waits in the queue, taken out of it."""
        found = iter(partial(self.carrier.receive, "merlin"), None)
        return [open_notice(envelope, self.config.key) for envelope in found]

    def show(self) -> str:
        counts = {i.id: self.outcomes(i.id) for i in self.workspace.plan.instances}
        return f"{counts} {self.events()} {self.server.studies}"

    def close(self) -> None:
        for worker in self.workers:
            worker.awake.set()
            worker.close()
