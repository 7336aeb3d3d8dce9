"""Several "nodes" on one machine: each has a network, processes, mounts, a host name and limits of its own.

    with virtual_network() as network:
        node = network.add("node1", cores=2, memory_bytes=2 << 30)
        node.run("hostname")   # node1; its address is node.address, ours is network.address
        node.cut()             # no packet reaches it or leaves it
        node.mend()
        node.kill9()           # every process of it, at once

Files are shared as on a cluster, /tmp and /dev/shm are a node's own; but directories that are in them when a node
starts, such as those of the tests, are shared too.

Networks of several test processes do not meet: each has a number that no live process shares, and bridge, addresses,
control groups and directory are named after it. What a killed test run left behind is removed by the next one.
It needs root on Linux, and uses no network but 10.9.0.0/16.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from servers import die_with_us, program, unavailable
from waiting import wait_until

NUMBERS = range(1, 250)  # the third part of an address
# a file per number, locked by the process that has it; it names the directory
LOCKS = Path("/run/merlin-test-nodes")
CGROUPS = Path("/sys/fs/cgroup")  # version 1: a directory per controller
CONTROLLERS = ("memory", "cpu")
FIRST_PLACE = 10  # of a node's address
# what programs of ours keep there, named by host, process or user
NOT_SHARED = ("ompi.", "pmix", "spmix", "prte", ".", f"merlin-{os.geteuid()}")
PERIOD_US = 100_000

# the first process of a node reaps orphaned processes, and ends when our end of its input is closed
INIT = """
# a directory may have been removed since it was listed; the one with our hosts has to be there
mount -t tmpfs none "$6" || exit
mount --all --fstab "$5"; mount --rbind "$6" /dev/shm || exit  # $6 is in /tmp, so this comes first
mount --all --fstab "$3"; mount --rbind "$4" /tmp &&
hostname "$1" && mount --bind "$2" /etc/hosts && ip link set lo up && echo ready || exit
read -r forever
"""


def require_root() -> None:
    if sys.platform != "linux" or os.geteuid() != 0:
        unavailable("virtual nodes need root on Linux")


class VirtualNode:
    """A node, as the module describes it. Made by `VirtualNetwork.add`."""

    def __init__(self, network: VirtualNetwork, name: str, place: int, limits: list[Path]) -> None:
        self.name, self.network = name, network
        self.address = f"{network.prefix}.{FIRST_PLACE + place}"
        self._link = f"{network.name}n{place}"
        self._limits = limits
        self._first = self._start()
        try:
            self._connect()
        except BaseException:
            self.kill9()
            raise

    def _start(self) -> subprocess.Popen[bytes]:
        words = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--net", "--uts"]
        words += ["bash", "-c", INIT, "init", self.name, str(self.network.hosts)]
        words += [*self._own(Path("/tmp")), *self._own(Path("/dev/shm"))]
        said = self.network.folder / f"{self.name}.start"
        with said.open("wb") as errors:
            pipe = subprocess.PIPE
            first = subprocess.Popen(
                self._limited(words), stdin=pipe, stdout=pipe, stderr=errors, start_new_session=True
            )
        die_with_us(first.pid)
        assert first.stdout is not None
        if first.stdout.readline() != b"ready\n":
            first.kill()
            why = said.read_text()
            if "unshare failed" in why:
                unavailable(f"the machine does not let us make namespaces: {why}")
            raise AssertionError(f"{self.name} does not start: {why}")
        # `sh` became `unshare`, whose only child is the first process of the node
        self.pid = int(Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text())
        return first

    def _own(self, place: Path) -> tuple[str, str]:
        """What is mounted in its own `place`, as a file like fstab, and the directory that becomes it."""
        own = self.network.folder / f"{self.name}.{place.name}"
        own.mkdir()
        own.chmod(0o1777)
        lines = []
        for folder in place.iterdir():
            if folder.is_dir() and not folder.is_symlink() and not folder.name.startswith(NOT_SHARED):
                words = [str(path).replace(" ", "\\040") for path in (folder, own / folder.name)]
                lines.append(f"{' '.join(words)} none bind,X-mount.mkdir 0 0\n")
        table = own.with_name(f"{own.name}.fstab")
        table.write_text("".join(lines))
        return str(table), str(own)

    def _connect(self) -> None:
        _ip(f"link add {self._link} type veth peer name eth0 netns {self.pid}",
            f"link set {self._link} master {self.network.name} up")  # fmt: skip
        inside = f"address add {self.address}/24 dev eth0\nlink set eth0 up\n"
        enter = ["nsenter", f"--net=/proc/{self.pid}/ns/net"]
        subprocess.run([*enter, "ip", "-batch", "-"], input=inside, text=True, check=True)

    def _limited(self, words: list[str]) -> list[str]:
        """A command line that enters the control groups of the node first."""
        enter = "".join(f"echo 0 > {limit}/cgroup.procs && " for limit in self._limits)
        return ["sh", "-c", enter + 'exec "$@"', "sh", *words]

    def command(self, *argv: str) -> list[str]:
        """A command line that runs there."""
        inside = ["nsenter", "-t", str(self.pid), "--mount", "--net", "--uts", "--pid", "--wd=.", "--"]
        return self._limited([*inside, *argv])

    def run(self, *argv: str, limit_s: float = 60.0) -> str:
        """Run a command on the node; it must end with 0. Returns what it printed."""
        done = subprocess.run(self.command(*argv), capture_output=True, text=True, timeout=limit_s)
        assert done.returncode == 0, f"{argv} exited with {done.returncode} on {self.name}\n{done.stderr}"
        return done.stdout

    def cut(self) -> None:
        """Take the cable out: connections stay open on both sides, and nothing arrives."""
        _ip(f"link set {self._link} down")

    def mend(self) -> None:
        _ip(f"link set {self._link} up")

    def processes(self) -> list[int]:
        """The process ids on this machine of the node's processes, without its first one."""
        space = Path(f"/proc/{self.pid}/ns/pid").readlink()
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and (entry / "ns/pid").readlink() == space:
                    found.append(int(entry.name))
        return [pid for pid in found if pid != self.pid]

    def end_processes(self, but: tuple[str, ...]) -> None:
        """SIGKILL the node's processes, but not those whose name begins with one of these words."""
        for pid in self.processes():
            with suppress(OSError):
                if not Path(f"/proc/{pid}/comm").read_text().startswith(but):
                    os.kill(pid, signal.SIGKILL)

    def kill9(self) -> None:
        """End every process of the node at once, as if its power failed."""
        if self._first.poll() is None:
            with suppress(ProcessLookupError, AttributeError):
                os.kill(self.pid, signal.SIGKILL)  # then the kernel ends all processes of the node
            self._first.kill()
        self._first.wait()
        die_with_us(self._first.pid, no_longer=True)
        for pipe in (self._first.stdin, self._first.stdout):
            assert pipe is not None
            pipe.close()


