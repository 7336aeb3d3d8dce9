"""Stands for a program of a scheduler: python -I -S program.py FOLDER NAME ARGUMENTS…

It notes the call. It fails in the way that a test has asked for; else it does what the real program does.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path


def main(root: Path, name: str, args: list[str]) -> int:
    with open(root / "calls", "a") as calls:
        calls.write(json.dumps([name, *args]) + "\n")
    called = f"{name}-{args[0]}" if name == "flux" and args else name
    for fault in (root / "faults" / called, root / "faults" / name):
        if fault.exists():
            return _do_wrong(json.loads(fault.read_text()))
    if name == "flux":
        import flux_tool

        try:
            return flux_tool.main(root, args)
        except flux_tool.FluxError as error:
            print(error, file=sys.stderr)
            return error.code
    import lsf_tool
    import pbs_tool

    return {**lsf_tool.COMMANDS, **pbs_tool.COMMANDS}[name](root, args)


def _do_wrong(fault: dict[str, object]) -> int:
    if fault["hangs"]:
        time.sleep(1000)
    print(fault["prints"], file=sys.stderr if fault["code"] else sys.stdout)
    return int(str(fault["code"]))


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:]))
