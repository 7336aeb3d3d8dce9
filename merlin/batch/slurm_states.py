"""The states of Slurm's jobs, by their long and short names. Pure."""

from __future__ import annotations

from merlin.batch.contract import JobState

_STATES = {
    JobState.PENDING: (
        "PENDING PD REQUEUED RQ REQUEUE_HOLD RH REQUEUE_FED RF RESV_DEL_HOLD RD SPECIAL_EXIT SE EXPEDITING EX"
    ),
    JobState.RUNNING: (
        "RUNNING R CONFIGURING CF COMPLETING CG RESIZING RS SIGNALING SI STAGE_OUT SO STOPPED ST SUSPENDED S "
        "UPDATE_DB UD POWER_UP_NODE PU"
    ),
    JobState.OK: "COMPLETED CD",
    JobState.FAILED: "FAILED F OUT_OF_MEMORY OOM LAUNCH_FAILED LF RECONFIG_FAIL RECONFIG_FAILED RC",
    JobState.CANCELLED: "CANCELLED CA REVOKED RV",
    JobState.TIMEOUT: "TIMEOUT TO DEADLINE DL",
    JobState.LOST: "NODE_FAIL NF PREEMPTED PR BOOT_FAIL BF",
}
_BY_NAME = {name: state for state, names in _STATES.items() for name in names.split()}


def slurm_state(text: str) -> JobState:
    """The state of "RUNNING", "PD", "CANCELLED by 1000", "FAILED+"; UNKNOWN for any other word."""
    words = text.upper().split()
    return _BY_NAME.get(words[0].rstrip("+"), JobState.UNKNOWN) if words else JobState.UNKNOWN
