"""The launch lines of upstream Merlin's own adapters: steps as JSON on the input, lines as JSON on the output.

Runs in a process of its own, because upstream's package is called merlin, too.
"""

import json
import sys
import tempfile
import types
from pathlib import Path


def line(scheduler: str, run: dict) -> str:
    """The last line of the script that the adapter writes."""
    # upstream imports it, and needs nothing of it here
    sys.modules["pkg_resources"] = types.ModuleType("pkg_resources")
    from maestrowf.datastructures.core.study import StudyStep
    from merlin.study.script_adapter import MerlinScriptAdapterFactory

    make = MerlinScriptAdapterFactory.get_adapter(f"merlin-{scheduler}")
    step = StudyStep()
    step.name, step.description = "sim", "d"
    step.run |= run
    with tempfile.TemporaryDirectory() as folder:
        _, script, _ = make(host="None", bank="None", queue="None").write_script(folder, step)
        return Path(script).read_text().strip().splitlines()[-1]


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    sys.stdout.write("\n" + json.dumps([line(scheduler, run) for scheduler, run in asked]))
