"""What readers cost a run that writes: `merlin status` in a tight loop, an SQL query held open, and ten dashboards.

They share all cores with the run, as on a machine that computes; or they have one half of the cores, and the run the
other. Either is compared with a run without readers, and with one that has the same readers beside it, of another
study of the same size: the difference to that one is what they do to the ledger and its files, and not what two
programs take from each other that share a machine.

More pages to listen to:
MERLIN_BENCH_LISTEN="http://127.0.0.1:8765/api/…/events?token=…", several with blanks between them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import report
from measure import MERLIN, SPECS, Timing, fresh, median_s, only_workspace, ratio_s
from report import Row, mb

NUM_DASHBOARDS = 10
# reads the streams of events at these addresses, as browsers do, until it is killed
LISTENER = """
import sys, threading
from urllib.request import Request, urlopen
def listen(url, token):
    request = Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    with urlopen(request, timeout=1000) as answer:
        while answer.read1(1 << 16):
            pass
for word in sys.argv[1:]:
    url, _, token = word.partition("#")
    threading.Thread(target=listen, args=(url, token)).start()
"""


@dataclass(frozen=True)
class Places:
    """The cores of a run and of its readers."""

    what: str
    num_workers: int
    of_run: Collection[int]
    of_readers: Collection[int]


def on_cores(cores: Collection[int], command: Sequence[str]) -> list[str]:
    return ["taskset", "--cpu-list", ",".join(map(str, sorted(cores))), *command]


@contextmanager
def started(command: Sequence[str], *, stdout: int = subprocess.DEVNULL) -> Iterator[subprocess.Popen[bytes]]:
    """A program that is killed at the end, with those that it has started."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=stdout, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield process
    finally:
        os.killpg(process.pid, 9)
        process.wait()


@contextmanager
def hostile(workspace: Path, cores: Collection[int], listen_to: Sequence[str] = ()) -> Iterator[None]:
    """All readers at once; they also listen to the addresses `listen_to`."""
    loop = f"while :; do {MERLIN} status {workspace} --json; done"
    query = [MERLIN, "sql", str(workspace), "select * from tasks", "--csv"]
    dashboard = [MERLIN, "dashboard", "--json", "--port", "0", str(workspace)]
    with ExitStack() as stack:
        stack.enter_context(started(on_cores(cores, ["sh", "-c", loop])))
        stack.enter_context(started(on_cores(cores, query), stdout=subprocess.PIPE))  # which nobody reads
        server = stack.enter_context(started(on_cores(cores, dashboard), stdout=subprocess.PIPE))
        assert server.stdout is not None
        facts = json.loads(server.stdout.readline())
        token = facts["url"].partition("token=")[2]
        events = f"http://127.0.0.1:{facts['port']}/api/study/{workspace.name}/events#{token}"
        words = [sys.executable, "-c", LISTENER, *[events] * NUM_DASHBOARDS, *listen_to]
        stack.enter_context(started(on_cores(cores, words)))
        yield


def run_once(folder: Path, num: int, places: Places, readers_of: Callable[[Path], Path | None]) -> Timing:
    """One run of null shell tasks, and meanwhile the readers of a workspace, if there are any.

    `readers_of` is given the workspace of the run.
    """
    spec, workers = str(SPECS / "null_shell.yaml"), str(places.num_workers)
    command = [MERLIN, "run", "--local", "--workers", workers, spec, "--vars", f"N_SAMPLES={num}"]
    begin = time.perf_counter()
    with ExitStack() as stack, (folder / "bench.log").open("wb") as log:
        child = subprocess.Popen(on_cores(places.of_run, command), cwd=folder, stdout=log, stderr=log)
        while not list(folder.glob("*/merlin_info/ledger/*.mlg")):
            if child.poll() is not None:
                raise RuntimeError((folder / "bench.log").read_text(errors="replace")[-2000:])
            time.sleep(0.01)
        if (read := readers_of(only_workspace(folder))) is not None:
            listen_to = os.environ.get("MERLIN_BENCH_LISTEN", "").split()
            stack.enter_context(hostile(read, places.of_readers, listen_to))
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.perf_counter() - begin
    if child.returncode:
        raise RuntimeError((folder / "bench.log").read_text(errors="replace")[-2000:])
    return Timing(seconds, usage.ru_maxrss * 1024)


def hostile_readers(tmp: Path, rounds: int, num: int) -> list[Row]:
    cores = sorted(os.sched_getaffinity(0))
    return _rows(tmp, rounds, num, Places("on the same cores", len(cores), cores, cores))


def hostile_readers_apart(tmp: Path, rounds: int, num: int) -> list[Row]:
    """`num` samples per worker."""
    cores = sorted(os.sched_getaffinity(0))
    workers = len(cores) // 2
    if not workers:
        raise RuntimeError("the run and its readers need a core each; this machine has one")
    places = Places("on the other half of the cores", workers, cores[:workers], cores[workers:])
    return _rows(tmp, rounds, num * workers, places)


def _rows(tmp: Path, rounds: int, num: int, places: Places) -> list[Row]:
    alone, beside, read = [], [], []
    for _ in range(rounds):
        folder = fresh(tmp / "alone")
        alone.append(run_once(folder, num, places, lambda _: None))
        other = only_workspace(folder)
        beside.append(run_once(fresh(tmp / "beside"), num, places, lambda _, other=other: other))
        read.append(run_once(fresh(tmp / "read"), num, places, lambda own: own))
    workers = f"{places.num_workers} worker{'s' * (places.num_workers > 1)}"
    what = (
        f"null shell, {num:,} samples, {workers}, beside readers (`merlin status` in a loop, an SQL query, "
        f"{NUM_DASHBOARDS} browsers) {places.what}; against the same"
    )
    return [
        _row(f"{what} without readers", num, alone, read, "< 3 %"),
        _row(f"{what} with these readers at another study", num, beside, read, "< 3 %"),
    ]


def _row(what: str, num: int, without: list[Timing], read: list[Timing], floor: str) -> Row:
    cost = 1 - ratio_s(without, read)
    return Row(
        what,
        f"{num / median_s(read):,.0f}/s",
        f"{num / median_s(without):,.0f}/s",
        f"costs {max(0.0, cost):.1%}",
        report.floor(floor, cost < 0.03),
        mb(read),
    )
