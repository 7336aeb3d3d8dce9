"""A real Slurm for tests: a controller, and daemons on virtual nodes of this machine.

    with slurm_cluster() as cluster:
        job = cluster.submit("srun hostname > out", "--nodes=3", cwd=folder)
        cluster.wait_until_over(job)
        cluster.run("scontrol", "show", "node", "node1")

Commands run on our side of the bridge (the login node) with `cluster.environment`, or on a node by
`cluster.nodes["node1"].run(...)`. Every cluster has its own munged, key, addresses and files. It takes 1.5 s to start.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from nodes import VirtualNetwork, VirtualNode, virtual_network
from servers import die_with_us, program
from waiting import wait_until

CORES = 2  # of a node
SLURMD_PORT = 6818
MEMORY_BYTES = 4 << 30
HEAD = "head"  # the node of the controller, which runs no jobs
NODES = ("node1", "node2", "node3")
COMMAND_S = 120.0  # for commands of Slurm: reached only when it hangs
LIVE = {  # states of jobs
    "PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "REQUEUED", "SIGNALING", "STAGE_OUT",
}  # fmt: skip
REFUSED = ("JobLaunchFailure", "JobHoldMaxRequeue", "launch failed", "Killing non-startable")

# The limits of time are far beyond what a machine under load needs: a batch job that a node starts too late counts as
# refused, and Slurm holds it, or tries again after the two minutes for which its first credential is valid. But
# SlurmctldTimeout is short, a minute being the least: for some seconds after its start, a controller says that nodes
# are busy, and an srun that is told so waits that long.
CONF = """
ClusterName={name}
SlurmctldHost={head}({address})
SlurmctldParameters=node_reg_mem_percent=1
MailProg=/bin/true
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
SlurmUser=root
SlurmdPort={port}
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
SlurmctldDebug=verbose
SlurmdDebug=verbose
MessageTimeout=20
TCPTimeout=20
BatchStartTimeout=600
SlurmctldTimeout=10
SlurmdTimeout=600
UnkillableStepTimeout=600
KillWait=30
MinJobAge=300
ReturnToService=2
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SlurmdParameters=config_overrides
{more}
{nodes}
PartitionName=batch Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class SlurmCluster:
    """See the module. `folder` holds logs, state, and everything else of it."""

    def __init__(self, network: VirtualNetwork, *, gpus: int, settings: Mapping[str, str | int]) -> None:
        self.network, self.folder = network, network.folder
        self.conf = self.folder / "slurm.conf"
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "SBATCH_"))}
        self.environment |= {"SLURM_CONF": str(self.conf)}
        self._gpus = gpus
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._settings = settings
        for name in ("state", "spool", "munge"):
            (self.folder / name).mkdir()

    @property
    def nodes(self) -> dict[str, VirtualNode]:
        """Those that run jobs."""
        return {name: node for name, node in self.network.nodes.items() if name != HEAD}

    # ------------------------------------------------------------------ its parts

    def _configure(self) -> None:
        gres = f"Gres=gpu:{self._gpus}" if self._gpus else ""
        memory = f"RealMemory={MEMORY_BYTES >> 20}"
        nodes = "\n".join(
            f"NodeName={name} NodeHostname={name} NodeAddr={node.address} CPUs={CORES} {memory} {gres}"
            for name, node in self.nodes.items()
        )
        more = "\n".join(f"{key}={value}" for key, value in self._settings.items())
        if self._gpus:
            more += "\nGresTypes=gpu"
            files = [self.folder / f"gpu{k}" for k in range(self._gpus)]
            for file in files:  # for Slurm, a device is just a file; nothing opens these files
                os.mknod(file, 0o666 | 0o020000, os.makedev(1, 3))  # as /dev/null
            lines = "".join(f"Name=gpu File={file}\n" for file in files)
            (self.folder / "gres.conf").write_text(lines)
        kept = {line.partition("=")[0]: line for line in CONF.splitlines()}
        text = "\n".join(line for key, line in kept.items() if key not in self._settings)
        self.conf.write_text(
            text.format(
                name=self.network.name, head=HEAD, address=self.network.nodes[HEAD].address, folder=self.folder,
                more=more, nodes=nodes, port=SLURMD_PORT,
            )
        )  # fmt: skip

    def start(self) -> None:
        for name in (HEAD, *NODES):
            self.network.add(name, cores=CORES, memory_bytes=MEMORY_BYTES)
        self._configure()
        self._start_munge()
        self.start_controller()
        for name in NODES:
            self.start_daemon(name)
        self.wait_until_idle()

    def _start_munge(self) -> None:
        folder = self.folder / "munge"
        key = folder / "key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        for path in (folder, key):
            shutil.chown(path, "munge", "munge")
        folder.chmod(0o755)
        argv = [program("/usr/sbin/munged", "munged"), "--foreground", "--num-threads=10"]
        argv += [f"--socket={folder / 'socket'}"]
        argv += [f"--{name}-file={folder / name}" for name in ("key", "log", "pid", "seed")]
        self._start("munged", argv, user="munge")
        wait_until((folder / "socket").exists, self.describe)

    def _start(self, name: str, argv: Sequence[str], **more: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as out:
            made = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=self.environment,
                cwd=self.folder,
                start_new_session=True,
                **more,
            )
        die_with_us(made.pid)
        self._daemons[name] = made

    def start_controller(self) -> None:
        slurmctld = program("/usr/sbin/slurmctld", "slurmctld")
        head = self.network.nodes[HEAD]
        self._start("slurmctld", head.command(slurmctld, "-D", "-f", str(self.conf)))
        self.wait_until_it_answers()
        running = [name for name in NODES if name in self._daemons]
        # until then, it tells srun that the nodes are busy
        wait_until(lambda: all(map(self._has_reported, running)), self.describe)

    def wait_until_it_answers(self) -> None:
        wait_until(lambda: "is UP" in self._try("scontrol", "ping").stdout, self.describe)

    def _has_reported(self, node: str) -> bool:
        return "SlurmdStartTime=2" in self._try("scontrol", "show", "node", node).stdout

    def kill_controller(self) -> None:
        """SIGKILL: jobs go on, commands fail until the next start, and jobs of the last seconds are forgotten."""
        self._kill("slurmctld")

    def stop_controller(self) -> None:
        """Stop the controller as for an upgrade of Slurm."""
        head = self.network.nodes[HEAD]
        head.run("kill", (self.folder / "slurmctld.pid").read_text().strip())
        wait_until(lambda: not head.processes(), self.describe)  # it saves its state before it ends
        self._kill("slurmctld")

    def restart_controller(self) -> None:
        self.stop_controller()
        self.start_controller()

    def _kill(self, name: str) -> None:
        process = self._daemons.pop(name, None)
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            die_with_us(process.pid, no_longer=True)

    def start_daemon(self, name: str) -> None:
        """Start slurmd on a node; also again, if it was killed with the node's processes."""
        slurmd = program("/usr/sbin/slurmd", "slurmd")
        argv = self.nodes[name].command(slurmd, "-D", "-N", name, "-f", str(self.conf))
        self._start(name, argv)

    def close(self) -> None:
        for node in self.network.nodes.values():
            node.kill9()
        for name in list(self._daemons):
            self._kill(name)

    # ------------------------------------------------------------------ using it

    def run(self, *argv: str, cwd: Path | None = None, environment: Mapping[str, str] | None = None) -> str:
        """Run a command of Slurm; returns what it printed. It must end with 0. A given environment needs SLURM_CONF."""
        env = environment or self.environment
        done = subprocess.run(argv, capture_output=True, text=True, env=env, cwd=cwd, timeout=COMMAND_S)
        assert done.returncode == 0, f"{argv} exited with {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def submit(
        self, script: str, *options: str, cwd: Path, environment: Mapping[str, str] | None = None
    ) -> str:
        """Submit a shell script; returns the job's number."""
        with tempfile.NamedTemporaryFile("w", dir=cwd, suffix=".sh") as file:
            file.write("#!/bin/bash\n" + script + "\n")
            file.flush()
            words = ["sbatch", "--parsable", *options, file.name]
            return self.run(*words, cwd=cwd, environment=environment).strip()

    def states(self) -> dict[str, str]:
        """The states of all jobs that the controller remembers: RUNNING, COMPLETED, …"""
        lines = self.run("squeue", "--noheader", "--states=all", "--format=%A %T").splitlines()
        return dict(line.split() for line in lines)  # type: ignore[misc]

    def refusals(self) -> list[str]:
        """Messages that a node did not start a job; none on a healthy cluster, however slow it is."""
        text = (self.folder / "slurmctld.log").read_text(errors="replace")
        return [line for line in text.splitlines() if any(word in line for word in REFUSED)]

    def wait_until_over(self, *jobs: str, limit_s: float = 240.0) -> dict[str, str]:
        """The states of these jobs, once none runs or waits any more."""

        def ended() -> dict[str, str] | None:
            states = self.states()
            found = {job: states.get(job, "") for job in jobs}
            return None if LIVE.intersection(found.values()) else found

        return wait_until(ended, self.describe, limit_s)

    def wait_until_idle(self) -> None:
        """Wait until there is no job, and every node is ready for one."""

        def is_idle() -> bool:
            done = self._try("sinfo", "--noheader", "--Node", "--format=%N=%T")  # for each partition
            return set(done.stdout.split()) == {f"{name}=idle" for name in NODES} and not self._live()

        wait_until(is_idle, self.describe)

    def _is_completing(self) -> bool:
        return "comp" in self.run("sinfo", "--noheader", "--Node", "--format=%T")

    def _live(self) -> list[str]:
        done = self._try("squeue", "--noheader", "--format=%A")
        return done.stdout.split() if done.returncode == 0 else ["?"]

    def _try(self, *argv: str, limit_s: float = COMMAND_S) -> subprocess.CompletedProcess[str]:
        """Run a command of Slurm that may fail."""
        return subprocess.run(argv, capture_output=True, text=True, env=self.environment, timeout=limit_s)

    def requeue(self, job: str) -> None:
        """Put a running job back into the queue, from where it starts again within seconds.

        By itself, Slurm lets it wait for two minutes. A node refuses a job whose credential is not younger than the
        second in which the job's first run ended, and then Slurm waits two minutes, too.
        """
        self.run("scontrol", "requeue", job)
        wait_until(lambda: self.states()[job] == "PENDING" and not self._is_completing(), self.describe)
        ended = time.time()
        wait_until(lambda: time.time() > ended + 3, self.describe)
        self.run("scontrol", "update", f"JobId={job}", "StartTime=now")

    def empty(self) -> None:
        """End every job, and bring nodes back that a test took out."""
        for name, node in self.nodes.items():
            node.mend()
            state = self.run("sinfo", "--noheader", f"--nodes={name}", "--format=%T")
            if any(word in state for word in ("drain", "down")):
                self.run("scontrol", "update", f"NodeName={name}", "State=RESUME")
        wait_until(self._end_jobs, self.describe)
        self.wait_until_idle()

    def _end_jobs(self) -> bool:
        """Cancel all jobs, and kill their processes at once; returns whether no job was left."""
        jobs = self._live()
        if jobs:
            self._try("scancel", *jobs)  # it fails if one of the jobs has just ended
            for node in self.nodes.values():
                node.end_processes(but=("slurmd", "slurmstepd"))
        return not jobs

    def describe(self) -> str:
        """What the daemons say, for a test that fails."""
        parts = []
        for words in (["squeue", "--states=all"], ["sinfo", "--Node", "--long"]):
            with suppress(subprocess.TimeoutExpired):
                done = self._try(*words, limit_s=30)
                parts.append(done.stdout + done.stderr)
        for path in sorted([*self.folder.glob("*.log"), *self.folder.glob("*.out")]):
            lines = path.read_text(errors="replace").splitlines()
            parts.append(f"--- {path.name}\n" + "\n".join(lines[-25 if path.suffix == ".log" else -4 :]))
        return "\n".join(parts)


@contextmanager
def slurm_cluster(
    *, gpus: int = 0, settings: Mapping[str, str | int] | None = None
) -> Iterator[SlurmCluster]:
    """Three nodes with so many GPUs (which are no devices); `settings` are lines of slurm.conf."""
    for name in ("munged", "slurmctld", "slurmd", "sbatch"):
        program(f"/usr/sbin/{name}", name)
    with ExitStack() as stack:
        network = stack.enter_context(virtual_network())
        cluster = SlurmCluster(network, gpus=gpus, settings=settings or {})
        stack.callback(cluster.close)
        cluster.start()
        yield cluster
