"""$(LAUNCHER) and $(VLAUNCHER) of steps that run on this machine, without a scheduler."""

from __future__ import annotations

import re
from collections.abc import Mapping

from merlin.study.plan import Scalar

_LAUNCHER = re.compile(r"\$\(LAUNCHER\)(?:\[(?P<allocation>\s*\d+[np](?:\s*,\s*\d+[np])*\s*)\])?")
_VLAUNCHER = "$(VLAUNCHER)"


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
