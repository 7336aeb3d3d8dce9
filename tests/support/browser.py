"""Debian's Chromium: the whole browser, or its headless shell, which needs only two thirds of the processor time."""

from __future__ import annotations

import shutil

CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")

# axe's rules whose findings depend on the colours; the others say the same of a page in light and in dark
RULES_OF_COLOURS = ("color-contrast", "link-in-text-block")
