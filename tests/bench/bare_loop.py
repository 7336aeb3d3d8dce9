"""The least that must be done: two processes that make the same files and run the same shells, and nothing else.

    python bare_loop.py warm|fresh|json FOLDER NUM_SAMPLES

`fresh` starts one bash per sample. `warm` lets one bash run 250 samples, each in a subshell of its own process group.
"""

from __future__ import annotations

import os
import subprocess
import sys

NULL = "#!/bin/bash\n\n# 0.5\nexit 0\n"
FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


def directory(root: str, i: int) -> str:
    return f"{root}/{i // 15625 % 25:02d}/{i // 625 % 25:02d}/{i // 25 % 25:02d}/{i % 25:02d}"


def write(path: str, text: str, mode: int = 0o644) -> None:
    fd = os.open(path, FLAGS, mode)
    os.write(fd, text.encode())
    os.close(fd)


def fresh(root: str, lo: int, hi: int) -> None:
    for i in range(lo, hi):
        d = directory(root, i)
        os.makedirs(d, exist_ok=True)
        write(f"{d}/null_step.sh", NULL, 0o755)
        with open(f"{d}/null_step.out", "wb") as out, open(f"{d}/null_step.err", "wb") as err:
            code = subprocess.call(
                ["/bin/bash", f"{d}/null_step.sh"],
                cwd=d,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                process_group=0,
            )
        if code == 0:
            write(f"{d}/MERLIN_FINISHED", "")


def warm(root: str, lo: int, hi: int) -> None:
    for a in range(lo, hi, 250):
        lines = ["set -m"]
        for i in range(a, min(a + 250, hi)):
            d = directory(root, i)
            os.makedirs(d, exist_ok=True)
            write(f"{d}/null_step.sh", NULL, 0o755)
            lines.append(
                f"( cd {d} && exec </dev/null >null_step.out 2>null_step.err; . ./null_step.sh ) "
                f"&& : > {d}/MERLIN_FINISHED"
            )
        subprocess.run(["/bin/bash", "-c", "\n".join(lines)], check=True)


def main() -> None:
    kind, root, num = sys.argv[1], sys.argv[2], int(sys.argv[3])
    loop = {"fresh": fresh, "warm": warm}[kind]
    child = os.fork()
    if child == 0:
        loop(root, 0, num // 2)
        os._exit(0)
    loop(root, num // 2, num)
    _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
