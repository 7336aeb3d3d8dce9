"""Debian's Chromium: its headless shell, which needs two thirds of the processor's time, or the whole browser."""

from __future__ import annotations

import shutil

CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")
