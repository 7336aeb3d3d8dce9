"""The peer, a fresh install of upstream Merlin in its own virtual environment under `.cache/`.

With the packages of its day: with newer ones its chords do not complete, so a step after a fan-out never starts.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PACKAGES = ("merlin==1.13.0", "celery==5.5.3", "kombu==5.5.4", "redis==5.2.1", "h5py")
PEER = Path(__file__).resolve().parents[2] / ".cache" / "peer-1.13.0-celery-5.5.3"


def installed(folder: Path, *packages: str) -> Path:
    """The `bin` of a virtual environment in `folder`, which is made with these packages if it is not there."""
    if not (folder / "ready").is_file():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(folder / "bin/python"), "-m", "pip", "install", "-q"]
        subprocess.run([*pip, *packages], check=True)
        (folder / "ready").write_text("\n".join(packages))
    return folder / "bin"


def environment_of(folder: Path) -> dict[str, str]:
    """Environment variables under which programs of that virtual environment come first, with a home of their own."""
    (folder / "home").mkdir(exist_ok=True)
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "HOME": str(folder / "home")}


def peer_environment() -> dict[str, str]:
    """Environment variables under which `merlin` is the peer and `python3` is its interpreter."""
    installed(PEER, *PACKAGES)
    return environment_of(PEER)


def peer_merlin() -> str:
    return str(PEER / "bin" / "merlin")
