"""Faults drawn from a seed, and the scene they happen in."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from installation import Installation, Worker
from lines_study import LinesStudy
from messages import Messages
from servers import RabbitServer, RedisServer

from merlin.execution.distributed.redis_backend import OWNER_S

POLL_S = 0.05
MAX_GAP_S = 0.5  # between two faults that are due at once


class NothingToBreak(Exception):
    """The fault has no victim just now; another one is drawn."""


@dataclass
class Scene:
    """A study under way, everything that can break, and what is to be mended later."""

    home: Installation
    study: LinesStudy
    redis: RedisServer
    messages: Messages
    rng: random.Random
    num_workers: int = 2
    rabbit: RabbitServer | None = None
    stall_s: float = 150.0  # without any task ending, the study hangs
    num_injected: Counter[str] = field(default_factory=Counter)
    began: float = field(default_factory=time.monotonic)
    _due: list[tuple[float, Callable[[], object]]] = field(default_factory=list)

    def say(self, text: str) -> None:
        line = f"{time.monotonic() - self.began:8.2f} s  {text}"
        print(line, flush=True)
        with (self.home.folder / "faults.log").open("a") as log:
            log.write(line + "\n")

    def later(self, after_s: float, action: Callable[[], object]) -> None:
        """Mend something after a while; other faults may come first."""
        self._due.append((time.monotonic() + after_s, action))

    def mend(self, *, all: bool = False) -> None:
        """Do what is due, and have as many workers as there should be."""
        now = time.monotonic()
        due = [entry for entry in self._due if all or entry[0] <= now]
        self._due = [entry for entry in self._due if entry not in due]
        for _, action in sorted(due, key=lambda entry: entry[0]):
            action()
        self.home.replace_workers(self.study.spec, self.num_workers)

    def worker(self) -> Worker:
        """One that is alive and not stopped."""
        found = [w for w in self.home.workers if w.is_alive and not w.is_stopped]
        if not found:
            raise NothingToBreak("every worker is stopped or dead")
        return self.rng.choice(found)

    def owner(self) -> Worker:
        """The worker that owns the study, if it is not stopped."""
        found = self.messages_quietly(lambda: self.home.owner(self.study.id))
        if not isinstance(found, Worker) or found.is_stopped:
            raise NothingToBreak("nobody owns the study just now")
        return found

    def breathe(self) -> None:
        """Let a moment pass, so that faults which are due together still find different states."""
        until = time.monotonic() + self.rng.uniform(0, MAX_GAP_S)
        while time.monotonic() < until:
            self.mend()
            time.sleep(POLL_S)

    def inject(self) -> None:
        """One fault, drawn by weight from those that have a victim."""
        self.check_workers()
        self.messages_quietly(self.messages.look)
        while True:
            name = self.rng.choices(list(FAULTS), [weight for weight, _ in FAULTS.values()])[0]
            try:
                detail = FAULTS[name][1](self)
            except NothingToBreak:
                continue
            self.num_injected[name] += 1
            self.say(f"fault {self.num_injected.total()}: {name} {detail or ''}".rstrip())
            return

    def messages_quietly(self, action: Callable[[], object]) -> object:
        """A broker that is down or stopped by another fault has no messages to play with."""
        import amqp
        import redis

        try:
            return action()
        except (redis.RedisError, amqp.AMQPError, OSError):
            return None

    def check_workers(self) -> None:
        """Assert that no worker has ended but those that were killed."""
        dead = [worker.tail() for worker in self.home.workers if not worker.is_alive]
        assert not dead, "a worker ended by itself:\n" + "\n".join(dead)

    def run_until(self, num_ended: int) -> None:
        """Let the study go on until so many tasks have ended."""
        last, changed = -1, time.monotonic()
        while (ended := self.study.num_ended) < num_ended:
            if ended != last:
                last, changed = ended, time.monotonic()
            if time.monotonic() - changed > self.stall_s:
                raise AssertionError(f"nothing has ended for {self.stall_s:g} s\n{self.study.show()}")
            self.check_workers()
            self.mend()
            time.sleep(POLL_S)


def kill_worker_process(scene: Scene) -> str:
    """SIGKILL one pool child, as the kernel's memory killer does; its tasks die with it or are killed."""
    worker = scene.worker()
    children = worker.children()
    if not children:
        raise NothingToBreak
    pid = scene.rng.choice(children)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return f"{pid} of {worker.name}"


def kill_worker(scene: Scene) -> str:
    return _kill(scene, scene.worker())


def kill_machine(scene: Scene) -> str:
    """A worker with all its processes and tasks, at one moment."""
    return _kill(scene, scene.worker(), whole=True)


def kill_owner(scene: Scene) -> str:
    return _kill(scene, scene.owner())


def kill_owners_machine(scene: Scene) -> str:
    return _kill(scene, scene.owner(), whole=True)


def _kill(scene: Scene, worker: Worker, *, whole: bool = False) -> str:
    worker.kill(whole=whole)
    scene.home.workers.remove(worker)
    return worker.name


