"""The same tasks by dask-jobqueue: python dask_study.py NUM SLEEP FOLDER, in the peer's environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from dask.distributed import Client, as_completed
from dask_jobqueue import SLURMCluster

CMD = "printf x >> begun; sleep {sleep}; printf x >> ended"


def run_sample(folder: str, number: int, sleep: str) -> int:
    place = Path(folder) / f"{number:06d}"
    place.mkdir()
    subprocess.run(["bash", "-c", CMD.format(sleep=sleep)], cwd=place, check=True)
    return number


def main(num: int, sleep: str, folder: str) -> None:
    cluster = SLURMCluster(
        cores=2, processes=1, memory="1GiB", walltime="00:30:00", interface="eth0",
        scheduler_options={"interface": sys.argv[4], "dashboard_address": None},
        local_directory=folder, log_directory=folder,
    )  # fmt: skip
    cluster.adapt(minimum_jobs=0, maximum_jobs=3)
    with Client(cluster) as client:
        futures = client.map(run_sample, [folder] * num, range(num), [sleep] * num, pure=False)
        for future in as_completed(futures):
            future.result()
    cluster.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
