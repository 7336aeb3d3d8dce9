"""$(LAUNCHER) and $(VLAUNCHER) of steps that run on this machine, without a scheduler."""

from __future__ import annotations

import re
from collections.abc import Mapping

from merlin.study.plan import Scalar

_LAUNCHER = re.compile(r"\$\(LAUNCHER\)(?:\[(?P<allocation>\s*\d+[np](?:\s*,\s*\d+[np])*\s*)\])?")
_VLAUNCHER = "$(VLAUNCHER)"
_C_SHELL = re.compile(r"(?:^|[/\s])t?csh(?:\s|$)")

# Variables of the script that $(VLAUNCHER) reads: the resource each defaults to, and without that its value.
_VLAUNCHER_VARIABLES = (
    ("MERLIN_GPUS", "gpus", 0),
    ("MERLIN_CORES", "cores per task", 1),
    ("MERLIN_PROCS", "procs", 1),
    ("MERLIN_NODES", "nodes", 1),
)


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


def fill_local_launchers(text: str, resources: Mapping[str, Scalar], *, mpirun: bool) -> str:
    """Replace both launcher tokens.

    $(LAUNCHER) becomes ``mpirun -np PROCS``. It becomes nothing for a single process, and where there is no
    mpirun: a study that names a scheduler still runs on a laptop, its programs then as one process each.
    ``$(LAUNCHER)[4p]`` asks for its own number. $(VLAUNCHER) takes the number from MERLIN_PROCS in the
    script, when the script runs.
    """
    if "LAUNCHER)" not in text:
        return text

    def launcher(match: re.Match[str]) -> str:
        asked = re.search(r"(\d+)p", match["allocation"] or "")
        return _mpirun(asked[1] if asked else str(resources.get("procs", 1)), mpirun)

    text = _LAUNCHER.sub(launcher, text)
    numbers = re.findall(r"^[^#\n]*\bMERLIN_PROCS=(\d+)", text, re.MULTILINE)
    procs = "1" if not numbers or set(numbers) == {"1"} else "${MERLIN_PROCS}"
    return text.replace(_VLAUNCHER, _mpirun(procs, mpirun))


def _mpirun(procs: str, available: bool) -> str:
    return f"mpirun -np {procs}" if available and procs != "1" else ""
