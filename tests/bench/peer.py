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


def peer_environment() -> dict[str, str]:
    """Environment variables under which `merlin` is the peer and `python3` is its interpreter."""
    if not (PEER / "ready").is_file():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(PEER)], check=True)
        pip = [str(PEER / "bin/python"), "-m", "pip", "install", "-q"]
        subprocess.run([*pip, *PACKAGES], check=True)
        (PEER / "ready").write_text("\n".join(PACKAGES))
    env = dict(os.environ)
    env["PATH"] = f"{PEER / 'bin'}{os.pathsep}{env['PATH']}"
    env["HOME"] = str(PEER / "home")
    (PEER / "home").mkdir(exist_ok=True)
    return env


def peer_merlin() -> str:
    return str(PEER / "bin" / "merlin")
