"""$(LAUNCHER) and $(VLAUNCHER): how the parallel programs of a step start. Pure; nothing else decides about it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from merlin.batch.contract import BatchScheduler, LaunchRequest
from merlin.batch.local import Local
from merlin.plan.plan import Scalar
from merlin.spec.allocation import LAUNCHER, allocated

_VLAUNCHER = "$(VLAUNCHER)"
_MERLIN_PROCS = re.compile(r"^[^#\n]*\bMERLIN_PROCS=(\d+)", re.MULTILINE)
_C_SHELL = re.compile(r"(?:^|[/\s])t?csh(?:\s|$)")

# Variables of the script that $(VLAUNCHER) reads: the resource each defaults to, and without that its value.
_VLAUNCHER_VARIABLES = (
    ("MERLIN_GPUS", "gpus", 0),
    ("MERLIN_CORES", "cores per task", 1),
    ("MERLIN_PROCS", "procs", 1),
    ("MERLIN_NODES", "nodes", 1),
)


class Launchers(Struct, frozen=True):
    """What starts parallel programs where a study is planned."""

    local: Local = field(default_factory=lambda: Local(""))
    schedulers: Mapping[str, BatchScheduler] = field(default_factory=dict)  # that can be used, by batch.type

    def scheduler(self, resources: Mapping[str, Scalar]) -> BatchScheduler | None:
        """The scheduler of a step; None if its programs start on this machine."""
        return self.schedulers.get(str(resources.get("batch.type", "local")))

    def line(self, request: LaunchRequest) -> str:
        """The words before a program: those of the step's scheduler, or of this machine if it is not here.

        So a study that names a scheduler still runs on a laptop. What it says to the scheduler's launcher is left
        out there. Raises ValueError.
        """
        scheduler = self.scheduler(request.resources)
        if scheduler is None and request.resources.get("batch.type", self.local.name) != self.local.name:
            request = replace(request, launch_pre="", launch_args="")
        return (scheduler or self.local).launch_line(request)


def has_launcher(text: str) -> bool:
    """True if a script starts anything with a launcher."""
    return "LAUNCHER)" in text


def declare_vlauncher(text: str, resources: Mapping[str, Scalar], shell: str) -> str:
    """The script with a line before it for every variable of $(VLAUNCHER) that it does not set itself."""
    if _VLAUNCHER not in text:
        return text
    assign = "set " if _C_SHELL.search(shell) else ""
    lines = [
        f"{assign}{name}={_whole(resources.get(key, value))}\n"
        for name, key, value in _VLAUNCHER_VARIABLES
        if not re.search(rf"^[^#\n]*\b{name}=\d+", text, re.MULTILINE)
    ]
    return "".join(lines) + text


def _whole(value: Scalar) -> Scalar:
    """A number of devices for a launcher, which counts whole ones: 0 for a share of a device."""
    return 0 if isinstance(value, float) else value


def fill_launchers(text: str, resources: Mapping[str, Scalar], launchers: Launchers) -> str:
    """Replace both launcher tokens, e.g. with ``srun -n 8 -N 2`` or ``mpirun -np 8``.

    ``$(LAUNCHER)[2n, 8p]`` asks for its own numbers. $(VLAUNCHER) takes them from the script's variables, when the
    script runs. Raises ValueError for values that no launcher takes.
    """
    if not has_launcher(text):
        return text

    def fill(match: re.Match[str]) -> str:
        return launchers.line(_asked(match, resources))

    if _VLAUNCHER in text:
        text = text.replace(_VLAUNCHER, _vlauncher(text, resources, launchers))
    return LAUNCHER.sub(fill, text)


def asked_processes(text: str, resources: Mapping[str, Scalar]) -> int:
    """The most processes that a launcher of the script asks for; 1 if it has none, or the number is not known."""
    asked = [_asked(match, resources).procs for match in LAUNCHER.finditer(text)]
    if _VLAUNCHER in text:
        asked += _MERLIN_PROCS.findall(declare_vlauncher(text, resources, ""))
    return max((int(number) for number in asked if number.isdecimal()), default=1)


def _asked(match: re.Match[str], resources: Mapping[str, Scalar]) -> LaunchRequest:
    """What one $(LAUNCHER) asks for: its own numbers, or those of the step, which are a process per node at least."""
    if match["allocation"] is not None:
        nodes, procs = allocated(match["allocation"])
    else:
        nodes = str(resources.get("nodes", ""))
        procs = str(resources.get("procs", nodes or 1))
    return _request(nodes, procs, resources)


def _vlauncher(text: str, resources: Mapping[str, Scalar], launchers: Launchers) -> str:
    """What $(VLAUNCHER) becomes; its numbers are the script's variables."""
    if launchers.scheduler(resources) is None and set(_MERLIN_PROCS.findall(text)) <= {"1"}:
        return ""
    more: dict[str, Scalar] = {"cores per task": "${MERLIN_CORES}"}
    if isinstance(resources.get("gpus"), int) or re.search(
        r"^[^#\n]*\bMERLIN_GPUS=0*[1-9]", text, re.MULTILINE
    ):
        more["gpus"] = "${MERLIN_GPUS}"
    return launchers.line(_request("${MERLIN_NODES}", "${MERLIN_PROCS}", {**resources, **more}))


def _request(nodes: str, procs: str, resources: Mapping[str, Scalar]) -> LaunchRequest:
    # a share of a device, which no launcher knows: the task has it by a variable
    without = {"gpus"} if isinstance(resources.get("gpus"), float) else set[str]()
    return LaunchRequest(
        nodes=nodes,
        procs=procs,
        resources={key: value for key, value in resources.items() if key not in without},
        launch_pre=str(resources.get("batch.launch_pre", "")),
        launch_args=str(resources.get("batch.launch_args", "")),
    )