class VirtualNetwork:
    """A bridge, our own address on it, and nodes."""

    def __init__(self) -> None:
        require_root()
        for name in ("ip", "unshare", "nsenter", "bash"):
            program(name)
        self._lock, self.number = _claim()
        self.name = f"merlin{self.number}"
        self.prefix = f"10.9.{self.number}"
        self.address = f"{self.prefix}.1"
        self.nodes: dict[str, VirtualNode] = {}
        # a short path, because sockets have theirs inside; others may look inside, as munged wants it
        self.folder = Path(tempfile.mkdtemp(prefix="merlin-nodes-", dir="/tmp"))
        self._lock.write(str(self.folder))
        self._lock.flush()
        self.folder.chmod(0o755)
        self.hosts = self.folder / "hosts"
        self.hosts.write_text(f"127.0.0.1 localhost\n{self.address} {os.uname().nodename}\n")
        _ip(f"link add {self.name} type bridge", f"address add {self.address}/24 dev {self.name}",
            f"link set {self.name} up")  # fmt: skip

    def add(self, name: str, *, cores: int, memory_bytes: int) -> VirtualNode:
        place = len(self.nodes) + 1
        with self.hosts.open("a") as hosts:  # a mount follows the file, so it must not be replaced
            hosts.write(f"{self.prefix}.{FIRST_PLACE + place} {name}\n")
        limits = self._make_limits(name, cores, memory_bytes)
        self.nodes[name] = VirtualNode(self, name, place, limits)
        return self.nodes[name]

    def _make_limits(self, name: str, cores: int, memory_bytes: int) -> list[Path]:
        """The control groups of a node; none where the machine has no version 1 that we may write."""
        values = {"memory.limit_in_bytes": memory_bytes, "cpu.cfs_quota_us": cores * PERIOD_US}
        values = {"cpu.cfs_period_us": PERIOD_US} | values
        made = []
        for controller in CONTROLLERS:
            group = CGROUPS / controller / f"{self.name}-{name}"
            with suppress(OSError):
                group.mkdir()
                for file, value in values.items():
                    if file.startswith(controller + "."):
                        (group / file).write_text(str(value))
                made.append(group)
        return made

    def close(self) -> None:
        for node in self.nodes.values():
            node.kill9()
        _sweep(self.number, self.folder)
        self._lock.truncate(0)
        self._lock.close()


