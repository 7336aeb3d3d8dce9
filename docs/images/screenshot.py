"""A picture of the top of an HTML page, as a PNG of at most 300 kB.

python docs/images/screenshot.py demo_output/surrogate.html docs/images/report.png
"""

from __future__ import annotations

import argparse
import io
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from merlin.base.files import replacing

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
MAX_BYTES = 300_000


def screenshot(page: Path, width: int, height: int) -> Image.Image:
    """What a browser shows of the first `height` pixels of a page."""
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        sys.exit(f"a picture needs one of {', '.join(BROWSERS)}")
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder) / "shot.png"
        # sandbox and GPU are not there in containers
        argv = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
                "--hide-scrollbars", f"--window-size={width},{height}", f"--user-data-dir={folder}/profile",
                f"--screenshot={shot}", page.resolve().as_uri()]  # fmt: skip
        subprocess.run(argv, check=True, capture_output=True, timeout=120)
        return Image.open(io.BytesIO(shot.read_bytes())).convert("RGB")


def encoded(image: Image.Image) -> bytes:
    """A PNG with as many colours as there is room for."""
    for colours in (0, 256, 128, 64):
        file = io.BytesIO()
        reduced = image.quantize(colours, dither=Image.Dither.NONE) if colours else image
        reduced.save(file, "png", optimize=True)
        if file.tell() <= MAX_BYTES:
            return file.getvalue()
    sys.exit(f"even with {colours} colours the picture has {file.tell():,} bytes; take less --height")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("page", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--width", type=int, default=1100, help="pixels")
    parser.add_argument("--height", type=int, default=950, help="pixels from the top")
    args = parser.parse_args()
    with replacing(args.out) as temporary:
        temporary.write_bytes(encoded(screenshot(args.page, args.width, args.height)))


if __name__ == "__main__":
    main()
