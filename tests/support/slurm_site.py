"""One user on a cluster: studies on virtual nodes with a Redis that they reach, and nothing else that they share.

site = SlurmSite(cluster, redis, folder)
study = LinesStudy.publish(site, "N=100")
job = site.submit_workers(study.spec, "--nodes=3")
study.wait_for_end()
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from installation import Installation
from servers import RedisServer
from slurm import SlurmCluster
from waiting import wait_until

SCRIPT = Path(__file__).parents[2] / "workers" / "slurm.sh"


class SlurmSite(Installation):
    """See the module. Its commands run on the login node, its workers in jobs."""

    def __init__(self, folder: Path, redis: RedisServer, cluster: SlurmCluster, **options: Any) -> None:
        super().__init__(folder, redis, **options)
        self.cluster = cluster
        self.env |= {"SLURM_CONF": str(cluster.conf), "MERLIN_STOP_GRACE_S": "1"}

    def submit_workers(self, spec: Path, *options: str) -> str:
        """Submit the job script that Merlin ships, with options of sbatch; returns the job's number."""
        words = ["sbatch", "--parsable", "--output=slurm-%j.out", *options, str(SCRIPT), str(spec)]
        return self.cluster.run(*words, cwd=self.folder, environment=self.env).strip()

    def submit(self, script: str, *options: str) -> str:
        """Submit a script of the user; returns the job's number."""
        return self.cluster.submit(script, *options, cwd=self.folder, environment=self.env)

    def live_workers(self) -> list[dict[str, Any]]:
        return self.ask("query-workers")

    def describe(self) -> str:
        logs = [*self.folder.glob("slurm-*.out"), *self.folder.glob("merlin_logs/*.log")]
        tails = [f"--- {path.name}\n{path.read_text(errors='replace')[-2000:]}" for path in sorted(logs)]
        return "\n".join([super().describe(), *tails, self.cluster.describe()])

    def wait_until_nothing_runs(self) -> None:
        """Wait until there is no job, and no process of a job on any node."""
        self.cluster.wait_until_idle()
        for node in self.cluster.nodes.values():
            wait_until(lambda node=node: len(node.processes()) <= 1, self.describe)  # slurmd


@contextmanager
def slurm_site(cluster: SlurmCluster, folder: Path, **options: Any) -> Iterator[SlurmSite]:
    """A Redis on our side of the bridge, which only nodes and we can reach; at the end no process is left."""
    with RedisServer(
        folder, appendonly=False, password=secrets.token_hex(16), host=cluster.network.address
    ) as redis:
        site = SlurmSite(folder, redis, cluster, **options)
        try:
            yield site
        finally:
            cluster.empty()
            site.close()
            site.wait_until_nothing_runs()