@contextmanager
def virtual_network() -> Iterator[VirtualNetwork]:
    network = VirtualNetwork()
    try:
        yield network
    finally:
        network.close()


def _claim() -> tuple[IO[str], int]:
    """A number that nobody has, locked as long as this process lives; also tidies up after dead ones."""
    LOCKS.mkdir(exist_ok=True, mode=0o700)
    ours: tuple[IO[str], int] | None = None
    for number in NUMBERS:
        path = LOCKS / str(number)
        if ours is not None and not path.exists():
            continue
        file = path.open("a+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            continue
        file.seek(0)
        left = file.read()
        if left or ours is None:
            _sweep(number, Path(left) if left else None)
        file.truncate(0)
        if ours is None:
            ours = file, number
        else:
            file.close()
    if ours is None:
        unavailable(f"all numbers of virtual networks are taken, see {LOCKS}")
    return ours


def _sweep(number: int, folder: Path | None) -> None:
    """Remove what a network with this number has left; it has no owner, or is ours."""
    name = f"merlin{number}"
    for controller in CONTROLLERS:
        for group in (CGROUPS / controller).glob(f"{name}-*"):
            _end_group(group)
    # open connections can keep alive the network of a dead node, and both ends of its cable, for minutes
    links = [path.name for path in Path("/sys/class/net").glob(f"{name}n*")]
    for link in [*links, name]:
        subprocess.run(["ip", "link", "delete", link], capture_output=True)  # not there: nothing to do
    if folder is not None and folder.name.startswith("merlin-nodes-"):
        shutil.rmtree(folder, ignore_errors=True)


def _end_group(group: Path) -> None:
    def is_gone() -> bool:
        with suppress(OSError):
            for pid in (group / "cgroup.procs").read_text().split():
                os.kill(int(pid), signal.SIGKILL)
        with suppress(OSError):
            group.rmdir()
        return not group.exists()

    wait_until(is_gone, lambda: f"for the end of {group}")


def _ip(*lines: str) -> None:
    """Run lines of `ip`, again for a moment where the kernel is busy with the link of one that has just died."""
    deadline = time.monotonic() + 30
    for line in lines:
        while True:
            done = subprocess.run(["ip", *line.split()], capture_output=True, text=True)
            if done.returncode == 0:
                break
            assert time.monotonic() < deadline, f"ip {line}: {done.stderr}"
            time.sleep(0.05)