def kill_all_workers(scene: Scene) -> str:
    names = [worker.name for worker in scene.home.workers]
    for worker in scene.home.workers:
        worker.kill(whole=scene.rng.random() < 0.5)
    scene.home.workers = []
    return " ".join(names)


def terminate_worker(scene: Scene) -> str:
    worker = scene.worker()
    scene.home.workers.remove(worker)
    assert worker.terminate() == 0, worker.tail()
    return worker.name


def stop_worker(scene: Scene) -> str:
    """SIGSTOP for longer than a lease, of the Celery worker alone or of everything."""
    return _stop(scene, scene.worker(), scene.home.lease_s)


def stop_owner(scene: Scene) -> str:
    """SIGSTOP for so long that another one owns the study when it wakes up."""
    return _stop(scene, scene.owner(), max(OWNER_S, scene.home.lease_s))


def _stop(scene: Scene, worker: Worker, lease_s: float) -> str:
    whole = scene.rng.random() < 0.5
    worker.freeze(whole=whole)
    wait_s = lease_s * scene.rng.uniform(1.1, 2.5)
    scene.later(wait_s, worker.thaw)
    return f"{worker.name} {'with its processes' if whole else 'alone'} for {wait_s:.1f} s"


def restart_redis(scene: Scene) -> str:
    if not scene.redis.is_running:
        raise NothingToBreak
    scene.redis.resume()
    scene.redis.kill9()
    wait_s = scene.rng.choice([0.0, 0.5, 1.5]) * scene.home.lease_s
    if wait_s:
        time.sleep(wait_s)  # it is down for everybody, this harness too
    scene.redis.start_again()
    return f"down for {wait_s:.1f} s"


def pause_redis(scene: Scene) -> str:
    wait_s = scene.home.lease_s * scene.rng.uniform(0.2, 1.5)
    scene.redis.pause()
    time.sleep(wait_s)
    scene.redis.resume()
    return f"for {wait_s:.1f} s"


def wipe_redis(scene: Scene) -> str:
    """It loses everything; the study is published again from ledger and plan."""
    scene.redis.kill9()
    shutil.rmtree(scene.redis.folder / "appendonlydir")
    scene.redis.start_again()
    scene.home.restart(scene.study.workspace.path)
    return "and merlin restart"


def cut_connections(scene: Scene) -> str:
    with scene.redis.client() as client:
        killed = client.client_kill_filter(_type="normal", skipme=True)
    return f"{killed} of Redis"


def flush_scripts(scene: Scene) -> str:
    with scene.redis.client() as client:
        client.script_flush()
    return ""


def lose_mailbox(scene: Scene) -> str:
    """What workers have reported to the owner, and it has not read yet."""
    with scene.redis.client() as client:
        num = client.xlen(key := scene.home.key(scene.study.id, "mail"))
        client.delete(key)
    if not num:
        raise NothingToBreak
    return f"with {num} letters"


def restart_rabbit(scene: Scene) -> str:
    if scene.rabbit is None:
        raise NothingToBreak
    scene.rabbit.kill9()
    scene.rabbit.start_again()
    return ""


def _with_message(act: Callable[[Messages, random.Random], bool]) -> Callable[[Scene], str]:
    def inject(scene: Scene) -> str:
        if not scene.messages_quietly(lambda: act(scene.messages, scene.rng)):
            raise NothingToBreak
        return ""

    return inject


FAULTS: dict[str, tuple[int, Callable[[Scene], str]]] = {
    "kill a worker process": (30, kill_worker_process),
    "kill a worker": (8, kill_worker),
    "kill a machine": (5, kill_machine),
    "kill all workers": (2, kill_all_workers),
    "terminate a worker": (4, terminate_worker),
    "stop a worker": (8, stop_worker),
    "kill the owner": (5, kill_owner),
    "kill the owner's machine": (3, kill_owners_machine),
    "stop the owner": (5, stop_owner),
    "lose the mailbox": (4, lose_mailbox),
    "kill Redis": (5, restart_redis),
    "pause Redis": (3, pause_redis),
    "wipe Redis": (1, wipe_redis),
    "cut connections": (8, cut_connections),
    "forget scripts": (3, flush_scripts),
    "kill RabbitMQ": (6, restart_rabbit),
    "lose a message": (8, _with_message(lambda messages, rng: messages.drop(rng))),
    "double a message": (8, _with_message(lambda messages, rng: messages.double(rng))),
    "replay a message": (8, _with_message(lambda messages, rng: messages.replay(rng))),
    "forge a message": (4, _with_message(lambda messages, rng: messages.forge(rng))),
}


def draw_seed() -> int:
    """From MERLIN_SOAK_SEED, else a new one; it is printed, so that a failure can be run again."""
    seed = int(os.environ.get("MERLIN_SOAK_SEED") or random.SystemRandom().randrange(1 << 31))
    print(f"\nseed {seed}: MERLIN_SOAK_SEED={seed} draws the same faults", flush=True)
    return seed
