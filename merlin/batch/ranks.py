"""Reads from the environment which of the processes of one launch this process is. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from merlin.errors import UsageError


class RankVariables(Struct, frozen=True, kw_only=True):
    """What a launcher calls the numbers of a process."""

    rank: str
    size: str
    local_rank: str
    local_size: str = ""
    job: tuple[str, ...] = ()  # those that are set distinguish one launch from another


# by scheduler; the launcher of "local" is Open MPI's
RANK_VARIABLES: Mapping[str, RankVariables] = {
    "slurm": RankVariables(
        rank="SLURM_PROCID",
        size="SLURM_STEP_NUM_TASKS",
        local_rank="SLURM_LOCALID",
        job=("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
    ),
    "flux": RankVariables(
        rank="FLUX_TASK_RANK", size="FLUX_JOB_SIZE", local_rank="FLUX_TASK_LOCAL_ID", job=("FLUX_JOB_ID",)
    ),
    "lsf": RankVariables(
        rank="JSM_NAMESPACE_RANK",
        size="JSM_NAMESPACE_SIZE",
        local_rank="JSM_NAMESPACE_LOCAL_RANK",
        local_size="JSM_NAMESPACE_LOCAL_SIZE",
        job=("LSB_JOBID", "LSB_JOBINDEX", "JSM_NAMESPACE"),
    ),
    "local": RankVariables(
        rank="OMPI_COMM_WORLD_RANK",
        size="OMPI_COMM_WORLD_SIZE",
        local_rank="OMPI_COMM_WORLD_LOCAL_RANK",
        local_size="OMPI_COMM_WORLD_LOCAL_SIZE",
        job=("PMIX_NAMESPACE",),
    ),
    "pbs": RankVariables(
        rank="PMI_RANK",
        size="PMI_SIZE",
        local_rank="MPI_LOCALRANKID",
        local_size="MPI_LOCALNRANKS",
        # MPICH's mpiexec does not name a launch; HPE's PALS, Intel MPI and Cray's PMI do
        job=(
            "PBS_JOBID",
            "LSB_JOBID",
            "LSB_JOBINDEX",
            "PALS_APID",
            "I_MPI_HYDRA_UUID",
            "PMI_JOBID",
            "PMI_KVSNAME",
        ),
    ),
}


class LaunchedRank(Struct, frozen=True, kw_only=True):
    """This process among those of one launch."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    job: str


def find_rank(environment: Mapping[str, str]) -> LaunchedRank | None:
    """This process in its launch; None if no launcher started several. Raises UsageError for an invalid number."""
    for names in RANK_VARIABLES.values():
        if names.rank in environment and _number(environment, names.size, 1) > 1:
            size = _number(environment, names.size, 1)
            around = _slurm_local_size(environment, size)
            return LaunchedRank(
                rank=_number(environment, names.rank, 0),
                size=size,
                local_rank=_number(environment, names.local_rank, 0),
                local_size=_number(environment, names.local_size, around),
                job="-".join(filter(None, (environment.get(name) for name in names.job))) or "job",
            )
    return None


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, "")
    try:
        return int(text) if text else default
    except ValueError:
        raise UsageError(f"the variable {name} is {text!r}, and a launcher sets it to a number") from None


def _slurm_local_size(environment: Mapping[str, str], size: int) -> int:
    """Processes on this machine, from "4(x2),3" by the node's number; all of them if no variable says it."""
    counts: list[int] = []
    for part in environment.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        num, _, times = part.partition("(x")
        if num.isdigit():
            counts += [int(num)] * (int(times.rstrip(")")) if times else 1)
    node = _number(environment, "SLURM_NODEID", 0)
    return counts[node] if node < len(counts) else size
