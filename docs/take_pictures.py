"""Pictures of the dashboard for docs/dashboard.md: small studies, a browser, and docs/images/dashboard-*.png.

python docs/take_pictures.py [--keep DIR]

It needs playwright, Chromium and torch, and takes a few minutes. `make docs-pictures` calls it.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright

from merlin.base.files import replacing

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
PICTURES = DOCS / "images"
MAX_BYTES = 200_000
BROWSERS = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome")
WAIT_MS = 600_000
SEEN_IMAGES_ARE_THERE = """() => [...document.images].every(
  (image) => image.complete || image.getBoundingClientRect().top > innerHeight)"""
HALF_DONE = re.compile(r"^(5|6)\d")

# a pipeline that takes half a minute: its tasks wait more than they work
PIPELINE = """
description: {name: laser, description: Laser pulses on thin foils; the steepest ones do not converge}
study:
  - name: mesh
    run: {cmd: "echo zones $(FLUENCE) > mesh.txt"}
  - name: simulate
    run:
      depends: [mesh]
      cmd: |
        sleep 0.02
        awk 'BEGIN {
          if ($(FLUENCE) > 9.2 && $(ANGLE) > 40) {
            print "step 1841  dt=9.8e-14" > "/dev/stderr"
            print "ERROR: no convergence in zone $(MERLIN_SAMPLE_ID) after 50 iterations" > "/dev/stderr"
            exit 3
          }
          print $(FLUENCE) * cos($(ANGLE))
        }' > out.txt
  - name: spectrum
    run: {depends: [simulate], cmd: "sleep 0.01; cat $(simulate.workspace)/$(MERLIN_SAMPLE_PATH)/out.txt > s.txt"}
  - name: images
    run: {depends: [simulate], cmd: "sleep 0.01; echo $(ANGLE) > i.txt"}
  - name: summary
    run: {depends: [spectrum_*, images_*], cmd: "cat $(spectrum.workspace)/*/*/s.txt | sort -g | tail -n 5"}
merlin:
  samples:
    generate: {method: sobol, num: 2400, seed: 5, bounds: {FLUENCE: [1, 10], ANGLE: [0, 60]}}
    column_labels: [FLUENCE, ANGLE]
"""


@dataclass(frozen=True)
class Shot:
    """A picture: its name, an address below the study, what must be seen first, and how it is taken."""

    name: str
    path: str
    sign: str
    height: int
    scheme: str = "light"
    width: int = 1200
    click: str = ""  # before it is taken


# of the study that runs, while it does
RUNNING = (
    Shot("study", "", ".groups summary", 1180),
    Shot("phone", "", ".groups summary", 1180, scheme="dark", width=390),
)
FAILED = (
    Shot("failures", "/failures", ".groups summary", 680, click=".groups summary"),
    Shot("tasks", "/tasks?outcome=failed", "tbody tr:nth-child(12)", 640),
)
TRAINED = (
    Shot("data", "/data", ".images img >> nth=8", 900),
    Shot("training", "/training/tournament:run", "svg.lineage .line", 1000),
)


def merlin(*words: str | Path, cwd: Path) -> subprocess.Popen[str]:
    env = {
        **os.environ,
        "HOME": str(cwd),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    argv = [sys.executable, "-m", "merlin.cli", *map(str, words)]
    return subprocess.Popen(
        argv, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def run_studies(folder: Path) -> None:
    """The studies that have ended when the pictures are taken: springs of seeing.md, and the surrogate of the demo."""
    text = (DOCS / "seeing.md").read_text("utf-8")
    for language, name in (("python", "springs.py"), ("yaml", "springs.yaml")):
        [code] = re.findall(rf"```{language}\n# file: {name}\n(.*?)```", text, re.DOTALL)
        (folder / name).write_text(code, "utf-8")
    (folder / "laser.yaml").write_text(PIPELINE, "utf-8")
    merlin("run", "springs.yaml", "--local", cwd=folder).communicate()
    spec = ROOT / "specs/icf/icf_train.yaml"
    small = ["N_SAMPLES=1500", "INTERVAL=20", "AUTOENCODER_EPOCHS=3", "EPOCHS=8", "TRAINERS=3"]
    merlin("run", spec, "--local", "--vars", f"OUTPUT_PATH={folder}", *small, cwd=folder).communicate()


@contextmanager
def dashboard(folder: Path) -> Iterator[str]:
    """The address of a dashboard of the studies in a folder, with its token."""
    process = merlin("dashboard", "--root", folder, "--port", "0", "--json", cwd=folder)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"]
    finally:
        process.terminate()
        process.communicate()


def study(folder: Path, name: str) -> str:
    [workspace] = [path.name for path in folder.glob(f"{name}_*") if (path / "merlin_info").is_dir()]
    return f"study/{workspace}"


def take(browser: Browser, url: str, folder: Path) -> None:
    base = "{0.scheme}://{0.netloc}/".format(urlsplit(url))
    page = browser.new_context(reduced_motion="reduce", viewport={"width": 1200, "height": 800}).new_page()
    page.goto(url)
    running = merlin("run", "laser.yaml", "--local", "--workers", "2", cwd=folder)
    page.get_by_role("link", name="laser", exact=True).click(timeout=WAIT_MS)
    bar = page.locator(".study-head .bar")
    expect(bar).to_have_attribute("aria-label", HALF_DONE, timeout=WAIT_MS)
    for shot in RUNNING:
        shoot(page, base, study(folder, "laser"), shot)
    shoot(page, base, "", Shot("studies", "", "tbody tr:nth-child(3)", 330))
    running.communicate()
    for shot in FAILED:
        shoot(page, base, study(folder, "laser"), shot)
    for shot in TRAINED:
        shoot(page, base, study(folder, "icf_train"), shot)


def shoot(page: Page, base: str, place: str, shot: Shot) -> None:
    page.emulate_media(color_scheme=shot.scheme)  # type: ignore[arg-type]
    page.set_viewport_size({"width": shot.width, "height": shot.height})
    page.goto(f"{base}{place}{shot.path}")
    expect(page.locator(shot.sign).first).to_be_attached(timeout=WAIT_MS)
    expect(page.locator(".waiting")).to_have_count(0, timeout=WAIT_MS)
    if shot.click:
        page.locator(shot.click).first.click()
    page.wait_for_load_state("load")
    page.wait_for_function(SEEN_IMAGES_ARE_THERE)
    write(PICTURES / f"dashboard-{shot.name}.png", page.screenshot())


def write(path: Path, picture: bytes) -> None:
    """A PNG with as many colours as there is room for."""
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    for colours in (256, 128, 64):
        file = io.BytesIO()
        image.quantize(colours, dither=Image.Dither.NONE).save(file, "png", optimize=True)
        if file.tell() <= MAX_BYTES:
            break
    with replacing(path) as temporary:
        temporary.write_bytes(file.getvalue())
    sys.stdout.write(f"{path.relative_to(ROOT)}: {file.tell():,} bytes\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--keep", type=Path, help="take the studies that lie in DIR, or run and leave them there"
    )
    keep = parser.parse_args().keep
    chromium = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if chromium is None:
        sys.exit(f"pictures need one of {', '.join(BROWSERS)}")
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        folder = (keep or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        if not list(folder.glob("icf_train_*")):
            run_studies(folder)
        for old in folder.glob("laser_*"):
            shutil.rmtree(old)
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        with dashboard(folder) as url:
            take(browser, url, folder)
        browser.close()


if __name__ == "__main__":
    main()
