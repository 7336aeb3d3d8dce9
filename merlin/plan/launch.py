"""$(LAUNCHER) and $(VLAUNCHER) of steps that run on this machine, without a scheduler. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from merlin.plan.plan import Scalar
from merlin.spec.allocation import LAUNCHER, allocated_procs

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


def has_launcher(text: str) -> bool:
    """True if a script starts anything with a launcher."""
    return "LAUNCHER)" in text


def declare_vlauncher(text: str, resources: Mapping[str, Scalar], shell: str) -> str:
    """The script with a line before it for every variable of $(VLAUNCHER) that it does not set itself."""
    if _VLAUNCHER not in text:
        return text
    assign = "set " if _C_SHELL.search(shell) else ""
    lines = [
        f"{assign}{name}={resources.get(key, value)}\n"
        for name, key, value in _VLAUNCHER_VARIABLES
        if not re.search(rf"^[^#\n]*\b{name}=\d+", text, re.MULTILINE)
    ]
    return "".join(lines) + text


def fill_local_launchers(text: str, resources: Mapping[str, Scalar], *, launcher: str) -> str:
    """Replace both launcher tokens, e.g. with ``mpirun -np 4`` where `launcher` is ``mpirun``.

    They become nothing for a single process, and where `launcher` is "": a study that names a scheduler still
    runs on a laptop, its programs then as one process each. ``$(LAUNCHER)[4p]`` asks for its own number.
    $(VLAUNCHER) takes the number from MERLIN_PROCS in the script, when the script runs.
    """
    if not has_launcher(text):
        return text

    def fill(match: re.Match[str]) -> str:
        return _command(launcher, _asked(match, resources))

    numbers = set(_MERLIN_PROCS.findall(text))
    procs = "1" if numbers <= {"1"} else "${MERLIN_PROCS}"
    return LAUNCHER.sub(fill, text).replace(_VLAUNCHER, _command(launcher, procs))


def asked_processes(text: str, resources: Mapping[str, Scalar]) -> int:
    """The most processes that a launcher of the script asks for; 1 if it has none, or the number is not known."""
    asked = [_asked(match, resources) for match in LAUNCHER.finditer(text)]
    if _VLAUNCHER in text:
        asked += _MERLIN_PROCS.findall(declare_vlauncher(text, resources, ""))
    return max((int(number) for number in asked if number.isdecimal()), default=1)


def _asked(match: re.Match[str], resources: Mapping[str, Scalar]) -> str:
    if match["allocation"] is None:
        return str(resources.get("procs", 1))
    return allocated_procs(match["allocation"])


def _command(launcher: str, procs: str) -> str:
    return f"{launcher} -np {procs}" if launcher and procs != "1" else ""
